//! Values that are read where they are: the borrower's side of [`crate::protocol::hazards`].

use std::array;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use toroid_fabric::mapped::full_fence;
use toroid_fabric::provider::RemoteRegion;
use toroid_fabric::{Mapped, OpError, Region};

use crate::protocol::hazards::{HAZARDS, RECALLED, hazard_offset, hazard_word};
use crate::protocol::layout::{ItemAddress, ItemHeader};

/// A value as it was when it was borrowed, in the server's memory; or a copy, where the server is
/// on another host.
///
/// Nothing was copied yet, and nothing is until it is read. Whatever becomes of the key, a read gives
/// the bytes that the value had, or an error. The memory is the server's again when the view is
/// dropped, so views are best held shortly: a client can have [`HAZARDS`] of them, and the server takes
/// them back if they keep more than a quarter of its memory from it. A view may outlive the
/// client that made it, but then it is taken back.
///
/// It gives no reference to the bytes: they are another process's, which is trusted to keep
/// its word, but not with our memory safety.
#[derive(Debug)]
pub struct View<R = RemoteRegion> {
    flags: u32,
    cas: u64,
    len: usize,
    bytes: Bytes<R>,
}

#[derive(Debug)]
enum Bytes<R> {
    /// In the items region, from `offset` on.
    Borrowed {
        hazard: HazardPointer<R>,
        offset: u64,
    },
    /// The server had to be asked.
    Copied(Vec<u8>),
}

/// Why a view cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ViewError {
    /// Caller: outside of the value; or the server is gone, or one of the two nodes has left the
    /// domain.
    #[error(transparent)]
    Operation(#[from] OpError),
    /// Server: it needed the memory, or the client has ended. Borrow it again.
    #[error("the server has taken back what was borrowed")]
    Recalled,
}

impl<R: Mapped> View<R> {
    /// A view of the item on `hazard pointer`, which has this header.
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

    /// The client's, given when the value was set.
    pub fn flags(&self) -> u32 {
        self.flags
    }

    /// Its number when it was borrowed: for [`crate::Client::compare_and_set`].
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
    /// [`ViewError`]; what is in `into` is then not specified.
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
                // After the bytes: see the module of the borrows.
                if hazard.is_recalled()? {
                    return Err(ViewError::Recalled);
                }
            }
        }
        Ok(())
    }

    /// Folds all bytes: gives them to `each`, in order and in blocks, with what has come of those
    /// before, which is `start` at first. In a process of this host most are not copied to memory, so of a large
    /// value this is quicker than to get and fold it.
    ///
    /// The blocks are known to be of the value only when this returns. Until then `each` may have got
    /// other bytes, and may get some twice, with a clone of what had come of those before, which is made
    /// every 64 KiB: so it should be small, share nothing with its clones, and be all that `each` changes.
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
                // After the bytes: see the module of the borrows.
                if hazard.is_recalled()? {
                    Err(ViewError::Recalled)
                } else {
                    Ok(all)
                }
            }
        }
    }

    /// A copy of all bytes.
    ///
    /// # Errors
    /// As [`View::read`].
    pub fn to_vec(&self) -> Result<Vec<u8>, ViewError> {
        let mut all = vec![0; self.len];
        self.read(0, &mut all)?;
        Ok(all)
    }
}

/// The hazard pointers of a client, from which it takes them one by one.
#[derive(Debug)]
pub(crate) struct HazardPool<R> {
    table: Arc<HazardTable<R>>,
    /// The last one that was taken: it is likely to be free again, and in a cache.
    last: usize,
}

/// What the hazard pointers of a client share.
#[derive(Debug)]
struct HazardTable<R> {
    region: Region,
    /// Where what is borrowed is. Here, as a handle for each view would be counted in each borrow.
    items: R,
    /// Those in use. Only the pool sets them, and only who has a hazard pointer clears its own.
    taken: [AtomicBool; HAZARDS as usize],
}

impl<R> HazardPool<R> {
    /// HazardTable for what is borrowed of `items`, on a zeroed region of [`crate::protocol::hazards::HAZARDS_LEN`] bytes
    /// that the server knows.
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

    /// One that is not in use.
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

    /// Whether the server has forgotten them.
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
    /// Says that the item at `address` is to stay as it is. It does if its slot, looked at
    /// afterwards, leads to it.
    pub(crate) fn write(&mut self, address: ItemAddress) -> Result<(), OpError> {
        self.address = address;
        let offset = hazard_offset(self.number);
        self.table.region.store(offset, hazard_word(address))?;
        // Pairs with the server's, between its changes of slots and its look at hazard pointers.
        full_fence();
        Ok(())
    }

    /// Whether the server has forgotten it.
    pub(crate) fn is_recalled(&self) -> Result<bool, OpError> {
        self.table.are_recalled()
    }
}

/// The server may use the memory again.
impl<R> Drop for HazardPointer<R> {
    fn drop(&mut self) {
        // Where it cannot be written, the server reads no hazard pointers either. The store is a Release: it is seen
        // after what was read of the item.
        let _ = self.table.region.store(hazard_offset(self.number), 0);
        // Release: who takes it next writes after this.
        self.table.taken[self.number as usize].store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::hazards::HAZARDS_LEN;

    #[test]
    fn hazards_are_few_and_used_again() {
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
