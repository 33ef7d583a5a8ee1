//! Roles of this program when it executes itself with a hidden argument: the agent and its helper
//! processes, the Ethernet driver, the store, a worker, a spinning process, or the janitor.

use std::io::{self, Write};
use std::net::SocketAddrV4;
use std::os::unix::process::CommandExt;
use std::process::{self, ExitCode};
use std::thread;

use anyhow::{Result, anyhow};
use serde::{Deserialize, Serialize};
use toroid_agent::roles::Role;
use toroid_client::member::Member;
use toroid_ethernet::stack::Stack;
use toroid_ethernet::stack::tcp::TcpListener;
use toroid_kv::server::{self, Limits, Rdma, Settings, Shared, Stop};

use crate::worker::network::server::start_with;
use crate::worker::network::socket::Sockets;
use crate::{busy, directory, janitor, tethered, worker};

/// The hidden argument of the Ethernet driver.
pub const DRIVER: &str = toroid_ethernet::role::ARGUMENT;

/// The hidden argument of a worker.
pub const WORKER: &str = "__bench-worker";

/// The hidden argument of another program; its path, `argv[0]` and arguments follow.
pub const EXEC: &str = "__bench-exec";

/// The hidden argument of the store; a [`StoreConfig`] as JSON follows, then optionally a mark that
/// identifies the process.
pub const STORE: &str = "__bench-store";

/// The configuration of a store.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StoreConfig {
    /// Name of the domain.
    pub domain: String,
    /// Bytes for items.
    pub memory: u64,
    /// Bytes of the largest item.
    pub item: u32,
    /// Whether a userspace stack stands in for the node's interface. The process then also serves
    /// network sessions at [`SESSIONS`].
    pub stack: bool,
}

/// Port of network sessions of a store with a userspace stack.
pub const SESSIONS: u16 = 7;

/// Runs the role that the first argument names, and returns its exit status; `None` without such an
/// argument. The first call in `main`.
pub fn run_if_asked() -> Option<ExitCode> {
    if let Some(role) = toroid_agent::roles::asked() {
        let status = role.run();
        match role {
            Role::Agent => remove_own_state(),
            Role::FdStore => remove_state_of_killed_agent(),
            Role::NodeInit
            | Role::FdCourier
            | Role::NearRelay
            | Role::FarRelay
            | Role::Binder
            | Role::TargetProxy
            | Role::Trial => {}
        }
        return Some(status.into());
    }
    if let Some(status) = toroid_ethernet::role::run_if_asked() {
        return Some(status);
    }
    let result = match std::env::args().nth(1)?.as_str() {
        WORKER => worker::run().map_err(Into::into),
        STORE => run_store(),
        EXEC => Err(become_another()),
        tethered::ARGUMENT => tethered::run().map(|never| match never {}),
        janitor::ARGUMENT => janitor::run(),
        busy::ARGUMENT => busy::spin().map_err(Into::into),
        _ => return None,
    };
    Some(match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("toroid-bench: {error}");
            ExitCode::FAILURE
        }
    })
}

fn remove_state_of_killed_agent() {
    let state = std::env::args_os().nth(2).unwrap_or_default();
    if janitor::removes(state.as_ref()) {
        return;
    }
    // An agent that lives needs its files, and removes them.
    if let Ok(false) = toroid_agent::is_held(state.as_ref()) {
        directory::remove_state(state.as_ref());
    }
}

/// Removes the agent's files: agents of this program are private to a run, and a killed run removes
/// nothing.
fn remove_own_state() {
    let state = std::env::args_os().nth(2).unwrap_or_default();
    if !janitor::removes(state.as_ref()) {
        directory::remove_state(state.as_ref());
    }
}

/// Executes another program. Returns only on failure, with the reason.
fn become_another() -> anyhow::Error {
    let mut arguments = std::env::args_os().skip(2);
    let program = arguments.next().unwrap_or_default();
    let name = arguments.next().unwrap_or_default();
    let error = process::Command::new(&program)
        .arg0(name)
        .args(arguments)
        .exec();
    anyhow!(
        "cannot run {}: {error}; is it installed?",
        program.display()
    )
}

/// Serves the store in this node until the process is ended. Answers with the TCP port.
fn run_store() -> Result<()> {
    let config = std::env::args().nth(2).unwrap_or_default();
    let config: StoreConfig = serde_json::from_str(&config)?;
    let settings = Settings {
        port: Some(0),
        limits: Limits {
            memory: config.memory,
            item: config.item,
        },
        rdma: Rdma::Domain(config.domain.clone()),
        ..Settings::default()
    };
    let stop = Stop::new()?;
    let stack = config
        .stack
        .then(|| open_stack(&config.domain))
        .transpose()?;
    server::run(&settings, &stop, |ready, store| {
        let port = ready.tcp.first().map(|address| address.port());
        let port = port.ok_or_else(|| "the store has no TCP port".to_owned());
        let served = port.and_then(|port| match &stack {
            None => Ok(port),
            Some(stack) => serve_by_stack(stack, port, store)
                .map(|()| port)
                .map_err(|error| error.to_string()),
        });
        let answer = serde_json::to_string(&served);
        // The write fails if the parent has ended.
        let _ = writeln!(io::stdout(), "{}", answer.unwrap_or_default());
    })?;
    Ok(())
}

fn open_stack(domain: &str) -> Result<Stack> {
    Ok(Stack::open(&Member::attach()?.domain(domain)?)?)
}

/// Serves the store over the stack at the same port as over the kernel, and network sessions.
fn serve_by_stack(stack: &Stack, port: u16, store: &Shared) -> io::Result<()> {
    let sessions = SocketAddrV4::new(stack.ipv4(), SESSIONS);
    start_with(&Sockets::Stack(stack.clone()), sessions)?;
    let (listener, store) = (stack.listen(port)?, store.clone());
    let accept = move || accept_all(&listener, &store);
    thread::Builder::new().name("stack".into()).spawn(accept)?;
    Ok(())
}

fn accept_all(listener: &TcpListener, store: &Shared) {
    while let Ok((stream, _)) = listener.accept() {
        let store = store.clone();
        // An error ends one connection only, and its client notices.
        let _ = thread::Builder::new().spawn(move || {
            stream.set_nodelay(true)?;
            server::converse(&stream, &store)
        });
    }
}
