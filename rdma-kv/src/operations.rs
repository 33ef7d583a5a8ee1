//! What memcached's commands do to a store. Each is one step, under the store's lock: nobody sees
//! half of it.

use fabric::{OpError, Region};

use crate::layout::{Marks, Placement};
use crate::number::{self, Digits};
use crate::shared::Shared;
use crate::store::{Attributes, Item, Reservation, SetError, Store};

/// Values up to this many bytes are written under the lock, which is then taken only once.
const SMALL: usize = 4096;

/// As much of a value is looked at for a number; one that goes on behind it is none.
const LONGEST_NUMBER: usize = 128;

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
#[derive(Clone, Copy, Debug)]
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
        placement: Placement,
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

/// Stores a value.
///
/// # Errors
/// [`SetError`]; after a failed [`Mode::Set`], what the key had before is gone, as its client must
/// not find it.
pub fn store(shared: &Shared, change: &Change<'_>, value: &[u8]) -> Result<Stored, SetError> {
    let stored = match change.mode {
        Mode::Append | Mode::Prepend => shared.with(|store| extend(store, change, value)),
        _ if value.len() <= SMALL => shared.with(|store| store_at_once(store, change, value)),
        _ => store_large(shared, change, value),
    };
    if stored.is_err() && change.mode == Mode::Set {
        shared.delete(change.key)?;
    }
    stored
}

/// Stores a value that is written while others use the store.
fn store_large(shared: &Shared, change: &Change<'_>, value: &[u8]) -> Result<Stored, SetError> {
    let (room, items) = shared.with(|store| {
        let room = reserve(store, change, value.len())?;
        Ok::<_, SetError>((room, store.items().clone()))
    })?;
    let written = items.write(room.value_offset(), value);
    shared.with(|store| match written {
        Ok(()) => publish(store, room, change),
        Err(error) => {
            store.abandon(room);
            Err(error.into())
        }
    })
}

/// Stores a small value; not for what only adds to another.
///
/// # Errors
/// [`SetError`]; what the key had before then remains.
pub fn store_at_once(
    store: &mut Store,
    change: &Change<'_>,
    value: &[u8],
) -> Result<Stored, SetError> {
    let room = reserve(store, change, value.len())?;
    let room = filled(store, room, |items, offset| items.write(offset, value))?;
    publish(store, room, change)
}

fn reserve(
    store: &mut Store,
    change: &Change<'_>,
    value_len: usize,
) -> Result<Reservation, SetError> {
    store.reserve(change.key.len(), change.flags, value_len)
}

/// Publishes a value that is in place, if its condition holds; not for what only adds to another.
///
/// # Errors
/// None but our own mistakes; also a key of another length than reserved.
pub fn publish(
    store: &mut Store,
    room: Reservation,
    change: &Change<'_>,
) -> Result<Stored, SetError> {
    let mut attributes = Attributes {
        flags: change.flags,
        exptime: store.deadline(change.exptime),
        marks: binary(change.binary_key),
        ..Attributes::default()
    };
    match admit(store, change, &mut attributes) {
        Ok(None) => commit(store, room, change.key, attributes),
        Ok(Some(refused)) => {
            store.abandon(room);
            Ok(refused)
        }
        Err(error) => {
            store.abandon(room);
            Err(error.into())
        }
    }
}

/// Why the value is not stored, if it is not; what it keeps of the one before is noted.
fn admit(
    store: &mut Store,
    change: &Change<'_>,
    attributes: &mut Attributes,
) -> Result<Option<Stored>, OpError> {
    if change.mode == Mode::Set {
        return Ok(None);
    }
    let old = store.find(change.key)?;
    Ok(match (change.mode, old) {
        (Mode::Compare, None) => Some(Stored::NotFound),
        (Mode::Compare, Some(old)) if change.cas == old.header.cas => None,
        (Mode::Compare, Some(old))
            if change.or_stale && (1..old.header.cas).contains(&change.cas) =>
        {
            attributes.exptime = old.header.exptime;
            attributes.marks |= Marks::STALE | old.header.marks & Marks::WON;
            None
        }
        (Mode::Compare, Some(_)) => Some(Stored::Exists),
        (Mode::Add, None) | (Mode::Replace, Some(_)) => None,
        _ => Some(Stored::NotStored),
    })
}

fn commit(
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
    let placement = store.commit(room, key, &attributes)?;
    Ok(Stored::Stored { placement, cas })
}

fn binary(key: bool) -> Marks {
    match key {
        true => Marks::BINARY_KEY,
        false => Marks::empty(),
    }
}

