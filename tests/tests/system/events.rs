//! Every change and every denial is recorded, with the user that asked.

use serde_json::{Value, json};
use tests::cluster::Cluster;
use tests::process::{Outcome, eventually};
use tests::user::User;

const NOT_FOUND: i32 = 4;
const DENIED: i32 = 6;

fn lines(outcome: &Outcome) -> Vec<Value> {
    let parse = |line: &str| serde_json::from_str(line).expect("a line is JSON");
    outcome.text().lines().map(parse).collect()
}

fn what(events: &[Value]) -> Vec<&str> {
    events
        .iter()
        .map(|event| event["what"].as_str().expect("text"))
        .collect()
}

#[test]
fn changes_and_denials_are_told_with_who_asked() {
    let (cluster, alice, bob) = (Cluster::up("2x1x1"), User::create(), User::create());
    cluster
        .toroid(&format!("node chown 0,0,0 {}", alice.uid()))
        .ok();
    cluster.toroid_of(&alice, "domain create blue 0,0,0").ok();
    cluster
        .toroid_of(&bob, "domain shrink blue 0,0,0")
        .fails(NOT_FOUND, &["blue"]);
    cluster
        .toroid_of(&bob, "down")
        .fails(DENIED, &["administrator"]);
    cluster.toroid("domain show blue").ok();

    let all = lines(&cluster.toroid("events --json").ok());
    assert_eq!(
        what(&all),
        ["up", "node_chown", "domain_create", "domain_shrink", "down"]
    );
    let denied = &all[3];
    assert_eq!(denied["uid"], json!(bob.uid()));
    assert!(
        denied["pid"].as_u64().is_some_and(|pid| pid > 1),
        "{denied}"
    );
    assert_eq!(
        (&denied["domain"], &denied["result"]),
        (&json!("blue"), &json!("denied"))
    );
    assert!(
        denied["reason"].to_string().contains("belongs to uid"),
        "{denied}"
    );
    assert_eq!(denied["request"]["nodes"], json!(["0,0,0"]));

    // A user reads the events that concern it.
    let alices = lines(&cluster.toroid_of(&alice, "events --json").ok());
    assert_eq!(
        what(&alices),
        ["node_chown", "domain_create", "domain_shrink"]
    );
    let bobs = lines(&cluster.toroid_of(&bob, "events --json").ok());
    // Of a domain that he does not see he does not read either.
    assert_eq!(what(&bobs), ["down"]);

    // From a number on, for people too, and after the agent's death.
    let text = cluster.toroid("events --since 4").ok();
    assert_eq!(text.text().lines().count(), 2, "{text}");
    cluster.kill_agent();
    cluster.toroid("up").ok();
    cluster
        .toroid_in("1,0,0", "domain grow blue 1,0,0")
        .fails(NOT_FOUND, &["no domain is called blue"]);
    let later = lines(&cluster.toroid("events --since 6 --json").ok());
    assert_eq!(what(&later), ["up", "domain_grow"]);
    assert_eq!(
        (&later[1]["node"], &later[1]["uid"]),
        (&json!("1,0,0"), &Value::Null)
    );
}

#[test]
fn who_follows_hears_of_it_at_once() {
    let cluster = Cluster::up("1x1x1");
    let follow = cluster.start("events --follow --json");
    follow.says("\"up\"");
    let blue = cluster.domain("blue", &["0,0,0"]);
    follow.says("domain_create");
    blue.remove();
    follow.says("domain_remove");
    follow.kill();
}

#[test]
fn who_is_denied_without_end_does_not_fill_the_disk() {
    let (cluster, bob) = (Cluster::up("1x1x1"), User::create());
    for _ in 0..30 {
        cluster
            .toroid_of(&bob, "domain create red 0,0,0")
            .fails(DENIED, &["0,0,0"]);
    }
    let written = lines(&cluster.toroid_of(&bob, "events --json").ok()).len();
    assert!((8..30).contains(&written), "{written} of 30 were written");
    // Others are written all the same.
    let _blue = cluster.domain("blue", &["0,0,0"]);
    eventually("it is written", || {
        let all = lines(&cluster.toroid("events --json").ok());
        what(&all).contains(&"domain_create")
    });
}
