//! Senders that spin, beside messages that are delayed.

use super::super::queue_pair;
use super::*;
use crate::core::channel::{ChannelError, PacketChannel};
use crate::core::endpoint::{PostError, Read};
use crate::core::hold::Hold;

const LATENCY: Nanos = 5 * MILLISECOND;

/// Parameters of LogGP as a benchmark sees them on a virtual clock, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct LogGp {
    /// Time from a post until the arrival.
    latency: Nanos,
    /// Time of the sender for a short message.
    overhead: Nanos,
    /// Time of the sender for a long message beyond that.
    overhead_of_long: Nanos,
    /// Time from one arrival to the next of long messages, beyond the sender's own for a short one.
    long: Nanos,
}

const LONG: u64 = 1 << 20;
const GIGABYTE: u64 = 1_000_000_000;

fn log_gp(way: &Way) -> LogGp {
    let mut random = fastrand::Rng::with_seed(1);
    let mut burst = |start: Nanos, bytes| {
        let mut now = start;
        let messages = [(); 101].map(|()| {
            let posted = way.posts_at(now, bytes, &mut random);
            now = posted;
            (posted, way.carry_out(posted, bytes, &mut random))
        });
        let [(first, first_arrival), .., (last, last_arrival)] = messages;
        let each = |all: Nanos| all / 100;
        (
            first_arrival - first,
            each(last - first),
            each(last_arrival - first_arrival),
        )
    };
    let (latency, overhead, _) = burst(1_000 * MILLISECOND, 0);
    let (_, of_long, gap) = burst(2_000 * MILLISECOND, LONG);
    LogGp {
        latency,
        overhead,
        overhead_of_long: of_long - overhead,
        long: gap - overhead,
    }
}

#[test]
fn a_delay_moves_the_latency_a_spin_the_overhead_and_a_rate_the_gap() {
    let machine = log_gp(&way(after(0)));
    let zero = LogGp {
        latency: 0,
        overhead: 0,
        overhead_of_long: 0,
        long: 0,
    };
    assert_eq!(machine, zero);
    let latency = 7_000;
    assert_eq!(log_gp(&way(after(latency))), LogGp { latency, ..zero });
    let spun_latency = LogGp {
        overhead: latency,
        ..zero
    };
    assert_eq!(log_gp(&spun(after(latency))), spun_latency);
    let rate = Costs {
        rate: GIGABYTE,
        ..after(0)
    };
    let long = LONG;
    assert_eq!(log_gp(&way(rate)), LogGp { long, ..zero });
    // The gap is then the sender's own time, as that of a host that copies.
    let spun_rate = LogGp {
        overhead_of_long: long,
        long,
        ..zero
    };
    assert_eq!(log_gp(&spun(rate)), spun_rate);
}

#[test]
fn a_read_is_charged_once_and_before_it_is_posted() {
    let link = link(spun(after(LATENCY)));
    for (n, mut rig) in (0..).zip(pairs(&link, 4)) {
        rig.owner.store(0, 5).unwrap();
        let start = monotonic();
        let read = Operation::read(&rig.remote, 0, &rig.local, 0..8);
        rig.pair.post(1, read).unwrap();
        assert!(monotonic() - start >= LATENCY);
        // The memory is read after that.
        rig.owner.store(0, 6).unwrap();
        rig.pair.flush();
        assert_eq!(rig.await_completion().result, Ok(8));
        assert_eq!(rig.local.load(0), Ok(6));
        assert!(
            queue_pair::tests::is_direct(&rig.pair),
            "nothing is delayed"
        );
        assert_eq!(recorded(&link), 2 * n + 1);

        let start = monotonic();
        let (mut words, remote) = ([[0; 8]; 8], &rig.remote);
        let reads = words.iter_mut().map(|into| Read {
            remote,
            offset: 0,
            into,
        });
        rig.pair.read_batch(&mut reads.collect::<Vec<_>>()).unwrap();
        assert!(monotonic() - start >= LATENCY);
        assert_eq!(words, [6_u64.to_ne_bytes(); 8]);
        assert_eq!(recorded(&link), 2 * n + 2);
    }
}

#[test]
fn bytes_of_reads_and_writes_take_the_time_of_the_sender() {
    let costs = Costs {
        rate: 1 << 30,
        ..Costs::default()
    };
    for mut rig in pairs(&link(spun(costs)), 4) {
        let start = monotonic();
        for n in 0..2 {
            let read = Operation::read(&rig.remote, 0, &rig.local, 0..1 << 20);
            rig.pair.post(n, read).unwrap();
            let write = Operation::write(&rig.remote, 0, &rig.local, 0..1 << 20);
            rig.pair.post(n, write).unwrap();
        }
        // 1/1024 s for each MiB.
        assert!(monotonic() - start >= 4 * 976_562);
        rig.pair.flush();
        for _ in 0..4 {
            assert_eq!(rig.await_completion().result, Ok(1 << 20));
        }
    }
}

