//! Agents as users run them: by the programs of this workspace, each with a state directory of its own.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;

use nix::sys::signal::Signal;
use nix::unistd::Uid;
use serde_json::Value;
use tempfile::TempDir;

use crate::leftovers::{self, Leftovers, Namespaces};
use crate::process::{Outcome, Running, clean_up, eventually, run, run_with, send};
use crate::user::{Tun, User, as_uid};
use crate::watchdog::Watchdog;

/// Programs that stories run in nodes.
const PROGRAMS: [&str; 4] = ["toroid", "toroid-ethernet", "toroid-kv", "actor"];

/// The directory of test files; nodes have a `/tmp` of their own.
pub(crate) const PLACE: &str = "/var/lib";

/// A program of this workspace, built in the same profile as the test.
///
/// # Panics
/// When it was not built.
pub fn program(name: &str) -> PathBuf {
    let test = env::current_exe().expect("this program has a path");
    let profile = test
        .ancestors()
        .nth(2)
        .expect("it is in target/PROFILE/deps");
    let program = profile.join(name);
    assert!(
        program.is_file(),
        "{} was not built; run `tests/run system`, which builds it",
        program.display()
    );
    program
}

/// Whether stories run in their longer, nightly form.
pub fn is_nightly() -> bool {
    env::var_os("TOROID_TEST_NIGHTLY").is_some_and(|value| !value.is_empty())
}

/// An agent, or a state directory for one. Dropping it ends the agent.
#[derive(Debug)]
pub struct Cluster {
    directory: TempDir,
    user: Option<User>,
    watchdog: Arc<Watchdog>,
}

/// Switches protections of an agent or a member off, by environment variables that only programs with
/// the feature `unprotected` read.
pub fn leave_out(command: &mut Command, protections: &[&str]) {
    let names = protections
        .iter()
        .map(|name| format!("TOROID_TEST_WITHOUT_{name}"));
    command.envs(names.map(|name| (name, "1")));
}

impl Cluster {
    /// An agent with a torus such as `2x2x2`, ready.
    #[track_caller]
    pub fn up(torus: &str) -> Self {
        let cluster = Self::down_yet();
        cluster.toroid(&format!("up --torus {torus}")).ok();
        cluster
    }

    /// The same, [without](leave_out) some of its protections.
    #[track_caller]
    pub fn up_without(torus: &str, protections: &[&str]) -> Self {
        let cluster = Self::down_yet();
        let mut up = cluster.command("toroid");
        leave_out(&mut up, protections);
        run(up.args(["up", "--torus", torus])).ok();
        cluster
    }

    /// A state directory without an agent.
    pub fn down_yet() -> Self {
        Self::of(None)
    }

    /// A state directory for an agent of an ordinary user.
    pub fn of_user(user: User) -> Self {
        Self::of(Some(user))
    }

    fn of(user: Option<User>) -> Self {
        needs_root();
        needs_tun();
        leftovers::adopt_orphans();
        let directory = tempfile::Builder::new()
            .prefix(&leftovers::prefix())
            // The users of nodes must read it.
            .permissions(Permissions::from_mode(0o755))
            .tempdir_in(PLACE);
        let directory = directory.expect("a temporary directory");
        let owner = user.as_ref().map_or(0, User::uid);
        if user.is_none() {
            furnish(directory.path());
        }
        std::os::unix::fs::chown(directory.path(), Some(owner), Some(owner)).expect("we are root");
        Cluster {
            directory,
            user,
            watchdog: Watchdog::start(),
        }
    }

    /// Starts the next round of a long story, for which the watchdog waits as long as for a whole story.
    pub fn goes_on(&self) {
        self.watchdog.goes_on();
    }

    /// The state directory.
    pub fn state(&self) -> PathBuf {
        self.directory.path().join("state")
    }

    /// The data directory.
    pub fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// A directory for the files of a story.
    pub fn files(&self) -> &Path {
        self.directory.path()
    }

    /// A command of this workspace with this state directory, run as the user of the agent.
    pub fn command(&self, name: &str) -> Command {
        match &self.user {
            Some(user) => self.told(user.command(name)),
            None => {
                let mut command = Command::new(program(name));
                command.env("PATH", self.path());
                self.told(command)
            }
        }
    }

    /// `PATH`, with the programs of this workspace first.
    pub fn path(&self) -> OsString {
        with_programs_in(&self.files().join("bin"))
    }

    /// The same with the given access to `/dev/net/tun`.
    pub fn command_with(&self, tun: Tun, name: &str) -> Command {
        match &self.user {
            Some(user) => self.told(user.command_with(tun, name)),
            None => {
                let mut command = as_uid(0, tun);
                command.arg(program(name));
                self.told(command)
            }
        }
    }

