//! `toroid free`: give allocated nodes back.

use clap::Args;

use super::{DONE, Run, Session};
use crate::failure::Failure;

#[derive(Debug, Args)]
pub(crate) struct Free {
    /// The nodes
    #[arg(required = true)]
    nodes: Vec<String>,
}

impl Run for Free {
    fn run(self, session: &Session) -> Result<u8, Failure> {
        session.connect()?.free_nodes(&self.nodes)?;
        session.show.done();
        Ok(DONE)
    }
}
