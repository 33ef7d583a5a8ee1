//! What system tests run in nodes where no stock program will do.
//!
//! ```text
//! probe tcp HOST PORT          standard input to a connection, what comes back to standard output
//! probe listen PORT            counts datagrams until its input ends: "COUNT NEWEST"
//! probe flood ADDRESS PORT     sends datagrams until its input ends, then some more
//! probe own DOMAIN             exports memory until its input ends: KEY, then its first word
//! probe fill DOMAIN BYTES      exports memory with a number in each word: KEY; and says for each line of its input
//!                              whether all but the first word are as they were
//! probe count DOMAIN PLACE KEY adds to that word until it fails, and says how it failed
//! probe tally DOMAIN PLACE KEY adds to that word until its input ends, and says how often
//! probe spoil DOMAIN PLACE KEY adds to the word behind it until it fails
//! probe watch DOMAIN PLACE KEY reads and adds to that word until both fail; says how often it added,
//!                              when the newest read began that succeeded, and how they failed
//! probe mix DOMAIN PLACE KEY AT EVERY
//!                              writes two words there and reads them back until its input ends or it fails, and
//!                              every so many times (0 is never) adds to the first word of all; says how often it
//!                              added, and how it failed
//! probe open DOMAIN KEY        says whether it may
//! probe manage DOMAIN PLACE TIMES
//!                              lets a node join and leave so often, while another thread asks for regions all the
//!                              time; says the first word of its own memory
//! probe hold SOCKET COUNT      holds so many connections until its input ends
//! probe gorge COUNT BYTES      begins requests of so many bytes to the agent, over so many connections of this node, and
//!                              says what it answers to each
//! probe storm INTERFACE MARK [FROM]
//!                              sends frames for all and for groups, each with MARK, in the name of FROM or
//!                              its own, until its input ends, then some more
//! probe aim INTERFACE MARK FROM TO
//!                              sends such frames for TO, in the name of FROM
//! probe sniff INTERFACE MARK   counts frames with MARK from others until its input ends and no more come:
//!                              "marked COUNT", and "from MAC" for each source of any frame
//! probe stack DOMAIN serve PORT COUNT
//!                              gives each who connects COUNT bytes, as HTTP, by a stack of its own
//! probe stack DOMAIN fetch ADDRESS PORT
//!                              prints what such a server, or another, gives
//! probe stack DOMAIN echo PORT sends back what each who connects sends, and each datagram
//! probe stack DOMAIN talk ADDRESS PORT
//!                              standard input to a connection, line by line, and the answers to standard output
//! probe stack DOMAIN ask ADDRESS PORT
//!                              sends a datagram, and prints the answer
//! probe stack DOMAIN babble    sends what no stack would, until its input ends, and reads nothing
//! ```

mod raw;
mod stack;
mod storm;

use std::error::Error;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use domains::member::{Member, MemberError};
use domains::protocol::{NODE_SOCKET, VERSION};
use toroid_fabric::provider::{QueuePair, RemoteRegion};
use toroid_fabric::{Access, Completion, Endpoint, OpError, Operation, Region, RemoteKey};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// A peer that says nothing for so long has hung.
const PATIENCE: Duration = Duration::from_secs(20);

/// How many datagrams are sent after the input has ended.
const SOME_MORE: u32 = 200;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["tcp", host, port] => tcp(host, port.parse()?),
        ["listen", port] => listen(port.parse()?),
        ["flood", address, port] => flood(address, port.parse()?),
        ["own", domain] => own(domain),
        ["fill", domain, bytes] => fill(domain, bytes.parse()?),
        ["count", domain, place, key] => count(domain, place, key, 0),
        ["tally", domain, place, key] => tally(domain, place, key),
        ["spoil", domain, place, key] => count(domain, place, key, 8),
        ["watch", domain, place, key] => watch(domain, place, key),
        ["mix", domain, place, key, at, every] => {
            mix(domain, place, key, at.parse()?, every.parse()?)
        }
        ["open", domain, key] => open(domain, key),
        ["manage", domain, place, times] => manage(domain, place, times.parse()?),
        ["hold", socket, count] => hold(socket, count.parse()?),
        ["gorge", count, bytes] => gorge(count.parse()?, bytes.parse()?),
        ["storm", interface, mark] => storm::storm(interface, mark, None),
        ["storm", interface, mark, from] => storm::storm(interface, mark, Some(from)),
        ["aim", interface, mark, from, to] => storm::aim(interface, mark, from, to),
        ["stack", domain, ref words @ ..] => stack::run(domain, words),
        ["sniff", interface, mark] => raw::sniff(interface, mark),
        _ => Err(format!("what is {words:?}?").into()),
    }
}

