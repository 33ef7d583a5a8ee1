//! Packets of a channel: order, room, waking, and the ends of a channel.

use std::thread;
use std::time::{Duration, Instant};

use toroid_fabric::PacketChannel;
use toroid_fabric::channel::{ChannelError, MAX_PAYLOAD};
use toroid_fabric::hold::Hold;
use toroid_fabric::os::thread::monotonic;

use super::{FOR_EVER, Rig, pattern};

pub(super) fn receive<C: PacketChannel>(
    channel: &mut C,
    into: &mut Vec<u8>,
) -> Result<(), ChannelError> {
    let start = Instant::now();
    while !channel.receive(into)? {
        assert!(start.elapsed() < FOR_EVER, "no packet comes");
        channel.wait(FOR_EVER);
    }
    Ok(())
}

pub fn packets_arrive_whole_and_in_order<R: Rig>(rig: &R) {
    let (mut ours, mut theirs) = rig.channel();
    let lengths = [0, 1, 7, 8, 9, 1500, 9018, 65_536, MAX_PAYLOAD];
    thread::scope(|scope| {
        // It lives until all has been looked at, because its end would be news.
        let sender = scope.spawn(move || {
            for n in 0..2_000 {
                let bytes = pattern(lengths[n % lengths.len()], n as u8);
                let (head, tail) = bytes.split_at(bytes.len() / 3);
                while let Err(error) = ours.send(&[head, tail]) {
                    assert_eq!(error, ChannelError::Full);
                    ours.wait(FOR_EVER);
                }
            }
            ours
        });
        let mut packet = Vec::new();
        for n in 0..2_000 {
            receive(&mut theirs, &mut packet).unwrap();
            assert!(
                packet == pattern(lengths[n % lengths.len()], n as u8),
                "packet {n}"
            );
        }
        let ours = sender.join().unwrap();
        assert_eq!(theirs.receive(&mut packet), Ok(false));
        drop(ours);
    });
}

pub fn a_full_channel_says_so_and_recovers<R: Rig>(rig: &R) {
    let (mut ours, mut theirs) = rig.channel();
    let mut sent = 0u32;
    while ours.send(&[&sent.to_le_bytes(), &[0; 1000]]) == Ok(()) {
        sent += 1;
        assert!(sent < 1 << 20, "a channel holds without bound");
    }
    assert_eq!(ours.send(&[&[0; 1000]]), Err(ChannelError::Full));
    let mut packet = Vec::new();
    for n in 0..sent {
        receive(&mut theirs, &mut packet).unwrap();
        assert_eq!(packet[..4], n.to_le_bytes());
    }
    let start = Instant::now();
    while let Err(error) = ours.send(&[b"again"]) {
        assert_eq!(error, ChannelError::Full);
        assert!(start.elapsed() < FOR_EVER, "no room comes");
        ours.wait(FOR_EVER);
    }
    receive(&mut theirs, &mut packet).unwrap();
    assert_eq!(packet, b"again");
}

pub fn a_packet_too_long_is_refused<R: Rig>(rig: &R) {
    let (mut ours, mut theirs) = rig.channel();
    let long = vec![0; MAX_PAYLOAD];
    let refused = Err(ChannelError::TooLong {
        len: MAX_PAYLOAD + 1,
    });
    assert_eq!(ours.send(&[&long, &[0]]), refused);
    assert_eq!(theirs.receive(&mut Vec::new()), Ok(false));
}

pub fn a_hold_arrives_with_its_packet<R: Rig>(rig: &R) {
    let (mut ours, mut theirs) = rig.channel();
    let mut packet = Vec::new();
    for milliseconds in [0, 20, 0, 0, 40, 10] {
        let now = monotonic();
        let due = now + milliseconds * 1_000_000;
        ours.send_held(&[b"held"], Hold::until(due, now)).unwrap();
        let start = Instant::now();
        let hold = loop {
            if let Some(hold) = theirs.receive_held(&mut packet).unwrap() {
                break hold;
            }
            assert!(start.elapsed() < FOR_EVER, "no packet comes");
            theirs.wait(FOR_EVER);
        };
        assert_eq!(packet, b"held");
        let now = monotonic();
        assert!(now + hold.left(now) >= due);
        assert!(milliseconds > 0 || hold == Hold::NONE);
    }
}

