//! Recipients of group frames.

use std::collections::BTreeSet;
use std::net::Ipv6Addr;

use super::*;
use crate::interface::QUEUE_LEN;
use crate::tunnel::{HostId, TunnelHeader};

const GROUP: [u8; 4] = [239, 1, 2, 3];

const JOIN: u8 = 0x16;
const LEAVE: u8 = 0x17;
const QUERY: u8 = 0x11;

/// A packet of IPv4 for a group, from a host with the address 10.64.0.`host` at member `x` of domain 7.
fn ipv4(x: u8, host: u8, to: [u8; 4], protocol: u8, payload: &[u8]) -> Vec<u8> {
    let destination = [0x01, 0, 0x5e, to[1] & 0x7f, to[2], to[3]];
    let mut bytes = packet(destination, mac(7, x), 0);
    bytes.extend([
        0x45,
        0,
        0,
        20 + payload.len() as u8,
        0,
        0,
        0,
        0,
        1,
        protocol,
        0,
        0,
    ]);
    bytes.extend([10, 64, 0, host]);
    bytes.extend(to);
    bytes.extend(payload);
    bytes
}

fn says(x: u8, host: u8, kind: u8, group: [u8; 4]) -> Vec<u8> {
    let payload = [&[kind, 0, 0, 0][..], &group].concat();
    ipv4(x, host, group, 2, &payload)
}

fn data(x: u8, group: [u8; 4]) -> Vec<u8> {
    ipv4(x, x + 1, group, 17, &[0; 100])
}

/// MLDv2 of fe80::`x`: a record of this kind about a group, without sources.
fn record(x: u8, kind: u8, group: &str) -> Vec<u8> {
    let header = [
        &[143, 0, 0, 0, 0, 0, 0, 1, kind, 0, 0, 0][..],
        &octets(group),
    ]
    .concat();
    let alert = [58, 0, 5, 2, 0, 0, 1, 0];
    ipv6(x, "ff02::16", 0, &[&alert[..], &header].concat())
}

fn ipv6(x: u8, to: &str, next: u8, payload: &[u8]) -> Vec<u8> {
    let to = octets(to);
    let destination = [0x33, 0x33, to[12], to[13], to[14], to[15]];
    let mut bytes = packet(destination, mac(7, x), 0);
    let ethertype = bytes.len() - 2;
    bytes[ethertype..].copy_from_slice(&[0x86, 0xdd]);
    bytes.extend([0x60, 0, 0, 0, 0, payload.len() as u8, next, 1]);
    bytes.extend(octets(&format!("fe80::{x}")));
    bytes.extend(to);
    bytes.extend(payload);
    bytes
}

fn octets(address: &str) -> [u8; 16] {
    address.parse::<Ipv6Addr>().unwrap().octets()
}

fn hear(bridges: &Bridges<Name>, x: u8, bytes: &[u8]) -> Vec<u8> {
    let reached = reached(bridges, x, bytes).unwrap();
    reached.into_iter().map(|(_, x)| x).collect()
}

/// Sends a report that only the switch needs.
fn tell(bridges: &Bridges<Name>, x: u8, bytes: &[u8]) {
    let useless = Err(DropReason::LinkReport);
    assert_eq!(reached(bridges, x, bytes), useless);
}

