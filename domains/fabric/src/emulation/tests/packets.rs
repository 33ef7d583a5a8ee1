//! Packets behind a link.

use std::thread;
use std::time::Instant;

use super::*;
use crate::core::channel::{ChannelError, PacketChannel};
use crate::core::hold::Hold;
use crate::os::thread::sleep_on;

/// From a process with a model to one without.
fn one_way(way: Way) -> [Ends; 2] {
    channels([&link(way), &Arc::default()])
}

fn receive(channel: &mut Channel) -> Result<Vec<u8>, ChannelError> {
    let (start, mut packet) = (Instant::now(), Vec::new());
    while !channel.receive(&mut packet)? {
        assert!(start.elapsed() < FOR_EVER, "no packet comes");
        channel.wait(FOR_EVER);
    }
    Ok(packet)
}

#[test]
fn a_receiver_without_a_model_respects_the_senders() {
    let latency = 5 * MILLISECOND;
    for on_top in [false, true] {
        for mut way in [way(after(latency)), way_of_two_stages(after(latency / 2))] {
            way.out.on_top = on_top;
            for mut ends in one_way(way) {
                for n in 0..3_u8 {
                    let start = monotonic();
                    ends.ours.send(&[&[n], b" and more"]).unwrap();
                    assert_eq!(receive(&mut ends.theirs).unwrap()[0], n);
                    let took = monotonic() - start;
                    assert!(took >= latency, "after {took} ns");
                }
                ends.theirs.send(&[b"without a model"]).unwrap();
                assert_eq!(receive(&mut ends.ours).unwrap(), b"without a model");
            }
        }
    }
}

#[test]
fn packets_keep_their_order_while_the_model_comes_and_goes() {
    let mut way = way(after(10_000));
    way.out.jitter = Jitter::Uniform { spread: 200_000 };
    way.out.loss = 0.1;
    let way = Arc::new(way);
    for ends in channels([&Arc::default(), &Arc::default()]) {
        let link = Arc::<PeerLink>::default();
        let mut ours = Channel::new(ends.ours.into_provider(), Arc::clone(&link));
        let (mut theirs, way) = (ends.theirs, Arc::clone(&way));
        thread::scope(|scope| {
            scope.spawn(move || {
                for n in 0..1_000_u64 {
                    link.set((n % 2 == 0).then(|| Arc::clone(&way)));
                    while ours.send(&[&n.to_le_bytes()]).is_err() {
                        ours.wait(FOR_EVER);
                    }
                }
                ours
            });
            for n in 0..1_000_u64 {
                assert_eq!(receive(&mut theirs).unwrap(), n.to_le_bytes());
            }
        });
    }
}

#[test]
fn a_sleeper_in_poll_is_woken_when_a_packet_is_due() {
    for mut ends in one_way(way(after(3 * MILLISECOND))) {
        let mut packet = Vec::new();
        for n in 0..20_u8 {
            let start = monotonic();
            ends.ours.send(&[&[n]]).unwrap();
            while !ends.theirs.receive(&mut packet).unwrap() {
                if ends.theirs.arm() {
                    // Nothing else wakes the sleeper.
                    let before = Instant::now();
                    sleep_on(ends.theirs.wake_fd(), FOR_EVER);
                    assert!(before.elapsed() < FOR_EVER, "nothing wakes");
                }
                ends.theirs.disarm();
            }
            assert_eq!(packet, [n]);
            let took = monotonic() - start;
            assert!(took >= 3 * MILLISECOND - SOON, "packet {n} took {took} ns");
        }
    }
}

#[test]
fn a_packet_that_waits_is_not_received_after_a_revocation() {
    for mut ends in one_way(way(after(100 * MILLISECOND))) {
        let start = monotonic();
        ends.ours.send(&[b"late"]).unwrap();
        let mut packet = Vec::new();
        let received = ends.theirs.receive(&mut packet);
        assert!(received == Ok(false) || monotonic() - start >= 100 * MILLISECOND);
        (ends.revoke)();
        assert_eq!(receive(&mut ends.theirs), Err(ChannelError::Revoked));
        let received = ends.theirs.receive(&mut packet);
        assert_eq!(received, Err(ChannelError::Revoked));
    }
}

#[test]
fn the_last_packets_of_a_dead_peer_are_received_when_they_are_due() {
    let ends = one_way(way(after(5 * MILLISECOND)));
    let errors = [ChannelError::PeerDead, ChannelError::Unreachable];
    for (mut ends, error) in ends.into_iter().zip(errors) {
        let start = monotonic();
        ends.ours.send(&[b"last"]).unwrap();
        ends.ours.send(&[b"words"]).unwrap();
        (ends.kill)();
        assert_eq!(receive(&mut ends.theirs).unwrap(), b"last");
        assert_eq!(receive(&mut ends.theirs).unwrap(), b"words");
        assert!(monotonic() - start >= 5 * MILLISECOND);
        assert_eq!(receive(&mut ends.theirs), Err(error));
    }
}

/// Regression: each refused attempt reserved the way.
#[test]
fn a_packet_without_room_reserves_its_way_once() {
    let costs = Costs {
        rate: 1_000_000,
        ..Costs::default()
    };
    let [
        Ends {
            mut ours, theirs, ..
        },
        _,
    ] = one_way(way(costs));
    let long = [0; 60_000];
    let mut sent = 0;
    while ours.send(&[&long]).is_ok() {
        sent += 1;
    }
    let refused = monotonic();
    for _ in 0..1_000 {
        assert_eq!(ours.send(&[&long]), Err(ChannelError::Full));
    }
    let (mut theirs, mut packet) = (theirs.into_provider(), Vec::new());
    for _ in 0..sent {
        assert!(theirs.receive_held(&mut packet).unwrap().is_some());
    }
    while ours.send(&[&long]).is_err() {
        ours.wait(FOR_EVER);
    }
    let hold = theirs.receive_held(&mut packet).unwrap().unwrap();
    // 60 ms for each.
    let (now, all) = (monotonic(), (sent + 1) * 60 * MILLISECOND);
    assert!(hold == Hold::NONE || now + hold.left(now) <= refused + all + 100);
}

#[test]
fn a_receiver_with_a_model_records_packets() {
    let link = link(way(after(MILLISECOND)));
    // The way back of one end is the way out of the other.
    let way = link.way().unwrap();
    let theirs = super::link(Way {
        out: way.back.clone(),
        back: way.out.clone(),
        spin: None,
        clocks: Arc::clone(&way.clocks),
        routers: None,
    });
    for (n, mut ends) in (1..).zip(channels([&link, &theirs])) {
        for _ in 0..3 {
            ends.ours.send(&[b"x"]).unwrap();
            receive(&mut ends.theirs).unwrap();
        }
        assert_eq!(recorded(&link), 3 * n);
    }
}
