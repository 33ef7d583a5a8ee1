//! A node leaves whose processes do not play by the rules.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{ChildStdin, Stdio};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::sys::signal::Signal;
use tests::cluster::{Cluster, Domain, is_nightly, leave_out};
use tests::leftovers::{Leftovers, processes_with};
use tests::process::{Outcome, Running, eventually, holds_within, run, send, stop};

#[path = "hostile_lock.rs"]
mod lock;
#[path = "hostile_second.rs"]
mod second;

const MIB: u64 = 1 << 20;

/// How long an agent waits that is [patient](up).
const PATIENCE_MS: u32 = 10_000;

/// Asks a running `actor` and returns its answer.
fn ask(haunt: &mut Running, input: &mut impl Write, what: &str) -> String {
    writeln!(input, "{what}").expect("it listens");
    haunt.line()
}

/// An agent that is patient, because a loaded machine may keep honest processes waiting.
fn up(without: &[&str]) -> Cluster {
    up_with("3x1x1", PATIENCE_MS, without)
}

/// Starts another one like it after it was killed.
fn up_again(cluster: &Cluster) {
    start(cluster, "3x1x1", PATIENCE_MS, &[]);
}

fn up_with(torus: &str, ack_timeout_ms: u32, without: &[&str]) -> Cluster {
    let cluster = Cluster::down_yet();
    start(&cluster, torus, ack_timeout_ms, without);
    cluster
}

/// Starts an agent, or one after another that was killed.
fn start(cluster: &Cluster, torus: &str, ack_timeout_ms: u32, without: &[&str]) {
    let mut up = cluster.command("toroid");
    up.args(["up", "--torus", torus]);
    up.args(["--ack-timeout", &ack_timeout_ms.to_string()]);
    leave_out(&mut up, without);
    run(&mut up).ok();
}

/// What a leaver shall hear, or be heard with, after it has left.
const NOTHING: &str = "{}";

/// What a leaver does by way of io_uring, which not every system lets it have.
const NEED_RINGS: [&str; 2] = ["pins", "files"];

/// The ways in which a leaver changes memory, and learns of changes to it.
const WRITTEN: [&str; 7] = [
    "memory", "pins", "files", "child", "moved", "disk", "faults",
];
const LEARNED: [&str; 6] = ["memory", "pins", "pipes", "child", "moved", "disk"];

/// Cycles after which another process takes the leaver's place: it has acknowledged none of them, so
/// each has used up one of the 512 words of its fence page.
const FULL: u32 = 500;

/// A region in 0,0,0 in which 2,0,0 counts while it sends packets there, and which hostile
/// processes in 1,0,0 haunt all the time.
struct Haunted<'a> {
    cluster: &'a Cluster,
    blue: Domain<'a>,
    key: String,
    owner: (Running, ChildStdin),
    /// The last one is the newest.
    leavers: Vec<(Running, ChildStdin)>,
    counter: (Running, ChildStdin),
    speaker: Running,
}

impl<'a> Haunted<'a> {
    /// The owner leaves out some protections, too.
    fn new(cluster: &'a Cluster, bytes: u64, without: &[&str]) -> Self {
        let blue = cluster.domain("blue", &["*,0,0"]);
        let bytes = bytes.to_string();
        let mut owner = cluster.in_node("0,0,0", &["actor", "adversary", "guard", "blue", &bytes]);
        leave_out(&mut owner, without);
        let mut owner = Running::start(owner.stdin(Stdio::piped()));
        let key = owner.line();
        let to_owner = owner.stdin();
        let mut counter = cluster.spawn("2,0,0", &format!("actor tally blue 0,0,0 {key}"));
        counter.says("open");
        let to_counter = counter.stdin();
        let speaker = cluster.spawn("2,0,0", "actor adversary speak blue 0,0,0");
        let mut haunted = Haunted {
            cluster,
            blue,
            key,
            owner: (owner, to_owner),
            leavers: vec![],
            counter: (counter, to_counter),
            speaker,
        };
        haunted.haunt_anew();
        haunted
    }

