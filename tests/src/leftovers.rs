//! Processes, files and interfaces that a story has left behind.
//!
//! The test's process adopts every orphan among its descendants, so an agent in the background and all
//! of its nodes stay its descendants. Other processes of the machine are not considered.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command};

use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::process::{FOR_EVER, holds_within};

/// The state before a story.
#[derive(Debug)]
pub struct Leftovers {
    before: BTreeSet<String>,
}

impl Leftovers {
    /// Remembers the present state.
    pub fn snapshot() -> Self {
        adopt_orphans();
        Leftovers {
            before: everything(),
        }
    }

    /// Asserts that there is no new process, control group, interface, rule of nftables, mount, shared
    /// memory or socket.
    #[track_caller]
    pub fn assert_none_new(&self) {
        let mut new = Vec::new();
        let clean = holds_within(FOR_EVER, || {
            new = everything().difference(&self.before).cloned().collect();
            new.is_empty()
        });
        assert!(clean, "left behind:\n{}", new.join("\n"));
    }
}

/// Namespaces, as `net:[4026531840]`.
#[derive(Debug, Default)]
pub struct Namespaces(BTreeSet<PathBuf>);

impl Namespaces {
    /// The namespaces of processes that this process is not in.
    pub fn of(pids: &[u32]) -> Self {
        let own: BTreeSet<_> = of_process("self").collect();
        let all = pids
            .iter()
            .flat_map(|pid| of_process(&pid.to_string()).collect::<Vec<_>>());
        Namespaces(all.filter(|namespace| !own.contains(namespace)).collect())
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Asserts that none is mounted, and that no process is in one of them or keeps one open.
    #[track_caller]
    pub fn assert_gone(&self) {
        let mut held = Vec::new();
        let clean = holds_within(FOR_EVER, || {
            held = self.held();
            held.is_empty()
        });
        assert!(clean, "namespaces left behind: {held:?}");
    }

    fn held(&self) -> Vec<PathBuf> {
        // A zombie holds nothing but its number.
        let running = pids().into_iter().filter(|pid| !has_ended(*pid));
        let in_use = running.flat_map(|pid| {
            let kept = links(&format!("/proc/{pid}/fd"));
            of_process(&pid.to_string()).chain(kept).collect::<Vec<_>>()
        });
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let mounted = self
            .0
            .iter()
            .filter(|one| mounts.contains(&*one.to_string_lossy()));
        let used = in_use.filter(|one| self.0.contains(one));
        used.chain(mounted.cloned()).collect()
    }
}

/// Kills all descendants of this process.
pub fn kill_descendants() {
    for pid in descendants().into_keys() {
        // Fails when the process has ended meanwhile.
        let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
    }
}

/// Whether a process has ended, waited for by its parent or not.
pub fn has_ended(pid: u32) -> bool {
    Stat::of(pid).is_none_or(|stat| stat.is_zombie)
}

/// Children of a process that have ended and were not waited for.
pub fn zombies_of(parent: u32) -> Vec<u32> {
    let is_its = |stat: Stat| stat.parent == parent && stat.is_zombie;
    let all = pids().into_iter();
    all.filter(|pid| Stat::of(*pid).is_some_and(is_its))
        .collect()
}

/// The processes in whose command lines all of these words occur.
pub fn processes_with(words: &[&str]) -> impl Iterator<Item = u32> {
    let wanted = move |pid: &u32| {
        let said = command_line(*pid);
        words.iter().all(|word| said.contains(word)) && !has_ended(*pid)
    };
    pids().into_iter().filter(wanted)
}

/// As [`processes_with`], among the descendants of this process.
pub fn descendants_with(words: &[&str]) -> Vec<u32> {
    let ours = descendants();
    let found = processes_with(words);
    found.filter(|pid| ours.contains_key(pid)).collect()
}

/// Orphans become children of this process.
pub fn adopt_orphans() {
    set_child_subreaper(true).expect("any process may adopt orphans");
}

/// Prefix of the names of directories and users that this process makes. Another run may have the same
/// process number in another namespace, so the namespace is part of it.
pub fn prefix() -> String {
    let namespace = fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino());
    format!("toroid-test-{namespace}-{}-", process::id())
}

/// Control groups at and below `parent` of agents whose state directories are this process's.
fn groups(parent: &Path) -> Vec<String> {
    let name = prefix().replace('-', "%2d");
    let below = fs::read_dir(parent).into_iter().flatten().flatten();
    let below = below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let of_one = |entry: fs::DirEntry| {
        if entry.file_name().to_string_lossy().contains(&name) {
            vec![format!("control group {}", entry.path().display())]
        } else {
            groups(&entry.path())
        }
    };
    below.flat_map(of_one).collect()
}

fn everything() -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    all.extend(groups(Path::new("/sys/fs/cgroup")));
    all.extend(descendants().into_iter().map(|(pid, stat)| {
        format!(
            "process {pid} (started {}): {}",
            stat.started,
            command_line(pid)
        )
    }));
    all.extend(taps());
    all.extend(gateways());
    all.extend(lines_of("/proc/self/mountinfo").map(|line| format!("mount {line}")));
    all.extend(entries("/dev/shm").map(|path| format!("shared memory {}", path.display())));
    all.extend(sockets());
    all.extend(entries("/run/toroid").map(|path| format!("file {}", path.display())));
    all
}

