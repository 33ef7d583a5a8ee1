//! Signals, as with memcached.

use anyhow::Result;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use toroid_kv::server::{Stop, Users};

/// Stops the server on a signal, and reloads its users on SIGHUP.
pub fn listen(stop: &Stop, users: Option<Users>) -> Result<()> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM, SIGUSR1])?;
    let stop = stop.clone();
    std::thread::spawn(move || {
        for signal in signals.forever() {
            match (signal, &users) {
                (SIGHUP, Some(users)) => match users.reload() {
                    Ok(()) => tracing::info!("the users were read again"),
                    Err(error) => eprintln!("toroid-kv: the users stay as they were: {error}"),
                },
                (SIGHUP, None) => {}
                (SIGUSR1, _) => {
                    eprintln!("Gracefully stopping");
                    stop.stop();
                }
                _ => stop.stop(),
            }
        }
    });
    Ok(())
}
