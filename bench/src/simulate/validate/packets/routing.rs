//! Routing: the share of non-minimal paths by mode, and phantom congestion.

use anyhow::Result;
use toroid_fabric::routes::{Dragonfly, Mode};

use super::super::{Bar, Check, Outcome};
use super::{network, put};
use crate::plan::Effort;
use crate::sim::profile::NicCosts;
use crate::sim::{Happening, Network, Profile, TICKS};

/// Non-minimal shares of the modes under load.
pub const MODES: Check = Check {
    name: "packets-modes",
    is_long: false,
    run: modes,
};

/// Non-minimal paths that nothing but old information explains.
pub const PHANTOM: Check = Check {
    name: "packets-phantom",
    is_long: false,
    run: phantom,
};

const PAPER: &str = "paper: routing";

/// Four groups of 16 nodes, two global links a pair.
fn dragonfly() -> Result<Dragonfly> {
    Ok(Dragonfly::new([4, 2, 4, 2], Some(2))?)
}

fn modes(_: Effort) -> Result<Vec<Outcome>> {
    let share = |mode| share_under_load(mode);
    let outcome = |what: &str, bar, expected, measured| Outcome {
        against: PAPER,
        what: format!("share non-minimal under load: {what}"),
        bar,
        expected,
        measured,
    };
    let adaptive = [
        share(Mode::Adaptive0)?,
        share(Mode::Adaptive2)?,
        share(Mode::Adaptive3)?,
    ];
    Ok(vec![
        outcome("min-hash", Bar::AtMost, 0.0, share(Mode::MinHash)?),
        outcome("in-order", Bar::AtMost, 0.0, share(Mode::InOrder)?),
        outcome("nmin-hash", Bar::AtLeast, 1.0, share(Mode::NminHash)?),
        outcome(
            "adaptive0, at least adaptive2",
            Bar::AtLeast,
            adaptive[1],
            adaptive[0],
        ),
        outcome(
            "adaptive2, at least adaptive3",
            Bar::AtLeast,
            adaptive[2],
            adaptive[1],
        ),
    ])
}

/// All nodes of each group send to the next group.
fn share_under_load(mode: Mode) -> Result<f64> {
    let mut network = network(dragonfly()?, Profile::aries(), 1)?;
    for from in 0..64 {
        network.send(put(from, (from + 16) % 64, 64 << 10, mode));
    }
    while network.next().is_some() {}
    Ok(network.routed().share_non_minimal())
}

fn phantom(_: Effort) -> Result<Vec<Outcome>> {
    let mut before = share_after_burst(0)?;
    let mut outcomes = vec![Outcome {
        against: PAPER,
        what: "needless non-minimal share after a burst, current credits".into(),
        bar: Bar::AtMost,
        expected: 0.01,
        measured: before,
    }];
    for age_ns in [500, 1_000, 2_000] {
        let share = share_after_burst(age_ns)?;
        outcomes.push(Outcome {
            against: PAPER,
            what: format!("needless share, credits {age_ns} ns old: at least that of newer ones"),
            bar: Bar::AtLeast,
            expected: before,
            measured: share,
        });
        before = share;
    }
    Ok(outcomes)
}

/// A burst between groups ends. Then nodes send single packets that nothing delays: each on a
/// non-minimal path is there because of credits that are back by now.
///
/// Cards have no latency, so that the burst ends for senders when it ends in the fabric.
fn share_after_burst(age_ns: u64) -> Result<f64> {
    const PACKETS: u32 = 10;
    let aries = Profile::aries();
    let profile = Profile {
        snapshot_age_ns: age_ns,
        nic: NicCosts {
            send_ns: 0,
            receive_ns: 0,
            ..aries.nic
        },
        ..aries
    };
    let (mut needless, mut all) = (0, 0);
    for seed in 0..40 {
        let mut network = network(dragonfly()?, profile.clone(), seed)?;
        for from in 0..64 {
            network.send(put(from, (from + 16) % 64, 8 << 10, Mode::Adaptive3));
        }
        let mut left = 64;
        while left > 0
            && let Some(happening) = network.next()
        {
            left -= i32::from(matches!(happening, Happening::Delivered(_)));
        }
        let (start, before) = (network.now(), network.routed());
        for n in 0..PACKETS {
            network.timer(start + u64::from(n) * 350 * TICKS, n.into());
        }
        while let Some(happening) = network.next() {
            if let Happening::Timer(n) = happening {
                let from = (n as u32 * 13 + seed as u32) % 64;
                network.send(put(from, (from + 16) % 64, 64, Mode::Adaptive0));
            }
        }
        let routed = network.routed().since(&before);
        needless += routed.non_minimal;
        all += routed.non_minimal + routed.minimal;
    }
    Ok(needless as f64 / all as f64)
}
