use std::fs::File;
use std::net::Ipv6Addr;
use std::os::fd::{AsFd, OwnedFd};

use nix::ifaddrs::getifaddrs;
use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::socket::{
    AddressFamily as Family, MsgFlags, SockFlag, SockProtocol, SockType, bind, recv, send,
    setsockopt, socket,
};
use nix::sys::time::TimeVal;

use super::policy::{MAIN_TABLE, Route};
use super::*;

#[test]
fn the_loopback_link_is_found_and_a_missing_one_named() {
    let mut netlink = Netlink::open().unwrap();
    let loopback = netlink.link("lo").unwrap();
    assert_eq!(loopback.name, "lo");
    let error = netlink.index("no-such-link").unwrap_err();
    assert!(matches!(error, NetlinkError::NoSuchLink(name) if name == "no-such-link"));
}

/// Needs root. Runs in a namespace of its own, which ends with its thread.
#[test]
#[ignore = "needs root"]
fn a_table_takes_the_routes_of_a_link_and_a_rule_leads_there() {
    let tell = || {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        let namespace = File::open("/proc/thread-self/ns/net").unwrap();
        let mut netlink = Netlink::open().unwrap();
        netlink
            .create_veth("left", "right", namespace.as_fd())
            .unwrap();
        let [left, right] = ["left", "right"].map(|name| netlink.index(name).unwrap());
        for (index, third) in [(left, 0), (right, 1)] {
            netlink.set_up(index).unwrap();
            let address = IpAddr::V4([10, 64, third, 1].into());
            netlink.add_address(index, address, 24).unwrap();
            let next_hop = [10, 64, third, 2].into();
            netlink.set_default_route(index, next_hop, index).unwrap();
        }
        let (table, source) = (0x8000_0001, [169, 254, 64, 2].into());
        let of_left = Netlink::routes(MAIN_TABLE, Some(left), 9).unwrap().unwrap();
        let direct: Vec<bool> = of_left.iter().map(Route::is_direct).collect();
        assert_eq!(direct.iter().filter(|is_direct| **is_direct).count(), 1);
        assert_eq!(direct.len(), 2);
        assert_eq!(Netlink::routes(MAIN_TABLE, Some(left), 1).unwrap(), None);
        assert_eq!(Netlink::routes(table, None, 9).unwrap(), Some(vec![]));
        let direct_first = of_left.iter().filter(|its| its.is_direct());
        let further = of_left.iter().filter(|its| !its.is_direct());
        for route in direct_first.chain(further) {
            netlink.put_route(table, route).unwrap();
            netlink.put_route(table, route).unwrap();
        }
        let copied = Netlink::routes(table, None, 9).unwrap().unwrap();
        assert_eq!(copied.len(), 2);
        assert!(of_left.iter().all(|route| copied.contains(route)));
        for _ in 0..2 {
            netlink.add_source_rule(source, table, 30_000).unwrap();
        }
        for _ in 0..2 {
            netlink.remove_source_rule(source, table, 30_000).unwrap();
            for route in &copied {
                netlink.remove_route(table, route).unwrap();
            }
        }
        assert_eq!(Netlink::routes(table, None, 9).unwrap(), Some(vec![]));
    };
    std::thread::spawn(tell).join().unwrap();
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

/// Needs root. Runs in namespaces of its own, which end with their descriptors.
#[test]
#[ignore = "needs root"]
fn a_locked_port_admits_one_mac_address_and_nothing_is_flooded() {
    let bridges = namespace::create().unwrap();
    let members: Vec<File> = (0..3).map(|_| namespace::create().unwrap()).collect();
    let mut here = Netlink::open_in(bridges.as_fd()).unwrap();
    here.create_bridge("bridge").unwrap();
    assert!(here.create_bridge("bridge").unwrap_err().already_exists());
    let bridge = here.index("bridge").unwrap();
    here.set_up(bridge).unwrap();
    let mac = |member: u8| [6, 0, 1, member, 0, 0];
    let mut sockets = Vec::new();
    for (member, namespace) in (0..).zip(&members) {
        let name = format!("port{member}");
        here.create_veth(&name, "member", namespace.as_fd())
            .unwrap();
        let mut there = Netlink::open_in(namespace.as_fd()).unwrap();
        let index = there.index("member").unwrap();
        there.set_mac(index, mac(member)).unwrap();
        there.set_up(index).unwrap();
        let port = here.index(&name).unwrap();
        here.add_locked_port(bridge, port, mac(member)).unwrap();
        sockets.push(namespace::inside(namespace, || packet_socket("member")).unwrap());
    }
    let frame = |to: [u8; 6], from: [u8; 6], body: u8| {
        let mut frame = [to.as_slice(), &from, &ETHERTYPE].concat();
        frame.resize(60, body);
        frame
    };
    // From the first member: forged, to an address of nobody, to the second member, to all.
    for frame in [
        frame(mac(1), mac(2), 1),
        frame(mac(9), mac(0), 2),
        frame(mac(1), mac(0), 3),
        frame([0xff; 6], mac(0), 4),
    ] {
        send(sockets[0].as_raw_fd(), &frame, MsgFlags::empty()).unwrap();
    }
    let received = |member: usize| {
        let mut frame = [0; 2000];
        // Other frames are those of IPv6 in the kernels.
        while frame[12..14] != ETHERTYPE {
            recv(sockets[member].as_raw_fd(), &mut frame, MsgFlags::empty()).unwrap();
        }
        frame[14]
    };
    assert_eq!([received(1), received(1)], [3, 4]);
    assert_eq!(received(2), 4);
}

/// An EtherType for experiments.
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];

