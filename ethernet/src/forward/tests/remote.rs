//! Members on other hosts.

use super::*;
use crate::tunnel::{HostId, TunnelHeader};

const B: HostId = HostId(1);
const C: HostId = HostId(2);

/// Two domains, 7 and 8. Members 0 and 1 of each are here, 2 and 3 on host b, and 4 on host c.
fn spread() -> Bridges<Name> {
    let mut bridges = Bridges::default();
    for domain in [7, 8] {
        for x in 0..2 {
            let name = (domain.into(), x);
            bridges.attach(unique(domain, x), name).unwrap();
        }
        for (x, host) in [(2, B), (3, B), (4, C)] {
            bridges.attach_remote(unique(domain, x), host).unwrap();
        }
    }
    bridges
}

fn limited(x: u8) -> Port {
    Port {
        limited: true,
        ..unique(7, x)
    }
}

fn host(id: HostId) -> Name {
    (HOSTS, id.0 as u8)
}

pub(super) fn header(domain: u32, epoch: u32, x: u8) -> TunnelHeader {
    TunnelHeader {
        partition: Partition(domain),
        epoch: Epoch(epoch),
        place: place(x),
    }
}

impl Bridges<Name> {
    /// Recipients of a packet that a host sends for member `x` of domain 7, in epoch 1.
    fn send_remote(&self, host: HostId, x: u8, packet: &[u8]) -> Result<Vec<Name>, DropReason> {
        match self.remote_ingress(host, &header(7, 1, x)) {
            Ok(Some(ingress)) => {
                let reached = recipients(&ingress, packet);
                reached.inspect_err(|reason| ingress.count(*reason))
            }
            Ok(None) => Err(DropReason::WrongSource),
            Err(UnknownDomain) => Err(DropReason::OtherDomain),
        }
    }

    fn counted(&self, host: HostId, reason: DropReason) -> u64 {
        let drops: HashMap<_, _> = self.remote_drops(Partition(7)).into_iter().collect();
        let count = drops.get(&host).and_then(|drops| drops.get(&reason));
        count.copied().unwrap_or_default()
    }
}

#[test]
fn frames_go_to_the_host_of_their_recipient_and_group_frames_once_to_each() {
    let bridges = spread();
    let unicast = |to| packet(mac(7, to), mac(7, 0), 100);
    assert_eq!(bridges.send(0, &unicast(1)), Ok(vec![(7, 1)]));
    assert_eq!(bridges.send(0, &unicast(3)), Ok(vec![host(B)]));
    assert_eq!(bridges.send(0, &unicast(4)), Ok(vec![host(C)]));
    let no_member = Err(DropReason::NoSuchMember);
    assert_eq!(bridges.send(0, &unicast(5)), no_member);
    let everyone = Ok(vec![(7, 1), host(B), host(C)]);
    for group in [BROADCAST, [0x33, 0x33, 0, 0, 0, 1]] {
        let packet = packet(group, mac(7, 0), 9);
        assert_eq!(bridges.send(0, &packet), everyone);
    }
    let ingress = bridges.ingress(Partition(7), place(0)).unwrap();
    assert_eq!(ingress.header(), Some(header(7, 1, 0)));
}

#[test]
fn a_host_speaks_for_its_own_members_only() {
    let bridges = spread();
    let to_us = |from| packet(mac(7, 1), mac(7, from), 100);
    assert_eq!(bridges.send_remote(B, 2, &to_us(2)), Ok(vec![(7, 1)]));
    assert_eq!(bridges.send_remote(C, 4, &to_us(4)), Ok(vec![(7, 1)]));
    let forged = Err(DropReason::WrongSource);
    // Members of another host and of this one, a missing one; and addresses of other members.
    for x in [4, 0, 1, 5] {
        assert_eq!(bridges.send_remote(B, x, &to_us(x)), forged, "{x}");
    }
    let of_members = [(7, 3), (7, 4), (7, 0), (8, 2)].map(|(domain, x)| mac(domain, x));
    for source in of_members.into_iter().chain([EXTERNAL, BROADCAST]) {
        let bytes = packet(mac(7, 1), source, 100);
        assert_eq!(bridges.send_remote(B, 2, &bytes), forged, "{source:?}");
    }
    assert_eq!(bridges.counted(B, DropReason::WrongSource), 4 + 6);
    assert_eq!(bridges.counted(C, DropReason::WrongSource), 0);
    // A host without members.
    assert_eq!(bridges.send_remote(HostId(9), 2, &to_us(2)), forged);
    let unknown = bridges.remote_ingress(B, &header(9, 1, 2)).err();
    assert_eq!(unknown, Some(UnknownDomain));
}

