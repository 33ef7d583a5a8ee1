//! Linearizability of the membership of one node in one domain. Its state is one bit, so that changes
//! without an answer need to be counted only, and histories may have thousands of calls.

use std::collections::{BTreeSet, HashMap};

/// A change or a read, with its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// The node was admitted, whether it was a member or not.
    Join,
    /// The node was a member, and was taken out.
    Leave,
    /// The node was a member, or not.
    Found(bool),
}

/// An operation from its begin to its end, in nanoseconds of one clock.
#[derive(Clone, Debug)]
pub struct Call {
    /// The operation.
    pub operation: Operation,
    /// A time before it.
    pub begin_ns: u64,
    /// A time after it. Without one, a change may have happened at any time after the begin, or never.
    pub end_ns: Option<u64>,
    /// Its origin, for people.
    pub origin: String,
}

/// Numbers of joins and of leaves without an answer that an order uses.
type Used = [u32; 2];

/// Orders of operations by their results: the state, the answered calls under way that have happened,
/// and the fewest changes without an answer.
type Orders = HashMap<(bool, BTreeSet<usize>), Vec<Used>>;

/// Searches an order that explains all answers, each operation at a moment between its begin and its
/// end. The node is no member at first.
///
/// # Errors
/// The number of a call: without those that end after it, no order explains its answer.
pub fn check(calls: &[Call]) -> Result<(), usize> {
    let mut moments: Vec<(u64, bool, usize)> = Vec::new();
    for (n, call) in calls.iter().enumerate() {
        moments.push((call.begin_ns, false, n));
        moments.extend(call.end_ns.map(|end| (end, true, n)));
    }
    // Begins first: calls that touch may have overlapped.
    moments.sort_unstable_by_key(|(at, is_end, n)| (*at, *is_end, *n));
    let (mut under_way, mut lost) = (BTreeSet::new(), Used::default());
    let mut orders = Orders::from([((false, BTreeSet::new()), vec![Used::default()])]);
    for (_, is_end, n) in moments {
        match (is_end, calls[n].end_ns, calls[n].operation) {
            (true, ..) => {
                orders = ended(&all_orders(orders, calls, &under_way, lost), n);
                under_way.remove(&n);
                if orders.is_empty() {
                    return Err(n);
                }
            }
            (false, Some(_), _) => _ = under_way.insert(n),
            (false, None, Operation::Join) => lost[0] += 1,
            (false, None, Operation::Leave) => lost[1] += 1,
            (false, None, Operation::Found(_)) => {}
        }
    }
    Ok(())
}

/// Adds an order unless another one with the same result needs no more changes without an answer.
fn add(orders: &mut Orders, result: (bool, BTreeSet<usize>), used: Used) -> bool {
    let all = orders.entry(result).or_default();
    let needs_no_more = |one: &Used, other: &Used| one[0] <= other[0] && one[1] <= other[1];
    if all.iter().any(|other| needs_no_more(other, &used)) {
        return false;
    }
    all.retain(|other| !needs_no_more(&used, other));
    all.push(used);
    true
}

/// These orders, and all that go on from them with calls under way and changes without an answer.
fn all_orders(orders: Orders, calls: &[Call], under_way: &BTreeSet<usize>, lost: Used) -> Orders {
    let mut all = Orders::new();
    let mut new = Vec::new();
    for ((is_member, done), every) in orders {
        new.extend(
            every
                .into_iter()
                .map(|used| (is_member, done.clone(), used)),
        );
    }
    while let Some((is_member, done, used)) = new.pop() {
        if !add(&mut all, (is_member, done.clone()), used) {
            continue;
        }
        for n in under_way.difference(&done) {
            let after = match (calls[*n].operation, is_member) {
                (Operation::Join, _) => true,
                (Operation::Leave, true) => false,
                (Operation::Found(found), _) if found == is_member => is_member,
                _ => continue,
            };
            let mut done = done.clone();
            done.insert(*n);
            new.push((after, done, used));
        }
        let change = usize::from(is_member);
        if used[change] < lost[change] {
            let mut used = used;
            used[change] += 1;
            new.push((!is_member, done, used));
        }
    }
    all
}

