//! `toroid up` and `toroid down`.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use toroid_agent::background::spawn_background;
use toroid_agent::{Config, Left};
use toroid_client::admin::{CONTROL_SOCKET, ClientError, Control};
use toroid_model::hosts::{self, ConfigFile};
use toroid_model::info::Limits;
use toroid_model::limits::ACK_TIMEOUT_MS;
use toroid_protocol::wire::WireError;

use crate::args::{Offload, Up};
use crate::failure::{Failure, wrong};
use crate::locate::{self, Places};
use crate::show::Show;

const DRIVER: &str = "toroid-ethernet";

pub(crate) fn run(places: &Places, options: &Up, show: Show) -> Result<(), Failure> {
    let file = options.config.as_deref().map(read).transpose()?;
    let file = file.as_ref();
    let its_state = file.and_then(|file| file.state.as_deref());
    let state = places.to_start_or(its_state)?;
    let its_data = file.and_then(|file| file.data.as_deref());
    let no_ethernet = options.no_ethernet || file.is_some_and(|file| !file.ethernet);
    let offload = options.offload.map(|offload| offload == Offload::On);
    let config = Config {
        state: state.into(),
        data: locate::data(options.data.as_deref().or(its_data), show)?,
        fresh: options.fresh,
        torus: options.torus,
        driver_command: driver(no_ethernet)?,
        offload: offload.or(file.and_then(|file| file.offload)),
        share_tmp: options.share_tmp,
        limits: Limits {
            memory: options.memory,
            pids: options.pids,
        },
        lifeline: false,
        hosts: file.map(|file| file.host.clone()),
        ack_timeout_ms: options
            .ack_timeout
            .or(file.and_then(|file| file.ack_timeout_ms))
            .unwrap_or(ACK_TIMEOUT_MS),
    };
    if options.foreground {
        let announce = || {
            show.note(&format!("agent ready on {}", state.display()));
            Ok(())
        };
        return Ok(toroid_agent::run(config, || true, announce)?);
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
             sockets of its own (`toroid_ethernet::Stack`)",
        );
    }
    if let Some(no_limits) = &status.no_limits {
        show.note(&format!(
            "{}, so a node can take all that the host has; `toroid status` says what to do",
            no_limits.message
        ));
    }
    show.status(&status);
    Ok(())
}

/// What a host is among several. Paths in its file are relative to where that is.
fn read(path: &Path) -> Result<ConfigFile, Failure> {
    let text = fs::read_to_string(path)
        .map_err(|error| Failure::usage(&format!("cannot read {}: {error}", path.display())))?;
    let mut file = hosts::parse(&text).map_err(|problems| wrong(path, &problems))?;
    file.host.key = beside(path, &file.host.key);
    file.state = file.state.map(|state| beside(path, &state));
    file.data = file.data.map(|data| beside(path, &data));
    Ok(file)
}

fn beside(file: &Path, relative: &Path) -> PathBuf {
    // Without it, relative to where we are.
    let file = std::path::absolute(file).unwrap_or_else(|_| file.into());
    file.with_file_name("").join(relative)
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
    let was_there = state.join(CONTROL_SOCKET).exists();
    match Control::connect(state).and_then(Control::down) {
        Ok(()) => {}
        // Also one that ended before it was asked, because its start was interrupted or another
        // `toroid down` came first.
        Err(
            error @ (ClientError::NoAgent { .. }
            | ClientError::Orphaned { .. }
            | ClientError::Wire(WireError::Closed)),
        ) => match toroid_agent::clear_stale(state)? {
            Left::Nothing if was_there => {}
            Left::Nothing => return Err(error.into()),
            Left::Files => show.note("cleared away what an agent that was killed had left"),
            Left::Nodes => show.note("no agent ran; its nodes have ended now"),
        },
        Err(error) => return Err(error.into()),
    }
    show.done();
    Ok(())
}
