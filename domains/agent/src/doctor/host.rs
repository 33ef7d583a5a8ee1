//! Checks of everything that a node needs.

use std::fs::OpenOptions;

use toroid_model::refusal::Refusal;

use super::{Asker, Files, Finding};
use crate::interfaces::tun_remedy;

pub(super) const NAMESPACES: &str = "namespaces";
pub(super) const TUN: &str = "tun";

/// The first Linux with `MADV_COLLAPSE`.
const COLLAPSES: [u32; 2] = [6, 1];

/// Number of uids of a node, where there are enough.
const USERS_OF_NODE: u64 = 65_536;

pub(super) fn examine(files: &Files, asker: Asker, trial: Result<(), Refusal>) -> Vec<Finding> {
    let kernel = files.text("/proc/sys/kernel/osrelease");
    let kernel = kernel.unwrap_or_else(|_| "unknown".into());
    let version = format!("toroid {}, Linux {kernel}", env!("CARGO_PKG_VERSION"));
    let namespaces = namespaces(files, asker, trial);
    let mut findings = vec![Finding::ok("version", version), namespaces];
    findings.push(users(files, asker));
    findings.push(tun(files));
    findings.push(nft(files));
    findings.push(huge_pages(files, &kernel));
    findings
}

/// Checks namespaces by the result of a node made on trial. Only after a failure the switches of
/// the system are read for a reason.
fn namespaces(files: &Files, asker: Asker, trial: Result<(), Refusal>) -> Finding {
    let Err(refusal) = trial else {
        return Finding::ok(NAMESPACES, "nodes can be made: one was, on trial");
    };
    let number = |path: &str| files.text(path).ok()?.parse::<u64>().ok();
    if number("/proc/sys/user/max_user_namespaces") == Some(0) {
        return Finding::missing(
            NAMESPACES,
            "user namespaces are switched off, and each node is one",
            "sudo sysctl user.max_user_namespaces=65536",
        );
    }
    let switches = [
        ("kernel.unprivileged_userns_clone", 0, 1),
        ("kernel.apparmor_restrict_unprivileged_userns", 1, 0),
    ];
    for (name, off, on) in switches {
        let path = format!("/proc/sys/{}", name.replace('.', "/"));
        if !asker.is_root && number(&path) == Some(off) {
            return Finding::missing(
                NAMESPACES,
                "only root may make user namespaces, and each node is one",
                format!("sudo sysctl {name}={on}, or start the agent as root"),
            );
        }
    }
    Finding::missing(NAMESPACES, refusal.message, refusal.remedy)
}

fn users(files: &Files, asker: Asker) -> Finding {
    let check = "users";
    if !asker.is_root {
        return Finding::limited(
            check,
            "an agent of this user has one user for all nodes, which separates them for convenience \
             only",
            "start the agent as root where nodes are not to trust each other",
        );
    }
    // Ranges as in user_namespaces(7): first inside, first outside, length.
    let map = files.text("/proc/self/uid_map").unwrap_or_default();
    let ranges = map
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2));
    let count: u64 = ranges.filter_map(|len| len.parse::<u64>().ok()).sum();
    if count < 2 * USERS_OF_NODE {
        return Finding::limited(
            check,
            format!("there are {count} users here, too few for nodes to have {USERS_OF_NODE} each"),
            "start the agent outside of the container, or give it more users where nodes are not to \
             trust each other",
        );
    }
    Finding::ok(check, "each node can have users of its own")
}

/// Checks the program for gateways with address translation.
fn nft(files: &Files) -> Finding {
    let directories = ["/usr/sbin", "/sbin", "/usr/bin", "/bin", "/usr/local/sbin"];
    let mut paths = directories
        .map(|directory| format!("{directory}/nft"))
        .into_iter();
    match paths.find(|path| files.at(path).exists()) {
        Some(path) => Finding::ok("nft", format!("{path} translates addresses for gateways")),
        None => Finding::limited(
            "nft",
            "the program nft is not installed: `toroid gateway add` works with --bridge only",
            "sudo apt-get install nftables",
        ),
    }
}

fn tun(files: &Files) -> Finding {
    let mut options = OpenOptions::new();
    let path = "/dev/net/tun";
    match options.read(true).write(true).open(files.at(path)) {
        Ok(_) => Finding::ok(TUN, format!("{path} gives members their interfaces")),
        Err(error) => Finding::missing(
            TUN,
            format!("{path}: {error}: members have no interfaces"),
            tun_remedy(&error),
        ),
    }
}

/// Checks huge pages for regions, see `toroid_fabric::mem::compaction`.
fn huge_pages(files: &Files, kernel: &str) -> Finding {
    let check = "huge pages";
    let slow = "regions that peers write stay in pages of 4 KiB, and shrinks take longer the more of \
                them is used";
    let switch = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    match files.text(switch) {
        Err(_) => Finding::limited(
            check,
            format!("this kernel has none for shared memory: {slow}"),
            "use one with CONFIG_TRANSPARENT_HUGEPAGE",
        ),
        Ok(policy) if policy.contains("[deny]") => Finding::limited(
            check,
            format!("{switch} denies them: {slow}"),
            format!("echo never | sudo tee {switch}"),
        ),
        Ok(_) if version(kernel)[..] < COLLAPSES[..] => Finding::limited(
            check,
            format!("this kernel gives them on demand only since Linux 6.1: {slow}"),
            "use a newer one",
        ),
        Ok(_) => Finding::ok(
            check,
            "regions that peers write are brought into pages of 2 MiB",
        ),
    }
}

/// First two numbers of a kernel's version, as far as present.
fn version(kernel: &str) -> Vec<u32> {
    let numbers = kernel.split(|c: char| !c.is_ascii_digit());
    numbers.take(2).map_while(|n| n.parse().ok()).collect()
}
