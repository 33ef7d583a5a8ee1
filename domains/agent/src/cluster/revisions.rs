//! Terms of this host, and comparison of the revisions of two hosts' directories.

use std::io;

use toroid_model::directory::Directory;
use toroid_model::directory::revision::{FabricId, Revision};
use toroid_model::refusal::{Refusal, RefusalKind};

use super::Cluster;
use crate::error::{AgentError, during};
use crate::random;

/// A host's name and the revision of its directory, if it has one.
pub(crate) type At<'a> = (&'a str, Option<Revision>);

impl Cluster {
    /// Begins a term of the directory that this host leads, and a fabric if it is of none.
    pub(crate) fn begin_term(&self, directory: &mut Directory) -> Result<(), AgentError> {
        let drawn = || Ok((random::bytes()?, random::bytes()?));
        let (fabric, nonce) = drawn().map_err(|refusal: Refusal| {
            during("draw the random numbers of a term")(io::Error::other(refusal.message))
        })?;
        let fabric = FabricId(u128::from_ne_bytes(fabric));
        directory.begin_term(fabric, u64::from_ne_bytes(nonce));
        self.tickets.set_term(directory.revision());
        Ok(())
    }
}

/// Checks that a follower's copy may become the leader's directory: one of the same fabric that has
/// all changes of the copy.
pub(crate) fn check_update(
    (follower, copy): At<'_>,
    (leader, directory): (&str, &Directory),
) -> Result<(), Refusal> {
    let (copy, next) = match (copy, directory.revision()) {
        (Some(copy), Some(next)) => (copy, next),
        (None, Some(_)) => return Ok(()),
        (_, None) => {
            return Err(Refusal::new(
                RefusalKind::Invalid,
                format!("the directory of host {leader} has no revision"),
                "use the same release on all hosts",
            ));
        }
    };
    check_fabric((follower, Some(copy)), (leader, Some(next)))?;
    let [has, wanted] = [copy, next].map(|its| (its.term.number, its.number));
    let message = if copy.term != next.term && has.0 == wanted.0 {
        format!(
            "host {leader} leads in another term {} than the one that host {follower} knows",
            next.term.number
        )
    } else if wanted.0 < has.0 || wanted.1 < has.1 {
        format!(
            "the directory of host {leader} is older ({next}) than the copy on host {follower} \
             ({copy})"
        )
    } else if !directory.goes_on_from(&copy) {
        let message = format!(
            "host {leader} leads without changes that host {follower} has ({copy}): its copy was \
             older when it began"
        );
        let remedy = format!(
            "name host {follower} as `directory` in all files; to give up its changes, begin anew \
             there: `toroid up --fresh`"
        );
        return Err(Refusal::new(RefusalKind::Exists, message, remedy));
    } else {
        return Ok(());
    };
    let remedy = format!(
        "if another agent has led since, name its host as `directory` in all files; if the data of \
         host {leader} were restored from an old copy, begin anew on host {follower}: `toroid up \
         --fresh`"
    );
    Err(Refusal::new(RefusalKind::Exists, message, remedy))
}

/// Checks that changes since a revision make a copy as the leader has it. The copy may be of a
/// later revision of the same term: the changes have the last value of each record.
pub(crate) fn check_base(copy: &Directory, since: &Revision) -> Result<(), Refusal> {
    let goes_on = |its: &Revision| its.is_of_same_term(since) && since.number <= its.number;
    if !copy.is_partial() && copy.revision().is_some_and(|its| goes_on(&its)) {
        return Ok(());
    }
    Err(Refusal::new(
        RefusalKind::Failed,
        format!("changes since {since} do not go on from the copy here"),
        "the leader sends the whole directory next",
    ))
}

/// Checks that the directories of two hosts are of one fabric, as far as they are known.
pub(crate) fn check_fabric((host, its): At<'_>, (other, others): At<'_>) -> Result<(), Refusal> {
    let (Some(its), Some(others)) = (its, others) else {
        return Ok(());
    };
    if its.fabric == others.fabric {
        return Ok(());
    }
    let message = format!(
        "host {host} has a directory of fabric {}, and host {other} of fabric {}",
        its.fabric, others.fabric
    );
    let remedy = format!(
        "if the directory of host {other} was begun anew, begin anew on host {host}, too: `toroid \
         up --fresh`; otherwise correct `directory` and `[hosts]` in the files"
    );
    Err(Refusal::new(RefusalKind::Exists, message, remedy))
}

/// Checks that numbers of domains of one fabric mean the same on two hosts.
pub(crate) fn check_term((host, its): At<'_>, (other, others): At<'_>) -> Result<(), Refusal> {
    let term = |revision: Option<Revision>| revision.map(|revision| revision.term);
    if term(its) == term(others) {
        return Ok(());
    }
    let number = |revision| term(revision).map(|term| term.number);
    let text = |number: Option<u64>| number.map_or("no term".into(), |n| format!("term {n}"));
    // Two leaders.
    let another = if number(its) == number(others) {
        "another "
    } else {
        ""
    };
    Err(Refusal::new(
        RefusalKind::Failed,
        format!(
            "host {host} has the directory of {}, and host {other} of {another}{}",
            text(number(its)),
            text(number(others))
        ),
        "try again when both follow the leader: see `toroid status` on both hosts",
    ))
}

