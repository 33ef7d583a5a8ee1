//! Interfaces whose addresses the kernel drops before their node can use them.

use std::fs;
use std::process::Command;

use toroid_ethernet::interface::{self, Interface};
use toroid_ethernet::offload::Capabilities;

use super::*;

/// Longer than settling takes.
const LONG: Duration = Duration::from_secs(60);

/// Raises the interface of a node, and runs `meddle` in the node before the interface has settled.
/// Returns the result of settling, and whether the address is used then.
fn settled(meddle: impl FnOnce() + Send) -> (Result<(), String>, bool) {
    let node = Node::new(1);
    let port = node.port(BLUE);
    let namespace = node.namespace.try_clone().unwrap();
    let raised = interface::raise(&port, namespace.into(), Capabilities::empty());
    let Interface { settling, tap, .. } = raised.unwrap();
    node.inside(meddle);
    let outcome = settling.wait(Instant::now() + LONG);
    let is_local = node.inside(|| Netlink::open().unwrap().is_local(port.ipv6.into()).unwrap());
    tap.delete().unwrap();
    (outcome.map_err(|error| error.to_string()), is_local)
}

/// Creating a domain of 1,024 members failed now and then: the kernel had dropped an address of one
/// member, and the driver waited for that address in vain for half a minute.
#[test]
fn an_address_that_the_kernel_has_dropped_is_added_again() {
    if !is_root() {
        return;
    }
    let drop_address = || {
        let address = format!("{}/{}", ipv6(BLUE, 1), addressing::IPV6_PREFIX);
        let mut delete = Command::new("ip");
        delete.args(["-6", "address", "delete", &address, "dev", "d7"]);
        assert!(delete.status().expect("iproute2 is installed").success());
    };
    assert_eq!(settled(drop_address), (Ok(()), true));
}

#[test]
fn an_address_that_cannot_be_added_again_is_named_at_once() {
    if !is_root() {
        return;
    }
    let forbid = || fs::write("/proc/sys/net/ipv6/conf/d7/disable_ipv6", "1").unwrap();
    let (outcome, is_local) = settled(forbid);
    let message = outcome.expect_err("there is no IPv6");
    let expected = "cannot add fd74:6f72:6f69:7:1:1::/64 to interface ";
    assert!(message.starts_with(expected), "{message}");
    let expected = ": Permission denied (os error 13)";
    assert!(message.ends_with(expected), "{message}");
    assert!(!is_local);
}