#[test]
fn a_reported_group_reaches_its_subscribers_only() {
    let bridges = bridges();
    assert_eq!(hear(&bridges, 0, &data(0, GROUP)), [1, 2]);
    tell(&bridges, 1, &says(1, 2, JOIN, GROUP));
    assert_eq!(hear(&bridges, 0, &data(0, GROUP)), [1]);
    assert_eq!(hear(&bridges, 2, &data(2, GROUP)), [1]);
    assert!(hear(&bridges, 1, &data(1, GROUP)).is_empty());
    // Groups without members, and a group of all nodes.
    let others = [[239, 1, 2, 4], [239, 129, 2, 3], [224, 0, 0, 251]];
    tell(&bridges, 1, &says(1, 2, JOIN, [224, 0, 0, 251]));
    for other in others {
        assert_eq!(hear(&bridges, 0, &data(0, other)), [1, 2], "{other:?}");
    }
    tell(&bridges, 2, &says(2, 3, JOIN, GROUP));
    assert_eq!(hear(&bridges, 0, &data(0, GROUP)), [1, 2]);
    tell(&bridges, 1, &says(1, 2, LEAVE, GROUP));
    assert_eq!(hear(&bridges, 0, &data(0, GROUP)), [2]);
    // The group is unknown again.
    tell(&bridges, 2, &says(2, 3, LEAVE, GROUP));
    tell(&bridges, 2, &says(2, 3, LEAVE, GROUP));
    assert_eq!(hear(&bridges, 0, &data(0, GROUP)), [1, 2]);
}

/// The other driver knows the subscribers on its host; this driver has to know that there are some.
#[test]
fn reports_go_to_other_hosts_and_count_there() {
    let mut bridges = bridges();
    let b = HostId(1);
    let remote = Port {
        ipv4: [10, 64, 0, 4].into(),
        ipv6: addressing::ipv6(0, place(3)),
        ..port(7, 3)
    };
    bridges.attach_remote(remote, b).unwrap();
    let report = says(1, 2, JOIN, GROUP);
    assert_eq!(reached(&bridges, 1, &report), Ok(vec![(HOSTS, 1)]));
    let tag = TunnelHeader {
        partition: Partition(7),
        epoch: Epoch(1),
        place: place(3),
    };
    let ingress = bridges.remote_ingress(b, &tag).unwrap().unwrap();
    assert_eq!(whom(&ingress, &data(3, GROUP)), Ok(vec![(7, 1)]));
    assert_eq!(hear(&bridges, 0, &data(0, GROUP)), [1, b.0 as u8]);
    // One that is heard there only.
    let other = [239, 9, 9, 9];
    assert_eq!(hear(&bridges, 0, &data(0, other)), [1, 2, b.0 as u8]);
    let useless = Err(DropReason::LinkReport);
    assert_eq!(whom(&ingress, &says(3, 4, JOIN, other)), useless);
    assert_eq!(hear(&bridges, 0, &data(0, other)), [b.0 as u8]);
    assert!(whom(&ingress, &data(3, other)).unwrap().is_empty());
    assert_eq!(whom(&ingress, &says(3, 4, LEAVE, other)), useless);
    assert_eq!(hear(&bridges, 0, &data(0, other)), [1, 2, b.0 as u8]);
    // A router there hears of those here, and asks them.
    assert_eq!(
        whom(&ingress, &says(3, 4, QUERY, [224, 0, 0, 1]))
            .unwrap()
            .len(),
        3
    );
}

#[test]
fn ipv6_groups_reach_their_members() {
    let (to_include, to_exclude, block) = (3, 4, 6);
    let bridges = bridges();
    let data = |x| ipv6(x, "ff15::7", 17, &[0; 100]);
    tell(&bridges, 1, &record(1, to_exclude, "ff15::7"));
    tell(&bridges, 1, &record(1, to_exclude, "ff02::1:ff00:1"));
    assert_eq!(hear(&bridges, 0, &data(0)), [1]);
    let solicited = ipv6(0, "ff02::1:ff00:1", 17, &[0; 100]);
    assert_eq!(hear(&bridges, 0, &solicited), [1, 2]);
    tell(&bridges, 1, &record(1, block, "ff15::7"));
    assert_eq!(hear(&bridges, 0, &data(0)), [1]);
    tell(&bridges, 1, &record(1, to_include, "ff15::7"));
    assert_eq!(hear(&bridges, 0, &data(0)), [1, 2]);
}

