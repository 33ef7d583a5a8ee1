//! Several hosts on one machine: an agent each, in a network namespace of its own, on cables to one switch.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;

use crate::cluster::Cluster;
use crate::outside::network_holder;
use crate::process::{Outcome, Running, append, eventually, run};

/// The key that hosts share.
pub const KEY: &str = "11223344556677889900aabbccddeeff11223344556677889900aabbccddeeff";

const PORT: u16 = 7470;

/// Hosts `a`, `b` and so on, each with one row of the torus.
#[derive(Debug)]
pub struct Hosts {
    all: Vec<Host>,
    switch: Network,
}

/// A host.
#[derive(Debug)]
pub struct Host {
    /// Its agent.
    pub agent: Cluster,
    name: &'static str,
    /// Number of its address.
    number: AtomicUsize,
    network: Network,
    others: Vec<(&'static str, String)>,
    torus: String,
}

/// Deviations of a host's file from the right one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Oddities<'a> {
    /// Another name.
    pub host: Option<&'a str>,
    /// Other nodes.
    pub nodes: Option<&'a str>,
    /// Another torus.
    pub torus: Option<&'a str>,
    /// Another key.
    pub key: Option<&'a str>,
    /// The limit for acknowledgements, in milliseconds.
    pub ack_timeout: Option<u32>,
    /// Another leader.
    pub directory: Option<&'a str>,
    /// Endpoints of an etcd that has the directory.
    pub etcd: Option<&'a str>,
    /// Hosts that may lead then; otherwise all.
    pub candidates: Option<&'a [&'a str]>,
    /// Encryption, on or off.
    pub encryption: Option<&'a str>,
    /// Commands of other hosts, on or off.
    pub commands: Option<&'a str>,
    /// Whether the file has the addresses of all other hosts, and not only of those that may lead.
    pub full: bool,
    /// Addresses in the file in place of the right ones.
    pub hosts: &'a [(&'a str, &'a str)],
    /// Another address to listen at.
    pub listen: Option<&'a str>,
    /// An address that the host tells the others.
    pub address: Option<&'a str>,
    /// A torus to emulate.
    pub fabric: Option<&'a str>,
    /// Place of the directory that is lost.
    pub lost: Option<&'a str>,
    /// Whether the directory begins anew.
    pub fresh: bool,
    /// Whether `CLOCK_BOOTTIME` of the host is an hour ahead, for its agent and nodes.
    pub clock_ahead: bool,
}

impl Oddities<'_> {
    /// The right file.
    pub const RIGHT: Self = Oddities {
        host: None,
        nodes: None,
        torus: None,
        key: None,
        ack_timeout: None,
        directory: None,
        etcd: None,
        candidates: None,
        encryption: None,
        commands: None,
        full: false,
        hosts: &[],
        listen: None,
        address: None,
        fabric: None,
        lost: None,
        fresh: false,
        clock_ahead: false,
    };
}

impl Hosts {
    /// Up to five hosts with running agents. The first one has the directory.
    #[track_caller]
    pub fn up(count: usize) -> Self {
        let hosts = Self::down_yet(count);
        for host in &hosts.all {
            host.up();
        }
        hosts
    }

    /// The same without agents yet.
    #[track_caller]
    pub fn down_yet(count: usize) -> Self {
        let names = &["a", "b", "c", "d", "e"][..count];
        let switch = Network::new();
        switch.run("ip link add name switch type bridge");
        switch.run("ip link set switch up");
        let all = names.iter().enumerate();
        let all = all.map(|(n, name)| {
            let network = Network::new();
            network.connect(&switch, &port(name), &address(n));
            let others = names.iter().enumerate().filter(|(other, _)| *other != n);
            let others = others.map(|(other, name)| (*name, format!("{}:{PORT}", address(other))));
            let agent = Cluster::down_yet();
            let torus = format!("2x{count}x1");
            let others = others.collect();
            Host {
                agent,
                name,
                number: AtomicUsize::new(n),
                network,
                others,
                torus,
            }
        });
        Hosts {
            all: all.collect(),
            switch,
        }
    }

