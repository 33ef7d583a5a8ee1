//! Processes use memory of peers in other nodes without their help.

use serde_json::json;
use tests::cluster::{Cluster, Domain, leaves_nothing, program};
use tests::process::eventually;

#[test]
fn the_example_reads_writes_and_counts() {
    let cluster = Cluster::up("2x1x1");
    let _blue = cluster.domain("blue", &["0,0,0", "1,0,0"]);
    let pingpong = program("examples/pingpong");
    let mut pong = cluster.spawn("0,0,0", &format!("{} blue", pingpong.display()));
    let key = pong.line();
    let words = format!("{} blue 0,0,0 {key}", pingpong.display());
    let ping = cluster.exec("1,0,0", &words).ok();
    assert!(ping.text().ends_with("\nping"), "it read our word: {ping}");
    assert!(
        pong.wait().ok().text().ends_with("\npong"),
        "it wrote its own"
    );
}

#[test]
fn a_region_of_who_leaves_is_revoked() {
    let cluster = Cluster::up("3x1x1");
    let blue = cluster.domain("blue", &["*,0,0"]);
    let (owner, key) = cluster.owner("0,0,0");
    let (leaver, member) = (
        cluster.counter("1,0,0", "0,0,0", &key),
        cluster.counter("2,0,0", "0,0,0", &key),
    );
    eventually("both are registered", || cluster.status()["attached"] == 3);

    blue.shrink(&["1,0,0"]);
    leaver.revoked();

    // It gets no new access, and says why not.
    let again = cluster.open("1,0,0", &key);
    again.fails(1, &["blue", "1,0,0"]);
    // The members that stay lose nothing.
    cluster.open("2,0,0", &key).ok();
    let count = member.kill();
    assert!(!count.text().contains("Revoked"), "{count}");
    assert!(owner.counted() > 0);
}

#[test]
fn who_leaves_takes_its_memory_along() {
    let cluster = Cluster::up("2x1x1");
    let blue = cluster.domain("blue", &["*,0,0"]);
    let (owner, key) = cluster.owner("0,0,0");
    let peer = cluster.counter("1,0,0", "0,0,0", &key);
    blue.shrink(&["0,0,0"]);
    peer.revoked();
    cluster.open("1,0,0", &key).fails_somehow();
    drop(owner);
}

#[test]
fn rejoining_gives_back_no_old_access() {
    let cluster = Cluster::up("2x1x1");
    let blue = cluster.domain("blue", &["*,0,0"]);
    let (_owner, key) = cluster.owner("0,0,0");
    let peer = cluster.counter("1,0,0", "0,0,0", &key);
    blue.shrink(&["1,0,0"]);
    blue.grow(&["1,0,0"]);
    peer.revoked();
    // But a new one, if it asks.
    cluster.open("1,0,0", &key).ok();
}

#[test]
fn an_owner_that_dies_is_noticed() {
    leaves_nothing(|| {
        let cluster = Cluster::up("2x1x1");
        let _blue = cluster.domain("blue", &["*,0,0"]);
        let (owner, key) = cluster.owner("0,0,0");
        let peer = cluster.counter("1,0,0", "0,0,0", &key);
        owner.kill();
        assert_eq!(peer.failure().1, "PeerDead");
        cluster.open("1,0,0", &key).fails_somehow();
        eventually("its memory is given back", || {
            cluster.status()["registered_bytes"] == 0
        });
        eventually("nobody is attached", || cluster.status()["attached"] == 0);
    });
}

#[test]
fn a_key_is_good_only_in_its_domain() {
    let cluster = Cluster::up("3x1x1");
    let _blue = cluster.domain("blue", &["0,0,0", "1,0,0"]);
    let _red = cluster.domain("red", &["1,0,0", "2,0,0"]);
    let (_owner, key) = cluster.owner("0,0,0");
    cluster.open("1,0,0", &key).ok();
    cluster
        .exec("2,0,0", &format!("actor open red {key}"))
        .fails_somehow();
    let mut guess = key.clone().into_bytes();
    let last = guess.last_mut().expect("a key is not empty");
    *last = if *last == b'0' { b'1' } else { b'0' };
    let guess = String::from_utf8(guess).expect("a key is ASCII");
    cluster.open("1,0,0", &guess).fails_somehow();
    cluster.open("1,0,0", "nonsense").fails_somehow();
}

#[test]
fn a_removed_domain_revokes_all() {
    let cluster = Cluster::up("2x1x1");
    let blue: Domain<'_> = cluster.domain("blue", &["*,0,0"]);
    let (_owner, key) = cluster.owner("0,0,0");
    let peer = cluster.counter("1,0,0", "0,0,0", &key);
    blue.remove();
    peer.revoked();
    // A domain of the same name is another domain.
    let _again = cluster.domain("blue", &["*,0,0"]);
    cluster.open("1,0,0", &key).fails_somehow();
}

#[test]
fn what_a_shrink_needs_is_said_beforehand() {
    let cluster = Cluster::up("3x1x1");
    let blue = cluster.domain("blue", &["*,0,0"]);
    let (_owner, key) = cluster.owner("0,0,0");
    let _leaving = cluster.owner("1,0,0");
    let staying = cluster.counter("2,0,0", "0,0,0", &key);
    let needs = || {
        let mut needs = cluster.ask("domain shrink --dry-run blue 1,0,0");
        let bytes = needs["extra_bytes"].take();
        (needs, bytes)
    };
    let expected = |moving| {
        json!({
            "leaving": ["1,0,0"],
            "acknowledging": [
                {"node": "0,0,0", "processes": 1},
                {"node": "2,0,0", "processes": 1},
            ],
            "moving": moving,
            "ending": [{"node": "1,0,0", "regions": 1, "bytes": 4096}],
            "ending_channels": 0,
            "extra_bytes": null,
        })
    };
    let before = blue.show();
    assert_eq!(needs(), (expected(json!([])), json!(0)));

    // A process that has read and has gone may have handed it on.
    cluster.open("1,0,0", &key).ok();
    let region =
        |written| json!([{"node": "0,0,0", "written": written, "regions": 1, "bytes": 4096}]);
    assert_eq!(needs(), (expected(region(false)), json!(4096)));
    let writing = cluster.counter("1,0,0", "0,0,0", &key);
    assert_eq!(needs(), (expected(region(true)), json!(4096)));
    let said = cluster.toroid("domain shrink --dry-run blue 1,0,0");
    for word in ["processes acknowledge", "regions move (rw)", "regions end"] {
        assert!(said.text().contains(word), "no {word}: {said}");
    }

    // Nothing has changed, and an impossible shrink is refused here as well.
    assert_eq!(blue.show(), before);
    cluster.open("1,0,0", &key).ok();
    let refused = cluster.toroid("domain shrink --dry-run red 1,0,0");
    refused.fails(4, &["red"]);
    blue.shrink(&["1,0,0"]);
    writing.revoked();
    let again = cluster.toroid("domain shrink --dry-run blue 1,0,0");
    again.fails(4, &["1,0,0"]);
    staying.kill();
}
