//! `ma`: increment or decrement a number.

use toroid_fabric::OpError;

use super::super::input::Tokens;
use super::super::{Done, NO_MEMORY_TO_COUNT, NOT_A_NUMBER, Turn, append_number};
use super::flags::Flags;
use super::{OPAQUE_TOO_LONG, append_flag, append_ttl, deadline, echo, flags_of};
use crate::number::Digits;
use crate::protocol::change::{Change, Delta};
use crate::store::operations::{self, Counted};
use crate::store::{Item, SetError, Store};
use crate::text::counts::Count;

const NO_MEMORY_TO_MAKE: &[u8] = b"SERVER_ERROR Out of memory allocating new item\r\n";

/// A changed number, while the flags are answered.
struct Sum {
    value: u64,
    item: Item,
    /// Whether flag `N` created it.
    created: bool,
}

/// Reason for an error reply.
enum Refused {
    NotANumber,
    Exists,
    NotFound,
    NoRoom,
    Opaque,
}

impl Turn<'_> {
    pub(super) fn meta_arithmetic(
        &mut self,
        key: &[u8],
        tokens: Tokens<'_>,
    ) -> Result<Done, OpError> {
        let (flags, key) = match flags_of(key, &tokens) {
            Ok(parsed) => parsed,
            Err(error) => return Ok(self.say(error)),
        };
        let amount = flags.delta.unwrap_or(1);
        let (delta, hits, misses) = match flags.mode {
            None | Some(b'I' | b'+') => (Delta::Add(amount), Count::IncrHits, Count::IncrMisses),
            Some(b'D' | b'-') => (Delta::Subtract(amount), Count::DecrHits, Count::DecrMisses),
            Some(_) => return Ok(self.say(b"CLIENT_ERROR invalid mode for ma M token\r\n")),
        };
        let replies = &mut *self.replies;
        let start = replies.len();
        let mut item = None;
        let done = self.store.with(|store| {
            let mut sum = match Sum::find(store, key.bytes(), delta, &flags)? {
                Ok(sum) => {
                    item = Some(sum.item);
                    sum
                }
                Err(refused) => return Ok(Err(refused)),
            };
            let good = sum.answer(store, &flags, key.bytes(), tokens.clone(), replies)?;
            Ok(if good {
                Ok(sum.created)
            } else {
                Err(Refused::Opaque)
            })
        });
        self.saw(key.bytes(), item.as_ref());
        let text = match done {
            Ok(Ok(created)) => {
                if !created {
                    self.count(hits);
                }
                if flags.quiet && !created {
                    self.replies.truncate(start);
                }
                return Ok(Done::Used);
            }
            Ok(Err(Refused::NotFound)) => {
                self.count(misses);
                return Ok(self.tell_all(b"NF", &flags, &key, tokens));
            }
            Ok(Err(Refused::Exists)) => return Ok(self.tell_all(b"EX", &flags, &key, tokens)),
            Ok(Err(Refused::NotANumber)) => NOT_A_NUMBER,
            Ok(Err(Refused::NoRoom)) => NO_MEMORY_TO_MAKE,
            Ok(Err(Refused::Opaque)) => OPAQUE_TOO_LONG,
            Err(error) => self.refusal(error, NO_MEMORY_TO_COUNT)?,
        };
        self.replies.truncate(start);
        Ok(self.say(text))
    }
}

impl Sum {
    fn find(
        store: &mut Store,
        key: &[u8],
        delta: Delta,
        flags: &Flags,
    ) -> Result<Result<Self, Refused>, SetError> {
        Ok(
            match operations::count(store, key, delta, flags.cas.unwrap_or_default())? {
                Counted::Done { value, item } => Ok(Sum {
                    value,
                    item,
                    created: false,
                }),
                Counted::NotANumber => Err(Refused::NotANumber),
                Counted::Exists => Err(Refused::Exists),
                Counted::NotFound if flags.vivify.is_some() => Self::make(store, key, flags)?,
                Counted::NotFound => Err(Refused::NotFound),
            },
        )
    }

    /// Creates the number of an absent key.
    fn make(
        store: &mut Store,
        key: &[u8],
        flags: &Flags,
    ) -> Result<Result<Self, Refused>, SetError> {
        let change = Change::set(key, flags.binary);
        match operations::store_at_once(store, &change, Digits::of(flags.initial).bytes()) {
            Ok(_) => {}
            Err(SetError::Memory(error)) => return Err(error.into()),
            Err(_) => return Ok(Err(Refused::NoRoom)),
        }
        let item = store.find(key)?;
        Ok(item.ok_or(Refused::NotFound).map(|item| Sum {
            value: flags.initial,
            item,
            created: true,
        }))
    }

    /// Appends the reply; false if an opaque token is too long.
    fn answer(
        &mut self,
        store: &mut Store,
        flags: &Flags,
        key: &[u8],
        tokens: Tokens<'_>,
        replies: &mut Vec<u8>,
    ) -> Result<bool, OpError> {
        let digits = Digits::of(self.value);
        if flags.value {
            replies.extend_from_slice(b"VA");
            append_number(replies, digits.bytes().len() as u64);
        } else {
            replies.extend_from_slice(b"HD")
        }
        let (before, now) = (self.item.header.exptime, store.now());
        let header = &mut self.item.header;
        let mut good = true;
        for token in tokens {
            match token[0] {
                b'c' => append_flag(replies, b'c', header.cas),
                b't' => append_ttl(replies, header.exptime, now),
                b'T' => header.exptime = deadline(store, flags.exptime),
                b'N' if self.created => header.exptime = deadline(store, flags.vivify),
                _ => good = echo(replies, token, key, flags.binary),
            }
            if !good {
                break;
            }
        }
        let exptime = header.exptime;
        if exptime != before {
            store.touch(&mut self.item, exptime)?;
        }
        if flags.value {
            replies.extend_from_slice(b"\r\n");
            replies.extend_from_slice(digits.bytes());
        }
        replies.extend_from_slice(b"\r\n");
        Ok(good)
    }
}
