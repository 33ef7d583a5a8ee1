//! Routes for packets from the node of a NAT link: those of its uplink alone, in a table of their own.
//!
//! The main table of the host may prefer another uplink. Packets that it sent there would be dropped,
//! so that of two gateways of one host only one would work. A rule for packets from the address of
//! the node's end chooses the table. The kernel checks by the same rule that replies come in by the
//! uplink (`rp_filter`).

use std::net::Ipv4Addr;

use toroid_netlink::policy::{MAIN_TABLE, Route};
use toroid_netlink::{Netlink, NetlinkError};

/// Priority of the rules: before that of the main table.
const PRIORITY: u32 = 30_000;

/// Routes that a table takes. Of an uplink with more, the main table decides.
const MAX_ROUTES: usize = 256;

/// A table, and the address whose packets go by it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Policy {
    pub(super) table: u32,
    pub(super) source: Ipv4Addr,
}

impl Policy {
    /// Gives the table the present routes of an uplink, by its index.
    pub(super) fn follow(self, uplink: u32) -> Result<(), NetlinkError> {
        let wanted = Netlink::routes(MAIN_TABLE, Some(uplink), MAX_ROUTES)?.unwrap_or_default();
        let present = self.routes()?;
        let mut host = Netlink::open()?;
        // Next hops are looked up among the direct routes.
        let (direct, further): (Vec<_>, Vec<_>) = wanted.iter().partition(|its| its.is_direct());
        for route in direct.into_iter().chain(further) {
            if !present.contains(route) {
                host.put_route(self.table, route)?;
            }
        }
        for gone in present.iter().filter(|its| !wanted.contains(its)) {
            host.remove_route(self.table, gone)?;
        }
        host.add_source_rule(self.source, self.table, PRIORITY)
    }

    /// Removes the rule and the routes.
    pub(super) fn end(self) -> Result<(), NetlinkError> {
        let mut host = Netlink::open()?;
        host.remove_source_rule(self.source, self.table, PRIORITY)?;
        for route in self.routes()? {
            host.remove_route(self.table, &route)?;
        }
        Ok(())
    }

    fn routes(self) -> Result<Vec<Route>, NetlinkError> {
        Ok(Netlink::routes(self.table, None, usize::MAX)?.unwrap_or_default())
    }
}
