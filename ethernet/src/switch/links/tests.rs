//! Ways of frames without a switch.

use toroid_fabric::Torus;
use toroid_model::link::{FabricProfile, Time, TorusLinks};

use super::*;

const BLUE: Partition = Partition(7);
const A: NodeId = NodeId(0);
const B: NodeId = NodeId(1);
const C: NodeId = NodeId(2);
const NOW: Nanos = 10_000_000_000;
const GATEWAY: &str = "gateway=5s,5Gbit direct-above=200Mbit idle=100ms";

fn links(all: &str) -> Links {
    modeled(LinkModel::Pairs(of_all(all)), None)
}

fn of_all(all: &str) -> toroid_model::link::DomainLinks {
    toroid_model::link::DomainLinks {
        default: all.parse().unwrap(),
        ..toroid_model::link::DomainLinks::default()
    }
}

fn modeled(model: LinkModel, records: Option<Arc<RouteRecords>>) -> Links {
    let clocks = SharedClocks::map(&SharedClocks::create().unwrap()).unwrap();
    let mut links = Links::default();
    links.set(
        BLUE,
        Some(ModeledLinks {
            model,
            clocks,
            records,
        }),
    );
    links
}

/// Whether a packet of so many bytes goes direct.
fn is_direct(links: &mut Links, (from, to): (NodeId, NodeId), bytes: u64) -> bool {
    let domain = links.domains.get_mut(&BLUE).unwrap();
    let way = domain.way(from, to, false).unwrap();
    domain.path(way, NOW, 1, || bytes) == way
}

#[test]
fn a_departure_forgets_the_flows_of_the_node_only() {
    let mut links = links(GATEWAY);
    for flow in [(A, B), (B, C)] {
        assert!(!is_direct(&mut links, flow, 3_000_000));
        assert!(is_direct(&mut links, flow, 60));
    }
    links.forget_flows(BLUE, A);
    assert!(!is_direct(&mut links, (A, B), 60));
    assert!(is_direct(&mut links, (B, C), 60));
}

#[test]
fn external_frames_take_no_gateway() {
    let mut links = links(GATEWAY);
    let domain = links.domains.get_mut(&BLUE).unwrap();
    let [inside, outside] = [false, true].map(|is_external| {
        let way = domain.way(A, B, is_external).unwrap();
        domain.ways[way].detour.is_some()
    });
    assert!(inside && !outside);
}

#[test]
fn direct_frames_wait_for_those_in_the_gateway_and_pass_at_once_without() {
    let mut links = links(GATEWAY);
    let link = Link {
        partition: BLUE,
        from: End::Outside,
        to: End::Outside,
    };
    let blue = links.of(BLUE).unwrap();
    let direct = blue.domain.way(A, B, false).unwrap();
    let detour = blue.domain.ways[direct].detour.as_ref().unwrap().way;
    assert!(blue.pass_at_once(&link, &[direct]));
    assert!(!blue.pass_at_once(&link, &[detour]));
    let mut push = |due| {
        let frame = Frame {
            packet: vec![0; 60],
            sent: NOW,
            due,
            ahead: None,
            clock: None,
        };
        blue.line.push(link, frame);
        let (is_first, is_full) = (
            blue.pass_at_once(&link, &[direct]),
            blue.is_full(&link, &[direct], NOW, 60, 1),
        );
        (is_first, is_full)
    };
    // Alone in the gateway, behind others, and behind too many.
    assert_eq!(push(NOW + 5_000_000_000), (false, false));
    assert_eq!(push(NOW + 8_900_000_000), (false, false));
    assert_eq!(push(NOW + 9_100_000_000), (false, true));

    for pays in ["latency=1us", "rate=1Gbit", "loss=1%"] {
        let mut links = self::links(&format!("{GATEWAY} {pays}"));
        let blue = links.of(BLUE).unwrap();
        let direct = blue.domain.way(A, B, false).unwrap();
        assert!(!blue.pass_at_once(&link, &[direct]), "{pays}");
    }
}

/// Arrivals of frames between all nodes of a loaded torus, in their order, on a virtual clock.
fn arrivals(all: &str) -> Vec<(Nanos, Link)> {
    let torus: Torus = "4x4x2".parse().unwrap();
    let model = LinkModel::Torus(TorusLinks {
        profile: FabricProfile::bgp(),
        torus,
        base: Time(0),
        links: Box::new(of_all(all)),
    });
    let records = || RouteRecords::map(&SharedClocks::create().unwrap()).unwrap();
    let records = (!all.is_empty()).then(|| Arc::new(records()));
    let mut links = modeled(model, records);
    let mut random = fastrand::Rng::with_seed(1);
    let (mut now, mut arrived) = (NOW, Vec::new());
    for _ in 0..2_000 {
        now += random.u64(..2_000);
        let [from, to] = [(); 2].map(|()| random.u32(..32));
        let bytes = random.u64(60..9_000);
        let domain = links.domains.get_mut(&BLUE).unwrap();
        let Some(way) = domain.way(NodeId(from), NodeId(to), false) else {
            continue;
        };
        let way = domain.path(way, now, 1, || bytes);
        let Arrival { due, ahead } = domain.charge(&[way], now, bytes, &mut random).unwrap();
        let [from, to] = [from, to].map(|node| End::Member(torus.place(NodeId(node)).unwrap()));
        let frame = Frame {
            packet: Vec::new(),
            sent: now,
            due,
            ahead,
            clock: None,
        };
        let partition = BLUE;
        links.line.push(
            Link {
                partition,
                from,
                to,
            },
            frame,
        );
        links.advance(now);
        let left = std::iter::from_fn(|| links.line.pop_due(now));
        arrived.extend(left.map(|(link, frame)| (frame.due, link)));
    }
    arrived
}

#[test]
fn routing_off_delays_frames_as_a_torus_without_a_choice_of_routes() {
    let without = arrivals("");
    assert!(without.len() > 1_000, "{}", without.len());
    assert_eq!(arrivals("routing=off"), without);
    assert_ne!(arrivals("routing=nmin-hash"), without);
}
