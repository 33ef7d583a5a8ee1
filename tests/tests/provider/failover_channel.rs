//! Channels that go by the devices where they can and over a connection otherwise.

use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use toroid_fabric::channel::{ChannelError, MAX_PAYLOAD};
use toroid_fabric::failover::Channel;
use toroid_fabric::failover::{NoResources, ResourceSource, Resources};
use toroid_fabric::mem::Status;
use toroid_fabric::tcp::wire::{End, Frame};
use toroid_fabric::tcp::{self, Cutter};
use toroid_fabric::{NodeId, PacketChannel};

use crate::rig::{Side, Verbs};
use tests::conformance::{HERE, Rig, THERE, link};

const FOR_EVER: Duration = Duration::from_secs(60);

/// What an agent has of both ends of a channel.
pub struct Ends {
    status: Arc<Status>,
    cutters: [Cutter; 2],
    theirs: UnixStream,
}

impl Ends {
    pub fn revoke(&self) {
        self.status.revoke();
        self.cutters.iter().for_each(Cutter::cut);
    }

    pub fn say_that_the_peer_died(&self) {
        // What it sent before has arrived.
        thread::sleep(Duration::from_millis(100));
        let end = Frame::End(End::PeerDead).to_bytes();
        (&self.theirs).write_all(&end).unwrap();
    }
}

fn device_of(side: &Side) -> ResourceSource {
    let domain = Arc::clone(&side.domain);
    Box::new(move || {
        Ok(Resources {
            domain: Arc::clone(&domain),
            account: None,
        })
    })
}

fn no_device() -> ResourceSource {
    Box::new(|| Err(NoResources::Ever))
}

fn tcp_end(socket: UnixStream, local: NodeId, peer: NodeId, status: &Arc<Status>) -> tcp::Channel {
    let (check, membership) = link(peer);
    let (socket, status) = (OwnedFd::from(socket), Arc::clone(status));
    tcp::Channel::open(socket, local, check, membership, status, None).unwrap()
}

fn pair_by(sources: [ResourceSource; 2]) -> (Channel, Channel, Ends) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (status, copy) = (Arc::default(), theirs.try_clone().unwrap());
    let ours = tcp_end(ours, HERE, THERE, &status);
    let theirs = tcp_end(theirs, THERE, HERE, &status);
    let ends = Ends {
        status,
        cutters: [ours.cutter(), theirs.cutter()],
        theirs: copy,
    };
    let [initiating, other] = sources;
    let ours = Channel::new(ours, initiating, true).unwrap();
    let theirs = Channel::new(theirs, other, false).unwrap();
    (ours, theirs, ends)
}

pub fn pair(here: &Side, there: &Side) -> (Channel, Channel, Ends) {
    pair_by([device_of(here), device_of(there)])
}

fn send(channel: &mut impl PacketChannel, bytes: &[u8]) {
    let began = Instant::now();
    while let Err(error) = channel.send(&[bytes]) {
        assert_eq!(error, ChannelError::Full);
        assert!(began.elapsed() < FOR_EVER);
        channel.wait(FOR_EVER);
    }
}

fn receive(channel: &mut impl PacketChannel) -> Result<Vec<u8>, ChannelError> {
    let (mut packet, began) = (Vec::new(), Instant::now());
    while !channel.receive(&mut packet)? {
        assert!(began.elapsed() < FOR_EVER);
        channel.wait(FOR_EVER);
    }
    Ok(packet)
}

/// Talks until packets go by the devices both paths.
pub fn warm_up(ours: &mut Channel, theirs: &mut Channel) {
    let began = Instant::now();
    while !(ours.is_by_device() && theirs.is_by_device()) {
        assert!(began.elapsed() < FOR_EVER, "{ours:?} {theirs:?}");
        echo(ours, theirs);
    }
}

fn echo(ours: &mut Channel, theirs: &mut Channel) {
    send(ours, b"there");
    assert_eq!(receive(theirs).unwrap(), b"there");
    send(theirs, b"back");
    assert_eq!(receive(ours).unwrap(), b"back");
}

