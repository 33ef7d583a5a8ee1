//! One-sided operations.

use std::io::{Read as _, Write as _};

use super::*;
use crate::core::endpoint::{Completion, Endpoint, Operation, Read};
use crate::tcp::RemoteRegion as Opened;
use crate::tcp::wire::{CHUNK, Failure, HANDLES, Reply, Request, Transfer};

/// A region of `len` bytes at a host, and a served queue pair that has opened it.
fn served(len: usize, depth: usize) -> (Region, QueuePair, Opened) {
    let host = Arc::new(Host::default());
    let owner = host.export(1, len);
    let (mut pair, _) = host.serve(depth);
    let remote = open(&mut pair, 1).unwrap();
    (owner, pair, remote)
}

fn open(pair: &mut QueuePair, id: u64) -> Result<Opened, OpError> {
    pair.open(key(id), Access::all(), Arc::default(), None)
}

/// Flushes, and waits for `count` completions.
fn complete(pair: &mut QueuePair, count: usize) -> Vec<Completion> {
    pair.flush();
    let mut done = vec![Completion::default(); count];
    let mut polled = 0;
    while polled < count {
        assert!(pair.wait(FOR_EVER));
        polled += pair.poll(&mut done[polled..]);
    }
    done
}

fn run(pair: &mut QueuePair, operation: Operation<Opened>) -> Result<u64, OpError> {
    pair.post(1, operation).unwrap();
    complete(pair, 1)[0].result
}

#[test]
fn an_operation_is_executed_when_its_turn_comes() {
    let host = Arc::new(Host::default());
    let owner = host.export(1, 8);
    let (mut pair, _) = host.serve(1);
    let remote = open(&mut pair, 1).unwrap();
    let turn = host.turn.lock().unwrap();
    pair.post(1, Operation::fetch_add(&remote, 0, 1)).unwrap();
    pair.flush();
    assert!(!pair.wait(WHILE));
    assert_eq!(owner.load(0), Ok(0));
    drop(turn);
    assert_eq!(complete(&mut pair, 1)[0].result, Ok(0));
}

/// Requests of processes that had gone once held up their node's others, and took effect late.
#[test]
fn a_waiting_request_ends_with_its_connection() {
    let host = Arc::new(Host::default());
    let owner = host.export(1, 8);
    let (mut pair, server) = host.serve(1);
    let remote = open(&mut pair, 1).unwrap();
    host.waits.store(1, Relaxed);
    pair.post(1, Operation::fetch_add(&remote, 0, 1)).unwrap();
    pair.flush();
    while host.waits.load(Relaxed) > 0 {
        thread::yield_now();
    }
    drop((pair, remote));
    server.join().unwrap().unwrap();
    assert_eq!(owner.load(0), Ok(0));
}

#[test]
fn replies_do_not_wait_with_the_next_request() {
    let host = Arc::new(Host::default());
    let _owner = host.export(1, 8);
    let (mut pair, _) = host.serve(2);
    let remote = open(&mut pair, 1).unwrap();
    host.waits.store(2, Relaxed);
    pair.post(1, Operation::fetch_add(&remote, 0, 1)).unwrap();
    pair.post(2, Operation::fetch_add(&remote, 0, 1)).unwrap();
    pair.flush();
    assert_eq!(complete(&mut pair, 1)[0].result, Ok(0));
}

#[test]
fn a_connection_has_more_regions_than_handles() {
    let host = Arc::new(Host::default());
    let count = u64::from(HANDLES) + 3;
    let owners: Vec<_> = (0..count).map(|id| host.export(id, 8)).collect();
    let (mut pair, server) = host.serve(1);
    let regions: Vec<_> = (0..count).map(|id| open(&mut pair, id).unwrap()).collect();
    for _ in 0..2 {
        for region in &regions {
            run(&mut pair, Operation::fetch_add(region, 0, 1)).unwrap();
        }
    }
    assert!(owners.iter().all(|owner| owner.load(0) == Ok(2)));
    drop(regions);
    let one = open(&mut pair, 0).unwrap();
    assert_eq!(run(&mut pair, Operation::fetch_add(&one, 0, 1)), Ok(2));
    drop(pair);
    assert_eq!(server.join().unwrap(), Ok(()));
}

#[test]
fn a_batch_of_many_reads_of_every_length_is_exact() {
    let (owner, mut pair, remote) = served(3 * CHUNK, 1);
    let bytes: Vec<_> = (0..3 * CHUNK).map(|n| (n / 7) as u8).collect();
    owner.write(0, &bytes).unwrap();
    let lengths = [0, 1, 63, 64, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 5];
    let mut into: Vec<_> = (0..700)
        .map(|n| vec![0; lengths[n % lengths.len()]])
        .collect();
    let reads = into.iter_mut().enumerate().map(|(n, into)| Read {
        remote: &remote,
        offset: n as u64,
        into,
    });
    pair.read_batch(&mut reads.collect::<Vec<_>>()).unwrap();
    for (n, read) in into.iter().enumerate() {
        assert!(*read == bytes[n..][..read.len()], "read {n}");
    }
}

