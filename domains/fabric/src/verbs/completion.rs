//! What a device says of an operation, and what it means to who posted it.

use ibverbs_sys as ffi;

use crate::error::OpError;
use crate::key::Access;

/// What became of a request, a value of `enum ibv_wc_status` or one that nobody has heard of.
pub(super) fn status_of(completion: &ffi::ibv_wc) -> u32 {
    completion.error().map_or(0, |(status, _)| status)
}

/// Values of `enum ibv_wc_status`.
mod status {
    pub(super) const FLUSHED: u32 = 5;
    pub(super) const INVALID_REQUEST: u32 = 9;
    pub(super) const ACCESS: u32 = 10;
    pub(super) const RETRIES_EXCEEDED: u32 = 12;
}

/// Why an operation failed that needs the right `needed`.
///
/// Bounds and rights were checked before, by what the owner said; so a key that is refused is not
/// valid, or not any more. A peer that does not let its queue pair be used so is the only other
/// reason to refuse the request.
pub(super) fn operation_error(status: u32, needed: Access) -> OpError {
    match status {
        status::FLUSHED => OpError::Flushed,
        status::INVALID_REQUEST => OpError::MissingRight { needed },
        status::ACCESS => OpError::WrongKey,
        status::RETRIES_EXCEEDED => OpError::PeerDead,
        status => OpError::Device { status },
    }
}

/// What a queue pair has done, for tests and measurements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Times that requests were handed to the device.
    pub doorbells: u64,
    /// Requests handed over.
    pub requests: u64,
    /// Those of them whose end the device was asked to tell.
    pub signalled: u64,
    /// Those of them that carried their bytes with them.
    pub inline: u64,
    /// Times that it slept, or prepared to.
    pub sleeps: u64,
    /// Times that the key of local memory had to be looked up, because it was not that of the last
    /// operation.
    pub lookups: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_is_a_value() {
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
