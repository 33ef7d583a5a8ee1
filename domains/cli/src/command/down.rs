//! `toroid down`: end the agent of this user.

use clap::Args;
use toroid_agent::Left;
use toroid_client::admin::{CONTROL_SOCKET, ClientError, Control};
use toroid_protocol::wire::WireError;

use super::{DONE, Run, Session};
use crate::failure::Failure;

#[derive(Debug, Args)]
pub(crate) struct Down;

impl Run for Down {
    fn run(self, session: &Session) -> Result<u8, Failure> {
        let Session { places, show } = session;
        // Only the user's own agent: ending the system's agent by mistake would be worse.
        let state = places.to_start()?;
        let was_there = state.join(CONTROL_SOCKET).exists();
        match Control::connect(state).and_then(Control::down) {
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
