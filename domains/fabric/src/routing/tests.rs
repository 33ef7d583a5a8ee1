//! Routes of messages under load.

use super::*;
use crate::model::{Clocks, TICKS, carry};
use crate::routes::policy::{Fixed, SelectRouting};

const NOW: Nanos = 1_000_000;

const LEG: Leg = Leg {
    from: NodeId(0),
    to: NodeId(1),
    path: Path::Rdma,
};

struct Rig {
    router: Arc<Router>,
    clocks: SharedClocks,
    records: Arc<RouteRecords>,
}

fn rig(policy: Box<dyn Policy>) -> Rig {
    rig_on(LEG, policy)
}

fn rig_on(leg: Leg, policy: Box<dyn Policy>) -> Rig {
    let memory = || SharedClocks::create().unwrap();
    let records = Arc::new(RouteRecords::map(&memory()).unwrap());
    let link = Costs {
        rate: 425_000_000,
        latency: 70,
        ..Costs::default()
    };
    let stages = Stages {
        before: Vec::new(),
        link,
        after: Vec::new(),
        base: 0,
    };
    let torus = "4x4x2".parse().unwrap();
    let router = Router::new(torus, leg, stages, policy, Arc::clone(&records));
    Rig {
        router: Arc::new(router),
        clocks: SharedClocks::map(&memory()).unwrap(),
        records,
    }
}

fn fixed(mode: Mode) -> Rig {
    rig(Box::new(Fixed::new(mode)))
}

impl Rig {
    /// Sends messages, all at one time; returns the hops of each.
    fn send(&self, count: usize, bytes: u64) -> Vec<usize> {
        let message = |_| {
            let trip = self.router.send(&self.clocks, NOW, bytes, Operation::Put);
            carry(&trip, &self.clocks, NOW, bytes, 0);
            trip.links().len()
        };
        (0..count).map(message).collect()
    }

    fn record(&self) -> RouteRecord {
        self.records.of([LEG])
    }
}

#[test]
fn a_fixed_minimal_mode_takes_the_shortest_route_under_any_load() {
    for mode in [Mode::InOrder, Mode::MinHash] {
        let rig = fixed(mode);
        assert_eq!(rig.send(50, 65_536), [1; 50]);
        let record = rig.record();
        assert_eq!((record.messages, record.non_minimal), (50, 0));
        assert_eq!(record.bytes[mode as usize], 50 * 65_536);
    }
}

#[test]
fn adaptive_modes_leave_a_link_with_a_backlog_the_later_the_more_bias_they_have() {
    let shares = [Mode::Adaptive0, Mode::Adaptive2, Mode::Adaptive3].map(|mode| {
        let rig = fixed(mode);
        assert_eq!(rig.send(1, 4096), [1], "{mode} without load");
        rig.send(200, 4096);
        rig.record().share_non_minimal()
    });
    let [none, low, high] = shares;
    assert!(none > low && low > high && high > 0.0, "{shares:?}");
    let rig = fixed(Mode::NminHash);
    assert!(rig.send(10, 64).iter().all(|hops| *hops > 1));
    assert_eq!(rig.record().share_non_minimal(), 1.0);
}

/// Load that first links do not show, and phantom congestion: load that is over when the message
/// comes to the link.
#[test]
fn a_distant_backlog_counts_if_the_message_would_meet_it() {
    for (backlog, wanted) in [(50_000, 0..50), (70, 200..201)] {
        let leg = Leg {
            to: NodeId(5),
            ..LEG
        };
        let rig = rig_on(leg, Box::new(Fixed::new(Mode::Adaptive0)));
        let torus = Torus::new(4, 4, 2).unwrap();
        // The second links of both minimal routes.
        for between in [1, 4] {
            let clock = ClockId::hop(torus.route(NodeId(between), leg.to).unwrap()[0]);
            let (ready, service) = (NOW * TICKS, backlog * TICKS);
            rig.clocks.reserve(clock, ready, service, u64::MAX);
        }
        let is_minimal = |_: &i32| {
            let trip = rig.router.send(&rig.clocks, NOW, 64, Operation::Put);
            trip.links().len() == 2
        };
        let minimal = (0..200).filter(is_minimal).count();
        assert!(wanted.contains(&minimal), "{minimal} at {backlog} ns");
    }
}

