//! GSO packets as a kernel would send them: what [`crate::interface::offloads`] tries, and what tests cut.

use crate::offload::Offload;
use crate::offload::checksum::Sum;
use crate::offload::layout::{Network, Transport, tcp, udp};

/// A GSO packet as a node's kernel would send it.
#[derive(Clone, Debug)]
pub struct GsoPacket {
    /// Destination and source.
    pub macs: [[u8; 6]; 2],
    /// How many VLAN tags it has.
    pub tags: usize,
    /// IPv4 or IPv6.
    pub network: Network,
    /// Source and destination, the first 4 bytes of each with IPv4.
    pub addresses: [[u8; 16]; 2],
    /// Words of options with IPv4, up to 10; extension headers of 8 bytes with IPv6.
    pub options: usize,
    /// TCP or UDP.
    pub transport: Transport,
    /// Source and destination.
    pub ports: [u16; 2],
    /// Words of options with TCP, up to 10.
    pub tcp_options: usize,
    /// Flags of TCP.
    pub flags: u8,
    /// The sequence number of TCP.
    pub sequence: u32,
    /// The number that IPv4 gives each packet.
    pub id: u16,
    /// What it carries.
    pub payload: Vec<u8>,
    /// How much of that each piece shall have.
    pub size: u16,
}

impl Default for GsoPacket {
    fn default() -> Self {
        GsoPacket {
            macs: [[6, 0, 7, 1, 0, 0], [6, 0, 7, 0, 0, 0]],
            tags: 0,
            network: Network::Ipv4,
            addresses: [[10; 16], [11; 16]],
            options: 0,
            transport: Transport::Tcp,
            ports: [1000, 2000],
            tcp_options: 0,
            flags: 0x10,
            sequence: 0,
            id: 0,
            payload: (0..4000u16).flat_map(u16::to_be_bytes).collect(),
            size: 1448,
        }
    }
}

impl GsoPacket {
    /// The packet: the header of virtio-net, and the frame.
    pub fn to_bytes(&self) -> Vec<u8> {
        let segment = self.segment();
        let mut frame = self.macs.concat();
        for _ in 0..self.tags {
            frame.extend([0x81, 0, 0, 5]);
        }
        match self.network {
            Network::Ipv4 => self.put_ipv4(&mut frame, segment.len()),
            Network::Ipv6 => self.put_ipv6(&mut frame, segment.len()),
        }
        let (kind, offset) = match (self.transport, self.network) {
            (Transport::Tcp, Network::Ipv4) => (1, tcp::CHECKSUM),
            (Transport::Tcp, Network::Ipv6) => (4, tcp::CHECKSUM),
            (Transport::Udp, _) => (5, udp::CHECKSUM),
        };
        let headers = frame.len() + segment.len() - self.payload.len();
        let numbers = [headers, self.size.into(), frame.len(), offset];
        let mut packet = vec![1, kind];
        for number in numbers {
            packet.extend((number as u16).to_ne_bytes());
        }
        debug_assert_eq!(packet.len(), Offload::LEN);
        [packet, frame, segment].concat()
    }

    fn put_ipv4(&self, frame: &mut Vec<u8>, segment: usize) {
        let len = 20 + 4 * self.options + segment;
        frame.extend([0x08, 0x00]);
        let start = frame.len();
        frame.extend([0x45 + self.options as u8, 0x02]);
        frame.extend((len as u16).to_be_bytes());
        frame.extend(self.id.to_be_bytes());
        frame.extend([0x40, 0, 64, self.protocol(), 0, 0]);
        self.addresses.iter().for_each(|a| frame.extend(&a[..4]));
        // Nothing to see.
        frame.extend(std::iter::repeat_n(1, 4 * self.options));
        // That checksum is left to nobody.
        let checksum = Sum::of(&frame[start..]).checksum();
        frame[start + 10..start + 12].copy_from_slice(&checksum);
    }

    fn put_ipv6(&self, frame: &mut Vec<u8>, segment: usize) {
        const DESTINATION_OPTIONS: u8 = 60;
        let next = |left: usize| match left {
            0 => self.protocol(),
            _ => DESTINATION_OPTIONS,
        };
        let len = 8 * self.options + segment;
        frame.extend([0x86, 0xdd, 0x60, 0x20, 0, 0]);
        frame.extend((len as u16).to_be_bytes());
        frame.extend([next(self.options), 64]);
        self.addresses.iter().for_each(|a| frame.extend(a));
        for left in (0..self.options).rev() {
            // One option that fills the rest.
            frame.extend([next(left), 0, 1, 4, 0, 0, 0, 0]);
        }
    }

    fn protocol(&self) -> u8 {
        match self.transport {
            Transport::Tcp => tcp::PROTOCOL,
            Transport::Udp => udp::PROTOCOL,
        }
    }

    fn segment(&self) -> Vec<u8> {
        let header = match self.transport {
            Transport::Tcp => 20 + 4 * self.tcp_options,
            Transport::Udp => 8,
        };
        let len = header + self.payload.len();
        let pseudo = self.pseudo(len);
        let mut segment: Vec<u8> = self.ports.into_iter().flat_map(u16::to_be_bytes).collect();
        match self.transport {
            Transport::Tcp => {
                segment.extend(self.sequence.to_be_bytes());
                segment.extend([0, 0, 0, 9, (header * 4) as u8, self.flags, 1, 0]);
                segment.extend(pseudo);
                segment.extend([0, 0]);
                segment.extend(std::iter::repeat_n(1, 4 * self.tcp_options));
            }
            Transport::Udp => {
                segment.extend((len as u16).to_be_bytes());
                segment.extend(pseudo);
            }
        }
        [&segment[..], &self.payload].concat()
    }

    /// The sum of the pseudo header, not complemented, as it goes where the checksum shall be.
    fn pseudo(&self, len: usize) -> [u8; 2] {
        let bytes = match self.network {
            Network::Ipv4 => 4,
            Network::Ipv6 => 16,
        };
        let addresses = self
            .addresses
            .iter()
            .map(|address| Sum::of(&address[..bytes]));
        let sum = addresses.fold(Sum::default(), Sum::plus);
        let sum = sum.plus(Sum::of_word((len as u16).to_be_bytes()));
        let sum = sum.plus(Sum::of_word([0, self.protocol()]));
        sum.checksum().map(|byte| !byte)
    }
}