    /// The hosts, in order.
    pub fn each<const N: usize>(&self) -> [&Host; N] {
        let all: Vec<&Host> = self.all.iter().collect();
        all.try_into().expect("so many were asked for")
    }

    /// A machine without an agent, on a cable of its own, at the address with this last number.
    #[track_caller]
    pub(crate) fn machine(&self, number: u8) -> Machine {
        let network = Network::new();
        let address = format!("10.99.0.{number}");
        network.connect(&self.switch, &format!("port-{number}"), &address);
        Machine { network, address }
    }

    /// The host whose agent coordinates, waited for, and the others.
    #[track_caller]
    pub fn coordinator(&self) -> (&Host, Vec<&Host>) {
        let mut found = None;
        eventually("a host coordinates, and the others follow", || {
            let led = |host: &&Host| {
                let status = host.agent.toroid("status --json");
                let status: Value = serde_json::from_str(status.text()).ok()?;
                let hosts = status["hosts"].as_array()?;
                let leader = hosts.iter().find(|its| its["directory"] == true)?;
                let is_there = ["here", "connected"].contains(&leader["state"].as_str()?);
                is_there.then(|| leader["name"].as_str().map(str::to_owned))?
            };
            let running: Vec<&Host> = self.all.iter().filter(|host| host.is_up()).collect();
            let leaders: Vec<Option<String>> = running.iter().map(led).collect();
            found = leaders.first().cloned().flatten();
            let runs = |name: &String| running.iter().any(|host| host.name == name);
            found.as_ref().is_some_and(runs) && leaders.iter().all(|its| *its == found)
        });
        let is_it = |host: &&Host| Some(host.name) == found.as_deref();
        let (leader, others): (Vec<&Host>, Vec<&Host>) = self.all.iter().partition(is_it);
        (leader[0], others)
    }

    /// Cuts a host's cable.
    #[track_caller]
    pub fn cut(&self, host: &Host) {
        self.switch
            .run(&format!("ip link set {} down", port(host.name)));
    }

    /// Mends a host's cable.
    #[track_caller]
    pub fn mend(&self, host: &Host) {
        self.switch
            .run(&format!("ip link set {} up", port(host.name)));
    }

    /// Waits until all agents have the same directory.
    #[track_caller]
    pub fn agree(&self) {
        let view = |host: &Host| {
            let [nodes, domains] = ["node ls", "domain ls"].map(|words| host.agent.ask(words));
            without_pids(nodes).to_string() + &domains.to_string()
        };
        eventually("all agents have the same directory", || {
            let views: Vec<String> = self.all.iter().map(view).collect();
            views.windows(2).all(|two| two[0] == two[1])
        });
    }
}

impl Host {
    /// Its name.
    pub fn name(&self) -> &str {
        self.name
    }

    /// Whether it has an agent.
    fn is_up(&self) -> bool {
        self.agent.state_files().contains("agent.sock")
    }

    /// Starts its agent.
    #[track_caller]
    pub fn up(&self) {
        self.try_up(Oddities::default()).ok();
    }

    /// Starts its agent with some deviations.
    #[must_use = "say whether it should have succeeded"]
    pub fn try_up(&self, oddities: Oddities<'_>) -> Outcome {
        let mut command = self.agent.command("toroid");
        if oddities.clock_ahead {
            let mut ahead = Command::new("unshare");
            ahead.args(["--time", "--boottime", "3600", "--"]);
            append(&mut ahead, &command);
            command = ahead;
        }
        let mut command = self.network.inside(&command);
        command.arg("up").arg("--config").arg(self.write(oddities));
        if let Some(fabric) = oddities.fabric {
            command.args(["--fabric", fabric]);
        }
        if let Some(lost) = oddities.lost {
            command.args(["--lost", lost]);
        }
        if oddities.fresh {
            command.arg("--fresh");
        }
        run(&mut command)
    }