#[test]
fn frames_of_remote_members_pass_the_checks_of_local_ones() {
    let mut bridges = spread();
    let dropped = |bridges: &Bridges<Name>, packet: &[u8]| {
        let dropped = bridges.send_remote(B, 2, packet);
        dropped.unwrap_err()
    };
    assert_eq!(dropped(&bridges, &[0; 23]), DropReason::Malformed);
    assert_eq!(dropped(&bridges, &[0xff; 100]), DropReason::Malformed);
    let long = packet(mac(7, 1), mac(7, 2), 1501);
    assert_eq!(dropped(&bridges, &long), DropReason::TooLong);
    let elsewhere = packet(mac(8, 1), mac(7, 2), 100);
    assert_eq!(dropped(&bridges, &elsewhere), DropReason::OtherDomain);
    let with_address = |address| with(ipv4_from(2, address), 0, &mac(7, 1));
    for address in [
        [10, 64, 7, 1],
        [10, 64, 7, 4],
        [10, 64, 8, 3],
        [10, 64, 8, 99],
    ] {
        let bytes = with_address(address);
        assert_eq!(dropped(&bridges, &bytes), DropReason::ForeignAddress);
    }
    for address in [[10, 64, 7, 3], [10, 64, 7, 77], [192, 0, 2, 1]] {
        let bytes = with_address(address);
        assert_eq!(bridges.send_remote(B, 2, &bytes), Ok(vec![(7, 1)]));
    }
    bridges.attach_remote(limited(2), B).unwrap();
    bridges.set_limited(1, true);
    let to_limited = packet(mac(7, 1), mac(7, 2), 100);
    assert_eq!(dropped(&bridges, &to_limited), DropReason::Limited);
    let to_all = packet(BROADCAST, mac(7, 2), 100);
    assert_eq!(bridges.send_remote(B, 2, &to_all), Ok(vec![(7, 0)]));
    assert_eq!(bridges.counted(B, DropReason::Limited), 1);
}

/// In the past IPv6 packets of a domain without local members were dropped, IPv4 packets not.
#[test]
fn a_remote_router_brings_packets_of_domains_that_are_not_here() {
    let mut bridges = spread();
    let from = |domain| {
        let addresses = [(domain, 5), (7, 1)].map(|(domain, x)| addressing::ipv6(domain, place(x)));
        ipv6(2, mac(7, 1), addresses, NO_NEXT_HEADER, &[])
    };
    let foreign = Err(DropReason::ForeignAddress);
    for domain in [8, 9] {
        assert_eq!(
            bridges.send_remote(B, 2, &from(domain)),
            foreign,
            "{domain}"
        );
    }
    let router = Port {
        forward: true,
        ..unique(7, 2)
    };
    bridges.attach_remote(router, B).unwrap();
    assert_eq!(bridges.send_remote(B, 2, &from(9)), Ok(vec![(7, 1)]));
    assert_eq!(
        bridges.send_remote(B, 2, &from(8)),
        foreign,
        "no router of 8"
    );
}

