//! The memcached protocol over TCP: a thread per connection.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Scope;
use std::time::Duration;

use super::{ServeError, Stop};
use crate::shared::Shared;
use crate::text::{Conversation, Next};

const TOO_MANY: &[u8] = b"ERROR Too many open connections\r\n";

/// Replies beyond this many bytes do not keep their memory.
const REPLIES_KEPT: usize = 512 * 1024;

/// Binds all addresses, before anything is promised to anyone.
pub(super) fn listen(addresses: &[IpAddr], port: u16) -> Result<Vec<TcpListener>, ServeError> {
    let bind = |address: IpAddr| {
        let address = SocketAddr::new(address, port);
        let listener = TcpListener::bind(address)
            .and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
        listener.map_err(|error| ServeError::Listen { address, error })
    };
    if !addresses.is_empty() {
        return addresses.iter().copied().map(bind).collect();
    }
    // The IPv6 wildcard takes IPv4 as well, where there is IPv6.
    match bind(Ipv6Addr::UNSPECIFIED.into()) {
        Err(ServeError::Listen { error, .. }) if !is_taken(&error) => {
            Ok(vec![bind(Ipv4Addr::UNSPECIFIED.into())?])
        }
        listener => Ok(vec![listener?]),
    }
}

fn is_taken(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::AddrInUse | ErrorKind::PermissionDenied
    )
}

/// Accepts and serves until stopped.
pub(super) fn serve(
    listeners: &[TcpListener],
    limit: usize,
    store: &Shared,
    stop: &Stop,
) -> io::Result<()> {
    let open = Open {
        streams: Mutex::default(),
        limit,
    };
    std::thread::scope(|scope| {
        let result = accept_all(scope, listeners, &open, store, stop);
        open.close_all();
        result
    })
}

fn accept_all<'scope>(
    scope: &'scope Scope<'scope, '_>,
    listeners: &'scope [TcpListener],
    open: &'scope Open,
    store: &'scope Shared,
    stop: &Stop,
) -> io::Result<()> {
    let fds: Vec<_> = listeners.iter().map(AsFd::as_fd).collect();
    let mut number = 0;
    loop {
        let woken = stop.wait_or(&fds, None)?;
        if woken.stopped {
            return Ok(());
        }
        let ready = listeners
            .iter()
            .zip(woken.ready)
            .filter(|(_, ready)| *ready);
        for (listener, _) in ready {
            let stream = match listener.accept() {
                Ok((stream, _)) => Arc::new(stream),
                Err(error) => {
                    wait_for_descriptors(&error, stop)?;
                    continue;
                }
            };
            number += 1;
            if !open.add(number, &stream) {
                // Best effort: the client may have gone.
                let _ = (&*stream).write_all(TOO_MANY);
                continue;
            }
            let converse = move || {
                if let Err(error) = prepare(&stream).and_then(|()| converse(&*stream, store)) {
                    tracing::debug!("connection {number}: {error}");
                }
                open.remove(number);
            };
            if let Err(error) = std::thread::Builder::new().spawn_scoped(scope, converse) {
                tracing::warn!("no thread for connection {number}: {error}");
                open.remove(number);
            }
        }
    }
}

/// Out of descriptors or memory, the listener stays readable: wait rather than spin.
fn wait_for_descriptors(error: &io::Error, stop: &Stop) -> io::Result<()> {
    let passing = [
        ErrorKind::WouldBlock,
        ErrorKind::Interrupted,
        ErrorKind::ConnectionAborted,
    ];
    if !passing.contains(&error.kind()) {
        tracing::warn!("cannot accept a connection: {error}");
        stop.wait(Duration::from_millis(20))?;
    }
    Ok(())
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)
}

/// Serves one client over any stream of bytes, such as a connection that did not come through this
/// host's TCP, until either side ends it.
///
/// # Errors
/// The stream's.
pub fn converse(mut stream: impl Read + Write, store: &Shared) -> io::Result<()> {
    let mut conversation = Conversation::default();
    let mut replies = Vec::new();
    loop {
        let next = conversation
            .run(store, &mut replies)
            .map_err(io::Error::other)?;
        if !replies.is_empty() {
            stream.write_all(&replies)?;
            replies.clear();
            replies.shrink_to(REPLIES_KEPT);
        }
        match next {
            Next::Close => return Ok(()),
            Next::Continue => continue,
            Next::Read => {}
        }
        match stream.read(conversation.room()) {
            Ok(0) => return Ok(()),
            Ok(count) => conversation.received(count),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// The connections, so that they can be counted and ended.
struct Open {
    streams: Mutex<HashMap<u64, Arc<TcpStream>>>,
    limit: usize,
}

impl Open {
    fn add(&self, number: u64, stream: &Arc<TcpStream>) -> bool {
        let mut streams = self.lock();
        let room = streams.len() < self.limit;
        if room {
            streams.insert(number, Arc::clone(stream));
        }
        room
    }

    fn remove(&self, number: u64) {
        self.lock().remove(&number);
    }

    fn close_all(&self) {
        for stream in self.lock().values() {
            // Fails when it is closed already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<TcpStream>>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
