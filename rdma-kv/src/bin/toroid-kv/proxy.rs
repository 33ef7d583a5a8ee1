//! `toroid-kv proxy`: memcached's protocol in a node, with gets from a server on another node.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use toroid_fabric::Place;
use toroid_kv::proxy::{self, ProxyError};
use toroid_kv::server::{Listen, Rdma, Settings, Stop, UnixSocket, Users};

use crate::serve::{parse_mode, signals};

/// Options of the proxy. Memcached's have memcached's names, except -d.
#[derive(Args)]
pub struct Proxy {
    /// Node of the server, as x,y,z; the domain's only server by default.
    server: Option<Place>,
    /// Domain; the node's only one by default.
    #[arg(short, long, value_name = "NAME")]
    domain: Option<String>,
    /// TCP port to listen on; 0 takes any free port. Default 11211 without -s.
    #[arg(short, long, value_name = "NUM")]
    port: Option<u16>,
    /// Address to listen on: HOST, HOST:PORT, [IPV6]:PORT or *; separate several with commas.
    #[arg(
        short,
        long,
        value_name = "ADDR",
        value_delimiter = ',',
        default_value = "127.0.0.1"
    )]
    listen: Vec<Listen>,
    /// Unix socket to listen on.
    #[arg(short = 's', long, value_name = "FILE")]
    unix_socket: Option<PathBuf>,
    /// Permissions of the unix socket, in octal.
    #[arg(short = 'a', long, value_name = "MASK", default_value = "700", value_parser = parse_mode)]
    unix_mask: u32,
    /// Maximum number of connections.
    #[arg(short, long, value_name = "NUM", default_value_t = 1024)]
    conn_limit: u32,
    /// Number of worker threads.
    #[arg(short, long, value_name = "NUM", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: u16,
    /// Require authentication as a user in FILE (lines user:password; SIGHUP reloads it). The proxy
    /// itself needs no password of the server: its domain admits it.
    #[arg(short = 'Y', long, value_name = "FILE")]
    auth_file: Option<PathBuf>,
}

impl Proxy {
    fn settings(&self, verbosity: u8) -> Result<Settings> {
        let defaults = Settings::default();
        let path = self.unix_socket.clone();
        Ok(Settings {
            listen: self.listen.clone(),
            port: match (self.port, &path) {
                (None, Some(_)) => None,
                (port, _) => port.or(defaults.port),
            },
            unix: path.map(|path| UnixSocket {
                path,
                mode: self.unix_mask,
            }),
            connections: self.conn_limit as usize,
            threads: self.threads.into(),
            users: self.auth_file.as_deref().map(Users::load).transpose()?,
            verbosity,
            rdma: self.domain.clone().map_or(Rdma::Auto, Rdma::Domain),
            ..defaults
        })
    }
}

/// Serves until a signal stops it.
pub fn serve(options: &Proxy, verbosity: u8) -> Result<()> {
    let settings = options.settings(verbosity)?;
    let stop = Stop::new()?;
    signals::listen(&stop, settings.users.clone())?;
    let served = proxy::run(&settings, options.server, &stop, |ready| {
        // Standard output may be closed; serving does not depend on it.
        let _ = writeln!(std::io::stdout(), "{ready}");
    });
    match served {
        // Exit statuses are those of a server.
        Err(ProxyError::Serve(error)) => Err(error.into()),
        served => Ok(served?),
    }
}