#[test]
fn packets_go_by_the_devices_once_it_is_worth_it() {
    let verbs = Verbs::new();
    let (mut ours, mut theirs, _ends) = pair(&verbs.here, &verbs.there);
    echo(&mut ours, &mut theirs);
    assert!(!ours.is_by_device());
    warm_up(&mut ours, &mut theirs);
    let before = [ours.paths(), theirs.paths()];
    for _ in 0..100 {
        echo(&mut ours, &mut theirs);
    }
    for (channel, before) in [&ours, &theirs].into_iter().zip(before) {
        let paths = channel.paths();
        assert_eq!((paths.device - before.device, paths.connects), (100, 1));
        assert_eq!(paths.connection, before.connection);
    }
}

/// The way by the devices ends at any moment, at either side, with packets under way in both
/// directions: each arrives once, in its turn, and soon they go by the devices again.
#[test]
fn each_packet_arrives_once_whatever_becomes_of_the_devices() {
    const PACKETS: usize = 6000;
    const FAILURES: usize = 6;
    let verbs = Verbs::new();
    let (mut ours, mut theirs, _ends) = pair(&verbs.here, &verbs.there);
    warm_up(&mut ours, &mut theirs);
    let lengths = [8, 64, 1500, 0, 30_000, MAX_PAYLOAD];
    let packet = |n: usize| {
        let mut bytes = vec![n as u8; lengths[n % lengths.len()].max(8)];
        bytes[..8].copy_from_slice(&n.to_le_bytes());
        bytes
    };
    let run = |mut channel: Channel, fails_at: [usize; FAILURES]| {
        let (mut sent, mut taken, mut into) = (0, 0, Vec::new());
        let (mut failures, began) = (0, Instant::now());
        while sent < PACKETS || taken < PACKETS {
            assert!(began.elapsed() < 4 * FOR_EVER, "{sent} {taken} {channel:?}");
            if failures < FAILURES
                && sent >= fails_at[failures]
                && let Some(closer) = channel.closer()
            {
                closer.close();
                failures += 1;
            }
            // The connection is much faster than the emulated devices.
            if !channel.is_by_device() {
                thread::sleep(Duration::from_micros(500));
            }
            let could_send = sent < PACKETS && channel.send(&[&packet(sent)]).is_ok();
            sent += usize::from(could_send);
            if channel.receive(&mut into).unwrap() {
                assert!(
                    into == packet(taken),
                    "packet {taken}: {} bytes",
                    into.len()
                );
                taken += 1;
            } else if !could_send {
                channel.wait(FOR_EVER);
            }
        }
        // The other may want something yet.
        (channel, failures)
    };
    thread::scope(|scope| {
        let ours = scope.spawn(|| run(ours, [100, 501, 1002, 2003, 3004, 4005]));
        let theirs = scope.spawn(|| run(theirs, [300, 702, 1703, 2704, 3505, 4106]));
        let (ours, failures) = ours.join().unwrap();
        let (theirs, other_failures) = theirs.join().unwrap();
        println!(
            "{failures} and {other_failures} failures, {:?}",
            ours.paths()
        );
        assert!(failures + other_failures > 2);
        let paths = [ours.paths(), theirs.paths()];
        assert!(
            paths
                .iter()
                .all(|paths| paths.connects > 2 && paths.device > 0)
        );
        drop((ours, theirs));
    });
}

#[test]
fn the_last_words_of_who_goes_arrive() {
    let verbs = Verbs::new();
    for _ in 0..10 {
        let (mut ours, mut theirs, _ends) = pair(&verbs.here, &verbs.there);
        warm_up(&mut ours, &mut theirs);
        for n in 0..8u8 {
            ours.send(&[&vec![n; 30_000]]).unwrap();
        }
        drop(ours);
        for n in 0..8u8 {
            assert_eq!(receive(&mut theirs).unwrap(), vec![n; 30_000]);
        }
        assert_eq!(receive(&mut theirs), Err(ChannelError::Unreachable));
        assert_eq!(theirs.send(&[b"x"]), Err(ChannelError::Unreachable));
    }
}

