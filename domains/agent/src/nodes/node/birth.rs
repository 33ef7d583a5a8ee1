//! Birth of a node by its first process: mounts, namespaces, users.
//!
//! ```text
//!   agent                                   first process
//!     │── fork into a PID namespace ──────────▶│ mounts: hosts file, /proc, an empty /run, ...
//!     │                                        │ unshare: user, network, mounts, IPC, UTS
//!     │◀────────────────────────── unshared ───│
//!     │── uid_map, gid_map ── mapped, /sys ───▶│ becomes uid 0 of the node
//!     │◀───── ready, network, node socket ─────│
//! ```
//!
//! The mounts come first because they need root of the host. Afterwards they belong to a more
//! privileged namespace, so the node's root cannot remove them (see [`mounts`]).

use std::env;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use nix::sched::{CloneFlags, unshare};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid, setsid};
use rustix::system::sethostname;
use toroid_fabric::os::inherited;
use toroid_netlink::Netlink;
use toroid_protocol::agent::NODE_SOCKET;
use toroid_protocol::node::{InitConfig, Mapped, NodeEvent};
use toroid_protocol::wire::{Reader, WireError, Writer};

use super::{During, NodeError, cause, mounts};
use crate::error::GIVE_USERS;

/// Result of a birth for the agent.
pub(super) struct Born {
    pub(super) warnings: Vec<String>,
    pub(super) network: OwnedFd,
    pub(super) listener: UnixListener,
}

/// Makes this process, which must have a single thread, the first of a node.
pub(super) fn be_born(
    config: &InitConfig,
    orders: &mut Reader,
    reports: &Writer,
) -> Result<Born, NodeError> {
    let_go(config.users.is_some())?;
    let mut warnings = Vec::new();
    let mut try_to = |step: &str, result: io::Result<()>| {
        if let Err(error) = result {
            warnings.push(format!("cannot {step}: {error}"));
        }
    };
    try_to("name itself", fs::write("/proc/self/comm", "toroid-node"));
    mounts::separate(&config.hosts)?;
    try_to("mount a fresh /proc", mounts::fresh("proc", "/proc"));
    try_to("mount a fresh /dev/pts", mounts::terminals(config.users));
    if !config.shares_tmp {
        let owner = config.users.unwrap_or_default();
        mounts::hide_temporary_files(owner, config.temporary_bytes)?;
    }
    let mut namespaces =
        CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWIPC | CloneFlags::CLONE_NEWUTS;
    if let Some(first) = config.users {
        mounts::hide_runtime_files(first, config.temporary_bytes)?;
        mounts::make_home(first)?;
        mounts::make_secrets(first)?;
        mounts::drop_sysfs()?;
        namespaces |= CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS;
    }
    unshare(namespaces).during(GIVE_USERS)?;
    try_to(
        "name its host",
        sethostname(config.name.as_bytes()).map_err(Into::into),
    );
    let sys = match config.users {
        Some(_) => {
            let sys = become_root_of_node(orders, reports)?;
            try_to("make /run/lock", make_directory("/run/lock", 0o1777));
            mounts::mount_sysfs(&sys)
        }
        None => mounts::fresh("sysfs", "/sys"),
    };
    try_to("mount a fresh /sys", sys);
    for (step, result) in settings(config.open_files) {
        try_to(step, result);
    }
    set_up_loopback()?;
    let network = File::open("/proc/self/ns/net").during("open its network")?;
    let listener = SocketAddr::from_abstract_name(NODE_SOCKET)
        .and_then(|address| UnixListener::bind_addr(&address))
        .during("listen in it")?;
    Ok(Born {
        warnings,
        network: network.into(),
        listener,
    })
}

/// Leaves inherited state of the agent's starter: terminal, directory, signals, umask, and
/// protection from the OOM killer.
fn let_go(is_strict: bool) -> Result<(), NodeError> {
    // The process leads no process group, so setsid(2) is allowed.
    setsid().during("begin a session")?;
    env::set_current_dir("/").during("leave the agent's directory")?;
    umask(Mode::S_IWGRP | Mode::S_IWOTH);
    inherited::restore_signals();
    let path = "/proc/self/oom_score_adj";
    let unspared = fs::read_to_string(path).and_then(|text| {
        if text.starts_with('-') {
            fs::write(path, "0")
        } else {
            Ok(())
        }
    });
    match unspared {
        Err(error) if is_strict => Err(error).during("be like others when memory runs out"),
        _ => Ok(()),
    }
}

/// Becomes root of the node, after which this process has no privilege on the host. Returns the
/// node's `/sys`.
fn become_root_of_node(orders: &mut Reader, reports: &Writer) -> Result<OwnedFd, NodeError> {
    let mut mapped = || {
        reports.send(&NodeEvent::Unshared, &[])?;
        let (Mapped, descriptors) = orders.receive()?;
        descriptors.into_iter().next().ok_or(WireError::Closed)
    };
    let sys = mapped().map_err(cause).during(GIVE_USERS)?;
    let (uid, gid) = (Uid::from_raw(0), Gid::from_raw(0));
    setgroups(&[])
        .and_then(|()| setresgid(gid, gid, gid))
        .and_then(|()| setresuid(uid, uid, uid))
        .during("become its root")?;
    inherited::leave_session_keyring().during("leave the agent's keyring")?;
    Ok(sys)
}

fn make_directory(place: &str, mode: u32) -> io::Result<()> {
    fs::create_dir(place)?;
    fs::set_permissions(place, Permissions::from_mode(mode))
}

/// Settings of the node. Those that the kernel denies, for example to an ordinary user, are
/// skipped.
fn settings(open_files: u64) -> [(&'static str, io::Result<()>); 6] {
    let sysctl = |name: &str| fs::write(format!("/proc/sys/net/ipv6/conf/{name}"), "0");
    let limit_descriptors = || {
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
        setrlimit(Resource::RLIMIT_NOFILE, open_files.min(hard), hard)
    };
    [
        ("switch IPv6 on", sysctl("all/disable_ipv6")),
        // The fabric has no routers, and addresses are unique by construction: packets about either
        // would only wake every node.
        (
            "look for no routers",
            sysctl("default/router_solicitations"),
        ),
        ("look for no duplicates", sysctl("default/dad_transmits")),
        // If the host forwards packets, so does each of its new networks; but a node in two domains
        // is no router between them. For IPv6 forwarding is off in each.
        (
            "forward no packets",
            fs::write("/proc/sys/net/ipv4/ip_forward", "0"),
        ),
        ("choose congestion control", without_pacing()),
        (
            "limit descriptors",
            limit_descriptors().map_err(io::Error::from),
        ),
    ]
}

/// Lets TCP send without pacing timers. Between nodes of a host no packet is lost for which a
/// sender should slow down. With BBR as the host's default, pacing takes a quarter of the round
/// trip of a 64 KiB value.
fn without_pacing() -> io::Result<()> {
    let knob = |name: &str| format!("/proc/sys/net/ipv4/tcp_{name}");
    let paces = fs::read_to_string(knob("congestion_control"))?.starts_with("bbr");
    if paces {
        // Every kernel has this algorithm, and every user may choose it.
        fs::write(knob("congestion_control"), "reno")
    } else {
        Ok(())
    }
}

fn set_up_loopback() -> Result<(), NodeError> {
    let up = || {
        let mut netlink = Netlink::open()?;
        let loopback = netlink.index("lo")?;
        netlink.set_up(loopback)
    };
    up().map_err(io::Error::other)
        .during("bring up its loopback")
}
