//! Frames from a raw socket, under the sender's own address and another's.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, bind, send, socket};
use toroid_fabric::Place;
use toroid_model::addressing;

use super::{FORGED, OWN, Result};

/// Pause between frames: all members share one driver.
const PAUSE: Duration = Duration::from_millis(1);

/// The EtherType for local experiments (IEEE 802).
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];

pub struct Sender {
    interface: String,
    socket: OwnedFd,
    frames: [Vec<u8>; 4],
    sent: Instant,
}

impl Sender {
    /// Sends from `own` to `peer` and to all, and in the name of `other`.
    pub fn open(domain: &str, id: u32, own: Place, peer: Place, other: Place) -> Result<Self> {
        let id = u16::try_from(id)?;
        let [own, peer, other] = [own, peer, other].map(|place| addressing::mac(id, place));
        let all = [0xff; 6];
        let frame = |to: [u8; 6], from: [u8; 6], text: [u8; 8]| {
            let mut frame = [&to[..], &from, &ETHERTYPE, &text].concat();
            frame.resize(60, 0);
            frame
        };
        Ok(Sender {
            interface: domain.to_owned(),
            socket: socket(
                AddressFamily::Packet,
                SockType::Raw,
                SockFlag::SOCK_NONBLOCK,
                None,
            )?,
            frames: [
                frame(peer, own, OWN),
                frame(all, own, OWN),
                frame(peer, other, FORGED),
                frame(all, other, FORGED),
            ],
            sent: Instant::now(),
        })
    }

    /// Sends all frames, if the pause is over.
    pub fn go_on(&mut self) {
        if self.sent.elapsed() < PAUSE {
            return;
        }
        self.sent = Instant::now();
        for frame in &self.frames {
            if send(self.socket.as_raw_fd(), frame, MsgFlags::MSG_DONTWAIT).is_err() {
                // The interface is down, or was replaced.
                return self.bind();
            }
        }
    }

    fn bind(&self) {
        let Ok(interfaces) = getifaddrs() else {
            return;
        };
        let ours = interfaces.filter(|one| one.interface_name == self.interface);
        let links = ours.filter_map(|one| Some(*one.address?.as_link_addr()?));
        for link in links {
            let _ = bind(self.socket.as_raw_fd(), &link);
        }
    }
}
