//! `docs/agent-protocol.md` says what the types say: every example is a message, and every
//! message has an example.

use std::collections::BTreeSet;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use toroid_protocol::agent::{Event, Reply, Request, VERSION};
use toroid_protocol::hosts::HostMessage;

const DOCUMENT: &str = include_str!("../../../docs/agent-protocol.md");

/// Examples of one kind of message. Those with an ellipsis are for people only.
fn examples(kind: &str) -> Vec<Value> {
    let lines = DOCUMENT.lines();
    lines
        .filter(|line| line.starts_with(&format!("{{\"{kind}\":")) && !line.contains("..."))
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}")))
        .collect()
}

/// The names of all messages of one kind, as the parser lists them when it meets another.
fn all_names<T: DeserializeOwned>(kind: &str) -> BTreeSet<String> {
    let Err(error) = serde_json::from_value::<T>(json!({ kind: "no such message" })) else {
        panic!("it took what is no message");
    };
    let quoted = error.to_string();
    let names = quoted.split('`').skip(1).step_by(2);
    names.skip(1).map(String::from).collect()
}

fn check<T: Serialize + DeserializeOwned>(kind: &str) {
    let mut seen = BTreeSet::new();
    for example in examples(kind) {
        let message: T = serde_json::from_value(example.clone())
            .unwrap_or_else(|error| panic!("{example}: {error}"));
        assert_eq!(serde_json::to_value(message).unwrap(), example);
        seen.extend(example[kind].as_str().map(String::from));
    }
    assert_eq!(seen, all_names::<T>(kind));
}

#[test]
fn every_request_has_an_example() {
    check::<Request>("request");
}

#[test]
fn every_reply_has_an_example() {
    check::<Reply>("reply");
}

#[test]
fn every_event_has_an_example() {
    check::<Event>("event");
}

/// An externally tagged message, whose example begins with its name.
fn check_tagged<T: Serialize + DeserializeOwned>(name: &str) {
    let examples = examples(name);
    assert!(!examples.is_empty(), "{name}");
    for example in examples {
        let message: T = serde_json::from_value(example.clone()).unwrap();
        assert_eq!(serde_json::to_value(message).unwrap(), example);
    }
}

#[test]
fn messages_between_agents_have_examples() {
    for name in ["not_leader", "host_request", "host_response"] {
        check_tagged::<HostMessage>(name);
    }
}

#[test]
fn the_page_is_of_the_version_that_the_agent_speaks() {
    let title = format!("Version {VERSION}. ");
    assert!(DOCUMENT.contains(&title), "the page should say {title:?}");
    let greetings = DOCUMENT
        .lines()
        .filter(|line| line.contains("\"version\":"));
    for line in greetings {
        let greeting: Value = serde_json::from_str(line).unwrap();
        assert_eq!(greeting["version"], VERSION, "{line}");
    }
}
