//! `toroid FOO` for other FOO: the program `toroid-FOO` from beside this one, or from `PATH`.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use clap::CommandFactory;

use super::CommandLine;
use crate::failure::Failure;
use crate::locate;

/// Executes the program in place of this one, with the same state directory. Returns only if the
/// program cannot be started.
pub(super) fn run(words: &[OsString], state: Option<&Path>) -> Failure {
    let Some((name, arguments)) = words.split_first() else {
        return Failure::usage("no command was given");
    };
    let mut program = OsString::from("toroid-");
    program.push(name);
    let found = locate::program(&program).unwrap_or_else(|| program.clone().into());
    let mut command = Command::new(found);
    command.args(arguments);
    if let Some(state) = state {
        command.env("TOROID_STATE", state);
    }
    let error = command.exec();
    let name = name.to_string_lossy();
    let meant = nearest_command(&name);
    let meant = meant.map_or_else(String::new, |meant| format!("did you mean {meant}? or "));
    Failure::usage(&match error.kind() {
        ErrorKind::NotFound => format!(
            "there is no command {name}, and no program {}; {meant}see `toroid --help`",
            program.display()
        ),
        _ => format!(
            "there is no command {name}, and {} cannot be started: {error}; {meant}see `toroid --help`",
            program.display()
        ),
    })
}

/// The command most similar to a mistyped name, if any is similar.
fn nearest_command(name: &str) -> Option<String> {
    let commands = CommandLine::command();
    let like = |other: &str| strsim::jaro_winkler(name, other);
    let close = commands
        .get_subcommands()
        .map(|command| command.get_name().to_owned())
        .filter(|other| like(other) > 0.8);
    close.max_by(|a, b| like(a).total_cmp(&like(b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_command_is_recognized() {
        assert_eq!(nearest_command("domian").as_deref(), Some("domain"));
        assert_eq!(nearest_command("statsu").as_deref(), Some("status"));
        assert_eq!(nearest_command("frobnicate"), None);
    }
}
