//! Control of the RDMA device at the peer's host, for a provider that uses it beside the connection.

use super::in_flight::InFlight;
use super::queue_pair::QueuePair;
use super::region::RemoteRegion;
use super::wire::Request;
use crate::core::endpoint::{AsRegion, Endpoint, Operation};
use crate::core::parameters::{ConnectionParameters, RegionParameters};
use crate::error::OpError;
use crate::key::Partition;
use crate::topology::NodeId;

impl<R: AsRegion<RemoteRegion>> QueuePair<R> {
    /// The node and partition that the queue pair leads to.
    pub fn peer_and_partition(&self) -> (NodeId, Partition) {
        (self.peer, self.partition)
    }

    /// Checks whether the right to execute an operation has ended.
    ///
    /// # Errors
    /// How it ended.
    pub fn end_of(&self, operation: &Operation<R>) -> Result<(), OpError> {
        self.status.check()?;
        operation.remote().as_region()?.status().check()
    }

    /// Connects the device of the peer's host with a queue pair of ours that has these parameters;
    /// waits for the reply.
    ///
    /// # Errors
    /// The peer's host refuses: `EOPNOTSUPP` when it has no device. How the connection ended.
    pub fn connect(&mut self, ours: ConnectionParameters) -> Result<ConnectionParameters, OpError> {
        let answer = self.ask(Request::Connect(ours))?;
        ConnectionParameters::from_bytes(&answer).map_err(|_| self.break_off())
    }

    /// The handle under which a region is open at the peer's host, if it is.
    pub fn handle_of(&self, remote: &RemoteRegion) -> Option<u32> {
        self.handles.find(&remote.0)
    }

    /// Registers a region with the connected device; waits for the reply.
    ///
    /// # Errors
    /// The peer's host refuses: `EAGAIN` to try again later. How the connection ended.
    pub fn register(&mut self, remote: &RemoteRegion) -> Result<RegionParameters, OpError> {
        self.flush();
        let handle = self.reach(remote, 0, 0)?;
        let answer = self.ask(Request::Register { handle })?;
        match RegionParameters::from_bytes(&answer) {
            Ok(region)
                if (region.key, region.len) == (remote.key(), remote.len())
                    && remote.access().contains(region.access) =>
            {
                Ok(region)
            }
            _ => Err(self.break_off()),
        }
    }

    /// Disconnects the device. The peer's host executes later requests only after our queue pair
    /// reaches nothing any more.
    pub fn disconnect(&mut self) {
        if self.broken.is_none() {
            let bytes = Request::Disconnect.to_bytes();
            self.stream.outgoing().extend(bytes);
            self.push_out();
        }
    }

    /// The `N` bytes with which the peer's host replies.
    fn ask<const N: usize>(&mut self, request: Request) -> Result<[u8; N], OpError> {
        self.flush();
        self.end()?;
        self.stream.outgoing().extend(request.to_bytes());
        self.in_flight.push_back(InFlight::Question);
        self.settle();
        self.end()?;
        let answer = std::mem::replace(&mut self.answer, Ok(Vec::new()))?;
        <[u8; N]>::try_from(answer).map_err(|_| self.break_off())
    }

    fn break_off(&mut self) -> OpError {
        self.fail(OpError::Corrupt);
        OpError::Corrupt
    }
}
