//! `toroid-kv get`, `set`, `delete` and `top`: an RDMA client for the shell.

use std::io::{Read, Write};

use anyhow::{Result, anyhow};
use clap::{Args, Subcommand};
use toroid_client::member::{Member, MemberError};
use toroid_fabric::Place;
use toroid_kv::{Client, ClientError};

use crate::top;

/// Commands of the client.
#[derive(Subcommand)]
pub enum Command {
    /// Print the value of a key.
    Get {
        #[command(flatten)]
        server: Server,
        /// Key.
        key: String,
    },
    /// Store a value under a key.
    Set {
        #[command(flatten)]
        server: Server,
        /// Expiry in seconds from now (up to 30 days) or as Unix time; 0 is never.
        #[arg(short = 'e', long, default_value_t = 0, allow_negative_numbers = true)]
        exptime: i64,
        /// Number stored with the value.
        #[arg(short = 'f', long, default_value_t = 0)]
        flags: u32,
        /// Key.
        key: String,
        /// Value; read from standard input by default.
        value: Option<String>,
    },
    /// Remove a key.
    #[command(alias = "rm")]
    Delete {
        #[command(flatten)]
        server: Server,
        /// Key.
        key: String,
    },
    /// Show the most used keys, one-sided gets included, once a second.
    ///
    /// Bytes other than letters, digits and -._~ are shown as % and two hexadecimal digits.
    Top {
        #[command(flatten)]
        server: Server,
        /// Number of keys.
        #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 20)]
        keys: u32,
        /// Print once and exit.
        #[arg(long)]
        once: bool,
    },
}

/// Options that select the server.
#[derive(Args)]
pub struct Server {
    /// Domain; the node's only one by default.
    #[arg(short, long, value_name = "NAME")]
    domain: Option<String>,
    /// Node of the server, as x,y,z; the domain's only server by default.
    #[arg(short, long, value_name = "PLACE")]
    server: Option<Place>,
}

impl Server {
    fn connect(&self) -> Result<Client> {
        let domain = Member::attach()?.domain_or_only(self.domain.as_deref())?;
        Ok(Client::connect(&domain, self.server)?)
    }
}

impl Command {
    /// Carries the command out; returns false after a message about a missing key.
    pub fn carry_out(self) -> Result<bool> {
        match self {
            Command::Get { server, key } => {
                let Some(value) = server.connect()?.get(key.as_bytes())? else {
                    return Ok(miss(&key));
                };
                let mut output = std::io::stdout().lock();
                output
                    .write_all(&value.data)
                    .and_then(|()| output.flush())?;
            }
            Command::Set {
                server,
                exptime,
                flags,
                key,
                value,
            } => {
                let value = value.map_or_else(standard_input, |value| Ok(value.into_bytes()))?;
                server
                    .connect()?
                    .set(key.as_bytes(), flags, exptime, &value)?;
            }
            Command::Delete { server, key } => {
                if !server.connect()?.delete(key.as_bytes())? {
                    return Ok(miss(&key));
                }
            }
            Command::Top { server, keys, once } => top::show(&mut server.connect()?, keys, once)?,
        }
        Ok(true)
    }
}

/// Exit status of an error: scripts tell an outage from a missing key.
pub fn status(error: &anyhow::Error) -> u8 {
    const USAGE: u8 = 2;
    const NOT_REACHED: u8 = 3;
    const REFUSED: u8 = 4;
    match error.downcast_ref() {
        Some(ClientError::SeveralServers(_)) => USAGE,
        Some(
            ClientError::NoServer(_)
            | ClientError::Member(_)
            | ClientError::Operation(_)
            | ClientError::Channel(_)
            | ClientError::Timeout,
        ) => NOT_REACHED,
        None if error.is::<MemberError>() => NOT_REACHED,
        _ => REFUSED,
    }
}

fn standard_input() -> Result<Vec<u8>> {
    let mut value = Vec::new();
    std::io::stdin()
        .read_to_end(&mut value)
        .map_err(|error| anyhow!("cannot read standard input: {error}"))?;
    Ok(value)
}

fn miss(key: &str) -> bool {
    eprintln!("toroid-kv: there is no key {key:?}");
    false
}
