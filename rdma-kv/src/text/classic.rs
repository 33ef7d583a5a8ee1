//! Classic commands that store, get and remove.

use toroid_fabric::{OpError, Region};

use super::input::{Arguments, Tokens};
use super::watch::Fetched;
use super::{
    BAD_CHUNK, BAD_FORMAT, Done, ERROR, NO_MEMORY, NO_MEMORY_TO_COUNT, NOT_A_NUMBER, NOT_FOUND,
    REPLIES, TOO_LARGE, Turn, append_number,
};
use crate::number::{self, Digits};
use crate::protocol::change::{Change, Delta, Mode, Stored};
use crate::protocol::layout::MAX_KEY;
use crate::store::operations::{self, Counted};
use crate::store::shared::Shared;
use crate::store::{Item, SetError, Store};
use crate::text::counts::Count;

const BAD_EXPTIME: &[u8] = b"CLIENT_ERROR invalid exptime argument\r\n";
const DELETE_USAGE: &[u8] =
    b"CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n";

/// Most keys of a get per acquisition of the lock, and bytes of replies after which no further key
/// follows: other threads wait meanwhile.
const KEYS_AT_ONCE: usize = 32;
const BYTES_AT_ONCE: usize = 32 * 1024;

/// Longest value that is copied under the lock: a thread that is descheduled during a copy would
/// block all others.
const SHORT: u32 = 4096;

/// Options of a get.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GetOptions {
    /// Whether the reply has the cas.
    cas: bool,
    /// New expiry, if it changes.
    exptime: Option<i32>,
}

