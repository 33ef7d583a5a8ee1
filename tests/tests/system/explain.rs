//! `toroid explain`: the reasons why two nodes may talk, or may not.

use serde_json::{Value, json};
use tests::cluster::Cluster;

const NOT_FOUND: i32 = 4;
const NOT_PERMITTED: i32 = 6;

#[test]
fn members_outsiders_and_strangers_are_told_apart() {
    let cluster = Cluster::up("2x2x1");
    let _blue = cluster.domain("blue", &["0,0,0", "1,0,0"]);
    let _red = cluster.domain("red", &["1,0,0", "1,1,0"]);
    let explain = |words: &str| cluster.toroid(&format!("explain {words} --json"));

    let answer = explain("0,0,0 1,0,0").ok().json();
    let path = |provider: &str, guards: &[&str]| -> Value {
        json!({"may": true, "provider": provider, "enforced_by": guards})
    };
    let blue = json!({
        "domain": "blue", "may": true,
        "ethernet": path("kernel", &["kernel"]),
        "rdma": path("shm", &["mapping", "agent"]),
    });
    assert_eq!(answer["domains"], json!([blue]));

    let answer = explain("0,0,0 1,1,0");
    assert_eq!(answer.status, NOT_PERMITTED, "{answer}");
    let reason = answer.json()["reason"].to_string();
    assert!(
        reason.contains("0,0,0 is in blue, 1,1,0 is in red"),
        "{reason}"
    );
    let answer = explain("1,0,0 1,1,0 -d blue");
    assert_eq!(answer.status, NOT_PERMITTED, "{answer}");
    let rdma = &answer.json()["domains"][0]["rdma"];
    assert_eq!(rdma["reason"], "node 1,1,0 is not a member of blue");
    assert!(
        rdma["remedy"].to_string().contains("they share red"),
        "{rdma}"
    );

    let answer = explain("0,0,0 0,0,0").ok().json();
    let ethernet = &answer["domains"][0]["ethernet"];
    assert_eq!(ethernet["provider"], "loopback");

    explain("0,0,0 1,0,0 -d green").fails(NOT_FOUND, &["green", "toroid domain ls"]);
    explain("0,0,0 7,0,0").fails(NOT_FOUND, &["7,0,0"]);
}

#[test]
fn limited_members_are_told_why_they_are_apart() {
    let cluster = Cluster::up("3x1x1");
    let blue = cluster.domain("blue", &["0,0,0"]);
    let limited = "domain grow blue 1,0,0 2,0,0 --limited";
    cluster.toroid(limited).ok();
    let answer = cluster.toroid("explain 1,0,0 2,0,0 -d blue");
    assert_eq!(answer.status, NOT_PERMITTED, "{answer}");
    for path in ["ethernet", "rdma"] {
        let said = format!("{path:8}  no: both are limited members of blue");
        assert!(answer.text().contains(&said), "{answer}");
    }
    cluster.cannot_reach("1,0,0", &blue.ipv4("2,0,0"));
    cluster.toroid("explain 1,0,0 0,0,0").ok();
    cluster.reaches("1,0,0", "0-0-0.blue");
}

#[test]
fn people_read_it_as_sentences_in_a_node_too() {
    let cluster = Cluster::up("2x1x1");
    let _blue = cluster.domain("blue", &["*,*,*"]);
    let outside = cluster.toroid("explain 0,0,0 1,0,0").ok();
    let expected = "0,0,0 to 1,0,0: yes\n\
                    blue\n  \
                      ethernet  yes, by kernel; enforced by the kernel, which forwards between \
                    members' addresses, and the driver, which checks every other frame\n  \
                      rdma      yes, by shm; enforced by mappings, which need a descriptor; \
                    the agent, which hands those to members only";
    assert_eq!(outside.text(), expected);
    let inside = "env -u TOROID_STATE toroid explain 0,0,0 1,0,0";
    let inside = cluster.exec("1,0,0", inside).ok();
    assert_eq!(inside.text(), expected);
}
