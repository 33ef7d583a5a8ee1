//! The kernel's lock of memory, kept for ever. write(2) takes it and then reads its source, here a page
//! of a file whose server does not answer. Sealing the memory, punching it, and writing to it other than
//! by a mapping wait as long.
//!
//! ```text
//!   keep: serves the file ──holds──> hold: opens the region, maps the file, writes and hangs
//! ```

use std::env;
use std::fs::File;
use std::io::{self, BufRead, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;

use clap::ValueEnum;
use nix::sys::stat::fstat;
use tests::actor::{Event as Report, report};
use toroid_fabric::{Access, RemoteKey};
use toroid_protocol::agent::{Event, Message, Reply, Request};

use super::Result;
use super::hang::{self, INIT, OPEN};
use super::leave::Agent;
use super::mapping::{Mapping, PAGE};

const GETATTR: u32 = 3;
const READ: u32 = 15;

/// Bytes of an answer with attributes, and offsets of size and mode in it.
const ATTRIBUTES: usize = 104;
const SIZE: usize = 24;
const MODE: usize = 76;

/// Pages of the file: each keeps the lock of one memory.
const PAGES: usize = 64;

/// Whether the process leaves the domain now.
#[derive(Clone, Copy, ValueEnum)]
pub enum Stays {
    Leave,
    Stay,
}

/// Mounts the file system on a file in a node, where a process of its own writes from that file to a
/// region. When this process ends, the write ends with an error.
pub fn keep(stays: Stays, key: &RemoteKey, device: &Path, path: &Path) -> Result<()> {
    let device = hang::mount_on(device, path)?;
    let mut hold = Command::new(env::current_exe()?);
    let who = match stays {
        Stays::Leave => "leave",
        Stays::Stay => "stay",
    };
    hold.args(["adversary", "lock-holder", who, &key.to_string()]);
    hold.arg(path);
    let mut hold = hold.stdin(Stdio::piped()).spawn()?;
    let mut to_hold = hold.stdin.take().ok_or("no pipe")?;
    hang::serve(device, |opcode| match opcode {
        INIT | OPEN => hang::answer(opcode),
        GETATTR => Some(attributes()),
        READ => {
            // Either reader may be about to end.
            let _ = report(&Report::Blocked);
            let _ = writeln!(to_hold);
            None
        }
        _ => None,
    })?;
    Ok(())
}

/// The answer to a request for the file's attributes.
fn attributes() -> Vec<u8> {
    let mut answer = vec![0; ATTRIBUTES];
    answer[..8].copy_from_slice(&u64::from(u32::MAX).to_ne_bytes());
    answer[SIZE..SIZE + 8].copy_from_slice(&((PAGES * PAGE) as u64).to_ne_bytes());
    answer[MODE..MODE + 4].copy_from_slice(&(libc::S_IFREG | 0o600).to_ne_bytes());
    answer
}

/// A leaver keeps the lock of the memory that the region is in. A member that stays keeps that of each
/// memory to which the region moves, and acknowledges the move once it has the lock.
pub fn hold(stays: Stays, key: RemoteKey, path: &Path) -> Result<()> {
    let mut agent = Agent::greet()?;
    let access = Access::all();
    let (reply, mut files) = agent.ask(&Request::Open { key, access })?;
    if !matches!(reply, Reply::Region { .. }) {
        return Err(format!("{reply:?}").into());
    }
    let file = File::options().read(true).write(true).open(path)?;
    // fstat(2), because statx(2) asks the server for more.
    fstat(&file)?;
    let pages = Arc::new(Mapping::of(&file, PAGES)?);
    if let Stays::Leave = stays {
        write(&files.swap_remove(0), &pages, 0);
        return Err("it was answered".into());
    }
    report(&Report::Open)?;
    let mut kept = 0..PAGES;
    loop {
        match agent.hear()? {
            (Message::Event(Event::Move { .. }), mut files) => {
                let (fresh, pages) = (files.swap_remove(0), Arc::clone(&pages));
                let page = kept.next().ok_or("that was the last page")?;
                thread::spawn(move || write(&fresh, &pages, page));
                io::stdin().lock().read_line(&mut String::new())?;
            }
            (
                Message::Event(Event::Epoch {
                    partition, epoch, ..
                }),
                _,
            ) => {
                agent.say(&Request::Ack { partition, epoch })?;
            }
            _ => {}
        }
    }
}

fn write(memory: &File, from: &Mapping, page: usize) {
    // SAFETY: the kernel reads a page that is mapped. The call fails once the server has gone.
    unsafe { libc::pwrite(memory.as_raw_fd(), from.address(page * PAGE), 8, 0) };
}