impl Turn<'_> {
    pub(super) fn first_get(&mut self, keys: Tokens<'_>, cas: bool) -> Result<Done, OpError> {
        if keys.is_empty() {
            Ok(self.say(ERROR))
        } else {
            self.checked_get(keys, GetOptions { cas, exptime: None })
        }
    }

    pub(super) fn first_get_and_touch(
        &mut self,
        mut tokens: Tokens<'_>,
        cas: bool,
    ) -> Result<Done, OpError> {
        let Some(exptime) = tokens.next() else {
            return Ok(self.say(ERROR));
        };
        match number::int(exptime) {
            None => Ok(self.say(BAD_EXPTIME)),
            exptime => self.checked_get(tokens, GetOptions { cas, exptime }),
        }
    }

    /// A malformed key fails the whole command.
    fn checked_get(&mut self, keys: Tokens<'_>, options: GetOptions) -> Result<Done, OpError> {
        if keys.clone().all(|key| key.len() <= MAX_KEY) {
            self.get(keys, options)
        } else {
            Ok(self.say(BAD_FORMAT))
        }
    }

    /// Answers keys until a batch is full.
    pub(super) fn get(
        &mut self,
        mut keys: Tokens<'_>,
        options: GetOptions,
    ) -> Result<Done, OpError> {
        while self.replies.len() < REPLIES && !keys.is_empty() {
            self.get_some(&mut keys, options)?;
        }
        if !keys.is_empty() {
            let left = keys.0.len();
            return Ok(Done::Partly { left, options });
        }
        self.replies.extend_from_slice(b"END\r\n");
        Ok(Done::Used)
    }

    /// Answers the next keys, under one acquisition of the lock.
    fn get_some(&mut self, keys: &mut Tokens<'_>, options: GetOptions) -> Result<(), OpError> {
        let shared = self.store;
        let long = shared.with(|store| self.get_to_long(store, keys, options))?;
        long.map_or(Ok(()), |item| append_pinned(&item, shared, self.replies))
    }

    /// Answers the next keys up to the first with a long value, which is pinned and still to be
    /// appended.
    pub(super) fn get_to_long(
        &mut self,
        store: &mut Store,
        keys: &mut Tokens<'_>,
        options: GetOptions,
    ) -> Result<Option<Item>, OpError> {
        let enough = REPLIES.min(self.replies.len() + BYTES_AT_ONCE);
        for key in keys.take(KEYS_AT_ONCE) {
            let long = self.get_one(store, key, options)?;
            if long.is_some() || self.replies.len() >= enough {
                return Ok(long);
            }
        }
        Ok(None)
    }

    /// Answers a key, except for a long value.
    fn get_one(
        &mut self,
        store: &mut Store,
        key: &[u8],
        options: GetOptions,
    ) -> Result<Option<Item>, OpError> {
        let (item, expired) = operations::get(store, key, options.exptime.map(i64::from))?;
        let mut long = None;
        if let Some(item) = &item {
            append_head(key, item, options.cas, self.replies);
            long = append_short(item, store, self.replies)?;
        }
        let hit = item.is_some();
        if expired && !hit {
            self.fetched(key, Fetched::Expired)
        } else {
            self.saw(key, item.as_ref())
        }
        self.counts().get(options.exptime.is_some(), hit);
        if expired {
            self.count(Count::GetExpired);
        }
        self.note_prefix(key, |tally| {
            tally.gets += 1;
            tally.hits += u64::from(hit);
        });
        Ok(long)
    }

    pub(super) fn update(
        &mut self,
        mode: Mode,
        arguments: &Arguments<'_>,
    ) -> Result<Done, OpError> {
        let compare = mode == Mode::Compare;
        let least = if compare { 5 } else { 4 };
        if !(least..=least + 1).contains(&arguments.count) {
            return Ok(self.say(ERROR));
        }
        self.noreply = arguments.noreply();
        let key = arguments.at(0);
        let numbers = (
            number::unsigned_int(arguments.at(1)),
            number::int(arguments.at(2)),
            number::int(arguments.at(3)),
            if compare {
                number::unsigned(arguments.at(4))
            } else {
                Some(0)
            },
        );
        let (Some(flags), Some(exptime), Some(len), Some(cas)) = numbers else {
            return Ok(self.say(BAD_FORMAT));
        };
        let Some(value_len) = value_len(len).filter(|_| key.len() <= MAX_KEY) else {
            return Ok(self.say(BAD_FORMAT));
        };
        let len = value_len + 2;
        if !self.store.limits().admit(key.len(), flags, value_len) {
            self.count(Count::TooLarge);
            self.note_prefix(key, |tally| tally.sets += 1);
            if mode == Mode::Set {
                self.store.delete(key)?;
            }
            let too_large = Err(SetError::TooLarge);
            self.tells_store(
                &Change {
                    mode,
                    ..Change::set(key, false)
                },
                &too_large,
                0,
            );
            self.say(TOO_LARGE);
            return Ok(Done::Swallow { len });
        }
        let Some(chunk) = self.rest.get(..len) else {
            return self.want(len, key, mode);
        };
        self.count(Count::SetCommands);
        self.note_prefix(key, |tally| tally.sets += 1);
        let change = Change {
            mode,
            key,
            flags,
            exptime: exptime.into(),
            cas,
            or_stale: false,
            binary_key: false,
        };
        match chunk.strip_suffix(b"\r\n") {
            Some(value) => self.finish_update(&change, value)?,
            None => self.say(BAD_CHUNK),
        };
        Ok(Done::UsedValue { len })
    }

    fn finish_update(&mut self, change: &Change<'_>, value: &[u8]) -> Result<Done, OpError> {
        self.looks_before(change.key)?;
        let stored = operations::store(self.store, change, value);
        self.tells_store(change, &stored, value.len());
        let text: &[u8] = match stored {
            Ok(stored) => {
                self.counts().stored(change.mode, stored);
                match stored {
                    Stored::Stored { .. } => b"STORED\r\n",
                    Stored::NotStored => b"NOT_STORED\r\n",
                    Stored::Exists => b"EXISTS\r\n",
                    Stored::NotFound => NOT_FOUND,
                }
            }
            Err(error) => self.refusal(error, NO_MEMORY)?,
        };
        Ok(self.say(text))
    }

    /// Counts a failure to store, and returns its reply.
    pub(super) fn refusal(
        &self,
        error: SetError,
        no_memory: &'static [u8],
    ) -> Result<&'static [u8], OpError> {
        self.counts().failed(error);
        match error {
            SetError::TooLarge => Ok(TOO_LARGE),
            SetError::OutOfMemory | SetError::NotFetched => Ok(no_memory),
            SetError::Key(_) => Ok(BAD_FORMAT),
            SetError::Memory(error) => Err(error),
        }
    }

    pub(super) fn arithmetic(
        &mut self,
        up: bool,
        arguments: &Arguments<'_>,
    ) -> Result<Done, OpError> {
        if !(2..=3).contains(&arguments.count) {
            return Ok(self.say(ERROR));
        }
        self.noreply = arguments.noreply();
        let key = arguments.at(0);
        if key.len() > MAX_KEY {
            return Ok(self.say(BAD_FORMAT));
        }
        let Some(amount) = number::unsigned(arguments.at(1)) else {
            return Ok(self.say(b"CLIENT_ERROR invalid numeric delta argument\r\n"));
        };
        let delta = if up {
            Delta::Add(amount)
        } else {
            Delta::Subtract(amount)
        };
        let counted = self
            .store
            .with(|store| operations::count(store, key, delta, 0));
        let text = match counted {
            Ok(counted) => {
                self.counts().counted(delta, counted);
                match counted {
                    Counted::Done { item, .. } => self.saw(key, Some(&item)),
                    Counted::NotFound => self.saw(key, None),
                    Counted::NotANumber | Counted::Exists => {}
                }
                match counted {
                    Counted::Done { value, .. } => {
                        self.say(Digits::of(value).bytes());
                        b"\r\n"
                    }
                    Counted::NotANumber => NOT_A_NUMBER,
                    Counted::Exists | Counted::NotFound => NOT_FOUND,
                }
            }
            Err(error) => self.refusal(error, NO_MEMORY_TO_COUNT)?,
        };
        Ok(self.say(text))
    }

    pub(super) fn touch(&mut self, arguments: &Arguments<'_>) -> Result<Done, OpError> {
        if !(2..=3).contains(&arguments.count) {
            return Ok(self.say(ERROR));
        }
        self.noreply = arguments.noreply();
        let key = arguments.at(0);
        if key.len() > MAX_KEY {
            return Ok(self.say(BAD_FORMAT));
        }
        let Some(exptime) = number::int(arguments.at(1)) else {
            return Ok(self.say(BAD_EXPTIME));
        };
        let item = self
            .store
            .with(|store| operations::touch(store, key, exptime.into()))?;
        self.counts().touch(item.is_some());
        self.saw(key, item.as_ref());
        Ok(self.say(match item {
            Some(_) => b"TOUCHED\r\n",
            None => NOT_FOUND,
        }))
    }

    pub(super) fn delete(&mut self, arguments: &Arguments<'_>) -> Result<Done, OpError> {
        let noreply = arguments.noreply();
        let zero = arguments.at(1) == b"0";
        match arguments.count {
            1 => {}
            2 if zero || noreply => self.noreply = noreply,
            3 if zero && noreply => self.noreply = true,
            2 | 3 => {
                self.noreply = noreply;
                return Ok(self.say(DELETE_USAGE));
            }
            _ => return Ok(self.say(ERROR)),
        }
        let key = arguments.at(0);
        if key.len() > MAX_KEY {
            return Ok(self.say(BAD_FORMAT));
        }
        self.note_prefix(key, |tally| tally.deletes += 1);
        let item = self.store.with(|store| {
            let item = store.find(key)?;
            item.as_ref().map(|item| store.remove(item)).transpose()?;
            Ok(item)
        })?;
        self.counts().delete(item.is_some());
        self.saw(key, item.as_ref());
        if let Some(item) = item {
            self.tells_deleted(key, "delete", item.header.value_len);
        }
        Ok(self.say(if item.is_some() {
            b"DELETED\r\n"
        } else {
            NOT_FOUND
        }))
    }

    fn note_prefix(&self, key: &[u8], note: impl FnOnce(&mut super::prefixes::Tally)) {
        if self.slot.detail() {
            let server = &self.slot.server;
            if let Some(tally) = server.prefixes().of(key, server.rules.prefix_delimiter) {
                note(tally);
            }
        }
    }
}