#[test]
fn external_queries_are_answered_for_local_members_only() {
    let mut bridges = spread();
    bridges.connect(&uplink(false), (7, OUTSIDE));
    let asked = |member: u8| {
        let query = arp(EXTERNAL, [10, 64, 7, member + 1]);
        let ingress = bridges.outside(Partition(7)).unwrap();
        matches!(ingress.decide(&query), Action::Reply(_))
    };
    assert!(asked(0) && asked(1));
    assert!(!asked(2) && !asked(4));
}

#[test]
fn no_frame_is_forwarded_from_host_to_host() {
    let bridges = spread();
    let no_member = Err(DropReason::NoSuchMember);
    for other in [3, 4] {
        let bytes = packet(mac(7, other), mac(7, 2), 100);
        assert_eq!(bridges.send_remote(B, 2, &bytes), no_member, "{other}");
    }
    let to_all = packet(BROADCAST, mac(7, 2), 100);
    assert_eq!(bridges.send_remote(B, 2, &to_all), Ok(vec![(7, 0), (7, 1)]));
    // Queries are answered on their own host only.
    let query = arp(mac(7, 2), [10, 64, 7, 1]);
    assert_eq!(bridges.send_remote(B, 2, &query), Ok(vec![(7, 0), (7, 1)]));
    let ingress = bridges
        .remote_ingress(B, &header(7, 1, 2))
        .unwrap()
        .unwrap();
    assert_eq!(ingress.header(), None);
}

#[test]
fn a_remote_member_is_accepted_in_epochs_since_it_joined() {
    let mut bridges = spread();
    let is_admitted = |bridges: &Bridges<Name>, epoch| {
        let ingress = bridges.remote_ingress(B, &header(7, epoch, 2));
        ingress.unwrap().is_some()
    };
    assert!(is_admitted(&bridges, 1));
    assert!(!is_admitted(&bridges, 0) && !is_admitted(&bridges, 2));
    bridges.raise_epoch(Partition(7), Epoch(2));
    // The other host may not know yet that another member has left.
    assert!(is_admitted(&bridges, 1) && is_admitted(&bridges, 2));
    assert!(!is_admitted(&bridges, 0) && !is_admitted(&bridges, 3));
    assert_eq!(bridges.counted(B, DropReason::OtherEpoch), 4);
    // The port is attached again, as by the next agent; then the member leaves and returns.
    let again = Port {
        epoch: 2,
        ..unique(7, 2)
    };
    bridges.attach_remote(again.clone(), B).unwrap();
    assert!(is_admitted(&bridges, 1));
    bridges.detach(Partition(7), NodeId(2));
    bridges.attach_remote(again, B).unwrap();
    assert!(!is_admitted(&bridges, 1) && is_admitted(&bridges, 2));
    let ingress = bridges.ingress(Partition(7), place(0)).unwrap();
    assert_eq!(ingress.header(), Some(header(7, 2, 0)));
    let old = AttachError::OldEpoch {
        offered: 1,
        current: 2,
    };
    assert_eq!(bridges.attach_remote(unique(7, 2), B), Err(old));
}

#[test]
fn a_former_remote_member_neither_reaches_nor_is_reached() {
    let mut bridges = spread();
    assert_eq!(bridges.detach(Partition(7), NodeId(2)), None);
    let from = packet(mac(7, 1), mac(7, 2), 100);
    assert_eq!(
        bridges.send_remote(B, 2, &from),
        Err(DropReason::WrongSource)
    );
    let to = packet(mac(7, 2), mac(7, 0), 100);
    assert_eq!(bridges.send(0, &to), Err(DropReason::NoSuchMember));
    let to_all = packet(BROADCAST, mac(7, 0), 100);
    let rest = Ok(vec![(7, 1), host(B), host(C)]);
    assert_eq!(bridges.send(0, &to_all), rest);
    // The other member of that host.
    bridges.detach(Partition(7), NodeId(3));
    assert_eq!(bridges.send(0, &to_all), Ok(vec![(7, 1), host(C)]));
    // No reply names the former member, and its address is free.
    let query = arp(mac(7, 0), [10, 64, 7, 3]);
    assert_eq!(bridges.send(0, &query), Ok(vec![(7, 1), host(C)]));
    bridges.attach(unique(7, 2), (7, 2)).unwrap();
    assert_eq!(bridges.send(0, &to), Ok(vec![(7, 2)]));
}

