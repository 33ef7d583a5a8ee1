//! Policies: the routing mode of each message.
//!
//! * [`Policy`]: the trait. [`Fixed`] uses one mode.
//! * [`SelectRouting`]: the paper's application-aware routing, from counters of earlier messages.
//! * [`Recorded`]: a policy with counts of its decisions.
//!
//! ```
//! use toroid_fabric::NodeId;
//! use toroid_fabric::routes::policy::{Outgoing, Policy, Recorded};
//! use toroid_fabric::routes::{Counters, Mode, Operation};
//!
//! /// Long messages on minimal paths.
//! struct BySize;
//!
//! impl Policy for BySize {
//!     fn choose(&mut self, message: &Outgoing) -> Mode {
//!         if message.bytes > 65536 { Mode::Adaptive3 } else { Mode::Adaptive0 }
//!     }
//!
//!     fn learn(&mut self, _: Mode, _: &Counters) {}
//! }
//!
//! let mut policy = Recorded::new(BySize);
//! let message = Outgoing { to: NodeId(3), bytes: 1 << 20, operation: Operation::Put, is_alltoall: false };
//! assert_eq!(policy.choose(&message), Mode::Adaptive3);
//! assert_eq!(policy.report().bytes_of(Mode::Adaptive3), 1 << 20);
//! ```

mod recorded;
mod select;

pub use recorded::{Recorded, Report};
pub use select::{ParameterError, Parameters, SelectRouting};

use super::counters::Counters;
use super::mode::Mode;
use super::model::Operation;
use crate::topology::NodeId;

/// A message before its first packet leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// The other end.
    pub to: NodeId,
    /// Payload of the message.
    pub bytes: u64,
    /// Direction of the payload.
    pub operation: Operation,
    /// Whether the message is part of an exchange between all members.
    pub is_alltoall: bool,
}

/// The decision on each message of one sender.
pub trait Policy: Send {
    /// Whether the next call of [`choose`](Policy::choose) decides. Otherwise the message is too
    /// small for a decision, and the sender need not read its counters.
    fn decides(&self, _message: &Outgoing) -> bool {
        true
    }

    /// The mode of a message that leaves now.
    fn choose(&mut self, message: &Outgoing) -> Mode;

    /// The gain of the counters of mode `of` since the last call with this mode. Senders call this
    /// after a send, and before the next decision at the latest.
    fn learn(&mut self, of: Mode, counted: &Counters);
}

impl<P: Policy + ?Sized> Policy for Box<P> {
    fn decides(&self, message: &Outgoing) -> bool {
        (**self).decides(message)
    }

    fn choose(&mut self, message: &Outgoing) -> Mode {
        (**self).choose(message)
    }

    fn learn(&mut self, of: Mode, counted: &Counters) {
        (**self).learn(of, counted);
    }
}

/// One mode for all messages, and another one for exchanges between all members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fixed {
    mode: Mode,
    alltoall: Mode,
}

impl Fixed {
    /// Cray's default: `ADAPTIVE_0`, and `ADAPTIVE_1` for alltoall.
    pub const DEFAULT: Fixed = Fixed {
        mode: Mode::Adaptive0,
        alltoall: Mode::Adaptive1,
    };

    /// `mode` for all messages.
    pub fn new(mode: Mode) -> Self {
        let alltoall = mode;
        Fixed { mode, alltoall }
    }
}

impl Policy for Fixed {
    fn choose(&mut self, message: &Outgoing) -> Mode {
        match message.is_alltoall {
            true => self.alltoall,
            false => self.mode,
        }
    }

    fn learn(&mut self, _: Mode, _: &Counters) {}
}
