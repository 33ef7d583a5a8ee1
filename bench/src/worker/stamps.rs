//! Times that a member writes endlessly to a peer's memory. A later time than that of the member's
//! removal is a leak.

use anyhow::Result;
use std::thread;
use std::time::Duration;

use toroid_client::member::Domain;
use toroid_fabric::provider::Provider;
use toroid_fabric::{Completion, Endpoint, Operation, Region, RemoteKey};

use super::hammer::now_ns;
use super::hostile;
use super::member::{WATCHED, rights, words};
use super::traffic::{PAUSE, Repeating};

const WORD: usize = 8;

/// Bytes written at once.
const LINE: u64 = 64;

/// Longest wait for the completion of a write.
const PATIENCE: Duration = Duration::from_millis(100);

/// Writes to memory on this host, by a descriptor of it: no epoch is acknowledged, and no
/// revocation heeded.
pub fn write_by_descriptor(key: RemoteKey) -> Result<Repeating> {
    let (grant, memory) = hostile::keep(key, rights(true))?;
    let mut at = 0;
    Ok(Repeating::start(move || {
        let _connected = &grant;
        hostile::scribble_at(&memory, at, LINE as usize, now_ns());
        at = (at + LINE) % WATCHED;
        pause_after_round(at);
    })?)
}

/// Writes to memory of any host by one-sided operations, and ignores all errors.
pub fn write_by_operations(domain: &Domain, key: RemoteKey) -> Result<Repeating> {
    let remote = domain.open(key, rights(true))?;
    let mut pair = Provider::queue_pair(domain, key.node, 1)?;
    let local = Region::local(LINE as usize)?;
    let mut at = 0;
    Ok(Repeating::start(move || {
        // Errors are expected after the member has left; keep trying.
        let _ = local.write(0, &now_ns().to_le_bytes().repeat(LINE as usize / WORD));
        let _ = pair.post(0, Operation::write(&remote, at, &local, 0..LINE));
        pair.flush();
        pair.wait(PATIENCE);
        pair.poll(&mut [Completion::default()]);
        at = (at + LINE) % WATCHED;
        pause_after_round(at);
    })?)
}

/// Leaves the processor to others now and then.
fn pause_after_round(at: u64) {
    if at.is_multiple_of(16 * LINE) {
        thread::sleep(PAUSE);
    }
}

/// The newest time in the watched bytes.
pub fn newest(memory: &Region) -> Result<u64> {
    Ok(words(&watched(memory)?).max().unwrap_or_default())
}

/// Number of watched bytes with a time after this one.
pub fn bytes_after(memory: &Region, time: u64) -> Result<u64> {
    let bytes = watched(memory)?;
    Ok((words(&bytes).filter(|word| *word > time).count() * WORD) as u64)
}

fn watched(memory: &Region) -> Result<Vec<u8>> {
    let mut bytes = vec![0; WATCHED as usize];
    memory.read(0, &mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_with_a_later_time_are_counted() {
        let memory = Region::local(2 * WATCHED as usize).unwrap();
        for (at, time) in [(0, 5), (8, 7), (WATCHED - 8, 9), (WATCHED, 11)] {
            memory.store(at, time).unwrap();
        }
        assert_eq!(newest(&memory).unwrap(), 9);
        let counts = [4, 5, 8, 9].map(|time| bytes_after(&memory, time).unwrap());
        assert_eq!(counts, [24, 16, 8, 0]);
    }
}