fn tcp(host: &str, port: u16) -> Result<()> {
    let mut to = TcpStream::connect((host, port))?;
    to.set_read_timeout(Some(PATIENCE))?;
    let mut from = to.try_clone()?;
    let writer = thread::spawn(move || {
        // A server that has heard enough closes before all was sent.
        let _ = io::copy(&mut io::stdin(), &mut to);
        let _ = to.shutdown(Shutdown::Write);
    });
    let copied = io::copy(&mut from, &mut io::stdout());
    drop(writer);
    match copied {
        // A server that closes without having read all resets the connection.
        Err(error) if error.kind() != io::ErrorKind::ConnectionReset => Err(error.into()),
        _ => Ok(()),
    }
}

fn now_ns() -> Result<u64> {
    Ok(SystemTime::now()
        .duration_since(UNIX_EPOCH)?
        .as_nanos()
        .try_into()?)
}

/// Prints how many datagrams came, and when the newest was sent, in nanoseconds since 1970.
fn listen(port: u16) -> Result<()> {
    let socket = UdpSocket::bind(("0.0.0.0", port))?;
    socket.set_read_timeout(Some(Duration::from_millis(100)))?;
    println!("ready");
    let ended = watch_input();
    let (mut count, mut newest) = (0u64, 0);
    loop {
        // What was sent before the end may still be on its way to us.
        let last_look = ended.load(Ordering::Acquire);
        let mut datagram = [0; 8];
        while socket.recv(&mut datagram).is_ok() {
            count += 1;
            newest = newest.max(u64::from_le_bytes(datagram));
            if count == 1 {
                println!("first");
            }
            if ended.load(Ordering::Acquire) && !last_look {
                break;
            }
        }
        if last_look {
            println!("{count} {newest}");
            return Ok(());
        }
    }
}

fn flood(address: &str, port: u16) -> Result<()> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.set_broadcast(true)?;
    let send = || -> Result<()> {
        // It fails when there is no way to the peer any more; we insist.
        let _ = socket.send_to(&now_ns()?.to_le_bytes(), (address, port));
        thread::sleep(Duration::from_micros(100));
        Ok(())
    };
    let ended = watch_input();
    while !ended.load(Ordering::Acquire) {
        send()?;
    }
    for _ in 0..SOME_MORE {
        send()?;
    }
    Ok(())
}

/// Becomes true when standard input ends.
fn watch_input() -> &'static AtomicBool {
    static ENDED: AtomicBool = AtomicBool::new(false);
    thread::spawn(|| {
        // An error is an end, too.
        let _ = io::stdin().read_to_end(&mut Vec::new());
        ENDED.store(true, Ordering::Release);
    });
    &ENDED
}

fn own(domain: &str) -> Result<()> {
    let region = Member::attach()?
        .domain(domain)?
        .alloc(4096, Access::all())?;
    println!("{}", region.remote_key().ok_or("no key")?);
    io::stdin().read_to_end(&mut Vec::new())?;
    println!("{}", region.load(0)?);
    Ok(())
}

fn fill(domain: &str, bytes: u64) -> Result<()> {
    let region = Member::attach()?
        .domain(domain)?
        .alloc(bytes, Access::all())?;
    let words = || (8..bytes).step_by(8);
    words().try_for_each(|at| region.store(at, !at))?;
    println!("{}", region.remote_key().ok_or("no key")?);
    for line in io::stdin().lines() {
        line?;
        let mut wrong = Vec::new();
        for at in words() {
            if region.load(at)? != !at {
                wrong.push(at);
            }
        }
        match wrong.first() {
            None => println!("whole"),
            Some(first) => println!("{} words are wrong, first that at {first}", wrong.len()),
        }
    }
    Ok(())
}

