//! Copies of few bytes, whose 8-byte words must be read and written whole. Messages are not aligned,
//! so the bytes pass through an aligned buffer.

use crate::error::OpError;

/// Transfers of up to this many bytes are copied by words, see [`crate::Endpoint`].
const LINE: usize = 64;

#[repr(align(8))]
struct Line([u8; LINE]);

/// Fills `into` with the bytes that `read` copies.
pub(super) fn read_whole(
    into: &mut [u8],
    read: impl FnOnce(&mut [u8]) -> Result<(), OpError>,
) -> Result<(), OpError> {
    let mut line = Line([0; LINE]);
    match line.0.get_mut(..into.len()) {
        Some(words) => {
            read(words)?;
            into.copy_from_slice(words);
            Ok(())
        }
        None => read(into),
    }
}

/// Hands `from` to `write`.
pub(super) fn write_whole(
    from: &[u8],
    write: impl FnOnce(&[u8]) -> Result<(), OpError>,
) -> Result<(), OpError> {
    let mut line = Line([0; LINE]);
    match line.0.get_mut(..from.len()) {
        Some(words) => {
            words.copy_from_slice(from);
            write(words)
        }
        None => write(from),
    }
}
