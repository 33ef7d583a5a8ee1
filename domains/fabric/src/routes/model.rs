//! Packets and flits of a message, and its predicted time: Equations 1 and 2 of the paper.
//!
//! Requests carry 64 bytes. A put has a header flit and a flit per 16 bytes; a get has one flit per
//! packet, and its bytes are in the responses. The card sends a flit per cycle of
//! [`CYCLE_NS`](super::counters::CYCLE_NS) and holds at most [`WINDOW`] packets without response.

use super::counters::Sample;

/// Bytes of a packet's payload.
pub const PACKET: u64 = 64;

/// Bytes of a flit.
pub const FLIT: u64 = 16;

/// Packets of a card that may wait for their response.
pub const WINDOW: u64 = 1024;

/// Direction of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Requests carry the bytes.
    Put,
    /// Responses carry the bytes.
    Get,
}

/// Request packets of a message of `bytes`, at least one.
pub fn packets(bytes: u64) -> u64 {
    bytes.div_ceil(PACKET).max(1)
}

/// Request flits of a message of `bytes`.
pub fn flits(bytes: u64, operation: Operation) -> u64 {
    match operation {
        Operation::Put => packets(bytes) + bytes.div_ceil(FLIT),
        Operation::Get => packets(bytes),
    }
}

/// Cycles until the last byte of a message arrives, under the latency and stalls of `network`:
/// Equation 2, `T = (p + 512) / 1024 * L + f (s + 1)`.
///
/// The equation assumes that latency shows once per window, and half of it at the end.
pub fn predicted_cycles(bytes: u64, operation: Operation, network: &Sample) -> f64 {
    let (window, packets) = (WINDOW as f64, packets(bytes) as f64);
    (packets + window / 2.0) / window * network.latency + sending(bytes, operation, network)
}

/// Cycles until a message within one window arrives: Equation 1, `T = L / 2 + f (s + 1)`.
pub fn predicted_cycles_in_window(bytes: u64, operation: Operation, network: &Sample) -> f64 {
    network.latency / 2.0 + sending(bytes, operation, network)
}

/// Cycles in which the card sends the flits.
fn sending(bytes: u64, operation: Operation, network: &Sample) -> f64 {
    flits(bytes, operation) as f64 * (network.stalls + 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// (bytes, packets, flits of a put, cycles at L 2000 and s 0.5).
    const VECTORS: [(u64, u64, u64, f64); 4] = [
        (128, 2, 10, 1_018.906_25),
        (4096, 64, 320, 1605.0),
        (16384, 256, 1280, 3420.0),
        (4 << 20, 65536, 327_680, 620_520.0),
    ];

    const NETWORK: Sample = Sample {
        latency: 2000.0,
        stalls: 0.5,
    };

    #[test]
    fn puts_of_whole_packets() {
        for (bytes, in_packets, in_flits, cycles) in VECTORS {
            assert_eq!(packets(bytes), in_packets);
            assert_eq!(flits(bytes, Operation::Put), in_flits);
            let predicted = predicted_cycles(bytes, Operation::Put, &NETWORK);
            assert!((predicted - cycles).abs() < 1e-9, "{bytes} B: {predicted}");
        }
    }

    #[test]
    fn the_last_packet_has_the_flits_of_its_bytes() {
        let vectors = [
            (0, 1, 1),
            (1, 1, 2),
            (16, 1, 2),
            (17, 1, 3),
            (64, 1, 5),
            (65, 2, 7),
        ];
        for (bytes, in_packets, in_flits) in vectors.into_iter().chain([(100, 2, 9)]) {
            assert_eq!(packets(bytes), in_packets, "{bytes} B");
            assert_eq!(flits(bytes, Operation::Put), in_flits, "{bytes} B");
        }
    }

    #[test]
    fn a_get_sends_a_flit_per_packet() {
        assert_eq!(flits(4096, Operation::Get), 64);
        assert_eq!(flits(100, Operation::Get), 2);
    }

    #[test]
    fn equation_1_is_the_limit_of_equation_2_for_few_packets() {
        let first = predicted_cycles_in_window(128, Operation::Put, &NETWORK);
        assert_eq!(first, 1015.0);
        let second = predicted_cycles(128, Operation::Put, &NETWORK);
        assert!((second - first) * 1024.0 - 2.0 * 2000.0 < 1e-9);
    }
}