    /// Writes its file, and the key beside it.
    fn write(&self, oddities: Oddities<'_>) -> PathBuf {
        let directory = self.agent.files();
        let key = directory.join("key");
        fs::write(&key, oddities.key.unwrap_or(KEY)).expect("there is room");
        fs::set_permissions(&key, Permissions::from_mode(0o600)).expect("it is ours");
        let row = format!("*,{},0", self.name.as_bytes()[0] - b'a');
        let place = oddities.directory.unwrap_or(match oddities.etcd {
            Some(_) => "etcd",
            None => "a",
        });
        let mut text = format!(
            "host = \"{}\"\ntorus = \"{}\"\nnodes = [\"{}\"]\nlisten = \"{}\"\nkey = \"key\"\n\
             directory = \"{place}\"\n",
            oddities.host.unwrap_or(self.name),
            oddities.torus.unwrap_or(&self.torus),
            oddities.nodes.unwrap_or(&row),
            oddities.listen.unwrap_or(&self.address()),
        );
        let others = self.others.iter().map(|(name, _)| *name);
        let all: Vec<&str> = others.chain([self.name]).collect();
        let candidates = oddities.candidates.unwrap_or(&all);
        if oddities.etcd.is_some() {
            text += &format!("candidates = {candidates:?}\n");
        }
        if let Some(address) = oddities.address {
            text += &format!("address = \"{address}\"\n");
        }
        if let Some(timeout) = oddities.ack_timeout {
            text += &format!("ack-timeout = {timeout}\n");
        }
        if let Some(commands) = oddities.commands {
            text += &format!("commands = \"{commands}\"\n");
        }
        if let Some(encryption) = oddities.encryption {
            text += &format!("encryption = \"{encryption}\"\n");
        }
        text += "[hosts]\n";
        let may_lead = |name: &str| match place {
            "etcd" => candidates.contains(&name),
            leader => leader == name,
        };
        for (name, address) in &self.others {
            let odd = oddities.hosts.iter().find(|(other, _)| other == name);
            let is_named = oddities.full || may_lead(name) || odd.is_some();
            if is_named && oddities.host != Some(name) {
                let address = odd.map_or(address.as_str(), |(_, address)| address);
                text += &format!("{name} = \"{address}\"\n");
            }
        }
        if let Some(endpoints) = oddities.etcd.filter(|_| candidates.contains(&self.name)) {
            text += &format!("[etcd]\nendpoints = {endpoints}\n");
        }
        let file = directory.join("host.toml");
        fs::write(&file, text).expect("there is room");
        file
    }

    /// The address and port of its agent.
    pub fn address(&self) -> String {
        format!("{}:{PORT}", self.ip())
    }

    /// Its address.
    pub fn ip(&self) -> String {
        address(self.number.load(Ordering::Relaxed))
    }

    /// Gives it the address with this number, from 0 on, in place of the present one.
    #[track_caller]
    pub fn readdress(&self, number: usize) {
        self.network
            .run(&format!("ip address del {}/24 dev eth0", self.ip()));
        self.number.store(number, Ordering::Relaxed);
        self.network
            .run(&format!("ip address add {}/24 dev eth0", self.ip()));
    }

    /// Lets no packet of this host get to etcd.
    #[track_caller]
    pub fn cut_from_etcd(&self) {
        self.drop_sent("etcd", "tcp dport 2379");
    }

    /// Lets packets get there again.
    #[track_caller]
    pub fn reconnect_with_etcd(&self) {
        self.drop_no_more("etcd");
    }

    /// Drops sent packets that match the words of nftables(8), under a name.
    #[track_caller]
    pub fn drop_sent(&self, name: &str, matching: &str) {
        self.network.run(&format!(
            "nft add table inet {name} ; \
             add chain inet {name} out {{ type filter hook output priority 0 ; }} ; \
             add rule inet {name} out {matching} drop"
        ));
    }

    /// Ends the drops of this name.
    #[track_caller]
    pub fn drop_no_more(&self, name: &str) {
        self.network.run(&format!("nft delete table inet {name}"));
    }

