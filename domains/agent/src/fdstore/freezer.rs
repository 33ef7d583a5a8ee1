//! Freezes the nodes whose deadline has passed, and lets them go on when it is extended.
//!
//! The fd store does this and not the agent, because nodes must stop also when the agent is stopped
//! or dead. A node that cannot be frozen in time is killed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use rustix::process::{Signal, pidfd_send_signal};
use serde::Deserialize;
use serde_json::Value;
use toroid_fabric::NodeId;
use toroid_fabric::deadlines::Deadlines;

/// Time for the kernel to freeze all processes of some nodes. Freezing begins
/// [early](crate::control::lease::EARLY), so that the kill of the rest is in time.
const FREEZING: Duration = Duration::from_millis(300);

/// Pause between looks at a group that is being frozen.
const PAUSE: Duration = Duration::from_millis(2);

/// Key of the memory of all deadlines.
pub(crate) const DEADLINES: &str = "deadlines";

/// Prefix of the keys of nodes.
const NODES: &str = "node/";

/// File of a group that freezes it.
const FREEZE: &str = "cgroup.freeze";

/// The nodes, as far as freezing is concerned.
pub(super) struct Freezer {
    timer: TimerFd,
    /// Time for which the timer is set; the greatest if it is not.
    set_for: u64,
    deadlines: Option<Deadlines>,
    nodes: BTreeMap<NodeId, Node>,
}

struct Node {
    /// Group of all its processes; `None` if it cannot be frozen.
    group: Option<PathBuf>,
    /// Its first process.
    process: OwnedFd,
    /// Whether it has stopped; unknown at first.
    has_stopped: Option<bool>,
}

/// Part of a node's record.
#[derive(Deserialize)]
struct Record {
    #[serde(default)]
    freezer: Option<PathBuf>,
}

/// The group of a node that freezes all its processes, if one of its groups can.
pub(crate) fn group_of(groups: &[PathBuf]) -> Option<PathBuf> {
    let can_freeze = |group: &&PathBuf| group.join(FREEZE).exists();
    groups.iter().find(can_freeze).cloned()
}

/// Lets processes in groups of a node go on. The fd store stops them again, if they must.
pub(crate) fn thaw(groups: &[PathBuf]) {
    if let Some(group) = group_of(groups) {
        // It fails like the entry of the first process.
        let _ = fs::write(group.join(FREEZE), "0");
    }
}

impl Freezer {
    pub(super) fn new() -> io::Result<Self> {
        let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
        Ok(Freezer {
            timer: TimerFd::new(ClockId::CLOCK_BOOTTIME, flags)?,
            set_for: u64::MAX,
            deadlines: None,
            nodes: BTreeMap::new(),
        })
    }

    /// Readable when [`Freezer::look`] is due.
    pub(super) fn timer(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }

    /// Notes an entry of the fd store. Fails if the deadlines cannot be mapped.
    pub(super) fn put(
        &mut self,
        key: &str,
        record: &Value,
        descriptors: &[OwnedFd],
    ) -> io::Result<()> {
        let last = || {
            let last = descriptors.last().map(OwnedFd::try_clone);
            last.unwrap_or_else(|| Err(io::Error::other("its descriptor did not arrive")))
        };
        if key == DEADLINES {
            let memory = last().map(File::from);
            let mapped = memory.and_then(|memory| Deadlines::map(&memory, false));
            self.deadlines = Some(mapped?);
        } else if let (Some(id), Ok(process)) = (node_of(key), last()) {
            let record = serde_json::from_value(record.clone());
            let node = Node {
                group: record.ok().and_then(|Record { freezer }| freezer),
                process,
                has_stopped: None,
            };
            self.nodes.insert(id, node);
        }
        Ok(())
    }

    /// Notes that an entry was removed. The next life of a node must not be born frozen.
    pub(super) fn remove(&mut self, key: &str) {
        let node = node_of(key).and_then(|id| self.nodes.remove(&id));
        if let Some(node) = node.filter(|node| node.has_stopped == Some(true)) {
            // A group that is gone has no processes.
            let _ = node.write("0");
        }
    }

