//! Signals that end a run without a cluster.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use nix::sys::signal::{SigSet, Signal};
use signal_hook::flag;

use crate::cluster::ClusterError;

/// Signals that end this process by default.
const ENDING: [Signal; 4] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
];

/// The last signal that ends the run, so that files and peers learn of its end.
#[derive(Clone, Debug)]
pub struct Signals(Arc<AtomicUsize>);

impl Signals {
    /// Takes over the signals that would end this process.
    ///
    /// # Errors
    /// The system's.
    pub fn catch() -> io::Result<Self> {
        let last = Arc::new(AtomicUsize::new(0));
        let again = Arc::new(AtomicBool::new(false));
        // One that arrives between two registrations would be lost.
        let all: SigSet = ENDING.into_iter().collect();
        all.thread_block()?;
        let registered = ENDING.map(|signal| register(signal as i32, &last, &again));
        all.thread_unblock()?;
        for result in registered {
            result?;
        }
        Ok(Signals(last))
    }

    /// No signals.
    #[cfg(test)]
    pub fn none() -> Self {
        Signals(Arc::default())
    }

    /// Whether a signal has arrived.
    pub fn arrived(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    /// # Errors
    /// [`ClusterError::Interrupted`] after a signal.
    pub fn check(&self) -> Result<(), ClusterError> {
        match self.0.load(Ordering::Relaxed) {
            0 => Ok(()),
            signal => Err(ClusterError::Interrupted(signal as i32)),
        }
    }
}

/// Keeps a signal as the last one. A second signal ends the process at once, as by default.
fn register(signal: i32, last: &Arc<AtomicUsize>, again: &Arc<AtomicBool>) -> io::Result<()> {
    flag::register_conditional_default(signal, Arc::clone(again))?;
    flag::register(signal, Arc::clone(again))?;
    flag::register_usize(signal, Arc::clone(last), signal as usize)?;
    Ok(())
}
