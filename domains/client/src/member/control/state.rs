//! Objects that an attached process holds, by key.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use toroid_fabric::Membership;
use toroid_fabric::mem::{Memory, Status, Waker};
use toroid_fabric::{Epoch, NodeId, Partition, RemoteKey};

use super::{End, Incoming, Service};
use crate::member::regions::Regions;
use crate::member::remote::Links;

/// Objects of the process that end when membership changes.
#[derive(Debug, Default)]
pub(super) struct State {
    /// Keys of the regions of this process.
    pub(super) exports: HashSet<RemoteKey>,
    pub(super) partitions: HashMap<Partition, Membership>,
    pub(super) regions: Regions,
    pub(super) channels: HashMap<u64, OpenChannel>,
    /// Channels whose peer process has ended. Their remaining packets can be received until the
    /// node of that process leaves.
    detached: Vec<OpenChannel>,
    pub(super) links: Links,
    pub(super) listeners: HashMap<Service, Arc<Incoming>>,
}

#[derive(Debug)]
pub(super) struct OpenChannel {
    pub(super) partition: Partition,
    pub(super) peer: NodeId,
    pub(super) status: Weak<Status>,
    pub(super) waker: Waker,
}

impl State {
    /// Membership in a partition, at `epoch` or a later one.
    pub(super) fn learn_epoch(&mut self, partition: Partition, epoch: u32) -> Membership {
        let membership = self
            .partitions
            .entry(partition)
            .or_insert_with(|| Membership::at(Epoch(epoch)));
        // Release: pairs with the Acquire in `Channel::send`.
        membership.epoch.fetch_max(epoch, Ordering::Release);
        membership.clone()
    }

    /// Detaches channels whose peer process has ended.
    pub(super) fn detach_channels(&mut self, is_ended: impl Fn(&u64) -> bool) {
        self.detached
            .retain(|channel| channel.status.strong_count() > 0);
        for (_, channel) in self.channels.extract_if(|id, _| is_ended(id)) {
            channel.end(Status::peer_died);
            self.detached.push(channel);
        }
    }

    /// Ends the channels of former members, and returns their regions, which the caller has to end.
    pub(super) fn on_epoch(
        &mut self,
        partition: Partition,
        epoch: u32,
        gone: impl Fn(NodeId) -> bool,
    ) -> Vec<Arc<Memory>> {
        let stays = |channel: &mut OpenChannel| {
            let ended = channel.partition == partition && gone(channel.peer);
            if ended {
                channel.end(Status::revoke);
            }
            !ended
        };
        self.channels.retain(|_, channel| stays(channel));
        self.detached.retain_mut(stays);
        let ends = |of: Partition, peer| of == partition && gone(peer);
        self.links.end(ends, Status::revoke);
        self.learn_epoch(partition, epoch);
        self.regions.forget_peers(partition, gone)
    }

    /// Ends the listeners for which `stays` is false.
    pub(super) fn end_listeners(&mut self, stays: impl Fn(&Service) -> bool) {
        for (_, listener) in self.listeners.extract_if(|service, _| !stays(service)) {
            listener.close(End::Revoked);
        }
    }
}

impl OpenChannel {
    fn end(&self, how: fn(&Status)) {
        if let Some(status) = self.status.upgrade() {
            how(&status);
            self.waker.wake();
        }
    }
}
