//! `toroid-kv get`, `set`, `delete` and `top`: an RDMA client for the shell.

use std::io::{Read, Write};

use anyhow::{Result, anyhow};
use clap::{Args, Subcommand};
use toroid_client::member::{Member, MemberError};
use toroid_fabric::Place;
use toroid_kv::{Client, ClientError};

use crate::top;

/// What to do with a key.
#[derive(Subcommand)]
pub enum Command {
    /// Write a key's value to standard output.
    Get {
        #[command(flatten)]
        server: Server,
        /// The key.
        key: String,
    },
    /// Store a value under a key.
    Set {
        #[command(flatten)]
        server: Server,
        /// Seconds until it expires (up to 30 days), or the Unix time when it does; 0 is never.
        #[arg(short = 'e', long, default_value_t = 0, allow_negative_numbers = true)]
        exptime: i64,
        /// A number kept with the value.
        #[arg(short = 'f', long, default_value_t = 0)]
        flags: u32,
        /// The key.
        key: String,
        /// The value; standard input when absent.
        value: Option<String>,
    },
    /// Remove a key.
    #[command(alias = "rm")]
    Delete {
        #[command(flatten)]
        server: Server,
        /// The key.
        key: String,
    },
    /// Show the keys that are used most, gets by reading included, until it is ended.
    ///
    /// A byte that is no letter, digit or one of -._~ is shown as % and two digits.
    Top {
        #[command(flatten)]
        server: Server,
        /// How many keys.
        #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 20)]
        keys: u32,
        /// Show them once.
        #[arg(long)]
        once: bool,
    },
}

/// Which server.
#[derive(Args)]
pub struct Server {
    /// The domain; the node's only one by default.
    #[arg(short, long, value_name = "NAME")]
    domain: Option<String>,
    /// The server's place, as x,y,z; the domain's only server by default.
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
    /// Whether it did what was asked; a key that is not there has been told.
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

/// The status that an error ends the process with: scripts tell an outage from a missing key.
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
