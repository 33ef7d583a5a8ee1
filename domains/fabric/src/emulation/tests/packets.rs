//! Packets behind a link.

use std::thread;
use std::time::Instant;

use super::*;
use crate::core::channel::{ChannelError, PacketChannel};
use crate::core::hold::Hold;
use crate::core::link::Protocol;
use crate::mem::waker::sleep_on;

/// Both ends of a channel, each behind its link.
fn ends(network: &Network, links: [&Arc<PeerLink>; 2]) -> [Channel; 2] {
    let listener = network.join(THERE).listen(Protocol(1)).unwrap();
    let ours = network.join(HERE).channel(THERE, Protocol(1)).unwrap();
    let theirs = listener.accept(Duration::ZERO).unwrap();
    let [ours_link, theirs_link] = links.map(Arc::clone);
    [
        Channel::new(provider::Channel::Shm(ours), ours_link),
        Channel::new(provider::Channel::Shm(theirs), theirs_link),
    ]
}

/// From a process with a model to one without.
fn one_way(way: Way) -> [Channel; 2] {
    ends(&Network::new(PARTITION), [&link(way), &Arc::default()])
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
        let mut way = way(after(latency));
        way.out.on_top = on_top;
        let [mut ours, mut theirs] = one_way(way);
        for n in 0..3_u8 {
            let start = monotonic();
            ours.send(&[&[n], b" and more"]).unwrap();
            assert_eq!(receive(&mut theirs).unwrap()[0], n);
            let took = monotonic() - start;
            assert!(took >= latency, "after {took} ns");
        }
        theirs.send(&[b"without a model"]).unwrap();
        assert_eq!(receive(&mut ours).unwrap(), b"without a model");
    }
}

#[test]
fn packets_keep_their_order_also_when_the_model_goes() {
    let mut way = way(after(10_000));
    way.out.jitter = Jitter::Uniform { spread: 200_000 };
    way.out.loss = 0.1;
    let link = link(way);
    let [mut ours, mut theirs] = ends(&Network::new(PARTITION), [&link, &Arc::default()]);
    thread::scope(|scope| {
        scope.spawn(move || {
            for n in 0..500_u64 {
                if n == 300 {
                    link.set(None);
                }
                while ours.send(&[&n.to_le_bytes()]).is_err() {
                    ours.wait(FOR_EVER);
                }
            }
            ours
        });
        for n in 0..500_u64 {
            assert_eq!(receive(&mut theirs).unwrap(), n.to_le_bytes());
        }
    });
}

#[test]
fn a_sleeper_in_poll_is_woken_when_a_packet_is_due() {
    let [mut ours, mut theirs] = one_way(way(after(3 * MILLISECOND)));
    let mut packet = Vec::new();
    for n in 0..20_u8 {
        let start = monotonic();
        ours.send(&[&[n]]).unwrap();
        while !theirs.receive(&mut packet).unwrap() {
            if theirs.arm() {
                // Nothing else wakes the sleeper.
                let before = Instant::now();
                sleep_on(theirs.wake_fd(), FOR_EVER);
                assert!(before.elapsed() < FOR_EVER, "nothing wakes");
            }
            theirs.disarm();
        }
        assert_eq!(packet, [n]);
        assert!(monotonic() - start >= 3 * MILLISECOND);
    }
}

#[test]
fn a_packet_that_waits_is_not_received_after_a_revocation() {
    let network = Network::new(PARTITION);
    let link = link(way(after(100 * MILLISECOND)));
    let [mut ours, mut theirs] = ends(&network, [&link, &Arc::default()]);
    let start = monotonic();
    ours.send(&[b"late"]).unwrap();
    let mut packet = Vec::new();
    let received = theirs.receive(&mut packet);
    assert!(received == Ok(false) || monotonic() - start >= 100 * MILLISECOND);
    network.leave(HERE);
    assert_eq!(receive(&mut theirs), Err(ChannelError::Revoked));
    assert_eq!(theirs.receive(&mut packet), Err(ChannelError::Revoked));
}

#[test]
fn the_last_packets_of_a_dead_peer_are_received_when_they_are_due() {
    let network = Network::new(PARTITION);
    let link = link(way(after(5 * MILLISECOND)));
    let [mut ours, mut theirs] = ends(&network, [&link, &Arc::default()]);
    let start = monotonic();
    ours.send(&[b"last"]).unwrap();
    ours.send(&[b"words"]).unwrap();
    network.kill(HERE);
    assert_eq!(receive(&mut theirs).unwrap(), b"last");
    assert_eq!(receive(&mut theirs).unwrap(), b"words");
    assert!(monotonic() - start >= 5 * MILLISECOND);
    assert_eq!(receive(&mut theirs), Err(ChannelError::PeerDead));
}

/// Regression: each refused attempt reserved the way.
#[test]
fn a_packet_without_room_reserves_its_way_once() {
    let costs = Costs {
        rate: 1_000_000,
        ..Costs::default()
    };
    let [mut ours, theirs] = one_way(way(costs));
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
    let way = way(after(MILLISECOND));
    let link = link(way);
    let network = Network::new(PARTITION);
    // The way back of one end is the way out of the other.
    let way = link.way().unwrap();
    let theirs_link = super::link(Way {
        out: way.back.clone(),
        back: way.out.clone(),
        clocks: Arc::clone(&way.clocks),
    });
    let [mut ours, mut theirs] = ends(&network, [&link, &theirs_link]);
    for _ in 0..3 {
        ours.send(&[b"x"]).unwrap();
        receive(&mut theirs).unwrap();
    }
    assert_eq!(recorded(&link), 3);
}