/// A socket for all frames of an interface.
fn packet_socket(name: &str) -> OwnedFd {
    let all = SockProtocol::EthAll;
    let socket = socket(Family::Packet, SockType::Raw, SockFlag::empty(), all).unwrap();
    let mut interfaces = getifaddrs().unwrap();
    let link = interfaces.find_map(|one| {
        let is_it = one.interface_name == name;
        let address = one.address.filter(|_| is_it)?;
        address.as_link_addr().copied()
    });
    bind(socket.as_raw_fd(), &link.unwrap()).unwrap();
    setsockopt(&socket, ReceiveTimeout, &TimeVal::new(30, 0)).unwrap();
    socket
}

/// Needs root. Runs in namespaces of its own, which end with it.
#[test]
#[ignore = "needs root"]
fn rules_forward_what_a_map_names_and_a_refused_batch_changes_nothing() {
    use super::nftables::{Base, Batch, Element, Expression, Nftables};
    let [here, there] = [namespace::create(), namespace::create()].map(Result::unwrap);
    let mut netlink = Netlink::open_in(here.as_fd()).unwrap();
    let mut beyond = Netlink::open_in(there.as_fd()).unwrap();
    // Two devices here, the other end of each there.
    for (outer, inner) in [("v1", "one"), ("v2", "two")] {
        netlink.create_veth(outer, inner, there.as_fd()).unwrap();
        for (netlink, name) in [(&mut netlink, outer), (&mut beyond, inner)] {
            let index = netlink.index(name).unwrap();
            netlink.set_up(index).unwrap();
        }
    }
    let names: Vec<String> = netlink
        .links()
        .unwrap()
        .into_iter()
        .map(|l| l.name)
        .collect();
    assert!(
        ["lo", "v1", "v2"]
            .iter()
            .all(|name| names.iter().any(|its| its == name))
    );
    let to = netlink.index("v2").unwrap();

    let mut tables = Nftables::open_in(here.as_fd()).unwrap();
    let kinds = |value: u32| Element {
        key: vec![0x88, 0xb5],
        value: Some(value.to_ne_bytes()),
    };
    let mut batch = Batch::new("test");
    batch.set("kinds", 2, true);
    batch.chain("shared", None);
    let steps = [
        Expression::Load {
            base: Base::Link,
            offset: 12,
            len: 2,
            to: 0,
        },
        Expression::Lookup {
            set: "kinds".into(),
            key: 0,
            to: Some(0),
        },
        Expression::Forward { device: 0 },
    ];
    batch.rule("shared", &steps);
    batch.chain("v1", Some("v1"));
    let chain = "shared".into();
    batch.rule("v1", &[Expression::Jump { chain }]);
    tables.commit(&batch).unwrap();
    // The same once more, as after a restart.
    tables.commit(&batch).unwrap();

    let [one, two] = ["one", "two"].map(|name| {
        let socket = namespace::inside(&there, || packet_socket(name)).unwrap();
        setsockopt(&socket, ReceiveTimeout, &TimeVal::new(0, 200_000)).unwrap();
        socket
    });
    let frame = [
        &[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5][..],
        &[7; 46],
    ]
    .concat();
    let passes = || {
        send(one.as_raw_fd(), &frame, MsgFlags::empty()).unwrap();
        let mut heard = [0; 2048];
        // Others are of the kernel's own.
        while let Ok(len) = recv(two.as_raw_fd(), &mut heard, MsgFlags::empty()) {
            if heard[..len] == frame {
                return true;
            }
        }
        false
    };
    assert!(!passes());
    let mut batch = Batch::new("test");
    batch.add("kinds", &[kinds(to)]);
    tables.commit(&batch).unwrap();
    assert!(passes());

    // An element that is not there: nothing of the batch takes effect.
    let mut batch = Batch::new("test");
    batch.clear("kinds");
    let mut absent = kinds(to);
    absent.key = vec![1, 2];
    batch.remove("kinds", &[absent]);
    let refused = tables.commit(&batch).unwrap_err();
    assert!(
        refused.to_string().contains("table test of nftables"),
        "{refused}"
    );
    assert!(passes());
    let mut batch = Batch::new("test");
    batch.clear("kinds");
    tables.commit(&batch).unwrap();
    assert!(!passes());
}