/// What was sent by a device that failed, and waits for room on the connection, was overtaken by
/// packets that went by the next one.
#[test]
fn what_comes_later_waits_for_a_backlog() {
    const LONG: usize = 60_000;
    let verbs = Verbs::new();
    let (mut ours, mut theirs, _ends) = pair(&verbs.here, &verbs.there);
    warm_up(&mut ours, &mut theirs);
    // None of them arrives.
    theirs.closer().unwrap().close();
    let mut sent = 0u8;
    while ours.send(&[&[sent; LONG]]).is_ok() {
        sent += 1;
    }
    // More than the connection has room for.
    assert!(sent > 4);
    ours.closer().unwrap().close();
    // Neither takes anything, for longer than a device is left alone.
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(2) {
        for channel in [&mut ours, &mut theirs] {
            if channel.arm_for(false) {
                thread::sleep(Duration::from_millis(1));
            }
            channel.disarm();
        }
        sent += u8::from(ours.send(&[&[sent; LONG]]).is_ok());
    }
    assert_eq!(ours.paths().connects, 1);
    let mut taken = 0;
    while taken < 50 {
        assert!(began.elapsed() < FOR_EVER, "{taken} {ours:?} {theirs:?}");
        sent += u8::from(sent < 50 && ours.send(&[&[sent; LONG]]).is_ok());
        let mut packet = Vec::new();
        while theirs.receive(&mut packet).unwrap() {
            assert!(packet == [taken; LONG], "{taken}");
            taken += 1;
        }
        assert_eq!(ours.receive(&mut packet), Ok(false));
    }
    warm_up(&mut ours, &mut theirs);
    assert_eq!(ours.paths().connects, 2);
}

/// Who had waited for room on the connection was told for ever that there is some.
#[test]
fn who_found_the_connection_full_sleeps_when_packets_go_by_the_devices() {
    let verbs = Verbs::new();
    let (mut ours, mut theirs, _ends) = pair(&verbs.here, &verbs.there);
    let mut sent = 0;
    while ours.send(&[&[7; 1000]]).is_ok() {
        sent += 1;
    }
    let began = Instant::now();
    while !(ours.is_by_device() && theirs.is_by_device()) {
        assert!(began.elapsed() < FOR_EVER, "{ours:?} {theirs:?}");
        for channel in [&mut ours, &mut theirs] {
            channel.arm_for(false);
            channel.disarm();
        }
    }
    for _ in 0..sent {
        assert_eq!(receive(&mut theirs).unwrap(), [7; 1000]);
    }
    while !ours.arm() {
        assert!(began.elapsed() < FOR_EVER, "{ours:?}");
        ours.disarm();
    }
    ours.disarm();
}

/// Who waits for room while it is not known what has arrived slept on when that was known.
#[test]
fn who_waits_for_room_is_woken_when_the_device_has_been_left() {
    let verbs = Verbs::new();
    let (mut ours, mut theirs, _ends) = pair(&verbs.here, &verbs.there);
    warm_up(&mut ours, &mut theirs);
    let taker = thread::spawn(move || {
        for n in 0.. {
            match receive(&mut theirs) {
                Ok(packet) => assert_eq!(packet, u64::to_le_bytes(n)),
                Err(_) => return n,
            }
        }
        0
    });
    let (mut sent, mut connects) = (0u64, 0);
    for _ in 0..200 {
        let began = Instant::now();
        for n in 0..30 {
            if n == 3
                && ours.paths().connects > connects
                && let Some(closer) = ours.closer()
            {
                closer.close();
                connects = ours.paths().connects;
            }
            send(&mut ours, &sent.to_le_bytes());
            sent += 1;
        }
        assert!(began.elapsed() < FOR_EVER / 2, "{sent} {ours:?}");
        // Who has nothing to send looks after its device when it looks for packets.
        assert_eq!(ours.receive(&mut Vec::new()), Ok(false));
        thread::sleep(Duration::from_millis(2));
    }
    assert!(connects > 1);
    drop(ours);
    assert_eq!(taker.join().unwrap(), sent);
}

