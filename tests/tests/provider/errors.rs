//! Errors that the device finds: those of peers that say what is not so.

use std::sync::Arc;
use std::time::Duration;

use toroid_fabric::mem::Status;
use toroid_fabric::verbs::{Device, DeviceError, RegionParameters, RemoteRegion, Selection};
use toroid_fabric::{Access, Completion, Endpoint, OpError, Operation, PostError, Region};

use crate::rig::{Verbs, connect};
use tests::conformance::{Rig, THERE};

const FOR_EVER: Duration = Duration::from_secs(60);

/// What becomes of operations that are posted together.
pub fn results<E: Endpoint>(pair: &mut E, operations: &[Operation<E::Remote>]) -> Vec<Completion> {
    for (n, operation) in operations.iter().enumerate() {
        pair.post(n as u64, operation.clone()).unwrap();
    }
    pair.flush();
    let mut done = Vec::new();
    while done.len() < operations.len() {
        assert!(pair.wait(FOR_EVER), "{done:?}");
        let mut some = [Completion::default(); 4];
        let count = pair.poll(&mut some);
        done.extend_from_slice(&some[..count]);
    }
    done
}

fn result(rig: &Verbs, operation: Operation<RemoteRegion>) -> Result<u64, OpError> {
    results(&mut rig.endpoint(1), &[operation])[0].result
}

/// The device refuses what a library that believes wrong parameters lets pass.
fn refused_when(lie: fn(&mut RegionParameters)) {
    let rig = Verbs::new();
    let local = Region::local(64).unwrap();
    let (owner, export) = rig.there.export(4096, Access::REMOTE_READ);
    let mut parameters = export.parameters();
    lie(&mut parameters);
    let remote = RemoteRegion::open(parameters);
    let write = Operation::write(&remote, 0, &local, 0..8);
    assert_eq!(result(&rig, write), Err(OpError::WrongKey));
    let add = Operation::fetch_add(&remote, 0, 1);
    assert_eq!(result(&rig, add), Err(OpError::WrongKey));
    assert_eq!(owner.load(0), Ok(0));
}

#[test]
fn a_right_that_was_not_given_is_refused_by_the_device() {
    refused_when(|parameters| parameters.access = Access::all());
}

#[test]
fn a_key_that_is_none_is_refused_by_the_device() {
    refused_when(|parameters| {
        parameters.access = Access::all();
        parameters.rkey = parameters.rkey.wrapping_add(1);
    });
}

#[test]
fn a_range_outside_is_refused_by_the_device() {
    let rig = Verbs::new();
    let local = Region::local(8192).unwrap();
    let (_owner, export) = rig.there.export(4096, Access::all());
    let longer = RegionParameters {
        len: 1 << 20,
        ..export.parameters()
    };
    let remote = RemoteRegion::open(longer);
    for (offset, len) in [(4096, 8), (4095, 2), (0, 4097), (1 << 19, 8)] {
        let read = Operation::read(&remote, offset, &local, 0..len);
        assert_eq!(result(&rig, read), Err(OpError::WrongKey), "{offset}");
    }
}

/// Keys of one protection domain are nothing to queue pairs of another.
#[test]
fn a_key_of_another_partition_is_refused_by_the_device() {
    let (rig, other) = (Verbs::new(), Verbs::new());
    let local = Region::local(64).unwrap();
    let (_owner, export) = other.there.export(4096, Access::all());
    let remote = RemoteRegion::open(export.parameters());
    let read = Operation::read(&remote, 0, &local, 0..8);
    assert_eq!(result(&rig, read), Err(OpError::WrongKey));
}

#[test]
fn an_error_ends_the_queue_pair_and_all_behind_it() {
    let rig = Verbs::new();
    let local = Region::local(64).unwrap();
    let (_owner, remote) = rig.export(4096, Access::all());
    let (_other, export) = rig.there.export(4096, Access::all());
    let bad = RemoteRegion::open(export.parameters());
    drop(export);
    let mut pair = rig.endpoint(8);
    let write = |remote| Operation::write(remote, 0, &local, 0..8);
    let done = results(
        &mut pair,
        &[write(&remote), write(&bad), write(&remote), write(&remote)],
    );
    let results_of: Vec<_> = done.iter().map(|done| done.result).collect();
    let flushed = Err(OpError::Flushed);
    assert_eq!(
        results_of,
        [Ok(8), Err(OpError::WrongKey), flushed, flushed]
    );
    let later = results(&mut pair, &[write(&remote)]);
    assert_eq!(later[0].result, flushed);
}

