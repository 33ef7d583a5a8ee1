//! Recipients of group frames.

use std::collections::BTreeSet;

use super::*;
use crate::interface::QUEUE_LEN;
use crate::tunnel::HostId;

const GROUP: [u8; 4] = [239, 1, 2, 3];

const JOIN: u8 = 0x16;
const LEAVE: u8 = 0x17;
const QUERY: u8 = 0x11;

/// An IPv4 packet to a group, from the host 10.64.0.`host` behind member `x` of domain 7.
fn ipv4(x: u8, host: u8, to: [u8; 4], protocol: u8, payload: &[u8]) -> Vec<u8> {
    let destination = [0x01, 0, 0x5e, to[1] & 0x7f, to[2], to[3]];
    let len = 20 + payload.len() as u8;
    let header = [0x45, 0, 0, len, 0, 0, 0, 0, 1, protocol, 0, 0];
    let packet = [&header[..], &[10, 64, 0, host], &to, payload].concat();
    frame(destination, mac(7, x), [8, 0], &packet)
}

fn igmp(x: u8, host: u8, kind: u8, group: [u8; 4]) -> Vec<u8> {
    let message = [&[kind, 0, 0, 0], &group[..]].concat();
    ipv4(x, host, group, 2, &message)
}

fn data(x: u8, group: [u8; 4]) -> Vec<u8> {
    ipv4(x, x + 1, group, 17, &[0; 100])
}

/// An MLDv2 report of fe80::`x` with a record of this type about a group, without sources.
fn mld(x: u8, kind: u8, group: &str) -> Vec<u8> {
    let alert = [58, 0, 5, 2, 0, 0, 1, 0];
    let report = [143, 0, 0, 0, 0, 0, 0, 1, kind, 0, 0, 0];
    let group: Ipv6Addr = group.parse().unwrap();
    let message = [&alert, &report[..], &group.octets()].concat();
    ipv6_to(x, "ff02::16", 0, &message)
}

/// An IPv6 packet of fe80::`x` to a group.
fn ipv6_to(x: u8, group: &str, next: u8, payload: &[u8]) -> Vec<u8> {
    let group: Ipv6Addr = group.parse().unwrap();
    let [.., a, b, c, d] = group.octets();
    let source = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, x.into());
    let addresses = [source, group];
    ipv6(x, [0x33, 0x33, a, b, c, d], addresses, next, payload)
}

impl Bridges<Name> {
    /// Places of the recipients of a packet from member `x` of domain 7.
    fn reached(&self, x: u8, packet: &[u8]) -> Vec<u8> {
        places(self.send(x, packet))
    }

    /// Sends a report that only the switch needs.
    fn learn(&self, x: u8, report: &[u8]) {
        assert_eq!(self.send(x, report), Err(DropReason::LinkReport));
    }
}

fn places(reached: Result<Vec<Name>, DropReason>) -> Vec<u8> {
    reached.unwrap().into_iter().map(|(_, x)| x).collect()
}

#[test]
fn a_reported_group_reaches_its_subscribers_only() {
    let bridges = bridges();
    assert_eq!(bridges.reached(0, &data(0, GROUP)), [1, 2]);
    bridges.learn(1, &igmp(1, 2, JOIN, GROUP));
    assert_eq!(bridges.reached(0, &data(0, GROUP)), [1]);
    assert_eq!(bridges.reached(2, &data(2, GROUP)), [1]);
    assert!(bridges.reached(1, &data(1, GROUP)).is_empty());
    // Groups without members, and a group of all nodes.
    let others = [[239, 1, 2, 4], [239, 129, 2, 3], [224, 0, 0, 251]];
    bridges.learn(1, &igmp(1, 2, JOIN, [224, 0, 0, 251]));
    for other in others {
        assert_eq!(bridges.reached(0, &data(0, other)), [1, 2], "{other:?}");
    }
    bridges.learn(2, &igmp(2, 3, JOIN, GROUP));
    assert_eq!(bridges.reached(0, &data(0, GROUP)), [1, 2]);
    bridges.learn(1, &igmp(1, 2, LEAVE, GROUP));
    assert_eq!(bridges.reached(0, &data(0, GROUP)), [2]);
    // The group is unknown again.
    bridges.learn(2, &igmp(2, 3, LEAVE, GROUP));
    bridges.learn(2, &igmp(2, 3, LEAVE, GROUP));
    assert_eq!(bridges.reached(0, &data(0, GROUP)), [1, 2]);
}

