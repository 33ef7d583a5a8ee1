//! Accepts connections, and deals them to the workers in turn.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{SendFlags, SocketFlags, accept_with, send};

use super::listen::Listeners;
use super::worker::{Inbox, Service, SessionFactory, Worker};
use crate::server::{Settings, Stop, resume, spawn};

pub(crate) const TOO_MANY: &[u8] = b"ERROR Too many open connections\r\n";

/// Pause when the system or the limit admits no connection.
const PAUSE: Duration = Duration::from_millis(10);

/// Connections accepted from one listener per turn.
const TURN: usize = 64;

/// Accepts and serves until stopped; calls `ready` once all threads run.
pub(crate) fn serve<H: SessionFactory>(
    listeners: &Listeners,
    settings: &Settings,
    sessions: &H,
    stop: &Stop,
    ready: impl FnOnce(),
) -> io::Result<()> {
    let service = Service {
        sessions,
        stop,
        users: settings.users.as_ref(),
        idle_timeout: settings.idle_timeout,
        open: AtomicUsize::new(0),
    };
    let workers = (0..settings.threads.max(1)).map(|number| Worker::new(&service, number));
    let workers: Vec<_> = workers.collect::<io::Result<_>>()?;
    let (workers, inboxes): (Vec<_>, Vec<_>) = workers.into_iter().unzip();
    std::thread::scope(|scope| {
        // The end of one thread ends all.
        let threads = stop.after(|| {
            let start = |worker| start(scope, worker, stop);
            let threads: Vec<_> = workers.into_iter().map(start).collect::<io::Result<_>>()?;
            ready();
            accept_all(listeners, settings, &inboxes, &service)?;
            Ok::<_, io::Error>(threads)
        })?;
        let ends = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(resume));
        ends.collect()
    })
}

fn start<'scope, 'a: 'scope, H: SessionFactory>(
    scope: &'scope Scope<'scope, '_>,
    worker: Worker<'a, H>,
    stop: &'scope Stop,
) -> io::Result<ScopedJoinHandle<'scope, io::Result<()>>> {
    let run = move || stop.after(|| worker.run());
    spawn(scope, run)
}

fn accept_all(
    listeners: &Listeners,
    settings: &Settings,
    inboxes: &[Inbox],
    service: &Service<'_, impl SessionFactory>,
) -> io::Result<()> {
    let fds = listeners.fds();
    let mut inboxes = inboxes.iter().cycle();
    let full = || service.open.load(Ordering::Relaxed) >= settings.connections;
    loop {
        let woken = service.stop.wait_or(&fds, None)?;
        if woken.stopped {
            return Ok(());
        }
        if full() && !settings.refuse_at_once {
            service.sessions.accepts(false);
            while full() {
                if service.stop.wait(PAUSE)? {
                    return Ok(());
                }
            }
        }
        service.sessions.accepts(true);
        for (&fd, _) in fds.iter().zip(woken.ready).filter(|(_, ready)| *ready) {
            for _ in 0..TURN {
                if full() && !settings.refuse_at_once {
                    break;
                }
                let Some(socket) = accept(fd, service)? else {
                    break;
                };
                match inboxes.next() {
                    Some(inbox) if !full() => inbox.give(socket, service),
                    // Best effort: the client may have gone.
                    _ => {
                        service.sessions.refused();
                        let _ = send(&socket, TOO_MANY, SendFlags::NOSIGNAL);
                    }
                }
            }
        }
    }
}

/// The next connection, if there is one.
fn accept(
    listener: BorrowedFd<'_>,
    service: &Service<'_, impl SessionFactory>,
) -> io::Result<Option<OwnedFd>> {
    match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
        Ok(socket) => Ok(Some(socket)),
        Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
        Err(error) => {
            // Without descriptors or memory the listener stays readable: wait rather
            // than spin.
            tracing::warn!("cannot accept a connection: {error}");
            service.sessions.accepts(false);
            service.stop.wait(PAUSE)?;
            Ok(None)
        }
    }
}