#[test]
fn queries_about_remote_members_are_answered_locally() {
    let mut bridges = spread();
    let ingress = bridges.ingress(Partition(7), place(0)).unwrap();
    let Action::Reply(answer) = ingress.decide(&arp(mac(7, 0), [10, 64, 7, 5])) else {
        panic!("no answer");
    };
    assert_eq!(answer[22..28], mac(7, 4));
    // Limited members get no reply about each other.
    bridges.attach_remote(limited(4), C).unwrap();
    bridges.set_limited(0, true);
    let refused = Err(DropReason::Limited);
    let query = arp(mac(7, 0), [10, 64, 7, 5]);
    assert_eq!(bridges.send(0, &query), refused);
    let unicast = packet(mac(7, 4), mac(7, 0), 100);
    assert_eq!(bridges.send(0, &unicast), refused);
    // A host without a reachable member gets no copy; a host with one does.
    bridges.attach_remote(limited(3), B).unwrap();
    let to_all = packet(BROADCAST, mac(7, 0), 100);
    assert_eq!(bridges.send(0, &to_all), Ok(vec![(7, 1), host(B)]));
}

#[test]
fn a_place_has_one_member() {
    let mut bridges = spread();
    let taken = |x| Err(AttachError::Taken(place(x)));
    assert_eq!(bridges.attach(unique(7, 2), (7, 2)), taken(2));
    assert_eq!(bridges.attach_remote(unique(7, 1), B), taken(1));
    // The node has moved to another host.
    bridges.attach_remote(unique(7, 2), C).unwrap();
    let from = packet(mac(7, 1), mac(7, 2), 100);
    assert_eq!(
        bridges.send_remote(B, 2, &from),
        Err(DropReason::WrongSource)
    );
    assert_eq!(bridges.send_remote(C, 2, &from), Ok(vec![(7, 1)]));
    for node in 0..5 {
        bridges.detach(Partition(7), NodeId(node));
    }
    let unknown = bridges.remote_ingress(C, &header(7, 1, 2)).err();
    assert_eq!(unknown, Some(UnknownDomain));
}

/// The external network belongs to the host with the uplink.
#[test]
fn the_external_network_exchanges_no_frames_with_other_hosts() {
    let mut bridges = spread();
    bridges.connect(&uplink(false), (7, OUTSIDE));
    let no_member = Err(DropReason::NoSuchMember);
    let out = packet(EXTERNAL, mac(7, 2), 100);
    assert_eq!(bridges.send_remote(B, 2, &out), no_member);
    let to_all = packet(BROADCAST, mac(7, 2), 100);
    assert_eq!(bridges.send_remote(B, 2, &to_all), Ok(vec![(7, 0), (7, 1)]));
    let to_remote = packet(mac(7, 2), EXTERNAL, 100);
    assert_eq!(bridges.send_external(&to_remote), no_member);
    let to_all = packet(BROADCAST, EXTERNAL, 100);
    assert_eq!(bridges.send_external(&to_all), Ok(vec![(7, 0), (7, 1)]));
}

proptest! {
    #[test]
    fn no_bytes_of_another_host_reach_another_domain_or_host(
        x in 0_u8..6,
        domain in 6_u32..10,
        epoch in 0_u32..3,
        bytes in any_bytes(),
    ) {
        let bridges = spread();
        if let Ok(Some(ingress)) = bridges.remote_ingress(B, &header(domain, epoch, x)) {
            prop_assert!((2..4).contains(&x) && epoch == 1);
            for (reached, receiver) in recipients(&ingress, &bytes).unwrap_or_default() {
                prop_assert_eq!(reached, domain);
                prop_assert!(receiver < 2);
                prop_assert_eq!(&bytes[16..22], mac(domain as u16, x));
            }
        }
    }
}
