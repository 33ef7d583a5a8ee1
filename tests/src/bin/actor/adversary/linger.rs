//! A process that opens a region, disconnects, and keeps the descriptor and the mapping. The agent knows
//! of no process of its node any more.

use std::os::unix::fs::FileExt;

use clap::ValueEnum;
use tests::actor::{self, Event, report, serve};
use toroid_fabric::{Access, RemoteKey};
use toroid_protocol::agent::{Reply, Request};

use super::leave::Agent;
use super::mapping::{Mapping, PAGE};
use super::{Result, marked};

/// A mark: its bytes differ from all that the owner writes.
const MARK: u64 = u64::MAX;

/// Access that a lingering process asks for.
#[derive(Clone, Copy, ValueEnum)]
pub enum Rights {
    Read,
    Write,
}

pub fn linger(key: RemoteKey, rights: Rights) -> Result<()> {
    let access = match rights {
        Rights::Write => Access::all(),
        Rights::Read => Access::REMOTE_READ,
    };
    let mut agent = Agent::greet()?;
    let (reply, mut files) = agent.ask(&Request::Open { key, access })?;
    let Reply::Region { len, .. } = reply else {
        return Err(format!("{reply:?}").into());
    };
    drop(agent);
    let file = files.swap_remove(0);
    let writable = access == Access::all();
    let pages = usize::try_from(len)? / PAGE;
    let mapping = writable.then(|| Mapping::of(&file, pages)).transpose()?;
    report(&Event::Open)?;
    serve(|request| {
        let actor::Request::Mark = request else {
            return Err(format!("{request:?} is not for a process that lingers").into());
        };
        for at in marked(len).rev() {
            match &mapping {
                Some(mapping) => mapping.write(at, MARK),
                None => _ = file.write_at(&MARK.to_ne_bytes(), at),
            }
        }
        Ok(Event::Done)
    })
}
