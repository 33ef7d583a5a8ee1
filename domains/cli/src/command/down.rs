//! `toroid down`: end the agent of this user.

use std::path::Path;

use clap::Args;
use toroid_agent::{Left, is_held};
use toroid_client::admin::{CONTROL_SOCKET, ClientError, Control};
use toroid_protocol::wire::WireError;

use super::{DONE, Run, Session};
use crate::failure::Failure;

/// Number of requests to an agent that starts again each time.
const ATTEMPTS: u32 = 5;

#[derive(Debug, Args)]
pub(crate) struct Down;

impl Run for Down {
    fn run(self, session: &Session) -> Result<u8, Failure> {
        let Session { places, show } = session;
        // Only the user's own agent: ending the system's agent by mistake would be worse.
        let state = places.to_start()?;
        let was_there = state.join(CONTROL_SOCKET).exists();
        match end(state) {
            Ok(()) => {}
            // Also an agent that ended meanwhile, because its start was interrupted or another
            // `toroid down` was faster.
            Err(
                error @ (ClientError::NoAgent { .. }
                | ClientError::Orphaned { .. }
                | ClientError::Wire(WireError::Closed)),
            ) => match toroid_agent::clear_stale(state)? {
                Left::Nothing if was_there => {}
                Left::Nothing => return Err(error.into()),
                Left::Files => show.note("cleared away what an agent that was killed had left"),
                Left::Nodes => show.note("no agent ran; its nodes have ended now"),
            },
            Err(error) => return Err(error.into()),
        }
        show.done();
        Ok(DONE)
    }
}

/// Ends the agent, also one that starts again at this moment.
fn end(state: &Path) -> Result<(), ClientError> {
    for _ in 1..ATTEMPTS {
        match Control::connect(state).and_then(Control::down) {
            Err(ClientError::Wire(WireError::Closed)) if is_held(state).unwrap_or_default() => {}
            result => return result,
        }
    }
    Control::connect(state).and_then(Control::down)
}
