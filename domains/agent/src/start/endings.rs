//! Reasons to end, or to start again: signals and the end of the liveness socket.

use std::io;
use std::sync::mpsc::Sender;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use super::{again, spawn};
use crate::core::host::Ending;
use crate::error::{AgentError, during};

/// Reports signals from now on.
pub(super) fn catch_signals(ending: &Sender<Ending>) -> Result<(), AgentError> {
    let failed = during("catch signals");
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGUSR1]).map_err(failed)?;
    again::take_signals().map_err(failed)?;
    let ending = ending.clone();
    spawn(move || {
        for signal in signals.forever() {
            let told = match signal {
                SIGUSR1 => Ending::Again,
                _ => Ending::Told,
            };
            // This fails only when the agent is ending anyway.
            let _ = ending.send(told);
        }
    })
}

/// Reports the end of standard input, if that is the liveness socket.
pub(super) fn watch_lifeline(ending: &Sender<Ending>) -> Result<(), AgentError> {
    let ending = ending.clone();
    spawn(move || {
        // Only its end is of interest.
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        let _ = ending.send(Ending::Told);
    })
}
