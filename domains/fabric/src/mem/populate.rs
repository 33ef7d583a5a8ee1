//! Population: pages of a mapping are allocated before their first access.

use std::ops::Range;

use super::mapping::{Mapping, PAGE};

/// Allocates and maps all pages with a byte of `range`, which lies within the mapping. Returns
/// whether all are populated; the first access populates the others.
///
/// An adopted buffer is populated only if it begins with a page. Linux before 5.14 populates
/// nothing.
pub(crate) fn populate(mapping: &Mapping, range: Range<usize>, writable: bool) -> bool {
    /// `MADV_POPULATE_READ` and `MADV_POPULATE_WRITE`, which not every C library has.
    const POPULATE: [libc::c_int; 2] = [22, 23];
    let start = range.start / PAGE * PAGE;
    let len = range.end.next_multiple_of(PAGE) - start;
    let address = (mapping.start() + start) as *mut libc::c_void;
    // SAFETY: a part of the mapping, which the borrow keeps alive. The advice changes no byte.
    unsafe { libc::madvise(address, len, POPULATE[usize::from(writable)]) == 0 }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::mem::memfd::create_memory;

    #[test]
    fn all_pages_of_a_range_and_no_others_are_populated() {
        let len = 8 * PAGE;
        let memory = create_memory(len as u64).unwrap();
        let mapping = Mapping::of_file(&memory, len, true).unwrap();
        assert_eq!(mapping.present_pages().unwrap(), 0);
        assert!(populate(&mapping, PAGE + 1..2 * PAGE, true));
        assert_eq!(mapping.present_pages().unwrap(), 1);
        assert!(populate(&mapping, 2 * PAGE - 1..3 * PAGE + 1, true));
        assert_eq!(mapping.present_pages().unwrap(), 3);
        assert!(populate(&mapping, 0..len, true));
        assert_eq!(mapping.present_pages().unwrap(), 8);
    }
}
