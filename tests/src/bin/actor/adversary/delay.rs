//! A member that writes to the clocks of links.

use std::thread;

use tests::actor::{Event as Report, report};
use toroid_fabric::NodeId;
use toroid_fabric::model::{ClockId, Clocks, SharedClocks};
use toroid_protocol::agent::{Event, Message};

use super::leave::Agent;
use super::{LOOK, Result};

/// Takes the next clocks that the agent sends, and reserves a link until the end of time, again and
/// again.
pub fn delay(from: u32, to: u32) -> Result<()> {
    let mut agent = Agent::greet()?;
    report(&Report::Ready)?;
    let memory = loop {
        if let (Message::Event(Event::Links { .. }), files) = agent.hear()?
            && let Some(memory) = files.into_iter().next()
        {
            break memory;
        }
    };
    let clocks = SharedClocks::map(&memory)?;
    let link = ClockId::pair(NodeId(from), NodeId(to));
    for n in 0_u64.. {
        clocks.reserve(link, u64::MAX, 0, u64::MAX);
        if n == 0 {
            report(&Report::Done)?;
        }
        thread::sleep(LOOK);
    }
    Ok(())
}
