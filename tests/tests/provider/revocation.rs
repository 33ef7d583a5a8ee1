//! A member that has left and keeps all that it had: its key, its queue pair, and no manners.
//!
//! Nobody tells its library that it has left (its status stays good), so whatever ends its access
//! ends it at the device of those who stay.

use std::sync::Arc;

use toroid_fabric::mem::Status;
use toroid_fabric::verbs::RemoteRegion;
use toroid_fabric::{Access, OpError, Operation, Region};

use crate::errors::results;
use crate::rig::{Verbs, connect};
use tests::conformance::Rig;

/// Read, write and add.
fn attempts(remote: &RemoteRegion, local: &Region) -> [Operation<RemoteRegion>; 3] {
    [
        Operation::write(remote, 0, local, 0..8),
        Operation::read(remote, 0, local, 8..16),
        Operation::fetch_add(remote, 16, 1),
    ]
}

#[test]
fn a_key_that_was_kept_is_worth_nothing() {
    let rig = Verbs::new();
    let local = Region::local(64).unwrap();
    local.write(0, &[1; 8]).unwrap();
    let (owner, export) = rig.there.export(4096, Access::all());
    let remote = RemoteRegion::open(export.parameters());
    let status: Arc<Status> = Arc::default();
    for attempt in attempts(&remote, &local) {
        let [mut ours, _theirs] = connect(&rig.here, &rig.there, 4, &status);
        assert!(results(&mut ours, &[attempt])[0].result.is_ok());
    }
    // The queue pair stays; the key does not.
    drop(export);
    owner.write(0, &[0; 64]).unwrap();
    local.store(8, 77).unwrap();
    for attempt in attempts(&remote, &local) {
        let [mut ours, _theirs] = connect(&rig.here, &rig.there, 4, &status);
        let result = results(&mut ours, &[attempt])[0].result;
        assert_eq!(result, Err(OpError::WrongKey));
    }
    // Nor does it come to mean another region that is exported later.
    let (later, _export) = rig.there.export(4096, Access::all());
    for attempt in attempts(&remote, &local) {
        let [mut ours, _theirs] = connect(&rig.here, &rig.there, 4, &status);
        assert!(results(&mut ours, &[attempt])[0].result.is_err());
    }
    for region in [&owner, &later] {
        assert_eq!((region.load(0), region.load(16)), (Ok(0), Ok(0)));
    }
    assert_eq!(local.load(8), Ok(77), "nothing newer was read");
}

#[test]
fn a_queue_pair_that_was_kept_leads_nowhere() {
    let rig = Verbs::new();
    let local = Region::local(64).unwrap();
    local.write(0, &[1; 8]).unwrap();
    let (owner, remote) = rig.export(4096, Access::all());
    let status: Arc<Status> = Arc::default();
    let [mut ours, theirs] = connect(&rig.here, &rig.there, 4, &status);
    assert!(
        results(&mut ours, &attempts(&remote, &local)[..1])[0]
            .result
            .is_ok()
    );
    // The key stays, for those who stay; the queue pair of the leaver does not.
    drop(theirs);
    owner.store(0, 0).unwrap();
    let done = results(&mut ours, &attempts(&remote, &local));
    assert_eq!(done[0].result, Err(OpError::PeerDead));
    assert_eq!(done[1].result, Err(OpError::Flushed));
    assert_eq!((owner.load(0), owner.load(16)), (Ok(0), Ok(0)));
    // Those who stay go on.
    let mut stays = rig.endpoint(4);
    let done = results(&mut stays, &attempts(&remote, &local));
    assert!(done.iter().all(|done| done.result.is_ok()), "{done:?}");
}
