//! Borrowed values: clients read them in place, so their memory must not change.
//!
//! This is reclamation by hazard pointers (Michael, IEEE TPDS 2004), across processes. A client that
//! borrows registers a region of *hazard pointers*, which the server may read and write:
//!
//! ```text
//!  0          8      64         72              576
//!  +----------+------+----------+-----+-----------+
//!  | recalled | zero | hazard 0 | ... | hazard 63 |
//!  +----------+------+----------+-----+-----------+
//! ```
//!
//! A hazard pointer is 0, or the address of an item plus 1. Only the client writes hazard pointers.
//! Only the server writes `recalled`.
//!
//! **To borrow**, the client writes the item's address to a hazard pointer, then reads the slot, then
//! the item's header and key. **To reuse memory**, the server clears or changes the slots that led
//! there, then reads all hazard pointers. Memory that a hazard pointer names is not reused. Both sides
//! have a full fence between the two steps. All these fences have one total order, and the side whose
//! fence is the second sees the store of the other: either the client sees that the slot has changed
//! and does not borrow, or the server sees the hazard pointer. So an item behind an unchanged slot stays
//! as it is, and the header and key that are read after the slot belong to that item.
//!
//! **To give back**, the client writes 0 to the hazard pointer with a Release store, which pairs with the
//! Acquire of the server's scan: the server sees the 0 after all reads of the client.
//!
//! **The server never waits for a client.** The hazard pointers of a client whose channel has ended are
//! dropped. At most a quarter of the segments wait for hazard pointers. Beyond that, or before a set is
//! refused for want of memory, the server drops the client whose hazard pointers hold the most segments.
//! Before it drops hazard pointers, the server writes `recalled`. The client reads that word after each
//! read of borrowed bytes. Bytes newer than the word come after the word: each read ends with an Acquire
//! fence, which pairs with the Release after the server's write. So such bytes are never returned.
//!
//! **Migration.** When a node leaves, the regions that it may have mapped move to fresh memory. For the
//! remaining nodes nothing changes. A write to the fresh memory waits until its old content is copied,
//! and copying begins when all remaining processes have switched, or are fenced. So a process that still
//! reads the old memory misses no write, and finds the borrowed bytes in either memory. A hazard pointer
//! that was written to the old memory is copied before the server's read of the fresh one returns, and so
//! is a slot. A fenced process neither borrows nor reads: each operation checks its fence last.
//!
//! **Revocation.** A client whose node leaves is fenced before any of its mapped pages is taken away, also
//! if it sleeps; its reads fail, and never return zeros. The server's process first switches the items to
//! fresh memory, and only then learns that the node has left. So the pages that the former member still
//! has mapped when its hazard pointers are dropped are never written again.

use toroid_fabric::Access;

use super::layout::{ItemAddress, LINE};

/// Values that a client can have borrowed at a time.
pub const HAZARDS: u32 = 64;

/// Bytes of a region of hazard pointers.
pub const HAZARDS_LEN: u64 = (1 + HAZARDS as u64 / HAZARDS_PER_LINE) * LINE as u64;

/// Offset of the word `recalled`: the server sets it before it drops the hazard pointers.
pub const RECALLED: u64 = 0;

/// Hazard pointers of a cache line.
pub const HAZARDS_PER_LINE: u64 = LINE as u64 / 8;

/// Offset of a hazard pointer in its region.
pub fn hazard_offset(number: u32) -> u64 {
    LINE as u64 + u64::from(number) * 8
}

/// Content of a hazard pointer for the item at `address`.
pub fn hazard_word(address: ItemAddress) -> u64 {
    u64::from(address.0) + 1
}

/// Access of the server to hazard pointers: it reads them, and writes [`RECALLED`].
pub const HAZARDS_ACCESS: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);
