//! Datagrams and connections over a node's sockets.

use std::io;
use std::net::{IpAddr, Shutdown, TcpStream, UdpSocket};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use tests::actor::{Event, report};
use tests::process::now_ns;

use super::{PATIENCE, Result, watch_input};

/// Datagrams sent after the input has ended.
const SOME_MORE: u32 = 200;

/// Copies standard input to a connection, and the answers to standard output.
pub fn tcp(host: &str, port: u16) -> Result<()> {
    let mut to = TcpStream::connect((host, port))?;
    to.set_read_timeout(Some(PATIENCE))?;
    let mut from = to.try_clone()?;
    let writer = thread::spawn(move || {
        // A server may close before it has read everything.
        let _ = io::copy(&mut io::stdin(), &mut to);
        let _ = to.shutdown(Shutdown::Write);
    });
    let copied = io::copy(&mut from, &mut io::stdout());
    drop(writer);
    match copied {
        // A server that closes before it has read everything resets the connection.
        Err(error) if error.kind() != io::ErrorKind::ConnectionReset => Err(error.into()),
        _ => Ok(()),
    }
}

/// Counts datagrams, each of which has the time of its sending, until the input ends.
pub fn listen(port: u16) -> Result<()> {
    let socket = UdpSocket::bind(("0.0.0.0", port))?;
    socket.set_read_timeout(Some(Duration::from_millis(100)))?;
    report(&Event::Ready)?;
    let ended = watch_input();
    let (mut count, mut newest) = (0u64, 0);
    loop {
        // Datagrams sent before the end may still be on their way.
        let last_look = ended.load(Ordering::Acquire);
        let mut datagram = [0; 8];
        while socket.recv(&mut datagram).is_ok() {
            count += 1;
            newest = newest.max(u64::from_le_bytes(datagram));
            if count == 1 {
                report(&Event::First)?;
            }
            if ended.load(Ordering::Acquire) && !last_look {
                break;
            }
        }
        if last_look {
            return Ok(report(&Event::Datagrams {
                count,
                newest_ns: newest,
            })?);
        }
    }
}

/// Sends datagrams with the time of sending until the input ends, and then [`SOME_MORE`].
pub fn flood(address: IpAddr, port: u16, pause: Duration) -> Result<()> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.set_broadcast(true)?;
    let send = || -> Result<()> {
        // Fails without a route to the peer, which is no reason to stop.
        let _ = socket.send_to(&now_ns().to_le_bytes(), (address, port));
        thread::sleep(pause);
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