/// The other driver knows the subscribers on its host; this driver has to know that there are some.
#[test]
fn reports_are_sent_to_other_hosts_and_accepted_from_them() {
    let mut bridges = bridges();
    let b = HostId(1);
    bridges.attach_remote(port(7, 3), b).unwrap();
    let report = igmp(1, 2, JOIN, GROUP);
    assert_eq!(bridges.send(1, &report), Ok(vec![(HOSTS, 1)]));
    let header = super::remote::header(7, 1, 3);
    let ingress = bridges.remote_ingress(b, &header).unwrap().unwrap();
    assert_eq!(recipients(&ingress, &data(3, GROUP)), Ok(vec![(7, 1)]));
    assert_eq!(bridges.reached(0, &data(0, GROUP)), [1, b.0 as u8]);
    // A group with subscribers on the other host only.
    let other = [239, 9, 9, 9];
    assert_eq!(bridges.reached(0, &data(0, other)), [1, 2, b.0 as u8]);
    let link_report = Err(DropReason::LinkReport);
    assert_eq!(recipients(&ingress, &igmp(3, 4, JOIN, other)), link_report);
    assert_eq!(bridges.reached(0, &data(0, other)), [b.0 as u8]);
    assert!(recipients(&ingress, &data(3, other)).unwrap().is_empty());
    assert_eq!(recipients(&ingress, &igmp(3, 4, LEAVE, other)), link_report);
    assert_eq!(bridges.reached(0, &data(0, other)), [1, 2, b.0 as u8]);
    // A query of a router there reaches the members here.
    let query = igmp(3, 4, QUERY, [224, 0, 0, 1]);
    assert_eq!(places(recipients(&ingress, &query)), [0, 1, 2]);
}

#[test]
fn ipv6_groups_reach_their_subscribers() {
    let (to_include, to_exclude, block) = (3, 4, 6);
    let bridges = bridges();
    let data = |x| ipv6_to(x, "ff15::7", 17, &[0; 100]);
    bridges.learn(1, &mld(1, to_exclude, "ff15::7"));
    bridges.learn(1, &mld(1, to_exclude, "ff02::1:ff00:1"));
    assert_eq!(bridges.reached(0, &data(0)), [1]);
    let solicited = ipv6_to(0, "ff02::1:ff00:1", 17, &[0; 100]);
    assert_eq!(bridges.reached(0, &solicited), [1, 2]);
    bridges.learn(1, &mld(1, block, "ff15::7"));
    assert_eq!(bridges.reached(0, &data(0)), [1]);
    bridges.learn(1, &mld(1, to_include, "ff15::7"));
    assert_eq!(bridges.reached(0, &data(0)), [1, 2]);
}

#[test]
fn a_member_with_several_hosts_receives_until_all_have_left() {
    let bridges = bridges();
    bridges.learn(1, &igmp(1, 20, JOIN, GROUP));
    bridges.learn(1, &igmp(1, 30, JOIN, GROUP));
    bridges.learn(2, &igmp(2, 3, JOIN, GROUP));
    bridges.learn(1, &igmp(1, 20, LEAVE, GROUP));
    assert_eq!(bridges.reached(0, &data(0, GROUP)), [1, 2]);
    bridges.learn(1, &igmp(1, 30, LEAVE, GROUP));
    assert_eq!(bridges.reached(0, &data(0, GROUP)), [2]);
}

#[test]
fn a_host_may_leave_a_group_that_it_joined_without_an_address() {
    let bridges = bridges();
    let early = with(igmp(1, 0, JOIN, GROUP), IPV4_SOURCE, &[0; 4]);
    bridges.learn(1, &early);
    bridges.learn(2, &igmp(2, 3, JOIN, GROUP));
    assert_eq!(bridges.reached(0, &data(0, GROUP)), [1, 2]);
    bridges.learn(1, &igmp(1, 2, LEAVE, GROUP));
    assert_eq!(bridges.reached(0, &data(0, GROUP)), [2]);
}

