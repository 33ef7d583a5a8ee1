//! Memcached's commands on a store. Each is one atomic step under the lock.

mod storing;

use toroid_fabric::{OpError, Region};

pub use storing::{store, store_at_once, store_with};

use crate::number::{self, Digits};
use crate::protocol::change::Delta;
use crate::protocol::layout::Marks;
use crate::store::{Attributes, Item, Reservation, SetError, Store, is_chunked};
use storing::commit;

/// Longest value that is parsed as a number.
const LONGEST_NUMBER: usize = 128;

/// Result of a change of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// The number was changed.
    Done {
        /// The new number.
        value: u64,
        /// Its item.
        item: Item,
    },
    /// The value is no number.
    NotANumber,
    /// The item has another cas.
    Exists,
    /// The key is absent.
    NotFound,
}

/// Changes a number, if the item has this cas, or `cas` is 0.
///
/// # Errors
/// `SetError`.
pub fn count(store: &mut Store, key: &[u8], delta: Delta, cas: u64) -> Result<Counted, SetError> {
    let Some(old) = store.find(key)? else {
        return Ok(Counted::NotFound);
    };
    let value_len = old.header.value_len as usize;
    if value_len == 0 || is_chunked(key.len(), old.header.flags, value_len) {
        return Ok(Counted::NotANumber);
    }
    if cas != 0 && cas != old.header.cas {
        return Ok(Counted::Exists);
    }
    let Some(number) = number_in(store.items(), &old)? else {
        return Ok(Counted::NotANumber);
    };
    let value = match delta {
        Delta::Add(amount) => number.wrapping_add(amount),
        Delta::Subtract(amount) => number.saturating_sub(amount),
    };
    let digits = Digits::of(value);
    // As in memcached, a number never gets shorter: blanks follow it.
    let len = digits.bytes().len().max(value_len);
    let grown = len > value_len;
    let flags = old.header.flags;
    let room = if grown {
        store.reserve(key, flags, len)?
    } else {
        store.reserve_instead(key, flags, len)?
    };
    let room = filled(store, room, |items, offset| {
        items.write(offset, digits.bytes())?;
        let at = digits.bytes().len();
        blank(items, offset + at as u64, len - at)
    })?;
    let attributes = Attributes {
        flags: old.header.flags,
        exptime: old.header.exptime,
        marks: if grown {
            old.header.marks & Marks::BINARY_KEY
        } else {
            old.header.marks
        },
        ..Attributes::default()
    };
    commit(store, room, key, attributes)?;
    let item = store.find(key)?;
    Ok(item.map_or(Counted::NotFound, |item| Counted::Done { value, item }))
}

/// Gets an item and notes its use, and changes its expiry if `exptime` is given; returns also
/// whether the key was present and had expired.
///
/// # Errors
/// Only for a bug of the store.
pub fn get(
    store: &mut Store,
    key: &[u8],
    exptime: Option<i64>,
) -> Result<(Option<Item>, bool), OpError> {
    let expired = store.counters().expired_found;
    let item = match exptime {
        Some(exptime) => touch(store, key, exptime)?,
        None => {
            let mut item = store.find(key)?;
            item.as_mut().map(|item| store.used(item)).transpose()?;
            item
        }
    };
    Ok((item, store.counters().expired_found > expired))
}

/// Changes the expiry of an item, which counts as a use.
///
/// # Errors
/// Only for a bug of the store.
pub fn touch(store: &mut Store, key: &[u8], exptime: i64) -> Result<Option<Item>, OpError> {
    let Some(mut item) = store.find(key)? else {
        return Ok(None);
    };
    store.used(&mut item)?;
    let deadline = store.deadline(exptime);
    store.touch(&mut item, deadline)?;
    Ok(Some(item))
}

