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
    core.handle(now, Event::Opened);
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
    for followers in [1_u64, 2, 5, 100, 256, 1_000, 4_095] {
        let share = followers.div_ceil(u64::from(STEPS)).min(SHARE as u64);
        let round = LAG / STEPS * followers.div_ceil(share) as u32;
        // Among few hosts it is short, and the leader is never busy with rounds alone.
        assert!(round <= LAG || followers > 256);
        assert!(round >= Duration::from_micros(900) * followers as u32 || followers <= 256);
        let mut now = begin + round;
        let mut core = core(followers, begin);
        let (concerned, asker) = (followers / 2, followers / 3);
        let change = ChangeId(1);
        let asked = Event::Asked {
            change,
            actor: Actor::User(1),
            request: RequestId(1),
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
        let limit = now + round;
        while let Some(wake) = core.wake().filter(|wake| *wake <= limit) {
            now = wake;
            let sent_now = sessions(core.handle(now, Event::Tick));
            assert!(sent_now.len() as u64 <= share);
            sent.extend(sent_now);
        }
        assert_eq!(sent.len() as u64, followers);
        for session in 0..followers {
            assert_eq!(answer(&mut core, now, session, 1), NONE);
        }
        core.handle(limit + round, Event::Tick);
        assert_eq!(core.wake(), None);
    }
}

/// A host that has told another address is not to be looked for at the former one.
#[test]
fn a_host_is_hurried_without_a_change() {
    let now = Instant::now();
    let mut core = core(3, now);
    durable(&mut core, now, 1);
    let hurry = |core: &mut Core| {
        let hosts = ["host1".into(), "away".into()];
        sessions(core.handle(now, Event::Hurried(hosts.into())))
    };
    assert_eq!(hurry(&mut core), [1]);
    assert_eq!(hurry(&mut core), NONE);
    durable(&mut core, now, 2);
    // A busy one gets the rest in its turn.
    assert_eq!(hurry(&mut core), NONE);
    assert_eq!(answer(&mut core, now, 1, 1), NONE);
    assert_eq!(hurry(&mut core), [1]);
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

/// Both attempts would otherwise be decided while the first takes effect elsewhere.
#[test]
fn a_repeated_request_waits_for_the_end_of_its_first_attempt() {
    let now = Instant::now();
    let mut core = core(1, now);
    let decided = |actions: Vec<Action>| {
        let decided = actions.into_iter().filter_map(|action| match action {
            Action::Decide(change) => Some(change.0),
            _ => None,
        });
        decided.collect::<Vec<_>>()
    };
    let ask = |core: &mut Core, change, user, request, subject: &str| {
        let asked = Event::Asked {
            change: ChangeId(change),
            actor: Actor::User(user),
            request: RequestId(request),
            subjects: [subject.into()].into(),
        };
        decided(core.handle(now, asked))
    };
    assert_eq!(ask(&mut core, 1, 1, 7, "blue"), [1]);
    assert_eq!(ask(&mut core, 2, 1, 7, "blue"), NONE);
    // Another request, and the same identifier of another actor.
    assert_eq!(ask(&mut core, 3, 1, 8, "red"), [3]);
    assert_eq!(ask(&mut core, 4, 2, 7, "green"), [4]);
    durable(&mut core, now, 1);
    let made = Event::Decided {
        change: ChangeId(1),
        concerned: ["host0".into()].into(),
        asker: None,
        fence: None,
    };
    core.handle(now, made);
    let in_effect = Event::InEffect(ChangeId(1));
    assert_eq!(decided(core.handle(now, in_effect)), NONE);
    // A later change does not wait for an attempt that waits.
    assert_eq!(ask(&mut core, 5, 1, 9, "blue"), [5]);
    let answered = Event::Answered {
        host: "host0".into(),
        session: SessionId(0),
        number: 1,
        answer: Answer::Done,
    };
    assert_eq!(decided(core.handle(now, answered)), NONE);
    // But the attempt waits for a change that takes effect here.
    let refused = Event::Dropped(ChangeId(5));
    assert_eq!(decided(core.handle(now, refused)), [2]);
}

/// A leader that the files name has the directory long before other hosts can connect. The time in
/// which they return once began then.
#[test]
fn a_change_waits_for_hosts_that_return_after_they_can_connect() {
    let begin = Instant::now();
    let mut core = Core::new(Some("leader".into()));
    core.begin(Records::new(), Some(revision(1, 1, 0)));
    let mut now = begin + 2 * RETURN;
    let change = ChangeId(1);
    let asked = Event::Asked {
        change,
        actor: Actor::User(1),
        request: RequestId(1),
        subjects: BTreeSet::new(),
    };
    core.handle(now, asked);
    durable(&mut core, now, 1);
    let decided = Event::Decided {
        change,
        concerned: ["host0".into()].into(),
        asker: None,
        fence: None,
    };
    core.handle(now, decided);
    let mut replies = |now, event| {
        let actions = core.handle(now, event).into_iter();
        let lacking = actions.filter_map(|action| match action {
            Action::Reply { reached, .. } => Some(reached.lacking),
            _ => None,
        });
        lacking.collect::<Vec<_>>()
    };
    assert_eq!(replies(now, Event::InEffect(change)), []);
    now += RETURN;
    assert_eq!(replies(now, Event::Opened), []);
    assert_eq!(replies(now + RETURN / 2, Event::Tick), []);
    let away = ("host0".to_owned(), "its agent is away".to_owned());
    assert_eq!(replies(now + RETURN, Event::Tick), [[away].into()]);
}

/// It has a pause between attempts, which the others do not wait for.
#[test]
fn a_host_that_fails_does_not_delay_the_others() {
    let mut now = Instant::now();
    let mut core = core(2, now);
    durable(&mut core, now, 1);
    let mut sent = Vec::new();
    while sent.len() < 2 {
        now = core.wake().expect("both wait");
        sent.extend(sessions(core.handle(now, Event::Tick)));
    }
    let failed = Event::Answered {
        host: "host0".into(),
        session: SessionId(0),
        number: 1,
        answer: Answer::Failed("its disk is full".into()),
    };
    core.handle(now, failed);
    answer(&mut core, now, 1, 1);
    let retry = loop {
        let wake = core.wake().expect("it is tried again");
        if wake > now + LAG {
            break wake;
        }
        assert_eq!(sessions(core.handle(wake, Event::Tick)), NONE);
    };
    durable(&mut core, now + LAG, 2);
    let (limit, mut sent) = (now + 2 * LAG, Vec::new());
    while let Some(wake) = core.wake().filter(|wake| *wake <= limit && *wake < retry) {
        sent.extend(sessions(core.handle(wake, Event::Tick)));
    }
    assert_eq!(sent, [1]);
}
