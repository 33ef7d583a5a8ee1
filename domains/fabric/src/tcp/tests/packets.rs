//! Channels and relays.

use std::io::{Read as _, Write as _};

use super::*;
use crate::core::channel::{ChannelError, MAX_PAYLOAD, PacketChannel};
use crate::core::hold::Hold;
use crate::core::link::{DropReason, LinkCheck, LinkHeader, Protocol};
use crate::core::membership::Membership;
use crate::key::Epoch;
use crate::os::thread::monotonic;
use crate::shm;
use crate::shm::control::ChannelEnds;
use crate::shm::control::RING_BYTES;
use crate::tcp::channel::News;
use crate::tcp::wire::{End, Frame};
use crate::tcp::{Channel, Turns, Way, channel, relay};

fn check(peer: NodeId) -> LinkCheck {
    LinkCheck {
        partition: PARTITION,
        peer,
        protocol: Protocol(1),
        since: Epoch(5),
    }
}

fn membership() -> Membership {
    Membership::at(Epoch(5))
}

fn end(connection: impl Into<Connection>, local: NodeId, peer: NodeId) -> Channel {
    let status = Arc::default();
    Channel::open(connection, local, check(peer), membership(), status, None).unwrap()
}

fn near_end(ends: ChannelEnds, local: NodeId, peer: NodeId, status: &Arc<Status>) -> shm::Channel {
    let status = Arc::clone(status);
    shm::Channel::open(ends, local, check(peer), membership(), status, None).unwrap()
}

fn packet(source: NodeId, payload: &[u8]) -> Vec<u8> {
    let header = LinkHeader {
        partition: PARTITION,
        epoch: Epoch(5),
        source,
        protocol: Protocol(1),
        len: payload.len() as u32,
        hold: Hold::NONE,
    };
    [&Frame::Packet.to_bytes()[..], &header.to_bytes(), payload].concat()
}

fn receive(channel: &mut impl PacketChannel) -> Result<Vec<u8>, ChannelError> {
    let mut packet = Vec::new();
    while !channel.receive(&mut packet)? {
        channel.wait(FOR_EVER);
    }
    Ok(packet)
}

fn send(channel: &mut impl PacketChannel, bytes: &[u8]) {
    while let Err(error) = channel.send(&[bytes]) {
        assert_eq!(error, ChannelError::Full);
        channel.wait(FOR_EVER);
    }
}

#[test]
fn forged_packets_are_dropped_and_counted_and_others_arrive() {
    let (ours, mut forger) = connection();
    let membership = membership();
    let drops = Arc::clone(&membership.drops);
    let receiver = Channel::open(ours, HERE, check(THERE), membership, Arc::default(), None);
    let mut receiver = receiver.unwrap();
    for _ in 0..100 {
        forger.write_all(&packet(NodeId(2), b"evil")).unwrap();
    }
    forger.write_all(&packet(THERE, b"good")).unwrap();
    assert_eq!(receive(&mut receiver).unwrap(), b"good");
    assert_eq!(drops.dropped(DropReason::WrongSource), 100);
}

#[test]
fn a_peer_that_breaks_the_protocol_is_disconnected() {
    let too_much = Frame::Credit { bytes: 1 }.to_bytes().to_vec();
    let mut too_long = packet(THERE, b"");
    let len = MAX_PAYLOAD as u32 + 1;
    too_long[Frame::LEN + 16..][..4].copy_from_slice(&len.to_le_bytes());
    let without_credit = packet(THERE, &[0; 60_000]).repeat(4);
    for bytes in [
        vec![0; 8],
        vec![0xff; 8],
        too_much,
        too_long,
        without_credit,
    ] {
        let (ours, mut breaker) = connection();
        let mut receiver = end(ours, HERE, THERE);
        let writer = thread::spawn(move || {
            // Fails when the channel is cut before all bytes are sent.
            let _ = breaker.write_all(&bytes);
            breaker
        });
        // No packet is taken: that would return credit.
        while receiver.arm_for(false) {
            receiver.wait(FOR_EVER);
            receiver.disarm();
        }
        let mut packet = Vec::new();
        let mut received = receiver.receive(&mut packet);
        while received == Ok(true) {
            received = receiver.receive(&mut packet);
        }
        assert_eq!(received, Err(ChannelError::Corrupt));
        assert_eq!(receiver.send(&[b"x"]), Err(ChannelError::Corrupt));
        assert!(!receiver.arm());
        drop(writer.join().unwrap());
    }
}

