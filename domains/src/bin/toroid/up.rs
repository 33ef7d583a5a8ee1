//! `toroid up` and `toroid down`.

use std::ffi::OsString;

use domains::agent::background::spawn_background;
use domains::agent::{self, Config, Left};
use domains::client::{ClientError, Control};

use crate::args::{Offload, Up};
use crate::failure::Failure;
use crate::locate::{self, Places};
use crate::show::Show;

const DRIVER: &str = "toroid-ethernet";

pub(crate) fn run(places: &Places, options: &Up, show: Show) -> Result<(), Failure> {
    let state = places.to_start()?;
    let config = Config {
        state: state.into(),
        data: locate::data(options.data.as_deref(), show)?,
        fresh: options.fresh,
        torus: options.torus,
        driver_command: driver(options.no_ethernet)?,
        offload: options.offload.map(|offload| offload == Offload::On),
        lifeline: false,
        ack_timeout_ms: options.ack_timeout,
    };
    if options.foreground {
        let announce = || {
            show.note(&format!("agent ready on {}", state.display()));
            Ok(())
        };
        return Ok(agent::run(config, announce)?);
    }
    spawn_background(&config)?;
    let status = Control::connect(state)?.status()?;
    if status.rootless {
        show.note(
            "without root, nodes are separated for convenience, not against malice: \
             their processes all run as you",
        );
    } else if !status.private_users {
        show.note(
            "this container has no users to give to nodes, so they are separated for \
             convenience, not against malice: root in a node is root here",
        );
    }
    if status.no_taps.is_some() {
        show.note(
            "nodes have no interfaces in domains: one process of each has its addresses there, with \
             sockets of its own (`ethernet::Stack`)",
        );
    }
    show.status(&status);
    Ok(())
}

fn driver(no_ethernet: bool) -> Result<Option<Vec<OsString>>, Failure> {
    if no_ethernet {
        return Ok(None);
    }
    let program = locate::program(DRIVER.as_ref()).ok_or_else(|| {
        Failure::new(format!(
            "{DRIVER} is neither beside this program nor in PATH; build it with \
             `cargo build --release`, or do without Ethernet with --no-ethernet"
        ))
    })?;
    Ok(Some(vec![program.into()]))
}

pub(crate) fn down(places: &Places, show: Show) -> Result<(), Failure> {
    // Only one's own agent: ending the system's by mistake would be one too many.
    let state = places.to_start()?;
    match Control::connect(state) {
        Ok(agent) => agent.down()?,
        Err(error @ (ClientError::NoAgent { .. } | ClientError::Orphaned { .. })) => {
            match agent::clear_stale(state)? {
                Left::Nothing => return Err(error.into()),
                Left::Files => show.note("cleared away what an agent that was killed had left"),
                Left::Nodes => show.note("no agent ran; its nodes have ended now"),
            }
        }
        Err(error) => return Err(error.into()),
    }
    show.done();
    Ok(())
}