    /// Lets another process haunt, while the one before goes on with what it has.
    fn haunt_anew(&mut self) {
        if !self.leavers.is_empty() {
            assert_eq!(self.leaver("retire"), "retired");
        }
        let what = format!("actor adversary leave {} 2,0,0", self.key);
        let mut leaver = self.cluster.spawn("1,0,0", &what);
        let to_leaver = leaver.stdin();
        self.leavers.push((leaver, to_leaver));
        assert_eq!(self.leaver("open"), "open");
        // Otherwise the rest would prove nothing.
        self.goes_through(&WRITTEN, &LEARNED);
        self.goes_through(&[], &["packets"]);
        self.hears(&["packets", "frames", "pair"]);
    }

    /// Asserts that the owner notices all these ways of the leaver's to write, and the leaver learns
    /// by all those.
    fn goes_through(&mut self, written: &[&str], learned: &[&str]) {
        let rings = self.leaver("rings");
        let has_rings = rings == "allowed";
        if !has_rings {
            let switch = fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
            let is_on = switch.is_ok_and(|switch| switch == "0\n");
            let is_ci = env::var_os("CI").is_some_and(|ci| ci == "true");
            assert!(!is_ci || !is_on, "the kernel has io_uring: {rings}");
            eprintln!("not shown, without io_uring ({rings}): {NEED_RINGS:?}");
        }
        let is_possible = |way: &&&str| has_rings || !NEED_RINGS.contains(way);
        for way in written.iter().filter(is_possible) {
            eventually(way, || self.owner("look").contains(way));
        }
        for way in learned.iter().filter(is_possible) {
            eventually(way, || self.leaver("look").contains(way));
        }
    }

    /// Asserts that the owner hears all of these after it has looked last.
    fn hears(&mut self, all: &[&str]) {
        let mut missing: BTreeSet<_> = all.iter().map(|what| format!("\"{what}\"")).collect();
        eventually("members are heard, and those who forge are not", || {
            let heard = self.owner("heard");
            missing.retain(|what| !heard.contains(what));
            missing.is_empty()
        });
    }

    fn owner(&mut self, what: &str) -> String {
        ask(&mut self.owner.0, &mut self.owner.1, what)
    }

    fn leaver(&mut self, what: &str) -> String {
        let (leaver, input) = self.leavers.last_mut().expect("there is one");
        ask(leaver, input, what)
    }

    /// Asks all that ever left.
    fn leavers(&mut self, what: &str) -> Vec<String> {
        let leavers = self.leavers.iter_mut();
        leavers
            .map(|(leaver, input)| ask(leaver, input, what))
            .collect()
    }

    /// Shrinks; returns what then comes from the leaver, and what it learns.
    fn shrink(&mut self) -> [String; 2] {
        self.blue.shrink(&["1,0,0"]);
        [self.owner("look"), self.leaver("look")]
    }

    /// Nothing of those who stayed was lost.
    fn end(mut self) {
        assert!(!self.counter.0.has_ended(), "it was not disturbed");
        drop(self.counter.1);
        let counted = counted(self.counter.0.wait().ok().text());
        let sum = ask(&mut self.owner.0, &mut self.owner.1, "sum");
        assert!(counted > 0);
        assert_eq!(sum, counted.to_string());
        self.blue.shrink(&["2,0,0"]);
        assert!(up_to_revocation(&self.speaker.wait().ok()) > 0);
        for (leaver, _) in self.leavers {
            leaver.kill();
        }
        self.owner.0.kill();
    }
}

/// How much a process says it did before it was revoked.
fn up_to_revocation(end: &Outcome) -> u64 {
    let last = end.text().lines().last().unwrap_or_default();
    let count = last.strip_suffix(" Revoked").expect("it was revoked");
    count.parse().expect("a number")
}

