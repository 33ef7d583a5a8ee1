//! Flows: messages from one node to another, which take a detour until they are many.
//!
//! Clouds send what two virtual machines exchange through a gateway until the rate is worth a route
//! of its own (Hoverboards: Dalton et al., Andromeda, NSDI 2018). A flow is a directed pair of
//! nodes, as there. There are no clock and no I/O here.
//!
//! The rate is measured by a link of that rate: a flow is busy when such a link would have a
//! backlog of more than the idle time. That is exactly when some interval up to now has brought more
//! bytes than the rate allows in that interval and an idle time together. State is constant, and a
//! flow at the rate itself never switches.

use super::{Costs, Nanos, TICKS, ticks};

/// When flows leave the gateway, and come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowRule {
    /// Bytes per second above which a flow goes direct.
    pub above: u64,
    /// Nanoseconds without a message after which a flow is at the gateway again; also the window
    /// of the rate.
    pub idle: Nanos,
}

/// Path of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlowPath {
    /// Through the gateway.
    #[default]
    Gateway,
    /// Without the detour.
    Direct,
}

/// Messages from one node to another. The default is a flow without messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    path: FlowPath,
    /// Until when the messages would occupy a link of the rule's rate, in ticks. Of flows at the
    /// gateway only.
    busy_until: u64,
    /// Time of the last message.
    last: Nanos,
}

impl Flow {
    /// Path of the next message.
    pub fn path(&self) -> FlowPath {
        self.path
    }

    /// Takes a message of `bytes`, and returns its path. The message that exceeds the rate is the
    /// last one through the gateway.
    pub fn send(&mut self, rule: &FlowRule, now: Nanos, bytes: u64) -> FlowPath {
        if now.saturating_sub(self.last) >= rule.idle {
            *self = Flow::default();
        }
        self.last = now;
        let path = self.path;
        if path == FlowPath::Gateway {
            self.measure(rule, ticks(now), bytes);
        }
        path
    }

    fn measure(&mut self, rule: &FlowRule, now: u64, bytes: u64) {
        let meter = Costs {
            rate: rule.above,
            ..Costs::default()
        };
        let start = self.busy_until.max(now);
        self.busy_until = start.saturating_add(meter.transfer(bytes));
        if self.busy_until - now > rule.idle.saturating_mul(TICKS) {
            self.path = FlowPath::Direct;
        }
    }
}
