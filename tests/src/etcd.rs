//! Servers of etcd, each on a machine of its own beside hosts.

use std::process::Command;

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::hosts::{Hosts, Machine};
use crate::process::{Outcome, Running, eventually, stop};

/// Last numbers of the addresses of the machines.
const NUMBERS: [u8; 3] = [101, 102, 103];

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
        let revision = "$(etcdctl get fill -w fields --keys-only | sed -n 's/\"Revision\" : //p')";
        self.shell(&format!(
            "etcdctl del fill && etcdctl compact {revision} && etcdctl defrag && \
             etcdctl alarm disarm"
        ))
        .ok();
    }

    /// Runs a command of the shell, with access to the first server.
    fn shell(&self, text: &str) -> Outcome {
        let mut shell = Command::new("sh");
        shell
            .env("ETCDCTL_API", "3")
            .env("ETCDCTL_ENDPOINTS", self.url(0))
            .args(["-c", text]);
        self.machines[0].spawn(&shell).wait()
    }

    /// The endpoints as a list for the file of a host.
    pub fn endpoints(&self) -> String {
        let urls = (0..self.machines.len()).map(|index| self.url(index));
        format!("{:?}", urls.collect::<Vec<String>>())
    }

    /// Stops all servers; returns once none of their threads runs. After `kill` has returned, a busy
    /// machine lets them go on for some 30 ms, in which they carry out transactions and answer.
    #[track_caller]
    pub fn stop(&self) {
        for server in &self.servers {
            stop(server.pid());
        }
    }

    /// Lets stopped servers go on.
    pub fn go_on(&self) {
        for server in &self.servers {
            server.signal(Signal::SIGCONT);
        }
    }

    /// Kills a server.
    pub fn kill(&mut self, index: usize) {
        self.servers.remove(index).kill();
    }
}
