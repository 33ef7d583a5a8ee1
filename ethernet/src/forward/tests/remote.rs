//! Members on other hosts.

use super::*;
use crate::tunnel::{HostId, TunnelHeader};

const B: HostId = HostId(1);
const C: HostId = HostId(2);

/// Two domains, 7 and 8, of each of which 0 and 1 are here, 2 and 3 on host b and 4 on host c.
fn spread() -> Bridges<Name> {
    let mut bridges = Bridges::default();
    for domain in [7, 8] {
        for x in 0..2 {
            bridges
                .attach(unique(domain, x), (domain.into(), x))
                .unwrap();
        }
        for (x, host) in [(2, B), (3, B), (4, C)] {
            bridges.attach_remote(unique(domain, x), host).unwrap();
        }
    }
    bridges
}

fn unique(domain: u16, x: u8) -> Port {
    Port {
        ipv4: [10, 64, domain as u8, x + 1].into(),
        ipv6: addressing::ipv6(domain, place(x)),
        ..port(domain, x)
    }
}

fn host(id: HostId) -> Name {
    (HOSTS, id.0 as u8)
}

fn tag(domain: u32, epoch: u32, x: u8) -> TunnelHeader {
    TunnelHeader {
        partition: Partition(domain),
        epoch: Epoch(epoch),
        place: place(x),
    }
}

/// Recipients of a frame that a host sends for member `x` of domain 7, in epoch 1.
fn told(
    bridges: &Bridges<Name>,
    host: HostId,
    x: u8,
    bytes: &[u8],
) -> Result<Vec<Name>, DropReason> {
    match bridges.remote_ingress(host, &tag(7, 1, x)) {
        Ok(Some(ingress)) => {
            let reached = whom(&ingress, bytes);
            if let Err(reason) = reached {
                ingress.count(reason);
            }
            reached
        }
        Ok(None) => Err(DropReason::WrongSource),
        Err(UnknownDomain) => Err(DropReason::OtherDomain),
    }
}

fn counted(bridges: &Bridges<Name>, host: HostId, reason: DropReason) -> u64 {
    let all = bridges.remote_drops(Partition(7));
    let of = all.iter().find(|(of, _)| *of == host);
    let count = of.and_then(|(_, drops)| drops.get(&reason));
    count.copied().unwrap_or_default()
}

#[test]
fn a_frame_goes_to_the_host_of_whom_it_is_for_and_one_for_all_once_to_each() {
    let bridges = spread();
    let unicast = |to| packet(mac(7, to), mac(7, 0), 100);
    assert_eq!(reached(&bridges, 0, &unicast(1)), Ok(vec![(7, 1)]));
    assert_eq!(reached(&bridges, 0, &unicast(3)), Ok(vec![host(B)]));
    assert_eq!(reached(&bridges, 0, &unicast(4)), Ok(vec![host(C)]));
    let nobody = Err(DropReason::NoSuchMember);
    assert_eq!(reached(&bridges, 0, &unicast(5)), nobody);
    let everybody = Ok(vec![(7, 1), host(B), host(C)]);
    for group in [BROADCAST, [0x33, 0x33, 0, 0, 0, 1]] {
        assert_eq!(
            reached(&bridges, 0, &packet(group, mac(7, 0), 9)),
            everybody
        );
    }
    let ingress = bridges.ingress(Partition(7), place(0)).unwrap();
    assert_eq!(ingress.header(), Some(tag(7, 1, 0)));
}

#[test]
fn a_host_speaks_for_its_own_members_only() {
    let bridges = spread();
    let to_us = |from| packet(mac(7, 1), mac(7, from), 100);
    assert_eq!(told(&bridges, B, 2, &to_us(2)), Ok(vec![(7, 1)]));
    assert_eq!(told(&bridges, C, 4, &to_us(4)), Ok(vec![(7, 1)]));
    let forged = Err(DropReason::WrongSource);
    // Members of another host and of this one, a missing one; and addresses of other members.
    for x in [4, 0, 1, 5] {
        assert_eq!(told(&bridges, B, x, &to_us(x)), forged, "{x}");
    }
    for source in [
        mac(7, 3),
        mac(7, 4),
        mac(7, 0),
        mac(8, 2),
        STRANGER,
        BROADCAST,
    ] {
        let bytes = packet(mac(7, 1), source, 100);
        assert_eq!(told(&bridges, B, 2, &bytes), forged, "{source:?}");
    }
    assert_eq!(counted(&bridges, B, DropReason::WrongSource), 4 + 6);
    assert_eq!(counted(&bridges, C, DropReason::WrongSource), 0);
    // A host that is not there at all has no say either.
    assert_eq!(told(&bridges, HostId(9), 2, &to_us(2)), forged);
    assert_eq!(
        bridges.remote_ingress(B, &tag(9, 1, 2)).err(),
        Some(UnknownDomain),
        "a domain without members here"
    );
}

