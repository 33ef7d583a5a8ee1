//! The way from a domain to an uplink by network address translation:
//!
//! ```text
//!  members ── blue ── NODE ── toroid.gw3 ════ toroid.gw3 ── host ── eth1 ── outside
//!  10.64.0.0/24        │    169.254.64.14   169.254.64.13    │
//!                  masquerade                            masquerade
//! ```
//!
//! *Twice*, because then the host knows nothing of the domain but the one link-local address at the
//! other end of the pair: no route to the domain is needed, which would hide a network outside that
//! has the same addresses, or another domain.
//!
//! *Link-local* addresses (RFC 3927), because no network may route them, so they can be nobody's
//! outside. Of 169.254.0.0/16 a quarter, from 169.254.64.0 on, where neither the reserved ends are nor
//! the addresses at which clouds offer metadata: 4096 pairs of 4 addresses.
//!
//! The host's rules do not rely on the node, whose root can change everything at its end. Packets
//! from the node leave by the uplink, from the one address, or are dropped; none reaches the host
//! either. Only uplink and pair forward (`forwarding` of each), packets of the pair have a table of
//! routes of their own ([`super::policy`]), and nothing else of the host is changed.
//!
//! The kernel decides by the *incoming* interface whether to forward a packet. An uplink that forwards
//! for its pair would therefore be a way into every network of the host. On a host that is no router
//! (`net.ipv4.ip_forward` is 0), the rules drop IPv4 packets from the uplink to anything but a pair.
//! An uplink that forwarded before stays as it was, and IPv6 is never touched.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};

use serde::{Deserialize, Serialize};
use toroid_model::addressing::Subnet;
use toroid_netlink::namespace;
use toroid_netlink::{Link, Netlink, NetlinkError};

use super::nft::{self, NftError};
use super::policy::Policy;

/// Prefix of the names of pairs. No domain's interface has such a name.
const PREFIX: &str = "toroid.gw";

/// Most pairs of one host.
const PAIRS: u16 = 4096;

const FIRST_ADDRESS: Ipv4Addr = Ipv4Addr::new(169, 254, 64, 0);
const ADDRESSES_EACH: u32 = 4;
const PREFIX_LEN: u8 = 30;

/// Metric of the gateway's own default route: before those by gateways of its other domains, and
/// after routes of its root.
const METRIC: u32 = 2048;

/// Failure of a NAT link.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NatLinkError {
    /// The kernel refused, or the uplink is missing.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// The interface leads into a domain.
    #[error("{0} leads into a domain, not outside")]
    Inside(String),
    /// nft failed.
    #[error(transparent)]
    Rules(#[from] NftError),
    /// A setting of an interface cannot be written.
    #[error("cannot write {path}: {source}")]
    Setting {
        /// The file of the setting.
        path: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The node's network namespace cannot be entered.
    #[error("cannot enter the network of the node: {0}")]
    Namespace(io::Error),
    /// All pairs are in use.
    #[error("this host has {PAIRS} gateways, and can have no more")]
    Exhausted,
    /// The system gives no random bytes.
    #[error("the system gives no random bytes: {0}")]
    Random(getrandom::Error),
}

/// A pair of interfaces with its rules and settings. Its names differ from those of other agents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NatLink {
    number: u16,
    /// Random tag, part of its MACs and of the name of its table.
    tag: u32,
    uplink: String,
    /// Whether the uplink forwards packets because of this link.
    opened: bool,
}

/// Domain's side of a NAT link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inside<'a> {
    /// Interface of the domain in the node.
    pub(crate) interface: &'a str,
    pub(crate) subnet: Subnet,
    /// Network namespace of the node.
    pub(crate) network: &'a OwnedFd,
}

/// Finds an interface of the host that is not part of a NAT link.
pub(crate) fn find_uplink(host: &mut Netlink, name: &str) -> Result<Link, NatLinkError> {
    if name.starts_with(PREFIX) {
        Err(NatLinkError::Inside(name.into()))
    } else {
        Ok(host.link(name)?)
    }
}

impl NatLink {
    /// Makes a new pair. The pair ends with the node.
    pub(crate) fn create(uplink: &str, network: &OwnedFd) -> Result<Self, NatLinkError> {
        let mut host = Netlink::open()?;
        find_uplink(&mut host, uplink)?;
        let tag = getrandom::u32().map_err(NatLinkError::Random)?;
        for number in 0..PAIRS {
            let nat_link = NatLink {
                number,
                tag,
                uplink: uplink.into(),
                opened: false,
            };
            let name = nat_link.name();
            match host.create_veth(&name, &name, network.as_fd()) {
                Err(error) if error.already_exists() => {}
                Err(error) => return Err(error.into()),
                Ok(()) => {
                    let index = host.index(&name)?;
                    host.set_mac(index, nat_link.mac())?;
                    return Ok(nat_link);
                }
            }
        }
        Err(NatLinkError::Exhausted)
    }

