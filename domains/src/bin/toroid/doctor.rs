//! `toroid doctor`: what this machine has for Toroid, and what to do about what it lacks.

use std::path::Path;

use domains::doctor::{self, Asker, Finding};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use nix::unistd::Uid;

use crate::failure::Failure;
use crate::locate::{self, Places};
use crate::show::{Show, line};

/// Where what a finding says begins.
const INDENT: usize = 20;

/// Returns 1 when something is missing that every node needs.
pub(crate) fn run(places: &Places, show: Show) -> Result<u8, Failure> {
    let (memlock, _) = getrlimit(Resource::RLIMIT_MEMLOCK).map_err(std::io::Error::from)?;
    let asker = Asker {
        is_root: Uid::effective().is_root(),
        memlock: (memlock != RLIM_INFINITY).then_some(memlock),
    };
    let mut diagnosis = doctor::examine(Path::new("/"), asker);
    let ours = [data(), agent(places)];
    // Behind the version, before what only some need.
    diagnosis.findings.splice(1..1, ours);
    let exit = u8::from(!diagnosis.has_nodes());
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

fn data() -> Finding {
    let quiet = Show { json: true };
    match locate::data(None, quiet) {
        Ok(place) => Finding::ok("data", format!("domains are kept in {}", place.display())),
        Err(failure) => Finding::limited(
            "data",
            failure.to_string(),
            "toroid up --data DIRECTORY, on a disk",
        ),
    }
}

fn agent(places: &Places) -> Finding {
    let status = places.connect().and_then(|mut agent| Ok(agent.status()?));
    match status {
        Ok(status) => Finding::ok("agent", format!("an agent of {} nodes runs", status.nodes)),
        Err(_) => Finding::limited(
            "agent",
            "no agent runs that this user can reach",
            "toroid up",
        ),
    }
}
