//! The segmenter against the kernel's: both cut the same GSO packets into the same frames, byte for
//! byte. A packet socket passes the packets to the kernel, so that the kernel changes nothing else,
//! on their way out of a TAP without offload.

use std::os::fd::{AsRawFd, OwnedFd};

use nix::ifaddrs::getifaddrs;
use nix::libc::{self, PACKET_VNET_HDR, SOL_PACKET};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, bind, send, socket,
};
use nix::{setsockopt_impl, sockopt_impl};
use smoltcp::wire::IpVersion;
use toroid_ethernet::offload::Capabilities;
use toroid_ethernet::offload::gso_packet::GsoPacket;
use toroid_ethernet::offload::layout::Transport;
use toroid_ethernet::offload::segmentation::Segmenter;
use toroid_ethernet::port::tap::Tap;

use super::*;

const NAME: &str = "out";

sockopt_impl!(
    /// Sent packets start with a virtio-net header.
    PacketHeader,
    SetOnly,
    SOL_PACKET,
    PACKET_VNET_HDR,
    bool
);

#[test]
fn frames_are_those_of_the_kernel() {
    if !is_root() {
        return;
    }
    let compare = || {
        let kernel = Kernel::new();
        let mut compared = 0;
        for of in gso_packets() {
            let packet = of.to_bytes();
            let ours = ours(&packet);
            let theirs = kernel.frames(&packet, ours.len());
            for (n, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
                assert_eq!(ours, theirs, "piece {n} of {of:?}");
            }
            compared += ours.len();
        }
        assert_eq!(compared, 700);
    };
    // Its network namespace is its own.
    thread::spawn(compare).join().unwrap();
}

fn gso_packets() -> impl Iterator<Item = GsoPacket> {
    let kinds = [
        (IpVersion::Ipv4, Transport::Tcp),
        (IpVersion::Ipv6, Transport::Tcp),
        (IpVersion::Ipv4, Transport::Udp),
        (IpVersion::Ipv6, Transport::Udp),
    ];
    let shapes = [(0, 0, 0), (0, 3, 3), (1, 0, 10), (2, 1, 0), (0, 7, 10)];
    let lengths = [
        (1448, 20_000),
        (1448, 1449),
        (1448, 2896),
        (61, 500),
        (8000, 60_000),
    ];
    kinds.into_iter().flat_map(move |(ip_version, transport)| {
        shapes.into_iter().flat_map(move |shape| {
            lengths.into_iter().map(move |(size, len)| {
                let (tags, options, tcp_options) = shape;
                let seed = len + options;
                GsoPacket {
                    ip_version,
                    transport,
                    tags,
                    options,
                    tcp_options,
                    flags: if seed % 2 == 0 { 0xd9 } else { 0x18 },
                    sequence: u32::MAX - 1000,
                    id: u16::MAX - 2,
                    payload: (0..len).map(|n| (n * n + seed) as u8).collect(),
                    size,
                    ..GsoPacket::default()
                }
            })
        })
    })
}

fn ours(packet: &[u8]) -> Vec<Vec<u8>> {
    let (offload, frame) = Offload::split(packet).expect("a good packet");
    let mut segmenter = Segmenter::default();
    let mut segments = segmenter.frames(&offload, frame);
    let mut all = Vec::new();
    while let Some(frame) = segments.next() {
        all.push(frame.0.concat());
    }
    all
}

/// Sends through an interface without offload, in a namespace of the calling thread.
struct Kernel {
    tap: Tap,
    socket: OwnedFd,
}

impl Kernel {
    fn new() -> Self {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        let tap = Tap::open(NAME, Capabilities::empty()).unwrap();
        let mut netlink = Netlink::open().unwrap();
        let index = netlink.index(NAME).unwrap();
        netlink.set_mtu(index, 9000).unwrap();
        netlink.set_up(index).unwrap();
        let (family, flags) = (AddressFamily::Packet, SockFlag::empty());
        let socket = socket(family, SockType::Raw, flags, None::<SockProtocol>).unwrap();
        setsockopt(&socket, PacketHeader, &true).unwrap();
        let interfaces = getifaddrs().unwrap();
        let mut ours = interfaces.filter(|one| one.interface_name == NAME);
        let link = ours.find_map(|one| Some(*one.address?.as_link_addr()?));
        bind(socket.as_raw_fd(), &link.unwrap()).unwrap();
        Kernel { tap, socket }
    }

    /// The frames of a packet, which are this many.
    fn frames(&self, packet: &[u8], count: usize) -> Vec<Vec<u8>> {
        send(self.socket.as_raw_fd(), packet, MsgFlags::empty()).unwrap();
        let source = &packet[Offload::LEN + 6..][..6];
        let deadline = Instant::now() + WATCHDOG;
        let mut buffer = vec![0; 1 << 16];
        let mut all = Vec::new();
        while all.len() < count {
            match self.tap.receive(&mut buffer) {
                // Other frames are router solicitations of the kernel.
                Ok(len) if buffer[Offload::LEN + 6..][..6] == *source => {
                    assert_eq!(buffer[..Offload::LEN], Offload::NONE);
                    all.push(buffer[Offload::LEN..len].to_vec());
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    assert!(Instant::now() < deadline, "only {} of {count}", all.len());
                    thread::yield_now();
                }
                Err(error) => panic!("{error}"),
            }
        }
        all
    }
}