#[test]
fn adaptive_1_reaches_its_end_by_decisions_at_each_hop() {
    let rig = fixed(Mode::Adaptive1);
    let hops = rig.send(200, 4096);
    assert!(hops.iter().any(|hops| *hops > 1) && hops.iter().all(|hops| *hops < 12));
}

#[test]
fn a_message_that_waits_counts_stalled_cycles() {
    let rig = fixed(Mode::InOrder);
    let [first, second] = [(); 2].map(|()| {
        let trip = rig.router.send(&rig.clocks, NOW, 425, Operation::Put);
        let mut passage = Passage::new(NOW, 425);
        passage.advance(&trip, &rig.clocks, Nanos::MAX);
        trip.passed(&passage);
        passage.waits()
    });
    // 425 bytes take 1 us, which is 800 cycles.
    assert_eq!((first, second), ([0, 0], [1000, 0]));
    let counters = rig.records.counters(LEG, Mode::InOrder);
    assert_eq!(counters, rig.record().counters[Mode::InOrder as usize]);
    assert_eq!(counters.stalled_cycles, 800);
    assert_eq!(counters.packets, 2 * packets(425));
    assert_eq!(counters.request_flits, 2 * flits(425, Operation::Put));
    // A wait for the sender's own link is no latency of the network.
    assert_eq!(counters.latency_ns, 2 * 7 * 140);
}

#[test]
fn auto_decides_and_learns_under_load() {
    let rig = rig(Box::new(SelectRouting::default()));
    rig.send(64, 64);
    let record = rig.record();
    assert_eq!((record.decisions, record.skipped_bytes), (0, 4096));
    rig.send(100, 65_536);
    let record = rig.record();
    assert_eq!(record.decisions, 100);
    assert_eq!(record.bytes.iter().sum::<u64>(), 4096 + 100 * 65_536);
}

#[test]
fn an_operation_counts_when_it_has_passed_and_a_get_with_its_answer() {
    let (out, back) = (fixed(Mode::NminHash), fixed(Mode::InOrder));
    let pass = |trip: &Trip, rig: &Rig, bytes| {
        let mut passage = Passage::new(NOW, bytes);
        passage.advance(trip, &rig.clocks, Nanos::MAX);
        trip.passed(&passage);
        passage.waits()[0]
    };
    let counted = || out.record().counters[Mode::NminHash as usize];
    let get = out.router.send(&out.clocks, NOW, 4096, Operation::Get);
    pass(&get, &out, 0);
    assert_eq!(counted(), Counters::default());
    let acknowledgement = back.router.answer(&out.router, &back.clocks, NOW);
    pass(&acknowledgement, &back, 0);
    assert_eq!(counted(), Counters::default());
    let answers = [(); 2].map(|()| back.router.answer(&out.router, &back.clocks, NOW));
    let waits = answers.each_ref().map(|trip| pass(trip, &back, 4096));
    let links = answers[0].links().len() as u64;
    assert!(links > 1 && waits[1] > waits[0]);
    assert_eq!(counted().packets, 2 * packets(4096));
    assert_eq!(counted().request_flits, 2 * flits(4096, Operation::Get));
    let waited = packets(4096) * (waits[0] + waits[1]);
    assert_eq!(
        counted().latency_ns,
        2 * packets(4096) * links * 140 + waited
    );
    assert_eq!(back.record(), RouteRecord::default());
}

#[test]
fn legs_have_records_of_their_own() {
    let rig = fixed(Mode::InOrder);
    rig.send(3, 64);
    let other = |path, to| Leg {
        path,
        to: NodeId(to),
        ..LEG
    };
    assert_eq!(rig.records.of([LEG]).messages, 3);
    let others = [other(Path::Ethernet, 1), other(Path::Rdma, 2)];
    assert_eq!(rig.records.of(others), RouteRecord::default());
    assert_eq!(rig.records.of([LEG, others[0]]).messages, 3);
}

#[test]
fn a_route_of_another_is_not_disturbed_by_a_clock_out_of_range() {
    let rig = fixed(Mode::Adaptive0);
    let torus = Torus::new(4, 4, 2).unwrap();
    let hop = torus.route(NodeId(0), NodeId(1)).unwrap()[0];
    rig.clocks
        .reserve(ClockId::hop(hop), u64::MAX / 2, u64::MAX / 2, u64::MAX);
    assert!(rig.send(10, 64).iter().all(|hops| *hops >= 1));
}
