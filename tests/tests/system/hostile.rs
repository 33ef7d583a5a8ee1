//! A node leaves whose processes do not play by the rules.

use std::io::Write;
use std::process::ChildStdin;

use tests::cluster::{Cluster, Domain, is_nightly};
use tests::process::{Running, eventually, run};

const MIB: u64 = 1 << 20;

/// Asks a running `haunt` and returns its answer.
fn ask(haunt: &mut Running, input: &mut impl Write, what: &str) -> String {
    writeln!(input, "{what}").expect("it listens");
    haunt.line()
}

/// An agent that is patient, because a loaded machine may keep honest processes waiting.
fn up(without: &[&str]) -> Cluster {
    let cluster = Cluster::down_yet();
    let mut up = cluster.command("toroid");
    up.args(["up", "--torus", "3x1x1", "--ack-timeout", "10000"]);
    up.envs(without.iter().map(|name| (name, "1")));
    run(&mut up).ok();
    cluster
}

/// A region in 0,0,0 in which 2,0,0 counts, and which a hostile process in 1,0,0 reads and
/// scribbles on all the time.
struct Haunted<'a> {
    blue: Domain<'a>,
    owner: (Running, ChildStdin),
    leaver: (Running, ChildStdin),
    counter: Running,
}

impl<'a> Haunted<'a> {
    fn new(cluster: &'a Cluster, bytes: u64) -> Self {
        let blue = cluster.domain("blue", &["*,0,0"]);
        let mut owner = cluster.spawn("0,0,0", &format!("haunt guard blue {bytes}"));
        let key = owner.line();
        let to_owner = owner.stdin();
        let counter = cluster.spawn("2,0,0", &format!("probe count blue 0,0,0 {key}"));
        counter.says("open");
        let mut leaver = cluster.spawn("1,0,0", &format!("haunt leave {key}"));
        let to_leaver = leaver.stdin();
        let mut haunted = Haunted {
            blue,
            owner: (owner, to_owner),
            leaver: (leaver, to_leaver),
            counter,
        };
        assert_eq!(haunted.leaver("open"), "open");
        // Otherwise the rest would prove nothing.
        eventually("a member sees others count", || {
            haunted.leaver("look") != "0"
        });
        eventually("what a member scribbles arrives", || {
            haunted.owner("look") != "0"
        });
        haunted
    }

    fn owner(&mut self, what: &str) -> String {
        ask(&mut self.owner.0, &mut self.owner.1, what)
    }

    fn leaver(&mut self, what: &str) -> String {
        ask(&mut self.leaver.0, &mut self.leaver.1, what)
    }

    /// Shrinks; returns what then comes from the leaver, and what it learns.
    fn shrink(&mut self) -> [String; 2] {
        self.blue.shrink(&["1,0,0"]);
        [self.owner("look"), self.leaver("look")]
    }

    /// Nothing of those who stayed was lost: the last of it may have been cut off in the middle.
    fn end(mut self) {
        self.blue.shrink(&["2,0,0"]);
        let sum: u64 = self.owner("sum").parse().expect("a number");
        let end = self.counter.wait().ok();
        let counted = end.text().lines().last().unwrap_or_default();
        let counted = counted.strip_suffix(" Revoked").expect("it was revoked");
        let counted: u64 = counted.parse().expect("a number");
        let exact = counted..=counted + 1;
        assert!(exact.contains(&sum), "{counted} or one more: {sum}");
        assert!(counted > 0);
        self.leaver.0.kill();
        self.owner.0.kill();
    }
}

/// Grows and shrinks again and again.
fn haunt(cycles: u32, bytes: u64) {
    let cluster = up(&[]);
    let mut haunted = Haunted::new(&cluster, bytes);
    for cycle in 0..cycles {
        let [written, read] = haunted.shrink();
        assert_eq!(written, "0", "cycle {cycle}: what it writes arrives");
        assert_eq!(
            read, "0",
            "cycle {cycle}: it reads what is newer than the return"
        );
        let denied = haunted.leaver("open");
        assert!(denied.contains("Denied"), "cycle {cycle}: {denied}");
        haunted.blue.grow(&["1,0,0"]);
        assert_eq!(haunted.leaver("open"), "open");
    }
    haunted.end();
}

#[test]
fn who_keeps_everything_gets_nothing_newer_and_changes_nothing() {
    haunt(if is_nightly() { 10_000 } else { 100 }, MIB);
}

#[test]
fn nor_with_large_regions() {
    haunt(if is_nightly() { 50 } else { 2 }, 64 * MIB);
}

/// With regions that stay where they are the stories above would fail.
#[test]
fn it_would_be_noticed() {
    let cluster = up(&["TOROID_TEST_WITHOUT_FRESH_PAGES"]);
    let mut haunted = Haunted::new(&cluster, MIB);
    haunted.blue.shrink(&["1,0,0"]);
    eventually("what it writes arrives", || haunted.owner("look") != "0");
    eventually("it reads on", || haunted.leaver("look") != "0");
}