#[test]
fn a_member_with_several_hosts_hears_until_all_have_left() {
    let bridges = bridges();
    tell(&bridges, 1, &says(1, 20, JOIN, GROUP));
    tell(&bridges, 1, &says(1, 30, JOIN, GROUP));
    tell(&bridges, 2, &says(2, 3, JOIN, GROUP));
    tell(&bridges, 1, &says(1, 20, LEAVE, GROUP));
    assert_eq!(hear(&bridges, 0, &data(0, GROUP)), [1, 2]);
    tell(&bridges, 1, &says(1, 30, LEAVE, GROUP));
    assert_eq!(hear(&bridges, 0, &data(0, GROUP)), [2]);
}

/// It had no address yet when it joined.
#[test]
fn a_host_that_gets_an_address_may_leave_in_its_name() {
    let bridges = bridges();
    let mut early = says(1, 0, JOIN, GROUP);
    let source = Offload::LEN + 14 + 12;
    early[source..source + 4].fill(0);
    tell(&bridges, 1, &early);
    tell(&bridges, 2, &says(2, 3, JOIN, GROUP));
    assert_eq!(hear(&bridges, 0, &data(0, GROUP)), [1, 2]);
    tell(&bridges, 1, &says(1, 2, LEAVE, GROUP));
    assert_eq!(hear(&bridges, 0, &data(0, GROUP)), [2]);
}

#[test]
fn routers_and_unknown_members_receive_all_groups_and_reports() {
    let bridges = &mut bridges();
    tell(bridges, 1, &says(1, 2, JOIN, GROUP));
    // For all of them, and for the group only.
    assert_eq!(
        hear(
            bridges,
            2,
            &ipv4(2, 3, [224, 0, 0, 1], 2, &[QUERY, 9, 0, 0, 0, 0, 0, 0])
        ),
        [0, 1]
    );
    assert_eq!(hear(bridges, 0, &data(0, GROUP)), [1, 2]);
    assert_eq!(hear(bridges, 2, &says(2, 3, QUERY, GROUP)), [0, 1]);
    let report = says(0, 1, JOIN, [239, 9, 9, 9]);
    assert_eq!(hear(bridges, 0, &report), [2]);
    tell(bridges, 0, &says(0, 1, JOIN, [224, 0, 0, 251]));

    bridges.receive_all(Partition(7), place(1));
    assert_eq!(hear(bridges, 0, &report), [1, 2]);
    assert_eq!(hear(bridges, 2, &data(2, [239, 9, 9, 9])), [0, 1]);
    // Further reports make no difference.
    assert_eq!(hear(bridges, 1, &says(1, 2, LEAVE, [239, 9, 9, 9])), [2]);
    assert_eq!(hear(bridges, 2, &data(2, [239, 9, 9, 9])), [0, 1]);
}

#[test]
fn a_former_member_has_joined_no_groups() {
    let mut bridges = bridges();
    tell(&bridges, 1, &says(1, 2, JOIN, GROUP));
    bridges.detach(Partition(7), NodeId(1));
    assert_eq!(hear(&bridges, 0, &data(0, GROUP)), [2]);
    bridges.attach(port(7, 1), (7, 1)).unwrap();
    assert_eq!(hear(&bridges, 0, &data(0, GROUP)), [1, 2]);
    tell(&bridges, 2, &says(2, 3, JOIN, GROUP));
    assert_eq!(hear(&bridges, 0, &data(0, GROUP)), [2]);
    // A router may return as something else.
    bridges.receive_all(Partition(7), place(1));
    bridges.detach(Partition(7), NodeId(1));
    bridges.attach(port(7, 1), (7, 1)).unwrap();
    assert_eq!(hear(&bridges, 0, &data(0, GROUP)), [2]);
}

