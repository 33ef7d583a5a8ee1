//! Completion statuses and the errors that they stand for.

use ibverbs_sys::{self as ffi, ibv_wc_status as codes};

use crate::error::OpError;
use crate::key::Access;

/// Status of a completion: a value of `enum ibv_wc_status`, or one of a newer device.
pub(super) fn status_of(completion: &ffi::ibv_wc) -> u32 {
    completion.error().map_or(0, |(status, _)| status)
}

/// Error of a failed operation that needs the right `needed`.
///
/// Bounds and rights were checked before posting, by the owner's parameters. So a refused key is
/// invalid or no longer valid, and a refused request means that the peer's queue pair lacks the
/// right.
pub(super) fn operation_error(status: u32, needed: Access) -> OpError {
    match status {
        codes::IBV_WC_WR_FLUSH_ERR => OpError::Flushed,
        codes::IBV_WC_REM_INV_REQ_ERR => OpError::MissingRight { needed },
        codes::IBV_WC_REM_ACCESS_ERR => OpError::WrongKey,
        codes::IBV_WC_RETRY_EXC_ERR => OpError::PeerDead,
        status => OpError::Device { status },
    }
}

/// Counters of a queue pair, for tests and measurements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Posts of one or more requests.
    pub doorbells: u64,
    /// Requests posted.
    pub requests: u64,
    /// Requests posted with a completion.
    pub signalled: u64,
    /// Requests posted with inline data.
    pub inline: u64,
    /// Sleeps, and preparations to sleep.
    pub sleeps: u64,
    /// Look-ups of a local key: the memory was not that of the last operation.
    pub lookups: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_an_error() {
        let error = |status| operation_error(status, Access::REMOTE_READ);
        assert_eq!(error(5), OpError::Flushed);
        assert_eq!(
            error(9),
            OpError::MissingRight {
                needed: Access::REMOTE_READ
            }
        );
        assert_eq!(error(10), OpError::WrongKey);
        assert_eq!(error(12), OpError::PeerDead);
        for status in [1, 4, 11, 13, 23, 24, u32::MAX] {
            assert_eq!(error(status), OpError::Device { status });
        }
    }
}
