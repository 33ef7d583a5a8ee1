//! Random delays and losses.

use super::Nanos;

/// Variation of a latency, which is never negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Jitter {
    /// The latency is constant.
    #[default]
    None,
    /// Equally likely from `-spread` to `+spread`.
    Uniform {
        /// Nanoseconds.
        spread: Nanos,
    },
    /// A normal distribution around 0, cut at 3 deviations.
    Normal {
        /// Standard deviation in nanoseconds.
        deviation: Nanos,
    },
    /// Never shorter; a Pareto distribution with exponent 3 from 0 (Lomax), cut at 100 means.
    Pareto {
        /// Mean in nanoseconds.
        mean: Nanos,
    },
}

impl Jitter {
    /// Nanoseconds by which a draw may shorten the latency. A link's latency must be at least this
    /// long.
    pub fn reach(&self) -> Nanos {
        match *self {
            Jitter::None | Jitter::Pareto { .. } => 0,
            Jitter::Uniform { spread } => spread,
            Jitter::Normal { deviation } => deviation.saturating_mul(3),
        }
    }

    /// A delay from 0 on, for a latency from which [`Jitter::reach`] has been taken.
    pub fn draw(&self, random: &mut fastrand::Rng) -> Nanos {
        match *self {
            Jitter::None => 0,
            Jitter::Uniform { spread } => (random.f64() * 2.0 * spread as f64) as Nanos,
            Jitter::Normal { deviation } => {
                // Box and Muller (1958); `1 - f64()` is never 0.
                let radius = (-2.0 * (1.0 - random.f64()).ln()).sqrt();
                let normal = radius * (std::f64::consts::TAU * random.f64()).cos();
                ((normal.clamp(-3.0, 3.0) + 3.0) * deviation as f64) as Nanos
            }
            Jitter::Pareto { mean } => {
                let above = (1.0 - random.f64()).powf(-1.0 / 3.0) - 1.0;
                ((2.0 * above).min(100.0) * mean as f64) as Nanos
            }
        }
    }
}
