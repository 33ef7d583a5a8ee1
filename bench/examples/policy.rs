//! A routing policy of one's own against `auto`, the paper's application-aware routing.
//!
//! ```sh
//! cargo run --release -p bench --example policy
//! ```
//!
//! The programs run in turns on a simulated dragonfly beside noisy neighbours. The policy implements
//! the trait by which the send path of a domain has `auto`; domains have no other policies.

use std::process::ExitCode;

use bench::against_auto;
use toroid_fabric::routes::model::predicted_cycles;
use toroid_fabric::routes::policy::{Outgoing, Policy};
use toroid_fabric::routes::{Counters, Mode, Sample};

/// Both modes remember a moving average, and one message in 16 tries the mode that looks slower.
#[derive(Default)]
struct Averages {
    known: [Option<Sample>; 2],
    messages: u32,
}

const MODES: [Mode; 2] = [Mode::Adaptive0, Mode::Adaptive3];

impl Policy for Averages {
    fn choose(&mut self, message: &Outgoing) -> Mode {
        self.messages += 1;
        let cycles = self.known.map(|sample| {
            sample.map_or(0.0, |s| {
                predicted_cycles(message.bytes, message.operation, &s)
            })
        });
        let best = usize::from(cycles[1] <= cycles[0]);
        let tries_other = self.messages.is_multiple_of(16);
        MODES[best ^ usize::from(tries_other)]
    }

    fn learn(&mut self, of: Mode, counted: &Counters) {
        let Some(at) = MODES.iter().position(|mode| *mode == of) else {
            return;
        };
        let Some(new) = counted.sample() else { return };
        let old = self.known[at].unwrap_or(new);
        self.known[at] = Some(Sample {
            latency: 0.7 * old.latency + 0.3 * new.latency,
            stalls: 0.7 * old.stalls + 0.3 * new.stalls,
        });
    }
}

fn main() -> ExitCode {
    match against_auto("averages", Averages::default) {
        Ok(duel) => println!("{duel}"),
        Err(error) => {
            eprintln!("policy: {error:#}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
