//! `toroid directory`: where the directory of several hosts is.

use clap::Subcommand;
use serde::Serialize;

use super::{DONE, Run, Session};
use crate::failure::Failure;
use crate::output::line;

pub(super) const EXAMPLES: &str = "\
Examples:
  toroid directory move etcd         from the files of the leader to etcd
  toroid directory move b            to the files of host b, which leads from then on

Nodes, traffic and connections go on. Changes wait, for some seconds at most. Then write the new
place in the files of all hosts: `toroid status` shows the lines.";

#[derive(Debug, Subcommand)]
pub(crate) enum Directory {
    /// Move the directory; returns when all connected hosts know its new place
    Move {
        /// `etcd`, or the host that is to lead
        #[arg(value_name = "etcd|HOST")]
        to: String,
    },
}

/// The place of the directory, for programs.
#[derive(Serialize)]
struct Place<'a> {
    directory: &'a str,
}

impl Run for Directory {
    fn run(self, session: &Session) -> Result<u8, Failure> {
        let Directory::Move { to } = self;
        session.connect()?.move_directory(&to)?;
        if session.show.json {
            session.show.value(&Place { directory: &to });
        } else {
            line!(
                "write directory = \"{to}\" in the files of all hosts: see `toroid status` there"
            );
        }
        Ok(DONE)
    }
}
