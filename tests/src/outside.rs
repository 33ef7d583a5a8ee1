//! A network outside of the fabric, connected to an interface of the host.

use std::fs;
use std::panic::resume_unwind;
use std::process::{Command, Stdio};
use std::thread;

use nix::sched::{CloneFlags, unshare};

use crate::process::{Outcome, Running, clean_up, eventually, run};
use crate::watchdog::Watchdog;

/// Numbers of networks to try: other tests may run on the same host.
const NUMBERS: std::ops::Range<u8> = 0..250;

/// A network outside, with one host in it. Dropping it removes it.
#[derive(Debug)]
pub struct Outside {
    number: u8,
    /// The process that keeps the namespace.
    holder: Running,
}

impl Outside {
    /// Makes a network with addresses of 198.18.N.0/24 (for benchmarks, RFC 2544).
    ///
    /// # Panics
    /// When it cannot be made.
    #[track_caller]
    pub fn new() -> Self {
        let holder = network_holder();
        let is_new = |number: &u8| connect(*number, &holder).status == 0;
        let number = NUMBERS.into_iter().find(is_new);
        let number = number.expect("not all numbers are in use");
        let outside = Outside { number, holder };
        outside.address_both();
        outside
    }

    /// Removes the interface of the host, and thereby its peer outside.
    #[track_caller]
    pub fn remove_uplink(&self) {
        host(&format!("ip link delete {}", self.uplink()));
    }

    /// Makes both interfaces anew.
    #[track_caller]
    pub fn restore_uplink(&self) {
        connect(self.number, &self.holder).ok();
        self.address_both();
    }

    #[track_caller]
    fn address_both(&self) {
        let (uplink, here) = (self.uplink(), self.host_address());
        host(&format!("ip address add {here}/24 dev {uplink}"));
        host(&format!("ip link set {uplink} up"));
        let there = self.address();
        self.run(&format!("ip address add {there}/24 dev out")).ok();
        self.run("ip link set out up").ok();
    }

    /// The interface of the host.
    pub fn uplink(&self) -> String {
        format!("up{}", self.number)
    }

    /// The address of the toroid host.
    pub fn host_address(&self) -> String {
        format!("198.18.{}.1", self.number)
    }

    /// The address of the host outside.
    pub fn address(&self) -> String {
        format!("198.18.{}.2", self.number)
    }

    /// The subnet.
    pub fn subnet(&self) -> String {
        format!("198.18.{}.0/24", self.number)
    }

    /// Runs a command outside to its end, words separated by white space.
    #[must_use = "say whether it should have succeeded"]
    pub fn run(&self, words: &str) -> Outcome {
        run(&mut self.inside(words))
    }

    /// Starts a command outside.
    pub fn spawn(&self, words: &str) -> Running {
        Running::start(self.inside(words).stdin(Stdio::piped()))
    }

    /// A web server outside, and the URL of a page.
    #[track_caller]
    pub fn web_server(&self) -> (Running, String) {
        let server = self.spawn("python3 -u -m http.server 8000 --directory /etc");
        server.says("Serving HTTP");
        let page = format!("http://{}:8000/hostname", self.address());
        (server, page)
    }

    /// A DHCP server outside.
    #[track_caller]
    pub fn dhcp_server(&self) -> Running {
        let (n, us) = (self.number, self.address());
        let server = self.spawn(&format!(
            "dnsmasq --no-daemon --port=0 --interface=out --bind-interfaces --leasefile-ro \
             --conf-file=/dev/null --user=root --log-facility=- \
             --dhcp-range=198.18.{n}.100,198.18.{n}.200,255.255.255.0,1h \
             --dhcp-option=option:router,{us}"
        ));
        eventually("it serves", || {
            server.complaints_so_far().contains("IP range")
        });
        server
    }

    fn inside(&self, words: &str) -> Command {
        let mut command = Command::new("nsenter");
        let pid = self.holder.pid().to_string();
        command.args(["--net", "--target", &pid, "--"]);
        command.args(words.split_whitespace());
        command
    }
}

impl Default for Outside {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        // Explicitly: the kernel removes the namespace of an ended process only later.
        clean_up(Command::new("ip").args(["link", "delete", &self.uplink()]));
    }
}

/// A process that keeps a network namespace of its own, with its loopback interface up.
#[track_caller]
pub fn network_holder() -> Running {
    let mut command = Command::new("unshare");
    let script = "ip link set lo up && echo ready && exec cat";
    command.args(["--net", "sh", "-c", script]);
    let holder = Running::start(command.stdin(Stdio::piped()));
    holder.says("ready");
    holder
}

/// Runs a story, watched for a hang, in a network namespace of its own, whose settings concern no other
/// test and which does not forward IPv4 packets.
///
/// # Panics
/// Without the right to make a namespace, and as the story does.
pub fn on_a_host_of_its_own(story: impl FnOnce() + Send) {
    let tell = || {
        unshare(CloneFlags::CLONE_NEWNET).expect("root may have another network");
        host("ip link set lo up");
        sysctl("net/ipv4/ip_forward", "0");
        story();
    };
    let _watchdog = Watchdog::start();
    // The children of a thread are in its namespace.
    let told = thread::scope(|scope| scope.spawn(tell).join());
    told.unwrap_or_else(|panic| resume_unwind(panic));
}

/// Sets a variable of /proc/sys in the network namespace of the calling thread.
///
/// # Panics
/// When the kernel refuses.
#[track_caller]
pub fn sysctl(name: &str, value: &str) {
    let set = fs::write(format!("/proc/sys/{name}"), value);
    set.unwrap_or_else(|error| panic!("{name}: {error}"));
}

/// Makes a pair of interfaces, one of them in the namespace of `holder`.
fn connect(number: u8, holder: &Running) -> Outcome {
    let pid = holder.pid();
    // An address chosen by the kernel may begin like one of a member.
    let [ours, its] = [1, 2].map(|end| format!("02:00:00:00:{number:02x}:{end:02x}"));
    let words = format!(
        "link add up{number} address {ours} type veth peer name out address {its} netns {pid}"
    );
    run(Command::new("ip").args(words.split(' ')))
}

/// Runs a command on the host, words separated by white space.
#[track_caller]
pub fn host(words: &str) -> Outcome {
    let mut words = words.split_whitespace();
    let program = words.next().expect("a command");
    run(Command::new(program).args(words)).ok()
}
