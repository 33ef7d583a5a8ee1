use std::collections::BTreeMap;

use toroid_model::hosts::ETCD;

use super::*;
use crate::cluster::candidacy::{Candidacy, Legacy};
use crate::cluster::moves::Moves;

/// Otherwise the place which a directory has left would have a leader again, or a copy that never
/// came into use.
#[test]
fn a_move_bars_candidates_that_have_not_seen_its_commit() {
    let Some(cluster) = Cluster::single(&[]) else {
        return;
    };
    let mut config = crate::cluster::tests::cluster().config;
    config.directory = ETCD.into();
    config.candidates = ["a".into()].into();
    config.etcd = Some(cluster.config());
    let data = tempfile::tempdir().unwrap();
    let stand = |kept: Option<&Directory>| {
        let kept = kept.and_then(Directory::moved).cloned();
        let moves = Arc::new(Moves::new(&config, (kept, None)).unwrap());
        let told = Arc::clone(&moves);
        let candidacy = Candidacy::of(&config, data.path(), Legacy::default(), moves).unwrap();
        let lead = candidacy.stand(Arc::new(|| ())).unwrap();
        candidacy.stand_no_more();
        candidacy.resign();
        (lead.is_some(), told.last())
    };
    let moved = |before: &Directory, from, to| {
        let mut next = before.clone();
        next.relocate(from, to, BTreeSet::new(), 7);
        next.advance(before);
        next
    };

    let mut led = Directory::new(config.torus);
    led.begin_term(FabricId(1), 1);
    let arrived = moved(&led, "b", ETCD);
    let etcd = Etcd::open(&cluster.config(), config.torus, None).unwrap();
    let tenure = win(&etcd, "b");
    store_with(&etcd, &tenure, &arrived);
    // As long as a host leads, it may change that.
    assert_eq!(etcd.moved(), Ok(None));
    etcd.resign();
    let its = arrived.moved().unwrap();
    assert_eq!(etcd.moved(), Ok(Some((its.clone(), true))));
    assert_eq!(stand(None), (false, None));
    // Another move of the same revision.
    let other = moved(&led, "c", ETCD);
    assert!(!stand(Some(&other)).0);
    assert!(stand(Some(&arrived)).0);

    let tenure = win(&etcd, "b");
    let mut store = etcd.store(&tenure);
    let mut led = arrived.clone();
    led.begin_term(FabricId(1), 2);
    store.load().unwrap();
    store.commit(&led.changes_since(&arrived)).unwrap();
    etcd.resign();
    assert_eq!(etcd.moved(), Ok(Some((its.clone(), false))));
    assert!(stand(None).0);

    let tenure = win(&etcd, "b");
    let mut store = etcd.store(&tenure);
    let away = moved(&led, ETCD, "b");
    store.load().unwrap();
    store.commit(&away.changes_since(&led)).unwrap();
    assert_eq!(etcd.records().unwrap(), away.records());
    etcd.resign();
    assert_eq!(stand(None), (false, away.moved().cloned()));
    assert!(!stand(Some(&away)).0);
    // The record may be in a change that its keys do not have yet.
    put(&etcd, "redo/x/000000", r#"{"put":{},"delete":[]}"#);
    put(&etcd, "redo", r#"{"id":"x","parts":1}"#);
    assert_eq!(etcd.moved(), Ok(None));
}

/// A leader that died while it made a large copy once left no time to the next move's.
#[test]
fn a_move_replaces_the_incomplete_copy_of_an_interrupted_one() {
    let Some(cluster) = Cluster::single(&[]) else {
        return;
    };
    let led = directory();
    let relocated = |nonce| {
        let mut next = led.clone();
        next.relocate("a", ETCD, BTreeSet::new(), nonce);
        next.advance(&led);
        next
    };
    let etcd = hasty(&cluster, Duration::from_millis(300));
    let tenure = win(&etcd, "a");
    drop(store_with(&etcd, &tenure, &relocated(1)));
    // It is in effect, and in none of its keys.
    let quota = |uid| (format!("r/quota/user/{uid}"), r#"{"regions":16}"#);
    let left: BTreeMap<_, _> = (0..25_000).map(quota).collect();
    let left = serde_json::json!({"put": left, "delete": []}).to_string();
    put(&etcd, "redo/x/000000", &left);
    put(&etcd, "redo", r#"{"id":"x","parts":1}"#);
    let next = relocated(2);
    let mut store = etcd.store(&tenure);
    let found = store.load().unwrap();
    store
        .replace(&found, &next.records(), Duration::from_secs(60))
        .unwrap();
    assert!(etcd.records().unwrap() == next.records());
    etcd.resign();
    assert_eq!(
        etcd.moved(),
        Ok(next.moved().cloned().map(|its| (its, true)))
    );
}
