//! One type over all providers: for who does not care how far away a peer is.
//!
//! Each is one of its provider's, so what it costs is to look which. What was made by one provider
//! leads nowhere by another: it is the wrong key.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::core::channel::{ChannelError, PacketChannel};
use crate::core::endpoint::{Completion, Endpoint, Operation, PostError, Read};
use crate::core::mapped::Mapped;
use crate::error::OpError;
#[cfg(feature = "verbs")]
use crate::failover;
use crate::key::{Access, Partition, RemoteKey};
use crate::topology::NodeId;
use crate::{shm, tcp};

/// A peer's region.
#[derive(Clone, Debug)]
pub enum RemoteRegion {
    /// Of a node of this host.
    Shm(shm::RemoteRegion),
    /// Of a node of another host.
    Tcp(tcp::RemoteRegion),
}

impl RemoteRegion {
    /// Bytes of the region.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        match self {
            RemoteRegion::Shm(region) => region.len(),
            RemoteRegion::Tcp(region) => region.len(),
        }
    }

    /// The key that it was opened with.
    pub fn key(&self) -> RemoteKey {
        match self {
            RemoteRegion::Shm(region) => region.key(),
            RemoteRegion::Tcp(region) => region.key(),
        }
    }

    /// The rights granted.
    pub fn access(&self) -> Access {
        match self {
            RemoteRegion::Shm(region) => region.access(),
            RemoteRegion::Tcp(region) => region.access(),
        }
    }

    fn into_tcp(self) -> Result<tcp::RemoteRegion, OpError> {
        match self {
            RemoteRegion::Tcp(region) => Ok(region),
            RemoteRegion::Shm(_) => Err(OpError::WrongKey),
        }
    }

    fn as_tcp(&self) -> Result<&tcp::RemoteRegion, OpError> {
        match self {
            RemoteRegion::Tcp(region) => Ok(region),
            RemoteRegion::Shm(_) => Err(OpError::WrongKey),
        }
    }
}

impl shm::AsShm for RemoteRegion {
    #[inline]
    fn as_shm(&self) -> Result<&shm::RemoteRegion, OpError> {
        match self {
            RemoteRegion::Shm(region) => Ok(region),
            RemoteRegion::Tcp(_) => Err(OpError::WrongKey),
        }
    }
}

/// Only regions of this host are; others are read through a queue pair.
impl Mapped for RemoteRegion {
    fn is_mapped(&self) -> bool {
        matches!(self, RemoteRegion::Shm(_))
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OpError> {
        match self {
            RemoteRegion::Shm(region) => region.read(offset, into),
            RemoteRegion::Tcp(_) => Err(OpError::NotMapped),
        }
    }

    fn fold<A: Clone>(
        &self,
        offset: u64,
        len: u64,
        start: A,
        each: impl Fn(&mut A, &[u8]),
    ) -> Result<A, OpError> {
        match self {
            RemoteRegion::Shm(region) => region.fold(offset, len, start, each),
            RemoteRegion::Tcp(_) => Err(OpError::NotMapped),
        }
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), OpError> {
        match self {
            RemoteRegion::Shm(region) => region.write(offset, bytes),
            RemoteRegion::Tcp(_) => Err(OpError::NotMapped),
        }
    }

    fn fetch_ahead(&self, offset: u64) {
        if let RemoteRegion::Shm(region) = self {
            region.fetch_ahead(offset);
        }
    }
}

/// A queue pair to a peer.
#[derive(Debug)]
pub enum QueuePair {
    /// To a node of this host.
    Shm(shm::QueuePair<RemoteRegion>),
    /// To a node of another host.
    Tcp(Box<tcp::QueuePair>),
    /// To a node of another host, by its RDMA device and ours where that can be.
    #[cfg(feature = "verbs")]
    Failover(Box<failover::QueuePair>),
}

impl Endpoint for QueuePair {
    type Remote = RemoteRegion;

    fn peer(&self) -> NodeId {
        match self {
            QueuePair::Shm(pair) => pair.peer(),
            QueuePair::Tcp(pair) => pair.peer(),
            #[cfg(feature = "verbs")]
            QueuePair::Failover(pair) => pair.peer(),
        }
    }

