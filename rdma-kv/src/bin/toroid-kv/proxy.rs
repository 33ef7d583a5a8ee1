//! `toroid-kv proxy`: a server elsewhere, for those in a node that speak memcached's protocol.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use toroid_fabric::Place;
use toroid_kv::proxy::{self, ProxyError};
use toroid_kv::server::{Listen, Rdma, Settings, Stop, UnixSocket, Users};

use crate::serve::{parse_mode, signals};

/// Options of the proxy. Those that memcached has are called alike, but for -d.
#[derive(Args)]
pub struct Proxy {
    /// The server's place, as x,y,z; the domain's only server by default.
    server: Option<Place>,
    /// The domain; the node's only one by default.
    #[arg(short, long, value_name = "NAME")]
    domain: Option<String>,
    /// TCP port to listen at; 0 takes any free port. 11211 where there is no -s.
    #[arg(short, long, value_name = "NUM")]
    port: Option<u16>,
    /// Where to listen: HOST, HOST:PORT, [IPV6]:PORT or *, several with commas or by repetition.
    #[arg(
        short,
        long,
        value_name = "ADDR",
        value_delimiter = ',',
        default_value = "127.0.0.1"
    )]
    listen: Vec<Listen>,
    /// Unix socket to listen at.
    #[arg(short = 's', long, value_name = "FILE")]
    unix_socket: Option<PathBuf>,
    /// Permissions of the unix socket, in octal.
    #[arg(short = 'a', long, value_name = "MASK", default_value = "700", value_parser = parse_mode)]
    unix_mask: u32,
    /// Connections at a time.
    #[arg(short, long, value_name = "NUM", default_value_t = 1024)]
    conn_limit: u32,
    /// Threads that serve connections.
    #[arg(short, long, value_name = "NUM", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: u16,
    /// Serve nobody but the users in FILE, which has a line user:password for each; SIGHUP reads
    /// it again. Passwords of the server are not asked for: it knows the proxy by its domain.
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

/// Serves until a signal ends it.
pub fn serve(options: &Proxy, verbosity: u8) -> Result<()> {
    let settings = options.settings(verbosity)?;
    let stop = Stop::new()?;
    signals::listen(&stop, settings.users.clone())?;
    let served = proxy::run(&settings, options.server, &stop, |ready| {
        // Nobody may be listening; that is no reason not to serve.
        let _ = writeln!(std::io::stdout(), "{ready}");
    });
    match served {
        // Its status is that of a server.
        Err(ProxyError::Serve(error)) => Err(error.into()),
        served => Ok(served?),
    }
}
