//! `toroid doctor`: prerequisites of this machine, each with its remedy.

use std::env;
use std::path::{Path, PathBuf};

use clap::Args;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use nix::unistd::Uid;
use toroid_agent::doctor::{self, Asker, Finding};
use toroid_agent::trial;
use toroid_model::hosts::Encryption;
use toroid_model::info::{HostAdmission, HostInfo, HostState, Status};

use super::{Run, Session};
use crate::failure::Failure;
use crate::locate::{self, Places};
use crate::output::{Show, line};

/// Column of the text of a finding.
const INDENT: usize = 20;

#[derive(Debug, Args)]
#[command(
    after_help = "The command needs no agent. Exit status 1: this machine cannot make nodes."
)]
pub(crate) struct Doctor;

impl Run for Doctor {
    fn run(self, session: &Session) -> Result<u8, Failure> {
        examine(&session.places, session.show)
    }
}

/// Returns 1 if a prerequisite of every node is missing.
fn examine(places: &Places, show: Show) -> Result<u8, Failure> {
    let (memlock, _) = getrlimit(Resource::RLIMIT_MEMLOCK).map_err(std::io::Error::from)?;
    let asker = Asker {
        is_root: Uid::effective().is_root(),
        memlock: (memlock != RLIM_INFINITY).then_some(memlock),
    };
    let mut diagnosis = doctor::examine(Path::new("/"), asker, trial::make_node());
    let status = places
        .connect()
        .and_then(|mut agent| Ok(agent.status()?))
        .ok();
    let ours = [data(status.as_ref()), agent(places, status.as_ref())];
    diagnosis.findings.push(limits());
    diagnosis.findings.push(provider(status.as_ref()));
    diagnosis.findings.extend(status.as_ref().map(frames));
    diagnosis
        .findings
        .extend(status.as_ref().and_then(encryption));
    diagnosis.findings.extend(status.as_ref().and_then(hosts));
    // After the version, before optional features.
    diagnosis.findings.splice(1..1, ours);
    let exit = u8::from(!diagnosis.is_ready());
    if show.json {
        show.value(&diagnosis);
        return Ok(exit);
    }
    for finding in &diagnosis.findings {
        line!(
            "{:<8}{:<12}{}",
            finding.state,
            finding.check,
            finding.message
        );
        if let Some(remedy) = &finding.remedy {
            line!("{:INDENT$}{remedy}", "");
        }
    }
    for works in &diagnosis.works {
        line!("{:<8}{works}", "works");
    }
    Ok(exit)
}

/// Data directory of the running agent, or of the next `toroid up`.
fn data(status: Option<&Status>) -> Finding {
    if let Some(status) = status {
        return Finding::ok("data", format!("domains are kept in {}", status.data));
    }
    let quiet = Show { json: true };
    let named = env::var_os("TOROID_DATA").map(PathBuf::from);
    match locate::data(named.as_deref(), quiet) {
        Ok(place) => Finding::ok("data", format!("domains are kept in {}", place.display())),
        Err(failure) => Finding::limited(
            "data",
            failure.to_string(),
            "toroid up --data DIRECTORY, on a disk",
        ),
    }
}

/// Limits on the resources of a node.
fn limits() -> Finding {
    let check = "limits";
    match trial::limit_nodes() {
        Ok(()) => Finding::ok(check, "memory and processes of each node can be limited"),
        Err(refusal) => Finding::limited(check, refusal.message, refusal.remedy),
    }
}

/// Provider between hosts: the agent's, or the possible one.
fn provider(status: Option<&Status>) -> Finding {
    let check = "provider";
    let Some(rdma) = status.and_then(|status| status.rdma.as_ref()) else {
        let used = status.and_then(|status| status.between_hosts);
        let used = used.map_or(String::new(), |used| {
            format!("between hosts it is {used}; ")
        });
        let built = if toroid_client::rdma::IS_BUILT {
            "this build can use RDMA NICs between hosts as well (provider = \"verbs\")"
        } else {
            "this build has no provider verbs, which RDMA NICs between hosts need"
        };
        return Finding::ok(check, format!("{used}{built}"));
    };
    match toroid_client::rdma::check(rdma) {
        Ok(chosen) => Finding::ok(check, format!("between hosts it is verbs, by {chosen}")),
        Err(error) => Finding::missing(
            check,
            format!("between hosts it is verbs, but {error}"),
            error.remedy(),
        ),
    }
}

/// Path of frames between members of this host.
fn frames(status: &Status) -> Finding {
    let text = match &status.without_kernel {
        None => "between members of this host pass through the kernel".into(),
        Some(why) => format!("pass through the driver: {why}"),
    };
    Finding::ok("frames", text)
}

/// Encryption between hosts, if the agent has others.
fn encryption(status: &Status) -> Option<Finding> {
    let (check, text) = ("encryption", super::status::encryption(status)?);
    Some(match status.encryption {
        Some(Encryption::On) => Finding::ok(check, text),
        _ => Finding::limited(
            check,
            text,
            "remove `encryption` from the files of all hosts, and start their agents again",
        ),
    })
}

/// Addresses and problems of the other hosts, if there are any.
fn hosts(status: &Status) -> Option<Finding> {
    let check = "hosts";
    let others = || {
        let all = super::status::present(&status.hosts);
        all.filter(|host| host.state != HostState::Here)
    };
    let problem = |host: &HostInfo| match (&host.problem, &host.address, host.admission) {
        (Some(problem), ..) => Some(format!("host {}: {problem}", host.name)),
        (None, None, HostAdmission::Admitted) => Some(format!("host {} has no address", host.name)),
        _ => None,
    };
    let problems: Vec<String> = others().filter_map(problem).collect();
    match (others().count(), problems.is_empty()) {
        (0, _) => None,
        (count, true) => {
            let text = format!("{} without problems", count_of(count));
            Some(Finding::ok(check, text))
        }
        (_, false) => Some(Finding::limited(
            check,
            problems.join("; "),
            "a host tells its address when its agent starts; see `toroid host ls` on the leader",
        )),
    }
}

fn count_of(hosts: usize) -> String {
    match hosts {
        1 => "1 other host".into(),
        more => format!("{more} other hosts"),
    }
}

/// Also shows where an agent could be started.
fn agent(places: &Places, status: Option<&Status>) -> Finding {
    match (status, places.to_start()) {
        (Some(status), _) => Finding::ok(
            doctor::AGENT,
            format!("an agent of {} nodes runs", status.nodes),
        ),
        (None, Ok(_)) => Finding::limited(
            doctor::AGENT,
            "no agent runs that this user can reach",
            "toroid up",
        ),
        (None, Err(_)) => Finding::missing(doctor::AGENT, locate::NO_PLACE, locate::GIVE_PLACE),
    }
}