    fn partition(&self) -> Partition {
        match self {
            QueuePair::Shm(pair) => pair.partition(),
            QueuePair::Tcp(pair) => pair.partition(),
            #[cfg(feature = "verbs")]
            QueuePair::Failover(pair) => pair.partition(),
        }
    }

    fn post(&mut self, id: u64, operation: Operation<RemoteRegion>) -> Result<(), PostError> {
        match self {
            QueuePair::Shm(pair) => pair.post(id, operation),
            QueuePair::Tcp(pair) => pair.post_checked(id, operation.on(RemoteRegion::into_tcp)),
            #[cfg(feature = "verbs")]
            QueuePair::Failover(pair) => {
                pair.post_checked(id, operation.on(RemoteRegion::into_tcp))
            }
        }
    }

    fn flush(&mut self) {
        match self {
            QueuePair::Shm(pair) => pair.flush(),
            QueuePair::Tcp(pair) => pair.flush(),
            #[cfg(feature = "verbs")]
            QueuePair::Failover(pair) => pair.flush(),
        }
    }

    fn poll(&mut self, into: &mut [Completion]) -> usize {
        match self {
            QueuePair::Shm(pair) => pair.poll(into),
            QueuePair::Tcp(pair) => pair.poll(into),
            #[cfg(feature = "verbs")]
            QueuePair::Failover(pair) => pair.poll(into),
        }
    }

    fn wait(&mut self, timeout: Duration) -> bool {
        match self {
            QueuePair::Shm(pair) => pair.wait(timeout),
            QueuePair::Tcp(pair) => pair.wait(timeout),
            #[cfg(feature = "verbs")]
            QueuePair::Failover(pair) => pair.wait(timeout),
        }
    }

    fn read_batch(&mut self, reads: &mut [Read<'_, RemoteRegion>]) -> Result<(), OpError> {
        match self {
            QueuePair::Shm(pair) => pair.read_batch(reads),
            QueuePair::Tcp(pair) => pair.read_each(reads, RemoteRegion::as_tcp),
            #[cfg(feature = "verbs")]
            QueuePair::Failover(pair) => pair.read_each(reads, RemoteRegion::as_tcp),
        }
    }
}

/// A packet channel to a peer.
#[derive(Debug)]
// Another indirection would cost every packet between nodes of one host.
#[allow(clippy::large_enum_variant)]
pub enum Channel {
    /// To a node of this host.
    Shm(shm::Channel),
    /// To a node of another host.
    Tcp(Box<tcp::Channel>),
    /// To a node of another host, by its RDMA device and ours where that can be.
    #[cfg(feature = "verbs")]
    Failover(Box<failover::Channel>),
}

impl PacketChannel for Channel {
    fn peer(&self) -> NodeId {
        match self {
            Channel::Shm(channel) => channel.peer(),
            Channel::Tcp(channel) => channel.peer(),
            #[cfg(feature = "verbs")]
            Channel::Failover(channel) => channel.peer(),
        }
    }

    fn partition(&self) -> Partition {
        match self {
            Channel::Shm(channel) => channel.partition(),
            Channel::Tcp(channel) => channel.partition(),
            #[cfg(feature = "verbs")]
            Channel::Failover(channel) => channel.partition(),
        }
    }

    fn send(&mut self, parts: &[&[u8]]) -> Result<(), ChannelError> {
        match self {
            Channel::Shm(channel) => channel.send(parts),
            Channel::Tcp(channel) => channel.send(parts),
            #[cfg(feature = "verbs")]
            Channel::Failover(channel) => channel.send(parts),
        }
    }

    fn receive(&mut self, into: &mut Vec<u8>) -> Result<bool, ChannelError> {
        match self {
            Channel::Shm(channel) => channel.receive(into),
            Channel::Tcp(channel) => channel.receive(into),
            #[cfg(feature = "verbs")]
            Channel::Failover(channel) => channel.receive(into),
        }
    }

    fn wait(&mut self, timeout: Duration) {
        match self {
            Channel::Shm(channel) => channel.wait(timeout),
            Channel::Tcp(channel) => channel.wait(timeout),
            #[cfg(feature = "verbs")]
            Channel::Failover(channel) => channel.wait(timeout),
        }
    }

    fn wake_fd(&self) -> BorrowedFd<'_> {
        match self {
            Channel::Shm(channel) => channel.wake_fd(),
            Channel::Tcp(channel) => channel.wake_fd(),
            #[cfg(feature = "verbs")]
            Channel::Failover(channel) => channel.wake_fd(),
        }
    }

