//! A hostile member: it speaks to the agent without the library, keeps every descriptor that it
//! ever got, acknowledges nothing, and goes on after its node has left.
//!
//! ```text
//! haunt guard DOMAIN BYTES     owns a region; answers lines of its input:
//!     look                         how often a haunted word changes while it looks
//!     sum                          the counted word
//! haunt leave KEY              haunts that region; answers:
//!     open                         opens it once more, for reading and for writing
//!     abuse                        tries more with each than it was granted; says what went through
//!     look                         how much of what it kept changes by others while it looks
//! ```

use std::collections::BTreeSet;
use std::error::Error;
use std::fs::File;
use std::io::{self, BufRead, Write};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use domains::member::Member;
use domains::protocol::{Message, NODE_SOCKET, Reply, Request, VERSION};
use domains::wire::{self, Reader, Writer};
use fabric::{Access, RemoteKey};
use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// What members count in.
const COUNTED: u64 = 0;

/// What the leaver scribbles on, in the first page and in the last.
const HAUNTED: u64 = 64;

/// How long a look takes.
const LOOK: Duration = Duration::from_millis(10);

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["guard", domain, bytes] => guard(domain, bytes.parse()?),
        ["leave", key] => leave(key.parse()?),
        _ => Err(format!("what is {words:?}?").into()),
    }
}

/// Answers each line of the input.
fn converse(mut answer: impl FnMut(&str) -> Result<String>) -> Result<()> {
    for line in io::stdin().lock().lines() {
        println!("{}", answer(&line?)?);
        io::stdout().flush()?;
    }
    Ok(())
}

fn guard(domain: &str, bytes: u64) -> Result<()> {
    let region = Member::attach()?
        .domain(domain)?
        .alloc(bytes, Access::all())?;
    // All of it is there, so that all of it has to move.
    let chunk = vec![7; 4096];
    for page in 1..bytes / 4096 {
        region.write(page * 4096, &chunk)?;
    }
    println!("{}", region.remote_key().ok_or("no key")?);
    io::stdout().flush()?;
    let haunted = [HAUNTED, bytes - 8];
    converse(|line| {
        if line == "sum" {
            return Ok(region.load(COUNTED)?.to_string());
        }
        let (start, mut changes) = (Instant::now(), 0);
        let mut before = [region.load(haunted[0])?, region.load(haunted[1])?];
        while start.elapsed() < LOOK {
            let now = [region.load(haunted[0])?, region.load(haunted[1])?];
            changes += u32::from(now != before);
            before = now;
        }
        // The rest is as it was.
        let mut page = vec![0; 4096];
        for n in [1, bytes / 4096 / 2] {
            region.read(n * 4096, &mut page)?;
            changes += u32::from(page != chunk);
        }
        Ok(changes.to_string())
    })
}

/// Descriptors that were granted, and for what.
type Kept = Arc<Mutex<Vec<(File, Access)>>>;

fn leave(key: RemoteKey) -> Result<()> {
    let kept = Kept::default();
    let scribbling = Arc::clone(&kept);
    thread::spawn(move || scribble(&scribbling));
    let mut agent = connect()?;
    converse(|line| match line {
        "open" => {
            for access in [Access::REMOTE_READ, Access::all()] {
                let open = Request::Open { key, access };
                let asked = ask(&mut agent, &open).or_else(|_| {
                    // The agent was killed, and there is another one.
                    agent = connect()?;
                    ask(&mut agent, &open)
                });
                let (reply, mut files) = asked?;
                if !matches!(reply, Reply::Region { .. }) {
                    return Ok(format!("{reply:?}"));
                }
                lock(&kept).push((files.swap_remove(0), access));
            }
            Ok("open".into())
        }
        "abuse" => Ok(format!("{:?}", abuse(&lock(&kept)))),
        _ => Ok(changes(&lock(&kept))?.to_string()),
    })
}

fn connect() -> Result<(Reader, Writer)> {
    let address = SocketAddr::from_abstract_name(NODE_SOCKET)?;
    let mut agent = wire::split(UnixStream::connect_addr(&address)?)?;
    ask(&mut agent, &Request::Hello { version: VERSION })?;
    Ok(agent)
}

fn ask((reader, writer): &mut (Reader, Writer), request: &Request) -> Result<(Reply, Vec<File>)> {
    writer.send(request, &[])?;
    loop {
        // News is not acknowledged.
        if let (Message::Reply(reply), files) = reader.receive()? {
            return Ok((reply, files.into_iter().map(File::from).collect()));
        }
    }
}

/// Writes to all that it may, for ever.
fn scribble(kept: &Mutex<Vec<(File, Access)>>) {
    for n in 1u64.. {
        for (file, _) in lock(kept).iter() {
            let end = file.metadata().map_or(4096, |metadata| metadata.len());
            for at in [HAUNTED, end - 8] {
                // It fails where only reading was granted.
                let _ = file.write_at(&n.to_le_bytes(), at);
            }
        }
        thread::yield_now();
    }
}

/// What went through of what a descriptor does not allow.
fn abuse(kept: &[(File, Access)]) -> BTreeSet<&'static str> {
    let mut through = BTreeSet::new();
    for (file, access) in kept {
        let mut note = |what, done: bool| _ = done.then(|| through.insert(what));
        let end = file.metadata().map_or(4096, |metadata| metadata.len());
        for len in [0, end - 4096, end + 4096] {
            note("truncate", file.set_len(len).is_ok());
        }
        // Who may write may do these.
        if *access == Access::REMOTE_READ {
            let seal = FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_WRITE);
            note("seal", fcntl(file, seal).is_ok());
            let punch = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
            note("punch", fallocate(file, punch, 0, 4096).is_ok());
            note("write", file.write_at(&[1], HAUNTED).is_ok());
        }
        // That is up to the user, and not to the descriptor: root may.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        if let Ok(reopened) = File::options().write(true).open(path) {
            let _ = reopened.write_at(&[1], HAUNTED);
        }
    }
    through
}

/// How often the counted word changes in any of the memory that was kept.
fn changes(kept: &[(File, Access)]) -> Result<u32> {
    let words = || -> Result<Vec<u64>> {
        let word = |(file, _): &(File, Access)| {
            let mut word = [0; 8];
            file.read_exact_at(&mut word, COUNTED)?;
            Ok(u64::from_le_bytes(word))
        };
        kept.iter().map(word).collect()
    };
    let (start, mut changes) = (Instant::now(), 0);
    let mut before = words()?;
    while start.elapsed() < LOOK {
        let now = words()?;
        // Old memory may be dropped, which reads as zeros.
        let newer = before.iter().zip(&now).filter(|(b, n)| b < n);
        changes += newer.count() as u32;
        before = now;
    }
    Ok(changes)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
