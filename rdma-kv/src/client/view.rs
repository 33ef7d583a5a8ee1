//! Views: borrowed values, which are read in place. See [`crate::protocol::hazards`].

use std::array;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use toroid_fabric::mapped::full_fence;
use toroid_fabric::provider::RemoteRegion;
use toroid_fabric::{Mapped, OpError, Region};

use crate::protocol::hazards::{HAZARDS, RECALLED, hazard_offset, hazard_word};
use crate::protocol::layout::{ItemAddress, ItemHeader};

/// A value as it was when it was borrowed, in the server's memory; or a copy, if the server is on
/// another host or the link to it is emulated.
///
/// Borrowing copies nothing, and a read copies only its range. Even if the key changes, a read
/// returns the bytes of the borrowed value, or an error. The server reuses the memory after the
/// view is dropped, so hold views briefly: a client can have 64 of them, and the server recalls
/// them when they keep more than a quarter of its memory. A view that outlives its client is
/// recalled.
///
/// A view gives no reference to the bytes: another process can write them, and is trusted with the
/// values but not with memory safety.
#[derive(Debug)]
pub struct View<R = RemoteRegion> {
    flags: u32,
    cas: u64,
    len: usize,
    bytes: Bytes<R>,
}

#[derive(Debug)]
enum Bytes<R> {
    /// In the items region at `offset`.
    Borrowed {
        hazard: HazardPointer<R>,
        offset: u64,
    },
    /// A copy.
    Copied(Vec<u8>),
}

/// Failure to read a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ViewError {
    /// Caller: the range exceeds the value. Or the server is gone, or one of the two nodes has
    /// left the domain.
    #[error(transparent)]
    Operation(#[from] OpError),
    /// Server: it needed the memory, or the client has ended. Borrow the value again.
    #[error("the server has taken back what was borrowed")]
    Recalled,
}

impl<R: Mapped> View<R> {
    /// A view of the item of a hazard pointer, which has this header.
    pub(crate) fn borrowed(hazard: HazardPointer<R>, header: &ItemHeader) -> Self {
        let head_len = ItemHeader::LEN as u64 + u64::from(header.key_len);
        let offset = hazard.address.offset() + head_len;
        View {
            flags: header.flags,
            cas: header.cas,
            len: header.value_len as usize,
            bytes: Bytes::Borrowed { hazard, offset },
        }
    }

    /// A view of a copy.
    pub(crate) fn copied(flags: u32, cas: u64, data: Vec<u8>) -> Self {
        View {
            flags,
            cas,
            len: data.len(),
            bytes: Bytes::Copied(data),
        }
    }

    /// Flags that were given when the value was set.
    pub fn flags(&self) -> u32 {
        self.flags
    }

    /// Cas when the value was borrowed: for [`crate::Client::compare_and_set`].
    pub fn cas(&self) -> u64 {
        self.cas
    }

    /// Bytes of the value.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the value has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies bytes at `offset` out of the value.
    ///
    /// # Errors
    /// [`ViewError`]; the content of `into` is then unspecified.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), ViewError> {
        let outside = OpError::OutOfBounds {
            offset: offset as u64,
            len: into.len() as u64,
            limit: self.len as u64,
        };
        let end = offset
            .checked_add(into.len())
            .filter(|end| *end <= self.len);
        let end = end.ok_or(outside)?;
        match &self.bytes {
            Bytes::Copied(data) => into.copy_from_slice(&data[offset..end]),
            Bytes::Borrowed {
                hazard,
                offset: start,
            } => {
                hazard.table.items.read(start + offset as u64, into)?;
                // After the bytes: see [`crate::protocol::hazards`].
                if hazard.is_recalled()? {
                    return Err(ViewError::Recalled);
                }
            }
        }
        Ok(())
    }

    /// Folds all bytes: calls `each` with the accumulator, which begins as `start`, and one block of bytes
    /// after the other. On the server's host most blocks are not copied to memory, so for a large value
    /// this is faster than a get.
    ///
    /// The blocks are known to belong to the value only when this returns. Until then `each` may get other
    /// bytes, or a block twice, with a clone of the accumulator from before. The accumulator is cloned every
    /// 64 KiB: it should be small, share nothing with its clones, and be all that `each` changes.
    ///
    /// ```no_run
    /// # fn of(view: &toroid_kv::View) -> Result<(), toroid_kv::ViewError> {
    /// let zeros = view.fold(0, |zeros, block| *zeros += block.iter().filter(|byte| **byte == 0).count())?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ViewError`].
    pub fn fold<A: Clone>(&self, start: A, each: impl Fn(&mut A, &[u8])) -> Result<A, ViewError> {
        match &self.bytes {
            Bytes::Copied(data) => {
                let mut all = start;
                each(&mut all, data);
                Ok(all)
            }
            Bytes::Borrowed { hazard, offset } => {
                let items = &hazard.table.items;
                let all = items.fold(*offset, self.len as u64, start, each)?;
                // After the bytes: see [`crate::protocol::hazards`].
                if hazard.is_recalled()? {
                    Err(ViewError::Recalled)
                } else {
                    Ok(all)
                }
            }
        }
    }

    /// Copies all bytes.
    ///
    /// # Errors
    /// As [`View::read`].
    pub fn to_vec(&self) -> Result<Vec<u8>, ViewError> {
        let mut all = vec![0; self.len];
        self.read(0, &mut all)?;
        Ok(all)
    }
}