#[test]
fn the_last_frame_determines_the_error() {
    let ends = [
        (
            Frame::End(End::PeerDead).to_bytes().to_vec(),
            ChannelError::PeerDead,
        ),
        (vec![], ChannelError::Unreachable),
        (
            packet(THERE, b"half")[..20].to_vec(),
            ChannelError::Unreachable,
        ),
    ];
    for (bytes, error) in ends {
        let (ours, mut peer) = connection();
        let mut receiver = end(ours, HERE, THERE);
        peer.write_all(&packet(THERE, b"last words")).unwrap();
        peer.write_all(&bytes).unwrap();
        drop(peer);
        assert_eq!(receive(&mut receiver).unwrap(), b"last words");
        assert_eq!(receive(&mut receiver), Err(error));
        assert_eq!(receiver.send(&[b"x"]), Err(error));
    }
    let (ours, mut peer) = connection();
    let mut receiver = end(ours, HERE, THERE);
    peer.write_all(&packet(THERE, b"of a leaver")).unwrap();
    peer.write_all(&Frame::End(End::Revoked).to_bytes())
        .unwrap();
    assert_eq!(receive(&mut receiver), Err(ChannelError::Revoked));
}

#[test]
fn credit_arrives_behind_packets_that_are_not_taken() {
    let (ours, theirs) = connection();
    let (mut ours, mut theirs) = (
        end(ours, HERE, THERE),
        end(OwnedFd::from(theirs), THERE, HERE),
    );
    theirs.send(&[b"not taken"]).unwrap();
    for _ in 0..3 * channel::WINDOW / 60_000 {
        while ours.send(&[&[1; 60_000]]) == Err(ChannelError::Full) {
            assert_eq!(receive(&mut theirs).unwrap().len(), 60_000);
            if ours.arm_for(false) {
                ours.wait(Duration::ZERO);
            }
            ours.disarm();
        }
    }
    assert_eq!(receive(&mut ours).unwrap(), b"not taken");
}

fn offer() -> Vec<u8> {
    let parameters = crate::core::parameters::ConnectionParameters {
        number: 17,
        psn: 1,
        lid: 0,
        mtu: 3,
        depth: 1,
        gid: [7; 16],
    };
    [&Frame::Offer.to_bytes()[..], &parameters.to_bytes()].concat()
}

#[test]
fn a_side_without_a_device_declines_offers() {
    let (ours, mut peer) = connection();
    let mut ours = end(ours, HERE, THERE);
    // Byte by byte.
    for byte in offer() {
        peer.write_all(&[byte]).unwrap();
        assert_eq!(ours.receive(&mut Vec::new()), Ok(false));
    }
    peer.write_all(&packet(THERE, b"all the same")).unwrap();
    assert_eq!(receive(&mut ours).unwrap(), b"all the same");
    let mut said = [0; Frame::LEN];
    peer.read_exact(&mut said).unwrap();
    let declined = Frame::Decline { for_ever: true };
    assert_eq!(Frame::from_bytes(&said), Ok(declined));
    // This side has not offered a device.
    peer.write_all(&Frame::Back { arrived: 0 }.to_bytes())
        .unwrap();
    assert_eq!(receive(&mut ours), Err(ChannelError::Corrupt));
}

/// Each offer was answered, and the answers were kept without limit.
#[test]
fn a_peer_that_offers_without_reading_answers_is_disconnected() {
    let (ours, mut peer) = connection();
    let mut ours = end(ours, HERE, THERE);
    let offers = offer().repeat(100);
    let writer = thread::spawn(move || while peer.write_all(&offers).is_ok() {});
    assert_eq!(receive(&mut ours), Err(ChannelError::Corrupt));
    drop(ours);
    writer.join().unwrap();
}

#[test]
fn packets_behind_the_mark_wait_until_it_is_lifted() {
    let (ours, mut peer) = connection();
    let mut ours = end(ours, HERE, THERE);
    ours.listen();
    let back = Frame::Back { arrived: 3 };
    let words = [
        packet(THERE, b"before"),
        packet(THERE, b"too"),
        Frame::ByDevice.to_bytes().to_vec(),
        back.to_bytes().to_vec(),
        packet(THERE, b"behind"),
    ];
    peer.write_all(&words.concat()).unwrap();
    assert_eq!(receive(&mut ours).unwrap(), b"before");
    assert!(ours.has_mark() && !ours.is_at_mark());
    assert_eq!(receive(&mut ours).unwrap(), b"too");
    assert!(ours.is_at_mark());
    assert_eq!(ours.receive(&mut Vec::new()), Ok(false));
    assert!(ours.arm());
    ours.disarm();
    assert_eq!(ours.news(), Some(News::Back { arrived: 3 }));
    assert_eq!(ours.news(), None);
    ours.lift_mark();
    assert_eq!(receive(&mut ours).unwrap(), b"behind");
    // A packet behind a second mark, without a `Back` between them.
    let words = [Frame::ByDevice.to_bytes().to_vec(), packet(THERE, b"x")];
    peer.write_all(&words.concat()).unwrap();
    assert_eq!(receive(&mut ours), Err(ChannelError::Corrupt));
}

