//! Application-aware routing: the paper's `selectRouting`.
//!
//! The policy predicts the time of a message in both modes by Equation 2 and takes the faster one
//! (Equation 3). Equation 4 of the paper is not used: it divides by the difference of the stalls
//! and holds only where high bias stalls more.
//!
//! The mode in use has measured latency and stalls. The other mode has its last sample for `life -
//! 1` decisions; after that the policy estimates latency by `lambda` and stalls by `sigma`. The
//! paper does not publish these values: the defaults are those of the authors' program. Its program
//! also demands that a sample has the message's size and destination; this policy does not, like
//! the paper.

use super::{Outgoing, Policy};
use crate::routes::counters::{Counters, Sample};
use crate::routes::mode::Mode;
use crate::routes::model::predicted_cycles;

/// Parameters of [`SelectRouting`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameters {
    /// Latency of high bias over latency of the default mode; positive.
    pub lambda: f64,
    /// Stalls of high bias over stalls of the default mode; positive.
    pub sigma: f64,
    /// A sample serves one decision less than this; at least 1.
    pub life: u32,
    /// Bytes that are sent with high bias, without a decision, before one is made.
    pub cutoff: u64,
    /// Share of the predicted time by which the other mode must be faster for a switch, from 0 to
    /// below 1. The paper has none: 0.
    pub hysteresis: f64,
}

/// A parameter of [`SelectRouting`] is out of range.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum ParameterError {
    /// A ratio is not a positive number.
    #[error("{name} of {value} is refused: use a positive number, such as {default}")]
    Ratio {
        /// The parameter.
        name: &'static str,
        /// Its value.
        value: f64,
        /// Its default.
        default: f64,
    },
    /// A sample would not even serve its own decision.
    #[error("a life of 0 is refused: samples live for at least 1 decision")]
    Life,
    /// The hysteresis is not a share.
    #[error("a hysteresis of {0} is refused: use a share from 0 to below 1")]
    Hysteresis(f64),
}

/// Application-aware routing of one sender.
#[derive(Clone, Debug)]
pub struct SelectRouting {
    parameters: Parameters,
    mode: Bias,
    /// Bytes since the last decision.
    skipped: u64,
    /// Counted since the last decision, by bias.
    counted: [Counters; 2],
    known: [Option<Known>; 2],
}

/// The two modes between which the policy decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bias {
    Default,
    High,
}

/// A measured sample and the decisions until it has expired.
#[derive(Clone, Copy, Debug)]
struct Known {
    sample: Sample,
    life: u32,
}

impl Default for Parameters {
    fn default() -> Self {
        Parameters {
            lambda: 1.0 / 1.2,
            sigma: 5.0,
            life: 5,
            cutoff: 4096,
            hysteresis: 0.0,
        }
    }
}

impl Parameters {
    /// An error if a parameter is out of range.
    pub fn check(&self) -> Result<(), ParameterError> {
        let default = Parameters::default();
        ratio("lambda", self.lambda, default.lambda)?;
        ratio("sigma", self.sigma, default.sigma)?;
        if self.life == 0 {
            return Err(ParameterError::Life);
        }
        match (0.0..1.0).contains(&self.hysteresis) {
            true => Ok(()),
            false => Err(ParameterError::Hysteresis(self.hysteresis)),
        }
    }
}

fn ratio(name: &'static str, value: f64, default: f64) -> Result<(), ParameterError> {
    match value.is_finite() && value > 0.0 {
        true => Ok(()),
        false => Err(ParameterError::Ratio {
            name,
            value,
            default,
        }),
    }
}

impl Default for SelectRouting {
    fn default() -> Self {
        Self::with(Parameters::default())
    }
}

impl SelectRouting {
    /// The policy with these parameters, before its first message.
    pub fn new(parameters: Parameters) -> Result<Self, ParameterError> {
        parameters.check()?;
        Ok(Self::with(parameters))
    }

    fn with(parameters: Parameters) -> Self {
        SelectRouting {
            parameters,
            mode: Bias::Default,
            skipped: 0,
            counted: Default::default(),
            known: Default::default(),
        }
    }

    /// Makes what was counted since the last decision the sample of the current mode, and ages the
    /// other one. High bias also carries small messages: they do not count while the default mode
    /// is current.
    fn refresh(&mut self) {
        let counted = std::mem::take(&mut self.counted);
        let current = self.mode as usize;
        if let Some(sample) = counted[current].sample() {
            let life = self.parameters.life;
            self.known[current] = Some(Known { sample, life });
        }
        let other = &mut self.known[self.mode.other() as usize];
        *other = other.and_then(Known::aged);
    }

    /// Samples of the default mode and of high bias; `None` as long as the current mode has none.
    fn samples(&self) -> Option<[Sample; 2]> {
        let current = self.known[self.mode as usize]?.sample;
        let other = self.known[self.mode.other() as usize].map(|known| known.sample);
        let other = other.unwrap_or_else(|| self.estimate(&current));
        Some(match self.mode {
            Bias::Default => [current, other],
            Bias::High => [other, current],
        })
    }

    /// The sample of the other mode, from the sample of the current one.
    fn estimate(&self, current: &Sample) -> Sample {
        let Parameters { lambda, sigma, .. } = self.parameters;
        let (latency, stalls) = (current.latency, current.stalls);
        match self.mode {
            Bias::Default => Sample {
                latency: latency * lambda,
                stalls: stalls * sigma,
            },
            Bias::High => Sample {
                latency: latency / lambda,
                stalls: stalls / sigma,
            },
        }
    }

    /// The faster mode by prediction. The default mode wins a tie, and keeps its place if nothing
    /// was measured.
    fn decide(&self, message: &Outgoing) -> Bias {
        let Some(samples) = self.samples() else {
            return self.mode;
        };
        let mut cycles = samples.map(|s| predicted_cycles(message.bytes, message.operation, &s));
        cycles[self.mode as usize] *= 1.0 - self.parameters.hysteresis;
        match cycles[Bias::High as usize] < cycles[Bias::Default as usize] {
            true => Bias::High,
            false => Bias::Default,
        }
    }
}

impl Policy for SelectRouting {
    fn decides(&self, message: &Outgoing) -> bool {
        self.skipped.saturating_add(message.bytes) > self.parameters.cutoff
    }

    fn choose(&mut self, message: &Outgoing) -> Mode {
        if !self.decides(message) {
            self.skipped += message.bytes;
            return Mode::Adaptive3;
        }
        self.skipped = 0;
        self.refresh();
        self.mode = self.decide(message);
        match (self.mode, message.is_alltoall) {
            (Bias::High, _) => Mode::Adaptive3,
            (Bias::Default, false) => Mode::Adaptive0,
            (Bias::Default, true) => Mode::Adaptive1,
        }
    }

    fn learn(&mut self, of: Mode, counted: &Counters) {
        let of = match of {
            Mode::Adaptive0 | Mode::Adaptive1 => Bias::Default,
            Mode::Adaptive3 => Bias::High,
            _ => return,
        };
        self.counted[of as usize] += *counted;
    }
}

impl Bias {
    fn other(self) -> Bias {
        match self {
            Bias::Default => Bias::High,
            Bias::High => Bias::Default,
        }
    }
}

impl Known {
    fn aged(self) -> Option<Known> {
        let life = self.life - 1;
        (life > 0).then_some(Known { life, ..self })
    }
}

#[cfg(test)]
mod tests;