    /// The status of another host, as this host's agent sees it.
    #[track_caller]
    pub fn about(&self, other: &str) -> Value {
        self.if_known(other).expect("it is one of the hosts")
    }

    /// The same, if this host's agent knows the other one.
    #[track_caller]
    fn if_known(&self, other: &str) -> Option<Value> {
        let status = self.agent.status();
        let hosts = status["hosts"].as_array().expect("hosts are a list");
        let found = hosts.iter().find(|host| host["name"] == other);
        found.cloned()
    }

    /// Waits until something is so of another host.
    #[track_caller]
    fn awaits(&self, what: &str, other: &str, is_so: impl Fn(&Value) -> bool) {
        eventually(what, || self.if_known(other).as_ref().is_some_and(&is_so));
    }

    /// Waits until its agent has a session with another one.
    #[track_caller]
    pub fn meets(&self, other: &str) {
        self.awaits("they have a session", other, |its| {
            its["state"] == "connected"
        });
    }

    /// Waits until its driver is connected to that of another one.
    #[track_caller]
    pub fn trunk_to(&self, other: &str) {
        self.awaits("frames get there", other, |its| its["frames"] == true);
    }

    /// Waits until its agent reports a problem of another host.
    #[track_caller]
    pub fn objects_to(&self, other: &str, words: &str) {
        let what = format!("it says \"{words}\" of host {other}");
        self.awaits(&what, other, |its| {
            let problem = its["problem"].as_str();
            problem.is_some_and(|text| text.contains(words))
        });
    }

    /// Starts a program on this host, not in a node, with a pipe as its standard input.
    pub fn spawn(&self, program: &str, arguments: &[&str]) -> Running {
        let mut command = Command::new(program);
        command.args(arguments);
        Running::start(self.network.inside(&command).stdin(Stdio::piped()))
    }
}

/// A machine without an agent.
#[derive(Debug)]
pub(crate) struct Machine {
    network: Network,
    pub(crate) address: String,
}

impl Machine {
    /// Starts a program on it.
    pub(crate) fn spawn(&self, command: &Command) -> Running {
        Running::start(self.network.inside(command).stdin(Stdio::null()))
    }
}

/// The switch's end of a host's cable.
fn port(host: &str) -> String {
    format!("port-{host}")
}

fn address(n: usize) -> String {
    format!("10.99.0.{}", n + 1)
}

fn without_pids(mut nodes: Value) -> Value {
    for node in nodes.as_array_mut().into_iter().flatten() {
        if let Some(node) = node.as_object_mut() {
            node.remove("pid");
        }
    }
    nodes
}

/// A network namespace. Dropping it removes it.
#[derive(Debug)]
struct Network {
    /// The process that keeps it.
    holder: Running,
}

impl Network {
    #[track_caller]
    fn new() -> Self {
        Network {
            holder: network_holder(),
        }
    }

    /// Lays a cable to a switch, where its end has this name.
    #[track_caller]
    fn connect(&self, switch: &Network, name: &str, address: &str) {
        let (ours, theirs) = (self.holder.pid(), switch.holder.pid());
        self.run(&format!(
            "ip link add name eth0 netns {ours} type veth peer name {name} netns {theirs}"
        ));
        self.run(&format!("ip address add {address}/24 dev eth0"));
        self.run("ip link set eth0 up");
        switch.run(&format!("ip link set {name} master switch up"));
    }

    /// Runs a command in it, words separated by white space.
    #[track_caller]
    fn run(&self, words: &str) {
        let mut words = words.split_whitespace();
        let mut command = Command::new(words.next().expect("a command"));
        command.args(words);
        run(&mut self.inside(&command)).ok();
    }

    /// The same command in the namespace.
    fn inside(&self, command: &Command) -> Command {
        let mut inside = Command::new("nsenter");
        let net = format!("--net=/proc/{}/ns/net", self.holder.pid());
        inside.args([&net, "--"]);
        append(&mut inside, command);
        inside
    }
}
