//! The program that stories start in nodes where no stock program will do. `actor --help` names its roles.

mod adversary;
mod agent;
mod memory;
mod network;
mod raw;
mod stack;
mod store;
mod storm;

use std::error::Error;
use std::io::{self, Read};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use clap::{Parser, Subcommand};
use toroid_fabric::{Place, RemoteKey};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// A peer that says nothing for so long has hung.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Parser)]
#[command(name = "actor")]
struct Cli {
    #[command(subcommand)]
    role: Role,
}

/// A role; most end with their standard input.
#[derive(Subcommand)]
enum Role {
    /// Copy standard input to a connection and its answers to standard output.
    Tcp { host: String, port: u16 },
    /// Count datagrams.
    Listen { port: u16 },
    /// Send datagrams with pauses between them, some after the end of the input.
    Flood {
        address: IpAddr,
        port: u16,
        #[arg(default_value_t = 100)]
        pause_us: u64,
    },
    /// Export one page.
    Own { domain: String },
    /// Export memory with another number in each word, and compare all but the first on request.
    Fill { domain: String, bytes: u64 },
    /// Add to the first word until that fails.
    Count {
        domain: String,
        owner: Place,
        key: RemoteKey,
    },
    /// Add to the first word until the input ends.
    Tally {
        domain: String,
        owner: Place,
        key: RemoteKey,
    },
    /// Add to the second word until that fails.
    Spoil {
        domain: String,
        owner: Place,
        key: RemoteKey,
    },
    /// Write the time to the first word until that fails.
    Stamp {
        domain: String,
        owner: Place,
        key: RemoteKey,
        #[arg(default_value_t = 0)]
        pause_us: u64,
    },
    /// Read and add to the first word until both have failed.
    Watch {
        domain: String,
        owner: Place,
        key: RemoteKey,
    },
    /// Write two words, read them back, and add to the first word in every EVERY-th round (0: never).
    Mix {
        domain: String,
        owner: Place,
        key: RemoteKey,
        /// Offset of the two words.
        at: u64,
        every: u64,
    },
    /// Write and read so many bytes in turns, as pages over several connections.
    Carry {
        domain: String,
        owner: Place,
        key: RemoteKey,
        bytes: u64,
        connections: u64,
    },
    /// Open memory for reading once.
    Open { domain: String, key: RemoteKey },
    /// Take a node out of a domain.
    Shrink { domain: String, node: Place },
    /// Let a node join and leave, while another thread allocates regions.
    Manage {
        domain: String,
        node: Place,
        times: u32,
    },
    /// Hold connections to a socket.
    Hold { socket: PathBuf, count: usize },
    /// Begin requests of so many bytes to the agent, without their last byte.
    Gorge { count: usize, bytes: u32 },
    /// Send frames for all and for groups, in the name of FROM or the own one.
    Storm {
        interface: String,
        mark: String,
        from: Option<String>,
    },
    /// Send frames for one address, in the name of another.
    Aim {
        interface: String,
        mark: String,
        from: String,
        to: String,
    },
    /// Count frames with a mark, and collect the sources of all frames.
    Sniff { interface: String, mark: String },
    /// Use an IP stack in user space.
    Stack {
        domain: String,
        #[command(subcommand)]
        role: stack::Role,
    },
    /// Use the store of the only domain. The name is for ps(1).
    Store { name: Option<String> },
    /// Be, or watch, a member that does not obey.
    Adversary {
        #[command(subcommand)]
        role: adversary::Role,
    },
}

fn main() -> Result<()> {
    match Cli::parse().role {
        Role::Tcp { host, port } => network::tcp(&host, port),
        Role::Listen { port } => network::listen(port),
        Role::Flood {
            address,
            port,
            pause_us,
        } => network::flood(address, port, Duration::from_micros(pause_us)),
        Role::Own { domain } => memory::own(&domain),
        Role::Fill { domain, bytes } => memory::fill(&domain, bytes),
        Role::Count { domain, owner, key } => memory::count(&domain, owner, key, 0),
        Role::Tally { domain, owner, key } => memory::tally(&domain, owner, key),
        Role::Spoil { domain, owner, key } => memory::count(&domain, owner, key, 8),
        Role::Stamp {
            domain,
            owner,
            key,
            pause_us,
        } => memory::stamp(&domain, owner, key, Duration::from_micros(pause_us)),
        Role::Watch { domain, owner, key } => memory::watch(&domain, owner, key),
        Role::Mix {
            domain,
            owner,
            key,
            at,
            every,
        } => memory::mix(&domain, owner, key, at, every),
        Role::Carry {
            domain,
            owner,
            key,
            bytes,
            connections,
        } => memory::carry(&domain, owner, key, bytes, connections),
        Role::Open { domain, key } => memory::open(&domain, key),
        Role::Shrink { domain, node } => memory::shrink(&domain, node),
        Role::Manage {
            domain,
            node,
            times,
        } => memory::manage(&domain, node, times),
        Role::Hold { socket, count } => agent::hold(&socket, count),
        Role::Gorge { count, bytes } => agent::gorge(count, bytes),
        Role::Storm {
            interface,
            mark,
            from,
        } => storm::storm(&interface, &mark, from.as_deref()),
        Role::Aim {
            interface,
            mark,
            from,
            to,
        } => storm::aim(&interface, &mark, &from, &to),
        Role::Sniff { interface, mark } => raw::sniff(&interface, &mark),
        Role::Stack { domain, role } => stack::run(&domain, role),
        Role::Store { .. } => store::serve(),
        Role::Adversary { role } => adversary::run(role),
    }
}

/// Becomes true when standard input ends.
fn watch_input() -> &'static AtomicBool {
    static ENDED: AtomicBool = AtomicBool::new(false);
    thread::spawn(|| {
        // An error is an end, too.
        let _ = io::stdin().read_to_end(&mut Vec::new());
        ENDED.store(true, Ordering::Release);
    });
    &ENDED
}
