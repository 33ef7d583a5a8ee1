use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::*;
use crate::cluster::etcd::load;
use crate::store::{RecoveringStore, StoreError};

/// The records that a reader finds, at any moment.
fn read(etcd: &Etcd) -> Records {
    load::load(etcd).unwrap().joined.records
}

#[test]
fn a_deposed_leader_changes_nothing() {
    let Some(cluster) = Cluster::single(&[]) else {
        return;
    };
    let (a, b) = (open(&cluster), open(&cluster));
    let first = with_domain(&directory(), "blue", 0..3);
    let mut store = store_with(&a, &win(&a, "a"), &first);
    assert_eq!(read(&b), first.records());
    let next = without(&first, "blue", &[1]);
    store.commit(&next.changes_since(&first)).unwrap();
    a.resign();
    let nobody = store.commit(&first.changes_since(&next)).unwrap_err();
    assert!(matches!(nobody, StoreError::Deposed { leader: None }));
    let mut later = b.store(&win(&b, "b"));
    assert_eq!(later.load().unwrap(), next.records());
    let mut deposed = RecoveringStore::new(Box::new(store));
    for _ in 0..2 {
        let error = deposed
            .keep(&next, &without(&next, "blue", &[2]))
            .unwrap_err();
        let StoreError::Deposed { leader } = &error else {
            panic!("{error}")
        };
        assert_eq!(leader.as_deref(), Some("b"));
    }
    assert_eq!(read(&b), next.records());
    // Its successor goes on.
    later
        .commit(&without(&next, "blue", &[0]).changes_since(&next))
        .unwrap();
}

/// The watch of the leader's key may be late, or broken.
#[test]
fn a_leader_whose_change_is_refused_knows_that_it_leads_no_more() {
    let Some(cluster) = Cluster::single(&[]) else {
        return;
    };
    let etcd = open(&cluster);
    let first = with_domain(&directory(), "blue", 0..3);
    let mut store = store_with(&etcd, &win(&etcd, "a"), &first);
    let next = without(&first, "blue", &[1]);
    store.commit(&next.changes_since(&first)).unwrap();
    assert!(etcd.left().is_some());
    ask(&etcd, |mut client: Client| async move {
        client.delete("/toroid/test/leader", None).await
    })
    .unwrap();
    let error = store.commit(&first.changes_since(&next)).unwrap_err();
    assert!(error.is_deposed(), "{error}");
    assert_eq!(etcd.left(), None);
}

/// The former life's transaction is still under way when the next life has read everything.
#[test]
fn a_late_transaction_of_a_former_life_is_refused() {
    let Some(cluster) = Cluster::single(&[]) else {
        return;
    };
    let etcd = open(&cluster);
    let tenure = win(&etcd, "a");
    let first = with_domain(&directory(), "blue", 0..3);
    let mut former = store_with(&etcd, &tenure, &first);
    let mut present = etcd.store(&tenure);
    assert_eq!(present.load().unwrap(), first.records());
    let red = with_domain(&first, "red", 0..2);
    let late = former.commit(&red.changes_since(&first)).unwrap_err();
    assert!(matches!(late, StoreError::Doubtful(_)), "{late}");
    let green = with_domain(&first, "green", 0..2);
    present.commit(&green.changes_since(&first)).unwrap();
    assert_eq!(read(&etcd), green.records());
}

#[test]
fn a_large_change_is_atomic_for_readers() {
    let Some(cluster) = Cluster::single(&[]) else {
        return;
    };
    let (a, b) = (open(&cluster), open(&cluster));
    let before = directory();
    let mut store = store_with(&a, &win(&a, "a"), &before);
    let large = with_domain(&before, "blue", 0..1000);
    let (old, new) = (before.records(), large.records());
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let reads = scope.spawn(|| {
            let mut reads = 0;
            while !is_over.load(Ordering::Relaxed) {
                let found = read(&b);
                assert!(found == old || found == new, "{} records", found.len());
                reads += 1;
            }
            reads
        });
        for _ in 0..2 {
            store.commit(&large.changes_since(&before)).unwrap();
            assert_eq!(read(&a), new);
            store.commit(&Changes::between(&new, &old)).unwrap();
            assert_eq!(read(&a), old);
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(reads.join().unwrap() > 0);
    });
}

