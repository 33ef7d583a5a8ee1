//! Link models of this process, and the links to its peers.
//!
//! All queue pairs, channels and mapped regions to a peer in a domain share one [`PeerLink`]. A
//! change of the model reaches them all through that link.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use toroid_fabric::emulation::{PeerLink, Routers, Way};
use toroid_fabric::model::{Path, SharedClocks};
use toroid_fabric::routing::{Leg, RouteRecords};
use toroid_fabric::{NodeId, Partition};
use toroid_model::link::{LinkModel, Mode};

/// Models by partition, and links that are in use.
#[derive(Debug, Default)]
pub(super) struct Emulation {
    models: HashMap<Partition, Emulated>,
    links: HashMap<(Partition, NodeId), Weak<PeerLink>>,
}

/// The model of a partition.
#[derive(Debug)]
struct Emulated {
    model: LinkModel,
    clocks: Arc<SharedClocks>,
    /// Where routers count; absent if routes are not chosen.
    records: Option<Arc<RouteRecords>>,
}

impl Emulation {
    /// The link from node `local` to `peer`.
    pub(super) fn link(
        &mut self,
        partition: Partition,
        local: NodeId,
        peer: NodeId,
    ) -> Arc<PeerLink> {
        let present = self.links.get(&(partition, peer));
        if let Some(link) = present.and_then(Weak::upgrade) {
            return link;
        }
        self.links.retain(|_, link| link.strong_count() > 0);
        let link = Arc::<PeerLink>::default();
        link.set(self.way(partition, local, peer));
        self.links.insert((partition, peer), Arc::downgrade(&link));
        link
    }

    /// Applies a model from the agent, with the descriptors of its clocks and, if routes are chosen,
    /// of their records. `local` is `None` before
    /// the process knows its node, when there are no links yet.
    ///
    /// # Errors
    /// The clocks cannot be mapped; then the links are the machine's.
    pub(super) fn change(
        &mut self,
        partition: Partition,
        local: Option<NodeId>,
        model: Option<LinkModel>,
        descriptors: Vec<OwnedFd>,
    ) -> io::Result<()> {
        let emulated = model
            .map(|model| Emulated::new(model, descriptors))
            .transpose();
        let result = match emulated {
            Ok(Some(emulated)) => {
                self.models.insert(partition, emulated);
                Ok(())
            }
            Ok(None) => {
                self.models.remove(&partition);
                Ok(())
            }
            Err(error) => {
                self.models.remove(&partition);
                Err(error)
            }
        };
        if let Some(local) = local {
            self.update(partition, local);
        }
        result
    }

    /// Ends the models of partitions for which `stays` is false: the node has left them.
    pub(super) fn retain(&mut self, stays: impl Fn(Partition) -> bool) {
        let ended = self.models.extract_if(|partition, _| !stays(*partition));
        let ended: Vec<Partition> = ended.map(|(partition, _)| partition).collect();
        for ((of, _), link) in &self.links {
            if ended.contains(of)
                && let Some(link) = link.upgrade()
            {
                link.set(None);
            }
        }
    }

    fn update(&self, partition: Partition, local: NodeId) {
        for ((of, peer), link) in &self.links {
            if *of == partition
                && let Some(link) = link.upgrade()
            {
                link.set(self.way(partition, local, *peer));
            }
        }
    }

    /// The routes to `peer` and back; `None` if both are the machine's.
    fn way(&self, partition: Partition, local: NodeId, peer: NodeId) -> Option<Arc<Way>> {
        let emulated = self.models.get(&partition)?;
        let Emulated { model, clocks, .. } = emulated;
        let out = model.route(local, peer, Path::Rdma);
        let (out, spin) = match model.mode(local, peer) {
            Mode::Delay => (out, None),
            Mode::Spin => (None, out),
        };
        // A peer that spins does so for its own messages. Answers to ours are not among them.
        let back = match model.mode(peer, local) {
            Mode::Delay => model.route(peer, local, Path::Rdma),
            Mode::Spin => None,
        };
        if [&out, &spin, &back].iter().all(|route| route.is_none()) {
            return None;
        }
        Some(Arc::new(Way {
            out: out.unwrap_or_default(),
            back: back.unwrap_or_default(),
            spin,
            clocks: Arc::clone(clocks),
            routers: emulated.routers(local, peer),
        }))
    }
}