#[test]
fn routers_and_unknown_members_receive_all_groups_and_reports() {
    let mut bridges = bridges();
    bridges.learn(1, &igmp(1, 2, JOIN, GROUP));
    // A general and a group-specific query.
    let general = ipv4(2, 3, [224, 0, 0, 1], 2, &[QUERY, 9, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bridges.reached(2, &general), [0, 1]);
    assert_eq!(bridges.reached(0, &data(0, GROUP)), [1, 2]);
    assert_eq!(bridges.reached(2, &igmp(2, 3, QUERY, GROUP)), [0, 1]);
    let report = igmp(0, 1, JOIN, [239, 9, 9, 9]);
    assert_eq!(bridges.reached(0, &report), [2]);
    bridges.learn(0, &igmp(0, 1, JOIN, [224, 0, 0, 251]));

    bridges.receive_all(Partition(7), place(1));
    assert_eq!(bridges.reached(0, &report), [1, 2]);
    assert_eq!(bridges.reached(2, &data(2, [239, 9, 9, 9])), [0, 1]);
    // Further reports change nothing.
    assert_eq!(bridges.reached(1, &igmp(1, 2, LEAVE, [239, 9, 9, 9])), [2]);
    assert_eq!(bridges.reached(2, &data(2, [239, 9, 9, 9])), [0, 1]);
}

#[test]
fn a_former_member_has_joined_no_groups() {
    let mut bridges = bridges();
    bridges.learn(1, &igmp(1, 2, JOIN, GROUP));
    bridges.detach(Partition(7), NodeId(1));
    assert_eq!(bridges.reached(0, &data(0, GROUP)), [2]);
    bridges.attach(port(7, 1), (7, 1)).unwrap();
    assert_eq!(bridges.reached(0, &data(0, GROUP)), [1, 2]);
    bridges.learn(2, &igmp(2, 3, JOIN, GROUP));
    assert_eq!(bridges.reached(0, &data(0, GROUP)), [2]);
    // A former router may return as an ordinary member.
    bridges.receive_all(Partition(7), place(1));
    bridges.detach(Partition(7), NodeId(1));
    bridges.attach(port(7, 1), (7, 1)).unwrap();
    assert_eq!(bridges.reached(0, &data(0, GROUP)), [2]);
}

#[test]
fn the_external_network_receives_every_group_and_reaches_subscribers() {
    let bridges = connected(false);
    let report = igmp(1, 2, JOIN, GROUP);
    assert_eq!(bridges.reached(1, &report), [OUTSIDE]);
    assert_eq!(bridges.reached(0, &data(0, GROUP)), [1, OUTSIDE]);
    let from_outside = |packet: Vec<u8>| {
        let packet = with(packet, SOURCE, &EXTERNAL);
        places(bridges.send_external(&with(packet, IPV4_SOURCE, &[198, 18, 0, 1])))
    };
    assert_eq!(from_outside(data(0, GROUP)), [1]);
    assert_eq!(from_outside(data(0, [239, 9, 9, 9])), [0, 1, 2]);
    // The external network receives reports; its own reports have no effect.
    assert!(from_outside(igmp(0, 1, JOIN, [239, 9, 9, 9])).is_empty());
    assert_eq!(from_outside(data(0, [239, 9, 9, 9])), [0, 1, 2]);
    assert_eq!(from_outside(igmp(0, 1, QUERY, GROUP)), [0, 1, 2]);
}

#[test]
fn a_member_with_lost_reports_receives_every_group() {
    let bridges = bridges();
    let queue = || bridges.ingress(Partition(7), place(1)).unwrap();
    let read = |count: u32| (0..count).for_each(|_| queue().record_read());
    bridges.learn(2, &igmp(2, 3, JOIN, GROUP));
    // Never a full queue.
    for _ in 0..3 {
        read(QUEUE_LEN / 2);
        queue().record_empty();
    }
    assert_eq!(bridges.reached(0, &data(0, GROUP)), [2]);
    read(QUEUE_LEN / 2);
    assert_eq!(bridges.reached(0, &data(0, GROUP)), [2]);
    read(QUEUE_LEN / 2);
    assert_eq!(bridges.reached(0, &data(0, GROUP)), [1, 2]);
    // Lost reports stay lost.
    queue().record_empty();
    assert_eq!(bridges.reached(0, &data(0, GROUP)), [1, 2]);
}

/// Its groups are no longer recorded: other members receive no less, and the state is bounded.
#[test]
fn a_member_with_too_many_reports_receives_every_group() {
    let bridges = bridges();
    bridges.learn(2, &igmp(2, 3, JOIN, GROUP));
    for n in 0..=255 {
        bridges.learn(1, &igmp(1, 2, JOIN, [239, 7, 7, n]));
    }
    assert_eq!(bridges.reached(0, &data(0, [239, 7, 7, 7])), [1]);
    assert_eq!(bridges.reached(0, &data(0, GROUP)), [2]);
    assert!(
        bridges
            .reached(1, &igmp(1, 2, JOIN, [239, 8, 8, 8]))
            .is_empty()
    );
    assert_eq!(bridges.reached(0, &data(0, GROUP)), [1, 2]);
    assert_eq!(bridges.reached(0, &data(0, [239, 7, 7, 7])), [1, 2]);
}

/// A report; with few members and groups, steps affect each other.
fn any_step() -> impl Strategy<Value = (u8, u8, [u8; 4])> {
    let kind = prop_oneof![Just(JOIN), Just(LEAVE)];
    (0_u8..3, kind, 0_u8..4).prop_map(|(x, kind, n)| (x, kind, [239, 1, 1, n]))
}

proptest! {
    /// The oracle is a set of groups and members.
    #[test]
    fn members_receive_the_groups_that_they_joined(steps in proptest::collection::vec(any_step(), 0..60)) {
        let bridges = bridges();
        let mut joined = BTreeSet::new();
        for (x, kind, group) in steps {
            bridges.learn(x, &igmp(x, x + 1, kind, group));
            match kind {
                JOIN => joined.insert((group, x)),
                _ => joined.remove(&(group, x)),
            };
            let reached = bridges.reached(0, &data(0, group));
            let is_known = joined.iter().any(|(other, _)| *other == group);
            let expected = (1..3).filter(|x| !is_known || joined.contains(&(group, *x)));
            prop_assert_eq!(reached, expected.collect::<Vec<_>>());
        }
    }
}
