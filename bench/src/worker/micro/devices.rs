//! Channels of two RDMA devices. The two processes connect them: no agent has a part in it, and no
//! message takes another way.

use anyhow::{Error, Result, anyhow};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};

#[cfg(feature = "verbs")]
pub use self::built::Rnic;
#[cfg(not(feature = "verbs"))]
pub use self::not_built::Rnic;

/// Checks that these devices, or the first one of this host, can be used. Children of this process may
/// then pin as much memory as the system allows: a channel takes 1.2 MiB.
///
/// # Errors
/// The reason, with the remedy.
pub fn check(names: &[String]) -> Result<()> {
    let limit = Resource::RLIMIT_MEMLOCK;
    let (_, most) = getrlimit(limit)?;
    if setrlimit(limit, RLIM_INFINITY, RLIM_INFINITY).is_err() {
        // Only root may raise the hard limit.
        setrlimit(limit, most, most)?;
    }
    if names.is_empty() {
        Rnic::open(None)?;
    }
    for name in names {
        Rnic::open(Some(name))?;
    }
    Ok(())
}

fn with_remedy(error: impl Into<Error>, remedy: &str) -> Error {
    let error = error.into();
    anyhow!("the path verbs cannot be measured: {error:#}; {remedy}, or leave it out of --path")
}

#[cfg(not(feature = "verbs"))]
mod not_built {
    use std::net::TcpStream;

    use anyhow::{Result, anyhow};
    use toroid_fabric::link::LinkCheck;

    use super::super::wire::Wire;

    const REMEDY: &str = "build it with `cargo build --release --features bench/verbs` after `apt-get \
                          install cmake libclang-dev libibverbs-dev libnl-3-dev libnl-route-3-dev \
                          pkg-config`";

    /// There is none in this build.
    #[derive(Clone, Debug)]
    pub enum Rnic {}

    impl Rnic {
        /// Always an error.
        pub fn open(_: Option<&str>) -> Result<Self> {
            let error = anyhow!("this build has no provider verbs");
            Err(super::with_remedy(error, REMEDY))
        }

        pub fn channel(&self, _: TcpStream, _: LinkCheck) -> Result<Wire> {
            match *self {}
        }
    }
}

#[cfg(feature = "verbs")]
mod built {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::sync::Arc;

    use anyhow::{Result, anyhow};
    use toroid_fabric::link::LinkCheck;
    use toroid_fabric::verbs::{ConnectionParameters, Device, ProtectionDomain, Selection};
    use toroid_fabric::{Epoch, Membership};

    use super::super::wire::Wire;
    use super::super::{NODE, PARTITION};

    const REMEDY: &str = "name active devices of `rdma link` with --device";

    /// A device, as one process uses it for all its connections.
    #[derive(Clone, Debug)]
    pub struct Rnic(Arc<ProtectionDomain>);

    impl Rnic {
        /// Opens a device, by default the first one.
        pub fn open(name: Option<&str>) -> Result<Self> {
            let selection = Selection {
                device: name.map(str::to_owned),
                ..Selection::default()
            };
            let device = Device::open(&selection);
            let device = device.map_err(|error| super::with_remedy(error, REMEDY))?;
            Ok(Rnic(ProtectionDomain::new(&device, NODE, PARTITION)?))
        }

        /// Connects a channel with the process at the other end of `stream`, which does the same.
        pub fn channel(&self, mut stream: TcpStream, check: LinkCheck) -> Result<Wire> {
            stream.set_nodelay(true)?;
            let prepared = self.0.prepare_channel(check, Membership::at(Epoch(0)));
            let prepared = prepared.map_err(|error| {
                anyhow!("the RDMA device has no room for a channel: {error}; raise `ulimit -l`")
            })?;
            let ours = prepared.parameters().to_bytes();
            let mut theirs = [0; ConnectionParameters::LEN];
            stream.write_all(&ours)?;
            stream.read_exact(&mut theirs)?;
            let theirs = ConnectionParameters::from_bytes(&theirs)?;
            let channel = prepared.connect(&theirs, Arc::default());
            let channel = channel.map_err(|error| {
                anyhow!("the RDMA devices do not connect: {error}; see `rdma link`")
            })?;
            // A device does not answer before its queue pair is connected.
            let mut is_connected = [0];
            stream.write_all(&is_connected)?;
            stream.read_exact(&mut is_connected)?;
            Ok(Wire::Verbs(Box::new(channel)))
        }
    }
}
