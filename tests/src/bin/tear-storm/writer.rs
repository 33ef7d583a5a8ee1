//! Writers, which change values until there is a line on standard input, or its end.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tests::checks::Result;
use tests::random::mix;
use tests::value;
use toroid_kv::Client;

use crate::storm::{Tally, name};

/// Bytes of memory of an added key, with its share of the memory that must stay free.
const ADDED: u64 = 128;

static STOP: AtomicBool = AtomicBool::new(false);

fn listen_for_the_end() {
    thread::spawn(|| {
        // A line, the end of the input, and an error end it alike.
        let _ = io::stdin().read_line(&mut String::new());
        STOP.store(true, Ordering::Relaxed);
    });
}

fn is_over() -> bool {
    STOP.load(Ordering::Relaxed)
}

/// One change. Its number implies all changes before it, which readers use to judge versions.
pub struct Change {
    pub key: u32,
    pub is_delete: bool,
}

impl Change {
    /// The change of this number, from 1.
    pub fn of(number: u32, keys: u32) -> Self {
        let random = mix(number.into());
        Change {
            key: (random % u64::from(keys)) as u32,
            is_delete: (random >> 32).is_multiple_of(8),
        }
    }
}

/// Sets and deletes; versions are the numbers of changes.
pub fn change(mut client: Client, keys: u32) -> Result<Tally> {
    listen_for_the_end();
    let mut tally = Tally::default();
    let mut value = Vec::new();
    for version in 1u32.. {
        if is_over() {
            break;
        }
        let Change { key, is_delete } = Change::of(version, keys);
        if is_delete {
            client.delete(&name(key))?;
            tally.deletes += 1;
            continue;
        }
        value::write(&mut value, key, version);
        client.set(&name(key), 0, 0, &value)?;
        tally.sets += 1;
    }
    Ok(tally)
}

/// Sets each key once, and then adds others for as long as there is memory.
pub fn grow(mut client: Client, keys: u32, memory: u64) -> Result<Tally> {
    listen_for_the_end();
    let mut tally = Tally::default();
    let mut value = Vec::new();
    let added = u32::try_from(memory / 2 / ADDED)?;
    for key in 0..keys.saturating_add(added) {
        if is_over() {
            return Ok(tally);
        }
        value::write(&mut value, key, 1);
        // Added keys are never read.
        value.truncate(if key < keys { usize::MAX } else { 8 });
        client.set(&name(key), 0, 0, &value)?;
        tally.sets += 1;
    }
    while !is_over() {
        thread::sleep(Duration::from_millis(1));
    }
    Ok(tally)
}

/// Sets all keys to the number of the round, and flushes them, by memcached's protocol.
pub fn flush(port: u16, keys: u32) -> Result<Tally> {
    listen_for_the_end();
    let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    let mut tally = Tally::default();
    let (mut value, mut round) = (Vec::new(), Vec::new());
    for version in 1u32.. {
        if is_over() {
            break;
        }
        round.clear();
        for key in 0..keys {
            value::write(&mut value, key, version);
            round.extend_from_slice(b"set ");
            round.extend_from_slice(&name(key));
            write!(round, " 0 0 {} noreply\r\n", value.len())?;
            round.extend_from_slice(&value);
            round.extend_from_slice(b"\r\n");
        }
        round.extend_from_slice(b"flush_all\r\n");
        server.write_all(&round)?;
        let mut answer = [0; 4];
        server.read_exact(&mut answer)?;
        if answer != *b"OK\r\n" {
            return Err(format!("the server said {}", answer.escape_ascii()).into());
        }
        tally.sets += u64::from(keys);
    }
    Ok(tally)
}