    /// Whether this is its uplink.
    pub(super) fn leads_to(&self, uplink: &str) -> bool {
        self.uplink == uplink
    }

    /// Whether both ends still exist.
    pub(crate) fn is_whole(&self, network: &OwnedFd) -> bool {
        let is_there = |netlink: Result<Netlink, NetlinkError>| netlink?.link(&self.name());
        let ours = is_there(Netlink::open()).is_ok_and(|link| link.mac == self.mac());
        ours && is_there(Netlink::open_in(network.as_fd())).is_ok()
    }

    /// Notes whether the uplink must begin to forward packets. Noted before the change, so that a
    /// successor undoes it.
    pub(super) fn note_uplink(&mut self) {
        let before = fs::read_to_string(setting(&self.uplink, FORWARDING));
        self.opened |= before.is_ok_and(|value| value.trim() == "0");
    }

    /// Completes the link, and keeps existing parts. On a host that is no router ([`is_router`])
    /// only the pair is reached from the uplink.
    pub(crate) fn open(&self, inside: Inside<'_>, is_router: bool) -> Result<(), NatLinkError> {
        let mut host = Netlink::open()?;
        let uplink = find_uplink(&mut host, &self.uplink)?;
        let (mtu, [ours, its]) = (uplink.mtu, self.addresses());
        let end = self.raise(&mut host, ours, mtu)?;
        self.follow_routes(uplink.index);
        let mut node = Netlink::open_in(inside.network.as_fd())?;
        let its_end = self.raise(&mut node, its, mtu)?;
        node.set_default_route(its_end.index, ours, METRIC)?;
        nft::put_table(&self.table(), &self.rules_of_host(is_router))?;
        set(&end.name, ARP_IGNORE, ONLY_OWN)?;
        set(&end.name, FORWARDING, "1")?;
        if self.opened {
            tracing::info!("{} forwards packets from now on", self.uplink);
            set(&self.uplink, FORWARDING, "1")?;
        }
        let in_node = || {
            nft::put_table(&self.table(), &self.rules_of_node(inside))?;
            set(&self.name(), FORWARDING, "1")
        };
        namespace::inside(inside.network, in_node).map_err(NatLinkError::Namespace)?
    }

    /// Lets packets of the node go by the present routes of the uplink. Where that fails, the main
    /// table of the host decides.
    pub(super) fn follow_routes(&self, uplink: u32) {
        if let Err(error) = self.policy().follow(uplink) {
            tracing::warn!("uplink {}: {error}", self.uplink);
        }
    }

    fn policy(&self) -> Policy {
        let [_, source] = self.addresses();
        Policy {
            // No table that others have: they number theirs from 1.
            table: self.tag | 1 << 31,
            source,
        }
    }

    /// Sets up one end.
    fn raise(
        &self,
        netlink: &mut Netlink,
        address: Ipv4Addr,
        mtu: u32,
    ) -> Result<Link, NatLinkError> {
        let link = netlink.link(&self.name())?;
        if link.mtu != mtu {
            netlink.set_mtu(link.index, mtu)?;
        }
        netlink.add_address(link.index, address.into(), PREFIX_LEN)?;
        netlink.set_up(link.index)?;
        Ok(link)
    }

    /// Undoes everything in the host, and in the node if there is one. Missing parts are skipped;
    /// failures are logged.
    pub(crate) fn close(&self, network: Option<&OwnedFd>) {
        let log = |error: NatLinkError| tracing::warn!("uplink {}: {error}", self.uplink);
        let is_there = || fs::exists(setting(&self.uplink, FORWARDING)).unwrap_or(false);
        if self.opened && !is_router() && is_there() {
            match set(&self.uplink, FORWARDING, "0") {
                Ok(()) => tracing::info!("{} forwards packets no longer", self.uplink),
                Err(error) => log(error),
            }
        }
        if let Some(network) = network {
            // The node's root may have changed it in any way.
            let _ = namespace::inside(network, || nft::remove_table(&self.table()));
        }
        if let Err(error) = self.policy().end() {
            log(error.into());
        }
        if let Err(error) = self.delete_pair() {
            log(error.into());
        }
        if let Err(error) = nft::remove_table(&self.table()) {
            log(error.into());
        }
    }

