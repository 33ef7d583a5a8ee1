//! On `shm` and `tcp` behind emulated links.

use tests::conformance::{PARTITION, Provided, Remote, THERE};
use toroid_fabric::provider::{Channel, QueuePair, RemoteRegion};
use toroid_fabric::shm;

use crate::shm::Shm;
use crate::tcp::Tcp;

impl Provided for Shm {
    fn region(region: Remote<Self>) -> RemoteRegion {
        RemoteRegion::Shm(region)
    }

    fn queue_pair(&self, depth: usize) -> QueuePair {
        QueuePair::Shm(shm::QueuePair::new(THERE, PARTITION, depth))
    }

    fn end(channel: Self::Channel) -> Channel {
        Channel::Shm(channel)
    }
}

impl Provided for Tcp {
    fn region(region: Remote<Self>) -> RemoteRegion {
        RemoteRegion::Tcp(region)
    }

    fn queue_pair(&self, depth: usize) -> QueuePair {
        QueuePair::Tcp(Box::new(self.endpoint_to(THERE, depth)))
    }

    fn end(channel: Self::Channel) -> Channel {
        Channel::Tcp(Box::new(channel))
    }
}

mod on_shm {
    tests::conformance!(@emulated crate::shm::Shm);
}

mod on_tcp {
    tests::conformance!(@emulated crate::tcp::Tcp);
}
