//! Quotas of users and nodes on a shared agent.

use serde_json::{Value, json};
use tests::cluster::Cluster;
use tests::process::eventually;
use tests::user::User;

const DENIED: i32 = 6;
const EXHAUSTED: i32 = 7;

fn of(cluster: &Cluster, whose: &str) -> Value {
    cluster.ask(&format!("quota show {whose}"))[0].clone()
}

#[test]
fn a_node_has_no_more_than_its_quota_and_others_are_not_held_up() {
    let cluster = Cluster::up("2x1x1");
    let _blue = cluster.domain("blue", &["*,0,0"]);
    cluster
        .toroid("quota set 0,0,0 --regions 1 --domains 1")
        .ok();
    let (first, _) = cluster.owner("0,0,0");
    assert_eq!(of(&cluster, "0,0,0")["used"]["regions"], json!(1));
    let second = cluster.exec("0,0,0", "actor own blue").fails_somehow();
    for part in [
        "0,0,0",
        "1 of at most 1 regions",
        "toroid quota set 0,0,0 --regions",
    ] {
        assert!(second.stderr.contains(part), "{part}: {second}");
    }
    let _other = cluster.owner("1,0,0");
    cluster
        .toroid("domain create red 0,0,0")
        .fails(EXHAUSTED, &["1 of at most 1 domains"]);
    assert_eq!(cluster.ask("domain ls").as_array().map(Vec::len), Some(1));

    // An ended process is no longer counted, and a lifted limit no longer applies.
    first.kill();
    cluster.owner("0,0,0");
    cluster.toroid("quota set 0,0,0 --domains none").ok();
    cluster.toroid("domain create red 0,0,0").ok();
    assert_eq!(of(&cluster, "0,0,0")["limits"], json!({"regions": 1}));
    cluster.down();
    cluster.toroid("up").ok();
    assert_eq!(of(&cluster, "0,0,0")["limits"], json!({"regions": 1}));
}

/// A denied request takes nothing, and existing objects stay.
#[test]
fn bytes_descriptors_and_rings_have_limits_too() {
    let cluster = Cluster::up("2x1x1");
    let _blue = cluster.domain("blue", &["*,0,0"]);
    let _store = cluster.store("1,0,0", "");
    let (first, _) = cluster.owner("0,0,0");
    let refused = |limit: &str, at_it: &str, words: &str| {
        let before = of(&cluster, "0,0,0")["used"].clone();
        cluster.toroid(&format!("quota set 0,0,0 --{limit}")).ok();
        let refusal = cluster.exec("0,0,0", words).fails_somehow();
        assert!(refusal.stderr.contains(at_it), "{limit}: {refusal}");
        let resource = limit.split(' ').next().unwrap_or_default();
        cluster
            .toroid(&format!("quota set 0,0,0 --{resource} none"))
            .ok();
        cluster.exec("0,0,0", "toroid-kv get nothing").fails(1, &[]);
        eventually("nothing is left of those that have ended", || {
            of(&cluster, "0,0,0")["used"] == before
        });
    };
    refused("bytes 4K", "4096 of at most 4096 bytes", "actor own blue");
    // The other process takes one itself.
    refused(
        "descriptors 3",
        "3 of at most 3 descriptors",
        "actor own blue",
    );
    refused("rings 0", "0 of at most 0 rings", "toroid-kv get nothing");
    assert_eq!(first.counted(), 0);
}

#[test]
fn a_user_sees_its_own_quota_only() {
    let (cluster, alice, bob) = (Cluster::up("2x1x1"), User::create(), User::create());
    let (alices, bobs) = (alice.uid(), bob.uid());
    cluster.toroid(&format!("node chown 0,0,0 {alices}")).ok();
    cluster
        .toroid(&format!("quota set {alices} --domains 1 --bytes 64K"))
        .ok();
    cluster.toroid_of(&alice, "domain create blue 0,0,0").ok();
    cluster
        .toroid_of(&alice, "domain create red")
        .fails(EXHAUSTED, &["1 of at most 1 domains"]);

    let seen = cluster.toroid_of(&alice, "quota show --json").ok().json();
    assert_eq!(
        seen.as_array().map(Vec::len),
        Some(2),
        "herself and her node: {seen}"
    );
    assert_eq!(seen[0]["user"], json!(alices));
    assert_eq!(seen[0]["used"]["domains"], json!(1));
    assert_eq!(seen[0]["limits"], json!({"domains": 1, "bytes": 65536}));
    assert_eq!(seen[0]["in_force"]["bytes"], json!(65536));
    assert_eq!(seen[0]["in_force"]["nodes"], json!(256), "by default");
    let of_bob = cluster.toroid_of(&bob, "quota show --json").ok().json();
    assert_eq!(of_bob[0]["limits"], json!({}));
    assert!(of_bob[0]["in_force"]["bytes"].as_u64() > Some(1 << 20));
    assert_eq!(
        cluster.toroid_of(&bob, "status --json").ok().json()["domains"],
        json!(0)
    );
    for words in [
        &format!("quota show {alices}"),
        "quota show 0,0,0",
        &format!("quota set {bobs} --domains 9"),
    ] {
        cluster
            .toroid_of(&bob, words)
            .fails(DENIED, &["administrator"]);
    }
    cluster
        .toroid(&format!("quota set {alices} --bytes many"))
        .fails(2, &["64M"]);
    cluster
        .toroid(&format!("quota set {alices}"))
        .fails(2, &["limit"]);
}
