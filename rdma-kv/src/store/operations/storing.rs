//! Stores of values, on a condition.
//!
//! A store has three steps: reserve room, copy the value there, publish. A large value, or one that
//! is fetched, is copied without the lock. The condition is then evaluated at the publication, so
//! the whole operation takes effect at that moment.

use toroid_fabric::{OpError, Region};

use crate::protocol::change::{Change, Mode, Stored};
use crate::protocol::layout::Marks;
use crate::store::shared::Shared;
use crate::store::{Attributes, Item, Reservation, SetError, Store};

/// Values up to this many bytes are copied under the lock, which is then taken once.
const SMALL: usize = 4096;

/// Stores a value.
///
/// # Errors
/// `SetError`; a failed [`Mode::Set`] also removes the old value, as its client must not find it.
pub fn store(shared: &Shared, change: &Change<'_>, value: &[u8]) -> Result<Stored, SetError> {
    if value.len() <= SMALL {
        let stored = shared.with(|store| store_at_once(store, change, value));
        return clean_up(shared, change, stored);
    }
    store_with(shared, change, value.len(), |items, offset| {
        Ok(items.write(offset, value)?)
    })
}

/// Stores a value of `value_len` bytes that `fill` copies to an offset in the items region, without
/// the lock.
///
/// # Errors
/// As [`store`], and the error of `fill`.
pub fn store_with(
    shared: &Shared,
    change: &Change<'_>,
    value_len: usize,
    fill: impl FnOnce(&Region, u64) -> Result<(), SetError>,
) -> Result<Stored, SetError> {
    let (room, items) = shared.with(|store| {
        let room = Room::find(store, change, value_len);
        (room, store.items().clone())
    });
    let stored = room.and_then(|room| match room {
        #[cfg(feature = "unsafe-variants")]
        Ok(room) if crate::variants::is_left_out("publish-order") => {
            let value_at = room.value_at();
            let stored = shared.with(|store| publish(store, room, change, Ok(())));
            fill(&items, value_at).and(stored)
        }
        Ok(room) => {
            let filled = fill(&items, room.value_at());
            shared.with(|store| publish(store, room, change, filled))
        }
        Err(refused) => Ok(refused),
    });
    clean_up(shared, change, stored)
}

/// A failed set must not leave a value that its client believes replaced.
fn clean_up(
    shared: &Shared,
    change: &Change<'_>,
    stored: Result<Stored, SetError>,
) -> Result<Stored, SetError> {
    if stored.is_err() && change.mode == Mode::Set {
        shared.delete(change.key)?;
    }
    stored
}

/// Stores a small value.
///
/// # Errors
/// `SetError`; the old value then remains.
pub fn store_at_once(
    store: &mut Store,
    change: &Change<'_>,
    value: &[u8],
) -> Result<Stored, SetError> {
    let room = match Room::find(store, change, value.len())? {
        Ok(room) => room,
        Err(refused) => return Ok(refused),
    };
    #[cfg(feature = "unsafe-variants")]
    if crate::variants::is_left_out("publish-order") {
        let (items, value_at) = (store.items().clone(), room.value_at());
        let stored = publish(store, room, change, Ok(()))?;
        items.write(value_at, value)?;
        return Ok(stored);
    }
    let filled = store.items().write(room.value_at(), value);
    publish(store, room, change, filled.map_err(SetError::from))
}

/// Room for a value, and for the old value that it extends.
struct Room {
    reservation: Reservation,
    mode: Mode,
    value_len: usize,
    /// Bytes of the old value.
    old_len: usize,
}

impl Room {
    /// Reserves room, or returns the refusal.
    fn find(
        store: &mut Store,
        change: &Change<'_>,
        value_len: usize,
    ) -> Result<Result<Self, Stored>, SetError> {
        let Change { mode, key, .. } = *change;
        // Independent of the old value.
        if !store.limits().admit(key.len(), change.flags, value_len) {
            return Err(SetError::TooLarge);
        }
        let (flags, old_len) = match mode {
            Mode::Append | Mode::Prepend => match extended(change, store.find(key)?) {
                Ok(old) => (old.header.flags, old.header.value_len as usize),
                Err(refused) => return Ok(Err(refused)),
            },
            _ => (change.flags, 0),
        };
        match store.reserve(key, flags, old_len + value_len) {
            Ok(reservation) => Ok(Ok(Room {
                reservation,
                mode,
                value_len,
                old_len,
            })),
            // As with memcached.
            Err(SetError::TooLarge | SetError::OutOfMemory) if mode.extends() => {
                Ok(Err(Stored::NotStored))
            }
            Err(error) => Err(error),
        }
    }

    /// Offset of the value in the items region.
    fn value_at(&self) -> u64 {
        let before = match self.mode {
            Mode::Append => self.old_len,
            _ => 0,
        };
        self.reservation.value_offset() + before as u64
    }

    /// Offset of the old value.
    fn old_at(&self) -> u64 {
        let before = match self.mode {
            Mode::Prepend => self.value_len,
            _ => 0,
        };
        self.reservation.value_offset() + before as u64
    }
}