/// Grows and shrinks again and again. What its descriptors and its users allow the leaver must not go
/// further than what was granted, before the shrink and after it.
fn haunt(cycles: u32, bytes: u64) {
    let cluster = up(&[]);
    let mut haunted = Haunted::new(&cluster, bytes, &[]);
    haunted.hears(&[
        "dropped for the partition",
        "dropped for the epoch",
        "dropped for the source",
        "dropped for the protocol",
    ]);
    for cycle in 0..cycles {
        cluster.goes_on();
        // All that it ever kept, so not in every cycle.
        let abuses = cycle.is_power_of_two() || cycle % FULL == FULL - 1;
        if abuses {
            assert_eq!(haunted.leaver("abuse"), "{}", "cycle {cycle}: as a member");
        }
        let [arrived, learned] = haunted.shrink();
        if abuses {
            for abused in haunted.leavers("abuse") {
                assert_eq!(abused, "{}", "cycle {cycle}: afterwards");
            }
            assert_eq!(haunted.owner("look"), NOTHING, "cycle {cycle}: it arrives");
            for learned in haunted.leavers("look") {
                assert_eq!(learned, NOTHING, "cycle {cycle}: those of earlier learn");
            }
        }
        assert_eq!(arrived, NOTHING, "cycle {cycle}: what it does arrives");
        assert_eq!(
            learned, NOTHING,
            "cycle {cycle}: it learns what is newer than the return"
        );
        let denied = haunted.leaver("open");
        assert!(denied.contains("Denied"), "cycle {cycle}: {denied}");
        haunted.blue.grow(&["1,0,0"]);
        if cycle % FULL == FULL - 1 {
            haunted.haunt_anew()
        } else {
            assert_eq!(haunted.leaver("open"), "open")
        }
        haunted.hears(&["packets", "frames", "pair"]);
    }
    haunted.end();
}

#[test]
fn who_keeps_everything_gets_nothing_newer_and_changes_nothing() {
    haunt(if is_nightly() { 10_000 } else { 100 }, MIB);
}

#[test]
fn nor_with_large_regions() {
    haunt(if is_nightly() { 50 } else { 3 }, 64 * MIB);
}

/// Who stays reads all of the memory to which a region moves before it may, which leaves zeros there.
#[test]
fn a_reader_that_looks_too_early_does_no_harm() {
    let cluster = up(&[]);
    let blue = cluster.domain("blue", &["*,0,0"]);
    let mut owner = cluster.spawn("0,0,0", &format!("actor fill blue {}", 8 * MIB));
    let (key, mut to_owner) = (owner.line(), owner.stdin());
    let reader = cluster.spawn("2,0,0", &format!("actor adversary peek {key}"));
    reader.says("open");
    for _ in 0..10 {
        let leaver = cluster.spawn("1,0,0", &format!("actor count blue 0,0,0 {key}"));
        leaver.says("open");
        blue.shrink(&["1,0,0"]);
        assert_eq!(ask(&mut owner, &mut to_owner, "look"), "whole");
        eventually("all has moved", || cluster.status()["moving_bytes"] == 0);
        assert_eq!(ask(&mut owner, &mut to_owner, "look"), "whole");
        up_to_revocation(&leaver.wait().ok());
        blue.grow(&["1,0,0"]);
    }
}

/// In ordinary programs no variable of the environment leaves out a protection.
#[cfg(not(feature = "unprotected"))]
#[test]
fn ordinary_programs_know_no_switch_that_weakens_them() {
    const ALL: [&str; 4] = ["FRESH_PAGES", "EPOCH_CHECK", "SOURCE_CHECK", "FENCE"];
    let cluster = up(&ALL);
    let mut haunted = Haunted::new(&cluster, MIB, &ALL);
    assert_eq!(haunted.shrink(), [NOTHING; 2]);
    assert!(!cluster.log().contains("TOROID_TEST"));
}

/// The stories above would fail without a protection, because this would be noticed.
#[cfg(feature = "unprotected")]
mod unprotected {
    use super::*;

    /// Lets a node leave while all do without a protection.
    fn notices_without(protection: &str, by_owner: &[&str], by_leaver: &[&str]) {
        let cluster = up(&[protection]);
        let mut haunted = Haunted::new(&cluster, MIB, &[protection]);
        haunted.blue.shrink(&["1,0,0"]);
        haunted.goes_through(by_owner, by_leaver);
    }

    #[test]
    fn regions_that_stay_where_they_are_would_be_noticed() {
        notices_without("FRESH_PAGES", &WRITTEN, &LEARNED);
    }

    #[test]
    fn old_epochs_would_be_noticed() {
        notices_without("EPOCH_CHECK", &["forged packets", "\"frames\""], &[]);
    }

    #[test]
    fn forged_sources_would_be_noticed() {
        notices_without("SOURCE_CHECK", &["forged packets", "forged frames"], &[]);
    }

