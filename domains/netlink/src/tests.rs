use std::fs::File;
use std::net::Ipv6Addr;
use std::os::fd::AsFd;

use nix::sched::{CloneFlags, unshare};

use super::*;

#[test]
fn the_loopback_link_is_found_and_a_missing_one_named() {
    let mut netlink = Netlink::open().unwrap();
    let loopback = netlink.link("lo").unwrap();
    assert_eq!(loopback.name, "lo");
    let error = netlink.index("no-such-link").unwrap_err();
    assert!(matches!(error, NetlinkError::NoSuchLink(name) if name == "no-such-link"));
}

/// Needs root. Runs in namespaces of its own, which end with its threads.
#[test]
#[ignore = "needs root"]
fn a_veth_pair_is_made_configured_and_deleted() {
    let in_new_namespace = || {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        let namespace = File::open("/proc/thread-self/ns/net").unwrap();
        (Netlink::open().unwrap(), namespace)
    };
    let (mut there, namespace) = std::thread::spawn(in_new_namespace).join().unwrap();
    let (mut here, _) = std::thread::spawn(in_new_namespace).join().unwrap();

    here.create_veth("left", "right", namespace.as_fd())
        .unwrap();
    let again = here.create_veth("left", "right", namespace.as_fd());
    assert!(again.unwrap_err().already_exists());

    let right = there.index("right").unwrap();
    there.set_mac(right, [6, 0, 1, 0, 0, 0]).unwrap();
    there.set_mtu(right, 9000).unwrap();
    there.set_queue_len(right, 4321).unwrap();
    there.set_up(right).unwrap();
    let address = IpAddr::V4([10, 64, 0, 1].into());
    there.add_address(right, address, 24).unwrap();
    there.add_address(right, address, 24).unwrap();
    let address = IpAddr::V6(Ipv6Addr::new(0xfd74, 0, 0, 0, 0, 0, 0, 1));
    there.add_address(right, address, 64).unwrap();
    assert!(there.is_local([10, 64, 0, 1].into()).unwrap());
    assert!(!there.is_local([10, 64, 0, 2].into()).unwrap());
    assert!(!there.is_local([10, 65, 0, 1].into()).unwrap());
    for gateway in [[10, 64, 0, 8], [10, 64, 0, 9]] {
        there
            .set_default_route(right, gateway.into(), 5000)
            .unwrap();
    }
    let nowhere = there.set_default_route(right, [10, 65, 0, 1].into(), 5000);
    assert!(matches!(nowhere, Err(NetlinkError::Refused { .. })));
    for _ in 0..2 {
        there.remove_default_route(right, 5000).unwrap();
    }
    let link = there.link("right").unwrap();
    assert_eq!((link.mac, link.mtu), (vec![6, 0, 1, 0, 0, 0], 9000));
    assert_eq!(link.queue_len, 4321);
    assert!(link.up);
    there.set_down(right).unwrap();
    assert!(!there.link("right").unwrap().up);
    there.rename(right, "other%d").unwrap();
    assert_eq!(there.index("other0").unwrap(), right);
    there.rename(right, "right").unwrap();

    assert!(
        Netlink::open_in(namespace.as_fd())
            .unwrap()
            .link("right")
            .is_ok()
    );

    let left = here.index("left").unwrap();
    here.delete(left).unwrap();
    assert!(there.link("right").is_err());
}
