//! The measurements of `ether`, those that are compared, and their time.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::plan::{Effort, LONG_WRITE, Path};
use crate::report::name;

/// The links on which streams are compared: MTU, and whether there is offload.
pub const LINKS: [Link; 5] = [
    LONGEST,
    with(9000),
    with(1500),
    without(9000),
    without(1500),
];

/// The link of everything else: that of a domain by default.
pub const USUAL: Link = with(9000);

/// The one with the longest frames.
pub const LONGEST: Link = with(65_521);

/// The links on which streams between stacks are measured: super-frames are cut for them.
pub const STACK_LINKS: [Link; 2] = [without(9000), without(65_521)];

/// Of those, the one of everything else.
pub const STACKS_USUAL: Link = STACK_LINKS[0];

/// Members beside the pair that is measured.
pub const IDLE: [u32; 4] = [0, 2, 16, 64];

/// Members that receive from one sender.
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
    /// Bytes.
    pub mtu: u32,
    /// Whether super-frames cross it whole, and checksums are left out.
    pub offload: bool,
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = if self.offload { "" } else { ", plain" };
        write!(f, "MTU {}{plain}", self.mtu)
    }
}

/// The paths between the nodes' kernels.
pub const OF_KERNELS: [Path; 3] = [Path::Toroid, Path::Relay, Path::Veth];

/// A test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Test {
    /// One stream of long writes.
    TcpStream,
    /// One request and its response at a time.
    TcpRr,
    /// Small datagrams, at the highest rate at which at most 1 % are lost.
    UdpPps,
    /// Datagrams as fast as the sender can.
    UdpFlood,
    /// Large datagrams to many, at the highest rate at which at most 1 % are lost.
    Multicast,
}

/// How one sender reaches many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Delivery {
    /// Each in turn.
    Unicast,
    /// All at once.
    Multicast,
}

/// One measurement: a round repeats it, and the report has a row of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    pub test: Test,
    pub path: Path,
    pub link: Link,
    /// Members in the domain beside the pair, where their number is compared.
    pub idle_members: Option<u32>,
    /// How one sender reaches many, in [`Test::Multicast`].
    pub delivery: Option<Delivery>,
}

impl Key {
    /// A measurement between two nodes.
    pub fn new(test: Test, path: Path, link: Link) -> Self {
        Key {
            test,
            path,
            link,
            idle_members: None,
            delivery: None,
        }
    }

    /// A stream between two members of a domain that has more.
    pub fn beside(idle_members: u32) -> Self {
        Key {
            idle_members: Some(idle_members),
            ..Key::new(Test::TcpStream, Path::Toroid, USUAL)
        }
    }

    /// From one to many.
    pub fn to_many(delivery: Delivery) -> Self {
        Key {
            delivery: Some(delivery),
            ..Key::new(Test::Multicast, Path::Toroid, USUAL)
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
        match (self.idle_members, self.delivery) {
            (Some(members), _) => write!(f, ", {members} idle members"),
            (_, Some(Delivery::Unicast)) => write!(f, ", unicast"),
            _ => Ok(()),
        }
    }
}

/// Measurements that are compared follow each other in each round.
pub fn contests() -> Vec<Vec<Key>> {
    let on_all_paths = |test, link| Vec::from(OF_KERNELS.map(|path| Key::new(test, path, link)));
    let mut contests: Vec<_> = LINKS
        .iter()
        .map(|link| on_all_paths(Test::TcpStream, *link))
        .collect();
    let by_stacks = |test, link| Key::new(test, Path::Smoltcp, link);
    contests.push(
        STACK_LINKS
            .map(|link| by_stacks(Test::TcpStream, link))
            .into(),
    );
    for test in [Test::TcpRr, Test::UdpPps] {
        let mut contest = on_all_paths(test, USUAL);
        contest.push(by_stacks(test, STACKS_USUAL));
        contests.push(contest);
    }
    contests.extend(FLOOD_LINKS.map(|link| on_all_paths(Test::UdpFlood, link)));
    contests.push(
        [Delivery::Multicast, Delivery::Unicast]
            .map(Key::to_many)
            .into(),
    );
    contests.push(IDLE.map(Key::beside).into());
    contests
}

/// Number of rounds.
pub fn rounds(effort: Effort) -> u32 {
    effort.quick_or(7, 9)
}

/// The time for one turn of a test, or one trial of a search.
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
    fn a_quick_run_has_as_many_rounds_as_a_ratio_needs() {
        assert!(rounds(Effort::Quick) >= 7);
    }
}