pub fn a_sleeper_is_woken_by_a_packet<R: Rig>(rig: &R) {
    let (mut ours, mut theirs) = rig.channel();
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut packet = Vec::new();
            for n in 0..500u32 {
                receive(&mut theirs, &mut packet).unwrap();
                assert_eq!(packet, n.to_le_bytes());
                theirs.send(&[&packet]).unwrap();
            }
            theirs
        });
        let mut packet = Vec::new();
        for n in 0..500u32 {
            ours.send(&[&n.to_le_bytes()]).unwrap();
            receive(&mut ours, &mut packet).unwrap();
        }
    });
}

pub fn a_sleeper_is_woken_by_room<R: Rig>(rig: &R) {
    let (mut ours, mut theirs) = rig.channel();
    while ours.send(&[&[0; 60_000]]) == Ok(()) {}
    thread::scope(|scope| {
        let sender = scope.spawn(move || {
            let start = Instant::now();
            while ours.send(&[&[1; 60_000]]) == Err(ChannelError::Full) {
                assert!(start.elapsed() < FOR_EVER, "no room comes");
                ours.wait(FOR_EVER);
            }
            ours
        });
        let mut packet = Vec::new();
        while packet.first() != Some(&1) {
            receive(&mut theirs, &mut packet).unwrap();
        }
        sender.join().unwrap()
    });
}

pub fn an_armed_channel_signals_its_descriptor<R: Rig>(rig: &R) {
    let (mut ours, mut theirs) = rig.channel();
    assert!(theirs.arm(), "nothing is there yet");
    assert!(!readable(&theirs, Duration::ZERO));
    ours.send(&[b"news"]).unwrap();
    assert!(readable(&theirs, FOR_EVER));
    theirs.disarm();
    assert!(
        !readable(&theirs, Duration::ZERO),
        "disarming forgets the signal"
    );
    assert!(!theirs.arm(), "a packet waits");
    theirs.disarm();
    let mut packet = Vec::new();
    receive(&mut theirs, &mut packet).unwrap();
    assert!(theirs.arm());
}

fn readable<C: PacketChannel>(channel: &C, within: Duration) -> bool {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let mut fds = [PollFd::new(channel.wake_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::try_from(within).unwrap()).unwrap() == 1
}

pub fn a_revoked_channel_ends<R: Rig>(rig: &R) {
    let (mut ours, mut theirs) = rig.channel();
    theirs.send(&[b"sent before"]).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| rig.revoke());
        let start = Instant::now();
        let mut packet = Vec::new();
        while ours.receive(&mut packet) != Err(ChannelError::Revoked) {
            assert!(start.elapsed() < FOR_EVER, "a sleeper is not told");
            ours.wait(FOR_EVER);
        }
    });
    assert_eq!(ours.send(&[b"x"]), Err(ChannelError::Revoked));
    assert!(!ours.arm(), "the end of a channel is news");
}

pub fn a_dead_peers_packets_can_still_be_read<R: Rig>(rig: &R) {
    let (mut ours, mut theirs) = rig.channel();
    theirs.send(&[b"last words"]).unwrap();
    // Packets under way when a peer dies may be lost.
    let start = Instant::now();
    while ours.arm() {
        assert!(start.elapsed() < FOR_EVER, "no packet comes");
        ours.disarm();
        thread::yield_now();
    }
    ours.disarm();
    rig.kill_peer();
    let mut packet = Vec::new();
    receive(&mut ours, &mut packet).unwrap();
    assert_eq!(packet, b"last words");
    assert_eq!(ours.receive(&mut packet), Err(ChannelError::PeerDead));
    assert_eq!(ours.send(&[b"x"]), Err(ChannelError::PeerDead));
}