/// The queue takes what it has room for, for ever, and tells of each once.
#[test]
fn a_full_queue_never_overruns_its_completions() {
    const DEPTH: u64 = 200;
    let rig = Verbs::new();
    let local = Region::local(64).unwrap();
    let (owner, remote) = rig.export(4096, Access::all());
    let mut pair = rig.endpoint(DEPTH as usize);
    let (mut posted, mut polled) = (0, 0);
    let mut some = [Completion::default(); 7];
    while polled < 10 * DEPTH {
        let operation = match posted % 2 {
            0 => Operation::write(&remote, 64, &local, 0..64),
            _ => Operation::fetch_add(&remote, 0, 1),
        };
        match pair.post(posted, operation) {
            Ok(()) => posted += 1,
            Err(PostError::QueueFull { .. }) => {
                pair.flush();
                assert!(pair.wait(FOR_EVER));
                let count = pair.poll(&mut some);
                for completion in &some[..count] {
                    assert_eq!(completion.id, polled);
                    assert!(completion.result.is_ok(), "{completion:?}");
                    polled += 1;
                }
            }
            Err(error) => panic!("{error}"),
        }
    }
    pair.flush();
    while polled < posted {
        assert!(pair.wait(FOR_EVER));
        polled += pair.poll(&mut some) as u64;
    }
    assert_eq!(owner.load(0), Ok(posted / 2));
}

/// Who is not told that its peer is gone finds out.
#[test]
fn a_peer_that_is_gone_is_found_out() {
    let rig = Verbs::new();
    let local = Region::local(64).unwrap();
    let (_owner, export) = rig.there.export(4096, Access::all());
    let remote = RemoteRegion::open(export.parameters());
    let status: Arc<Status> = Arc::default();
    let [mut ours, theirs] = connect(&rig.here, &rig.there, 4, &status);
    drop(theirs);
    let write = Operation::write(&remote, 0, &local, 0..8);
    let done = results(&mut ours, &[write]);
    assert_eq!(done[0].result, Err(OpError::PeerDead));
}

#[test]
fn what_is_not_there_is_named() {
    let open = |change: fn(&mut Selection)| {
        let mut selection = Selection {
            device: Some("rxe0".to_owned()),
            ..Selection::default()
        };
        change(&mut selection);
        match Device::open(&selection) {
            Ok(device) => panic!("{device:?}"),
            Err(error) => error,
        }
    };
    let error = open(|wanted| wanted.device = Some("mlx5_7".to_owned()));
    assert!(matches!(error, DeviceError::NotFound { .. }), "{error}");
    assert_eq!(
        error.to_string(),
        "no RDMA device named mlx5_7: there is rxe0, rxe1"
    );
    let error = open(|wanted| wanted.port = 2);
    assert_eq!(error.to_string(), "rxe0 has no port 2: it has ports 1 to 1");
    let error = open(|wanted| wanted.gid_index = Some(200));
    assert!(matches!(error, DeviceError::NoGid { .. }), "{error}");
    let error = open(|wanted| wanted.partition_key_index = 9);
    let named = error.to_string();
    assert_eq!(
        named,
        "port 1 of rxe0 has no partition key at index 9: it has 0xffff at 0"
    );
}

/// Buffers that the program made itself are as good as the library's.
#[test]
fn a_buffer_of_the_users_own_is_used_where_it_is() {
    let rig = Verbs::new();
    let buffer: Box<[u64]> = (0..512).collect();
    let (owner, local) = (Region::adopt(buffer).unwrap(), Region::local(4096).unwrap());
    let export = rig.there.export_of(THERE, &owner, Access::all());
    let remote = RemoteRegion::open(export.parameters());
    let mut pair = rig.endpoint(2);
    let read = Operation::read(&remote, 8, &local, 0..4088);
    let add = Operation::fetch_add(&remote, 8 * 511, 1);
    let done = results(&mut pair, &[read, add]);
    assert_eq!([done[0].result, done[1].result], [Ok(4088), Ok(511)]);
    assert_eq!(local.load(0), Ok(1));
    assert_eq!(local.load(8 * 510), Ok(511));
    assert_eq!(owner.load(8 * 511), Ok(512));
}