    fn told(&self, mut command: Command) -> Command {
        command
            .current_dir(self.files())
            .env("TOROID_STATE", self.state())
            .env("TOROID_DATA", self.data())
            .env_remove("XDG_RUNTIME_DIR");
        command
    }

    /// Runs `toroid` to its end; `words` are its arguments, separated by white space.
    #[must_use = "say whether it should have succeeded"]
    pub fn toroid(&self, words: &str) -> Outcome {
        run(self.command("toroid").args(words.split_whitespace()))
    }

    /// Starts `toroid`, without input; `words` are its arguments, separated by white space.
    pub fn start(&self, words: &str) -> Running {
        let mut command = self.command("toroid");
        command.args(words.split_whitespace()).stdin(Stdio::null());
        Running::start(&mut command)
    }

    /// The same as [`Cluster::toroid`], as another user than the agent's.
    #[must_use = "say whether it should have succeeded"]
    pub fn toroid_of(&self, user: &User, words: &str) -> Outcome {
        let mut toroid = user.command("toroid");
        toroid.env("TOROID_STATE", self.state());
        run(toroid.args(words.split_whitespace()))
    }

    /// The same as [`Cluster::toroid`], in a node, where no variable names the control socket.
    #[must_use = "say whether it should have succeeded"]
    pub fn toroid_in(&self, node: &str, words: &str) -> Outcome {
        self.exec(node, &format!("env -u TOROID_STATE toroid {words}"))
    }

    /// The answer of `toroid ... --json`.
    #[track_caller]
    pub fn ask(&self, words: &str) -> Value {
        self.toroid(&format!("{words} --json")).ok().json()
    }

    /// Creates a domain, with emulated links if the environment variable `TOROID_TEST_LINK` has options
    /// of `toroid link set`.
    #[track_caller]
    pub fn domain<'a>(&'a self, name: &'a str, nodes: &[&str]) -> Domain<'a> {
        let nodes = nodes.join(" ");
        self.toroid(&format!("domain create {name} {nodes}")).ok();
        if let Ok(link) = env::var("TOROID_TEST_LINK") {
            self.toroid(&format!("link set -d {name} {link}")).ok();
        }
        self.existing(name)
    }

    /// A handle to an existing domain.
    pub fn existing<'a>(&'a self, name: &'a str) -> Domain<'a> {
        Domain {
            cluster: self,
            name,
        }
    }

    /// Runs a command, words separated by white space, in a node to its end.
    #[must_use = "say whether it should have succeeded"]
    pub fn exec(&self, node: &str, words: &str) -> Outcome {
        run(&mut self.in_node(node, &split(words)))
    }

    /// Runs a command in a node to its end, with input.
    #[must_use = "say whether it should have succeeded"]
    pub fn exec_with(&self, node: &str, words: &str, input: &[u8]) -> Outcome {
        run_with(&mut self.in_node(node, &split(words)), input)
    }

    /// Runs a script of sh in a node to its end.
    #[must_use = "say whether it should have succeeded"]
    pub fn shell(&self, node: &str, script: &str) -> Outcome {
        run(&mut self.in_node(node, &["sh", "-c", script]))
    }

    /// Asserts that a packet gets from a node to a peer and back. `to` is a name or an address, after
    /// options of ping(8).
    #[track_caller]
    pub fn reaches(&self, from: &str, to: &str) {
        // A loaded machine may be slow, but must not lose the packet.
        self.exec(from, &format!("ping -c 1 -W 10 {to}")).ok();
    }

    /// Asserts that a packet leaves a node, and that no answer comes back. `address` may follow options of
    /// ping(8).
    #[track_caller]
    pub fn cannot_reach(&self, from: &str, address: &str) {
        const NO_REPLY: i32 = 1;
        let ping = self.exec(from, &format!("ping -n -c 1 -W 1 {address}"));
        let ping = ping.fails(NO_REPLY, &[]);
        assert!(
            ping.text().contains("1 packets transmitted, 0 received"),
            "{ping}"
        );
    }

    /// Asserts that a node has no route to an address.
    #[track_caller]
    pub fn has_no_route(&self, from: &str, address: &str) {
        const NOT_SENT: i32 = 2;
        self.exec(from, &format!("ping -n -c 1 -W 1 {address}"))
            .fails(NOT_SENT, &["connect: Network is unreachable"]);
    }