    /// Stops the nodes whose deadline has passed, lets the others go on, and sets the timer for the
    /// next deadline.
    pub(super) fn look(&mut self) -> io::Result<()> {
        let Some(deadlines) = &self.deadlines else {
            return Ok(());
        };
        let now = Deadlines::now();
        let (mut next, mut freezing) = (u64::MAX, Vec::new());
        for (id, node) in &mut self.nodes {
            let at = deadlines.node(*id);
            let stops = at != 0 && at <= now;
            if at > now {
                next = next.min(at);
            }
            // The group of an unknown node may be frozen.
            if node.has_stopped.replace(stops) == Some(stops) {
                continue;
            }
            let written = node.write(if stops { "1" } else { "0" });
            match (stops, written) {
                (true, Ok(())) => freezing.push(&*node),
                (true, Err(_)) => node.kill(),
                // A group that is gone has no processes.
                (false, _) => {}
            }
        }
        let end = Instant::now() + FREEZING;
        while !freezing.is_empty() && Instant::now() < end {
            freezing.retain(|node| !node.is_frozen());
            thread::sleep(PAUSE);
        }
        freezing.iter().for_each(|node| node.kill());
        self.set_timer(next)
    }

    fn set_timer(&mut self, next: u64) -> io::Result<()> {
        if next == self.set_for {
            return Ok(());
        }
        self.set_for = next;
        if next == u64::MAX {
            return Ok(self.timer.unset()?);
        }
        let at = TimeSpec::from(Duration::from_nanos(next));
        let absolute = TimerSetTimeFlags::TFD_TIMER_ABSTIME;
        Ok(self.timer.set(Expiration::OneShot(at), absolute)?)
    }
}

impl Node {
    fn write(&self, wanted: &str) -> io::Result<()> {
        let group = self.group.as_deref().ok_or(io::ErrorKind::NotFound)?;
        fs::write(group.join(FREEZE), wanted)
    }

    fn is_frozen(&self) -> bool {
        self.group.as_deref().is_some_and(is_frozen)
    }

    /// Kills all its processes, which end with the first.
    fn kill(&self) {
        // This fails only after the process has ended.
        let _ = pidfd_send_signal(&self.process, Signal::KILL);
    }
}

fn is_frozen(group: &Path) -> bool {
    let events = fs::read_to_string(group.join("cgroup.events"));
    events.is_ok_and(|events| events.lines().any(|line| line == "frozen 1"))
}

fn node_of(key: &str) -> Option<NodeId> {
    key.strip_prefix(NODES)?.parse().ok().map(NodeId)
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use rustix::process::{Pid, PidfdFlags, pidfd_open};
    use serde_json::json;
    use toroid_fabric::deadlines::PAST;

    use super::*;

    fn sleeper() -> (Child, OwnedFd) {
        let child = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
        let handle = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        (child, handle)
    }

    fn freezer(process: OwnedFd, group: Option<&Path>) -> (Freezer, Deadlines) {
        let memory = Deadlines::create().unwrap();
        let agent = Deadlines::map(&memory, true).unwrap();
        let mut freezer = Freezer::new().unwrap();
        let mut put = |key: &str, record: &Value, descriptor: OwnedFd| {
            freezer.put(key, record, &[descriptor]).unwrap();
        };
        put("deadlines", &Value::Null, memory.into());
        put("node/7", &json!({ "pid": 1, "freezer": group }), process);
        (freezer, agent)
    }

    /// The kernel's part is played by the test.
    #[test]
    fn a_node_is_frozen_at_its_deadline_and_goes_on_after_the_extension() {
        let group = tempfile::tempdir().unwrap();
        let file = |name: &str| group.path().join(name);
        fs::write(file("cgroup.events"), "populated 1\nfrozen 1\n").unwrap();
        let (mut child, process) = sleeper();
        let (mut freezer, agent) = freezer(process, Some(group.path()));
        let later = Deadlines::now() + 3_600_000_000_000;
        agent.set_node(NodeId(7), later);
        freezer.look().unwrap();
        assert_eq!(fs::read_to_string(file(FREEZE)).unwrap(), "0");
        for (deadline, written) in [(PAST, "1"), (later, "0"), (PAST, "1"), (0, "0")] {
            agent.set_node(NodeId(7), deadline);
            freezer.look().unwrap();
            assert_eq!(fs::read_to_string(file(FREEZE)).unwrap(), written);
        }
        agent.set_node(NodeId(7), PAST);
        freezer.look().unwrap();
        freezer.remove("node/7");
        assert_eq!(fs::read_to_string(file(FREEZE)).unwrap(), "0");
        assert_eq!(child.try_wait().unwrap(), None);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_node_that_cannot_be_frozen_is_killed() {
        let group = tempfile::tempdir().unwrap();
        fs::write(group.path().join("cgroup.events"), "frozen 0\n").unwrap();
        for group in [None, Some(group.path())] {
            let (mut child, process) = sleeper();
            let (mut freezer, agent) = freezer(process, group);
            agent.set_node(NodeId(7), PAST);
            freezer.look().unwrap();
            assert!(!child.wait().unwrap().success());
        }
    }
}