/// Both sides send more than the connection holds.
#[test]
fn long_transfers_in_both_directions_do_not_block_each_other() {
    long_transfers(None);
}

#[test]
fn long_sealed_transfers_in_both_directions_do_not_block_each_other() {
    long_transfers(Some(KEYS));
}

fn long_transfers(keys: Option<Keys>) {
    let len = 8 << 20;
    let host = Arc::new(Host::default());
    let owner = host.export(1, len);
    let (mut pair, _) = host.serve_with(64, keys);
    let remote = open(&mut pair, 1).unwrap();
    owner.write(0, &vec![5; len]).unwrap();
    let (from, to) = (Region::local(len).unwrap(), Region::local(len).unwrap());
    from.write(0, &vec![6; len]).unwrap();
    for n in 0..8 {
        let all = 0..len as u64;
        let operation = match n % 2 {
            0 => Operation::read(&remote, 0, &to, all),
            _ => Operation::write(&remote, 0, &from, all),
        };
        pair.post(n, operation).unwrap();
    }
    let done = complete(&mut pair, 8);
    assert!(done.iter().all(|done| done.result == Ok(len as u64)));
    let mut back = vec![0; len];
    owner.read(0, &mut back).unwrap();
    assert!(back.iter().all(|byte| *byte == 6));
    to.read(0, &mut back).unwrap();
    assert!(back.iter().all(|byte| *byte == 6));
}

#[test]
fn a_long_operation_partly_out_of_bounds_has_no_effect() {
    let (owner, mut pair, remote) = served(2 * CHUNK, 1);
    let local = Region::local(2 * CHUNK).unwrap();
    local.write(0, &[1; CHUNK]).unwrap();
    let (offset, len, limit) = (8, 2 * CHUNK as u64, 2 * CHUNK as u64);
    let outside = Err(OpError::OutOfBounds { offset, len, limit });
    let write = Operation::write(&remote, offset, &local, 0..len);
    assert_eq!(run(&mut pair, write), outside);
    assert_eq!(owner.load(8), Ok(0));
    let mut into = vec![0; 2 * CHUNK];
    let read = Read {
        remote: &remote,
        offset,
        into: &mut into,
    };
    assert_eq!(pair.read_batch(&mut [read]).map(|()| 0), outside);
}

#[test]
fn an_operation_on_a_region_that_cannot_be_opened_has_the_error_of_the_host() {
    let host = Arc::new(Host::default());
    let _owner = host.export(1, 8);
    let (mut first, _) = host.serve(1);
    assert_eq!(open(&mut first, 2).unwrap_err(), OpError::WrongKey);
    let remote = open(&mut first, 1).unwrap();
    host.regions.lock().unwrap().clear();
    let (mut second, _) = host.serve(1);
    let add = Operation::fetch_add(&remote, 0, 1);
    assert_eq!(run(&mut second, add.clone()), Err(OpError::WrongKey));
    // The next operation opens the region again.
    let _owner = host.export(1, 8);
    assert_eq!(run(&mut second, add), Ok(0));
}

#[test]
fn a_revocation_wakes_a_sleeper() {
    let (ours, _silent) = connection();
    let status = Arc::<Status>::default();
    let mut pair = QueuePair::new(ours, THERE, PARTITION, 1, Arc::clone(&status));
    let cutter = pair.cutter();
    thread::scope(|scope| {
        scope.spawn(move || {
            status.revoke();
            cutter.cut();
        });
        assert_eq!(open(&mut pair, 1).unwrap_err(), OpError::Revoked);
    });
    assert_eq!(pair.read_batch(&mut []), Err(OpError::Revoked));
}

/// A queue pair with one region, and a server that sends `bytes` after the first request and hangs
/// up.
fn answered_by(bytes: Vec<u8>) -> (QueuePair, Opened, JoinHandle<()>) {
    let (ours, mut theirs) = connection();
    let server = thread::spawn(move || {
        theirs.read_exact(&mut [0; Request::LEN]).unwrap();
        let done = Reply::Done { value: 64, len: 0 };
        theirs.write_all(&done.to_bytes()).unwrap();
        theirs.read_exact(&mut [0; Request::LEN]).unwrap();
        // Fails when the connection is cut before all bytes are sent.
        let _ = theirs.write_all(&bytes);
    });
    let mut pair = pair(ours, 4);
    let remote = open(&mut pair, 1).unwrap();
    (pair, remote, server)
}

