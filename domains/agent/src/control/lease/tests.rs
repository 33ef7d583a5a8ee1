//! The host's side, and a model of both.

mod model;

use super::*;
use crate::cluster::revisions::tests::revision;

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn a_lease_begins_with_the_sending_once_its_change_is_applied() {
    let mut lease = Lease::default();
    lease.applied(revision(1, 1, 5));
    assert_eq!(lease.begin(), None);
    lease.answered(at(3), revision(1, 1, 5));
    assert_eq!(lease.begin(), Some(at(3)));
    lease.answered(at(4), revision(1, 1, 7));
    lease.answered(at(5), revision(1, 1, 6));
    assert_eq!(lease.begin(), Some(at(3)));
    lease.applied(revision(1, 1, 6));
    assert_eq!(lease.begin(), Some(at(5)));
    // Late answers and changes move nothing back.
    lease.applied(revision(1, 1, 7));
    lease.answered(at(2), revision(1, 1, 1));
    assert_eq!(lease.begin(), Some(at(5)));
}

#[test]
fn a_later_term_has_what_earlier_ones_had() {
    let mut lease = Lease::since(Some(at(1)));
    lease.applied(revision(1, 2, 5));
    lease.answered(at(2), revision(1, 1, 9));
    assert_eq!(lease.begin(), Some(at(2)));
    for other in [revision(1, 3, 4), revision(2, 2, 5)] {
        lease.answered(at(3), other);
        assert_eq!(lease.begin(), Some(at(2)));
    }
}
