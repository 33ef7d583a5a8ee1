//! Linearizability of a history of a store: the search of Wing and Gong, with Lowe's memory of states
//! that were tried. [`membership`] has the search for a register of one bit.

pub mod history;
pub mod membership;

use std::collections::HashSet;

use history::{Call, KEYS, Operation, Outcome};

/// The version of each key.
type State = [Option<u32>; KEYS as usize];

/// Calls of a history, at most: one bit each.
const LIMIT: usize = 128;

/// Whether some order of the operations explains all answers, each at a moment between its begin and its
/// end. The store is empty at first. An operation without a known end may have happened at any time
/// after its begin, or never.
///
/// # Panics
/// With more than [`LIMIT`] calls.
pub fn is_linearizable(calls: &[Call]) -> bool {
    assert!(calls.len() <= LIMIT, "{} calls", calls.len());
    let ended = |done: u128| {
        let left = calls
            .iter()
            .enumerate()
            .filter(move |(n, _)| done >> n & 1 == 0);
        left.filter_map(|(_, call)| Some(call.end.as_ref()?.0))
            .min()
    };
    let mut tried = HashSet::new();
    let mut stack = vec![(0u128, State::default())];
    while let Some((done, state)) = stack.pop() {
        // No call that is left may have ended before the next one began.
        let Some(first_end) = ended(done) else {
            return true;
        };
        for (n, call) in calls.iter().enumerate() {
            if done >> n & 1 != 0 || call.begin_ns > first_end {
                continue;
            }
            for after in after(call, &state) {
                let next = (done | 1 << n, after);
                if tried.insert(next) {
                    stack.push(next);
                }
            }
        }
    }
    false
}

/// Possible states after a call; none if its answer was wrong.
fn after(call: &Call, state: &State) -> Vec<State> {
    let outcome = call.end.as_ref().map(|(_, outcome)| outcome);
    let with = |key: u8, value| {
        let mut state = *state;
        state[usize::from(key)] = value;
        state
    };
    match (call.operation, outcome) {
        (Operation::Set { key, version }, Some(Outcome::Done)) => vec![with(key, Some(version))],
        // A set that fails may remove the key.
        (Operation::Set { key, version }, None) => vec![with(key, Some(version)), with(key, None)],
        (Operation::Delete { key }, Some(Outcome::Deleted(was))) => {
            let right = state[usize::from(key)].is_some() == *was;
            right.then(|| with(key, None)).into_iter().collect()
        }
        (Operation::Delete { key }, None) => vec![with(key, None)],
        (Operation::Get { key }, Some(Outcome::Found(found))) => {
            let right = state[usize::from(key)] == *found;
            right.then_some(*state).into_iter().collect()
        }
        (Operation::Flush | Operation::Restart, Some(Outcome::Done) | None) => {
            vec![State::default()]
        }
        _ => vec![],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(operation: Operation, begin_ns: u64, end_ns: u64, outcome: Outcome) -> Call {
        Call {
            operation,
            begin_ns,
            end: Some((end_ns, outcome)),
        }
    }

    fn set(version: u32, begin: u64, end: u64) -> Call {
        call(
            Operation::Set { key: 0, version },
            begin,
            end,
            Outcome::Done,
        )
    }

    fn get(key: u8, found: Option<u32>, begin: u64, end: u64) -> Call {
        call(Operation::Get { key }, begin, end, Outcome::Found(found))
    }

    fn unknown(operation: Operation, begin_ns: u64) -> Call {
        Call {
            operation,
            begin_ns,
            end: None,
        }
    }

    #[test]
    fn overlapping_calls_may_have_happened_in_either_order() {
        for (first, second) in [(None, Some(1)), (Some(1), Some(1)), (None, None)] {
            let gets = [get(0, first, 2, 3), get(0, second, 4, 5)];
            assert!(is_linearizable(&[&[set(1, 1, 9)], &gets[..]].concat()));
        }
    }

    #[test]
    fn no_client_goes_back_to_an_older_value() {
        let sets = [set(1, 0, 1), set(2, 2, 9)];
        let gets = [get(0, Some(2), 3, 4), get(0, Some(1), 5, 6)];
        assert!(!is_linearizable(&[sets, gets.clone()].concat()));
        let [second, first] = gets;
        let swapped = [set(1, 0, 1), set(2, 2, 9), second, first].map(|call| Call {
            // Both at once.
            end: call.end.map(|(end, outcome)| (end.max(6), outcome)),
            ..call
        });
        assert!(is_linearizable(&swapped));
    }

    #[test]
    fn a_value_that_was_replaced_before_is_not_found() {
        assert!(!is_linearizable(&[
            set(1, 0, 1),
            set(2, 2, 3),
            get(0, Some(1), 4, 5)
        ]));
        assert!(!is_linearizable(&[set(1, 0, 1), get(0, None, 4, 5)]));
        assert!(!is_linearizable(&[get(0, Some(7), 4, 5)]));
        let delete = |was| call(Operation::Delete { key: 0 }, 2, 3, Outcome::Deleted(was));
        assert!(is_linearizable(&[
            set(1, 0, 1),
            delete(true),
            get(0, None, 4, 5)
        ]));
        assert!(!is_linearizable(&[set(1, 0, 1), delete(false)]));
        assert!(!is_linearizable(&[
            set(1, 0, 1),
            delete(true),
            get(0, Some(1), 4, 5)
        ]));
        let torn = Outcome::Nonsense("torn".into());
        assert!(!is_linearizable(&[call(
            Operation::Get { key: 0 },
            0,
            1,
            torn
        )]));
    }

    #[test]
    fn a_flush_removes_all_keys_at_one_moment() {
        let other = call(Operation::Set { key: 1, version: 2 }, 0, 1, Outcome::Done);
        let flush = call(Operation::Flush, 2, 9, Outcome::Done);
        let history = |first, second| {
            let gets = [get(0, first, 3, 4), get(1, second, 5, 6)];
            [&[set(1, 0, 1), other.clone(), flush.clone()], &gets[..]].concat()
        };
        assert!(is_linearizable(&history(Some(1), Some(2))));
        assert!(is_linearizable(&history(Some(1), None)));
        assert!(is_linearizable(&history(None, None)));
        assert!(!is_linearizable(&history(None, Some(2))));
    }

    #[test]
    fn a_call_without_an_answer_may_have_happened_or_not() {
        let lost = unknown(Operation::Set { key: 0, version: 2 }, 2);
        for found in [Some(1), Some(2), None] {
            let calls = [set(1, 0, 1), lost.clone(), get(0, found, 5, 6)];
            assert!(is_linearizable(&calls));
        }
        let back = [get(0, Some(2), 5, 6), get(0, Some(1), 7, 8)];
        assert!(!is_linearizable(
            &[&[set(1, 0, 1), lost.clone()], &back[..]].concat()
        ));
        assert!(!is_linearizable(&[
            set(1, 3, 4),
            get(0, Some(2), 0, 1),
            lost
        ]));
    }
}
