//! Random histories of an agent, compared with plain sets: the agent has the members of the model,
//! also after it was killed and started again.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use tests::cluster::{Cluster, is_nightly};

const NAMES: [&str; 3] = ["red", "green", "blue"];
const NODES: [&str; 4] = ["0,0,0", "1,0,0", "0,1,0", "1,1,0"];

const NOT_FOUND: i32 = 4;
const EXISTS: i32 = 5;

/// A domain as it shall be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Expected {
    members: BTreeSet<&'static str>,
    /// None until it was seen first: a number that is used again does not begin at 1.
    epoch: Option<u64>,
}

/// Numbers that look random, the same for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }

    fn nodes(&mut self) -> BTreeSet<&'static str> {
        let chosen = self.below(1 << NODES.len());
        let nodes = NODES.iter().enumerate();
        nodes
            .filter(|(n, _)| chosen >> n & 1 == 1)
            .map(|(_, node)| *node)
            .collect()
    }
}

/// Does one change to both, and returns its description.
fn step(cluster: &Cluster, model: &mut BTreeMap<&str, Expected>, random: &mut Random) -> String {
    let (name, nodes) = (NAMES[random.below(NAMES.len())], random.nodes());
    let words: Vec<&str> = nodes.iter().copied().collect();
    let toroid = |verb: &str| {
        let words = words.join(" ");
        cluster
            .toroid(&format!("domain {verb} {name} {words}"))
            .status
    };
    let kind = random.below(20);
    match kind {
        0..6 => {
            let expected = if model.contains_key(name) { EXISTS } else { 0 };
            assert_eq!(toroid("create"), expected, "create {name} {words:?}");
            let new = Expected {
                members: nodes,
                epoch: None,
            };
            model.entry(name).or_insert(new);
        }
        6..11 if !nodes.is_empty() => {
            let expected = if model.contains_key(name) {
                0
            } else {
                NOT_FOUND
            };
            assert_eq!(toroid("grow"), expected, "grow {name} {words:?}");
            if let Some(domain) = model.get_mut(name) {
                domain.members.extend(nodes);
            }
        }
        11..16 if !nodes.is_empty() => {
            let domain = model.get_mut(name);
            let leaves = domain.filter(|domain| !domain.members.is_disjoint(&nodes));
            let expected = if leaves.is_some() { 0 } else { NOT_FOUND };
            assert_eq!(toroid("shrink"), expected, "shrink {name} {words:?}");
            if let Some(domain) = leaves {
                domain.members = &domain.members - &nodes;
                domain.epoch = domain.epoch.map(|epoch| epoch + 1);
            }
        }
        16..18 => {
            let expected = if model.remove(name).is_some() {
                0
            } else {
                NOT_FOUND
            };
            let status = cluster.toroid(&format!("domain rm {name}")).status;
            assert_eq!(status, expected, "rm {name}");
        }
        18 => {
            cluster.kill_agent();
            cluster.toroid("up --no-ethernet").ok();
        }
        _ => {
            cluster.down();
            cluster.toroid("up --no-ethernet").ok();
        }
    }
    format!("{kind}: {name} {words:?}")
}

/// The domains of the agent.
fn found(cluster: &Cluster) -> BTreeMap<String, (BTreeSet<String>, u64)> {
    let domains = cluster.ask("domain ls");
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let describe = |domain: &Value| {
        let members = domain["members"].as_array().expect("a list").iter();
        let members = members.map(|member| text(&member["node"])).collect();
        let epoch = domain["epoch"].as_u64().expect("a number");
        (text(&domain["name"]), (members, epoch))
    };
    let domains = domains.as_array().expect("a list").iter();
    domains.map(describe).collect()
}

fn compare(cluster: &Cluster, model: &mut BTreeMap<&str, Expected>, history: &[String]) {
    let found = found(cluster);
    let names: BTreeSet<&str> = found.keys().map(String::as_str).collect();
    let expected: BTreeSet<&str> = model.keys().copied().collect();
    assert_eq!(names, expected, "after {history:#?}");
    for (name, domain) in model {
        let (members, epoch) = &found[*name];
        let members: BTreeSet<&str> = members.iter().map(String::as_str).collect();
        assert_eq!(members, domain.members, "{name} after {history:#?}");
        let expected = *domain.epoch.get_or_insert(*epoch);
        assert_eq!(*epoch, expected, "{name} after {history:#?}");
    }
}

#[test]
fn the_agent_has_what_plain_sets_have_whatever_happens() {
    let steps = if is_nightly() { 2000 } else { 80 };
    let cluster = Cluster::down_yet();
    let torus = "up --torus 2x2x1 --no-ethernet";
    cluster.toroid(torus).ok();
    // Another history each time; its seed is told when it fails.
    let seed = u64::from(std::process::id()) * 2 + 1;
    let mut random = Random(seed);
    let (mut model, mut history) = (BTreeMap::new(), vec![format!("seed {seed}")]);
    for _ in 0..steps {
        history.push(step(&cluster, &mut model, &mut random));
        compare(&cluster, &mut model, &history);
    }
}
