//! A node leaves whose processes do not play by the rules.

mod fence;
mod lock;
mod reach;
mod second;

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::thread;
use std::time::Duration;

use tests::actor::{Actor, Event, Request, Tally};
use tests::cluster::{Cluster, Domain, is_nightly, leave_out};
use tests::process::{eventually, run};
use tests::random::Random;

const MIB: u64 = 1 << 20;

/// How long an agent waits that is [patient](up).
const PATIENCE_MS: u32 = 10_000;

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

/// Changes that need io_uring, which not every system allows.
const NEED_RINGS: [&str; 2] = ["pins", "files"];

/// No attempt to do more than was granted has gone through.
fn nothing_through() -> Event {
    Event::Through(BTreeSet::new())
}

/// The ways in which a leaver changes memory, and learns of changes to it.
const WRITTEN: [&str; 7] = [
    "memory", "pins", "files", "child", "moved", "disk", "faults",
];
const LEARNED: [&str; 6] = ["memory", "pins", "pipes", "child", "moved", "disk"];

/// Cycles after which another process takes the leaver's place: it has acknowledged none of them, so
/// each has used up one of the 512 words of its fence page.
const FULL: u32 = 500;

/// A region in 0,0,0 in which 2,0,0 counts while it sends packets there, and which hostile
/// processes in 1,0,0 attack all the time.
struct Attacked<'a> {
    cluster: &'a Cluster,
    blue: Domain<'a>,
    key: String,
    owner: Actor,
    /// The last one is the newest.
    leavers: Vec<Actor>,
    counter: Actor,
    speaker: Actor,
}

impl<'a> Attacked<'a> {
    /// The owner leaves out some protections, too.
    fn new(cluster: &'a Cluster, bytes: u64, without: &[&str]) -> Self {
        let blue = cluster.domain("blue", &["*,0,0"]);
        let bytes = bytes.to_string();
        let mut owner = cluster.in_node("0,0,0", &["actor", "adversary", "guard", "blue", &bytes]);
        leave_out(&mut owner, without);
        let mut owner = Actor::start(&mut owner, "guard");
        let Event::Key(key) = owner.event() else {
            panic!("no key");
        };
        let counter = cluster.peer("2,0,0", "tally", "0,0,0", &key);
        let speaker = cluster.actor("2,0,0", "adversary speak blue 0,0,0");
        let mut attacked = Attacked {
            cluster,
            blue,
            key,
            owner,
            leavers: vec![],
            counter,
            speaker,
        };
        attacked.attack_anew();
        attacked
    }

    /// Starts another leaver, while the one before goes on with what it was granted.
    fn attack_anew(&mut self) {
        if let Some(before) = self.leavers.last_mut() {
            before.answers(&Request::Retire, &Event::Done);
        }
        let words = format!("adversary leave {} 2,0,0", self.key);
        self.leavers.push(self.cluster.actor("1,0,0", &words));
        self.opens();
        // Otherwise the rest would prove nothing.
        self.goes_through(&WRITTEN, &LEARNED);
        self.goes_through(&[], &["packets"]);
        self.hears(&["packets", "frames", "pair"]);
    }

    /// Asserts that the owner notices all these ways of the leaver's to write, and the leaver learns
    /// by all those.
    fn goes_through(&mut self, written: &[&str], learned: &[&str]) {
        let rings = self.leaver().ask(&Request::Rings);
        let has_rings = rings == Event::Done;
        if !has_rings {
            let switch = fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
            let is_on = switch.is_ok_and(|switch| switch == "0\n");
            let is_ci = env::var_os("CI").is_some_and(|ci| ci == "true");
            assert!(!is_ci || !is_on, "the kernel has io_uring: {rings:?}");
            eprintln!("not shown, without io_uring ({rings:?}): {NEED_RINGS:?}");
        }
        let is_possible = |way: &&&str| has_rings || !NEED_RINGS.contains(way);
        for way in written.iter().filter(is_possible) {
            eventually(way, || self.owner_sees().contains_key(*way));
        }
        for way in learned.iter().filter(is_possible) {
            eventually(way, || self.leaver_sees().contains_key(*way));
        }
    }

