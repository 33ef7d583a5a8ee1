//! Rates, latencies and buffers of a simulated fabric.

use toroid_fabric::routes::{Biases, LinkKind};

use super::{TICKS, Ticks};

/// Bytes of a flit, the unit of flow control.
pub const FLIT: u64 = 16;

/// Costs of a fabric's parts. The text form of the presets is their name.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Name in reports.
    pub name: &'static str,
    /// Links within a row of a group of a dragonfly ("green").
    pub row: LinkCosts,
    /// Each of the parallel links between two routers of a column of a group ("black").
    pub column: LinkCosts,
    /// Links between groups ("blue").
    pub global: LinkCosts,
    /// Links of a torus.
    pub torus: LinkCosts,
    /// Network cards.
    pub nic: NicCosts,
    /// Most bytes of a message in a packet.
    pub payload: u32,
    /// Bytes of each packet besides: one flit of header on Aries.
    pub header: u32,
    /// Packets in the buffer behind a link between routers, for each virtual channel, if those of a
    /// round trip are fewer.
    pub link_buffer: u32,
    /// Age in nanoseconds of what routing knows of used credits; 0: always current. Flow control has
    /// the credits themselves.
    pub snapshot_age_ns: u64,
    /// Bias of the adaptive routing modes.
    pub biases: Biases,
}

/// Costs of a directed link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkCosts {
    /// Bytes per second.
    pub rate: u64,
    /// Nanoseconds from router to router, with the router behind the link.
    pub latency_ns: u64,
}

/// Costs of a network card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NicCosts {
    /// Bytes per second between the card and its router, in each direction.
    pub rate: u64,
    /// Nanoseconds from a posted operation to the router; they overlap for several packets.
    pub send_ns: u64,
    /// Nanoseconds from the router to memory; they overlap as well.
    pub receive_ns: u64,
    /// Nanoseconds that each packet with payload takes the sending card at least.
    pub packet_ns: u64,
    /// Packets in the router's buffer behind the card, and in the card's.
    pub buffer: u32,
    /// Packets of a card that may wait for their response.
    pub window: u32,
}

impl Profile {
    /// Cray Aries.
    ///
    /// * Links within a group run at 5.25 GB/s, those of a column are threefold, and global ones run
    ///   at 4.7 GB/s (De Sensi et al., 2019).
    /// * A put of 8 bytes takes 0.8 us without a hop, a router 100 ns, and no put of 8 bytes takes 2 us
    ///   (Cray's figures). Optical links take 200 ns besides: our estimate of cable and
    ///   transceivers.
    /// * The card sends a flit of 16 bytes each 1.25 ns.
    ///
    /// Aries' buffers and the age of credits are not published. Ours cover the round trip, and 1 us.
    pub fn aries() -> Self {
        const ROW: LinkCosts = LinkCosts {
            rate: 5_250_000_000,
            latency_ns: 100,
        };
        Profile {
            name: "aries",
            row: ROW,
            column: ROW,
            global: LinkCosts {
                rate: 4_700_000_000,
                latency_ns: 300,
            },
            torus: ROW,
            nic: NicCosts {
                rate: 12_800_000_000,
                send_ns: 400,
                receive_ns: 400,
                packet_ns: 0,
                buffer: 256,
                window: 1024,
            },
            payload: 64,
            header: 16,
            link_buffer: 0,
            snapshot_age_ns: 1_000,
            biases: Biases::default(),
        }
    }

    /// Blue Gene/P with the costs of Kittyhawk's RDMA, as the link profile `bgp` of a domain:
    /// 425 MB/s a link and direction, packets of 256 bytes with 240 of a message, 70 ns a hop,
    /// 0.73 us a message and 0.9 us a packet.
    pub fn bgp() -> Self {
        const LINK: LinkCosts = LinkCosts {
            rate: 425_000_000,
            latency_ns: 70,
        };
        Profile {
            name: "bgp",
            row: LINK,
            column: LINK,
            global: LINK,
            torus: LINK,
            nic: NicCosts {
                rate: 12_800_000_000,
                send_ns: 730,
                receive_ns: 0,
                packet_ns: 900,
                buffer: 256,
                window: 1024,
            },
            payload: 240,
            header: 16,
            link_buffer: 0,
            snapshot_age_ns: 1_000,
            biases: Biases::default(),
        }
    }

    /// The preset with this name.
    pub fn preset(name: &str) -> Option<Self> {
        match name {
            "aries" => Some(Self::aries()),
            "bgp" => Some(Self::bgp()),
            _ => None,
        }
    }

    /// Flits of the largest packet.
    pub fn most_flits(&self) -> u32 {
        self.header_flits() + self.payload_flits(self.payload.into())
    }

    /// Flits of a packet's header.
    pub fn header_flits(&self) -> u32 {
        self.header.div_ceil(FLIT as u32)
    }

    /// Flits of bytes of a packet's payload.
    pub fn payload_flits(&self, bytes: u64) -> u32 {
        bytes.div_ceil(FLIT) as u32
    }

    /// Costs of a link of a kind.
    pub fn link(&self, kind: LinkKind) -> LinkCosts {
        match kind {
            LinkKind::Row => self.row,
            LinkKind::Column => self.column,
            LinkKind::Global => self.global,
            LinkKind::Torus => self.torus,
        }
    }
}

impl LinkCosts {
    /// Ticks for which bytes occupy the link, rounded up: no link is faster than its rate.
    pub fn service(&self, bytes: u64) -> Ticks {
        transfer(self.rate, bytes)
    }

    /// Ticks of the latency.
    pub fn latency(&self) -> Ticks {
        self.latency_ns * TICKS
    }
}

impl NicCosts {
    /// Ticks for which bytes occupy the link between card and router, rounded up.
    pub fn service(&self, bytes: u64) -> Ticks {
        transfer(self.rate, bytes)
    }
}

fn transfer(rate: u64, bytes: u64) -> Ticks {
    const SECOND: u128 = 1_000_000_000 * TICKS as u128;
    let ticks = (u128::from(bytes) * SECOND).div_ceil(u128::from(rate.max(1)));
    u64::try_from(ticks).unwrap_or(Ticks::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flit_takes_the_card_of_aries_a_cycle() {
        assert_eq!(Profile::aries().nic.service(FLIT), 10);
    }

    #[test]
    fn transfers_round_up() {
        let link = Profile::aries().row;
        // 80 bytes at 5.25 GB/s take 15.24 ns, 121.9 ticks.
        assert_eq!(link.service(80), 122);
    }
}
