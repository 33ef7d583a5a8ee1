//! Which follower is sent which change at once.

use super::*;
use crate::cluster::revisions::tests::revision;

const NONE: [u64; 0] = [];

fn sessions(actions: Vec<Action>) -> Vec<u64> {
    let session = |action| match action {
        Action::Send { session, .. } => Some(session.0),
        _ => None,
    };
    actions.into_iter().filter_map(session).collect()
}

fn durable(core: &mut Core, now: Instant, value: u64) -> Vec<u64> {
    let mut changes = Changes::default();
    changes.put.insert("record".into(), value.to_string());
    sessions(core.handle(now, Event::Durable(changes)))
}

fn answer(core: &mut Core, now: Instant, session: u64, number: u64) -> Vec<u64> {
    sessions(core.handle(
        now,
        Event::Answered {
            host: format!("host{session}"),
            session: SessionId(session),
            number,
            answer: Answer::Done,
        },
    ))
}

/// A core with followers that have everything.
fn core(followers: u64, now: Instant) -> Core {
    let mut core = Core::new(Some("leader".into()));
    core.begin(Records::new(), Some(revision(1, 1, 0)));
    for session in 0..followers {
        let joined = Event::Joined {
            host: format!("host{session}"),
            session: SessionId(session),
            has: None,
        };
        assert_eq!(sessions(core.handle(now, joined)), [session]);
        answer(&mut core, now, session, 0);
    }
    if let Some(wake) = core.wake() {
        core.handle(wake, Event::Tick);
    }
    assert_eq!(core.wake(), None);
    core
}

#[test]
fn a_change_is_sent_at_once_only_to_hosts_that_it_concerns() {
    let begin = Instant::now();
    for followers in [1, 2, 5, 100, 4_095] {
        let mut now = begin + LAG;
        let mut core = core(followers, begin);
        let (concerned, asker) = (followers / 2, followers / 3);
        let change = ChangeId(1);
        let asked = Event::Asked {
            change,
            actor: Actor::User(1),
            subjects: BTreeSet::new(),
        };
        core.handle(now, asked);
        assert_eq!(durable(&mut core, now, 1), NONE);
        let decided = Event::Decided {
            change,
            concerned: [format!("host{concerned}")].into(),
            asker: Some(format!("host{asker}")),
            fence: None,
        };
        let mut sent: BTreeSet<_> = sessions(core.handle(now, decided)).into_iter().collect();
        assert_eq!(sent, BTreeSet::from([concerned, asker]));
        // The others get it in one round, in equal shares, without any other event.
        let limit = now + LAG;
        while let Some(wake) = core.wake().filter(|wake| *wake <= limit) {
            now = wake;
            let share = sessions(core.handle(now, Event::Tick));
            assert!(share.len() as u64 <= followers.div_ceil(u64::from(STEPS)));
            sent.extend(share);
        }
        assert_eq!(sent.len() as u64, followers);
        for session in 0..followers {
            assert_eq!(answer(&mut core, now, session, 1), NONE);
        }
        core.handle(limit + LAG, Event::Tick);
        assert_eq!(core.wake(), None);
    }
}

/// What a host answers is older than the change that concerns it.
#[test]
fn a_host_that_is_busy_gets_an_urgent_change_with_its_next_update() {
    let now = Instant::now();
    let mut core = core(2, now);
    durable(&mut core, now, 1);
    let decided = |core: &mut Core| {
        let decided = Event::Decided {
            change: ChangeId(1),
            concerned: ["host0".into()].into(),
            asker: None,
            fence: None,
        };
        sessions(core.handle(now, decided))
    };
    assert_eq!(decided(&mut core), [0]);
    durable(&mut core, now, 2);
    assert_eq!(decided(&mut core), NONE);
    assert_eq!(answer(&mut core, now, 0, 1), [0]);
    // The third concerns nobody, and waits.
    durable(&mut core, now, 3);
    assert_eq!(answer(&mut core, now, 0, 2), NONE);
    assert!(core.wake().is_some());
}
