//! What a socket is told before it is used: how long the other side may be silent, and how much
//! may be on its way.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::sockopt;

use super::channel::WINDOW;

/// A connection on which nothing is on its way is asked after so long whether it is still there,
/// and then [`PROBES`] times every second.
const IDLE: Duration = Duration::from_secs(2);
const PROBES: u32 = 4;

/// How long the other side's system may take to acknowledge what was sent. On a channel the other
/// side always has room.
const UNACKNOWLEDGED: Duration = Duration::from_secs(6);

/// The same for replies to operations: also how long who asked may leave them.
const UNREAD: Duration = Duration::from_secs(120);

/// Bytes that the system keeps for a socket in each direction, as many as it counts for a window.
const BUFFER: usize = 2 * WINDOW;

/// For the connection of a [`QueuePair`](super::QueuePair), which knows how long to wait for replies.
///
/// # Errors
/// The system's: it is no TCP socket.
pub fn for_operations(socket: impl AsFd) -> io::Result<()> {
    keep_alive(socket)
}

/// For a connection that is [served](super::serve()).
///
/// # Errors
/// The system's: it is no TCP socket.
pub fn for_serving(socket: impl AsFd) -> io::Result<()> {
    let socket = socket.as_fd();
    keep_alive(socket)?;
    sockopt::set_tcp_user_timeout(socket, UNREAD.as_millis() as u32)?;
    Ok(())
}

/// For a connection of a [`Channel`](super::Channel), at either end.
///
/// # Errors
/// The system's: it is no TCP socket.
pub fn for_packets(socket: impl AsFd) -> io::Result<()> {
    let socket = socket.as_fd();
    keep_alive(socket)?;
    sockopt::set_tcp_user_timeout(socket, UNACKNOWLEDGED.as_millis() as u32)?;
    // Only an administrator may pass the system's limit; others get what it allows.
    sockopt::set_socket_recv_buffer_size_force(socket, BUFFER)
        .or_else(|_| sockopt::set_socket_recv_buffer_size(socket, BUFFER))?;
    sockopt::set_socket_send_buffer_size_force(socket, BUFFER)
        .or_else(|_| sockopt::set_socket_send_buffer_size(socket, BUFFER))?;
    Ok(())
}

fn keep_alive(socket: impl AsFd) -> io::Result<()> {
    let socket = socket.as_fd();
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, IDLE)?;
    sockopt::set_tcp_keepintvl(socket, Duration::from_secs(1))?;
    sockopt::set_tcp_keepcnt(socket, PROBES)?;
    Ok(())
}