#[test]
fn a_post_without_room_is_not_charged() {
    let link = link(spun(after(1_000)));
    for (n, mut rig) in (1..).zip(pairs(&link, 2)) {
        for id in 0..2 {
            rig.pair.post(id, rig.add()).unwrap();
        }
        for _ in 0..100 {
            let full = Err(PostError::QueueFull { depth: 2 });
            assert_eq!(rig.pair.post(2, rig.add()), full);
        }
        rig.pair.flush();
        for sum in 0..2 {
            assert_eq!(rig.await_completion().result, Ok(sum));
        }
        assert_eq!(recorded(&link), 2 * n);
    }
}

#[test]
fn answers_are_delayed_where_the_peer_does_not_spin() {
    let mut way = spun(after(1_000));
    way.back = route(THERE, HERE, after(LATENCY));
    way.back.on_top = true;
    for mut rig in pairs(&link(way), 1) {
        let start = monotonic();
        rig.send(rig.add());
        assert_eq!(rig.await_completion().result, Ok(0));
        assert!(monotonic() - start >= LATENCY + 1_000);
    }
}

#[test]
fn a_packet_is_charged_before_it_is_sent() {
    let link = link(spun(after(LATENCY)));
    for (n, ends) in (1..).zip(channels([&link, &Arc::default()])) {
        let (mut ours, mut theirs) = (ends.ours, ends.theirs.into_provider());
        let start = monotonic();
        ours.send(&[b"packet"]).unwrap();
        assert!(monotonic() - start >= LATENCY);
        let mut packet = Vec::new();
        let hold = loop {
            match theirs.receive_held(&mut packet).unwrap() {
                Some(hold) => break hold,
                None => theirs.wait(FOR_EVER),
            }
        };
        assert_eq!((&packet[..], hold), (&b"packet"[..], Hold::NONE));
        assert_eq!(recorded(&link), n);
    }
}

#[test]
fn a_packet_without_room_is_charged_once() {
    let link = link(spun(after(1_000)));
    let [ends, _] = channels([&link, &Arc::default()]);
    let (mut ours, mut theirs) = (ends.ours, ends.theirs.into_provider());
    let long = [0; 60_000];
    let mut sent = 0;
    while ours.send(&[&long]).is_ok() {
        sent += 1;
    }
    for _ in 0..100 {
        assert_eq!(ours.send(&[&long]), Err(ChannelError::Full));
    }
    let mut packet = Vec::new();
    for _ in 0..sent {
        assert!(theirs.receive_held(&mut packet).unwrap().is_some());
    }
    while ours.send(&[&long]).is_err() {
        ours.wait(FOR_EVER);
    }
    assert_eq!(recorded(&link), sent + 1);
}

/// Time for which only a change of the link ends a spin.
const LONG_SPIN: Nanos = 1_000 * FOR_EVER.as_nanos() as Nanos;

#[test]
fn a_change_of_the_link_ends_the_spin() {
    for change in [None, Some(Arc::new(spun(after(0))))] {
        let link = link(spun(after(LONG_SPIN)));
        let other = Arc::clone(&link);
        let changes = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            other.set(change);
        });
        let start = monotonic();
        spin(&link, 8, start);
        assert!(monotonic() - start < LONG_SPIN);
        changes.join().unwrap();
    }
}

#[test]
fn an_operation_or_packet_without_access_is_not_charged() {
    let its_link = link(spun(after(LONG_SPIN)));
    let [mut rig, _] = pairs(&its_link, 2);
    rig.revoke();
    rig.send(rig.add());
    assert_eq!(rig.await_completion().result, Err(OpError::Revoked));
    let mut word = [0; 8];
    let read = Read {
        remote: &rig.remote,
        offset: 0,
        into: &mut word,
    };
    assert_eq!(rig.pair.read_batch(&mut [read]), Err(OpError::Revoked));
    for mut ends in channels([&Arc::default(), &its_link]) {
        (ends.revoke)();
        let refused = ends.theirs.send(&[b"packet"]);
        assert_eq!(refused, Err(ChannelError::Revoked));
    }
    assert_eq!(recorded(&its_link), 0);
}
