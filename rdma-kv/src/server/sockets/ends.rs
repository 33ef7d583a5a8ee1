//! Addresses of the two ends of a connection, as `stats conns` shows them.

use std::net::SocketAddr;
use std::os::fd::AsFd;

use rustix::net::{SocketAddrAny, SocketAddrUnix, getpeername, getsockname};

use crate::text::Ends;

/// The ends of a connection; empty if the system does not tell.
pub(super) fn ends(socket: impl AsFd) -> Ends {
    let local = local(&socket);
    let peer = getpeername(&socket).ok().flatten().map(shown);
    Ends {
        // Clients of a unix socket have no name.
        peer: peer
            .filter(|peer| peer != "unix:")
            .unwrap_or_else(|| local.clone()),
        local,
    }
}

/// Local address of a socket; empty if the system does not tell.
pub(crate) fn local(socket: impl AsFd) -> String {
    getsockname(&socket).map(shown).unwrap_or_default()
}

fn shown(address: SocketAddrAny) -> String {
    if let Ok(unix) = SocketAddrUnix::try_from(address.clone()) {
        let path = unix.path().unwrap_or_default();
        return format!("unix:{}", path.to_string_lossy());
    }
    match SocketAddr::try_from(address) {
        Ok(address @ SocketAddr::V4(_)) => format!("tcp:{address}"),
        Ok(address @ SocketAddr::V6(_)) => format!("tcp6:{address}"),
        Err(_) => String::new(),
    }
}
