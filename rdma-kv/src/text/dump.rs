//! `lru_crawler metadump`: what there is, item by item.

use std::io::Write;

use fabric::OpError;

use super::REPLIES;
use super::keys::append_encoded;
use crate::layout::{ItemHeader, Marks};
use crate::shared::Shared;
use crate::store::Walk;

/// Steps of a walk in one turn: others have theirs in between, also where there is little to tell.
const STEPS: u32 = 1024;

/// Appends lines for some items; returns whether there may be more.
pub(super) fn go_on(
    shared: &Shared,
    walk: &mut Walk,
    replies: &mut Vec<u8>,
) -> Result<bool, OpError> {
    let (mut headers, mut keys) = (Vec::new(), Vec::new());
    let epoch_s = shared.with(|store| store.epoch_s());
    for _ in 0..STEPS {
        headers.clear();
        keys.clear();
        let more = shared.with(|store| {
            store.walk_on(walk, |header, key| {
                headers.push(*header);
                keys.extend_from_slice(key);
            })
        })?;
        let mut keys = &keys[..];
        for header in &headers {
            let (key, rest) = keys.split_at(header.key_len.into());
            append_line(replies, epoch_s, header, key);
            keys = rest;
        }
        if !more || replies.len() >= REPLIES {
            return Ok(more);
        }
    }
    Ok(true)
}

/// Times are Unix times, `epoch_s` that at which the store's clock stood at 0; lines end as memcached's do.
fn append_line(replies: &mut Vec<u8>, epoch_s: i64, header: &ItemHeader, key: &[u8]) {
    let expires = match header.exptime {
        0 => -1,
        at => epoch_s + i64::from(at),
    };
    let fetched = header.marks.contains(Marks::FETCHED);
    replies.extend_from_slice(b"key=");
    append_encoded(replies, key);
    // To a vector it cannot fail.
    let _ = writeln!(
        replies,
        " exp={expires} la={} cas={} fetch={} cls=1 size={}",
        epoch_s + i64::from(header.accessed),
        header.cas,
        if fetched { "yes" } else { "no" },
        header.item_len(),
    );
}