    /// Asserts that a node does not resolve a name.
    #[track_caller]
    pub fn does_not_know(&self, node: &str, name: &str) {
        const NOT_FOUND: i32 = 2;
        self.exec(node, &format!("getent hosts {name}"))
            .fails(NOT_FOUND, &[]);
    }

    /// Starts a command in a node, with a pipe as its standard input.
    pub fn spawn(&self, node: &str, words: &str) -> Running {
        Running::start(self.in_node(node, &split(words)).stdin(Stdio::piped()))
    }

    /// Starts a script of sh in a node, without input.
    pub fn spawn_shell(&self, node: &str, script: &str) -> Running {
        let mut command = self.in_node(node, &["sh", "-c", script]);
        Running::start(command.stdin(Stdio::null()))
    }

    /// `toroid exec NODE -- ARGV`.
    pub fn in_node(&self, node: &str, argv: &[&str]) -> Command {
        let mut command = self.command("toroid");
        command.args(["exec", node, "--"]).args(argv);
        command
    }

    /// The answer of `toroid status`.
    #[track_caller]
    pub fn status(&self) -> Value {
        self.ask("status")
    }

    /// The agent's process.
    #[track_caller]
    pub fn agent_pid(&self) -> u32 {
        pid(&self.status()["pid"]).expect("an agent has a process")
    }

    /// The Ethernet driver's process, while there is one.
    #[track_caller]
    pub fn driver_pid(&self) -> Option<u32> {
        pid(&self.status()["driver_pid"])
    }

    /// The first process of each node.
    #[track_caller]
    pub fn node_pids(&self) -> Vec<u32> {
        let nodes = self.ask("node ls");
        let nodes = nodes.as_array().expect("nodes are a list");
        nodes
            .iter()
            .map(|node| pid(&node["pid"]).expect("a node has a process"))
            .collect()
    }

    /// The first process of each node that this host carries, of several hosts.
    #[track_caller]
    pub fn node_pids_here(&self) -> Vec<u32> {
        let nodes = self.ask("node ls");
        let nodes = nodes.as_array().expect("nodes are a list");
        nodes.iter().filter_map(|node| pid(&node["pid"])).collect()
    }

    /// Agent, driver and nodes.
    #[track_caller]
    pub fn pids(&self) -> Vec<u32> {
        let mut pids = self.node_pids();
        pids.push(self.agent_pid());
        pids.extend(self.driver_pid());
        pids
    }

    /// The process that holds the descriptors that outlive the agent.
    pub fn fd_store_pid(&self) -> Option<u32> {
        let state = self.state();
        let words = ["__fd-store", state.to_str()?];
        leftovers::processes_with(&words).next()
    }

    /// The namespaces of all nodes.
    #[track_caller]
    pub fn namespaces(&self) -> Namespaces {
        Namespaces::of(&self.node_pids())
    }

    /// Kills the agent without a warning; returns when it has gone.
    #[track_caller]
    pub fn kill_agent(&self) {
        let agent = self.agent_pid();
        send(agent, Signal::SIGKILL);
        eventually("the agent is gone", || leftovers::has_ended(agent));
    }

    /// Kills the driver without a warning; returns when another one runs.
    #[track_caller]
    pub fn kill_driver(&self) {
        let driver = self.driver_pid().expect("there is a driver");
        send(driver, Signal::SIGKILL);
        eventually("there is another driver", || {
            self.driver_pid().is_some_and(|now| now != driver)
        });
    }

    /// A store in a node, with options, that serves the members of domain blue.
    #[track_caller]
    pub fn store(&self, node: &str, options: &str) -> Running {
        let server = self.spawn(node, &format!("toroid-kv serve {options}"));
        server.says(&format!("rdma blue {node}\n"));
        server
    }

    /// Kills the fd store without a warning; returns when another one holds all descriptors.
    #[track_caller]
    pub fn kill_fd_store(&self) {
        let replaced = || {
            self.log()
                .matches("another fd store holds all there is")
                .count()
        };
        let before = replaced();
        send(self.fd_store_pid().expect("there is one"), Signal::SIGKILL);
        eventually("another fd store holds all", || replaced() > before);
    }

    /// Ends the agent by `toroid down`.
    #[track_caller]
    pub fn down(&self) {
        self.toroid("down").ok();
    }

    /// Names of the files in the state directory.
    pub fn state_files(&self) -> BTreeSet<String> {
        let files = fs::read_dir(self.state()).into_iter().flatten();
        files
            .filter_map(|file| file.ok()?.file_name().into_string().ok())
            .collect()
    }

    /// The agent's log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.state().join("agent.log")).unwrap_or_default()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("log of the agent:\n{}", self.log());
        }
        // Fails if the story has ended the agent.
        clean_up(self.command("toroid").arg("down"));
    }
}

