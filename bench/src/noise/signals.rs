//! Signals that end a run without a cluster.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::flag;

use crate::cluster::ClusterError;

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
        for signal in [SIGINT, SIGTERM, SIGHUP, SIGQUIT] {
            // A second signal ends the process at once, as by default.
            let armed = Arc::clone(&again);
            flag::register_conditional_default(signal, Arc::clone(&armed))?;
            flag::register(signal, armed)?;
            flag::register_usize(signal, Arc::clone(&last), signal as usize)?;
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
