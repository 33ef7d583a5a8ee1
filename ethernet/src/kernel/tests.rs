use std::fs::File;

use super::drain::steer;
use super::*;
use crate::forward::tests::unique;
use crate::offload::Offload;

/// Needs root. Frames of one TAP go to another by the queue of another processor. Those that have not
/// arrived at once must have after the marks.
#[test]
#[ignore = "needs root"]
fn frames_that_wait_for_a_processor_have_arrived_after_the_drain() {
    let network = namespace::create().unwrap();
    let mut path = KernelPath::open(network.into()).unwrap();
    path.settle(&HashSet::new()).unwrap();
    let open = || {
        let taps = ["one", "two"].map(|name| Tap::open(name, Capabilities::empty()).unwrap());
        (taps, File::from(steering("one").unwrap()))
    };
    let ([one, two], steering) = namespace::inside(&path.namespace, open).unwrap();
    for name in ["two", "one"] {
        let device = path.netlink.index(name).unwrap();
        path.netlink.set_queue_len(device, QUEUE_LEN).unwrap();
        path.netlink.set_up(device).unwrap();
    }
    let mut batch = Batch::new(rules::TABLE);
    rules::patch(&mut batch, "one", path.netlink.index("two").unwrap(), false);
    path.tables.commit(&batch).unwrap();

    let addresses = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5];
    let frame = [&Offload::NONE[..], &addresses, &[0; 46]].concat();
    let has_arrived = || {
        two.receive(&mut [0; 2048])
            .is_ok_and(|len| len == frame.len())
    };
    let processors = std::thread::available_parallelism().unwrap().get() as u32;
    let mut late = 0;
    for round in 0..1000 {
        steer(&steering, round % processors).unwrap();
        one.send(&frame).unwrap();
        if has_arrived() {
            continue;
        }
        path.is_drained = false;
        path.settle(&HashSet::new()).unwrap();
        assert!(has_arrived(), "in round {round}");
        late += 1;
    }
    assert!(late > 0 || processors == 1, "the frames never waited");
}

/// Needs root. A driver that takes over has to name all members at once.
#[test]
#[ignore = "needs root"]
fn thousands_of_members_are_admitted_together() {
    let mut path = KernelPath::open(namespace::create().unwrap().into()).unwrap();
    for domain in 1..=20 {
        for x in 0..=249 {
            let port = Port {
                kernel: true,
                ..unique(domain, x)
            };
            let member = DirectMember::of(&port, 2).unwrap();
            path.admit((domain.into(), x.into()), Some(member));
        }
    }
    path.settle(&HashSet::new()).unwrap();
    // Each of them is there: an element that is absent could not be removed.
    for key in path.members.clone().into_keys() {
        path.admit(key, None);
        assert!(path.is_settled, "{key:?}");
    }
}

/// Needs root. The other end of an interface ends with the network namespace of its node, in the
/// background: it may be listed, and gone a moment later.
#[test]
#[ignore = "needs root"]
fn what_has_ended_with_its_node_can_be_deleted() {
    let mut path = KernelPath::open(namespace::create().unwrap().into()).unwrap();
    let node = namespace::create().unwrap();
    path.netlink
        .create_veth("v7.0", "blue", node.as_fd())
        .unwrap();
    let device = path.netlink.index("v7.0").unwrap();
    path.delete("v7.0", device).unwrap();
    path.delete("v7.0", device).unwrap();
}
