//! Changes of a value, as clients ask for them, and their results.

use super::layout::Location;

/// On which condition a value is stored, and what becomes of the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In any case.
    Set,
    /// If there is none.
    Add,
    /// If there is one.
    Replace,
    /// If there is one, behind it.
    Append,
    /// If there is one, before it.
    Prepend,
    /// If there is one, and its cas is the one given.
    Compare,
}

/// A value to be stored, but for its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change<'a> {
    /// On which condition.
    pub mode: Mode,
    /// Under which key.
    pub key: &'a [u8],
    /// The client's; those of the value before remain when it is only added to.
    pub flags: u32,
    /// See [`Store::deadline`]; that of the value before remains when it is only added to.
    pub exptime: i64,
    /// The cas that the value before must have, with [`Mode::Compare`], and with
    /// [`Mode::Append`] and [`Mode::Prepend`] unless it is 0.
    pub cas: u64,
    /// With [`Mode::Compare`], an older cas will do: the value is then stored as a stale one.
    pub or_stale: bool,
    /// The key came in base64.
    pub binary_key: bool,
}

impl<'a> Change<'a> {
    /// Stored in any case, without flags, and for ever.
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

/// What became of a value to be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// It is there.
    Stored {
        /// Where.
        location: Location,
        /// Its number.
        cas: u64,
    },
    /// There is one already, or none.
    NotStored,
    /// The value before has another cas.
    Exists,
    /// There is none whose cas could be compared.
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
