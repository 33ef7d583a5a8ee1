//! What is made from the definition of the command line: completions and man pages.

use std::fs;
use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Args;
use crate::failure::Failure;
use crate::show::{Show, line};

pub(crate) fn completions(shell: Shell) {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "toroid", &mut script);
    line!("{}", String::from_utf8_lossy(&script).trim_end());
}

pub(crate) fn man_pages(directory: &Path, show: Show) -> Result<(), Failure> {
    let written = fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(Args::command(), directory));
    written.map_err(|error| {
        let directory = directory.display();
        Failure::new(format!(
            "cannot write man pages to {directory}: {error}; name another directory"
        ))
    })?;
    show.done();
    Ok(())
}
