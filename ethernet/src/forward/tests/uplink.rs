//! Frames to and from the external network.

use super::*;

#[test]
fn frames_for_foreign_addresses_leave_by_the_uplink() {
    let (inside, connected) = (bridges(), connected(false));
    let to_external = packet(EXTERNAL, mac(7, 0), 46);
    let no_member = Err(DropReason::NoSuchMember);
    assert_eq!(inside.send(0, &to_external), no_member);
    assert_eq!(connected.send(0, &to_external), Ok(vec![(7, OUTSIDE)]));
    let to_all = packet(BROADCAST, mac(7, 0), 46);
    let everyone = vec![(7, 1), (7, 2), (7, OUTSIDE)];
    assert_eq!(connected.send(0, &to_all), Ok(everyone));
    // An address of the fabric is for members only.
    let absent = packet(mac(7, 9), mac(7, 0), 46);
    assert_eq!(connected.send(0, &absent), no_member);
    let elsewhere = packet(mac(8, 1), mac(7, 0), 46);
    let other = Err(DropReason::OtherDomain);
    assert_eq!(connected.send(0, &elsewhere), other);
    assert!(connected.outside(Partition(8)).is_none());
}

#[test]
fn external_frames_reach_members_and_claim_no_fabric_address() {
    let bridges = connected(false);
    let to_member = packet(mac(7, 1), EXTERNAL, 46);
    assert_eq!(bridges.send_external(&to_member), Ok(vec![(7, 1)]));
    let to_all = packet(BROADCAST, EXTERNAL, 46);
    let members = vec![(7, 0), (7, 1), (7, 2)];
    assert_eq!(bridges.send_external(&to_all), Ok(members));
    let refused = |destination: [u8; 6], source: [u8; 6], payload: usize| {
        bridges
            .send_external(&packet(destination, source, payload))
            .unwrap_err()
    };
    // Over an external loop, from the bridge of another fabric, and from a group address.
    for source in [mac(7, 1), mac(300, 1), BROADCAST] {
        assert_eq!(refused(BROADCAST, source, 46), DropReason::WrongSource);
    }
    assert_eq!(refused(EXTERNAL, EXTERNAL, 46), DropReason::NoSuchMember);
    assert_eq!(refused(mac(8, 1), EXTERNAL, 46), DropReason::OtherDomain);
    assert_eq!(refused(mac(7, 1), EXTERNAL, 1501), DropReason::TooLong);
    let drops = bridges.drops(Partition(7));
    assert_eq!(drops.iter().filter(|port| port.outside).count(), 1);
}

#[test]
fn external_queries_about_members_are_answered() {
    let bridges = connected(false);
    let about_member = arp(EXTERNAL, [10, 64, 0, 2]);
    assert_eq!(bridges.send_external(&about_member), Ok(vec![(7, OUTSIDE)]));
    let about_unassigned = arp(EXTERNAL, [10, 64, 0, 200]);
    assert_eq!(bridges.send_external(&about_unassigned).unwrap().len(), 3);
    // Queries of members reach the external network.
    let asked = bridges.send(0, &arp(mac(7, 0), [10, 64, 0, 200]));
    assert_eq!(asked, Ok(vec![(7, 1), (7, 2), (7, OUTSIDE)]));
}

#[test]
fn the_network_behind_a_limited_member_is_limited() {
    let mut bridges = connected(true);
    bridges.set_limited(1, true);
    let limited = Err(DropReason::Limited);
    let out = packet(EXTERNAL, mac(7, 1), 46);
    assert_eq!(bridges.send(1, &out), limited);
    let within = packet(mac(7, 1), EXTERNAL, 46);
    assert_eq!(bridges.send_external(&within), limited);
    let to_full = packet(mac(7, 2), EXTERNAL, 46);
    assert_eq!(bridges.send_external(&to_full), Ok(vec![(7, 2)]));
}

#[test]
fn an_uplink_outlives_the_members_of_its_bridge() {
    let mut bridges = connected(false);
    for node in 0..3 {
        bridges.detach(Partition(7), NodeId(node));
    }
    // A node that is made anew leaves its domains for a moment.
    bridges.attach(port(7, 1), (7, 1)).unwrap();
    let to_all = packet(BROADCAST, EXTERNAL, 46);
    assert_eq!(bridges.send_external(&to_all), Ok(vec![(7, 1)]));
    assert_eq!(bridges.disconnect(Partition(7)), Some((7, OUTSIDE)));
    assert!(bridges.outside(Partition(7)).is_none());
    assert_eq!(bridges.disconnect(Partition(7)), None);
}
