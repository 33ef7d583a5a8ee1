//! Socket options: how long the other side may be silent, and how many bytes may be in flight.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::sockopt;

use super::channel::WINDOW;

/// Idle time before keepalive probes, of which [`PROBES`] follow every second.
const IDLE: Duration = Duration::from_secs(2);
const PROBES: u32 = 4;

/// Longest time without an acknowledgement by the other host on a channel, where that always has
/// room.
const UNACKNOWLEDGED: Duration = Duration::from_secs(6);

/// The same for replies to operations, which includes the time that they are left unread.
const UNREAD: Duration = Duration::from_secs(120);

/// Bytes of the socket buffers in each direction: the kernel counts twice the payload.
const BUFFER: usize = 2 * WINDOW;

/// For the connection of a [`QueuePair`](super::QueuePair), which has its own reply timeout.
///
/// # Errors
/// The system's: `socket` is no TCP socket.
pub fn for_operations(socket: impl AsFd) -> io::Result<()> {
    keep_alive(socket)
}

/// For a connection that is [served](super::serve()).
///
/// # Errors
/// The system's: `socket` is no TCP socket.
pub fn for_serving(socket: impl AsFd) -> io::Result<()> {
    let socket = socket.as_fd();
    keep_alive(socket)?;
    sockopt::set_tcp_user_timeout(socket, UNREAD.as_millis() as u32)?;
    Ok(())
}

/// For a connection of a [`Channel`](super::Channel), at either end.
///
/// # Errors
/// The system's: `socket` is no TCP socket.
pub fn for_packets(socket: impl AsFd) -> io::Result<()> {
    let socket = socket.as_fd();
    keep_alive(socket)?;
    sockopt::set_tcp_user_timeout(socket, UNACKNOWLEDGED.as_millis() as u32)?;
    // Only an administrator may exceed the system's limit; others get that limit.
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
