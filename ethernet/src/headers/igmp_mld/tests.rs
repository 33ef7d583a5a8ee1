use proptest::prelude::*;

use super::*;

/// Ethernet and IPv4, with the router alert, of 10.64.0.2.
fn igmp_frame(to: [u8; 4], message: &[u8]) -> Vec<u8> {
    let mut frame = mac(to.into()).0.to_vec();
    frame.extend([6, 0, 1, 1, 0, 0, 8, 0]);
    let len = 24 + message.len() as u8;
    frame.extend([0x46, 0xc0, 0, len, 0, 0, 0x40, 0, 1, 2, 0, 0]);
    frame.extend([10, 64, 0, 2]);
    frame.extend(to);
    frame.extend([0x94, 4, 0, 0]);
    frame.extend(message);
    frame
}

/// Ethernet and IPv6, with the router alert, of fe80::2.
fn mld_frame(to: &str, message: &[u8]) -> Vec<u8> {
    let to: Ipv6Addr = to.parse().unwrap();
    let mut frame = mac(to.into()).0.to_vec();
    frame.extend([6, 0, 1, 1, 0, 0, 0x86, 0xdd]);
    frame.extend([0x60, 0, 0, 0, 0, 8 + message.len() as u8, 0, 1]);
    frame.extend("fe80::2".parse::<Ipv6Addr>().unwrap().octets());
    frame.extend(to.octets());
    frame.extend([IpProtocol::Icmpv6.into(), 0, 5, 2, 0, 0, 1, 0]);
    frame.extend(message);
    frame
}

fn bytes(group: &str) -> Vec<u8> {
    match group.parse().unwrap() {
        IpAddr::V4(group) => group.octets().to_vec(),
        IpAddr::V6(group) => group.octets().to_vec(),
    }
}

/// A record of this type with a number of sources and words of auxiliary data.
fn record(kind: u8, group: &str, sources: u8, words: u8) -> Vec<u8> {
    let group = bytes(group);
    let rest = group.len() * usize::from(sources) + 4 * usize::from(words);
    [&[kind, words, 0, sources][..], &group, &vec![9; rest]].concat()
}

fn report(kind: u8, records: &[Vec<u8>]) -> Vec<u8> {
    let header = [kind, 0, 0, 0, 0, 0, 0, records.len() as u8];
    [&header, &records.concat()[..]].concat()
}

/// A frame with an IGMPv3 or MLDv2 report.
fn report_frame(is_ipv6: bool, records: &[Vec<u8>]) -> Vec<u8> {
    if is_ipv6 {
        mld_frame("ff02::16", &report(143, records))
    } else {
        igmp_frame([224, 0, 0, 22], &report(0x22, records))
    }
}

fn records_of(frame: &[u8]) -> Option<Vec<(String, Option<bool>)>> {
    match read(Frame::new(frame)?)? {
        GroupMessage::Router => None,
        GroupMessage::Report(report) => {
            let record = |record: GroupRecord| (record.group.to_string(), record.joins);
            Some(report.records().map(record).collect())
        }
    }
}

fn is_router(frame: &[u8]) -> bool {
    matches!(read(Frame::new(frame).unwrap()), Some(GroupMessage::Router))
}

#[test]
fn reports_of_one_group_are_read() {
    let igmp = |kind| igmp_frame([239, 1, 2, 3], &[kind, 0, 0, 0, 239, 1, 2, 3]);
    let mld = |kind| {
        let header = [kind, 0, 0, 0, 0, 0, 0, 0];
        mld_frame("ff15::7", &[&header, &bytes("ff15::7")[..]].concat())
    };
    for (frame, group, joins) in [
        (igmp(0x12), "239.1.2.3", true),
        (igmp(0x16), "239.1.2.3", true),
        (igmp(0x17), "239.1.2.3", false),
        (mld(131), "ff15::7", true),
        (mld(132), "ff15::7", false),
    ] {
        let expected = vec![(group.to_owned(), Some(joins))];
        assert_eq!(records_of(&frame), Some(expected));
        for len in 0..frame.len() {
            assert_eq!(records_of(&frame[..len]), None, "{group} cut at {len}");
        }
    }
}