    /// Asserts that the owner hears all of these after it has looked last.
    fn hears(&mut self, all: &[&str]) {
        let mut missing: BTreeSet<_> = all.iter().copied().collect();
        eventually("members are heard, and those who forge are not", || {
            let heard = self.owner.tally(&Request::Heard);
            missing.retain(|what| !heard.contains_key(*what));
            missing.is_empty()
        });
    }

    /// The newest leaver.
    fn leaver(&mut self) -> &mut Actor {
        self.leavers.last_mut().expect("there is one")
    }

    /// Changes that reach the owner during a look.
    #[track_caller]
    fn owner_sees(&mut self) -> Tally {
        self.owner.tally(&Request::Look)
    }

    /// Changes by members that the newest leaver learns of during a look.
    #[track_caller]
    fn leaver_sees(&mut self) -> Tally {
        self.leaver().tally(&Request::Look)
    }

    /// The newest leaver opens the region and its channels again.
    #[track_caller]
    fn opens(&mut self) {
        self.leaver().answers(&Request::Open, &Event::Open);
    }

    /// The newest leaver cannot open the region.
    #[track_caller]
    fn is_denied(&mut self) {
        let reply = self.leaver().ask(&Request::Open);
        let is_denied = matches!(&reply, Event::Failed(why) if why.contains("Denied"));
        assert!(is_denied, "{reply:?}");
    }

    /// Shrinks; returns the changes that then reach the owner, and those that the leaver learns of.
    fn shrink(&mut self) -> [Tally; 2] {
        self.blue.shrink(&["1,0,0"]);
        [self.owner_sees(), self.leaver_sees()]
    }

    /// Asserts that no addition of members that stayed was lost.
    fn end(mut self) {
        assert!(!self.counter.has_ended(), "it was not disturbed");
        let counted = self.counter.counted();
        assert!(counted > 0);
        assert_eq!(self.owner.number(&Request::Sum), counted);
        self.blue.shrink(&["2,0,0"]);
        assert!(self.speaker.revoked() > 0);
    }
}

/// Grows and shrinks again and again. The leaver's descriptors and users must not allow more than
/// was granted, before the shrink and after it.
fn grow_and_shrink(cycles: u32, bytes: u64) {
    let cluster = up(&[]);
    let mut attacked = Attacked::new(&cluster, bytes, &[]);
    attacked.hears(&[
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
            attacked
                .leaver()
                .answers(&Request::Abuse, &nothing_through());
        }
        let [arrived, learned] = attacked.shrink();
        if abuses {
            for leaver in &mut attacked.leavers {
                leaver.answers(&Request::Abuse, &nothing_through());
            }
            let arrived = attacked.owner_sees();
            assert!(arrived.is_empty(), "cycle {cycle}: {arrived:?} arrives");
            for leaver in &mut attacked.leavers {
                let learned = leaver.tally(&Request::Look);
                assert!(learned.is_empty(), "cycle {cycle}: one learns {learned:?}");
            }
        }
        assert!(arrived.is_empty(), "cycle {cycle}: {arrived:?} arrives");
        assert!(
            learned.is_empty(),
            "cycle {cycle}: it learns what is newer than the return: {learned:?}"
        );
        attacked.is_denied();
        attacked.blue.grow(&["1,0,0"]);
        if cycle % FULL == FULL - 1 {
            attacked.attack_anew()
        } else {
            attacked.opens()
        }
        attacked.hears(&["packets", "frames", "pair"]);
    }
    attacked.end();
}

#[test]
fn who_keeps_everything_gets_nothing_newer_and_changes_nothing() {
    grow_and_shrink(if is_nightly() { 10_000 } else { 100 }, MIB);
}

#[test]
fn nor_with_large_regions() {
    grow_and_shrink(if is_nightly() { 50 } else { 3 }, 64 * MIB);
}

