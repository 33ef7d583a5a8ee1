//! Routing: what the live send path and the simulator share. No I/O, no clock.
//!
//! * [`Mode`]: the seven routing modes of Cray's Aries.
//! * [`counters`]: what a network card counts per tenant and mode.
//! * [`model`]: packets, flits and the predicted time of a message.
//! * [`policy`]: the mode of each message, from the counters of earlier messages.
//!
//! Modes, counters, model and policy are those of De Sensi, Di Girolamo and Hoefler, "Mitigating
//! Network Noise on Dragonfly Networks through Application-Aware Routing", SC 2019.

pub mod counters;
mod mode;
pub mod model;
pub mod policy;

pub use counters::{Counters, Sample};
pub use mode::{Mode, ParseModeError};
pub use model::Operation;
pub use policy::{Outgoing, Policy};
