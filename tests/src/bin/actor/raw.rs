//! Raw sockets: whole frames, past the addresses, routes and filters of a node's kernel.

use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, bind, recvfrom, send,
    setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;
use tests::actor::{Event, report};
use toroid_model::addressing::mac_text;

use super::{Result, watch_input};

/// Time without a frame after which all frames have arrived.
const QUIET: Duration = Duration::from_millis(200);

/// Bytes of a frame, at most.
const MAX_FRAME: usize = 1 << 17;

/// Packet type of frames that this kernel sends (`PACKET_OUTGOING` of packet(7)).
const OUTGOING: u8 = 4;

/// A raw socket on one interface.
pub struct RawSocket {
    socket: OwnedFd,
    interface: LinkAddr,
}

impl RawSocket {
    /// A socket that sends, and receives nothing.
    pub fn sender(interface: &str) -> Result<Self> {
        RawSocket::open(interface, None)
    }

    /// A socket that receives frames of every EtherType.
    pub fn receiver(interface: &str) -> Result<Self> {
        RawSocket::open(interface, Some(SockProtocol::EthAll))
    }

    fn open(name: &str, protocol: Option<SockProtocol>) -> Result<Self> {
        let interface = getifaddrs()?
            .filter(|one| one.interface_name == name)
            .find_map(|one| one.address?.as_link_addr().copied())
            .ok_or_else(|| format!("there is no {name}"))?;
        let flags = SockFlag::SOCK_CLOEXEC;
        let socket = socket(AddressFamily::Packet, SockType::Raw, flags, protocol)?;
        bind(socket.as_raw_fd(), &interface)?;
        Ok(RawSocket { socket, interface })
    }

    /// The interface's own address.
    pub fn mac(&self) -> Result<[u8; 6]> {
        Ok(self.interface.addr().ok_or("it has no address")?)
    }

    /// Sends a frame, or drops it when the interface's queue is full.
    pub fn send(&self, frame: &[u8]) -> Result<()> {
        match send(self.socket.as_raw_fd(), frame, MsgFlags::empty()) {
            Ok(_) | Err(Errno::ENOBUFS) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The next frame from another sender, or `None` after [`QUIET`].
    fn receive<'b>(&self, buffer: &'b mut [u8]) -> Result<Option<&'b [u8]>> {
        loop {
            match recvfrom::<LinkAddr>(self.socket.as_raw_fd(), buffer) {
                // Until it was bound, the socket received from all interfaces.
                Ok((len, Some(from)))
                    if from.ifindex() == self.interface.ifindex() && from.pkttype() != OUTGOING =>
                {
                    return Ok(Some(&buffer[..len]));
                }
                Ok(_) | Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Counts frames that contain `mark`, and collects the sources of all frames, until the input ends.
pub fn sniff(interface: &str, mark: &str) -> Result<()> {
    let socket = RawSocket::receiver(interface)?;
    let quiet = TimeVal::new(0, QUIET.as_micros().try_into()?);
    setsockopt(&socket.socket, sockopt::ReceiveTimeout, &quiet)?;
    report(&Event::Ready)?;
    let ended = watch_input();
    let mut buffer = vec![0; MAX_FRAME];
    let (mut marked, mut sources) = (0u64, BTreeSet::new());
    loop {
        let has_ended = ended.load(Ordering::Acquire);
        match socket.receive(&mut buffer)? {
            Some(frame) => {
                let (_, source) = frame[..12].split_at(6);
                sources.insert(<[u8; 6]>::try_from(source)?);
                if contains(frame, mark.as_bytes()) {
                    marked += 1;
                    if marked == 1 {
                        report(&Event::First)?;
                    }
                }
            }
            None if has_ended => break,
            None => {}
        }
    }
    let sources = sources
        .into_iter()
        .map(|source| mac_text(source).to_string());
    Ok(report(&Event::Frames {
        marked,
        sources: sources.collect(),
    })?)
}

fn contains(frame: &[u8], mark: &[u8]) -> bool {
    frame.windows(mark.len()).any(|bytes| bytes == mark)
}