#[test]
fn a_server_that_breaks_the_protocol_is_disconnected() {
    let done = |value, len| Reply::Done { value, len }.to_bytes().to_vec();
    let answers = [
        vec![0; Reply::LEN],
        vec![0xff; 4096],
        done(0, 4),
        done(0, CHUNK as u32),
        done(0, 0),
        Reply::Skipped.to_bytes().to_vec(),
    ];
    for mut answer in answers {
        answer.resize(answer.len() + CHUNK, 0);
        let (mut pair, remote, server) = answered_by(answer.clone());
        let local = Region::local(64).unwrap();
        let read = Operation::read(&remote, 0, &local, 0..8);
        assert_eq!(run(&mut pair, read.clone()), Err(OpError::Corrupt));
        assert_eq!(run(&mut pair, read), Err(OpError::Corrupt));
        assert_eq!(open(&mut pair, 2).unwrap_err(), OpError::Corrupt);
        server.join().unwrap();

        let (mut pair, remote, server) = answered_by(answer);
        let read = Read {
            remote: &remote,
            offset: 0,
            into: &mut [0; 8],
        };
        assert_eq!(pair.read_batch(&mut [read]), Err(OpError::Corrupt));
        server.join().unwrap();
    }
}

#[test]
fn a_server_that_goes_away_ends_operations_in_flight() {
    let failed = Reply::Failed(Failure::Misaligned).to_bytes();
    for answer in [vec![], failed[..7].to_vec(), failed.to_vec()] {
        let is_whole = answer.len() == Reply::LEN;
        let (mut pair, remote, server) = answered_by(answer);
        for n in 0..3 {
            let add = Operation::fetch_add(&remote, n, 1);
            pair.post(n, add).unwrap();
        }
        let done = complete(&mut pair, 3);
        let first = if is_whole {
            OpError::Misaligned { offset: 0 }
        } else {
            OpError::Unreachable
        };
        let results = done.iter().map(|done| (done.id, done.result.unwrap_err()));
        let unreachable = OpError::Unreachable;
        let expected = [(0, first), (1, unreachable), (2, unreachable)];
        assert!(results.eq(expected));
        server.join().unwrap();
    }
}

/// The replies of a server to `bytes`, and the result of serving.
fn say(host: &Arc<Host>, bytes: &[u8]) -> (Vec<u8>, Result<(), Malformed>) {
    let (ours, mut theirs) = connection();
    theirs.write_all(bytes).unwrap();
    theirs.shutdown(std::net::Shutdown::Write).unwrap();
    let served = serve(ours, &**host);
    let mut replies = Vec::new();
    theirs.read_to_end(&mut replies).unwrap();
    (replies, served)
}

#[test]
fn a_client_that_breaks_the_protocol_is_disconnected() {
    let host = Arc::new(Host::default());
    assert_eq!(say(&host, &[0; Request::LEN]), (vec![], Err(Malformed)));
    let mut request = Request::FetchAdd {
        handle: 3,
        offset: 0,
        add: 1,
    }
    .to_bytes();
    let wrong = Reply::Failed(Failure::WrongKey).to_bytes().to_vec();
    assert_eq!(say(&host, &request), (wrong.clone(), Ok(())));
    assert_eq!(say(&host, &request[..39]), (vec![], Ok(())));
    request[2] = 1;
    assert_eq!(say(&host, &request), (vec![], Err(Malformed)));
}

/// The server has other keys, as after a change of any record on its way.
#[test]
fn records_that_do_not_open_end_operations_and_are_named() {
    let (ours, theirs) = connection();
    let connection = Connection::new(OwnedFd::from(theirs), Some(KEYS));
    let fault = connection.fault();
    let host = Arc::new(Host::default());
    let owner = host.export(1, 8);
    let server = thread::spawn(move || serve(connection, &*host));
    let mut pair = pair(Connection::new(ours, Some(KEYS)), 1);
    assert_eq!(open(&mut pair, 1).unwrap_err(), OpError::Unreachable);
    assert_eq!(server.join().unwrap(), Ok(()));
    assert_eq!(fault.get(), Some(RecordError::Altered));
    assert_eq!(owner.load(0), Ok(0));
}

#[test]
fn requests_linked_to_a_failed_one_are_skipped() {
    let host = Arc::new(Host::default());
    let owner = host.export(1, 8);
    let open = Request::Open {
        handle: 2,
        access: Access::all(),
        key: key(1),
    };
    let write = |offset, is_linked| {
        let write = Request::Write(Transfer {
            handle: 2,
            offset,
            len: 4,
            is_linked,
        });
        [&write.to_bytes()[..], b"beef"].concat()
    };
    let said = [
        open.to_bytes().to_vec(),
        write(5, false),
        write(0, true),
        write(0, true),
        write(4, false),
    ]
    .concat();
    let done = |value| Reply::Done { value, len: 0 }.to_bytes();
    let outside = Reply::Failed(Failure::OutOfBounds { limit: 8 }).to_bytes();
    let skipped = Reply::Skipped.to_bytes();
    let replies = [done(8), outside, skipped, skipped, done(0)].concat();
    assert_eq!(say(&host, &said), (replies, Ok(())));
    assert_eq!(owner.load(0), Ok(u64::from_le_bytes(*b"\0\0\0\0beef")));
}
