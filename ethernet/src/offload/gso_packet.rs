//! GSO packets as a kernel sends them, to try out a kernel (`interface::offloads`) and for tests.

use smoltcp::wire::{IpAddress, IpProtocol, IpVersion, Ipv4Packet, checksum};

use crate::offload::Offload;
use crate::offload::layout::Transport;

/// Description of a GSO packet.
#[derive(Clone, Debug)]
pub struct GsoPacket {
    /// Destination and source MAC addresses.
    pub macs: [[u8; 6]; 2],
    /// Number of VLAN tags.
    pub tags: usize,
    /// Version of the IP header.
    pub ip_version: IpVersion,
    /// Source and destination IP addresses; IPv4 uses the first 4 bytes of each.
    pub addresses: [[u8; 16]; 2],
    /// With IPv4 words of options, up to 10; with IPv6 extension headers of 8 bytes.
    pub options: usize,
    /// TCP or UDP.
    pub transport: Transport,
    /// Source and destination ports.
    pub ports: [u16; 2],
    /// Words of TCP options, up to 10.
    pub tcp_options: usize,
    /// TCP flags.
    pub flags: u8,
    /// TCP sequence number.
    pub sequence: u32,
    /// IPv4 identification.
    pub id: u16,
    /// Payload of all segments.
    pub payload: Vec<u8>,
    /// Bytes of payload of each segment but the last.
    pub size: u16,
}

impl Default for GsoPacket {
    fn default() -> Self {
        GsoPacket {
            macs: [[6, 0, 7, 1, 0, 0], [6, 0, 7, 0, 0, 0]],
            tags: 0,
            ip_version: IpVersion::Ipv4,
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
    /// The packet: virtio-net header and frame.
    pub fn to_bytes(&self) -> Vec<u8> {
        let segment = self.segment();
        let mut frame = self.macs.concat();
        for _ in 0..self.tags {
            frame.extend([0x81, 0, 0, 5]);
        }
        match self.ip_version {
            IpVersion::Ipv4 => self.put_ipv4(&mut frame, segment.len()),
            IpVersion::Ipv6 => self.put_ipv6(&mut frame, segment.len()),
        }
        let gso_type = match (self.transport, self.ip_version) {
            (Transport::Tcp, IpVersion::Ipv4) => 1,
            (Transport::Tcp, IpVersion::Ipv6) => 4,
            (Transport::Udp, _) => 5,
        };
        let headers = frame.len() + segment.len() - self.payload.len();
        let checksum_at = self.transport.checksum_at();
        let numbers = [headers, self.size.into(), frame.len(), checksum_at];
        let mut packet = vec![1, gso_type];
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
        // Options of one byte each that do nothing.
        frame.extend(std::iter::repeat_n(1, 4 * self.options));
        // No kernel leaves this checksum out.
        Ipv4Packet::new_unchecked(&mut frame[start..]).fill_checksum();
    }

    fn put_ipv6(&self, frame: &mut Vec<u8>, segment: usize) {
        let next = |left: usize| match left {
            0 => self.protocol(),
            _ => IpProtocol::Ipv6Opts.into(),
        };
        let len = 8 * self.options + segment;
        frame.extend([0x86, 0xdd, 0x60, 0x20, 0, 0]);
        frame.extend((len as u16).to_be_bytes());
        frame.extend([next(self.options), 64]);
        self.addresses.iter().for_each(|a| frame.extend(a));
        for left in (0..self.options).rev() {
            // One padding option that fills the header.
            frame.extend([next(left), 0, 1, 4, 0, 0, 0, 0]);
        }
    }

    pub(super) fn protocol(&self) -> u8 {
        match self.transport {
            Transport::Tcp => IpProtocol::Tcp.into(),
            Transport::Udp => IpProtocol::Udp.into(),
        }
    }

    fn segment(&self) -> Vec<u8> {
        let header = match self.transport {
            Transport::Tcp => 20 + 4 * self.tcp_options,
            Transport::Udp => 8,
        };
        let len = header + self.payload.len();
        let pseudo = self.pseudo_header_sum(len);
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

    /// Sum of the pseudo header, not complemented, as a kernel leaves it in the checksum field.
    fn pseudo_header_sum(&self, len: usize) -> [u8; 2] {
        let [source, destination] = self.addresses.map(|address| match self.ip_version {
            IpVersion::Ipv4 => {
                let [a, b, c, d, ..] = address;
                IpAddress::v4(a, b, c, d)
            }
            IpVersion::Ipv6 => IpAddress::Ipv6(address.into()),
        });
        let protocol = self.protocol().into();
        checksum::pseudo_header(&source, &destination, protocol, len as u32).to_be_bytes()
    }
}
