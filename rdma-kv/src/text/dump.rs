//! Commands that walk all items: `lru_crawler metadump`, `stats cachedump` and `stats sizes`.

use std::collections::BTreeMap;
use std::io::Write;

use toroid_fabric::OpError;

use super::REPLIES;
use super::keys::append_encoded;
use crate::protocol::layout::{ItemHeader, Marks};
use crate::store::shared::Shared;
use crate::store::{Walk, memcached_len};

/// Steps of a walk per turn, so that other connections have their turns even when there is little
/// to show.
const STEPS: u32 = 1024;

/// Width of the classes of `stats sizes` in bytes.
const SIZE_CLASS: u64 = 32;

/// Kind of a reply about all items.
#[derive(Debug)]
pub(super) enum DumpKind {
    /// A line with all attributes per item.
    Metadump,
    /// Key, length and expiry of at most `left` items.
    Cachedump {
        /// Items that may still be shown.
        left: usize,
    },
    /// Items by size, in classes of [`SIZE_CLASS`].
    Sizes(BTreeMap<u64, u64>),
}

/// A walk that a command began.
#[derive(Debug)]
pub(super) struct Dump {
    walk: Walk,
    kind: DumpKind,
}

impl Dump {
    pub(super) fn new(kind: DumpKind) -> Self {
        Dump {
            walk: Walk::default(),
            kind,
        }
    }

    /// Appends lines of some items, and the end after the last; returns whether there may be
    /// more.
    pub(super) fn go_on(
        &mut self,
        shared: &Shared,
        replies: &mut Vec<u8>,
    ) -> Result<bool, OpError> {
        let more = self.append_some(shared, replies)?;
        if !more {
            if let DumpKind::Sizes(sizes) = &self.kind {
                for (size, count) in sizes {
                    append(replies, format_args!("STAT {size} {count}\r\n"));
                }
            }
            replies.extend_from_slice(b"END\r\n");
        }
        Ok(more)
    }

    fn append_some(&mut self, shared: &Shared, replies: &mut Vec<u8>) -> Result<bool, OpError> {
        let (mut headers, mut keys) = (Vec::new(), Vec::new());
        let epoch_s = shared.with(|store| store.epoch_s());
        for _ in 0..STEPS {
            headers.clear();
            keys.clear();
            let more = shared.with(|store| {
                store.walk_on(&mut self.walk, |header, key| {
                    headers.push(*header);
                    keys.extend_from_slice(key);
                })
            })?;
            let mut keys = &keys[..];
            for header in &headers {
                let (key, rest) = keys.split_at(header.key_len.into());
                if !self.kind.tell(replies, epoch_s, header, key) {
                    return Ok(false);
                }
                keys = rest;
            }
            if !more || replies.len() >= REPLIES {
                return Ok(more);
            }
        }
        Ok(true)
    }
}

impl DumpKind {
    /// Appends the line of an item, where `epoch_s` is the Unix time at which the clock was 0;
    /// returns whether more may follow.
    fn tell(
        &mut self,
        replies: &mut Vec<u8>,
        epoch_s: i64,
        header: &ItemHeader,
        key: &[u8],
    ) -> bool {
        match self {
            DumpKind::Metadump => append_metadump(replies, epoch_s, header, key),
            DumpKind::Cachedump { left } => {
                append_cachedump(replies, epoch_s, header, key);
                *left -= 1;
                return *left > 0;
            }
            DumpKind::Sizes(sizes) => {
                let class = item_size(header).next_multiple_of(SIZE_CLASS);
                *sizes.entry(class).or_default() += 1;
            }
        }
        true
    }
}

/// Bytes of an item as memcached counts them, with its own header.
pub(super) fn item_size(header: &ItemHeader) -> u64 {
    let (key_len, value_len) = (header.key_len.into(), header.value_len as usize);
    memcached_len(key_len, header.flags, value_len) as u64
}

/// Lines end as memcached's do, without a `\r`.
fn append_metadump(replies: &mut Vec<u8>, epoch_s: i64, header: &ItemHeader, key: &[u8]) {
    let expires = match header.exptime {
        0 => -1,
        at => epoch_s + i64::from(at),
    };
    let fetched = header.marks.contains(Marks::FETCHED);
    replies.extend_from_slice(b"key=");
    append_encoded(replies, key);
    append(
        replies,
        format_args!(
            " exp={expires} la={} cas={} fetch={} cls=1 size={}\n",
            epoch_s + i64::from(header.accessed),
            header.cas,
            if fetched { "yes" } else { "no" },
            item_size(header),
        ),
    );
}

/// The key is plain, unless it has bytes that could be misread.
fn append_cachedump(replies: &mut Vec<u8>, epoch_s: i64, header: &ItemHeader, key: &[u8]) {
    let expires = match header.exptime {
        0 => 0,
        at => epoch_s + i64::from(at),
    };
    replies.extend_from_slice(b"ITEM ");
    if key.iter().any(|&byte| byte <= b' ') {
        append_encoded(replies, key)
    } else {
        replies.extend_from_slice(key)
    }
    let len = header.value_len;
    append(replies, format_args!(" [{len} b; {expires} s]\r\n"));
}

pub(super) fn append(replies: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    // Writing to a vector cannot fail.
    let _ = replies.write_fmt(text);
}