fn count(domain: &str, place: &str, key: &str, at: u64) -> Result<()> {
    let (remote, mut pair) = open_for_adding(domain, place, key)?;
    let mut counted = 0u64;
    loop {
        match complete(&mut pair, Operation::fetch_add(&remote, at, 1))? {
            Ok(_) => counted += 1,
            Err(error) => return ended(counted, error),
        }
    }
}

fn tally(domain: &str, place: &str, key: &str) -> Result<()> {
    let (remote, mut pair) = open_for_adding(domain, place, key)?;
    let has_ended = watch_input();
    let mut counted = 0u64;
    while !has_ended.load(Ordering::Acquire) {
        complete(&mut pair, Operation::fetch_add(&remote, 0, 1))??;
        counted += 1;
    }
    println!("{counted}");
    Ok(())
}

fn mix(domain: &str, place: &str, key: &str, at: u64, every: u64) -> Result<()> {
    let domain = Member::attach()?.domain(domain)?;
    let remote = domain.open(key.parse()?, Access::all())?;
    let mut pair = domain.queue_pair(place.parse()?, 4)?;
    let local = Region::local(64)?;
    println!("open");
    io::stdout().flush()?;
    let has_ended = watch_input();
    let (mut round, mut added) = (0u64, 0u64);
    while !has_ended.load(Ordering::Acquire) {
        round += 1;
        local.store(0, round)?;
        pair.post(0, Operation::write(&remote, at, &local, 0..8))?;
        pair.post(1, Operation::write(&remote, at + 8, &local, 0..8))?;
        pair.post(2, Operation::read(&remote, at, &local, 8..24))?;
        let adds = round.checked_rem(every) == Some(0);
        if adds {
            pair.post(3, Operation::fetch_add(&remote, 0, 1))?;
        }
        pair.flush();
        for id in 0..3 + u64::from(adds) {
            pair.wait(PATIENCE);
            let mut done = [Completion::default()];
            if pair.poll(&mut done) != 1 || done[0].id != id {
                return Err(
                    format!("round {round}: not operation {id} ended, but {done:?}").into(),
                );
            }
            match done[0].result {
                Ok(_) => added += u64::from(id == 3),
                Err(error) => return ended(added, error),
            }
        }
        if (local.load(8)?, local.load(16)?) != (round, round) {
            let found = (local.load(8)?, local.load(16)?);
            return Err(format!("round {round}: read {found:?}").into());
        }
        if round % 64 == 0 {
            println!("round {round}");
        }
    }
    println!("{added}");
    Ok(())
}

fn open_for_adding(domain: &str, place: &str, key: &str) -> Result<(RemoteRegion, QueuePair)> {
    let domain = Member::attach()?.domain(domain)?;
    let remote = domain.open(key.parse()?, Access::all())?;
    let pair = domain.queue_pair(place.parse()?, 1)?;
    println!("open");
    io::stdout().flush()?;
    Ok((remote, pair))
}

fn complete(
    pair: &mut QueuePair,
    operation: Operation<RemoteRegion>,
) -> Result<std::result::Result<u64, OpError>> {
    pair.post(0, operation)?;
    pair.flush();
    pair.wait(PATIENCE);
    let mut done = [Completion::default()];
    match pair.poll(&mut done) {
        1 => Ok(done[0].result),
        _ => Err("an operation did not complete".into()),
    }
}

fn watch(domain: &str, place: &str, key: &str) -> Result<()> {
    let domain = Member::attach()?.domain(domain)?;
    let key: RemoteKey = key.parse()?;
    let to_read = domain.open(key, Access::REMOTE_READ)?;
    let to_add = domain.open(key, Access::all())?;
    let mut pair = domain.queue_pair(place.parse()?, 1)?;
    let word = Region::local(8)?;
    println!("open");
    io::stdout().flush()?;
    let (mut counted, mut known, mut newest) = (0u64, 0, 0);
    let mut failed = [None; 2];
    while failed.contains(&None) {
        let began = now_ns()?;
        let read = Operation::read(&to_read, 0, &word, 0..8);
        match complete(&mut pair, read)? {
            Ok(_) => {
                known = newer(known, word.load(0)?)?;
                newest = began;
            }
            Err(error) => failed[0] = Some(error),
        }
        match complete(&mut pair, Operation::fetch_add(&to_add, 0, 1))? {
            Ok(before) => {
                known = newer(known, before)? + 1;
                counted += 1;
            }
            Err(error) => failed[1] = Some(error),
        }
    }
    println!("{counted} {newest} {failed:?}");
    Ok(())
}

