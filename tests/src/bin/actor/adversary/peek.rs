//! A member that reads the memory to which a region moves before the agent allows it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use tests::actor::{Event as Report, report};
use toroid_fabric::{Access, RemoteKey};
use toroid_protocol::agent::{Event, Message, Reply, Request};

use super::Result;
use super::leave::Agent;
use super::mapping::{Mapping, PAGE};

/// Touches each page of fresh memory before it acknowledges the change, and on and on afterwards, until
/// the region moves again.
pub fn peek(key: RemoteKey) -> Result<()> {
    let mut agent = Agent::greet()?;
    let access = Access::all();
    let (Reply::Region { len, .. }, _) = agent.ask(&Request::Open { key, access })? else {
        return Err("it was not granted".into());
    };
    let pages = usize::try_from(len)? / PAGE;
    report(&Report::Open)?;
    let moves = Arc::new(AtomicU64::new(0));
    loop {
        match agent.hear()? {
            (Message::Event(Event::Move { .. }), mut files) => {
                let fresh = files.swap_remove(0);
                let mapping = Mapping::of(&fresh, pages)?;
                let (number, moves) = (moves.fetch_add(1, Ordering::Relaxed) + 1, moves.clone());
                touch(&fresh, &mapping, pages)?;
                thread::spawn(move || {
                    while moves.load(Ordering::Relaxed) == number {
                        // It was touched before without an error.
                        let _ = touch(&fresh, &mapping, pages);
                    }
                });
            }
            (
                Message::Event(Event::Epoch {
                    partition, epoch, ..
                }),
                _,
            ) => agent.say(&Request::Ack { partition, epoch })?,
            _ => {}
        }
    }
}

fn touch(memory: &File, mapping: &Mapping, pages: usize) -> Result<()> {
    for page in 0..pages {
        let at = (page * PAGE) as u64;
        mapping.read(at);
        memory.read_exact_at(&mut [0; 8], at)?;
    }
    Ok(())
}
