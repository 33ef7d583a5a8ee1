//! Changes of a value, as clients ask for them, and their results.

use super::layout::Location;

/// Condition of a change, and its effect on the old value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Stores unconditionally.
    Set,
    /// Stores if the key is absent.
    Add,
    /// Stores if the key is present.
    Replace,
    /// Appends to the value, if the key is present.
    Append,
    /// Prepends to the value, if the key is present.
    Prepend,
    /// Stores if the key is present with the given cas.
    Compare,
}

/// A change of a value, without the bytes of the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change<'a> {
    /// Condition and effect.
    pub mode: Mode,
    /// Key: 1 to 250 bytes.
    pub key: &'a [u8],
    /// Flags that the client gives. [`Mode::Append`] and [`Mode::Prepend`] keep the old ones.
    pub flags: u32,
    /// Memcached's expiry: 0 never, negative at once, up to 30 days (in seconds) from now, else
    /// Unix time. [`Mode::Append`] and [`Mode::Prepend`] keep the old one.
    pub exptime: i64,
    /// Cas that the old value must have with [`Mode::Compare`], and with [`Mode::Append`] and
    /// [`Mode::Prepend`] unless it is 0.
    pub cas: u64,
    /// With [`Mode::Compare`]: an older cas is accepted, and the value is stored as stale.
    pub or_stale: bool,
    /// The client wrote the key in base64.
    pub binary_key: bool,
}

impl<'a> Change<'a> {
    /// An unconditional change without flags and expiry.
    pub fn set(key: &'a [u8], binary_key: bool) -> Self {
        Change {
            mode: Mode::Set,
            key,
            flags: 0,
            exptime: 0,
            cas: 0,
            or_stale: false,
            binary_key,
        }
    }
}

/// Result of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// The value is stored.
    Stored {
        /// Location of its item.
        location: Location,
        /// Its cas.
        cas: u64,
    },
    /// The condition does not hold: the key is present, or absent.
    NotStored,
    /// The old value has another cas.
    Exists,
    /// The key is absent, so there is no cas to compare.
    NotFound,
}

/// Change of a number by `incr` or `decr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delta {
    /// Wraps around at 2^64.
    Add(u64),
    /// Saturates at 0.
    Subtract(u64),
}
