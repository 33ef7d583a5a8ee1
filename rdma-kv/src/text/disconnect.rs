//! Disconnections by the server, and the log line about the binary protocol.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// First byte of every request of memcached's binary protocol. No command of the text protocol begins with it.
pub(crate) const BINARY_REQUEST: u8 = 0x80;

/// Least time between two log lines about binary clients.
const TOLD_AGAIN: Duration = Duration::from_secs(60);

/// Remedy for a client that begins in the binary protocol.
pub(crate) const BINARY_REMEDY: &str = "a client began in memcached's binary protocol, which is not \
     supported, and was disconnected: configure it for the text protocol (libmemcached: \
     MEMCACHED_BEHAVIOR_BINARY_PROTOCOL=0; its tools: no --binary; spymemcached: \
     ConnectionFactoryBuilder.Protocol.TEXT; bmemcached: use pymemcache)";

/// Reason for which the server disconnects a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DisconnectReason {
    /// The first request is one of the binary protocol.
    Binary,
    /// The connection was idle for the idle time-out.
    Idle,
}

/// Time of the last log line about a binary client.
#[derive(Debug, Default)]
pub(crate) struct LogThrottle(Mutex<Option<Instant>>);

/// State of this process, which has one log.
static TOLD: LogThrottle = LogThrottle(Mutex::new(None));

/// Logs the remedy for a binary client, at most once a minute.
pub(crate) fn warn_of_binary() {
    if TOLD.is_due(Instant::now()) {
        tracing::warn!("{BINARY_REMEDY}");
    }
}

impl LogThrottle {
    /// Whether a log line is due at `now`; counts as logged then.
    fn is_due(&self, now: Instant) -> bool {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = told.is_none_or(|told| now - told >= TOLD_AGAIN);
        if is_due {
            *told = Some(now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remedy_is_logged_at_most_once_a_minute() {
        let (told, start) = (LogThrottle::default(), Instant::now());
        let seconds = [0, 1, 59, 60, 61, 119, 120];
        let due = seconds.map(|second| told.is_due(start + Duration::from_secs(second)));
        assert_eq!(due, [true, false, false, true, false, false, true]);
    }
}
