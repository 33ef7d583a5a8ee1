//! `toroid completions` and `toroid man`: files generated from the definition of the command line.

use std::fs;
use std::path::PathBuf;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::{CommandLine, DONE, Run, Session};
use crate::failure::Failure;
use crate::output::line;

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  toroid completions bash > \
                        /usr/share/bash-completion/completions/toroid")]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  toroid man /usr/local/share/man/man1")]
pub(crate) struct Man {
    /// Target directory; it is created if necessary
    directory: PathBuf,
}

impl Run for Completions {
    fn run(self, _: &Session) -> Result<u8, Failure> {
        let mut script = Vec::new();
        let mut command_line = CommandLine::command();
        clap_complete::generate(self.shell, &mut command_line, "toroid", &mut script);
        line!("{}", String::from_utf8_lossy(&script).trim_end());
        Ok(DONE)
    }
}

impl Run for Man {
    fn run(self, session: &Session) -> Result<u8, Failure> {
        let written = fs::create_dir_all(&self.directory)
            .and_then(|()| clap_mangen::generate_to(CommandLine::command(), &self.directory));
        written.map_err(|error| {
            let directory = self.directory.display();
            Failure::new(format!(
                "cannot write man pages to {directory}: {error}; name another directory"
            ))
        })?;
        session.show.done();
        Ok(DONE)
    }
}