/// The hold of a packet counts from its arrival on, and not from the end of an earlier one.
#[test]
fn holds_of_packets_that_wait_to_be_taken_overlap() {
    let (ours, theirs) = connection();
    let (mut ours, mut theirs) = (
        end(ours, HERE, THERE),
        end(OwnedFd::from(theirs), THERE, HERE),
    );
    let (second, now) = (1_000_000_000, monotonic());
    for _ in 0..2 {
        let hold = Hold::until(now + second, now);
        theirs.send_held(&[b"held"], hold).unwrap();
    }
    ours.observe().unwrap();
    let arrived = monotonic();
    thread::sleep(Duration::from_millis(50));
    let mut packet = Vec::new();
    for _ in 0..2 {
        let hold = ours.receive_held(&mut packet).unwrap().unwrap();
        let now = monotonic();
        let left = hold.left(now);
        assert!(left > 0 && now + left < arrived + second + 1_000);
    }
}

/// A process of this host and a remote one, with a relay between them.
struct Relayed {
    process: shm::Channel,
    status: Arc<Status>,
    /// Status of the relay's end.
    relay_status: Arc<Status>,
    relay_waker: crate::mem::waker::Waker,
    remote: Channel,
    relay: JoinHandle<()>,
    turn: Turn,
    /// Whether packets from the other host wait.
    slow: Arc<AtomicBool>,
    charges: Charges,
}

/// Charged packets.
type Charges = Arc<Mutex<Vec<(Way, usize)>>>;

fn relayed() -> Relayed {
    relayed_with(None)
}

/// The same over a sealed connection.
fn relayed_with(keys: Option<Keys>) -> Relayed {
    let (socket, card) = connection();
    let card = Connection::new(OwnedFd::from(card), keys.as_ref().map(Keys::mirrored));
    let (process, near) = ChannelEnds::create(RING_BYTES).unwrap();
    let [status, relay_status] = [(); 2].map(|()| Arc::<Status>::default());
    let near = near_end(near, HERE, THERE, &relay_status);
    let relay_waker = near.waker();
    let card = end(card, THERE, HERE);
    let turn = Turn::default();
    let slow = Arc::<AtomicBool>::default();
    let charges = Charges::default();
    let its = RelayTurns(Arc::clone(&turn), Arc::clone(&slow), Arc::clone(&charges));
    Relayed {
        process: near_end(process, THERE, HERE, &status),
        status,
        relay_status,
        relay_waker,
        remote: end(Connection::new(socket, keys), HERE, THERE),
        relay: thread::spawn(move || relay(near, card, &its)),
        turn,
        slow,
        charges,
    }
}

/// Turns of packets: all while the lock is free, but those from the other host not while the switch
/// is on.
struct RelayTurns(Turn, Arc<AtomicBool>, Charges);

impl Turns for RelayTurns {
    fn await_turn(&self) {
        await_turn(&self.0);
    }

    fn take(&self, way: Way, bytes: usize) -> Option<Duration> {
        if way == Way::Inward && self.1.load(Relaxed) {
            return Some(Duration::from_millis(1));
        }
        self.2.lock().unwrap().push((way, bytes));
        None
    }
}

/// Empty packets once cost nothing, so a member sent them at any rate.
#[test]
fn packets_are_charged_with_their_headers() {
    let mut relayed = relayed();
    for payload in [&b""[..], b"words"] {
        send(&mut relayed.process, payload);
        assert_eq!(receive(&mut relayed.remote).unwrap(), payload);
        send(&mut relayed.remote, payload);
        assert_eq!(receive(&mut relayed.process).unwrap(), payload);
    }
    let head = packet(HERE, b"").len();
    let charges = [0, 5].map(|len| [(Way::Outward, head + len), (Way::Inward, head + len)]);
    assert_eq!(*relayed.charges.lock().unwrap(), charges.concat());
}

/// One member's rate must not delay the packets of the other.
#[test]
fn a_packet_that_awaits_its_turn_delays_its_direction_only() {
    let mut relayed = relayed();
    relayed.slow.store(true, Relaxed);
    send(&mut relayed.remote, b"late");
    send(&mut relayed.remote, b"later");
    let mut packet = Vec::new();
    for text in [b"one", b"two"] {
        send(&mut relayed.process, text);
        assert_eq!(receive(&mut relayed.remote).unwrap(), text);
        assert_eq!(relayed.process.receive(&mut packet), Ok(false));
    }
    relayed.slow.store(false, Relaxed);
    assert_eq!(receive(&mut relayed.process).unwrap(), b"late");
    assert_eq!(receive(&mut relayed.process).unwrap(), b"later");
}

