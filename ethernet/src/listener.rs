//! Reports of multicast listeners (MLDv2, RFC 3810).
//!
//! A kernel reports every group of IPv6 that its interface joins, and it joins several as soon as
//! it is up. In a domain of hundreds each of these reports would have to be copied to hundreds of
//! members, for nobody: routers forward no groups of the link's own scope, and the one switch of
//! a domain, which is this driver, brings frames for groups to everybody anyway.

use crate::frame::{EtherType, Frame};

const IPV6_HEADER: usize = 40;

/// With the router alert that a report must carry.
const HOP_BY_HOP_HEADER: usize = 8;

const HOP_BY_HOP: u8 = 0;
const ICMPV6: u8 = 58;
const REPORT: u8 = 143;

/// Bytes of a report before its first record.
const REPORT_HEADER: usize = 8;

/// Bytes of a record before its sources.
const RECORD_HEADER: usize = 20;

const ADDRESS: usize = 16;

/// The widest scope (RFC 4291) that is not routed.
const LINK: u8 = 2;

/// Whether `frame` is a report about nothing but groups that no router forwards.
pub fn is_about_the_link(frame: Frame<'_>) -> bool {
    frame.ethertype() == EtherType::IPV6 && groups_are_of_the_link(frame.payload()) == Some(true)
}

/// `None` if it is anything but a report, or broken.
fn groups_are_of_the_link(packet: &[u8]) -> Option<bool> {
    let (ip, rest) = packet.split_at_checked(IPV6_HEADER)?;
    let (option, report) = rest.split_at_checked(HOP_BY_HOP_HEADER)?;
    let is_report = ip[0] >> 4 == 6
        && ip[6] == HOP_BY_HOP
        && option[..2] == [ICMPV6, 0]
        && report.first() == Some(&REPORT);
    let (header, mut rest) = report.split_at_checked(REPORT_HEADER)?;
    let records = u16::from_be_bytes([header[6], header[7]]);
    if !is_report || records == 0 {
        return None;
    }
    for _ in 0..records {
        let (record, behind) = rest.split_at_checked(RECORD_HEADER)?;
        let sources = usize::from(u16::from_be_bytes([record[2], record[3]]));
        let [0xff, scope] = record[4..6] else {
            return None;
        };
        if scope & 0xf > LINK {
            return Some(false);
        }
        let skipped = sources * ADDRESS + 4 * usize::from(record[1]);
        rest = behind.get(skipped..)?;
    }
    Some(true)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What Linux 6.18 sent when an interface came up, with the checksum left out.
    fn report(groups: &[[u8; 2]]) -> Vec<u8> {
        let mut frame = vec![0x33, 0x33, 0, 0, 0, 0x16, 6, 0, 1, 0, 1, 0, 0x86, 0xdd];
        frame.extend([0x60, 0, 0, 0, 0, 0x38, HOP_BY_HOP, 1]);
        frame.extend([0; 16]);
        frame.extend([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x16]);
        frame.extend([ICMPV6, 0, 5, 2, 0, 0, 1, 0]);
        frame.extend([REPORT, 0, 0, 0, 0, 0, 0, groups.len() as u8]);
        for group in groups {
            frame.extend([4, 0, 0, 0]);
            frame.extend(group);
            frame.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 1, 0]);
        }
        frame
    }

    fn is_useless(bytes: &[u8]) -> bool {
        Frame::new(bytes).is_some_and(is_about_the_link)
    }

    #[test]
    fn reports_about_the_link_are_told_from_others() {
        assert!(is_useless(&report(&[[0xff, 2]])));
        assert!(is_useless(&report(&[[0xff, 2], [0xff, 0x12], [0xff, 1]])));
        for wider in [[0xff, 5], [0xff, 0x18], [0xff, 14]] {
            assert!(!is_useless(&report(&[[0xff, 2], wider])));
        }
    }

    #[test]
    fn what_is_no_whole_report_is_not_taken_for_one() {
        let whole = report(&[[0xff, 2], [0xff, 2]]);
        assert!(!is_useless(&report(&[])));
        for len in 0..whole.len() {
            assert!(!is_useless(&whole[..len]), "cut at {len}");
        }
        // Ethertype, version, next header, option, type, and a group that is none.
        for at in [12, 14, 20, 54, 62, 74] {
            let mut other = whole.clone();
            other[at] ^= 0x80;
            assert!(!is_useless(&other), "byte {at}");
        }
    }

    proptest! {
        #[test]
        fn no_change_causes_a_panic(changes in proptest::collection::vec(any::<(u8, u8)>(), 1..8)) {
            let mut bytes = report(&[[0xff, 2], [0xff, 2]]);
            for (at, value) in changes {
                let at = usize::from(at) % bytes.len();
                bytes[at] = value;
            }
            is_useless(&bytes);
        }
    }
}
