//! The measurements of `ether` in contests, and their time.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::plan::{Effort, LONG_WRITE, Path};
use crate::report::name;

/// The links on which streams are compared.
pub const LINKS: [Link; 5] = [
    LONGEST,
    with(9000),
    with(1500),
    without(9000),
    without(1500),
];

/// The link of all other tests, a domain's default.
pub const USUAL: Link = with(9000);

/// The link with the longest frames.
pub const LONGEST: Link = with(65_521);

/// The links of streams between userspace stacks, for which GSO packets are segmented.
pub const USERSPACE_LINKS: [Link; 2] = [without(9000), without(65_521)];

/// The link of all other tests between userspace stacks.
pub const USERSPACE_USUAL: Link = USERSPACE_LINKS[0];

/// Numbers of idle members beside the measured pair.
pub const IDLE: [u32; 4] = [0, 2, 16, 64];

/// Number of streams side by side.
pub const STREAMS: usize = 4;

/// Number of receivers of one sender.
pub const RECEIVERS: usize = 8;

/// Bytes of a request and its response.
pub const REQUEST: usize = 64;

/// Bytes of a small datagram.
pub const SMALL: usize = 64;

/// Bytes of a datagram of a flood.
pub const FLOOD: usize = 1400;

/// The links on which floods are compared.
pub const FLOOD_LINKS: [Link; 2] = [with(1500), with(9000)];

/// Bytes of a datagram to many.
pub const LARGE: usize = 8192;

const fn with(mtu: u32) -> Link {
    Link { mtu, offload: true }
}

const fn without(mtu: u32) -> Link {
    let offload = false;
    Link { mtu, offload }
}

/// The link of two nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Link {
    /// MTU in bytes.
    pub mtu: u32,
    /// Whether GSO packets cross the link whole and without checksums.
    pub offload: bool,
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let no_offload = if self.offload { "" } else { ", plain" };
        write!(f, "MTU {}{no_offload}", self.mtu)
    }
}

/// The paths between the nodes' kernels.
pub const OF_KERNELS: [Path; 5] = [
    Path::Toroid,
    Path::ToroidKernel,
    Path::Relay,
    Path::Bridge,
    Path::Veth,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Test {
    /// A stream of long writes, or several side by side.
    TcpStream,
    /// One request and its response at a time.
    TcpRr,
    /// Small datagrams at the highest rate with at most 1 % loss.
    UdpPps,
    /// Datagrams at the sender's highest rate.
    UdpFlood,
    /// Large datagrams to many receivers at the highest rate with at most 1 % loss.
    Multicast,
}

/// Way from one sender to many receivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Delivery {
    /// A datagram for each receiver in turn.
    Unicast,
    /// One datagram to the group of all.
    Multicast,
}

/// A measurement: one row of the report, repeated in each round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    pub test: Test,
    pub path: Path,
    pub link: Link,
    /// Number of streams, in [`Test::TcpStream`].
    pub streams: Option<usize>,
    /// Idle members beside the pair, if their number is compared.
    pub idle_members: Option<u32>,
    /// Way to many receivers, in [`Test::Multicast`].
    pub delivery: Option<Delivery>,
}

impl Key {
    /// A measurement between two nodes.
    pub fn new(test: Test, path: Path, link: Link) -> Self {
        Key {
            test,
            path,
            link,
            streams: (test == Test::TcpStream).then_some(1),
            idle_members: None,
            delivery: None,
        }
    }

    /// A stream between two members beside idle ones.
    pub fn beside(idle_members: u32) -> Self {
        Key {
            idle_members: Some(idle_members),
            ..Key::new(Test::TcpStream, Path::Toroid, USUAL)
        }
    }

    /// Streams side by side between two nodes.
    pub fn side_by_side(path: Path, link: Link) -> Self {
        Key {
            streams: Some(STREAMS),
            ..Key::new(Test::TcpStream, path, link)
        }
    }

    /// From one sender to many receivers.
    pub fn to_many(path: Path, delivery: Delivery) -> Self {
        Key {
            delivery: Some(delivery),
            ..Key::new(Test::Multicast, path, USUAL)
        }
    }

    pub fn write_bytes(&self) -> usize {
        match self.test {
            Test::TcpStream => LONG_WRITE,
            Test::TcpRr => REQUEST,
            Test::UdpPps => SMALL,
            Test::UdpFlood => FLOOD,
            Test::Multicast => LARGE,
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (test, path) = (name(self.test), name(self.path));
        write!(f, "{test} by {path}, {}", self.link)?;
        match (self.idle_members, self.delivery, self.streams) {
            (Some(members), ..) => write!(f, ", {members} idle members"),
            (_, Some(Delivery::Unicast), _) => write!(f, ", unicast"),
            (_, _, Some(streams @ 2..)) => write!(f, ", {streams} streams"),
            _ => Ok(()),
        }
    }
}

/// Contests: compared measurements, adjacent in each round.
pub fn contests() -> Vec<Vec<Key>> {
    let on_all_paths = |test, link: Link| {
        // Members without offload need the driver.
        let paths = OF_KERNELS.into_iter();
        let paths = paths.filter(|path| link.offload || *path != Path::ToroidKernel);
        let keys = paths.map(|path| Key::new(test, path, link));
        keys.collect::<Vec<_>>()
    };
    let mut contests: Vec<_> = LINKS
        .iter()
        .map(|link| on_all_paths(Test::TcpStream, *link))
        .collect();
    let by_userspace = |test, link| Key::new(test, Path::Smoltcp, link);
    let with_offload = LINKS.into_iter().filter(|link| link.offload);
    contests.extend(with_offload.map(|link| {
        [Path::ToroidKernel, Path::Veth]
            .map(|path| Key::side_by_side(path, link))
            .into()
    }));
    contests.push(
        USERSPACE_LINKS
            .map(|link| by_userspace(Test::TcpStream, link))
            .into(),
    );
    for test in [Test::TcpRr, Test::UdpPps] {
        let mut contest = on_all_paths(test, USUAL);
        contest.push(by_userspace(test, USERSPACE_USUAL));
        contests.push(contest);
    }
    contests.extend(FLOOD_LINKS.map(|link| on_all_paths(Test::UdpFlood, link)));
    contests.push(vec![
        Key::to_many(Path::Toroid, Delivery::Multicast),
        Key::to_many(Path::Toroid, Delivery::Unicast),
        Key::to_many(Path::ToroidKernel, Delivery::Multicast),
    ]);
    contests.push(IDLE.map(Key::beside).into());
    contests
}

/// Number of rounds.
pub fn rounds(effort: Effort) -> u32 {
    effort.quick_or(7, 9)
}

/// Time of a test's turn, or of one trial of a search.
pub fn slice(effort: Effort, test: Test) -> Duration {
    let quick = Duration::from_millis(match test {
        Test::TcpStream | Test::UdpFlood => 110,
        Test::TcpRr => 100,
        Test::UdpPps | Test::Multicast => 35,
    });
    effort.quick_or(quick, quick * 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_measured_twice() {
        let all: Vec<Key> = contests().concat();
        for (at, key) in all.iter().enumerate() {
            assert!(!all[at + 1..].contains(key), "{key}");
        }
    }

    #[test]
    fn a_quick_run_has_enough_rounds_for_a_ratio() {
        assert!(rounds(Effort::Quick) >= 7);
    }
}