#[test]
fn frames_of_remote_members_pass_the_same_checks_as_those_of_local_ones() {
    let mut bridges = spread();
    let dropped = |bridges: &Bridges<Name>, bytes: &[u8]| told(bridges, B, 2, bytes).unwrap_err();
    assert_eq!(dropped(&bridges, &[0; 23]), DropReason::Malformed);
    assert_eq!(dropped(&bridges, &[0xff; 100]), DropReason::Malformed);
    let long = packet(mac(7, 1), mac(7, 2), 1501);
    assert_eq!(dropped(&bridges, &long), DropReason::TooLong);
    let elsewhere = packet(mac(8, 1), mac(7, 2), 100);
    assert_eq!(dropped(&bridges, &elsewhere), DropReason::OtherDomain);
    let with_address = |address: [u8; 4]| {
        let mut bytes = packet_from(2, address);
        bytes[Offload::LEN..Offload::LEN + 6].copy_from_slice(&mac(7, 1));
        bytes
    };
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
        assert_eq!(told(&bridges, B, 2, &bytes), Ok(vec![(7, 1)]));
    }
    let limited = |x| Port {
        limited: true,
        ..unique(7, x)
    };
    bridges.attach_remote(limited(2), B).unwrap();
    bridges.set_limited(Partition(7), place(1), true);
    let to_limited = packet(mac(7, 1), mac(7, 2), 100);
    assert_eq!(dropped(&bridges, &to_limited), DropReason::Limited);
    let to_all = packet(BROADCAST, mac(7, 2), 100);
    assert_eq!(told(&bridges, B, 2, &to_all), Ok(vec![(7, 0)]));
    assert_eq!(counted(&bridges, B, DropReason::Limited), 1);
}

/// IPv6 packets of a domain without local members once were foreign, IPv4 packets not.
#[test]
fn a_remote_router_brings_packets_of_domains_that_are_not_here() {
    let mut bridges = spread();
    let from = |domain| {
        let mut bytes = packet(mac(7, 1), mac(7, 2), 0);
        let ethertype = bytes.len() - 2;
        bytes[ethertype..].copy_from_slice(&[0x86, 0xdd]);
        bytes.extend([0x60, 0, 0, 0, 0, 0, 59, 64]);
        let addresses = [
            addressing::ipv6(domain, place(5)),
            addressing::ipv6(7, place(1)),
        ];
        bytes.extend(addresses.map(|ip| ip.octets()).concat());
        bytes
    };
    let foreign = Err(DropReason::ForeignAddress);
    for domain in [8, 9] {
        assert_eq!(told(&bridges, B, 2, &from(domain)), foreign, "{domain}");
    }
    let router = Port {
        forward: true,
        ..unique(7, 2)
    };
    bridges.attach_remote(router, B).unwrap();
    assert_eq!(told(&bridges, B, 2, &from(9)), Ok(vec![(7, 1)]));
    assert_eq!(told(&bridges, B, 2, &from(8)), foreign, "it is none of 8");
}

#[test]
fn outside_learns_only_of_members_of_this_host() {
    let mut bridges = spread();
    bridges.connect(&uplink(false), (7, OUTSIDE));
    let asked = |member: u8| {
        let query = arp(STRANGER, [10, 64, 7, member + 1]);
        let ingress = bridges.outside(Partition(7)).unwrap();
        matches!(ingress.decide(&query), Action::Reply(_))
    };
    assert!(asked(0) && asked(1));
    assert!(!asked(2) && !asked(4));
}

#[test]
fn nothing_goes_on_from_host_to_host() {
    let bridges = spread();
    let nobody = Err(DropReason::NoSuchMember);
    for other in [3, 4] {
        let bytes = packet(mac(7, other), mac(7, 2), 100);
        assert_eq!(told(&bridges, B, 2, &bytes), nobody, "{other}");
    }
    let to_all = packet(BROADCAST, mac(7, 2), 100);
    assert_eq!(told(&bridges, B, 2, &to_all), Ok(vec![(7, 0), (7, 1)]));
    // Nor is anything answered: that was done where it came from.
    let query = arp(mac(7, 2), [10, 64, 7, 1]);
    assert_eq!(told(&bridges, B, 2, &query), Ok(vec![(7, 0), (7, 1)]));
    let ingress = bridges.remote_ingress(B, &tag(7, 1, 2)).unwrap().unwrap();
    assert_eq!(ingress.header(), None);
}