impl Mode {
    /// Whether the value extends the old one.
    fn extends(self) -> bool {
        matches!(self, Mode::Append | Mode::Prepend)
    }
}

/// Publishes a value in its room if the condition holds; otherwise returns the room.
fn publish(
    store: &mut Store,
    mut room: Room,
    change: &Change<'_>,
    filled: Result<(), SetError>,
) -> Result<Stored, SetError> {
    let admitted = filled.and_then(|()| {
        if change.mode.extends() {
            extend(store, &mut room, change)
        } else {
            Ok(admit(store, change)?)
        }
    });
    match admitted {
        Ok(Ok(attributes)) => commit(store, room.reservation, change.key, attributes),
        Ok(Err(refused)) => {
            store.abandon(room.reservation);
            Ok(refused)
        }
        Err(error) => {
            store.abandon(room.reservation);
            Err(error)
        }
    }
}

/// Attributes of the value, or the refusal.
fn admit(store: &mut Store, change: &Change<'_>) -> Result<Result<Attributes, Stored>, OpError> {
    let mut attributes = Attributes {
        flags: change.flags,
        exptime: store.deadline(change.exptime),
        marks: binary(change.binary_key),
        ..Attributes::default()
    };
    if change.mode == Mode::Set {
        return Ok(Ok(attributes));
    }
    let old = store.find(change.key)?;
    Ok(match (change.mode, old) {
        (Mode::Compare, None) => Err(Stored::NotFound),
        // No item has cas 0.
        (Mode::Compare, Some(old)) if change.cas == old.header.cas && change.cas != 0 => {
            Ok(attributes)
        }
        (Mode::Compare, Some(old))
            if change.or_stale && (1..old.header.cas).contains(&change.cas) =>
        {
            attributes.exptime = old.header.exptime;
            attributes.marks |= Marks::STALE | old.header.marks & Marks::WON;
            Ok(attributes)
        }
        (Mode::Compare, Some(_)) => Err(Stored::Exists),
        (Mode::Add, None) | (Mode::Replace, Some(_)) => Ok(attributes),
        _ => Err(Stored::NotStored),
    })
}

/// The item to extend, or the refusal.
fn extended(change: &Change<'_>, old: Option<Item>) -> Result<Item, Stored> {
    match old {
        None => Err(Stored::NotStored),
        Some(old) if change.cas != 0 && change.cas != old.header.cas => Err(Stored::Exists),
        Some(old) => Ok(old),
    }
}

/// Copies the old value next to the new bytes.
fn extend(
    store: &mut Store,
    room: &mut Room,
    change: &Change<'_>,
) -> Result<Result<Attributes, Stored>, SetError> {
    let old = match extended(change, store.find(change.key)?) {
        Ok(old) => old,
        Err(refused) => return Ok(Err(refused)),
    };
    if old.header.value_len as usize != room.old_len
        && let Err(refused) = refit(store, room, change)?
    {
        return Ok(Err(refused));
    }
    // The old item may have moved, or been evicted for the new one.
    let old = match extended(change, store.find(change.key)?) {
        Ok(old) if old.header.value_len as usize == room.old_len => old,
        _ => return Ok(Err(Stored::NotStored)),
    };
    copy(
        store.items(),
        old.value_offset(),
        room.old_at(),
        room.old_len,
    )?;
    Ok(Ok(Attributes {
        flags: old.header.flags,
        exptime: old.header.exptime,
        marks: old.header.marks & Marks::BINARY_KEY,
        ..Attributes::default()
    }))
}

/// Reserves other room, as the length of the old value has changed.
fn refit(
    store: &mut Store,
    room: &mut Room,
    change: &Change<'_>,
) -> Result<Result<(), Stored>, SetError> {
    let other = match Room::find(store, change, room.value_len)? {
        Ok(other) => other,
        Err(refused) => return Ok(Err(refused)),
    };
    let first = std::mem::replace(room, other);
    let copied = copy(
        store.items(),
        first.value_at(),
        room.value_at(),
        room.value_len,
    );
    store.abandon(first.reservation);
    Ok(Ok(copied?))
}

/// Publishes an item with the next cas.
pub(super) fn commit(
    store: &mut Store,
    room: Reservation,
    key: &[u8],
    attributes: Attributes,
) -> Result<Stored, SetError> {
    let cas = store.next_cas();
    let attributes = Attributes {
        cas: Some(cas),
        ..attributes
    };
    let location = store.commit(room, key, &attributes)?;
    Ok(Stored::Stored { location, cas })
}

fn binary(key: bool) -> Marks {
    if key {
        Marks::BINARY_KEY
    } else {
        Marks::empty()
    }
}

fn copy(items: &Region, from: u64, to: u64, len: usize) -> Result<(), OpError> {
    let mut buffer = [0; 4096];
    for at in (0..len).step_by(buffer.len()) {
        let piece = &mut buffer[..(len - at).min(4096)];
        items.read(from + at as u64, piece)?;
        items.write(to + at as u64, piece)?;
    }
    Ok(())
}