/// A word that only rises is not read as it was before.
fn newer(known: u64, seen: u64) -> Result<u64> {
    if seen >= known {
        Ok(seen)
    } else {
        Err(format!("{seen} was read after {known}").into())
    }
}

fn ended(counted: u64, error: OpError) -> Result<()> {
    println!("{counted} {error:?}");
    Ok(())
}

fn open(domain: &str, key: &str) -> Result<()> {
    let domain = Member::attach()?.domain(domain)?;
    domain.open(key.parse()?, Access::REMOTE_READ)?;
    println!("open");
    Ok(())
}

fn manage(domain: &str, place: &str, times: u32) -> Result<()> {
    let domain = Member::attach()?.domain(domain)?;
    let (nodes, own) = ([place.parse()?], domain.alloc(4096, Access::all())?);
    let is_over = AtomicBool::new(false);
    let ask = || -> std::result::Result<(), MemberError> {
        while !is_over.load(Ordering::Acquire) {
            domain.alloc(4096, Access::all())?;
        }
        Ok(())
    };
    let change = || -> std::result::Result<(), MemberError> {
        for _ in 0..times {
            domain.grow(&nodes)?;
            domain.shrink(&nodes)?;
        }
        Ok(())
    };
    let (asked, changed) = thread::scope(|scope| {
        let asking = scope.spawn(ask);
        let changed = change();
        is_over.store(true, Ordering::Release);
        (asking.join(), changed)
    });
    changed?;
    asked.map_err(|_| "the other thread failed")??;
    println!("{}", own.load(0)?);
    Ok(())
}

/// Takes places at a socket that others need too.
/// All of each request is sent but its last byte, so the agent has to keep what it takes. Of the
/// answers the payloads are printed, one in a line.
fn gorge(count: usize, bytes: u32) -> Result<()> {
    let frame = |payload: &[u8], len: u32| [&len.to_le_bytes()[..], &[0; 4], payload].concat();
    let hello = format!(r#"{{"request":"hello","version":{VERSION}}}"#);
    let hello = frame(hello.as_bytes(), hello.len() as u32);
    let request = frame(&vec![b' '; bytes as usize - 1], bytes);
    let address = SocketAddr::from_abstract_name(NODE_SOCKET)?;
    let mut connections = Vec::new();
    for _ in 0..count {
        let mut agent = UnixStream::connect_addr(&address)?;
        agent.set_read_timeout(Some(PATIENCE))?;
        agent.write_all(&hello)?;
        answer(&mut agent)?;
        // An agent that takes no such request ends the connection meanwhile.
        let _ = agent.write_all(&request);
        connections.push(agent);
    }
    for mut agent in connections {
        let _ = agent.shutdown(Shutdown::Write);
        println!("{}", answer(&mut agent)?);
    }
    Ok(())
}

/// The payload of an agent's next answer, if there is one.
fn answer(agent: &mut UnixStream) -> Result<String> {
    let mut header = [0; 8];
    match agent.read_exact(&mut header) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(String::new()),
        read => read?,
    }
    let [a, b, c, d, ..] = header;
    let mut payload = vec![0; u32::from_le_bytes([a, b, c, d]) as usize];
    agent.read_exact(&mut payload)?;
    Ok(String::from_utf8(payload)?)
}

fn hold(socket: &str, count: usize) -> Result<()> {
    let connections: io::Result<Vec<_>> = (0..count).map(|_| UnixStream::connect(socket)).collect();
    println!("ready");
    io::copy(&mut io::stdin(), &mut io::sink())?;
    drop(connections?);
    Ok(())
}
