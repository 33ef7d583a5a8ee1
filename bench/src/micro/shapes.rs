//! Shapes of the thesis's message layer and programs, on adapters whose work is counted.

use super::adapter::mechanisms::Prices;
use super::adapter::{Preset, PresetName};
use super::measure::Row;
use super::plan::message::LATER;
use super::plan::{LONGEST, LayerName, Test};
use super::{Selection, VIRTUAL, adapter, emulated, layers};
use crate::plan::Effort;
use crate::worker::micro::message_layer::{EAGER, HEADER};
use crate::worker::micro::script::{Layer, Message, Pattern, Script};

use PresetName::{Bvia, Clan, Gm, Mvia};

const BURST: Pattern = Pattern::Burst { count: 64 };

fn layer(eager: usize) -> Layer {
    let any_source = false;
    Layer::Message { eager, any_source }
}

/// The time of a script once caches are filled, in nanoseconds.
fn time(preset: &Preset, script: Script) -> f64 {
    let times = adapter::run(preset, &script, VIRTUAL).unwrap();
    *times.last().unwrap()
}

/// Time that the message layer adds to a message.
fn added(preset: &Preset, pattern: Pattern, bytes: usize, eager: usize) -> f64 {
    let script = Script::new(pattern, bytes);
    let layer = layer(eager);
    time(preset, Script { layer, ..script }) - time(preset, script)
}

/// Bytes per second of a burst.
fn rate(preset: &Preset, bytes: usize, layer: Layer) -> f64 {
    let script = Script::new(BURST, bytes);
    bytes as f64 * 1e9 / time(preset, Script { layer, ..script })
}

fn copies(preset: &Preset, bytes: usize) -> f64 {
    (preset.prices.copied * bytes as u64 / 1024) as f64
}

/// S9: the time for a message grows by a copy up to the limit, and is constant above.
#[test]
fn the_layer_adds_a_copy_to_eager_messages_and_two_short_messages_to_others() {
    let preset = Preset::of(Clan);
    let of = |bytes| added(&preset, Pattern::PingPong, bytes, EAGER);
    let header = HEADER as f64 * 1e9 / preset.rate as f64;
    let work = (preset.prices.segment + preset.prices.completion) as f64;
    for bytes in [64, 1024, 4096, EAGER] {
        let wanted = header + work + copies(&preset, bytes);
        let found = of(bytes);
        assert!((found - wanted).abs() <= 10.0, "{bytes}: {found}, {wanted}");
    }
    let [least, longer, longest] = [EAGER + 1, 2 * EAGER, LONGEST].map(of);
    assert!((least - longer).abs() <= 10.0 && (longer - longest).abs() <= 10.0);
    let hop = (preset.send + preset.latency + preset.receive) as f64;
    assert!((2.0 * hop..3.0 * hop).contains(&least), "{least}");
    // The kink, of which a sweep of the limit finds the place.
    assert!(of(EAGER) > 3.0 * least, "{least}");
    for eager in [0, 1024, LATER] {
        let at = |bytes| added(&preset, Pattern::PingPong, bytes, eager);
        assert_eq!(at(eager + 1).round(), least.round(), "{eager}");
    }
}

/// The rows of layers are the differences of the same scripts.
#[test]
fn rows_of_layers_are_the_time_that_messages_add() {
    let selection = Selection {
        layers: vec![LayerName::Msg],
        tests: vec![Test::Layers],
        effort: Effort::Quick,
    };
    let preset = Preset::of(Gm);
    let measured = emulated(preset, &selection).unwrap();
    let rows = measured.parts.iter().flat_map(|part| &part.rows);
    let is_latency = |row: &&Row| row.case.test == "layers/latency";
    let mut sizes = Vec::new();
    for row in rows.filter(is_latency) {
        let bytes = row.case.bytes;
        let wanted = added(&preset, Pattern::PingPong, bytes, EAGER);
        assert_eq!(row.cost().unwrap().value, wanted, "{bytes}");
        sizes.push(bytes);
    }
    assert_eq!((sizes[0], sizes.len()), (4, 4));
    assert!(layers::table(&[measured], &[]).is_some());
}

