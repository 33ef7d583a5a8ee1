//! Measurements of Kittyhawk on Blue Gene/P: Appavoo et al., "Providing a Cloud Network
//! Infrastructure on a Supercomputer" (2010).
//!
//! Figure 4 is netperf between two nodes (MTU 9000), from an external host through an I/O node to a
//! node, and between two processes of a node. The paper does not say how many links lie between the
//! two nodes; here these are neighbours. Figure 5 is memcached over TCP and over RDMA.

use crate::plan::Path;

/// A line of the table in Figure 4.
pub struct Line {
    pub path: Path,
    /// Bytes of a message.
    pub bytes: usize,
    /// Throughput in Mbit/s.
    pub tcp: Option<f64>,
    pub udp: Option<f64>,
    /// One-way latency in microseconds.
    pub latency: f64,
}

const fn sockets(path: Path, bytes: usize, tcp: f64, udp: f64, latency: f64) -> Line {
    let (tcp, udp) = (Some(tcp), Some(udp));
    Line {
        path,
        bytes,
        tcp,
        udp,
        latency,
    }
}

const fn rdma(bytes: usize, latency: f64) -> Line {
    Line {
        path: Path::Rdma,
        bytes,
        tcp: None,
        udp: None,
        latency,
    }
}

/// Figure 4. The I/O node of the external rows is a bridge.
pub const FIGURE_4: [Line; 11] = [
    sockets(Path::Bridge, 200, 629.35, 198.57, 53.5),
    sockets(Path::Bridge, 1000, 923.41, 812.19, 55.8),
    sockets(Path::Bridge, 8000, 940.56, 1832.11, 129.0),
    sockets(Path::Ethernet, 200, 210.53, 113.67, 33.4),
    sockets(Path::Ethernet, 1000, 373.25, 500.67, 40.7),
    sockets(Path::Ethernet, 8000, 436.25, 1099.02, 162.3),
    rdma(200, 1.7),
    rdma(1000, 5.3),
    sockets(Path::Loopback, 200, 422.89, 71.18, 51.7),
    sockets(Path::Loopback, 1000, 806.72, 323.92, 53.4),
    sockets(Path::Loopback, 8000, 1440.28, 2186.23, 81.4),
];

/// Bytes of a get, its rate over RDMA divided by that over TCP, as the text gives them
/// for Figure 5.
pub const GET_RATIOS: [(usize, f64); 2] = [(1024, 9.7), (65_536, 2.2)];

/// Bytes of a get, and its rate over RDMA in MB/s (Figure 5).
pub const GET_RATE: (usize, f64) = (65_536, 340.0);

/// Latency of messages over the torus by Ethernet divided by that by RDMA.
pub fn latency_ratio(bytes: usize) -> Option<f64> {
    let latency = |path| {
        let mut lines = FIGURE_4.iter();
        let line = lines.find(|line| line.path == path && line.bytes == bytes)?;
        Some(line.latency)
    };
    Some(latency(Path::Ethernet)? / latency(Path::Rdma)?)
}

/// Rate of a get over RDMA divided by that over TCP.
pub fn get_ratio(bytes: usize) -> Option<f64> {
    let mut ratios = GET_RATIOS.into_iter();
    ratios.find_map(|(of, ratio)| (of == bytes).then_some(ratio))
}
