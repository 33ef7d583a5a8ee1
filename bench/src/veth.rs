//! A kernel veth pair between two measured nodes.

use crate::cluster::{Cluster, ClusterError, Process};
use crate::worker::Order;
use crate::worker::veth::{CREATOR, LENDER, create_between};

/// Creates the pair between the nodes of two workers, the lender and the creator, and configures
/// both ends.
pub fn connect(cluster: &mut Cluster, ends: [(&str, &mut Process); 2]) -> Result<(), ClusterError> {
    let [(lender, lending), (creator, creating)] = ends;
    if cluster.control()?.status()?.private_users {
        let networks = [cluster.network(creator)?, cluster.network(lender)?];
        create_between(networks.each_ref()).map_err(ClusterError::ours)?;
    } else {
        let socket = cluster.path("namespace.sock");
        cluster.ask::<()>(lending, &Order::LendNamespace(socket.clone()))?;
        cluster.ask::<()>(creating, &Order::CreateVeth(socket))?;
    }
    cluster.ask::<()>(lending, &Order::ConfigureVeth(LENDER))?;
    cluster.ask(creating, &Order::ConfigureVeth(CREATOR))
}