/// Links or copies programs to where the users of nodes find them: the build directory may be closed to
/// them. Beside them is a directory on a disk that all users may write.
fn furnish(directory: &Path) {
    let (bin, disk) = (directory.join("bin"), directory.join("disk"));
    fs::create_dir(&bin).expect("it is new");
    fs::create_dir(&disk).expect("it is new");
    fs::set_permissions(&disk, Permissions::from_mode(0o777)).expect("it is ours");
    for name in PROGRAMS {
        let (built, ours) = (program(name), bin.join(name));
        if fs::hard_link(&built, &ours).is_err() {
            fs::copy(&built, &ours).expect("there is room");
        }
    }
}

/// `PATH`, with the programs of a directory first.
fn with_programs_in(bin: &Path) -> OsString {
    let path = env::var_os("PATH").unwrap_or_default();
    let all = [bin.to_owned()].into_iter().chain(env::split_paths(&path));
    env::join_paths(all).expect("they were split")
}

fn split(words: &str) -> Vec<&str> {
    words.split_whitespace().collect()
}

#[track_caller]
fn text(value: &Value) -> String {
    value.as_str().expect("it is a string").to_owned()
}

fn pid(value: &Value) -> Option<u32> {
    value.as_u64()?.try_into().ok()
}

fn needs_root() {
    let hint = "this test makes namespaces and users: run it as root, with `sudo tests/run system`";
    assert!(Uid::effective().is_root(), "{hint}");
}

fn needs_tun() {
    let tun = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/net/tun");
    if let Err(error) = tun {
        panic!("this test needs /dev/net/tun ({error}): load it with `modprobe tun`");
    }
}

/// A domain of a cluster.
#[derive(Clone, Copy, Debug)]
pub struct Domain<'a> {
    cluster: &'a Cluster,
    name: &'a str,
}

impl Domain<'_> {
    /// Adds nodes.
    #[track_caller]
    pub fn grow(&self, nodes: &[&str]) {
        self.change("grow", nodes);
    }

    /// Removes nodes.
    #[track_caller]
    pub fn shrink(&self, nodes: &[&str]) {
        self.change("shrink", nodes);
    }

    #[track_caller]
    fn change(&self, verb: &str, nodes: &[&str]) {
        let (name, nodes) = (self.name, nodes.join(" "));
        let words = format!("domain {verb} {name} {nodes}");
        self.cluster.toroid(&words).ok();
    }

    /// Removes the domain.
    #[track_caller]
    pub fn remove(&self) {
        self.cluster
            .toroid(&format!("domain rm {}", self.name))
            .ok();
    }

    /// The answer of `toroid domain show`.
    #[track_caller]
    pub fn show(&self) -> Value {
        self.cluster.ask(&format!("domain show {}", self.name))
    }

    /// A member in the answer of `toroid domain show`.
    #[track_caller]
    pub fn member(&self, node: &str) -> Value {
        let members = self.members();
        let member = members.iter().find(|member| member["node"] == node);
        member
            .unwrap_or_else(|| panic!("{node} is not one of {members:?}"))
            .clone()
    }

    /// The members in the answer of `toroid domain show`.
    #[track_caller]
    pub fn members(&self) -> Vec<Value> {
        let info = self.show();
        info["members"]
            .as_array()
            .expect("members are a list")
            .clone()
    }

    /// A member's hardware address.
    #[track_caller]
    pub fn mac(&self, node: &str) -> String {
        text(&self.member(node)["mac"])
    }

    /// Asserts that a node outside of the domain neither resolves a member's name nor has a route to it.
    #[track_caller]
    pub fn shuts_out(&self, node: &str, member: &str) {
        let name = format!("{}.{}", member.replace(',', "-"), self.name);
        self.cluster.does_not_know(node, &name);
        self.cluster.has_no_route(node, &self.ipv4(member));
    }

    /// A member's IPv4 address.
    #[track_caller]
    pub fn ipv4(&self, node: &str) -> String {
        text(&self.member(node)["ipv4"])
    }

    /// A member's IPv6 address.
    #[track_caller]
    pub fn ipv6(&self, node: &str) -> String {
        text(&self.member(node)["ipv6"])
    }
}

/// Runs a story, watched for a hang, and asserts that no process, file or interface of it is left.
pub fn leaves_nothing(story: impl FnOnce()) {
    let before = Leftovers::snapshot();
    let watchdog = Watchdog::start();
    story();
    // The watchdog must not kill what the story has left: there would be nothing to find.
    watchdog.goes_on();
    drop(watchdog);
    before.assert_none_new();
}