/// S9: GM's copies are its slowest stage. Between 12 and 16 KiB the later limit loses bandwidth,
/// which the earlier one keeps; outside both are the same.
#[test]
fn a_limit_of_16_kib_drops_the_bandwidth_where_copies_are_slow() {
    let rates =
        |preset: &Preset, bytes| [EAGER, LATER].map(|eager| rate(preset, bytes, layer(eager)));
    let gm = Preset::of(Gm);
    for bytes in [1024, EAGER, LATER + 1, LONGEST] {
        let [earlier, later] = rates(&gm, bytes);
        assert_eq!(earlier, later, "{bytes}");
    }
    for bytes in [EAGER + 1024, LATER] {
        let [earlier, later] = rates(&gm, bytes);
        assert!(later < 0.85 * earlier, "{bytes}: {later}, {earlier}");
    }
    // With free copies a three-way message only waits longer.
    let free = Preset {
        prices: Prices::default(),
        ..gm
    };
    let [earlier, later] = rates(&free, LATER);
    assert!(later > 1.1 * earlier, "{later}, {earlier}");
    // About half of the lower layer's bandwidth, as MPICH over GM.
    let [below, above] = [Layer::Fabric, layer(EAGER)].map(|layer| rate(&gm, 8192, layer));
    let share = above / below;
    assert!((0.45..0.6).contains(&share), "{share}");
}

/// Packed data costs the copies of sender and receiver for any number of segments.
#[test]
fn strided_messages_cost_their_copies() {
    let preset = Preset::of(Clan);
    let strided = |bytes, segments| {
        let mut script = Script::new(Pattern::PingPong, bytes);
        script.layer = layer(EAGER);
        let message = Message {
            segments,
            ..script.message
        };
        time(&preset, Script { message, ..script }) - time(&preset, script)
    };
    for segments in [2, 8, 32] {
        // The receiver copies an eager message out of its packet anyway.
        assert_eq!(strided(1024, segments), copies(&preset, 1024));
        assert_eq!(strided(LATER, segments), 2.0 * copies(&preset, LATER));
    }
}

/// S10: any source costs nothing with a completion queue, and a look at each endpoint without.
#[test]
fn any_source_costs_a_look_at_each_endpoint_without_a_completion_queue() {
    for name in [Mvia, Bvia, Clan, Gm] {
        let preset = Preset::of(name);
        for idle in [0, 3, 15, 63] {
            let of = |any_source| {
                let eager = EAGER;
                let layer = Layer::Message { eager, any_source };
                let script = Script::new(Pattern::PingPong, 16);
                time(
                    &preset,
                    Script {
                        layer,
                        idle,
                        ..script
                    },
                )
            };
            let cost = of(true) - of(false);
            let looks = if preset.mechanisms.completion_queues {
                0
            } else {
                idle
            };
            let wanted = u64::from(looks) * preset.prices.look;
            assert_eq!(cost, wanted as f64, "{name:?} {idle}");
        }
    }
}

/// S11: many short messages rank networks by their gap, long ones by their rate, and a program that
/// computes does not rank them.
#[test]
fn short_messages_rank_by_gap_and_long_ones_by_rate() {
    let mut networks = Vec::new();
    for gap in [1_000, 5_000, 15_000] {
        for rate in [160_000_000, 120_000_000, 80_000_000] {
            let latency = 20_000;
            networks.push(Preset {
                gap,
                rate,
                latency,
                ..Preset::of(Clan)
            });
        }
    }
    for layer in [Layer::Fabric, layer(EAGER)] {
        // LU sends 31,000 messages of 620 bytes; IS exchanges whole arrays; EP sums at the end.
        let [lu, is, ep] = [
            (Pattern::Burst { count: 31_000 }, 620),
            (BURST, LONGEST),
            (
                Pattern::Delayed {
                    delay: 1_000_000_000,
                },
                4,
            ),
        ]
        .map(|(pattern, bytes)| {
            let script = Script::new(pattern, bytes);
            let script = Script { layer, ..script };
            let mut times = networks.iter().map(|preset| time(preset, script));
            times.by_ref().collect::<Vec<f64>>()
        });
        // In the order of the networks, gaps rise first.
        assert!(lu.is_sorted(), "{lu:?}");
        let by_rate = (0..3).flat_map(|rate| (0..3).map(move |gap| 3 * gap + rate));
        let is: Vec<f64> = by_rate.map(|at| is[at]).collect();
        assert!(is.is_sorted(), "{is:?}");
        assert!(
            ep.iter().all(|time| (time / ep[0] - 1.0).abs() < 1e-3),
            "{ep:?}"
        );
    }
}

/// The thesis's own inversion (4.5): LU is slowest over GM, IS over M-VIA.
#[test]
fn gm_is_behind_m_via_in_lu_and_before_it_in_is() {
    let of = |name, pattern, bytes| time(&Preset::of(name), Script::new(pattern, bytes));
    let lu = Pattern::Burst { count: 31_000 };
    assert!(of(Gm, lu, 620) > of(Mvia, lu, 620));
    assert!(of(Gm, BURST, LONGEST) < of(Mvia, BURST, LONGEST));
}