#[test]
fn packets_are_relayed_both_ways_at_the_pace_of_the_receiver() {
    packets_are_relayed(relayed());
}

#[test]
fn sealed_packets_are_relayed_both_ways_at_the_pace_of_the_receiver() {
    packets_are_relayed(relayed_with(Some(KEYS)));
}

#[test]
fn packets_are_relayed_when_their_turn_comes() {
    let mut relayed = relayed();
    let turn = relayed.turn.lock().unwrap();
    send(&mut relayed.process, b"words");
    send(&mut relayed.remote, b"answer");
    let mut packet = Vec::new();
    thread::sleep(WHILE);
    assert_eq!(relayed.process.receive(&mut packet), Ok(false));
    assert_eq!(relayed.remote.receive(&mut packet), Ok(false));
    drop(turn);
    assert_eq!(receive(&mut relayed.remote).unwrap(), b"words");
    assert_eq!(receive(&mut relayed.process).unwrap(), b"answer");
}

#[test]
fn a_record_that_does_not_open_ends_a_channel_as_corrupt() {
    let (ours, theirs) = connection();
    let mut receiver = end(Connection::new(ours, Some(KEYS)), HERE, THERE);
    // Records of the same direction, as if its own came back.
    let theirs = Connection::new(OwnedFd::from(theirs), Some(KEYS));
    let mut sender = end(theirs, THERE, HERE);
    send(&mut sender, b"words");
    assert_eq!(receive(&mut receiver), Err(ChannelError::Corrupt));
    assert_eq!(receive(&mut sender), Err(ChannelError::Unreachable));
}

fn packets_are_relayed(relayed: Relayed) {
    let Relayed {
        mut process,
        mut remote,
        relay,
        ..
    } = relayed;
    let lengths = [0, 1, 64, 1500, 65_536, MAX_PAYLOAD];
    let bytes = move |n: usize| vec![n as u8; lengths[n % lengths.len()]];
    let echo = thread::spawn(move || {
        for n in 0..600 {
            let packet = receive(&mut process).unwrap();
            assert!(packet == bytes(n), "packet {n} there");
            send(&mut process, &packet);
        }
        process
    });
    thread::scope(|scope| {
        let (mut sent, mut taken) = (0, 0);
        let remote = &mut remote;
        scope.spawn(move || {
            let mut packet = Vec::new();
            while taken < 600 {
                if sent < 600 && remote.send(&[&bytes(sent)]) == Ok(()) {
                    sent += 1;
                } else if remote.receive(&mut packet).unwrap() {
                    assert!(packet == bytes(taken), "packet {taken} back");
                    taken += 1;
                } else {
                    remote.wait(FOR_EVER);
                }
            }
        });
    });
    drop(echo.join().unwrap());
    drop(remote);
    relay.join().unwrap();
}

#[test]
fn the_end_of_a_process_is_announced_after_its_last_packets() {
    let mut relayed = relayed();
    send(&mut relayed.process, b"last words");
    relayed.relay_status.peer_died();
    relayed.relay_waker.wake();
    assert_eq!(receive(&mut relayed.remote).unwrap(), b"last words");
    assert_eq!(receive(&mut relayed.remote), Err(ChannelError::PeerDead));
    drop(relayed.remote);
    relayed.relay.join().unwrap();
}

#[test]
fn a_revocation_is_announced() {
    let mut relayed = relayed();
    relayed.relay_status.revoke();
    relayed.relay_waker.wake();
    assert_eq!(receive(&mut relayed.remote), Err(ChannelError::Revoked));
    drop(relayed.remote);
    relayed.relay.join().unwrap();
}

#[test]
fn a_relay_ends_with_the_connection_after_its_last_packets() {
    let mut relayed = relayed();
    send(&mut relayed.remote, b"last words");
    drop(relayed.remote);
    relayed.relay.join().unwrap();
    assert_eq!(receive(&mut relayed.process).unwrap(), b"last words");
    relayed.status.peer_died();
    assert_eq!(receive(&mut relayed.process), Err(ChannelError::PeerDead));
}

#[test]
fn a_peer_that_does_not_close_is_waited_for_only_shortly() {
    let (ours, mut theirs) = connection();
    end(ours, HERE, THERE).finish(End::PeerDead);
    let mut said = Vec::new();
    theirs.read_to_end(&mut said).unwrap();
    assert_eq!(said, Frame::End(End::PeerDead).to_bytes());
}
