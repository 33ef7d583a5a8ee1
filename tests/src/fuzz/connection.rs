//! What another host says over a connection of the provider `tcp`: what asks, what answers, and what
//! sends packets.

use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};

use toroid_fabric::Membership;
use toroid_fabric::channel::ChannelError;
use toroid_fabric::mem::memfd::create_memory;
use toroid_fabric::shm;
use toroid_fabric::tcp::wire::Reply;
use toroid_fabric::tcp::{Channel, Opened, QueuePair, Regions, serve};
use toroid_fabric::{
    Access, Completion, Endpoint, NodeId, OpError, Operation, PacketChannel, Read, Region,
    RegionId, RemoteKey,
};

use super::CHECK;

/// Bytes of the region that there is.
const LEN: usize = 256;

const KEY: RemoteKey = RemoteKey {
    node: NodeId(1),
    partition: CHECK.partition,
    id: RegionId(3),
    secret: [9; 16],
};

/// A connection with all bytes of an untrusted peer. They are cut to as many as a socket holds, with the
/// answers to them, without a reader.
fn told(bytes: &[u8]) -> (UnixStream, UnixStream) {
    let bytes = &bytes[..bytes.len().min(16 * 1024)];
    let (ours, mut stranger) = UnixStream::pair().expect("a socket");
    stranger.write_all(bytes).expect("it fits");
    stranger.shutdown(Shutdown::Write).expect("it is open");
    (ours, stranger)
}

/// A host that has one region.
struct OneRegion(shm::RemoteRegion);

impl Regions for OneRegion {
    fn open(&self, key: RemoteKey, _: Access) -> Result<Opened, OpError> {
        if key == KEY {
            Ok(self.0.clone().into())
        } else {
            Err(OpError::WrongKey)
        }
    }
}

fn host() -> &'static OneRegion {
    static HOST: OnceLock<OneRegion> = OnceLock::new();
    HOST.get_or_init(|| {
        let memory = create_memory(LEN as u64).expect("memory");
        let (all, status) = (Access::all(), Arc::default());
        let region = shm::RemoteRegion::map(&memory, LEN, KEY, all, status, None);
        OneRegion(region.expect("a region"))
    })
}

/// Requests to the serving end: each has exactly one answer.
pub fn connection_requests(bytes: &[u8]) -> bool {
    let (ours, mut stranger) = told(bytes);
    let served = serve(OwnedFd::from(ours), host());
    let mut replies = Vec::new();
    stranger.read_to_end(&mut replies).expect("it was closed");
    let (mut rest, mut done) = (&replies[..], 0);
    while let Some((head, behind)) = rest.split_first_chunk() {
        let reply = Reply::from_bytes(head).expect("our own form");
        done += u32::from(matches!(reply, Reply::Done { .. }));
        rest = &behind[reply.data_len()..];
    }
    assert!(rest.is_empty(), "half a reply");
    served.is_ok() && done > 0
}

/// Answers to the requesting end: every operation ends once, in order.
pub fn connection_replies(bytes: &[u8]) -> bool {
    let (ours, _stranger) = told(bytes);
    let mut pair = QueuePair::new(
        OwnedFd::from(ours),
        KEY.node,
        KEY.partition,
        4,
        Arc::default(),
    );
    let Ok(remote) = pair.open(KEY, Access::all(), Arc::default(), None) else {
        return false;
    };
    let local = Region::local(LEN).expect("memory");
    let operations = [
        Operation::write(&remote, 0, &local, 0..8),
        Operation::compare_and_swap(&remote, 0, 0, 1),
        Operation::fetch_add(&remote, 8, 1),
        Operation::read(&remote, 0, &local, 0..100),
    ];
    for (id, operation) in (0..).zip(operations) {
        pair.post(id, operation).expect("there is room");
    }
    let (mut first, mut second) = ([0; 8], [0; 100]);
    let mut reads = [(0, &mut first[..]), (8, &mut second[..])].map(|(offset, into)| Read {
        remote: &remote,
        offset,
        into,
    });
    let read = pair.read_batch(&mut reads);
    let mut done = [Completion::default(); 4];
    assert_eq!(pair.poll(&mut done), 4, "all has ended");
    assert!((0..).zip(done).all(|(id, done)| done.id == id));
    read.is_ok() && done.iter().all(|done| done.result.is_ok())
}

/// Packets to a receiver, whose own packets are taken or refused: once without an RDMA NIC, and once with
/// one, which takes the packets behind a mark at once.
pub fn connection_packets(bytes: &[u8]) -> bool {
    packets(bytes, true);
    packets(bytes, false)
}

fn packets(bytes: &[u8], has_device: bool) -> bool {
    let (ours, _stranger) = told(bytes);
    let membership = Membership::at(CHECK.since);
    let channel = Channel::open(
        OwnedFd::from(ours),
        NodeId(0),
        CHECK,
        membership,
        Arc::default(),
        None,
    );
    let mut channel = channel.expect("a descriptor");
    if has_device {
        channel.listen();
    }
    let (mut packet, mut received) = (Vec::new(), 0);
    loop {
        let news = std::iter::from_fn(|| channel.news());
        if news.count() > 0 && channel.is_at_mark() {
            channel.lift_mark();
        }
        match channel.receive(&mut packet) {
            Ok(true) => received += 1,
            Ok(false) => {}
            Err(end) => return received > 0 && end != ChannelError::Corrupt,
        }
        // It fails when there is no room or the stranger has said that it goes.
        let _ = channel.send(&[&packet]);
    }
}
