//! Providers: what a consumer asks of each, and one type over all of them.
//!
//! [`Provider`] is the seam at which code is generic over what carries its operations and packets.
//! [`RemoteRegion`], [`QueuePair`] and [`Channel`] are for programs whose peers may be on this host
//! or on another: each is one provider's, so a call costs one comparison. A region of one provider
//! is the wrong key for a queue pair of another.
//!
//! A new provider is a folder beside the others and a line in each of the tables below, unless
//! another provider wraps it, as `failover` wraps `verbs`.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::core::channel::{ChannelError, PacketChannel};
use crate::core::endpoint::{AsRegion, Completion, Endpoint, Operation, Pending, PostError, Read};
use crate::core::hold::Hold;
use crate::core::link::Protocol;
use crate::core::mapped::Mapped;
use crate::error::OpError;
#[cfg(feature = "verbs")]
use crate::failover;
use crate::key::{Access, Partition, RemoteKey};
use crate::mem::Waker;
use crate::topology::NodeId;
use crate::{shm, tcp};

/// One node's access to the regions and processes of its peers in one partition.
pub trait Provider {
    /// A region of a peer. Clones are handles to the same.
    type Region: Clone + Send + Sync + 'static;
    /// A queue pair to a peer.
    type QueuePair: Endpoint<Remote = Self::Region>;
    /// A packet channel to a process of a peer.
    type Channel: PacketChannel;
    /// Why access is not granted.
    type Error: std::error::Error;

    /// Opens a region that a peer has published, with some or all of the rights that it grants.
    ///
    /// # Errors
    /// The key is wrong, a right is not granted, one of the two nodes is not a member, or the system
    /// has no room.
    fn open(&self, key: RemoteKey, access: Access) -> Result<Self::Region, Self::Error>;

    /// A queue pair to `peer` for up to `depth` operations that are posted or not yet polled.
    ///
    /// # Errors
    /// One of the two nodes is not a member, or the system has no room.
    fn queue_pair(&self, peer: NodeId, depth: usize) -> Result<Self::QueuePair, Self::Error>;

    /// A packet channel to the process of `peer` that listens for `protocol`.
    ///
    /// # Errors
    /// No process listens, one of the two nodes is not a member, or the system has no room.
    fn channel(&self, peer: NodeId, protocol: Protocol) -> Result<Self::Channel, Self::Error>;
}