impl Emulated {
    fn new(model: LinkModel, descriptors: Vec<OwnedFd>) -> io::Result<Self> {
        let mut files = descriptors.into_iter().map(File::from);
        let clocks = files.next().ok_or_else(super::regions::no_room)?;
        let records = files.next().map(|memory| RouteRecords::map(&memory));
        Ok(Emulated {
            model,
            clocks: Arc::new(SharedClocks::map(&clocks)?),
            records: records.transpose()?.map(Arc::new),
        })
    }

    /// Routers to `peer` and back, if routes are chosen. Answers take the mode of requests.
    fn routers(&self, local: NodeId, peer: NodeId) -> Option<Routers> {
        let records = self.records.as_ref()?;
        let routing = self.model.routing(local, peer);
        let router = |from, to| {
            let leg = Leg {
                from,
                to,
                path: Path::Rdma,
            };
            Some(Arc::new(self.model.router(leg, routing, records)?))
        };
        Some(Routers {
            out: router(local, peer)?,
            back: router(peer, local)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use toroid_fabric::mem::memfd::create_memory;
    use toroid_fabric::model::{Nanos, carry};
    use toroid_model::link::{DomainLinks, FabricProfile, Time, TorusLinks};

    use super::*;

    const BLUE: Partition = Partition(1);
    const RED: Partition = Partition(2);
    const LOCAL: NodeId = NodeId(0);

    /// A model in which only the links of these texts are not the machine's.
    fn model(default: &str, pairs: &[(&str, &str)]) -> Option<LinkModel> {
        let pairs = pairs.iter().map(|(pair, link)| {
            let (pair, link) = (pair.parse(), link.parse());
            (pair.unwrap(), link.unwrap())
        });
        Some(LinkModel::Pairs(DomainLinks {
            default: default.parse().unwrap(),
            pairs: pairs.collect(),
        }))
    }

    fn clocks() -> Vec<OwnedFd> {
        vec![SharedClocks::create().unwrap().into()]
    }

    fn latencies(link: &PeerLink) -> Option<[u64; 2]> {
        let way = link.way()?;
        let latency = |stage: Option<&toroid_fabric::model::Stage>| {
            stage.map_or(0, |stage| stage.costs.latency)
        };
        Some([&way.out, &way.back].map(|route| latency(route.stages.first())))
    }

    #[test]
    fn a_change_reaches_links_in_use_and_later_ones() {
        let mut emulation = Emulation::default();
        let mut link = |partition, peer| emulation.link(partition, LOCAL, NodeId(peer));
        let (near, far, other) = (link(BLUE, 1), link(BLUE, 2), link(RED, 1));
        let own = link(BLUE, 0);
        assert!(Arc::ptr_eq(&near, &link(BLUE, 1)));
        let one_way = model("", &[("1>0", "latency=5us")]);
        let mut change = |model| emulation.change(BLUE, Some(LOCAL), model, clocks());
        change(one_way).unwrap();
        assert_eq!(latencies(&near), Some([0, 5_000]));
        assert!(!far.is_on() && !other.is_on());
        change(model("latency=7us", &[("1>0", "latency=5us")])).unwrap();
        assert_eq!(latencies(&near), Some([7_000, 5_000]));
        assert_eq!(latencies(&far), Some([7_000; 2]));
        assert!(!own.is_on() && !other.is_on());
        let later = emulation.link(BLUE, LOCAL, NodeId(3));
        assert_eq!(latencies(&later), Some([7_000; 2]));

        emulation
            .change(BLUE, Some(LOCAL), None, Vec::new())
            .unwrap();
        assert!(!near.is_on() && !far.is_on() && !later.is_on());
    }

    /// Arrivals of messages to all nodes of a loaded torus, and of messages back, on a virtual clock.
    fn arrivals(links: &str) -> Vec<[Nanos; 2]> {
        let model = LinkModel::Torus(TorusLinks {
            profile: FabricProfile::bgp(),
            torus: "4x4x2".parse().unwrap(),
            base: Time(0),
            links: Box::new(DomainLinks {
                default: links.parse().unwrap(),
                ..DomainLinks::default()
            }),
        });
        let memory = [clocks(), clocks()].into_iter().flatten();
        let memory = memory.take(if links.is_empty() { 1 } else { 2 }).collect();
        let mut emulation = Emulation::default();
        emulation
            .change(BLUE, Some(LOCAL), Some(model), memory)
            .unwrap();
        let mut random = fastrand::Rng::with_seed(1);
        let mut now = 0;
        let messages = (0..2_000).map(|_| {
            now += random.u64(..2_000);
            let link = emulation.link(BLUE, LOCAL, NodeId(random.u32(1..32)));
            let (way, bytes) = (link.way().unwrap(), random.u64(..20_000));
            let back = carry(&way.back, &*way.clocks, now, bytes, 0).arrival;
            [way.carry_out(now, bytes, &mut random), back]
        });
        messages.collect()
    }

    #[test]
    fn routing_off_delays_messages_as_a_torus_without_a_choice_of_routes() {
        let without = arrivals("");
        assert_eq!(arrivals("routing=off"), without);
        assert_ne!(arrivals("routing=nmin-hash"), without);
    }

    #[test]
    fn a_gateway_or_mode_alone_leaves_rdma_to_the_machine() {
        let mut emulation = Emulation::default();
        let near = emulation.link(BLUE, LOCAL, NodeId(1));
        let gateway = "gateway=1ms,1Gbit direct-above=1Mbit idle=1s";
        for (extra, is_on) in [("", false), ("mode=delay", false), ("rate=1Gbit", true)] {
            let model = model(&format!("{gateway} {extra}"), &[]);
            emulation
                .change(BLUE, Some(LOCAL), model, clocks())
                .unwrap();
            assert_eq!(near.is_on(), is_on, "{extra}");
        }
    }

    #[test]
    fn the_sender_spins_instead_of_the_way_out() {
        let mut emulation = Emulation::default();
        let [near, far, last] = [1, 2, 3].map(|peer| emulation.link(BLUE, LOCAL, NodeId(peer)));
        let pairs = [
            ("2>0", "latency=+9us mode=delay"),
            ("0>3", "latency=+9us mode=delay"),
        ];
        let spin = model("latency=+7us mode=spin", &pairs);
        emulation.change(BLUE, Some(LOCAL), spin, clocks()).unwrap();
        let spins = |link: &PeerLink| {
            let way = link.way().unwrap();
            way.spin.as_ref().map(|spin| spin.stages[0].costs.latency)
        };
        assert_eq!(
            (latencies(&near), spins(&near)),
            (Some([0, 0]), Some(7_000))
        );
        assert_eq!(
            (latencies(&far), spins(&far)),
            (Some([0, 9_000]), Some(7_000))
        );
        assert_eq!((latencies(&last), spins(&last)), (Some([9_000, 0]), None));
        // Only the peer spins.
        let peers = model("", &[("1>0", "latency=+7us mode=spin")]);
        emulation
            .change(BLUE, Some(LOCAL), peers, clocks())
            .unwrap();
        assert!(!near.is_on());
    }

    #[test]
    fn links_are_the_machines_without_clocks_and_after_the_node_has_left() {
        let mut emulation = Emulation::default();
        let link = emulation.link(BLUE, LOCAL, NodeId(1));
        let short = create_memory(4096).unwrap();
        for descriptors in [Vec::new(), vec![short.into()]] {
            emulation
                .change(BLUE, Some(LOCAL), model("latency=7us", &[]), clocks())
                .unwrap();
            assert!(link.is_on());
            let wrong = model("latency=9us", &[]);
            emulation
                .change(BLUE, Some(LOCAL), wrong, descriptors)
                .unwrap_err();
            assert!(!link.is_on());
        }
        // Before the process knows its node.
        for partition in [BLUE, RED] {
            emulation
                .change(partition, None, model("latency=7us", &[]), clocks())
                .unwrap();
        }
        let [blue, red] = [BLUE, RED].map(|of| emulation.link(of, LOCAL, NodeId(2)));
        assert!(blue.is_on() && red.is_on());
        emulation.retain(|partition| partition == RED);
        assert!(!blue.is_on() && red.is_on());
        assert!(!emulation.link(BLUE, LOCAL, NodeId(3)).is_on());
    }
}