/// Appends or prepends.
fn extend(store: &mut Store, change: &Change<'_>, value: &[u8]) -> Result<Stored, SetError> {
    let Some(old) = store.find(change.key)? else {
        return Ok(Stored::NotStored);
    };
    if change.cas != 0 && change.cas != old.header.cas {
        return Ok(Stored::Exists);
    }
    let old_len = old.header.value_len as usize;
    let room = store.reserve(change.key.len(), old.header.flags, old_len + value.len());
    let room = match room {
        Err(SetError::TooLarge | SetError::OutOfMemory) => return Ok(Stored::NotStored),
        room => room?,
    };
    // It may have made way for the new one, or moved.
    let old = match store.find(change.key) {
        Ok(Some(still)) if still.header.cas == old.header.cas => still,
        other => {
            store.abandon(room);
            return Ok(other.map(|_| Stored::NotStored)?);
        }
    };
    let room = filled(store, room, |items, offset| {
        let (old_at, value_at) = match change.mode {
            Mode::Prepend => (offset + value.len() as u64, offset),
            _ => (offset, offset + old_len as u64),
        };
        items.write(value_at, value)?;
        copy(items, old.value_offset(), old_at, old_len)
    })?;
    let attributes = Attributes {
        flags: old.header.flags,
        exptime: old.header.exptime,
        marks: old.header.marks & Marks::BINARY_KEY,
        ..Attributes::default()
    };
    commit(store, room, change.key, attributes)
}

/// A number to be added or taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Wraps around at the largest number.
    Up(u64),
    /// Stops at 0.
    Down(u64),
}

/// What became of a number to be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// It is this one now.
    Done {
        /// The number.
        value: u64,
        /// Where it is.
        item: Item,
    },
    /// The value is none.
    NotANumber,
    /// It has another cas.
    Exists,
    /// There is none.
    NotFound,
}

/// Changes a value that is a number, if its cas is the one given, or that is 0.
///
/// # Errors
/// [`SetError`].
pub fn count(store: &mut Store, key: &[u8], step: Step, cas: u64) -> Result<Counted, SetError> {
    let Some(old) = store.find(key)? else {
        return Ok(Counted::NotFound);
    };
    if old.header.value_len == 0 {
        return Ok(Counted::NotANumber);
    }
    if cas != 0 && cas != old.header.cas {
        return Ok(Counted::Exists);
    }
    let Some(number) = number_in(store.items(), &old)? else {
        return Ok(Counted::NotANumber);
    };
    let value = match step {
        Step::Up(delta) => number.wrapping_add(delta),
        Step::Down(delta) => number.saturating_sub(delta),
    };
    let digits = Digits::of(value);
    // As with memcached, a number does not get shorter: blanks follow it.
    let len = digits.bytes().len().max(old.header.value_len as usize);
    let grown = len > old.header.value_len as usize;
    let room = store.reserve(key.len(), old.header.flags, len)?;
    let room = filled(store, room, |items, offset| {
        items.write(offset, digits.bytes())?;
        let at = digits.bytes().len();
        blank(items, offset + at as u64, len - at)
    })?;
    let attributes = Attributes {
        flags: old.header.flags,
        exptime: old.header.exptime,
        marks: match grown {
            true => old.header.marks & Marks::BINARY_KEY,
            false => old.header.marks,
        },
        ..Attributes::default()
    };
    commit(store, room, key, attributes)?;
    let item = store.find(key)?;
    Ok(item.map_or(Counted::NotFound, |item| Counted::Done { value, item }))
}

/// Changes when a key is dead, as somebody who gets it.
///
/// # Errors
/// None but our own mistakes.
pub fn touch(store: &mut Store, key: &[u8], exptime: i64) -> Result<Option<Item>, OpError> {
    let Some(mut item) = store.find(key)? else {
        return Ok(None);
    };
    store.used(&mut item)?;
    let deadline = store.deadline(exptime);
    store.touch(&mut item, deadline)?;
    Ok(Some(item))
}

fn number_in(items: &Region, item: &Item) -> Result<Option<u64>, OpError> {
    let mut buffer = [0; LONGEST_NUMBER];
    let value = &mut buffer[..LONGEST_NUMBER.min(item.header.value_len as usize)];
    items.read(item.value_offset(), value)?;
    if item.header.value_len as usize > LONGEST_NUMBER {
        value[LONGEST_NUMBER - 1] = b'x';
    }
    Ok(number::unsigned(value))
}

