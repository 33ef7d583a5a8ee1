//! `toroid-kv serve`, also under the name `memcached` by a link.

mod extended;
mod options;
mod process;
pub mod signals;

use std::io::Write;
use std::time::Instant;

use anyhow::Result;
use toroid_kv::server::{self, Rdma, ServeError, Stop};

pub use options::{Serve, parse_mode};

use crate::VERSION;

/// Memcached's exit statuses other than 1, from sysexits.h.
const EX_USAGE: u8 = 64;
const EX_NOUSER: u8 = 67;
const EX_OSERR: u8 = 71;

/// Failure to start a server, with memcached's exit status.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct StartError {
    status: u8,
    text: String,
}

impl StartError {
    fn new(status: u8, text: impl Into<String>) -> Self {
        let text = text.into();
        StartError { status, text }
    }

    /// With status 1, which most failures of memcached have.
    fn one(text: impl Into<String>) -> Self {
        StartError::new(1, text)
    }

    fn usage(text: impl Into<String>) -> Self {
        StartError::new(EX_USAGE, text)
    }

    fn system(text: impl Into<String>) -> Self {
        StartError::new(EX_OSERR, text)
    }
}

/// Exit status of an error.
pub fn status(error: &anyhow::Error) -> u8 {
    if let Some(error) = error.downcast_ref::<StartError>() {
        return error.status;
    }
    match error.downcast_ref() {
        Some(ServeError::Listen { .. }) => EX_OSERR,
        _ => 1,
    }
}

/// Serves until a signal stops it.
pub fn serve(options: &Serve, verbosity: u8) -> Result<()> {
    if options.version {
        println!("memcached {VERSION}");
        return Ok(());
    }
    if options.license {
        println!("toroid-kv {VERSION}: Apache-2.0 or MIT, at your option.");
        return Ok(());
    }
    let (mut settings, notices) = options.read(verbosity)?;
    for notice in notices {
        eprintln!("toroid-kv: {notice}");
    }
    if let Some(path) = &options.auth_file {
        settings.users = Some(server::Users::load(path)?);
    }
    // Forks, so it must come before anything has threads.
    let mut pid_file = process::prepare(options, &settings)?;
    let stop = Stop::new()?;
    signals::listen(&stop, settings.users.clone())?;
    let start = Instant::now();
    server::run(&settings, &stop, |ready, _| {
        if ready.rdma.is_none() && settings.rdma == Rdma::Auto {
            eprintln!("toroid-kv: not in a node: serving TCP alone");
        }
        process::tell_ports(&ready.tcp);
        if let Some(file) = &mut pid_file {
            file.write();
        }
        // Standard output may be closed; serving does not depend on it.
        let _ = writeln!(std::io::stdout(), "{ready}");
        tracing::info!("ready after {:?}", start.elapsed());
    })?;
    if verbosity > 0 {
        eprintln!("Exiting normally");
    }
    Ok(())
}
