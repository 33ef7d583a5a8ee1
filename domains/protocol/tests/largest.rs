//! Replies about the largest torus fit into messages.

use std::collections::BTreeSet;

use toroid_fabric::{NodeId, Torus};
use toroid_model::addressing::{ipv6, mac, mac_text};
use toroid_model::ethernet::EthernetPath;
use toroid_model::info::{DomainInfo, MemberInfo, NodeInfo};
use toroid_model::link::{DomainLinks, Rate};
use toroid_model::placement::Figures;
use toroid_protocol::agent::Reply;
use toroid_protocol::wire::MAX_REPLY;

fn largest() -> Torus {
    "151x31x14".parse().unwrap()
}

fn host() -> String {
    "h".repeat(63)
}

fn assert_fits(reply: &Reply) {
    let len = serde_json::to_vec(reply).unwrap().len();
    assert!(len < MAX_REPLY as usize, "{len} bytes");
}

#[test]
fn a_domain_of_all_nodes_fits_into_a_reply() {
    let torus = largest();
    let nodes: BTreeSet<NodeId> = (0..torus.nodes()).map(NodeId).collect();
    let places = nodes.iter().map(|node| torus.place(*node).unwrap());
    let member = |place| MemberInfo {
        node: place,
        host: Some(host()),
        limited: false,
        plain: false,
        stack: false,
        rate: Some(Rate(u64::MAX)),
        ifname: Some("fifteen-letters".into()),
        mac: mac_text(mac(65_535, place)),
        ipv4: [10, 127, 255, 254].into(),
        ipv6: ipv6(65_535, place),
    };
    assert_fits(&Reply::Domain(DomainInfo {
        name: "fifteen-letters".into(),
        id: 65_535,
        epoch: u32::MAX,
        owner: u32::MAX,
        mtu: 9000,
        subnet: "10.127.0.0/16".into(),
        capacity: None,
        public: true,
        managers: places.clone().map(|place| place.to_string()).collect(),
        forward: true,
        sealed: true,
        fence: None,
        ethernet: EthernetPath::Driver,
        without_kernel: Some("the domain has --ethernet driver".into()),
        fence_pending: false,
        cut_off: Vec::new(),
        gateway: None,
        gateways: Vec::new(),
        links: DomainLinks::default(),
        figures: Figures::of(torus, &nodes),
        members: places.map(member).collect(),
    }));
}

#[test]
fn all_nodes_in_many_domains_fit_into_a_reply() {
    let torus = largest();
    let names = |count| vec!["fifteen-letters".to_owned(); count];
    let node = |id| NodeInfo {
        id,
        place: torus.place(NodeId(id)).unwrap(),
        host: Some(host()),
        aliases: names(2),
        owner: Some(u32::MAX),
        allocated: true,
        free: false,
        domains: names(16),
        consents: names(16),
        pid: None,
    };
    assert_fits(&Reply::Nodes {
        nodes: (0..torus.nodes()).map(node).collect(),
    });
}