/// Length of an announced value, up to memcached's limit.
pub(crate) fn value_len(announced: i32) -> Option<usize> {
    usize::try_from(announced)
        .ok()
        .filter(|_| announced <= i32::MAX - 2)
}

/// Appends the line before a value.
fn append_head(key: &[u8], item: &Item, cas: bool, replies: &mut Vec<u8>) {
    let header = &item.header;
    replies.reserve(key.len() + header.value_len as usize + 60);
    replies.extend_from_slice(b"VALUE ");
    replies.extend_from_slice(key);
    append_number(replies, header.flags.into());
    append_number(replies, header.value_len.into());
    if cas {
        append_number(replies, header.cas);
    }
    replies.extend_from_slice(b"\r\n");
}

/// Appends a short value. A long one is pinned for [`append_pinned`] and returned.
pub(super) fn append_short(
    item: &Item,
    store: &mut Store,
    replies: &mut Vec<u8>,
) -> Result<Option<Item>, OpError> {
    if item.header.value_len > SHORT {
        store.pin(item);
        return Ok(Some(*item));
    }
    append_bytes(item, store.items(), replies)?;
    Ok(None)
}

/// Appends a value that is pinned, without the store's lock, and unpins it.
pub(super) fn append_pinned(
    item: &Item,
    shared: &Shared,
    replies: &mut Vec<u8>,
) -> Result<(), OpError> {
    shared.read_pinned(item, |items| append_bytes(item, items, replies))
}

/// Appends a value and its line end.
fn append_bytes(item: &Item, items: &Region, replies: &mut Vec<u8>) -> Result<(), OpError> {
    items.read_onto(item.value_offset(), item.header.value_len as usize, replies)?;
    replies.extend_from_slice(b"\r\n");
    Ok(())
}
