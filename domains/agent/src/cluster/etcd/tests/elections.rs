use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use etcd_client::WatchOptions;
use nix::sys::signal::Signal;
use toroid_model::hosts::ETCD;
use toroid_model::refusal::RefusalKind;

use super::*;
use crate::cluster::candidacy::{Candidacy, Legacy};
use crate::cluster::etcd::election::{Leader, TTL, leader, take};
use crate::cluster::etcd::meta;
use crate::cluster::etcd::watch::{Ended, Reports, follow_with};

pub(super) fn watch(etcd: &Etcd) -> Receiver<Option<String>> {
    let (sender, leaders) = mpsc::channel();
    etcd.watch_leader(move |leader| _ = sender.send(leader));
    leaders
}

pub(super) fn next(leaders: &Receiver<Option<String>>) -> Option<String> {
    // A watchdog.
    leaders.recv_timeout(Duration::from_secs(30)).unwrap()
}

#[test]
fn one_of_two_candidates_leads_until_it_resigns() {
    let Some(cluster) = Cluster::single(&[]) else {
        return;
    };
    let (a, b) = (open(&cluster), open(&cluster));
    let leaders = watch(&b);
    assert_eq!(next(&leaders), None);
    let first = win(&a, "a");
    assert_eq!(next(&leaders).as_deref(), Some("a"));
    assert_eq!(b.campaign("b", None), Ok(Election::Led("a".into())));
    // Once more, as after a lost reply.
    assert_eq!(a.campaign("a", None), Ok(Election::Won(first)));
    a.resign();
    assert_eq!(next(&leaders), None);
    let second = win(&b, "b");
    assert!(second.term > first.term);
    assert_eq!(
        a.campaign("a", Some(first.lease)),
        Ok(Election::Led("b".into()))
    );
    assert_eq!(next(&leaders).as_deref(), Some("b"));
}