/// TAP interfaces of this network namespace; those of nodes end with their namespaces.
fn taps() -> impl Iterator<Item = String> {
    entries("/sys/class/net")
        .filter(|interface| interface.join("tun_flags").exists())
        .map(|interface| format!("interface {}", interface.display()))
}

/// Interface pairs, rule tables and routes of gateways, and interfaces that forward.
fn gateways() -> impl Iterator<Item = String> {
    let name = |interface: &PathBuf| Some(interface.file_name()?.to_str()?.to_owned());
    let interfaces = entries("/sys/class/net").filter_map(|interface| name(&interface));
    let pairs = interfaces.filter(|name| name.starts_with("toroid"));
    let configured = entries("/proc/sys/net/ipv4/conf");
    let forwards = |interface: &PathBuf| {
        fs::read_to_string(interface.join("forwarding")).is_ok_and(|value| value.trim() == "1")
    };
    let forwarding = configured
        .filter(forwards)
        .filter_map(|interface| Some(format!("forwarding by {}", name(&interface)?)));
    // Where there is no nft there are no rules.
    let listed = Command::new("nft").args(["list", "tables"]).output();
    let listed = listed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let tables: Vec<String> = listed
        .iter()
        .flat_map(|text| text.lines())
        .filter(|line| line.contains(" toroid"))
        .map(|line| format!("rules {line}"))
        .collect();
    let routed = ["rule", "route show table all"]
        .into_iter()
        .flat_map(|words| {
            let words = ["-4"].into_iter().chain(words.split(' '));
            let listed = Command::new("ip").args(words).output();
            let listed = listed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
            let text = listed.unwrap_or_default();
            // Tables of gateways have numbers from 1 << 31 on.
            let is_ours = |line: &&str| {
                let after = line.split_once("lookup ").or(line.split_once("table "));
                let number = after.and_then(|(_, rest)| rest.split_whitespace().next());
                number.is_some_and(|number| number.parse().is_ok_and(|it: u32| it >= 1 << 31))
            };
            let ours = text.lines().filter(is_ours);
            ours.map(|line| format!("route {line}")).collect::<Vec<_>>()
        });
    let pairs = pairs.map(|name| format!("interface {name}"));
    pairs
        .chain(forwarding)
        .chain(tables)
        .chain(routed)
        .collect::<Vec<_>>()
        .into_iter()
}

/// Unix sockets in directories of this test, and abstract ones of agents, which are for nodes.
fn sockets() -> impl Iterator<Item = String> {
    let names = lines_of("/proc/net/unix").filter_map(|line| {
        let name = line.split_whitespace().nth(7)?;
        let ours = name.contains(&prefix()) || name.starts_with("@toroid");
        ours.then(|| format!("socket {name}"))
    });
    names.collect::<Vec<_>>().into_iter()
}

#[derive(Clone, Copy, Debug)]
struct Stat {
    parent: u32,
    started: u64,
    is_zombie: bool,
}

impl Stat {
    /// See proc_pid_stat(5). The name, in parentheses, may contain anything.
    fn of(pid: u32) -> Option<Self> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (_, after_name) = text.rsplit_once(')')?;
        let fields: Vec<&str> = after_name.split_whitespace().collect();
        Some(Stat {
            parent: fields.get(1)?.parse().ok()?,
            started: fields.get(19)?.parse().ok()?,
            is_zombie: matches!(*fields.first()?, "Z" | "X"),
        })
    }
}

/// All processes below this one that run.
fn descendants() -> BTreeMap<u32, Stat> {
    let all: BTreeMap<u32, Stat> = pids()
        .into_iter()
        .filter_map(|pid| Some((pid, Stat::of(pid)?)))
        .collect();
    let is_below = |pid: &u32| {
        let mut pid = *pid;
        // A process may change its parent between two reads, so the walk is limited.
        for _ in 0..64 {
            match all.get(&pid) {
                Some(stat) if stat.parent == process::id() => return true,
                Some(stat) => pid = stat.parent,
                None => return false,
            }
        }
        false
    };
    let mut below = all.clone();
    below.retain(|pid, stat| is_below(pid) && !stat.is_zombie);
    below
}

fn pids() -> Vec<u32> {
    let name = |path: PathBuf| path.file_name()?.to_str()?.parse().ok();
    entries("/proc").filter_map(name).collect()
}

fn command_line(pid: u32) -> String {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ")
}

fn of_process(pid: &str) -> impl Iterator<Item = PathBuf> + use<> {
    links(&format!("/proc/{pid}/ns"))
}

fn links(directory: &str) -> impl Iterator<Item = PathBuf> + use<> {
    entries(directory).filter_map(|link| fs::read_link(link).ok())
}

fn lines_of(path: &str) -> impl Iterator<Item = String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines()
        .map(str::to_owned)
        .collect::<Vec<_>>()
        .into_iter()
}

/// Names in a directory; none if it does not exist.
fn entries(directory: &str) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = fs::read_dir(Path::new(directory)).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.path()))
}