    fn delete_pair(&self) -> Result<(), NetlinkError> {
        let mut host = Netlink::open()?;
        match host.link(&self.name()) {
            // An interface of the same name with another MAC belongs to another agent.
            Ok(link) if link.mac == self.mac() => host.delete(link.index),
            Ok(_) | Err(NetlinkError::NoSuchLink(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn name(&self) -> String {
        format!("{PREFIX}{}", self.number)
    }

    fn table(&self) -> String {
        format!("toroid.{:08x}", self.tag)
    }

    fn mac(&self) -> [u8; 6] {
        let [a, b, c, d] = self.tag.to_be_bytes();
        [0x02, 0x47, a, b, c, d]
    }

    /// Addresses of the host's end and the node's end.
    fn addresses(&self) -> [Ipv4Addr; 2] {
        let first = FIRST_ADDRESS.to_bits() + ADDRESSES_EACH * u32::from(self.number);
        [(first + 1).into(), (first + 2).into()]
    }

    /// The last rule names all pairs, because another agent's gateway may have the same uplink: the
    /// rules of that one protect its pair.
    fn rules_of_host(&self, is_router: bool) -> String {
        let (pair, uplink, [_, its]) = (self.name(), &self.uplink, self.addresses());
        let guard = if self.opened && !is_router {
            format!("    iifname \"{uplink}\" oifname != \"{PREFIX}*\" meta nfproto ipv4 drop\n")
        } else {
            String::new()
        };
        format!(
            r#"chain forward {{
    type filter hook forward priority filter; policy accept;
    iifname "{pair}" oifname "{uplink}" ip saddr {its} accept
    iifname "{pair}" drop
    iifname "{uplink}" oifname "{pair}" ct state established,related accept
    oifname "{pair}" drop
{guard}}}
chain input {{
    type filter hook input priority filter; policy accept;
    iifname "{pair}" ct state established,related accept
    iifname "{pair}" drop
}}
chain outgoing {{
    type nat hook postrouting priority srcnat; policy accept;
    oifname "{uplink}" ip saddr {its} masquerade
}}
"#
        )
    }

    /// The domain's MTU may exceed the uplink's. So the rules clamp the segment size of connections
    /// at their beginning: outside, path MTU discovery may fail.
    fn rules_of_node(&self, inside: Inside<'_>) -> String {
        let (pair, domain, subnet) = (self.name(), inside.interface, inside.subnet);
        format!(
            r#"chain forward {{
    type filter hook forward priority filter; policy accept;
    iifname "{domain}" oifname "{pair}" tcp flags syn tcp option maxseg size set rt mtu
    iifname "{domain}" oifname "{pair}" ip saddr {subnet} accept
    iifname "{domain}" drop
    iifname "{pair}" oifname "{domain}" ct state established,related accept
    iifname "{pair}" drop
}}
chain outgoing {{
    type nat hook postrouting priority srcnat; policy accept;
    oifname "{pair}" masquerade
}}
"#
        )
    }
}

/// Whether the host forwards IPv4 packets of all its interfaces, by its administrator's choice.
pub(crate) fn is_router() -> bool {
    let value = fs::read_to_string(setting("all", FORWARDING));
    value.is_ok_and(|value| value.trim() == "1")
}

/// Setting: an interface forwards received packets.
const FORWARDING: &str = "forwarding";

/// Setting: the ARP requests that an interface answers.
const ARP_IGNORE: &str = "arp_ignore";

/// Value: those for its own addresses. By default an interface answers for all addresses of its
/// host.
const ONLY_OWN: &str = "1";

fn setting(interface: &str, name: &str) -> String {
    format!("/proc/sys/net/ipv4/conf/{interface}/{name}")
}

fn set(interface: &str, name: &'static str, value: &str) -> Result<(), NatLinkError> {
    let path = setting(interface, name);
    fs::write(&path, value).map_err(|source| NatLinkError::Setting { path, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nat_link(number: u16) -> NatLink {
        NatLink {
            number,
            tag: 0x0102_0304,
            uplink: "eth1".into(),
            opened: true,
        }
    }

    #[test]
    fn every_pair_has_link_local_addresses_of_its_own() {
        let all = |number| nat_link(number).addresses().map(|a| a.octets());
        assert_eq!(all(0), [[169, 254, 64, 1], [169, 254, 64, 2]]);
        assert_eq!(all(3), [[169, 254, 64, 13], [169, 254, 64, 14]]);
        assert_eq!(all(PAIRS - 1), [[169, 254, 127, 253], [169, 254, 127, 254]]);
        assert!(nat_link(PAIRS - 1).name().len() <= 15);
    }

    #[test]
    fn only_a_host_that_is_a_router_forwards_from_the_uplink_to_others() {
        let guard = "iifname \"eth1\" oifname != \"toroid.gw*\" meta nfproto ipv4 drop";
        let has_guard = |opened, is_router| {
            let nat_link = NatLink {
                opened,
                ..nat_link(0)
            };
            nat_link.rules_of_host(is_router).contains(guard)
        };
        assert!(has_guard(true, false));
        assert!(!has_guard(true, true));
        assert!(!has_guard(false, false));
    }

    #[test]
    fn a_nat_link_survives_its_serialization() {
        let text = serde_json::to_string(&nat_link(7)).unwrap();
        assert_eq!(serde_json::from_str::<NatLink>(&text).unwrap(), nat_link(7));
    }
}
