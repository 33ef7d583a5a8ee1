//! `lru_crawler metadump`: what there is, item by item.

use std::io::Write;

use fabric::OpError;

use super::REPLIES;
use super::keys::append_encoded;
use crate::layout::{ItemHeader, Marks};
use crate::shared::Shared;
use crate::store::{Store, Walk};

/// Steps of a walk in one turn: others have theirs in between, also where there is little to tell.
const STEPS: u32 = 256;

/// Appends lines for some items; returns whether there may be more.
pub(super) fn go_on(
    shared: &Shared,
    walk: &mut Walk,
    replies: &mut Vec<u8>,
) -> Result<bool, OpError> {
    for _ in 0..STEPS {
        let more = shared.with(|store| {
            let store = &*store;
            store.walk_on(walk, |header, key| append_line(replies, store, header, key))
        })?;
        if !more || replies.len() >= REPLIES {
            return Ok(more);
        }
    }
    Ok(true)
}

/// Times are Unix times; lines end as memcached's do.
fn append_line(replies: &mut Vec<u8>, store: &Store, header: &ItemHeader, key: &[u8]) {
    let expires = match header.exptime {
        0 => -1,
        at => store.unix_s(at),
    };
    let fetched = header.marks.contains(Marks::FETCHED);
    replies.extend_from_slice(b"key=");
    append_encoded(replies, key);
    // To a vector it cannot fail.
    let _ = writeln!(
        replies,
        " exp={expires} la={} cas={} fetch={} cls=1 size={}",
        store.unix_s(header.accessed),
        header.cas,
        if fetched { "yes" } else { "no" },
        header.item_len(),
    );
}
