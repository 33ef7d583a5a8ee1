//! Items in their region: reservations, headers and keys.

use toroid_fabric::{OpError, Region};

use super::segments::room_of;
use crate::protocol::hash::hash;
use crate::protocol::layout::{ItemAddress, ItemHeader, Line, Location, MAX_KEY, Marks, UNIT};

/// Reserved room for an item.
#[derive(Debug)]
#[must_use = "commit or abandon it, or its memory is lost"]
pub struct Reservation {
    pub(super) address: ItemAddress,
    pub(super) generation: u64,
    pub(super) key_len: u16,
    pub(super) value_len: u32,
}

impl Reservation {
    /// Offset of the value in the items region.
    pub fn value_offset(&self) -> u64 {
        self.address.offset() + (ItemHeader::LEN as u64) + u64::from(self.key_len)
    }

    pub(super) fn len(&self) -> u32 {
        ItemHeader::LEN as u32 + u32::from(self.key_len) + self.value_len
    }

    pub(super) fn room(&self) -> u32 {
        room_of(self.len() as usize)
    }
}

/// Attributes of a new item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Flags that the client gave.
    pub flags: u32,
    /// Expiry by the store's clock; 0 is never. See
    /// [`Store::deadline`](super::Store::deadline).
    pub exptime: u32,
    /// Cas; the next number when `None`.
    pub cas: Option<u64>,
    /// Initial marks.
    pub marks: Marks,
}

/// A live item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// Hash of its key.
    pub hash: u64,
    /// Its header.
    pub header: ItemHeader,
    /// Its location.
    pub location: Location,
}

impl Item {
    pub(super) fn room(&self) -> u32 {
        room_of(self.header.item_len() as usize)
    }

    /// Offset of the value in the items region.
    pub fn value_offset(&self) -> u64 {
        let address = self.location.word.address();
        address.offset() + (ItemHeader::LEN as u64) + u64::from(self.header.key_len)
    }
}

pub(super) fn read_header(items: &Region, address: ItemAddress) -> Result<ItemHeader, OpError> {
    let mut line = Line::default();
    let bytes = &mut line.bytes_mut()[..ItemHeader::LEN];
    items.read(address.offset(), bytes)?;
    Ok(bytes
        .first_chunk()
        .map(ItemHeader::from_bytes)
        .unwrap_or_default())
}

pub(super) fn write_header(
    items: &Region,
    address: ItemAddress,
    header: &ItemHeader,
) -> Result<(), OpError> {
    let mut line = Line::default();
    let bytes = &mut line.bytes_mut()[..ItemHeader::LEN];
    bytes.copy_from_slice(&header.to_bytes());
    items.write(address.offset(), bytes)
}

/// Buffer for a key, aligned so that the fabric copies a short one word by word.
#[repr(align(8))]
pub(super) struct KeyCopy([u8; MAX_KEY.next_multiple_of(8)]);

impl Default for KeyCopy {
    fn default() -> Self {
        KeyCopy([0; MAX_KEY.next_multiple_of(8)])
    }
}

impl KeyCopy {
    /// Reads the key of the item at `address`, which has this header.
    pub(super) fn read(
        &mut self,
        items: &Region,
        address: ItemAddress,
        header: &ItemHeader,
    ) -> Result<&[u8], OpError> {
        let len = usize::from(header.key_len).min(MAX_KEY);
        let offset = address.offset() + ItemHeader::LEN as u64;
        // To the end of its last word, which belongs to the item.
        items.read(offset, &mut self.0[..len.next_multiple_of(8)])?;
        Ok(&self.0[..len])
    }
}

pub(super) fn hash_of(items: &Region, seed: u64, address: ItemAddress) -> Result<u64, OpError> {
    let header = read_header(items, address)?;
    Ok(hash(
        seed,
        KeyCopy::default().read(items, address, &header)?,
    ))
}

/// Address of the next item in the segment.
pub(super) fn behind(at: ItemAddress, header: &ItemHeader) -> ItemAddress {
    ItemAddress(at.0 + room_of(header.item_len() as usize) / UNIT as u32)
}
