//! Values of options that several commands take.

use clap::ValueEnum;
use toroid_model::link::{LinkError, Rate};

/// Whether a port may pass GSO packets and partial checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Offload {
    /// As far as the kernel supports it.
    On,
    /// Only complete frames with full checksums.
    Off,
}

/// Interface of a member in a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Interface {
    /// A TAP interface of the kernel.
    Tap,
    /// None: a process brings an IP stack of its own.
    Stack,
}

/// The uid of a user, given by name or number.
pub(crate) fn user(text: &str) -> Result<u32, String> {
    if let Ok(uid) = text.parse() {
        return Ok(uid);
    }
    match nix::unistd::User::from_name(text) {
        Ok(Some(user)) => Ok(user.uid.as_raw()),
        Ok(None) => Err("no user has this name".into()),
        Err(error) => Err(format!("users cannot be looked up: {error}")),
    }
}

/// Seconds of a fence, or `off`, which is 0.
pub(crate) fn fence(text: &str) -> Result<u32, String> {
    let seconds = if text == "off" { Ok(0) } else { text.parse() };
    seconds.map_err(|_| "use a whole number of seconds, or off".into())
}

/// A rate, or `off`, which is none.
pub(crate) fn rate(text: &str) -> Result<OptionalRate, LinkError> {
    let rate = if text == "off" {
        None
    } else {
        Some(text.parse()?)
    };
    Ok(OptionalRate(rate))
}

/// A rate that may be none. For clap, an `Option` is a value that may be absent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OptionalRate(pub(crate) Option<Rate>);

/// A size in bytes: `64M`, `1.5G` and `512 MiB` use powers of 1024.
pub(crate) fn bytes(text: &str) -> Option<u64> {
    let sizes = parse_size::Config::new().with_binary();
    sizes.parse_size(text).ok()
}