#[test]
fn records_join_and_leave_groups_despite_sources_and_auxiliary_data() {
    for groups in [
        ["239.0.0.1", "239.0.0.2", "239.0.0.3", "224.0.0.251"],
        ["ff15::1", "ff0e::2", "ff35::3", "ff02::fb"],
    ] {
        let [one, two, three, flooded] = groups;
        let is_ipv6 = one.contains(':');
        let records = [
            record(2, one, 0, 0),
            record(4, two, 3, 2),
            record(3, one, 0, 0),
            record(1, two, 0, 1),
            record(4, flooded, 0, 0),
            record(6, three, 2, 0),
            record(5, three, 1, 0),
            record(3, three, 1, 0),
            record(1, one, 2, 0),
        ];
        let expected = [
            (one, Some(true)),
            (two, Some(true)),
            (one, Some(false)),
            (two, Some(false)),
            (three, None),
            (three, Some(true)),
            (three, Some(true)),
            (one, Some(true)),
        ];
        let expected = expected.map(|(group, joins)| (group.to_owned(), joins));
        let frame = report_frame(is_ipv6, &records);
        assert_eq!(records_of(&frame), Some(expected.to_vec()));
        // A malformed report counts up to its first malformed record.
        let [first, second, ..] = &records;
        let malformed = [first.clone(), vec![4, 0, 0xff, 0xff], second.clone()];
        let frame = report_frame(is_ipv6, &malformed);
        assert_eq!(records_of(&frame), Some(vec![(one.to_owned(), Some(true))]));
    }
}

#[test]
fn queries_and_pim_messages_identify_routers() {
    let query = [0x11, 100, 0, 0, 0, 0, 0, 0];
    let mut frame = igmp_frame([224, 0, 0, 1], &query);
    assert!(is_router(&frame));
    frame[26..30].fill(0);
    assert!(!is_router(&frame), "from the unspecified address");
    let mut frame = igmp_frame([224, 0, 0, 13], &[0x20, 0, 0, 0]);
    frame[14 + 9] = PIM.into();
    assert!(is_router(&frame));
    let query = [&[130, 0, 0, 0, 3, 0xe8, 0, 0][..], &[0; 16]].concat();
    let mut frame = mld_frame("ff02::1", &query);
    assert!(is_router(&frame));
    frame[22..38].fill(0);
    assert!(!is_router(&frame), "from the unspecified address");
    let mut frame = mld_frame("ff02::d", &[0x20, 0, 0, 0]);
    frame[54] = PIM.into();
    assert!(is_router(&frame));
}

#[test]
fn a_frame_is_for_a_group_if_both_destination_addresses_name_it() {
    let group = |frame: &[u8]| group(Frame::new(frame).unwrap()).map(|group| group.to_string());
    let frame = igmp_frame([239, 129, 2, 3], &[]);
    assert_eq!(group(&frame).as_deref(), Some("239.129.2.3"));
    let mut tagged = frame.clone();
    tagged.splice(12..12, [0x81, 0, 0xe0, 0]);
    assert_eq!(group(&tagged).as_deref(), Some("239.129.2.3"));
    tagged[15] = 7;
    assert_eq!(group(&tagged), None, "in a VLAN");
    for at in 0..6 {
        let mut other = frame.clone();
        other[at] ^= 1;
        assert_eq!(group(&other), None, "byte {at}");
    }
    assert_eq!(
        group(&mld_frame("ff15::1:2", &[])).as_deref(),
        Some("ff15::1:2")
    );
    for flooded in ["ff01::1", "ff02::1", "ff12::7", "ff02::1:ff00:1"] {
        assert_eq!(group(&mld_frame(flooded, &[])), None);
    }
    assert_eq!(group(&igmp_frame([224, 0, 0, 251], &[])), None);
    assert!(group(&igmp_frame([224, 0, 1, 1], &[])).is_some());
    for len in 14..34 {
        assert_eq!(group(&frame[..len]), None);
    }
}

proptest! {
    #[test]
    fn no_change_causes_a_panic(
        ipv6: bool,
        changes in proptest::collection::vec(any::<(u8, u8)>(), 1..8),
        len in 0_usize..200,
    ) {
        let address = if ipv6 { "ff15::1" } else { "239.0.0.1" };
        let records = [record(4, address, 1, 1), record(3, address, 0, 0), record(2, address, 0, 0)];
        let mut bytes = report_frame(ipv6, &records);
        for (at, value) in changes {
            let at = usize::from(at) % bytes.len();
            bytes[at] = value;
        }
        bytes.truncate(len.max(14));
        records_of(&bytes);
        let _ = Frame::new(&bytes).and_then(group);
    }
}
