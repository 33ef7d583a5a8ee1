//! Texts of errors.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::{Result, anyhow};

/// The error and its causes, from the outermost one, joined by colons. A cause whose text already
/// ends the text before it is left out: some errors display their source.
pub fn with_causes(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.ends_with(&cause) {
            text += &format!(": {cause}");
        }
    }
    text
}

/// Runs code; a panic is an error with its message. Nothing that the code changed is used afterwards.
pub fn without_panic<T>(what: &str, run: impl FnOnce() -> Result<T>) -> Result<T> {
    let went = catch_unwind(AssertUnwindSafe(run));
    went.unwrap_or_else(|panic| Err(anyhow!("{what} panicked: {}", of_panic(&*panic))))
}

/// The message of a panic.
pub fn of_panic(panic: &(dyn Any + Send)) -> &str {
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    let text = owned.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("without a message")
}

#[cfg(test)]
mod tests {
    use std::io;

    use anyhow::Context;

    use super::*;
    use crate::cluster::system;

    fn reset() -> io::Error {
        io::ErrorKind::ConnectionReset.into()
    }

    #[test]
    fn every_cause_follows_its_effect() {
        let error = Err::<(), _>(reset())
            .context("cannot send")
            .context("round 3");
        let error = error.unwrap_err();
        assert_eq!(
            with_causes(&error),
            "round 3: cannot send: connection reset"
        );
    }

    #[test]
    fn no_cause_is_there_twice() {
        let error = anyhow::Error::from(system("read a file")(reset())).context("round 3");
        let text = with_causes(&error);
        assert_eq!(text, "round 3: cannot read a file: connection reset");
    }
}
