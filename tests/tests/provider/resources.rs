//! What is left at a device after everybody has gone: nothing. The kernel counts.

use std::process::Command;
use std::sync::Arc;

use toroid_fabric::mem::Status;
use toroid_fabric::verbs::RemoteRegion;
use toroid_fabric::{Access, Operation, PacketChannel, Region};

use crate::errors::results;
use crate::failover_channel;
use crate::rdma_stream::streams;
use crate::rig::{Side, channels, connect};
use tests::conformance::{HERE, THERE};

/// What `rdma resource` of iproute2 counts, by device.
fn resources() -> String {
    let counted = Command::new("rdma").args(["resource", "show"]).output();
    String::from_utf8(counted.unwrap().stdout).unwrap()
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn a_thousand_connections_leave_nothing_behind() {
    let before = (resources(), descriptors());
    assert!(before.0.contains("qp"), "{}", before.0);
    {
        let (here, there) = (Side::new("rxe0", HERE), Side::new("rxe1", THERE));
        let during = resources();
        assert_ne!(before.0, during, "protection domains are counted");
        let status: Arc<Status> = Arc::default();
        for n in 0..1_000 {
            let (_owner, export) = there.export(4096, Access::all());
            let remote = RemoteRegion::open(export.parameters());
            let local = Region::local(64).unwrap();
            let [mut ours, _theirs] = connect(&here, &there, 2, &status);
            let write = Operation::write(&remote, 0, &local, 0..64);
            assert!(results(&mut ours, &[write])[0].result.is_ok(), "{n}");
        }
        assert_eq!(resources(), during, "while the domains are there");
        for n in 0..100 {
            let [mut ours, mut theirs] = channels(&here, &there, &status);
            ours.send(&[b"hello"]).unwrap();
            theirs.send(&[b"hello"]).unwrap();
            // Half of them end with packets that nobody has received.
            if n % 2 == 0 {
                let mut packet = Vec::new();
                while !theirs.receive(&mut packet).unwrap() {
                    theirs.wait(std::time::Duration::from_secs(60));
                }
            }
        }
        (0..100).for_each(|_| drop(streams()));
        for _ in 0..100 {
            let (mut ours, mut theirs, _ends) = failover_channel::pair(&here, &there);
            failover_channel::warm_up(&mut ours, &mut theirs);
            // One side ends with packets that it has not received.
            ours.send(&[b"hello"]).unwrap();
        }
        assert_eq!(resources(), during, "while the domains are there");
    }
    assert_eq!((resources(), descriptors()), before);
}
