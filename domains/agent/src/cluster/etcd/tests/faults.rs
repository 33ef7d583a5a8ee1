use std::collections::BTreeMap;
use std::thread;

use etcd_client::{AlarmAction, AlarmOptions, AlarmType, PutOptions};
use nix::sys::signal::Signal;
use toroid_model::refusal::RefusalKind;

use super::elections::{next, watch};
use super::*;
use crate::cluster::etcd::load;
use crate::store::{RecoveringStore, StoreError};

/// Lets time pass in which the servers do nothing.
fn stopped(cluster: &Cluster, time: Duration, work: impl FnOnce()) {
    let server = &cluster.servers[0];
    server.signal(Signal::SIGSTOP);
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(time);
            server.signal(Signal::SIGCONT);
        });
        work();
    });
}

/// Attempts without an answer reach etcd nevertheless.
#[test]
fn a_change_without_an_answer_is_made_once() {
    let Some(cluster) = Cluster::single(&[]) else {
        return;
    };
    let etcd = open(&cluster);
    let before = directory();
    let tenure = win(&etcd, "a");
    let mut store = store_with(&etcd, &tenure, &before);
    let red = with_domain(&before, "red", 0..3);
    stopped(&cluster, Duration::from_millis(1300), || {
        store.commit(&red.changes_since(&before)).unwrap();
    });
    assert_eq!(etcd.store(&tenure).load().unwrap(), red.records());
}

#[test]
fn a_change_of_unknown_outcome_is_settled_by_the_next() {
    let Some(cluster) = Cluster::single(&[]) else {
        return;
    };
    let patient = open(&cluster);
    let before = directory();
    let tenure = win(&patient, "a");
    drop(store_with(&patient, &tenure, &before));
    let mut store = hasty(&cluster, Duration::from_millis(700)).store(&tenure);
    while store.load().is_err() {}
    let mut store = RecoveringStore::new(Box::new(store));
    let red = with_domain(&before, "red", 0..3);
    stopped(&cluster, Duration::from_millis(1500), || {
        let error = store.keep(&before, &red).unwrap_err();
        assert!(matches!(error, StoreError::Doubtful(_)), "{error}");
        let refusal = error.refusal();
        assert!(refusal.message.contains("does not decide"), "{refusal}");
        assert!(refusal.message.contains("unknown"), "{refusal}");
    });
    assert_eq!(
        patient.campaign("a", Some(tenure.lease)),
        Ok(Election::Won(tenure))
    );
    let blue = with_domain(&before, "blue", 3..5);
    let end = Instant::now() + Duration::from_secs(60);
    while let Err(error) = store.keep(&before, &blue) {
        assert!(Instant::now() < end, "{error}");
    }
    assert_eq!(patient.store(&tenure).load().unwrap(), blue.records());
}

/// Otherwise a leader that steps down would let its callers wait.
#[test]
fn a_change_that_is_given_up_ends_with_the_reason() {
    let Some(cluster) = Cluster::single(&[]) else {
        return;
    };
    // Longer than a test may take.
    let etcd = hasty(&cluster, Duration::from_secs(3600));
    let before = directory();
    let tenure = win(&etcd, "a");
    let mut store = store_with(&etcd, &tenure, &before);
    let red = with_domain(&before, "red", 0..3);
    cluster.servers[0].signal(Signal::SIGSTOP);
    thread::scope(|scope| {
        let change = scope.spawn(|| store.commit(&red.changes_since(&before)));
        etcd.give_up();
        let error = change.join().unwrap().unwrap_err();
        assert!(error.to_string().contains("not renewed in time"), "{error}");
    });
    // Nothing waits for etcd any more, nor does the end of the handle.
    etcd.resign();
    cluster.servers[0].signal(Signal::SIGCONT);
}