#[test]
fn the_last_words_of_who_goes_arrive_though_the_devices_do_not_reach_each_other() {
    let verbs = Verbs::new();
    let (mut ours, mut theirs, _ends) = pair(&verbs.here, &verbs.there);
    warm_up(&mut ours, &mut theirs);
    theirs.closer().unwrap().close();
    let mut sent = 0u8;
    while ours.send(&[&[sent; 10_000]]).is_ok() {
        sent += 1;
    }
    assert!(sent > 4);
    thread::scope(|scope| {
        scope.spawn(|| drop(ours));
        for n in 0..sent {
            assert_eq!(receive(&mut theirs).unwrap(), [n; 10_000]);
        }
        assert_eq!(receive(&mut theirs), Err(ChannelError::Unreachable));
    });
}

#[test]
fn who_has_no_device_is_reached_over_the_connection() {
    let verbs = Verbs::new();
    let with = |side: &Side| device_of(side);
    for sources in [
        [with(&verbs.here), no_device()],
        [no_device(), with(&verbs.there)],
    ] {
        let (mut ours, mut theirs, _ends) = pair_by(sources);
        for _ in 0..100 {
            echo(&mut ours, &mut theirs);
        }
        let paths = [ours.paths(), theirs.paths()];
        assert!(
            paths
                .iter()
                .all(|paths| (paths.device, paths.connection) == (0, 100))
        );
    }
    // A program that was built without the provider.
    let (socket, other) = UnixStream::pair().unwrap();
    let status = Arc::default();
    let plain = tcp_end(other, THERE, HERE, &status);
    let ours = tcp_end(socket, HERE, THERE, &status);
    let mut ours = Channel::new(ours, with(&verbs.here), true).unwrap();
    let mut plain = plain;
    for _ in 0..100 {
        send(&mut ours, b"there");
        assert_eq!(receive(&mut plain).unwrap(), b"there");
        send(&mut plain, b"back");
        assert_eq!(receive(&mut ours).unwrap(), b"back");
    }
    assert_eq!(ours.paths().connection, 100);
}

/// What a correct peer never says, at its time.
#[test]
fn a_peer_that_lies_about_its_device_is_left() {
    let verbs = Verbs::new();
    let back = |arrived| Frame::Back { arrived }.to_bytes().to_vec();
    let mark = Frame::ByDevice.to_bytes().to_vec();
    let parameters = |frame: Frame| [&frame.to_bytes()[..], &[0xff; 32]].concat();
    for words in [
        back(0),
        mark.clone(),
        mark.repeat(2),
        Frame::Decline { for_ever: true }.to_bytes().to_vec(),
        Frame::Accept.to_bytes().repeat(5),
        parameters(Frame::Offer),
        parameters(Frame::Accept),
    ] {
        let (socket, mut liar) = UnixStream::pair().unwrap();
        let ours = tcp_end(socket, HERE, THERE, &Arc::default());
        let mut ours = Channel::new(ours, device_of(&verbs.here), true).unwrap();
        liar.write_all(&words).unwrap();
        assert_eq!(receive(&mut ours), Err(ChannelError::Corrupt), "{words:?}");
        assert_eq!(ours.send(&[b"x"]), Err(ChannelError::Corrupt));
    }
    // Of one who has taken more than it was sent, or less than it has said before.
    for arrived in [1_000_000, u32::MAX, 3] {
        let (mut ours, mut theirs, ends) = pair(&verbs.here, &verbs.there);
        warm_up(&mut ours, &mut theirs);
        (0..100).for_each(|_| echo(&mut ours, &mut theirs));
        (&ends.theirs).write_all(&back(arrived)).unwrap();
        assert_eq!(receive(&mut ours), Err(ChannelError::Corrupt));
        drop(ours);
        let mut rest = Vec::new();
        // It was cut.
        let _ = (&ends.theirs).read_to_end(&mut rest);
    }
}
