//! `ms` and `md`: store; remove or declare stale.

use toroid_fabric::OpError;

use super::super::classic::value_len;
use super::super::input::Tokens;
use super::super::watch::Fetched;
use super::super::{BAD_CHUNK, BAD_FORMAT, Done, NO_MEMORY, TOO_LARGE, Turn};
use super::flags::Flags;
use super::{OPAQUE_TOO_LONG, append_flag, deadline, echo, flags_of, is_long_opaque};
use crate::number;
use crate::protocol::change::{Change, Mode, Stored};
use crate::protocol::layout::Marks;
use crate::store::operations::{self};
use crate::store::{SetError, Store};
use crate::text::counts::Count;

impl Turn<'_> {
    pub(super) fn meta_set(
        &mut self,
        key: &[u8],
        mut tokens: Tokens<'_>,
        too_many: bool,
    ) -> Result<Done, OpError> {
        let Some(announced) = tokens.next() else {
            return Ok(self.say(BAD_FORMAT));
        };
        if too_many {
            return Ok(self.say(b"CLIENT_ERROR options flags too long\r\n"));
        }
        let Some(value_len) = number::int(announced).and_then(value_len) else {
            return Ok(self.say(BAD_FORMAT));
        };
        let len = value_len + 2;
        let checked = Flags::parse(key, tokens.clone())
            .and_then(|(flags, key)| Ok((flags, key, mode_of(&flags, &tokens)?)));
        let (flags, key, mode) = match checked {
            Ok(checked) => checked,
            Err(error) => {
                self.say(error);
                return Ok(Done::Swallow { len });
            }
        };
        let key_len = key.bytes().len();
        let limits = self.store.limits();
        if !limits.admit(key_len, flags.client_flags, value_len) {
            self.count(Count::TooLarge);
            let change = Change {
                mode,
                ..Change::set(key.bytes(), flags.binary)
            };
            self.tells_store(&change, &Err(SetError::TooLarge), 0);
            self.store.delete(key.bytes())?;
            self.say(TOO_LARGE);
            return Ok(Done::Swallow { len });
        }
        let Some(chunk) = self.rest.get(..len) else {
            // As after any failed `ms` in memcached.
            return self.want(len, key.bytes(), Mode::Set);
        };
        self.count(Count::SetCommands);
        match chunk.strip_suffix(b"\r\n") {
            Some(value) => {
                let change = Change {
                    mode,
                    key: key.bytes(),
                    flags: flags.client_flags,
                    exptime: flags.exptime.unwrap_or_default().into(),
                    cas: flags.cas.unwrap_or_default(),
                    or_stale: flags.stale,
                    binary_key: flags.binary,
                };
                self.finish_set(&flags, &change, value, tokens)?
            }
            None => self.say(BAD_CHUNK),
        };
        Ok(Done::UsedValue { len })
    }

    fn finish_set(
        &mut self,
        flags: &Flags,
        change: &Change<'_>,
        value: &[u8],
        tokens: Tokens<'_>,
    ) -> Result<Done, OpError> {
        self.looks_before(change.key)?;
        let stored = operations::store(self.store, change, value);
        self.tells_store(change, &stored, value.len());
        let stored = match stored {
            Ok(stored) => stored,
            Err(error) => {
                let text = self.refusal(error, NO_MEMORY)?;
                self.store.delete(change.key)?;
                return Ok(self.say(text));
            }
        };
        self.counts().stored(change.mode, stored);
        let (text, cas): (&[u8], _) = match stored {
            Stored::Stored { .. } if flags.quiet => return Ok(Done::Used),
            Stored::Stored { cas, .. } => (b"HD", cas),
            Stored::NotStored => (b"NS", 0),
            Stored::Exists => (b"EX", 0),
            Stored::NotFound => (b"NF", 0),
        };
        self.say(text);
        for token in tokens {
            match token[0] {
                b'c' => append_flag(self.replies, b'c', cas),
                _ => drop(echo(self.replies, token, change.key, flags.binary)),
            }
        }
        Ok(self.say(b"\r\n"))
    }

    pub(super) fn meta_delete(&mut self, key: &[u8], tokens: Tokens<'_>) -> Result<Done, OpError> {
        let (flags, key) = match flags_of(key, &tokens) {
            Ok(parsed) => parsed,
            Err(error) => return Ok(self.say(error)),
        };
        if tokens.clone().any(is_long_opaque) {
            return Ok(self.say(OPAQUE_TOO_LONG));
        }
        let removed = self
            .store
            .with(|store| remove(store, key.bytes(), &flags))?;
        match removed {
            Removed::Yes(_) if flags.stale => {}
            Removed::Yes(len) => {
                self.counts().delete(true);
                self.tells_deleted(key.bytes(), "md", len);
            }
            Removed::Exists(_) | Removed::NotFound => self.counts().delete(false),
        }
        self.fetched(
            key.bytes(),
            match removed {
                Removed::Yes(len) | Removed::Exists(len) => Fetched::Found(len),
                Removed::NotFound => Fetched::Missed,
            },
        );
        let text: &[u8] = match removed {
            Removed::Yes(_) if flags.quiet => return Ok(Done::Used),
            Removed::Yes(_) => b"HD",
            Removed::Exists(_) => b"EX",
            Removed::NotFound => b"NF",
        };
        Ok(self.tell_all(text, &flags, &key, tokens))
    }
}

/// Result of `md`, with the length of the value.
enum Removed {
    Yes(u32),
    Exists(u32),
    NotFound,
}

fn remove(store: &mut Store, key: &[u8], flags: &Flags) -> Result<Removed, OpError> {
    let Some(mut item) = store.find(key)? else {
        return Ok(Removed::NotFound);
    };
    let len = item.header.value_len;
    if flags.cas.is_some_and(|cas| cas != item.header.cas) {
        return Ok(Removed::Exists(len));
    }
    if !flags.stale {
        store.remove(&item)?;
        return Ok(Removed::Yes(len));
    }
    if flags.exptime.is_some() {
        let exptime = deadline(store, flags.exptime);
        store.touch(&mut item, exptime)?;
    }
    // The next client that gets the item wins.
    let marks = (item.header.marks | Marks::STALE) - Marks::WON;
    store.mark(&mut item, marks)?;
    let cas = store.next_cas();
    store.renumber(&mut item, cas)?;
    Ok(Removed::Yes(len))
}

fn mode_of(flags: &Flags, tokens: &Tokens<'_>) -> Result<Mode, &'static [u8]> {
    let mode = match flags.mode {
        None | Some(b'S') => Mode::Set,
        Some(b'E') => Mode::Add,
        Some(b'A') => Mode::Append,
        Some(b'P') => Mode::Prepend,
        Some(b'R') => Mode::Replace,
        Some(_) => return Err(b"CLIENT_ERROR invalid mode for ms M token\r\n"),
    };
    if tokens.clone().any(is_long_opaque) {
        return Err(OPAQUE_TOO_LONG);
    }
    Ok(match mode {
        Mode::Set | Mode::Replace if flags.cas.is_some() => Mode::Compare,
        mode => mode,
    })
}