/// The servers' leader dies, and then one more.
#[test]
fn changes_go_on_as_long_as_most_servers_do() {
    let Some(mut cluster) = Cluster::of(3) else {
        return;
    };
    let is_night = std::env::var_os("TOROID_TEST_NIGHTLY").is_some();
    let patience = Duration::from_secs(if is_night { 9 } else { 2 });
    let etcd = open(&cluster);
    let tenure = win(&etcd, "a");
    let mut directory = with_domain(&directory(), "blue", 0..64);
    let mut store = store_with(&etcd, &tenure, &directory);
    let leads = |index: usize| {
        etcd.run(move |servers| async move {
            let status = servers
                .connect(index)
                .await
                .unwrap()
                .status()
                .await
                .unwrap();
            status.header().unwrap().member_id() == status.leader()
        })
    };
    let first_that = |is_it: &dyn Fn(usize) -> bool| (0..3).find(|index| is_it(*index)).unwrap();
    let mut leader = first_that(&leads);
    let standby = open(&cluster);
    let leaders = watch(&standby);
    assert_eq!(next(&leaders).as_deref(), Some("a"));
    let mut longest = Duration::ZERO;
    for node in 0..20 {
        match node {
            2 if is_night => cluster.servers[leader].signal(Signal::SIGSTOP),
            8 if is_night => {
                cluster.servers[leader].signal(Signal::SIGCONT);
                leader = first_that(&leads);
            }
            10 => cluster.servers[leader].kill(),
            _ => {}
        }
        let next = without(&directory, "blue", &[node]);
        let begin = Instant::now();
        store.commit(&next.changes_since(&directory)).unwrap();
        longest = longest.max(begin.elapsed());
        directory = next;
    }
    println!("longest change: {longest:?}");
    assert_eq!(etcd.campaign("a", None), Ok(Election::Won(tenure)));
    etcd.resign();
    assert_eq!(next(&leaders), None);
    let tenure = win(&etcd, "a");
    assert_eq!(next(&leaders).as_deref(), Some("a"));
    let mut hasty = hasty(&cluster, patience).store(&tenure);
    assert_eq!(hasty.load().unwrap(), directory.records());
    cluster.servers[(leader + 1) % 3].kill();
    let begin = Instant::now();
    let next = without(&directory, "blue", &[40]);
    let error = hasty.commit(&next.changes_since(&directory)).unwrap_err();
    println!("{error} after {:?}", begin.elapsed());
    let refusal = error.refusal();
    assert!(
        refusal.message.contains("most of its servers are away"),
        "{refusal}"
    );
}

#[test]
fn members_leave_also_when_etcd_is_full() {
    let Some(cluster) = Cluster::single(&["--quota-backend-bytes", "16777216"]) else {
        return;
    };
    let etcd = open(&cluster);
    let tenure = win(&etcd, "a");
    let first = with_domain(&directory(), "blue", 0..300);
    drop(store_with(&etcd, &tenure, &first));
    // A large change is in effect, and not yet in all of its keys.
    let last = ask(&etcd, |mut client| async move {
        client.get("/toroid/test/m/1/299", None).await
    });
    let quota = ("r/quota/user/1", r#"{"regions":1}"#);
    let last = last.unwrap().kvs()[0].value_str().unwrap().to_owned();
    let large = BTreeMap::from([quota, ("m/1/299", &last)]);
    let large = serde_json::json!({"put": large, "delete": []}).to_string();
    put(&etcd, "redo/x/000000", &large);
    put(&etcd, "redo", r#"{"id":"x","parts":1}"#);
    let mut store = etcd.store(&tenure);
    let first = Directory::from_records(&store.load().unwrap()).unwrap();
    let fill = |mut client: Client| async move {
        let options = PutOptions::new();
        client.put("/other", vec![7; 1 << 20], Some(options)).await
    };
    while !matches!(ask(&etcd, fill), Err(EtcdError::NoSpace)) {}
    let grown = with_domain(&first, "red", 0..2);
    let refusal = store
        .commit(&grown.changes_since(&first))
        .unwrap_err()
        .refusal();
    assert_eq!(refusal.kind, RefusalKind::Exhausted);
    assert!(refusal.remedy.contains("etcdctl alarm disarm"), "{refusal}");
    // It would be a member again for a reader, who completes the large change.
    let back = without(&first, "blue", &[299]);
    let refused = store.commit(&back.changes_since(&first)).unwrap_err();
    assert_eq!(refused.refusal().kind, RefusalKind::Exhausted);
    let mut directory = first;
    let many: Vec<u32> = (100..290).collect();
    for members in [&[7][..], &[8, 9], &many] {
        let next = without(&directory, "blue", members);
        store.commit(&next.changes_since(&directory)).unwrap();
        directory = next;
        // Earlier transactions that come late compare another revision.
        assert_eq!(load::load(&etcd).unwrap().done, 0);
    }
    // A leader that knows only what etcd has.
    let found = Directory::from_records(&etcd.store(&tenure).load().unwrap()).unwrap();
    let (found, kept) = (&found, &directory);
    let blue = |directory: &Directory| directory.domain("blue").unwrap().clone();
    assert_eq!(blue(found).members, blue(kept).members);
    assert!(blue(found).epoch >= blue(kept).epoch);
    assert!(found.revision().unwrap().number >= kept.revision().unwrap().number);
    let room = |mut client: Client| async move {
        let put = client.get("/other", None).await?;
        let revision = put.header().map_or(0, |header| header.revision());
        client.compact(revision, None).await?;
        client.defragment().await?;
        let raised = client
            .alarm(AlarmAction::Get, AlarmType::Nospace, None)
            .await?;
        for alarm in raised.alarms() {
            let mut its = AlarmOptions::new();
            its.with_member(alarm.member_id());
            client
                .alarm(AlarmAction::Deactivate, AlarmType::Nospace, Some(its))
                .await?;
        }
        Ok(())
    };
    ask(&etcd, room).unwrap();
    let next = without(&directory, "blue", &[10]);
    store.commit(&next.changes_since(&directory)).unwrap();
    assert_ne!(load::load(&etcd).unwrap().done, 0);
    assert_eq!(etcd.store(&tenure).load().unwrap(), next.records());
}