/// Removes all items after `delay` seconds, or at that Unix time, or at once if it is 0 or
/// negative; cancels an earlier delay.
///
/// # Errors
/// Only for a bug of the store.
pub fn flush(store: &mut Store, delay: i64) -> Result<(), OpError> {
    // In memcached a flush takes effect one second early, and a flush before the start of the
    // server never does.
    let at = match delay {
        ..=0 => store.now(),
        _ => store.deadline(delay) - 1,
    };
    if at <= store.now() {
        store.next_cas();
    }
    store.flush_at(Some(at).filter(|at| *at > 0))
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

/// Fills reserved room, or returns it on failure.
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

fn blank(items: &Region, offset: u64, len: usize) -> Result<(), OpError> {
    for at in (0..len).step_by(256) {
        items.write(offset + at as u64, &[b' '; 256][..(len - at).min(256)])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::change::{Change, Mode, Stored};
    use crate::store::Limits;
    use crate::store::shared::Shared;
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
    fn stores_are_conditional() {
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
    fn large_values_are_appended_and_prepended() {
        let shared = small();
        let [a, b] = [vec![1; 100_000], vec![2; 100_001]];
        put(&shared, Mode::Set, &a).unwrap();
        put(&shared, Mode::Append, &b).unwrap();
        put(&shared, Mode::Prepend, &b).unwrap();
        assert!(value(&shared, b"k").unwrap() == [&b[..], &a, &b].concat());
        assert_eq!(put(&shared, Mode::Append, &vec![3; 800_000]), None);
        assert_eq!(value(&shared, b"k").unwrap().len(), 300_002);
    }

    /// Changes of the key while the bytes to append or prepend are fetched.
    #[test]
    fn the_old_value_may_change_while_an_append_is_fetched() {
        let shared = small();
        let added = |mode, meanwhile: &dyn Fn()| {
            put(&shared, Mode::Set, b"old").unwrap();
            let change = Change { mode, ..CHANGE };
            store_with(&shared, &change, 3, |items, offset| {
                meanwhile();
                Ok(items.write(offset, b"new")?)
            })
        };
        for (mode, same, longer) in [
            (Mode::Append, b"abcnew", &b"longernew"[..]),
            (Mode::Prepend, b"newabc", b"newlonger"),
        ] {
            let set = |value: &'static [u8]| {
                let shared = &shared;
                move || assert!(put(shared, Mode::Set, value).is_some())
            };
            assert!(cas(added(mode, &set(b"abc")).unwrap()).is_some());
            assert_eq!(value(&shared, b"k").unwrap(), same);
            assert!(cas(added(mode, &set(b"longer")).unwrap()).is_some());
            assert_eq!(value(&shared, b"k").unwrap(), longer);
            let gone = added(mode, &|| assert_eq!(shared.delete(b"k"), Ok(true)));
            assert_eq!(gone, Ok(Stored::NotStored));
            assert_eq!(value(&shared, b"k"), None);
            let full = added(mode, &set(&[0; (1 << 20) - 100]));
            assert_eq!(full, Ok(Stored::NotStored));
        }
        shared.delete(b"k").unwrap();
        let bytes = shared.with(|store| store.counters()).bytes;
        assert_eq!(bytes, 0);
    }

    #[test]
    fn numbers_are_counted_in_place() {
        let shared = small();
        let counts = |delta| match shared.with(|store| count(store, b"k", delta, 0)).unwrap() {
            Counted::Done { value, .. } => Some(value),
            _ => None,
        };
        assert_eq!(counts(Delta::Add(1)), None);
        put(&shared, Mode::Set, b"99").unwrap();
        assert_eq!(counts(Delta::Add(1)), Some(100));
        assert_eq!(counts(Delta::Subtract(93)), Some(7));
        assert_eq!(value(&shared, b"k").unwrap(), b"7  ");
        assert_eq!(counts(Delta::Subtract(8)), Some(0));
        assert_eq!(counts(Delta::Add(u64::MAX)), Some(u64::MAX));
        assert_eq!(counts(Delta::Add(3)), Some(2));
        put(&shared, Mode::Set, b"no").unwrap();
        assert_eq!(counts(Delta::Add(1)), None);
        put(&shared, Mode::Set, b"").unwrap();
        assert_eq!(counts(Delta::Add(1)), None);
        put(&shared, Mode::Set, &[b'0'; 4000]).unwrap();
        assert_eq!(counts(Delta::Add(1)), None);
        put(
            &shared,
            Mode::Set,
            &[b"41".to_vec(), vec![b' '; 4000]].concat(),
        )
        .unwrap();
        assert_eq!(counts(Delta::Add(1)), Some(42));
    }

    /// Memcached never takes a chunked item for a number. It checks that before the cas.
    #[test]
    fn chunked_items_are_no_numbers() {
        let shared = small();
        let chunk = (512 << 10) - (48 + 8 + 1 + 2) - b"k".len();
        for (len, expected) in [(chunk, Counted::Exists), (chunk + 1, Counted::NotANumber)] {
            let mut value = vec![b' '; len];
            value[0] = b'1';
            put(&shared, Mode::Set, &value).unwrap();
            let counted = shared.with(|store| count(store, b"k", Delta::Add(1), u64::MAX));
            assert_eq!(counted, Ok(expected));
        }
    }

    /// An item never changes, so a new number needs room of its own. A full store that may not
    /// evict once had none.
    #[test]
    fn numbers_are_counted_in_a_full_store_that_may_not_evict() {
        let shared = testing::shared(Limits {
            memory: 1 << 20,
            item: 16 << 10,
        });
        shared.with(|store| store.set_may_evict(false));
        let set = |n: u32, value: &[u8]| shared.set(&n.to_le_bytes(), 0, 0, value);
        let mut keys = 0;
        while set(keys, [&b"100000"[..], b"no number"][keys as usize % 2]).is_ok() {
            keys += 1;
        }
        for round in 1..=4u64 {
            // Odd rounds count all numbers, even rounds the first one only.
            for n in (0..keys).step_by(2) {
                let key = if round % 2 == 0 { 0 } else { n };
                let up = |store: &mut Store| count(store, &key.to_le_bytes(), Delta::Add(1), 0);
                let counted = shared.with(up).unwrap();
                assert!(matches!(counted, Counted::Done { .. }), "{round} {n}");
                // Holes may be used, but not all of them.
                if n % 64 == 0 {
                    let _ = set(keys + n, b"one more");
                }
            }
        }
        for n in 0..keys {
            let expected = match (n, n % 2) {
                (0, _) => (100_002 + u64::from(keys).div_ceil(2) * 2).to_string(),
                (_, 0) => "100002".to_owned(),
                _ => "no number".to_owned(),
            };
            let value = value(&shared, &n.to_le_bytes()).unwrap();
            assert_eq!(String::from_utf8(value).unwrap(), expected);
        }
    }

    #[test]
    fn only_a_failed_set_removes_the_old_value() {
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
