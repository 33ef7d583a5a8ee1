//! Costs of the kinds of links, and the buffers behind them.

use toroid_fabric::routes::LinkKind;

use crate::sim::profile::{FLIT, LinkCosts};
use crate::sim::{Profile, Ticks};

/// Most flits of a packet.
pub const MAX_FLITS: usize = 32;

/// Classes after the kinds of links between routers.
pub const FROM_CARD: u8 = 4;
pub const TO_CARD: u8 = 5;

/// Costs of a kind of link, in ticks.
#[derive(Clone, Debug)]
pub struct Class {
    pub latency: Ticks,
    /// Time for a packet of as many flits.
    pub service: [u32; MAX_FLITS],
    /// Flits of the buffer behind the link, for each virtual channel.
    pub buffer: u32,
}

/// Costs of all kinds of links, in the order of [`LinkKind`].
pub fn classes(profile: &Profile) -> Vec<Class> {
    let most = profile.most_flits();
    let kinds = [
        LinkKind::Row,
        LinkKind::Column,
        LinkKind::Global,
        LinkKind::Torus,
    ];
    let between = kinds.map(|kind| Class::new(profile.link(kind), most, profile.link_buffer));
    let card = |latency_ns| {
        let costs = LinkCosts {
            rate: profile.nic.rate,
            latency_ns,
        };
        Class::new(costs, most, profile.nic.buffer)
    };
    let cards = [card(profile.nic.send_ns), card(profile.nic.receive_ns)];
    between.into_iter().chain(cards).collect()
}

/// Shortest service among links, for each number of flits.
pub fn fastest<'a>(classes: impl Iterator<Item = &'a Class>) -> [u32; MAX_FLITS] {
    let mut fastest = [u32::MAX; MAX_FLITS];
    for class in classes {
        for (fastest, service) in fastest.iter_mut().zip(class.service) {
            *fastest = service.min(*fastest);
        }
    }
    fastest
}

impl Class {
    /// A link with a buffer of `least` packets, or of as many as the link sends until the credits of
    /// the first one are back.
    fn new(costs: LinkCosts, most_flits: u32, least: u32) -> Self {
        let mut service = [0; MAX_FLITS];
        for (flits, ticks) in service.iter_mut().enumerate() {
            *ticks = costs.service(flits as u64 * FLIT).min(u32::MAX.into()) as u32;
        }
        let packet = Ticks::from(service[most_flits as usize]).max(1);
        let round_trip = 2 * costs.latency() + 2 * packet;
        let packets = round_trip.div_ceil(packet).max(least.into());
        Class {
            latency: costs.latency(),
            service,
            buffer: (packets * Ticks::from(most_flits)).min(u32::MAX.into()) as u32,
        }
    }
}