#[test]
fn epochs_count_from_when_one_is_a_member_to_the_present() {
    let mut bridges = spread();
    let is_admitted = |bridges: &Bridges<Name>, epoch| {
        bridges
            .remote_ingress(B, &tag(7, epoch, 2))
            .unwrap()
            .is_some()
    };
    assert!(is_admitted(&bridges, 1));
    assert!(!is_admitted(&bridges, 0) && !is_admitted(&bridges, 2));
    bridges.raise_epoch(Partition(7), Epoch(2));
    // Its host may not have heard yet that another member has left.
    assert!(is_admitted(&bridges, 1) && is_admitted(&bridges, 2));
    assert!(!is_admitted(&bridges, 0) && !is_admitted(&bridges, 3));
    assert_eq!(counted(&bridges, B, DropReason::OtherEpoch), 4);
    // It is told again, as to a driver's next agent, and then leaves and comes back.
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
    assert_eq!(ingress.header(), Some(tag(7, 2, 0)));
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
    assert_eq!(told(&bridges, B, 2, &from), Err(DropReason::WrongSource));
    let to = packet(mac(7, 2), mac(7, 0), 100);
    assert_eq!(reached(&bridges, 0, &to), Err(DropReason::NoSuchMember));
    let to_all = packet(BROADCAST, mac(7, 0), 100);
    let rest = Ok(vec![(7, 1), host(B), host(C)]);
    assert_eq!(reached(&bridges, 0, &to_all), rest);
    // The other one of that host.
    bridges.detach(Partition(7), NodeId(3));
    assert_eq!(reached(&bridges, 0, &to_all), Ok(vec![(7, 1), host(C)]));
    // No reply names it, and its address is free.
    let query = arp(mac(7, 0), [10, 64, 7, 3]);
    assert_eq!(reached(&bridges, 0, &query), Ok(vec![(7, 1), host(C)]));
    bridges.attach(unique(7, 2), (7, 2)).unwrap();
    assert_eq!(reached(&bridges, 0, &to), Ok(vec![(7, 2)]));
}

#[test]
fn questions_about_remote_members_are_answered_here() {
    let mut bridges = spread();
    let ingress = bridges.ingress(Partition(7), place(0)).unwrap();
    let Action::Reply(answer) = ingress.decide(&arp(mac(7, 0), [10, 64, 7, 5])) else {
        panic!("no answer");
    };
    assert_eq!(answer[22..28], mac(7, 4));
    // But not to members that they may not reach.
    let limited = |x| Port {
        limited: true,
        ..unique(7, x)
    };
    bridges.attach_remote(limited(4), C).unwrap();
    bridges.set_limited(Partition(7), place(0), true);
    let refused = Err(DropReason::Limited);
    assert_eq!(
        reached(&bridges, 0, &arp(mac(7, 0), [10, 64, 7, 5])),
        refused
    );
    let unicast = packet(mac(7, 4), mac(7, 0), 100);
    assert_eq!(reached(&bridges, 0, &unicast), refused);
    // A host without a reachable member gets no copy; a host with one does.
    bridges.attach_remote(limited(3), B).unwrap();
    let to_all = packet(BROADCAST, mac(7, 0), 100);
    assert_eq!(reached(&bridges, 0, &to_all), Ok(vec![(7, 1), host(B)]));
}

#[test]
fn members_have_one_place_each() {
    let mut bridges = spread();
    let taken = |x| Err(AttachError::Taken(place(x)));
    assert_eq!(bridges.attach(unique(7, 2), (7, 2)), taken(2));
    assert_eq!(bridges.attach_remote(unique(7, 1), B), taken(1));
    // Its node was given to another host.
    bridges.attach_remote(unique(7, 2), C).unwrap();
    let from = packet(mac(7, 1), mac(7, 2), 100);
    assert_eq!(told(&bridges, B, 2, &from), Err(DropReason::WrongSource));
    assert_eq!(told(&bridges, C, 2, &from), Ok(vec![(7, 1)]));
    for node in 0..5 {
        bridges.detach(Partition(7), NodeId(node));
    }
    assert_eq!(
        bridges.remote_ingress(C, &tag(7, 1, 2)).err(),
        Some(UnknownDomain)
    );
}

/// The external network belongs to the host with the uplink.
#[test]
fn the_external_network_is_not_for_other_hosts() {
    let mut bridges = spread();
    bridges.connect(&uplink(false), (7, OUTSIDE));
    let nobody = Err(DropReason::NoSuchMember);
    let out = packet(STRANGER, mac(7, 2), 100);
    assert_eq!(told(&bridges, B, 2, &out), nobody);
    let to_all = packet(BROADCAST, mac(7, 2), 100);
    assert_eq!(told(&bridges, B, 2, &to_all), Ok(vec![(7, 0), (7, 1)]));
    let to_remote = packet(mac(7, 2), STRANGER, 100);
    assert_eq!(let_in(&bridges, &to_remote), nobody);
    let to_all = packet(BROADCAST, STRANGER, 100);
    assert_eq!(let_in(&bridges, &to_all), Ok(vec![(7, 0), (7, 1)]));
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
        if let Ok(Some(ingress)) = bridges.remote_ingress(B, &tag(domain, epoch, x)) {
            prop_assert!((2..4).contains(&x) && epoch == 1);
            for (reached, receiver) in whom(&ingress, &bytes).unwrap_or_default() {
                prop_assert_eq!(reached, domain);
                prop_assert!(receiver < 2);
                prop_assert_eq!(&bytes[16..22], mac(domain as u16, x));
            }
        }
    }
}
