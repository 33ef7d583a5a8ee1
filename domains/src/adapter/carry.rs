//! Bytes between a process of this host and another host.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::thread;

use fabric::tcp::tune;

use super::STACK_BYTES;
use super::messages::Carriage;

/// Bytes that are carried in one go: as many as the longest part of an operation.
const BUFFER_BYTES: usize = 64 * 1024;

/// Carries bytes in both directions until either side has ended.
pub(super) fn carry(carriage: Carriage, far: TcpStream, near: UnixStream) {
    let tuned = match carriage.packets {
        true => tune::for_packets(&far),
        false => tune::for_operations(&far),
    };
    if let Err(error) = tuned {
        tracing::warn!("a connection with another host is not as it should be: {error}");
    }
    // What was carried is still received. It fails when the other side has ended already.
    let end = || {
        let _ = far.shutdown(Shutdown::Both);
        let _ = near.shutdown(Shutdown::Both);
    };
    thread::scope(|scope| {
        let inward = || {
            pass(&far, &near);
            end();
        };
        let builder = thread::Builder::new().stack_size(STACK_BYTES);
        if builder.spawn_scoped(scope, inward).is_ok() {
            pass(&near, &far);
        }
        end();
    });
}

/// Until one of them ends.
fn pass(mut from: impl Read, mut to: impl Write) {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let sent = match from.read(&mut buffer) {
            Ok(0) => return,
            Ok(count) => to.write_all(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(error),
        };
        if sent.is_err() {
            return;
        }
    }
}