/// Brings a value to its room, or gives that back.
fn filled(
    store: &mut Store,
    room: Reservation,
    fill: impl FnOnce(&Region, u64) -> Result<(), OpError>,
) -> Result<Reservation, SetError> {
    match fill(store.items(), room.value_offset()) {
        Ok(()) => Ok(room),
        Err(error) => {
            store.abandon(room);
            Err(error.into())
        }
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

fn blank(items: &Region, offset: u64, len: usize) -> Result<(), OpError> {
    for at in (0..len).step_by(256) {
        items.write(offset + at as u64, &[b' '; 256][..(len - at).min(256)])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Limits;
    use crate::testing::{self, value};

    const CHANGE: Change<'_> = Change {
        mode: Mode::Set,
        key: b"k",
        flags: 0,
        exptime: 0,
        cas: 0,
        or_stale: false,
        binary_key: false,
    };

    fn small() -> Shared {
        testing::shared(Limits {
            memory: 2 << 20,
            item: 1 << 20,
        })
    }

    fn put(shared: &Shared, mode: Mode, bytes: &[u8]) -> Option<u64> {
        let change = Change { mode, ..CHANGE };
        cas(store(shared, &change, bytes).unwrap())
    }

    fn cas(stored: Stored) -> Option<u64> {
        match stored {
            Stored::Stored { cas, .. } => Some(cas),
            _ => None,
        }
    }

    #[test]
    fn conditions_are_looked_at() {
        let shared = small();
        for mode in [Mode::Replace, Mode::Append, Mode::Prepend, Mode::Compare] {
            assert_eq!(put(&shared, mode, b"x"), None, "{mode:?}");
        }
        assert_eq!(put(&shared, Mode::Add, b"b"), Some(1));
        assert_eq!(put(&shared, Mode::Add, b"x"), None);
        assert_eq!(put(&shared, Mode::Append, b"c"), Some(2));
        assert_eq!(put(&shared, Mode::Prepend, b"a"), Some(3));
        assert_eq!(value(&shared, b"k").unwrap(), b"abc");
        let compare = |cas| Change {
            mode: Mode::Compare,
            cas,
            ..CHANGE
        };
        assert_eq!(store(&shared, &compare(2), b"x"), Ok(Stored::Exists));
        assert_eq!(cas(store(&shared, &compare(3), b"y").unwrap()), Some(4));
        let stale = Change {
            or_stale: true,
            ..compare(2)
        };
        assert_eq!(cas(store(&shared, &stale, b"z").unwrap()), Some(5));
        let item = shared.with(|store| store.find(b"k")).unwrap().unwrap();
        assert_eq!(item.header.marks, Marks::STALE);
        assert_eq!(put(&shared, Mode::Replace, b"w"), Some(6));
    }

    #[test]
    fn large_values_are_added_to() {
        let shared = small();
        let [a, b] = [vec![1; 100_000], vec![2; 100_001]];
        put(&shared, Mode::Set, &a).unwrap();
        put(&shared, Mode::Append, &b).unwrap();
        put(&shared, Mode::Prepend, &b).unwrap();
        assert!(value(&shared, b"k").unwrap() == [&b[..], &a, &b].concat());
        assert_eq!(put(&shared, Mode::Append, &vec![3; 1 << 20]), None);
        assert_eq!(value(&shared, b"k").unwrap().len(), 300_002);
    }

    #[test]
    fn numbers_are_counted_in_place() {
        let shared = small();
        let step = |step| match shared.with(|store| count(store, b"k", step, 0)).unwrap() {
            Counted::Done { value, .. } => Some(value),
            _ => None,
        };
        assert_eq!(step(Step::Up(1)), None);
        put(&shared, Mode::Set, b"99").unwrap();
        assert_eq!(step(Step::Up(1)), Some(100));
        assert_eq!(step(Step::Down(93)), Some(7));
        assert_eq!(value(&shared, b"k").unwrap(), b"7  ");
        assert_eq!(step(Step::Down(8)), Some(0));
        assert_eq!(step(Step::Up(u64::MAX)), Some(u64::MAX));
        assert_eq!(step(Step::Up(3)), Some(2));
        put(&shared, Mode::Set, b"no").unwrap();
        assert_eq!(step(Step::Up(1)), None);
        put(&shared, Mode::Set, b"").unwrap();
        assert_eq!(step(Step::Up(1)), None);
        put(&shared, Mode::Set, &[b'0'; 4000]).unwrap();
        assert_eq!(step(Step::Up(1)), None);
        put(
            &shared,
            Mode::Set,
            &[b"41".to_vec(), vec![b' '; 4000]].concat(),
        )
        .unwrap();
        assert_eq!(step(Step::Up(1)), Some(42));
    }

    #[test]
    fn a_failed_set_removes_what_was_there_and_nothing_else_does() {
        let shared = small();
        let large = vec![0; 1 << 20];
        put(&shared, Mode::Set, b"x").unwrap();
        let add = Change {
            mode: Mode::Add,
            ..CHANGE
        };
        assert_eq!(store(&shared, &add, &large), Err(SetError::TooLarge));
        assert!(value(&shared, b"k").is_some());
        assert_eq!(store(&shared, &CHANGE, &large), Err(SetError::TooLarge));
        assert_eq!(value(&shared, b"k"), None);
    }
}
