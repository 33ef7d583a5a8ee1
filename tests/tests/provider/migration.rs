//! Memory that an agent moves while devices know it: they forget it before anybody says that it
//! has moved, and get to know it again when it is there.

use std::fs::File;
use std::io::ErrorKind;
use std::sync::Arc;

use toroid_fabric::mem::memfd::create_memory;
use toroid_fabric::mem::{Copier, Status};
use toroid_fabric::verbs::RemoteRegion;
use toroid_fabric::{Access, OpError, Operation, Region, RemoteKey};

use crate::errors::results;
use crate::rig::{Verbs, connect, key_of};
use tests::conformance::{HERE, Rig, THERE};

pub const LEN: u64 = 256 * 1024;

/// A region as an agent makes them, and its memory.
pub struct Movable {
    pub memory: File,
    pub region: Region,
}

impl Movable {
    pub fn new(key: RemoteKey) -> Self {
        let memory = create_memory(LEN).unwrap();
        let region = Region::exported(&memory, LEN as usize, key, Arc::default(), None);
        Movable {
            region: region.unwrap(),
            memory,
        }
    }
}

/// A move of `memory` to fresh memory, which takes its place.
pub fn copier(memory: &mut File) -> Copier {
    let fresh = create_memory(LEN).unwrap();
    let copier = Copier::new(memory.try_clone().unwrap(), fresh.try_clone().unwrap(), LEN);
    *memory = fresh;
    copier.unwrap()
}

/// Brings all that is left, as an agent does.
pub fn bring(copier: &Copier) {
    copier.release();
    while copier.fetch_next().unwrap() {}
}

#[test]
fn a_key_ends_when_the_memory_begins_to_move() {
    let rig = Verbs::new();
    let local = Region::local(64).unwrap();
    let key = key_of(THERE);
    let mut owner = Movable::new(key);
    let export = |owner: &Movable| rig.there.domain.export(&owner.region, key, Access::all());
    let write = |export: &toroid_fabric::verbs::Export| {
        let status: Arc<Status> = Arc::default();
        let [mut ours, _theirs] = connect(&rig.here, &rig.there, 4, &status);
        let remote = RemoteRegion::open(export.parameters());
        let write = Operation::write(&remote, 0, &local, 0..8);
        results(&mut ours, &[write])[0].result
    };
    for round in 1..=5u64 {
        let exported = export(&owner).unwrap();
        local.store(0, round).unwrap();
        assert_eq!(write(&exported), Ok(8));
        let old = owner.memory.try_clone().unwrap();
        let copier = copier(&mut owner.memory);
        let (fresh, table) = (&owner.memory, copier.table().unwrap());
        let moved = owner
            .region
            .memory()
            .start_migration(fresh, &table, Box::new(|_| {}));
        drop(moved.unwrap());
        // What is kept of it is worth nothing, neither in the old memory nor in the fresh one.
        local.store(0, 77).unwrap();
        assert!(!exported.is_valid());
        assert_eq!(write(&exported), Err(OpError::WrongKey));
        let again = export(&owner).unwrap_err();
        assert_eq!(again.kind(), ErrorKind::WouldBlock);
        let mut word = [0; 8];
        std::os::unix::fs::FileExt::read_exact_at(&old, &mut word, 0).unwrap();
        assert_eq!(u64::from_le_bytes(word), round);
        bring(&copier);
        owner.region.memory().wake_resident();
        owner.region.memory().finish_migration();
        assert_eq!(owner.region.load(0), Ok(round));
    }
    // Nor is what has ended registered once more.
    let exported = export(&owner).unwrap();
    owner.region.memory().status().revoke();
    owner.region.memory().detach();
    assert!(!exported.is_valid());
    assert!(export(&owner).is_err());
}

/// The local side of operations moves as well, and is registered anew.
#[test]
fn what_is_ours_is_registered_anew_after_it_has_moved() {
    let rig = Verbs::new();
    let (owner, remote) = rig.export(LEN, Access::all());
    let mut ours = Movable::new(key_of(HERE));
    for round in 1..=5u64 {
        ours.region.store(0, round).unwrap();
        let write = Operation::write(&remote, 0, &ours.region, 0..8);
        let done = results(&mut rig.endpoint(1), &[write]);
        assert_eq!(done[0].result, Ok(8));
        assert_eq!(owner.load(0), Ok(round));
        let copier = copier(&mut ours.memory);
        let (fresh, table) = (&ours.memory, copier.table().unwrap());
        let moved = ours
            .region
            .memory()
            .start_migration(fresh, &table, Box::new(|_| {}));
        drop(moved.unwrap());
        let again = || {
            let write = Operation::write(&remote, 8, &ours.region, 0..8);
            results(&mut rig.endpoint(1), &[write])[0].result
        };
        let refused = again();
        assert!(
            matches!(refused, Err(OpError::System { .. })),
            "{refused:?}"
        );
        bring(&copier);
        ours.region.memory().wake_resident();
        ours.region.memory().finish_migration();
        assert_eq!(again(), Ok(8));
        assert_eq!(owner.load(8), Ok(round));
    }
}
