//! Processor time of a follower for one change, and for its first copy, beside many domains.
//!
//! ```text
//! cargo run --release -p toroid-model --example follow
//! ```

use std::collections::BTreeSet;
use std::error::Error;
use std::fs;
use std::time::{Duration, Instant};

use toroid_fabric::NodeId;
use toroid_model::directory::records::Changes;
use toroid_model::directory::transition::Transition;
use toroid_model::directory::{Directory, Wanted, full_members};

/// Members of a domain, and nodes of the torus.
const MEMBERS: u32 = 16;
const NODES: u32 = 252;

/// Changes that are measured.
const CHANGES: u32 = 200;

fn main() -> Result<(), Box<dyn Error>> {
    println!("domains  one change, median  first copy  peak memory");
    for count in [100, 1_000, 10_000] {
        let mut leader = directory(count)?;
        let records = leader.records();
        let begun = Instant::now();
        let mut follower = Directory::new(leader.torus());
        let first = Directory::from_records(&records)?;
        let transition = Transition::between(&follower, &first)?;
        let written = first.changes_since(&follower).put.len();
        follower = first;
        let copied = begun.elapsed();
        drop((transition, records));
        let mut times = Vec::new();
        for n in 0..CHANGES {
            let next = change(&leader, n % count, n / count)?;
            let changes = next.changes_since(&leader);
            times.push(follow(&mut follower, &changes)?);
            leader = next;
        }
        times.sort_unstable();
        let median = times[times.len() / 2];
        println!(
            "{count:7}  {median:>18.1?}  {copied:>10.1?}  {} ({written} records)",
            peak()
        );
        if follower.records() != leader.records() {
            return Err("the follower differs".into());
        }
    }
    Ok(())
}

fn directory(count: u32) -> Result<Directory, Box<dyn Error>> {
    let mut directory = Directory::new("6x6x7".parse()?);
    for n in 0..count {
        let members = (0..MEMBERS).map(|m| NodeId((n * 7 + m) % NODES));
        directory.create(Wanted {
            name: format!("domain-{n}"),
            members: full_members(members),
            ..Wanted::default()
        })?;
    }
    Ok(directory)
}

/// A shrink or the grow that undoes it.
fn change(directory: &Directory, domain: u32, round: u32) -> Result<Directory, Box<dyn Error>> {
    let mut next = directory.clone();
    let name = format!("domain-{domain}");
    let node = BTreeSet::from([NodeId(domain * 7 % NODES)]);
    if round.is_multiple_of(2) {
        next.shrink(&name, &node)?;
    } else {
        next.grow(&name, &node)?;
    }
    Ok(next)
}

/// Follows a change without the system calls, and returns the time.
fn follow(follower: &mut Directory, changes: &Changes) -> Result<Duration, Box<dyn Error>> {
    let begun = Instant::now();
    let next = follower.with(changes)?;
    let transition = Transition::between(follower, &next)?;
    // What is made durable: first without those who leave, then all.
    let meanwhile = transition.meanwhile.changes_since(follower);
    let rest = next.changes_since(&transition.meanwhile);
    *follower = next;
    drop((transition, meanwhile, rest));
    Ok(begun.elapsed())
}

fn peak() -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM"));
    let text = line.and_then(|line| line.split_once(':'));
    text.map_or_else(|| "unknown".into(), |(_, text)| text.trim().to_owned())
}
