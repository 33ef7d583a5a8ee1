//! Closed forms.

use anyhow::Result;
use toroid_fabric::model::{ClockId, Costs, Passage, Stage, VectorClocks};

use super::{Bar, Check, Outcome};
use crate::plan::Effort;

const AGAINST: &str = "closed form";

/// The link model alone, without events.
pub const LINK_MODEL: Check = Check {
    name: "link-model",
    is_long: false,
    run: link_model,
};

/// A link of 1 GB/s and 100 ns, so that bytes are nanoseconds.
fn link(number: u32) -> Stage {
    let costs = Costs {
        rate: 1_000_000_000,
        latency: 100,
        ..Costs::default()
    };
    Stage {
        clock: ClockId::number(number),
        costs,
        whole: false,
    }
}

fn link_model(_: Effort) -> Result<Vec<Outcome>> {
    const HOPS: u32 = 10;
    const BYTES: u64 = 4096;
    const MESSAGES: u64 = 100;
    let clocks = VectorClocks::new(HOPS as usize);
    let send = || {
        let mut passage = Passage::new(0, BYTES);
        for number in 0..HOPS {
            passage.cross(&link(number), &clocks);
        }
        passage.arrival() as f64
    };
    let first = send();
    let last = (1..MESSAGES).fold(first, |_, _| send());
    Ok(vec![
        Outcome {
            against: AGAINST,
            what: format!("{BYTES} B over {HOPS} idle links, ns"),
            bar: Bar::Within(0.02),
            expected: (BYTES + u64::from(HOPS) * 100) as f64,
            measured: first,
        },
        Outcome {
            against: AGAINST,
            what: format!(
                "{MESSAGES} messages of {BYTES} B over a link take their bytes' time, ns"
            ),
            bar: Bar::AtLeast,
            expected: (MESSAGES * BYTES) as f64,
            measured: last,
        },
    ])
}
