//! `toroid apply`: change the configuration to a declared one.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use clap::Args;
use nix::unistd::Uid;
use serde_json::json;
use toroid_client::admin::{ClientError, Control, Properties};
use toroid_model::declare::{self, Declared, Holder, Step, Surroundings};
use toroid_model::info::NodeInfo;
use toroid_protocol::agent::NewDomain;

use super::dump::present;
use super::{DONE, Run, Session};
use crate::failure::{Failure, wrong};
use crate::names;
use crate::output::{Show, line};
use crate::values;

/// Maximum length of a file; naming every node of the largest torus in many domains takes less.
const MAX_BYTES: u64 = 64 << 20;

const HELP: &str = "\
Example:
  [domain.blue]                   # becomes exactly this
  nodes = [\"0,0,0\", \"1-3,0,0\", \"db\"]
  limited = [\"3,0,0\"]             # absent: none
  plain = [\"3,0,0\"]               # absent: none
  stacks = [\"3,0,0\"]              # absent: none
  managers = [\"0,0,0\"]            # absent: none
  public = true                   # absent: false
  forward = true                  # absent: false
  sealed = true                   # absent: false
  fence = 10                      # seconds; absent: off
  ethernet = \"driver\"             # or kernel; absent: auto
  subnet = \"10.64.3.0/24\"         # absent: as it is, or chosen
  capacity = 1000                 # members that it can have; absent: 254, or the nodes
  mtu = 9000                      # absent: as it is, or 9000
  owner = \"alice\"                 # absent: as it is, or who applies the file

  [domain.blue.rate]              # rate limits of members; absent: none
  \"1-3,0,0\" = \"1Gbit\"

  [domain.blue.link]              # all links; absent: as the machine has them
  latency = \"+5us\"
  [domain.blue.link.\"0,0,0>db\"]   # a single link, in this direction
  loss = \"0.1%\"

  [[gateway.blue]]                # its ways outside, the preferred one first (administrators only)
  node = \"0,0,0\"
  uplink = \"eth1\"
  kind = \"nat\"                    # or bridge, which must be the only one; absent: nat

  [alias]
  db = \"1,1,0\"

  [owner]                         # of nodes
  \"*,1,0\" = \"alice\"

  [quota.alice]                   # exactly these limits; or of nodes: [quota.\"*,*,*\"]
  domains = 8

Removals come before additions. The first change that fails ends the command; earlier changes
stay. `toroid dump | toroid apply /dev/stdin` changes nothing.";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct Apply {
    /// The file, in TOML
    file: PathBuf,
    /// Print the changes without making them
    #[arg(long)]
    dry_run: bool,
    /// Remove domains, gateways and aliases that the file does not name
    #[arg(long)]
    prune: bool,
}

impl Run for Apply {
    fn run(self, session: &Session) -> Result<u8, Failure> {
        apply(&mut session.connect()?, &self, session.show)?;
        Ok(DONE)
    }
}

fn apply(agent: &mut Control, options: &Apply, show: Show) -> Result<(), Failure> {
    let file = &options.file;
    let text = read(file)
        .map_err(|error| Failure::usage(&format!("cannot read {}: {error}", file.display())))?;
    let nodes = agent.nodes()?;
    let mut present = present(agent, &nodes)?;
    let host = |node: &NodeInfo| Some((node.place, node.host.clone()?));
    let status = agent.status()?;
    let around = Surroundings {
        torus: status.torus,
        aliases: present.aliases.clone(),
        hosts: nodes.iter().filter_map(host).collect(),
        user: &|name| values::user(name).ok(),
    };
    let (wanted, mut problems) = declare::read(&text, &around);
    let uid = Uid::effective();
    if !uid.is_root() && !status.rootless {
        // Domains of other owners stay.
        let ours = |domain: &Declared| domain.owner == Some(uid.as_raw());
        let named = |name: &String| wanted.domains.contains_key(name);
        present
            .domains
            .retain(|name, domain| named(name) || ours(domain));
        // Gateways are administrators' alone.
        let gateways = &mut present.gateways;
        gateways.retain(|name, _| wanted.gateways.contains_key(name));
        let owners = &present.owners;
        present.aliases.retain(|alias, place| {
            wanted.aliases.contains_key(alias) || owners.get(place) == Some(&uid.as_raw())
        });
    }
    // A mistake may be the reason for an absent object.
    let prune = options.prune && problems.is_empty();
    let steps = match declare::plan(&present, &wanted, prune) {
        Ok(steps) if problems.is_empty() => steps,
        Ok(_) => return Err(wrong(file, &problems)),
        Err(more) => {
            problems.extend(more);
            problems.sort();
            return Err(wrong(file, &problems));
        }
    };
    let (done, failed) = if options.dry_run {
        (0, None)
    } else {
        carry_out(agent, &steps, show)
    };
    report(options.dry_run, &steps, done, show);
    failed.map_or(Ok(()), Err)
}

fn read(file: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(file)?
        .take(MAX_BYTES + 1)
        .read_to_string(&mut text)?;
    if text.len() as u64 <= MAX_BYTES {
        Ok(text)
    } else {
        Err(io::Error::other(format!(
            "it is longer than {MAX_BYTES} bytes"
        )))
    }
}

/// Returns how many steps were taken, and why no more.
fn carry_out(agent: &mut Control, steps: &[Step], show: Show) -> (usize, Option<Failure>) {
    for (done, step) in steps.iter().enumerate() {
        if let Err(error) = take(agent, step) {
            let failure = Failure::from(error).during(&format!(
                "cannot {step} (of {} changes {done} were made)",
                steps.len()
            ));
            return (done, Some(failure));
        }
        if !show.json {
            line!("{}", names::with_names(&step.to_string()));
        }
    }
    (steps.len(), None)
}

fn take(agent: &mut Control, step: &Step) -> Result<(), ClientError> {
    match step {
        Step::Revoke { domain, nodes } => agent.manage(domain, &nodes.sets(), true).map(drop),
        Step::Shrink { domain, nodes } => agent.shrink(domain, &nodes.sets()).map(drop),
        Step::Remove { domain } => agent.remove(domain),
        Step::Own { nodes, owner } => agent.chown(&nodes.sets(), Some(*owner)),
        Step::Limit { holder, limits } => {
            let (user, nodes) = match holder {
                Holder::User(uid) => (Some(*uid), Vec::new()),
                Holder::Node(place) => (None, vec![place.to_string()]),
            };
            agent.limit(user, &nodes, limits.clone())
        }
        Step::Unalias { alias } => agent.unalias(alias),
        Step::Alias { alias, node } => agent.alias(&node.to_string(), alias),
        Step::Create {
            domain,
            nodes,
            limited,
            plain,
            stacks,
            rates,
            subnet,
            capacity,
            mtu,
            public,
            sealed,
            fence,
            ethernet,
            owner,
        } => {
            let new = NewDomain {
                name: domain.clone(),
                nodes: nodes.sets(),
                limited: limited.sets(),
                plain: plain.sets(),
                stacks: stacks.sets(),
                rates: rates
                    .iter()
                    .map(|(rate, nodes)| (*rate, nodes.sets()))
                    .collect(),
                subnet: subnet.map(|subnet| subnet.to_string()),
                capacity: *capacity,
                mtu: *mtu,
                public: *public,
                sealed: *sealed,
                fence: *fence,
                ethernet: *ethernet,
                owner: *owner,
            };
            agent.create_domain(new).map(drop)
        }
        Step::Set {
            domain,
            public,
            forward,
            sealed,
            fence,
            ethernet,
            owner,
        } => {
            let properties = Properties {
                public: *public,
                forward: *forward,
                sealed: *sealed,
                fence: *fence,
                ethernet: *ethernet,
                owner: *owner,
            };
            agent.set(domain, properties).map(drop)
        }
        Step::Grow {
            domain,
            nodes,
            spec,
        } => agent.admit(domain, &nodes.sets(), *spec).map(drop),
        Step::Rate {
            domain,
            nodes,
            rate,
        } => agent.set_rate(domain, &nodes.sets(), *rate).map(drop),
        Step::Link { domain, links } => agent.set_links(domain, links, false).map(drop),
        Step::Manage { domain, nodes } => agent.manage(domain, &nodes.sets(), false).map(drop),
        Step::Connect {
            domain,
            node,
            uplink,
            kind,
        } => {
            let node = node.to_string();
            agent.add_gateway(&node, domain, uplink, *kind).map(drop)
        }
        Step::Disconnect { domain, node } => {
            agent.remove_gateway(&node.to_string(), domain).map(drop)
        }
    }
}

fn report(is_dry: bool, steps: &[Step], done: usize, show: Show) {
    if show.json {
        show.value(&json!({"changes": steps, "applied": done, "dry_run": is_dry}));
    } else if steps.is_empty() {
        line!("nothing to change");
    } else if is_dry {
        steps
            .iter()
            .for_each(|step| line!("would {}", names::with_names(&step.to_string())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The file names every key, so it is what users copy from.
    #[test]
    fn the_file_in_the_help_is_a_good_one() {
        let (_, rest) = HELP.split_once("Example:\n").unwrap();
        let (file, _) = rest.split_once("\n\nRemovals").unwrap();
        let around = Surroundings {
            torus: "4x4x4".parse().unwrap(),
            aliases: [].into(),
            hosts: [].into(),
            user: &|name| (name == "alice").then_some(1000),
        };
        let (declared, problems) = declare::read(file, &around);
        assert!(problems.is_empty(), "{problems:?}");
        let blue = &declared.domains["blue"];
        assert_eq!((blue.members.len(), blue.mtu), (5, Some(9000)));
        assert_eq!((declared.gateways.len(), declared.owners.len()), (1, 4));
        let domains = declared.quotas[&Holder::User(1000)].values().next();
        assert_eq!(domains, Some(&8));
    }
}
