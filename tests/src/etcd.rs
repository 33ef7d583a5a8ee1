//! Servers of etcd, each on a machine of its own beside hosts.

use std::process::Command;

use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::hosts::{Hosts, Machine};
use crate::process::{Outcome, Running, eventually, stop};

/// Last numbers of the addresses of the machines.
const NUMBERS: [u8; 3] = [101, 102, 103];

/// The present revision, in a command of the shell.
const PRESENT: &str = "$(etcdctl get fill -w fields --keys-only | sed -n 's/\"Revision\" : //p')";

/// The servers of one cluster. Dropping it ends them.
#[derive(Debug)]
pub struct Etcd {
    servers: Vec<Running>,
    machines: Vec<Machine>,
    data: TempDir,
}

impl Etcd {
    /// Starts one to three servers, and waits until they decide.
    ///
    /// # Panics
    /// Without Debian's package `etcd`.
    #[track_caller]
    pub fn start(hosts: &Hosts, count: usize) -> Self {
        let machines = NUMBERS[..count].iter().map(|number| hosts.machine(*number));
        // In memory, because etcd waits for the disk.
        let data = tempfile::tempdir_in("/dev/shm").expect("there is room");
        let mut etcd = Etcd {
            servers: Vec::new(),
            machines: machines.collect(),
            data,
        };
        etcd.servers = (0..count).map(|index| etcd.server(index)).collect();
        eventually("etcd decides", || {
            let mut put = Command::new("etcdctl");
            put.env("ETCDCTL_API", "3")
                .args(["--dial-timeout", "1s", "--command-timeout", "2s"])
                .args(["--endpoints", &etcd.url(0), "get", "x"]);
            let first = &etcd.machines[0];
            first.spawn(&put).wait().status == 0
        });
        etcd
    }

    fn server(&self, index: usize) -> Running {
        let peer = |machine: &Machine| format!("http://{}:2380", machine.address);
        let all = self.machines.iter().enumerate();
        let all: Vec<String> = all.map(|(n, its)| format!("n{n}={}", peer(its))).collect();
        let (machine, url) = (&self.machines[index], self.url(index));
        let mut etcd = Command::new("etcd");
        etcd.args(["--log-level", "error", "--name", &format!("n{index}")])
            .arg("--data-dir")
            .arg(self.data.path().join(index.to_string()))
            .args(["--listen-client-urls", &url])
            .args(["--advertise-client-urls", &url])
            .args(["--listen-peer-urls", &peer(machine)])
            .args(["--initial-advertise-peer-urls", &peer(machine)])
            .args(["--initial-cluster", &all.join(",")])
            // Soon full.
            .args(["--quota-backend-bytes", "16777216"]);
        if all.len() == 1 {
            // A single server starts in a tenth of the time.
            etcd.args(["--heartbeat-interval", "10", "--election-timeout", "100"]);
        }
        machine.spawn(&etcd)
    }

    fn url(&self, index: usize) -> String {
        format!("http://{}:2379", self.machines[index].address)
    }

    /// Writes keys until there is no space for more.
    #[track_caller]
    pub fn fill(&self) {
        eventually("etcd is out of space", || {
            let text = "head -c 1000000 /dev/urandom | base64 -w0 | etcdctl put fill";
            self.shell(text).status != 0
        });
    }

    /// Writes a key.
    #[track_caller]
    pub fn put(&self, key: &str, value: &str) {
        self.shell(&format!("etcdctl put {key} {value}")).ok();
    }

    /// Makes space again.
    #[track_caller]
    pub fn empty(&self) {
        self.shell(&format!(
            "etcdctl del fill && etcdctl compact {PRESENT} && etcdctl defrag && \
             etcdctl alarm disarm"
        ))
        .ok();
    }

    /// Runs a command of the shell, with access to the servers.
    fn shell(&self, text: &str) -> Outcome {
        let urls: Vec<String> = self.urls().collect();
        let mut shell = Command::new("sh");
        shell
            .env("ETCDCTL_API", "3")
            .env("ETCDCTL_ENDPOINTS", urls.join(","))
            .args(["-c", text]);
        self.machines[0].spawn(&shell).wait()
    }

    /// The endpoints as a list for the file of a host.
    pub fn endpoints(&self) -> String {
        format!("{:?}", self.urls().collect::<Vec<String>>())
    }

    fn urls(&self) -> impl Iterator<Item = String> {
        (0..self.machines.len()).map(|index| self.url(index))
    }

    /// Stops all servers.
    #[track_caller]
    pub fn stop(&self) {
        self.stop_some(0..self.servers.len());
    }

    /// Stops some servers; returns once none of their threads runs. After `kill` has returned, a busy
    /// machine lets them go on for some 30 ms, in which they carry out transactions and answer.
    #[track_caller]
    pub fn stop_some(&self, servers: impl IntoIterator<Item = usize>) {
        for server in servers {
            stop(self.servers[server].pid());
        }
    }

    /// Lets stopped servers go on.
    pub fn go_on(&self) {
        for server in &self.servers {
            server.signal(Signal::SIGCONT);
        }
    }

    /// Number of servers.
    #[allow(clippy::len_without_is_empty, reason = "there is one at least")]
    pub fn len(&self) -> usize {
        self.servers.len()
    }

    /// Kills a server.
    pub fn kill(&mut self, index: usize) {
        let server = &mut self.servers[index];
        server.signal(Signal::SIGKILL);
        eventually("a server of etcd has ended", || server.has_ended());
    }

    /// Starts a killed server again.
    pub fn restart(&mut self, index: usize) {
        self.servers[index] = self.server(index);
    }

    /// The leading server, if all know it.
    pub fn leader(&self) -> Option<usize> {
        let status = self.shell("etcdctl --command-timeout 1s endpoint status --cluster -w json");
        let status: Value = serde_json::from_str(status.text()).ok()?;
        let all = status.as_array()?;
        let leads = |server: &&Value| {
            let status = &server["Status"];
            status["leader"] == status["header"]["member_id"]
        };
        let found = all.iter().find(leads)?;
        (0..self.machines.len()).find(|index| found["Endpoint"] == self.url(*index))
    }

    /// Forgets all former revisions. Fails while etcd has no majority.
    pub fn compact(&self) -> bool {
        self.shell(&format!("etcdctl compact {PRESENT}")).status == 0
    }

    /// Lets etcd say that it is out of space, or no more. Fails while it has no majority.
    pub fn claim_full(&self, is_full: bool) -> bool {
        let action = if is_full { "ACTIVATE" } else { "DEACTIVATE" };
        let alarm = format!(r#"{{"action":"{action}","alarm":"NOSPACE"}}"#);
        let urls: Vec<String> = self.urls().collect();
        let post = format!("curl -sf -m 5 -d '{alarm}' $url/v3/maintenance/alarm");
        let post = format!(
            "for url in {}; do {post} && exit; done; false",
            urls.join(" ")
        );
        self.shell(&post).status == 0
    }
}