/// Also while etcd compacts the revisions that are read.
#[test]
fn a_directory_of_ten_thousand_records_is_read_at_one_revision() {
    let Some(cluster) = Cluster::single(&[]) else {
        return;
    };
    let etcd = open(&cluster);
    let mut store = store_with(&etcd, &win(&etcd, "a"), &directory());
    let mut records = directory().records();
    for uid in 0..10_000 {
        records.insert(format!("quota/user/{uid}"), r#"{"regions":16}"#.into());
    }
    store
        .commit(&Changes::between(&directory().records(), &records))
        .unwrap();
    let compact = |mut client: Client| async move {
        let put = client.put("/other", "", None).await?;
        let revision = put.header().map_or(0, |header| header.revision());
        client.compact(revision, None).await
    };
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            ask(&etcd, compact).unwrap();
            is_over.store(true, Ordering::Relaxed);
        });
        while !is_over.load(Ordering::Relaxed) {
            assert!(read(&etcd) == records);
        }
    });
    assert!(store.load().unwrap() == records);
}

/// A leader dies between the transaction that brings a large change into effect and the rest.
#[test]
fn the_next_leader_completes_a_large_change() {
    let Some(cluster) = Cluster::single(&[]) else {
        return;
    };
    let etcd = open(&cluster);
    let before = with_domain(&directory(), "red", 0..2);
    let tenure = win(&etcd, "a");
    drop(store_with(&etcd, &tenure, &before));
    let part = r#"{"put":{"r/quota/user/1":"{\"regions\":1}"},"delete":["m/1/1"]}"#;
    put(&etcd, "redo/x/000000", part);
    put(&etcd, "redo/y/000000", "{");
    // Parts alone are nothing.
    assert_eq!(read(&etcd), before.records());
    put(&etcd, "redo", r#"{"id":"x","parts":2}"#);
    let Err(EtcdError::Damaged { reason, .. }) = load::load(&etcd) else {
        panic!("a part is missing")
    };
    assert_eq!(reason, "redo/x/000001: this part of a change is missing");
    put(&etcd, "redo", r#"{"id":"x","parts":1}"#);
    let mut store = etcd.store(&tenure);
    let found = store.load().unwrap();
    assert_eq!(found["quota/user/1"], r#"{"regions":1}"#);
    let after = Directory::from_records(&found).unwrap();
    assert_eq!(after.domain("red").unwrap().members.len(), 1);
    // The parts of another change stay, as they would have to if a late transaction completed this.
    put(&etcd, "redo/z/000000", "{}");
    let next = with_domain(&after, "blue", 0..2);
    store.commit(&next.changes_since(&after)).unwrap();
    assert_eq!(read(&etcd), next.records());
    let left = ask(&etcd, |mut client| async move {
        let all = etcd_client::GetOptions::new().with_prefix();
        client.get("/toroid/test/redo", Some(all)).await
    });
    let keys = |found: &etcd_client::GetResponse| {
        let keys = found
            .kvs()
            .iter()
            .map(|pair| pair.key_str().unwrap().into());
        keys.collect::<Vec<String>>()
    };
    assert_eq!(keys(&left.unwrap()), ["/toroid/test/redo/z/000000"]);
}

/// Another life of the host has changed something since this one knew of a large change.
#[test]
fn a_store_that_was_overtaken_goes_on() {
    let Some(cluster) = Cluster::single(&[]) else {
        return;
    };
    let etcd = open(&cluster);
    let tenure = win(&etcd, "a");
    let before = with_domain(&directory(), "red", 0..2);
    drop(store_with(&etcd, &tenure, &before));
    put(&etcd, "redo/x/000000", r#"{"put":{},"delete":[]}"#);
    put(&etcd, "redo", r#"{"id":"x","parts":1}"#);
    let mut store = etcd.store(&tenure);
    store.load().unwrap();
    etcd.store(&tenure).load().unwrap();
    let mut store = RecoveringStore::new(Box::new(store));
    let next = with_domain(&before, "blue", 0..2);
    let overtaken = store.keep(&before, &next).unwrap_err();
    assert!(matches!(overtaken, StoreError::Doubtful(_)), "{overtaken}");
    store.keep(&before, &next).unwrap();
    assert_eq!(read(&etcd), next.records());
}

#[test]
fn a_record_that_fits_in_no_part_is_refused() {
    let Some(cluster) = Cluster::single(&[]) else {
        return;
    };
    let etcd = open(&cluster);
    let mut store = store_with(&etcd, &win(&etcd, "a"), &directory());
    let records = [1, 2].map(|user| (format!("quota/user/{user}"), "\"".repeat(1 << 20)));
    let changes = Changes {
        put: records.into(),
        ..Changes::default()
    };
    let refusal = store.commit(&changes).unwrap_err().refusal();
    assert!(refusal.remedy.contains("several domains"), "{refusal}");
}