/// In ordinary programs no variable of the environment leaves out a protection.
#[cfg(not(feature = "unprotected"))]
#[test]
fn ordinary_programs_know_no_switch_that_weakens_them() {
    const ALL: [&str; 4] = ["FRESH_PAGES", "EPOCH_CHECK", "SOURCE_CHECK", "FENCE"];
    let cluster = up(&ALL);
    let mut attacked = Attacked::new(&cluster, MIB, &ALL);
    assert_eq!(attacked.shrink(), [Tally::new(), Tally::new()]);
    assert!(!cluster.log().contains("TOROID_TEST"));
}

/// The stories above would fail without a protection, because this would be noticed.
#[cfg(feature = "unprotected")]
mod unprotected {
    use super::*;

    /// Lets a node leave while all do without a protection.
    fn notices_without(protection: &str, by_owner: &[&str], by_leaver: &[&str]) {
        let cluster = up(&[protection]);
        let mut attacked = Attacked::new(&cluster, MIB, &[protection]);
        attacked.blue.shrink(&["1,0,0"]);
        attacked.goes_through(by_owner, by_leaver);
    }

    #[test]
    fn regions_that_stay_where_they_are_would_be_noticed() {
        notices_without("FRESH_PAGES", &WRITTEN, &LEARNED);
    }

    #[test]
    fn old_epochs_would_be_noticed() {
        notices_without("EPOCH_CHECK", &["forged packets", "frames"], &[]);
    }

    #[test]
    fn forged_sources_would_be_noticed() {
        notices_without("SOURCE_CHECK", &["forged packets", "forged frames"], &[]);
    }

    /// A process that nothing stops before it hears of its leaving.
    #[test]
    fn who_goes_on_without_a_fence_would_be_noticed() {
        // It may happen to hear of it first.
        assert!((0..5).any(|_| !fence::oversleep(&["FENCE"]).is_empty()));
    }
}

/// A descriptor that allows more than was granted.
#[test]
fn what_goes_too_far_would_be_noticed() {
    let cluster = up(&[]);
    let mut attacked = Attacked::new(&cluster, MIB, &[]);
    let leaver = attacked.leaver();
    leaver.answers(&Request::Abuse, &nothing_through());
    leaver.answers(&Request::Mistake, &Event::Done);
    let through = ["punch", "write"].map(String::from);
    leaver.answers(&Request::Abuse, &Event::Through(through.into()));
}

/// Kills the agent at random points of shrinks, and some time after them. The next one brings them
/// to their end, if they have become durable.
fn kill_and_shrink(rounds: u32, bytes: u64) {
    let cluster = up(&[]);
    let mut attacked = Attacked::new(&cluster, bytes, &[]);
    let mut random = Random(1);
    for round in 0..rounds {
        cluster.goes_on();
        let shrink = cluster.start("domain shrink blue 1,0,0");
        thread::sleep(Duration::from_micros(random.below(1 << 15) as u64));
        cluster.kill_agent();
        let told = shrink.wait().status;
        up_again(&cluster);
        let has_left = attacked.blue.show()["members"].as_array().map(Vec::len) == Some(2);
        assert!(told != 0 || has_left, "round {round}: it was told done");
        assert!(!attacked.counter.has_ended(), "round {round}");
        if has_left {
            let found = [attacked.owner_sees(), attacked.leaver_sees()];
            let is_cut_off = found.iter().all(Tally::is_empty);
            assert!(is_cut_off, "round {round}: {found:?}");
            attacked.is_denied();
            attacked.blue.grow(&["1,0,0"]);
        }
        attacked.opens();
    }
    attacked.end();
}

#[test]
fn nor_when_the_agent_is_killed_meanwhile() {
    kill_and_shrink(if is_nightly() { 500 } else { 14 }, MIB);
}

#[test]
fn nor_with_large_regions_when_the_agent_is_killed() {
    kill_and_shrink(if is_nightly() { 100 } else { 6 }, 64 * MIB);
}