/// Pool of a client's hazard pointers.
#[derive(Debug)]
pub(crate) struct HazardPool<R> {
    table: Arc<HazardTable<R>>,
    /// The last one taken: likely to be free again, and in a cache.
    last: usize,
}

/// State that the hazard pointers of a client share.
#[derive(Debug)]
struct HazardTable<R> {
    region: Region,
    /// The items. Here, as a handle in each view would be counted in each borrow.
    items: R,
    /// Hazard pointers in use. Only the pool sets an element, and only the owner clears it.
    taken: [AtomicBool; HAZARDS as usize],
}

impl<R> HazardPool<R> {
    /// A pool for values of `items`, on a zeroed region of
    /// [`crate::protocol::hazards::HAZARDS_LEN`] bytes that is registered at the server.
    pub(crate) fn new(region: Region, items: R) -> Self {
        let table = HazardTable {
            region,
            items,
            taken: array::from_fn(|_| AtomicBool::new(false)),
        };
        HazardPool {
            table: Arc::new(table),
            last: 0,
        }
    }

    /// Takes a free hazard pointer, if there is one.
    pub(crate) fn take(&mut self) -> Option<HazardPointer<R>> {
        let taken = &self.table.taken;
        // Acquire: pairs with the Release in the hazard pointer's drop.
        let is_free = |number: &usize| !taken[*number].load(Ordering::Acquire);
        let mut numbers = (self.last..taken.len()).chain(0..self.last);
        self.last = numbers.find(is_free)?;
        taken[self.last].store(true, Ordering::Relaxed);
        Some(HazardPointer {
            table: Arc::clone(&self.table),
            number: self.last as u32,
            address: ItemAddress(0),
        })
    }

    /// Whether the server has dropped them.
    pub(crate) fn is_recalled(&self) -> Result<bool, OpError> {
        self.table.are_recalled()
    }
}

impl<R> HazardTable<R> {
    fn are_recalled(&self) -> Result<bool, OpError> {
        Ok(self.region.load(RECALLED)? != 0)
    }
}

/// One hazard pointer.
#[derive(Debug)]
pub(crate) struct HazardPointer<R> {
    table: Arc<HazardTable<R>>,
    number: u32,
    address: ItemAddress,
}

impl<R> HazardPointer<R> {
    /// Protects the item at `address`: it stays as it is if its slot, read afterwards, leads to
    /// it.
    pub(crate) fn write(&mut self, address: ItemAddress) -> Result<(), OpError> {
        self.address = address;
        let offset = hazard_offset(self.number);
        self.table.region.store(offset, hazard_word(address))?;
        // Pairs with the fence of the server between its changes of slots and its scan.
        full_fence();
        Ok(())
    }

    /// Whether the server has dropped it.
    pub(crate) fn is_recalled(&self) -> Result<bool, OpError> {
        self.table.are_recalled()
    }
}

/// Lets the server reuse the memory.
impl<R> Drop for HazardPointer<R> {
    fn drop(&mut self) {
        // If it cannot be written, the server cannot read it either. The store is a
        // Release: the server sees it after all reads of the item.
        let _ = self.table.region.store(hazard_offset(self.number), 0);
        // Release: the next owner writes after this.
        self.table.taken[self.number as usize].store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::hazards::HAZARDS_LEN;

    #[test]
    fn hazard_pointers_are_bounded_and_reused() {
        let region = Region::local(HAZARDS_LEN as usize).unwrap();
        let mut pool = HazardPool::new(region.clone(), ());
        let mut taken: Vec<HazardPointer<()>> =
            (0..HAZARDS).map(|_| pool.take().unwrap()).collect();
        assert!(pool.take().is_none());
        taken[40].write(ItemAddress(9)).unwrap();
        assert_eq!(region.load(hazard_offset(40)), Ok(10));
        drop(taken.remove(40));
        assert_eq!(region.load(hazard_offset(40)), Ok(0));
        assert_eq!(pool.take().unwrap().number, 40);
        assert_eq!(pool.take().unwrap().number, 40);
    }
}