macro_rules! regions {
    ($($(#[doc = $doc:literal])* $(#[cfg($cfg:meta)])? $Provider:ident($Region:ty)),+ $(,)?) => {
        /// A peer's region.
        #[derive(Clone, Debug)]
        pub enum RemoteRegion {
            $($(#[doc = $doc])* $(#[cfg($cfg)])? $Provider($Region),)+
        }

        impl RemoteRegion {
            /// Bytes of the region.
            #[allow(clippy::len_without_is_empty)]
            pub fn len(&self) -> u64 {
                match self {
                    $($(#[cfg($cfg)])? RemoteRegion::$Provider(region) => region.len(),)+
                }
            }

            /// The key that it was opened with.
            pub fn key(&self) -> RemoteKey {
                match self {
                    $($(#[cfg($cfg)])? RemoteRegion::$Provider(region) => region.key(),)+
                }
            }

            /// The rights granted.
            pub fn access(&self) -> Access {
                match self {
                    $($(#[cfg($cfg)])? RemoteRegion::$Provider(region) => region.access(),)+
                }
            }
        }

        $(
            $(#[cfg($cfg)])?
            impl AsRegion<$Region> for RemoteRegion {
                #[inline]
                fn as_region(&self) -> Result<&$Region, OpError> {
                    match self {
                        RemoteRegion::$Provider(region) => Ok(region),
                        _ => Err(OpError::WrongKey),
                    }
                }
            }
        )+

        /// Only regions of this host are mapped; others are read through a queue pair.
        impl Mapped for RemoteRegion {
            fn is_mapped(&self) -> bool {
                match self {
                    $($(#[cfg($cfg)])? RemoteRegion::$Provider(region) => region.is_mapped(),)+
                }
            }

            fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OpError> {
                match self {
                    $($(#[cfg($cfg)])? RemoteRegion::$Provider(region) => region.read(offset, into),)+
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
                    $($(#[cfg($cfg)])? RemoteRegion::$Provider(region) => {
                        region.fold(offset, len, start, each)
                    })+
                }
            }

            fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), OpError> {
                match self {
                    $($(#[cfg($cfg)])? RemoteRegion::$Provider(region) => region.write(offset, bytes),)+
                }
            }

            fn fetch_ahead(&self, offset: u64) {
                match self {
                    $($(#[cfg($cfg)])? RemoteRegion::$Provider(region) => region.fetch_ahead(offset),)+
                }
            }
        }
    };
}

macro_rules! paths {
    ($($(#[doc = $doc:literal])* $(#[cfg($cfg:meta)])? $Provider:ident { $QueuePair:ty, $Channel:ty }),+ $(,)?) => {
        /// A queue pair to a peer.
        #[derive(Debug)]
        pub enum QueuePair {
            $($(#[doc = $doc])* $(#[cfg($cfg)])? $Provider($QueuePair),)+
        }

        impl QueuePair {
            /// Operations that the queue holds at most, and now.
            pub(crate) fn room(&self) -> (usize, usize) {
                match self {
                    $($(#[cfg($cfg)])? QueuePair::$Provider(pair) => pair.room(),)+
                }
            }

            /// As [`Endpoint::post`], for one that does more: a call would copy the operation.
            #[inline(always)]
            pub(crate) fn post_inlined(
                &mut self,
                id: u64,
                operation: Operation<RemoteRegion>,
            ) -> Result<(), PostError> {
                match self {
                    $($(#[cfg($cfg)])? QueuePair::$Provider(pair) => pair.post(id, operation),)+
                }
            }
        }

        impl Endpoint for QueuePair {
            type Remote = RemoteRegion;

            fn peer(&self) -> NodeId {
                match self {
                    $($(#[cfg($cfg)])? QueuePair::$Provider(pair) => pair.peer(),)+
                }
            }

            fn partition(&self) -> Partition {
                match self {
                    $($(#[cfg($cfg)])? QueuePair::$Provider(pair) => pair.partition(),)+
                }
            }

            // Inlined into code of callers, it would copy the operation for each variant first.
            #[inline(never)]
            fn post(&mut self, id: u64, operation: Operation<RemoteRegion>) -> Result<(), PostError> {
                self.post_inlined(id, operation)
            }

            fn flush(&mut self) {
                match self {
                    $($(#[cfg($cfg)])? QueuePair::$Provider(pair) => pair.flush(),)+
                }
            }

            fn poll(&mut self, into: &mut [Completion]) -> usize {
                match self {
                    $($(#[cfg($cfg)])? QueuePair::$Provider(pair) => pair.poll(into),)+
                }
            }

            fn wait(&mut self, timeout: Duration) -> bool {
                match self {
                    $($(#[cfg($cfg)])? QueuePair::$Provider(pair) => pair.wait(timeout),)+
                }
            }

            fn pending(&mut self, sleeps: bool) -> Pending {
                match self {
                    $($(#[cfg($cfg)])? QueuePair::$Provider(pair) => pair.pending(sleeps),)+
                }
            }

            fn read_batch(&mut self, reads: &mut [Read<'_, RemoteRegion>]) -> Result<(), OpError> {
                match self {
                    $($(#[cfg($cfg)])? QueuePair::$Provider(pair) => pair.read_batch(reads),)+
                }
            }
        }

        /// A packet channel to a peer.
        #[derive(Debug)]
        // Another indirection would cost every packet between nodes of one host.
        #[allow(clippy::large_enum_variant)]
        pub enum Channel {
            $($(#[doc = $doc])* $(#[cfg($cfg)])? $Provider($Channel),)+
        }

        impl PacketChannel for Channel {
            fn peer(&self) -> NodeId {
                match self {
                    $($(#[cfg($cfg)])? Channel::$Provider(channel) => channel.peer(),)+
                }
            }

            fn partition(&self) -> Partition {
                match self {
                    $($(#[cfg($cfg)])? Channel::$Provider(channel) => channel.partition(),)+
                }
            }

            fn send_held(&mut self, parts: &[&[u8]], hold: Hold) -> Result<(), ChannelError> {
                match self {
                    $($(#[cfg($cfg)])? Channel::$Provider(channel) => channel.send_held(parts, hold),)+
                }
            }

            fn receive_held(&mut self, into: &mut Vec<u8>) -> Result<Option<Hold>, ChannelError> {
                match self {
                    $($(#[cfg($cfg)])? Channel::$Provider(channel) => channel.receive_held(into),)+
                }
            }

            fn observe(&mut self) -> Result<(), ChannelError> {
                match self {
                    $($(#[cfg($cfg)])? Channel::$Provider(channel) => channel.observe(),)+
                }
            }

            fn wait(&mut self, timeout: Duration) {
                match self {
                    $($(#[cfg($cfg)])? Channel::$Provider(channel) => channel.wait(timeout),)+
                }
            }

            fn wake_fd(&self) -> BorrowedFd<'_> {
                match self {
                    $($(#[cfg($cfg)])? Channel::$Provider(channel) => channel.wake_fd(),)+
                }
            }

            fn arm_for(&mut self, packets: bool) -> bool {
                match self {
                    $($(#[cfg($cfg)])? Channel::$Provider(channel) => channel.arm_for(packets),)+
                }
            }

            fn disarm(&mut self) {
                match self {
                    $($(#[cfg($cfg)])? Channel::$Provider(channel) => channel.disarm(),)+
                }
            }
        }
    };
}

impl Channel {
    /// A waker that signals the descriptor of the channel.
    ///
    /// # Errors
    /// The system's: no descriptor left.
    pub(crate) fn waker(&mut self) -> io::Result<Waker> {
        match self {
            Channel::Shm(channel) => Ok(channel.waker()),
            Channel::Tcp(channel) => channel.waker(),
            #[cfg(feature = "verbs")]
            Channel::Failover(channel) => channel.waker(),
        }
    }
}

regions! {
    /// Of a node of this host.
    Shm(shm::RemoteRegion),
    /// Of a node of another host, also with `failover`.
    Tcp(tcp::RemoteRegion),
}

paths! {
    /// To a node of this host.
    Shm { shm::QueuePair<RemoteRegion>, shm::Channel },
    /// To a node of another host.
    Tcp { Box<tcp::QueuePair<RemoteRegion>>, Box<tcp::Channel> },
    /// To a node of another host, by the RDMA devices of both where they work.
    #[cfg(feature = "verbs")]
    Failover { Box<failover::QueuePair<RemoteRegion>>, Box<failover::Channel> },
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
