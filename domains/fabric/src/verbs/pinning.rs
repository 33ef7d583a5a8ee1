//! Preparation of memory that a device pins.

use std::fs::File;
use std::io;

use crate::mem::mapping::Mapping;
use crate::mem::populate;

/// Bytes whose pages are populated at a time.
const PIECE: usize = 4 << 20;

/// Populates all pages of a mapping, while `goes_on` returns true: pinning populated pages takes a
/// fraction of the time. Failures are left to the registration, which may fail on the same pages.
pub(super) fn populate(mapping: &Mapping, writable: bool, goes_on: impl Fn() -> bool) {
    for piece in (0..mapping.pages()).step_by(PIECE) {
        let end = mapping.pages().min(piece + PIECE);
        if !populate::populate(mapping, piece..end, writable) || !goes_on() {
            return;
        }
    }
}

/// A second, writable mapping of the file behind a mapping.
///
/// # Errors
/// The system's: CAP_SYS_ADMIN (`/proc/self/map_files`) and the right to write the file are needed.
pub(super) fn map_again_writable(mapping: &Mapping) -> io::Result<Mapping> {
    let (start, end) = (mapping.start(), mapping.start() + mapping.pages());
    let path = format!("/proc/self/map_files/{start:x}-{end:x}");
    let file = File::options().read(true).write(true).open(path)?;
    Mapping::of_file(&file, mapping.len(), true)
}