#[cfg(test)]
pub(crate) mod tests {
    use toroid_model::directory::revision::{EndedTerm, FabricId, Term};

    use super::*;

    /// A revision whose term has the nonce 0.
    pub(crate) fn revision(fabric: u128, term: u64, number: u64) -> Revision {
        Revision {
            fabric: FabricId(fabric),
            term: Term {
                number: term,
                nonce: 0,
            },
            number,
        }
    }

    #[test]
    fn a_copy_follows_its_own_fabric_and_never_goes_back() {
        let copy = revision(7, 3, 20);
        // A leader's directory, with the end of the term before.
        let leads = |revision: Option<Revision>, last: u64| {
            let mut records = Directory::new("2x1x1".parse().unwrap()).records();
            if let Some(revision) = revision {
                let ended = EndedTerm {
                    term: copy.term,
                    last,
                };
                records.insert("revision".into(), serde_json::to_string(&revision).unwrap());
                records.insert("terms".into(), serde_json::to_string(&[ended]).unwrap());
            }
            Directory::from_records(&records).unwrap()
        };
        let check = |next| check_update(("b", Some(copy)), ("a", &leads(next, 20)));
        for next in [copy, revision(7, 3, 25), revision(7, 4, 21)] {
            check(Some(next)).unwrap();
        }
        check_update(("b", None), ("a", &leads(Some(copy), 20))).unwrap();
        // It began without the copy's last change, and has made others since.
        for next in [20, 21, 30] {
            let next = leads(Some(revision(7, 4, next)), 19);
            let refusal = check_update(("b", Some(copy)), ("a", &next)).unwrap_err();
            assert!(refusal.message.contains("without changes"), "{refusal}");
            assert!(refusal.remedy.contains("name host b"), "{refusal}");
        }
        let other_leader = Revision {
            term: Term {
                nonce: 1,
                ..copy.term
            },
            ..revision(7, 3, 25)
        };
        let refused = [
            (
                Some(revision(8, 4, 30)),
                "of fabric 0000",
                "begin anew on host b",
            ),
            (
                Some(revision(7, 2, 30)),
                "is older (revision 30 of term 2)",
                "restored",
            ),
            (Some(revision(7, 3, 19)), "is older", "restored"),
            (Some(revision(7, 4, 19)), "is older", "restored"),
            (Some(other_leader), "another term 3", "`directory`"),
            (None, "no revision", "same release"),
        ];
        for (next, message, remedy) in refused {
            let refusal = check(next).unwrap_err();
            assert!(refusal.message.contains(message), "{refusal}");
            assert!(refusal.message.contains("host a"), "{refusal}");
            assert!(refusal.remedy.contains(remedy), "{refusal}");
        }
    }

    #[test]
    fn changes_go_on_from_a_complete_copy_of_their_term() {
        let mut copy = Directory::new("2x1x1".parse().unwrap());
        check_base(&copy, &revision(7, 1, 1)).unwrap_err();
        copy.begin_term(FabricId(7), 0);
        copy.begin_term(FabricId(7), 0);
        check_base(&copy, &revision(7, 2, 1)).unwrap();
        check_base(&copy, &revision(7, 2, 2)).unwrap();
        for other in [revision(7, 2, 3), revision(7, 1, 1), revision(8, 2, 1)] {
            check_base(&copy, &other).unwrap_err();
        }
        let mut records = copy.records();
        records.insert("partial".into(), "true".into());
        let partial = Directory::from_records(&records).unwrap();
        check_base(&partial, &revision(7, 2, 2)).unwrap_err();
    }

    #[test]
    fn numbers_of_domains_are_compared_within_a_term() {
        let ours = ("c", Some(revision(7, 3, 20)));
        check_term(("b", Some(revision(7, 3, 25))), ours).unwrap();
        let refused = [
            (
                Some(revision(7, 2, 20)),
                "host b has the directory of term 2",
            ),
            (
                Some(revision(7, 4, 20)),
                "host b has the directory of term 4",
            ),
            (None, "host b has the directory of no term"),
            (
                Some(Revision {
                    term: Term {
                        number: 3,
                        nonce: 1,
                    },
                    ..revision(7, 3, 20)
                }),
                "term 3, and host c of another term 3",
            ),
        ];
        for (theirs, message) in refused {
            let refusal = check_term(("b", theirs), ours).unwrap_err();
            assert!(refusal.message.contains(message), "{refusal}");
            assert!(!refusal.remedy.is_empty());
        }
    }
}