    /// A process that nothing stops before it hears of its leaving.
    #[test]
    fn who_goes_on_without_a_fence_would_be_noticed() {
        // It may happen to hear of it first.
        assert!((0..5).any(|_| !oversleep(&["FENCE"]).is_empty()));
    }
}

/// A descriptor that allows more than was granted.
#[test]
fn what_goes_too_far_would_be_noticed() {
    let cluster = up(&[]);
    let mut haunted = Haunted::new(&cluster, MIB, &[]);
    assert_eq!(haunted.leaver("abuse"), "{}");
    assert_eq!(haunted.leaver("mistake"), "mistaken");
    assert_eq!(haunted.leaver("abuse"), r#"{"punch", "write"}"#);
}

/// Traces, overwrites and kills all processes that it can from a node, but not in ours.
fn attack(cluster: &Cluster, node: &str) -> String {
    let outside = fs::read_link("/proc/self/ns/pid").expect("we are in one");
    let outside = outside.to_str().expect("text");
    let attack = cluster
        .exec(node, &format!("actor adversary attack {outside}"))
        .ok();
    attack.text().to_owned()
}

#[test]
fn processes_of_other_nodes_are_out_of_reach() {
    let cluster = up(&[]);
    let _blue = cluster.domain("blue", &["*,0,0"]);
    let mut owner = cluster.spawn("0,0,0", "actor own blue");
    let key = owner.line();
    let mut counter = cluster.spawn("2,0,0", &format!("actor count blue 0,0,0 {key}"));
    counter.says("open");
    let all = processes_with(&["actor"]).chain(cluster.pids());
    let all: Vec<u32> = all.collect();
    assert_eq!(attack(&cluster, "1,0,0"), "{}");
    for pid in all {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
        assert!(status.contains("TracerPid:\t0\n"), "{pid}: {status}");
    }
    assert!(!counter.has_ended() && !owner.has_ended());
    // Where somebody is in reach it does go through.
    let mut prey = cluster.spawn("1,0,0", "actor own blue");
    prey.line();
    let through = r#"{"kill", "open memory", "read maps", "trace", "write"}"#;
    assert_eq!(attack(&cluster, "1,0,0"), through);
    prey.wait().fails(137, &[]);
}

/// Kills the agent at random points of shrinks, and some time after them. The next one brings them
/// to their end, if they have become durable.
fn kill_and_haunt(rounds: u32, bytes: u64) {
    let cluster = up(&[]);
    let mut haunted = Haunted::new(&cluster, bytes, &[]);
    // Any numbers do, as long as the next run has the same.
    let mut random = 1u64;
    for round in 0..rounds {
        cluster.goes_on();
        random = random
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        let mut shrink = cluster.command("toroid");
        shrink.args(["domain", "shrink", "blue", "1,0,0"]);
        let shrink = Running::start(shrink.stdin(Stdio::null()));
        thread::sleep(Duration::from_micros(random >> 33 & 0x7fff));
        cluster.kill_agent();
        let told = shrink.wait().status;
        up_again(&cluster);
        let has_left = haunted.blue.show()["members"].as_array().map(Vec::len) == Some(2);
        assert!(told != 0 || has_left, "round {round}: it was told done");
        assert!(!haunted.counter.0.has_ended(), "round {round}");
        if has_left {
            let found = [haunted.owner("look"), haunted.leaver("look")];
            assert_eq!(found, [NOTHING; 2], "round {round}: it is cut off");
            let denied = haunted.leaver("open");
            assert!(denied.contains("Denied"), "round {round}: {denied}");
            haunted.blue.grow(&["1,0,0"]);
        }
        assert_eq!(haunted.leaver("open"), "open");
    }
    haunted.end();
}

#[test]
fn nor_when_the_agent_is_killed_meanwhile() {
    kill_and_haunt(if is_nightly() { 500 } else { 14 }, MIB);
}

#[test]
fn nor_with_large_regions_when_the_agent_is_killed() {
    kill_and_haunt(if is_nightly() { 100 } else { 6 }, 64 * MIB);
}

/// Nothing may be copied while somebody who stays has not changed, and without an agent nothing is.
#[test]
fn who_waits_for_what_moves_and_for_an_agent_in_vain_ends() {
    let cluster = up(&[]);
    let _blue = cluster.domain("blue", &["*,0,0"]);
    let mut owner = cluster.spawn("0,0,0", &format!("actor adversary guard blue {MIB}"));
    let key = owner.line();
    let mut to_owner = owner.stdin();
    let start = |node: &str| {
        let counter = cluster.spawn(node, &format!("actor count blue 0,0,0 {key}"));
        counter.says("open");
        counter
    };
    let stopped = start("2,0,0");
    let client = stopped.pid();
    let pid = processes_with(&["count", &key]).find(|pid| *pid != client);
    stop(pid.expect("it runs"));
    let _leaver = start("1,0,0");
    let mut shrink = cluster.command("toroid");
    shrink.args(["domain", "shrink", "blue", "1,0,0"]);
    let shrink = Running::start(shrink.stdin(Stdio::null()));
    let mut answers = 1;
    let is_answered = |answers: usize| owner.so_far().lines().count() > answers;
    loop {
        writeln!(to_owner, "sum").expect("it listens");
        if !holds_within(Duration::from_secs(1), || is_answered(answers)) {
            break;
        }
        answers += 1;
    }
    cluster.kill_agent();
    shrink.wait().fails_somehow();
    let end = owner.wait().fails_somehow();
    assert!(end.stderr.contains("PeerDead"), "{end}");
}

/// What `actor` said last about how often it has added.
fn counted(said: &str) -> u64 {
    let last = said.lines().last().unwrap_or_default();
    let count = last.split(' ').next().and_then(|count| count.parse().ok());
    count.unwrap_or_else(|| panic!("no count: {said}"))
}

/// Who sleeps through a shrink, and acknowledges nothing, is cut as if it had left, and finds out
/// before anything else. Memory that everybody else has left would read as it was, or as zeros.
#[test]
fn who_is_stopped_during_a_shrink_is_revoked_when_it_goes_on() {
    assert_eq!(oversleep(&[]), Vec::<String>::new());
}

/// Stops a process during a shrink, and returns what it then did that it must not.
fn oversleep(without: &[&str]) -> Vec<String> {
    // Long for those who are awake, on a loaded machine, too.
    let cluster = up_with("4x1x1", 3000, without);
    let blue = cluster.domain("blue", &["*,0,0"]);
    let mut owner = cluster.spawn("0,0,0", &format!("actor adversary guard blue {}", 4 * MIB));
    let key = owner.line();
    let mut to_owner = owner.stdin();
    let mut sum = || -> u64 {
        ask(&mut owner, &mut to_owner, "sum")
            .parse()
            .expect("a number")
    };
    let start = |node: &str, what: &str| {
        let running = cluster.spawn(node, &format!("actor {what} blue 0,0,0 {key}"));
        running.says("open");
        running
    };
    // Some of what a leaver has done may be lost, so that has a word of its own.
    let leaver = start("1,0,0", "spoil");
    let stopped = start("2,0,0", "watch");
    let mut other = start("3,0,0", "tally");
    let to_other = other.stdin();
    let client = stopped.pid();
    let pid = processes_with(&["watch", &key]).find(|pid| *pid != client);
    let pid = pid.expect("it runs");
    eventually("they count", || sum() > 100);

    stop(pid);
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.expect("it is later").as_nanos();
    blue.shrink(&["1,0,0"]);
    let before = sum();
    eventually("the others go on", || sum() > before);
    send(pid, Signal::SIGCONT);
    let stopped = stopped.wait();
    drop(to_other);
    let ends = [stopped, other.wait().ok()];
    let sum = sum();
    assert!(up_to_revocation(&leaver.wait().ok()) > 0);
    owner.kill();
    wrongs(&ends, now, sum)
}

/// What is wrong with what two processes say, of which the first was stopped at a time, where this is
/// the sum of all that they did.
fn wrongs(ends: &[Outcome; 2], stopped_ns: u128, sum: u64) -> Vec<String> {
    let stopped = &ends[0];
    let said = stopped.text();
    if stopped.status != 0 || !said.ends_with("[Some(Revoked), Some(Revoked)]") {
        return vec![format!("it was not revoked: {stopped}")];
    }
    let newest = said.split(' ').nth(1).and_then(|at| at.parse().ok());
    let newest: u128 = newest.expect("a time");
    let all: u64 = ends.iter().map(|end| counted(end.text())).sum();
    let mut wrongs = Vec::new();
    if newest >= stopped_ns {
        let late = newest - stopped_ns;
        wrongs.push(format!("it has read something {late} ns later"));
    }
    // The last of the first may have been cut off in the middle.
    if !(all..=all + 1).contains(&sum) {
        wrongs.push(format!("{all} or one more: {sum}"));
    }
    wrongs
}

/// To close a descriptor of a file system whose server answers nothing takes for ever, and who waits
/// for that cannot even be killed.
#[test]
fn descriptors_that_hang_on_closing_do_not_stop_the_agent() {
    let fuse = Path::new("/dev/fuse");
    assert!(
        fuse.exists(),
        "this test needs {}: load it with `modprobe fuse`",
        fuse.display()
    );
    let before = Leftovers::snapshot();
    let cluster = up(&[]);
    let file = cluster.files().join("hangs");
    fs::write(&file, "").expect("it is our directory");
    let mut hang = cluster.command("actor");
    hang.args(["adversary", "hang", "0,0,0"])
        .arg(cluster.state())
        .arg(&file);
    let hang = Running::start(hang.stdin(Stdio::null()));
    // Who carried them to the node, and the node.
    hang.says("hangs\nhangs\n");
    let runs = |node: &str| {
        let said = cluster.shell(node, "cat; exit 7").fails(7, &[]);
        assert_eq!(said.text(), "");
    };
    for _ in 0..3 {
        runs("0,0,0");
    }
    runs("1,0,0");
    cluster.kill_agent();
    up_again(&cluster);
    runs("1,0,0");
    runs("0,0,0");
    cluster.toroid(&["down"]).ok();
    up_again(&cluster);
    cluster.exec("0,0,0", "true").ok();
    // The kernel ends what waits for a server that has gone.
    hang.kill();
    drop(cluster);
    before.assert_none_new();
}

/// Who stops in the middle of handing over what its command needs, with what it has sent already.
#[test]
fn callers_that_stall_end_with_the_agent() {
    let cluster = up(&[]);
    let stall = |node: &str| {
        let mut stall = cluster.command("actor");
        stall
            .args(["adversary", "stall", node])
            .arg(cluster.state());
        let stall = Running::start(stall.stdin(Stdio::piped()));
        stall.says("stalls\n");
        stall
    };
    let stalled = [stall("0,0,0"), stall("0,0,0"), stall("1,0,0")];
    let porters = || -> BTreeSet<u32> {
        let agent = format!("PPid:\t{}\n", cluster.agent_pid());
        let is_its = |pid: &u32| {
            let status = fs::read_to_string(format!("/proc/{pid}/status"));
            status.is_ok_and(|status| status.contains(&agent))
        };
        processes_with(&["__porter"]).filter(is_its).collect()
    };
    let waiting = porters();
    assert_eq!(waiting.len(), stalled.len());
    cluster.exec("0,0,0", "true").ok();
    cluster.toroid(&["down"]).ok();
    for porter in waiting {
        assert!(!Path::new(&format!("/proc/{porter}")).exists(), "{porter}");
    }
    for stalled in stalled {
        // Its session has ended.
        stalled.wait().ok();
    }
}

/// The limits and the time of a node's first process are its root's to take; nothing else of it is.
#[test]
fn a_root_that_starves_its_first_process_harms_its_own_node() {
    let cluster = up(&[]);
    let blue = cluster.domain("blue", &["*,0,0"]);
    let touch = "echo 1000 > /proc/1/oom_score_adj || cat /proc/1/environ || \
                 ls /proc/1/fd || chrt -f -p 1 1";
    cluster.shell("1,0,0", touch).fails_somehow();
    let starve = "kill -9 1 && kill -STOP 1 && renice 19 -p 1 && taskset -a -p 1 1 && \
                  prlimit --pid 1 --nofile=3:3 --fsize=0:0 --nproc=1:1";
    cluster.shell("1,0,0", starve).ok();
    // It has no room for the descriptors of a command.
    cluster.exec("1,0,0", "true").fails_somehow();
    cluster.exec("0,0,0", "true").ok();
    blue.shrink(&["1,0,0"]);
    cluster.reaches("0,0,0", "2-0-0.blue");
    send(cluster.node_pids()[1], Signal::SIGKILL);
    eventually("the node is made anew", || {
        cluster.exec("1,0,0", "true").status == 0
    });
}