    fn arm(&mut self) -> bool {
        match self {
            Channel::Shm(channel) => channel.arm(),
            Channel::Tcp(channel) => channel.arm(),
            #[cfg(feature = "verbs")]
            Channel::Failover(channel) => channel.arm(),
        }
    }

    fn disarm(&mut self) {
        match self {
            Channel::Shm(channel) => channel.disarm(),
            Channel::Tcp(channel) => channel.disarm(),
            #[cfg(feature = "verbs")]
            Channel::Failover(channel) => channel.disarm(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::thread;

    use super::*;
    use crate::core::region::Region;
    use crate::key::RegionId;
    use crate::mem::memfd::create_memory;

    const KEY: RemoteKey = RemoteKey {
        node: NodeId(1),
        partition: Partition(7),
        id: RegionId(0),
        secret: [0; 16],
    };

    struct Host(shm::RemoteRegion);

    impl tcp::Regions for Host {
        fn open(&self, _: RemoteKey, _: Access) -> Result<tcp::Opened, OpError> {
            Ok(self.0.clone().into())
        }
    }

    /// The same region by both providers, and a queue pair of each.
    fn both() -> [(RemoteRegion, QueuePair); 2] {
        let memory = create_memory(64).unwrap();
        let (all, status) = (Access::all(), Arc::default());
        let mapped = shm::RemoteRegion::map(&memory, 64, KEY, all, status, None).unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let host = Host(mapped.clone());
        thread::spawn(move || tcp::serve(OwnedFd::from(theirs), &host));
        let near = shm::QueuePair::new(KEY.node, KEY.partition, 4);
        let mut far = tcp::QueuePair::new(
            OwnedFd::from(ours),
            KEY.node,
            KEY.partition,
            4,
            Arc::default(),
        );
        let opened = far.open(KEY, all, Arc::default(), None).unwrap();
        [
            (RemoteRegion::Shm(mapped), QueuePair::Shm(near)),
            (RemoteRegion::Tcp(opened), QueuePair::Tcp(Box::new(far))),
        ]
    }

    fn run(pair: &mut QueuePair, operation: Operation<RemoteRegion>) -> Result<u64, OpError> {
        pair.post(1, operation).unwrap();
        pair.flush();
        let mut done = [Completion::default()];
        while pair.poll(&mut done) == 0 {
            pair.wait(Duration::from_secs(20));
        }
        done[0].result
    }

    #[test]
    fn each_provider_does_its_own_operations_and_refuses_the_others() {
        let local = Region::local(64).unwrap();
        let [(mapped, mut near), (opened, mut far)] = both();
        let operations = |remote: &RemoteRegion| {
            [
                Operation::write(remote, 0, &local, 0..64),
                Operation::read(remote, 0, &local, 0..64),
                Operation::compare_and_swap(remote, 0, 0, 64),
                Operation::fetch_add(remote, 8, 64),
            ]
        };
        for (pair, own, other) in [(&mut near, &mapped, &opened), (&mut far, &opened, &mapped)] {
            assert_eq!(
                (own.len(), own.key(), own.access()),
                (64, KEY, Access::all())
            );
            for operation in operations(own) {
                assert!(run(pair, operation).is_ok());
            }
            for operation in operations(other) {
                assert_eq!(run(pair, operation), Err(OpError::WrongKey));
            }
            for (remote, result) in [(own, Ok(())), (other, Err(OpError::WrongKey))] {
                let into = &mut [0; 8];
                let read = Read {
                    remote,
                    offset: 0,
                    into,
                };
                assert_eq!(pair.read_batch(&mut [read]), result);
            }
            // Both are the same memory.
            local.write(0, &[0; 64]).unwrap();
        }
    }

    #[test]
    fn only_what_is_here_is_mapped() {
        let [(mapped, _), (opened, _)] = both();
        assert!(mapped.is_mapped() && !opened.is_mapped());
        assert_eq!(mapped.write(0, b"here"), Ok(()));
        assert_eq!(opened.write(0, b"here"), Err(OpError::NotMapped));
        assert_eq!(mapped.read(0, &mut [0; 4]), Ok(()));
        assert_eq!(opened.read(0, &mut [0; 4]), Err(OpError::NotMapped));
    }
}
