//! Cost of a shrink, counted from the present state; nothing happens.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;

use toroid_fabric::{NodeId, Partition};
use toroid_model::directory::Change;
use toroid_model::info::{Acknowledging, Ending, Moving, ShrinkNeeds};

use super::{Members, RegionRecord, State};

/// Bytes of a block in file metadata.
const BLOCK: u64 = 512;

impl Members {
    /// Counts the work for leaving nodes.
    pub(crate) fn needs(&self, change: &Change) -> ShrinkNeeds {
        let state = self.lock();
        let partition = Partition(change.domain.id.into());
        let mut needs = ShrinkNeeds {
            leaving: state.places(&change.left),
            acknowledging: state.acknowledging(change),
            ending_channels: state.cut_channels(change),
            ..ShrinkNeeds::default()
        };
        let (mut moving, mut ending) = (BTreeMap::new(), BTreeMap::new());
        for record in self.regions.iter() {
            let (node, bytes) = (record.key.node, record.len);
            let sum: &mut (u32, u64) = if record.must_migrate(change) {
                needs.extra_bytes += in_use(&record);
                let written = record.memories.is_written_by(&change.left);
                moving.entry((node, written)).or_default()
            } else if record.key.partition == partition && change.left.contains(&node) {
                ending.entry(node).or_default()
            } else {
                continue;
            };
            *sum = (sum.0 + 1, sum.1 + bytes);
        }
        for ((node, written), (regions, bytes)) in moving {
            needs.moving.extend(state.place(node).map(|node| Moving {
                node,
                written,
                regions,
                bytes,
            }));
        }
        for (node, (regions, bytes)) in ending {
            needs.ending.extend(state.place(node).map(|node| Ending {
                node,
                regions,
                bytes,
            }));
        }
        needs
    }
}

impl State {
    fn place(&self, node: NodeId) -> Option<String> {
        Some(self.directory.torus().place(node)?.to_string())
    }

    fn places<'a>(&self, nodes: impl IntoIterator<Item = &'a NodeId>) -> Vec<String> {
        let places = nodes.into_iter().filter_map(|node| self.place(*node));
        places.collect()
    }

    fn acknowledging(&self, change: &Change) -> Vec<Acknowledging> {
        let mut processes = BTreeMap::<NodeId, u32>::new();
        for attachment in self.attachments.values() {
            if change.domain.members.contains_key(&attachment.node) {
                *processes.entry(attachment.node).or_default() += 1;
            }
        }
        let of = |(node, processes)| {
            let node = self.place(node)?;
            Some(Acknowledging { node, processes })
        };
        processes.into_iter().filter_map(of).collect()
    }

    fn cut_channels(&self, change: &Change) -> u32 {
        let partition = Partition(change.domain.id.into());
        let is_cut = |channel: &&super::ChannelRecord| {
            let leaves = |(_, node): &(_, NodeId)| change.left.contains(node);
            channel.partition == partition && channel.ends.iter().any(leaves)
        };
        self.channels.values().filter(is_cut).count() as u32
    }
}

/// Bytes that a copy can take: holes stay holes. Without metadata, all may be in use.
fn in_use(record: &RegionRecord) -> u64 {
    let metadata = record.memory.metadata();
    metadata.map_or(record.len, |metadata| metadata.blocks() * BLOCK)
}