#[test]
fn the_external_network_receives_every_group_and_reaches_subscribers() {
    let bridges = connected(false);
    let report = says(1, 2, JOIN, GROUP);
    assert_eq!(hear(&bridges, 1, &report), [OUTSIDE]);
    assert_eq!(hear(&bridges, 0, &data(0, GROUP)), [1, OUTSIDE]);
    let from_outside = |mut bytes: Vec<u8>| {
        let source = Offload::LEN + 6;
        bytes[source..source + 6].copy_from_slice(&STRANGER);
        let address = Offload::LEN + 14 + 12;
        bytes[address..address + 4].copy_from_slice(&[198, 18, 0, 1]);
        let reached = let_in(&bridges, &bytes).unwrap();
        reached.into_iter().map(|(_, x)| x).collect::<Vec<_>>()
    };
    assert_eq!(from_outside(data(0, GROUP)), [1]);
    assert_eq!(from_outside(data(0, [239, 9, 9, 9])), [0, 1, 2]);
    // It is told of reports, and tells none.
    assert!(from_outside(says(0, 1, JOIN, [239, 9, 9, 9])).is_empty());
    assert_eq!(from_outside(data(0, [239, 9, 9, 9])), [0, 1, 2]);
    assert_eq!(from_outside(says(0, 1, QUERY, GROUP)), [0, 1, 2]);
}

#[test]
fn a_member_with_lost_reports_receives_every_group() {
    let bridges = bridges();
    let queue = || bridges.ingress(Partition(7), place(1)).unwrap();
    let read = |count: u32| (0..count).for_each(|_| queue().record_read());
    tell(&bridges, 2, &says(2, 3, JOIN, GROUP));
    // Never as many at once as fit.
    for _ in 0..3 {
        read(QUEUE_LEN / 2);
        queue().record_empty();
    }
    assert_eq!(hear(&bridges, 0, &data(0, GROUP)), [2]);
    read(QUEUE_LEN / 2);
    assert_eq!(hear(&bridges, 0, &data(0, GROUP)), [2]);
    read(QUEUE_LEN / 2);
    assert_eq!(hear(&bridges, 0, &data(0, GROUP)), [1, 2]);
    // Lost reports stay lost.
    queue().record_empty();
    assert_eq!(hear(&bridges, 0, &data(0, GROUP)), [1, 2]);
}

/// Its groups are no longer told apart, so others do not hear less, and nothing grows.
#[test]
fn a_member_with_too_many_reports_receives_every_group() {
    let bridges = bridges();
    tell(&bridges, 2, &says(2, 3, JOIN, GROUP));
    for n in 0..=255 {
        tell(&bridges, 1, &says(1, 2, JOIN, [239, 7, 7, n]));
    }
    assert_eq!(hear(&bridges, 0, &data(0, [239, 7, 7, 7])), [1]);
    assert_eq!(hear(&bridges, 0, &data(0, GROUP)), [2]);
    assert!(hear(&bridges, 1, &says(1, 2, JOIN, [239, 8, 8, 8])).is_empty());
    assert_eq!(hear(&bridges, 0, &data(0, GROUP)), [1, 2]);
    assert_eq!(hear(&bridges, 0, &data(0, [239, 7, 7, 7])), [1, 2]);
}

/// Members and groups that are few, so that they meet.
fn any_step() -> impl Strategy<Value = (u8, u8, [u8; 4])> {
    let kind = prop_oneof![Just(JOIN), Just(LEAVE)];
    (0_u8..3, kind, 0_u8..4).prop_map(|(x, kind, n)| (x, kind, [239, 1, 1, n]))
}

proptest! {
    /// Against sets of members by group.
    #[test]
    fn members_receive_the_groups_that_they_joined(steps in proptest::collection::vec(any_step(), 0..60)) {
        let bridges = bridges();
        let mut joined = BTreeSet::new();
        for (x, kind, group) in steps {
            tell(&bridges, x, &says(x, x + 1, kind, group));
            match kind {
                JOIN => joined.insert((group, x)),
                _ => joined.remove(&(group, x)),
            };
            let hear = hear(&bridges, 0, &data(0, group));
            let is_known = joined.iter().any(|(other, _)| *other == group);
            let expected = (1..3).filter(|x| !is_known || joined.contains(&(group, *x)));
            prop_assert_eq!(hear, expected.collect::<Vec<_>>());
        }
    }
}
