//! `mg`: get, with leases that keep many clients from storing one value anew at once.
//!
//! Of the clients that meet an item that is stale, was just created by `N`, or is about to expire
//! by `R`, one wins (`W`) and should store it anew. The others learn that another client has won
//! (`Z`).

use toroid_fabric::OpError;

use super::super::classic::{append_pinned, append_short};
use super::super::input::Tokens;
use super::super::{Done, Turn, append_number};
use super::flags::Flags;
use super::{OPAQUE_TOO_LONG, append_flag, append_ttl, deadline, echo, echo_key, is_long_opaque};
use crate::protocol::change::Change;
use crate::protocol::layout::Marks;
use crate::store::operations::{self};
use crate::store::{Item, SetError, Store};

/// An item, while the flags are answered.
struct Got<'a> {
    item: Item,
    created: bool,
    /// Whether the client has won.
    won: bool,
    flags: &'a Flags,
    key: &'a [u8],
}

impl Turn<'_> {
    pub(super) fn meta_get(&mut self, key: &[u8], tokens: Tokens<'_>) -> Result<Done, OpError> {
        let (flags, key) = match Flags::parse(key, tokens.clone()) {
            Ok(parsed) => parsed,
            Err(error) => return Ok(self.say(error)),
        };
        let replies = &mut *self.replies;
        let start = replies.len();
        let mut found = None;
        let (answered, long) = self.store.with(|store| {
            let Some(mut got) = Got::find(store, &flags, key.bytes())? else {
                return Ok((None, None));
            };
            found = Some(got.item);
            let answered = got.answer(store, tokens.clone(), replies)?;
            let long = if answered && flags.value {
                append_short(&got.item, store, replies)?
            } else {
                None
            };
            Ok::<_, OpError>((Some(answered), long))
        })?;
        if let Some(item) = long {
            append_pinned(&item, self.store, self.replies)?;
        }
        self.saw(key.bytes(), found.as_ref());
        match answered {
            Some(true) => {
                self.counts().get(flags.exptime.is_some(), true);
                Ok(Done::Used)
            }
            Some(false) => {
                self.replies.truncate(start);
                Ok(self.say(OPAQUE_TOO_LONG))
            }
            None => {
                self.counts().get(false, false);
                // A quiet miss has no reply, but an error has.
                if flags.quiet && !tokens.clone().any(is_long_opaque) {
                    Ok(Done::Used)
                } else {
                    Ok(self.tell_all(b"EN", &flags, &key, tokens))
                }
            }
        }
    }
}

impl<'a> Got<'a> {
    /// Finds the item, or creates it if `N` is given.
    fn find(store: &mut Store, flags: &'a Flags, key: &'a [u8]) -> Result<Option<Self>, OpError> {
        let mut item = store.find(key)?;
        let created = item.is_none() && flags.vivify.is_some();
        if created {
            item = match vivify(store, key, flags.binary) {
                Ok(()) => store.find(key)?,
                Err(SetError::Memory(error)) => return Err(error),
                Err(_) => None,
            };
        }
        Ok(item.map(|item| Got {
            item,
            created,
            won: false,
            flags,
            key,
        }))
    }

    /// Appends the reply up to the value; false if an opaque token is too long.
    fn answer(
        &mut self,
        store: &mut Store,
        tokens: Tokens<'_>,
        replies: &mut Vec<u8>,
    ) -> Result<bool, OpError> {
        let before = self.item.header;
        if self.flags.value {
            replies.extend_from_slice(b"VA");
            append_number(replies, before.value_len.into());
        } else {
            replies.extend_from_slice(b"HD")
        }
        let mut good = true;
        for token in tokens {
            good = self.answer_flag(store, token, replies);
            if !good {
                break;
            }
        }
        if self.item.header.exptime != before.exptime {
            let exptime = self.item.header.exptime;
            store.touch(&mut self.item, exptime)?;
        }
        if !good {
            return Ok(false);
        }
        self.settle(replies);
        if self.won {
            let marks = self.item.header.marks;
            store.mark(&mut self.item, marks)?;
        }
        if !self.flags.no_update {
            store.used(&mut self.item)?;
        }
        replies.extend_from_slice(b"\r\n");
        Ok(true)
    }

    fn answer_flag(&mut self, store: &Store, token: &[u8], replies: &mut Vec<u8>) -> bool {
        let (header, now) = (&mut self.item.header, store.now());
        match token[0] {
            b'T' => header.exptime = deadline(store, self.flags.exptime),
            b'N' if self.created => {
                header.exptime = deadline(store, self.flags.vivify);
                self.won = true;
            }
            b'R' => {
                let soon = deadline(store, self.flags.recache);
                let due = header.exptime != 0 && header.exptime < soon;
                self.won |= due && !self.created && !header.marks.contains(Marks::WON);
            }
            b's' => append_flag(replies, b's', header.value_len.into()),
            b't' => append_ttl(replies, header.exptime, now),
            b'c' => append_flag(replies, b'c', header.cas),
            b'f' => append_flag(replies, b'f', header.flags.into()),
            b'l' => append_flag(replies, b'l', now.saturating_sub(header.accessed).into()),
            b'h' => {
                let fetched = header.marks.contains(Marks::FETCHED);
                append_flag(replies, b'h', fetched.into());
            }
            b'k' => echo_key(replies, self.key, header.marks.contains(Marks::BINARY_KEY)),
            _ => return echo(replies, token, self.key, false),
        }
        true
    }

    /// Appends which client is to store the item anew.
    fn settle(&mut self, replies: &mut Vec<u8>) {
        let marks = &mut self.item.header.marks;
        let taken = marks.contains(Marks::WON);
        if taken {
            replies.extend_from_slice(b" Z");
        }
        if marks.contains(Marks::STALE) {
            replies.extend_from_slice(b" X");
            self.won |= !taken;
        }
        if self.won {
            replies.extend_from_slice(b" W");
            *marks |= Marks::WON;
        }
    }
}

/// Creates an empty item.
fn vivify(store: &mut Store, key: &[u8], binary_key: bool) -> Result<(), SetError> {
    let change = Change::set(key, binary_key);
    operations::store_at_once(store, &change, b"").map(drop)
}