/// Those orders in which a call has happened, which has ended.
fn ended(orders: &Orders, call: usize) -> Orders {
    let mut left = Orders::new();
    for ((is_member, done), every) in orders.iter().filter(|((_, done), _)| done.contains(&call)) {
        let mut done = done.clone();
        done.remove(&call);
        for used in every {
            add(&mut left, (*is_member, done.clone()), *used);
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::Operation::{Found, Join, Leave};
    use super::*;

    /// Calls with begin and end; an end of 0 is none.
    fn checked(calls: &[(Operation, u64, u64)]) -> Result<(), usize> {
        let call = |(operation, begin_ns, end_ns): &(Operation, u64, u64)| Call {
            operation: *operation,
            begin_ns: *begin_ns,
            end_ns: Some(*end_ns).filter(|end| *end > 0),
            origin: String::new(),
        };
        check(&calls.iter().map(call).collect::<Vec<_>>())
    }

    #[test]
    fn a_change_is_there_for_all_that_begin_after_its_end() {
        assert_eq!(
            checked(&[
                (Join, 1, 2),
                (Found(true), 3, 4),
                (Leave, 5, 6),
                (Found(false), 7, 8)
            ]),
            Ok(())
        );
        assert_eq!(checked(&[(Join, 1, 2), (Found(false), 3, 4)]), Err(1));
        assert_eq!(
            checked(&[(Join, 1, 2), (Leave, 3, 4), (Found(true), 5, 6)]),
            Err(2)
        );
        assert_eq!(checked(&[(Found(true), 1, 2), (Join, 3, 4)]), Err(0));
    }

    #[test]
    fn nobody_leaves_twice_or_without_having_joined() {
        assert_eq!(checked(&[(Leave, 1, 2)]), Err(0));
        assert_eq!(
            checked(&[(Join, 1, 2), (Leave, 3, 6), (Leave, 4, 5)]),
            Err(1)
        );
        assert_eq!(
            checked(&[(Join, 1, 2), (Leave, 3, 6), (Leave, 4, 8), (Join, 3, 9)]),
            Ok(())
        );
        assert_eq!(
            checked(&[(Join, 1, 2), (Join, 3, 4), (Leave, 5, 6), (Leave, 7, 8)]),
            Err(3)
        );
    }

    #[test]
    fn reads_during_a_change_agree_on_its_moment() {
        let with =
            |first, second| checked(&[(Join, 1, 9), (Found(first), 2, 3), (Found(second), 4, 5)]);
        assert_eq!(with(false, true), Ok(()));
        assert_eq!(with(true, true), Ok(()));
        assert_eq!(with(true, false), Err(2));
        // They overlap each other.
        assert_eq!(
            checked(&[(Join, 1, 9), (Found(true), 2, 5), (Found(false), 3, 6)]),
            Ok(())
        );
    }

    #[test]
    fn a_change_without_an_answer_happens_once_at_most_at_any_later_time() {
        for found in [true, false] {
            assert_eq!(checked(&[(Join, 1, 0), (Found(found), 50, 51)]), Ok(()));
        }
        assert_eq!(
            checked(&[(Join, 1, 0), (Found(false), 3, 4), (Found(true), 5, 6)]),
            Ok(())
        );
        assert_eq!(checked(&[(Found(true), 1, 2), (Join, 3, 0)]), Err(0));
        let twice = [(Join, 1, 0), (Leave, 2, 3), (Found(true), 4, 5)];
        assert_eq!(checked(&twice), Err(2));
        assert_eq!(checked(&[&[(Join, 1, 0)], &twice[..]].concat()), Ok(()));
        let back = [
            (Join, 1, 2),
            (Leave, 3, 0),
            (Found(false), 4, 5),
            (Found(true), 6, 7),
        ];
        assert_eq!(checked(&back), Err(3));
        assert_eq!(checked(&[&back[..], &[(Join, 2, 0)]].concat()), Ok(()));
    }

    /// As many as a night has.
    #[test]
    fn a_long_history_with_many_changes_without_an_answer_is_checked() {
        let mut calls = Vec::new();
        for n in 0..3000 {
            let t = 100 * n + 10;
            let more = [
                (Join, t + 1, 0),
                (Leave, t + 2, 0),
                (Join, t + 3, t + 60),
                (Found(true), t + 4, t + 50),
            ];
            calls.extend(more);
            calls.push((Leave, t + 70, t + 80));
        }
        assert_eq!(checked(&calls), Ok(()));
        calls.push((Found(true), 600_000, 600_001));
        calls.push((Found(false), 600_002, 600_003));
        assert_eq!(checked(&calls), Ok(()));
        calls.push((Found(true), 0, 1));
        assert!(checked(&calls).is_err());
    }
}
