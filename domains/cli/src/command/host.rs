//! `toroid host`: admission of other hosts by their keys.

use clap::Subcommand;
use serde::Serialize;
use toroid_model::host_key::PublicKey;
use toroid_model::info::{HostAdmission, HostState};

use super::{DONE, Run, Session};
use crate::failure::Failure;
use crate::output::table;

pub(super) const EXAMPLES: &str = "\
Examples:
  toroid host ls                     which hosts are admitted, the address and key of each
  toroid host admit b 5d0e...6f      admit host b with the key that `toroid host ls` shows on b
  toroid host remove b               its nodes leave all domains, its key is worth nothing
  toroid host rotate                 a new key for this host; nothing stops";

#[derive(Debug, Subcommand)]
pub(crate) enum Host {
    /// List the hosts, their addresses and keys, and those that wait for admission (at the leader)
    #[command(alias = "list")]
    Ls,
    /// Admit a host with a key; needed after `remove`, or with `admission = "manual"`
    Admit {
        /// The host
        host: String,
        /// Its public key, 64 hexadecimal digits; compare it with `toroid host ls` on that host
        fingerprint: PublicKey,
    },
    /// Remove a host; returns when it has no session, connection or member anywhere
    #[command(alias = "rm", alias = "delete")]
    Remove {
        /// The host
        host: String,
    },
    /// Make a new key pair for the host of this agent
    Rotate,
}

/// A host, for programs.
#[derive(Serialize)]
struct Listed {
    name: String,
    address: Option<String>,
    admission: HostAdmission,
    state: HostState,
    /// Whether its agent holds the directory, or coordinates with a directory on etcd.
    directory: bool,
    /// Whether it may coordinate with a directory on etcd.
    candidate: bool,
    key: Option<PublicKey>,
    problem: Option<String>,
}

impl Run for Host {
    fn run(self, session: &Session) -> Result<u8, Failure> {
        let agent = &mut session.connect()?;
        match self {
            Host::Ls => {
                let hosts = agent.status()?.hosts.into_iter();
                let hosts = hosts.map(|host| Listed {
                    name: host.name,
                    address: host.address,
                    admission: host.admission,
                    state: host.state,
                    directory: host.directory,
                    candidate: host.candidate,
                    key: host.key,
                    problem: host.problem,
                });
                let hosts: Vec<Listed> = hosts.collect();
                if session.show.json {
                    session.show.value(&hosts);
                    return Ok(DONE);
                }
                let rows = hosts.into_iter().map(|host| {
                    let key = host.key.map_or_else(|| "-".into(), |key| key.to_string());
                    let role = match (host.directory, host.candidate) {
                        (true, _) => "leader",
                        (false, true) => "candidate",
                        (false, false) => "-",
                    };
                    let (admission, state) = (host.admission.to_string(), host.state.to_string());
                    let address = host.address.unwrap_or_else(|| "-".into());
                    [host.name, role.into(), admission, state, address, key]
                });
                let columns = [
                    "HOST",
                    "ROLE",
                    "ADMISSION",
                    "STATE",
                    "ADDRESS",
                    "FINGERPRINT",
                ];
                table(columns, rows);
            }
            Host::Admit { host, fingerprint } => agent.admit_host(&host, fingerprint)?,
            Host::Remove { host } => agent.remove_host(&host)?,
            Host::Rotate => agent.rotate_host_key()?,
        }
        Ok(DONE)
    }
}
