//! Channels of two RDMA devices. The two processes connect them: no agent has a part in it, and no
//! message takes another way.

use anyhow::{Error, Result, anyhow};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};

#[cfg(feature = "verbs")]
pub use self::built::Rnic;
#[cfg(not(feature = "verbs"))]
pub use self::not_built::Rnic;
use crate::causes::with_causes;

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
    let reason = with_causes(&error);
    anyhow!("the path verbs cannot be measured: {reason}; {remedy}, or leave it out of --path")
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
    use std::fmt::Display;
    use std::io::{self, BufRead, BufReader, Read, Write};
    use std::net::TcpStream;
    use std::sync::Arc;

    use anyhow::{Error, Result, anyhow};
    use toroid_fabric::link::LinkCheck;
    use toroid_fabric::verbs::{
        ConnectionParameters, Device, Export, ProtectionDomain, QueuePair, Selection,
    };
    use toroid_fabric::{Access, Epoch, Membership, Region, RemoteKey};

    use super::super::wire::Wire;
    use super::super::{NODE, PARTITION};

    const REMEDY: &str = "name active devices of `rdma link` with --device";

    const ROOM: &str = "raise `ulimit -l`, or leave the test `queues` out of --test";

    /// Parameters of a queue pair that answers, or the reason for which there is none.
    type Answer = Result<[u8; ConnectionParameters::LEN], String>;

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
            let channel = channel.map_err(not_connected)?;
            // A device does not answer before its queue pair is connected.
            let mut is_connected = [0];
            stream.write_all(&is_connected)?;
            stream.read_exact(&mut is_connected)?;
            Ok(Wire::Verbs(Box::new(channel)))
        }

        /// Grants access to a region to the queue pairs that this device [answers](Rnic::answer).
        pub fn export(&self, region: &Region, key: RemoteKey, access: Access) -> Result<Export> {
            let export = self.0.export(region, key, access);
            export.map_err(|error| {
                anyhow!("the RDMA device does not register memory: {error}; {ROOM}")
            })
        }

        /// Answers the queue pair of the process at the other end of `stream`, until that closes it.
        pub fn answer(&self, mut stream: TcpStream) -> Result<()> {
            let mut theirs = [0; ConnectionParameters::LEN];
            stream.read_exact(&mut theirs)?;
            let answering = self.0.answer(&ConnectionParameters::from_bytes(&theirs)?);
            let ours: Answer = match &answering {
                Ok(answering) => Ok(answering.parameters().to_bytes()),
                Err(error) => Err(error.to_string()),
            };
            writeln!(stream, "{}", serde_json::to_string(&ours)?)?;
            let _ended = stream.read(&mut [0])?;
            Ok(())
        }

        /// A queue pair for one operation at a time, with the process that
        /// [answers](Rnic::answer) at the other end of `stream`.
        pub fn queue_pair(&self, mut stream: &TcpStream) -> Result<QueuePair> {
            let prepared = self.0.prepare(NODE, 1).map_err(no_queue_pair)?;
            stream.write_all(&prepared.parameters().to_bytes())?;
            let mut answer = String::new();
            BufReader::new(stream).read_line(&mut answer)?;
            let theirs: Answer = serde_json::from_str(&answer)?;
            let theirs = ConnectionParameters::from_bytes(&theirs.map_err(no_queue_pair)?)?;
            let pair = prepared.connect(&theirs, Arc::default());
            pair.map_err(not_connected)
        }
    }

    fn no_queue_pair(error: impl Display) -> Error {
        anyhow!("an RDMA device makes no queue pair: {error}; {ROOM}")
    }

    fn not_connected(error: io::Error) -> Error {
        anyhow!("the RDMA devices do not connect: {error}; see `rdma link`")
    }
}