/// A newer release, or somebody who restored another snapshot, has written the keys since this
/// candidate has looked at them. It once led with them.
#[test]
fn a_candidate_leads_only_with_the_keys_that_it_knows() {
    let Some(cluster) = Cluster::single(&[]) else {
        return;
    };
    let (a, b) = (open(&cluster), open(&cluster));
    let torus = TORUS.parse().unwrap();
    let known = a.run(move |servers| async move { meta::revision(&servers, torus).await.unwrap() });
    for (value, kind) in [
        (r#"{"format":2}"#, RefusalKind::Version),
        (r#"{"format":1,"torus":"2x1x1"}"#, RefusalKind::Invalid),
    ] {
        put(&a, "meta", value);
        let error = a.campaign("a", None).unwrap_err();
        assert_eq!(error.refusal().kind, kind, "{error}");
        // Also if they are written during the campaign.
        let taken = a.run(move |servers| async move { take(&servers, "a", known).await });
        let changed = taken.unwrap_err().to_string();
        assert!(
            changed.contains("/toroid/test/meta has changed"),
            "{changed}"
        );
        assert_eq!(next(&watch(&b)), None);
    }
    put(&a, "meta", &format!(r#"{{"format":1,"torus":"{TORUS}"}}"#));
    let tenure = win(&a, "a");
    // Nor does it lead on in its next life.
    put(&a, "meta", r#"{"format":2}"#);
    let resumed = a.campaign("a", Some(tenure.lease)).unwrap_err();
    assert_eq!(resumed.refusal().kind, RefusalKind::Version, "{resumed}");
}

/// The lease outlives the handle, as it does an agent that is killed.
#[test]
fn a_leader_comes_back_by_its_lease_or_is_replaced_after_it() {
    let Some(cluster) = Cluster::single(&[]) else {
        return;
    };
    let (a, b) = (open(&cluster), open(&cluster));
    let leaders = watch(&b);
    assert_eq!(next(&leaders), None);
    let tenure = win(&a, "a");
    drop(a);
    let again = open(&cluster);
    let lease = Some(tenure.lease);
    // Another host cannot.
    assert_eq!(b.campaign("b", lease), Ok(Election::Led("a".into())));
    assert_eq!(again.campaign("a", lease), Ok(Election::Won(tenure)));
    assert_eq!(next(&leaders).as_deref(), Some("a"));
    drop(again);
    assert_eq!(next(&leaders), None);
    let late = open(&cluster).campaign("a", lease).unwrap();
    assert!(matches!(late, Election::Won(its) if its.term > tenure.term));
}

/// The key of such a host would stay for the time of a lease.
#[test]
fn a_host_that_ends_while_it_stands_for_election_does_not_lead() {
    let Some(cluster) = Cluster::single(&[]) else {
        return;
    };
    let mut config = crate::cluster::tests::cluster().config;
    config.directory = ETCD.into();
    config.candidates = ["a".into()].into();
    config.etcd = Some(cluster.config());
    let data = tempfile::tempdir().unwrap();
    let candidacy = Candidacy::of(&config, data.path(), Legacy::default(), Arc::default()).unwrap();
    cluster.servers[0].signal(Signal::SIGSTOP);
    thread::scope(|scope| {
        let stood = scope.spawn(|| candidacy.stand(Arc::new(|| ())).unwrap());
        candidacy.stand_no_more();
        candidacy.resign();
        cluster.servers[0].signal(Signal::SIGCONT);
        assert!(stood.join().unwrap().is_none());
    });
    win(
        &Etcd::open(&cluster.config(), config.torus, None).unwrap(),
        "b",
    );
}

/// Two candidates with a slow etcd once won in turn for ever: neither was ready before its lease ended.
#[test]
fn the_next_life_of_an_elected_host_keeps_its_lease_before_it_stands() {
    let Some(cluster) = Cluster::single(&[]) else {
        return;
    };
    let first = open(&cluster);
    let tenure = win(&first, "a");
    drop(first);
    let lease = Some(tenure.lease);
    let torus = TORUS.parse().unwrap();
    let next = Etcd::open(&cluster.config(), torus, lease).unwrap();
    // Lets a lease end that is not renewed.
    thread::sleep(TTL + Duration::from_secs(2));
    assert_eq!(next.campaign("a", lease), Ok(Election::Won(tenure)));
}

#[test]
fn a_leader_knows_since_when_its_lease_is_not_renewed() {
    let Some(cluster) = Cluster::single(&[]) else {
        return;
    };
    let etcd = open(&cluster);
    assert_eq!(etcd.left(), None);
    win(&etcd, "a");
    let until = |is_it: &dyn Fn(Duration) -> bool| {
        let end = Instant::now() + Duration::from_secs(30);
        while !etcd.unrenewed().is_some_and(is_it) {
            assert!(Instant::now() < end, "{:?}", etcd.unrenewed());
            thread::sleep(Duration::from_millis(10));
        }
    };
    cluster.servers[0].signal(Signal::SIGSTOP);
    until(&|time| time > Duration::from_secs(1));
    cluster.servers[0].signal(Signal::SIGCONT);
    until(&|time| time < Duration::from_millis(500));
    assert!(etcd.left() > Some(Duration::ZERO));
    etcd.resign();
    assert_eq!(etcd.left(), None);
}

#[test]
fn a_watch_goes_on_after_compaction() {
    let Some(cluster) = Cluster::single(&[]) else {
        return;
    };
    let (a, b) = (open(&cluster), open(&cluster));
    win(&a, "a");
    for _ in 0..3 {
        ask(&b, |mut client| async move {
            client.put("/other", "", None).await
        })
        .unwrap();
    }
    let compact = |mut client: Client| async move {
        let revision = client.get("/other", None).await?;
        let revision = revision.header().map_or(0, |header| header.revision());
        client.compact(revision, None).await
    };
    ask(&b, compact).unwrap();
    // A watch from a revision that is gone would be canceled.
    let canceled = ask(&b, |mut client: Client| async move {
        let options = WatchOptions::new().with_start_revision(1);
        let mut stream = client.watch("/toroid/test/leader", Some(options)).await?;
        let mut answer = stream.message().await?;
        while answer.as_ref().is_some_and(|answer| !answer.canceled()) {
            answer = stream.message().await?;
        }
        Ok(answer.is_some_and(|answer| answer.compact_revision() > 1))
    });
    assert_eq!(canceled, Ok(true));
    // Nor does one see a deletion in the revision to which etcd has compacted, if it begins there.
    let (sender, leaders) = mpsc::channel();
    let (mut reports, revision) = b.run(|servers| async move {
        let mut reports = Reports::new(sender);
        let (present, revision) = leader(&servers).await.unwrap();
        reports.report(present, revision).unwrap();
        (reports, revision)
    });
    assert_eq!(next(&leaders).as_deref(), Some("a"));
    a.resign();
    ask(&a, compact).unwrap();
    // Not of a scope, which would wait for it after a failure.
    let followed = thread::spawn(move || {
        b.run(|servers| async move {
            let (_, client) = servers.present().await.unwrap();
            follow_with(&servers, client, revision + 1, &mut reports).await
        })
    });
    assert_eq!(next(&leaders), None);
    drop(leaders);
    win(&a, "a");
    assert!(matches!(followed.join(), Ok(Err(Ended::Unheard))));
}

/// Otherwise no host would hear that the leader's key is gone with all others.
#[test]
fn a_watch_follows_etcd_to_an_earlier_revision() {
    let (sender, leaders) = mpsc::channel();
    let mut reports = Reports::new(sender);
    let leader = Leader {
        host: "a".into(),
        term: 9,
        lease: 7,
    };
    reports.report(Some(leader), 10).unwrap();
    assert_eq!(next(&leaders).as_deref(), Some("a"));
    // An event that is older than the last read.
    reports.report(None, 3).unwrap();
    assert!(leaders.try_recv().is_err());
    reports.begin();
    reports.report(None, 3).unwrap();
    assert_eq!(next(&leaders), None);
}
