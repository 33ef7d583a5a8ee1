//! What is compared: static modes, and policies that decide on each message.

use std::fmt;
use std::sync::Arc;

use toroid_fabric::routes::Mode;
use toroid_fabric::routes::policy::{
    Fixed, ParameterError, Parameters, Policy, Recorded, SelectRouting,
};

use super::workload::Workload;

/// Makes the policy of a rank.
type Make = dyn Fn() -> Box<dyn Policy> + Send + Sync;

/// A policy with a name. Each rank has one of its own.
#[derive(Clone)]
pub struct Contender {
    name: String,
    make: Arc<Make>,
    workload: Option<Workload>,
}

impl Contender {
    /// The name of [`Contender::default_mode`].
    pub const DEFAULT: &str = "default";
    /// The name of [`Contender::high_bias`].
    pub const HIGH_BIAS: &str = "high-bias";
    /// The name of [`Contender::auto`].
    pub const AUTO: &str = "auto";
    /// The name of [`Contender::auto_with`].
    pub const AUTO_WITH: &str = "auto-hysteresis";

    /// A policy by its constructor.
    pub fn new<P: Policy + 'static>(
        name: impl Into<String>,
        make: impl Fn() -> P + Send + Sync + 'static,
    ) -> Self {
        Contender {
            name: name.into(),
            make: Arc::new(move || Box::new(make())),
            workload: None,
        }
    }

    /// `ADAPTIVE_0`, and `ADAPTIVE_1` for alltoall.
    pub fn default_mode() -> Self {
        Self::new(Self::DEFAULT, || Fixed::DEFAULT)
    }

    /// `ADAPTIVE_3`.
    pub fn high_bias() -> Self {
        Self::new(Self::HIGH_BIAS, || Fixed::new(Mode::Adaptive3))
    }

    /// The paper's application-aware routing.
    pub fn auto() -> Self {
        Self::new(Self::AUTO, SelectRouting::default)
    }

    /// The paper's routing with [hysteresis](Parameters::hysteresis), which the paper has not.
    ///
    /// # Errors
    /// The hysteresis is no share from 0 to below 1.
    pub fn auto_with(hysteresis: f64) -> Result<Self, ParameterError> {
        let policy = SelectRouting::new(Parameters {
            hysteresis,
            ..Parameters::default()
        })?;
        Ok(Self::new(Self::AUTO_WITH, move || policy.clone()))
    }

    /// The contenders of the paper.
    pub fn of_paper() -> Vec<Self> {
        vec![Self::default_mode(), Self::high_bias(), Self::auto()]
    }

    /// The same with a workload of its own instead of the experiment's.
    pub fn with(self, workload: Workload) -> Self {
        Contender {
            workload: Some(workload),
            ..self
        }
    }

    /// The workload, if it is not the experiment's.
    pub fn workload(&self) -> Option<Workload> {
        self.workload
    }

    /// The name in rows.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A policy for each rank.
    pub fn policies(&self, ranks: usize) -> Vec<Recorded<Box<dyn Policy>>> {
        (0..ranks).map(|_| Recorded::new((self.make)())).collect()
    }
}

impl fmt::Debug for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

#[cfg(test)]
mod tests {
    use toroid_fabric::NodeId;
    use toroid_fabric::routes::{Counters, Operation, Outgoing};

    use super::*;

    /// The estimate of high bias is a latency that is shorter by a sixth.
    #[test]
    fn hysteresis_demands_a_larger_gain() {
        let second_mode = |contender: Contender| {
            let policy = &mut contender.policies(1)[0];
            let message = Outgoing {
                to: NodeId(1),
                bytes: 8192,
                operation: Operation::Put,
                is_alltoall: false,
            };
            let first = policy.choose(&message);
            let counted = Counters {
                request_flits: 640,
                stalled_cycles: 0,
                packets: 128,
                latency_ns: 128 * 100_000,
            };
            policy.learn(first, &counted);
            policy.choose(&message)
        };
        assert_eq!(second_mode(Contender::auto()), Mode::Adaptive3);
        let with = |share| Contender::auto_with(share).unwrap();
        assert_eq!(second_mode(with(0.1)), Mode::Adaptive3);
        assert_eq!(second_mode(with(0.2)), Mode::Adaptive0);
    }
}
