//! The directory on real etcd servers, which the tests start.

mod elections;
mod faults;
mod moves;
mod refusals;
mod server;
mod stores;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use etcd_client::Client;
use toroid_fabric::NodeId;
use toroid_model::directory::records::{Changes, Records};
use toroid_model::directory::revision::FabricId;
use toroid_model::directory::{Directory, Wanted, full_members};

use super::servers::Servers;
use super::{Election, Etcd, EtcdError, EtcdStore, Tenure};
use crate::store::Store;
use server::Cluster;

/// With more nodes than a domain has addresses by default.
const TORUS: &str = "16x16x8";

fn open(cluster: &Cluster) -> Etcd {
    Etcd::open(&cluster.config(), TORUS.parse().unwrap(), None).unwrap()
}

/// A handle whose requests have less time. On a busy machine it takes some attempts.
fn hasty(cluster: &Cluster, patience: Duration) -> Etcd {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let mut servers = Servers::new(&cluster.config()).unwrap();
        servers.patience = patience;
        match Etcd::open_with(servers, TORUS.parse().unwrap(), None) {
            Ok(etcd) => return etcd,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
    }
}

fn win(etcd: &Etcd, host: &str) -> Tenure {
    match etcd.campaign(host, None).unwrap() {
        Election::Won(tenure) => tenure,
        Election::Led(other) => panic!("{other} leads"),
    }
}

/// A store with this directory.
fn store_with(etcd: &Etcd, tenure: &Tenure, directory: &Directory) -> EtcdStore {
    let mut store = etcd.store(tenure);
    assert_eq!(store.load().unwrap(), Records::new());
    let all = Changes::between(&Records::new(), &directory.records());
    store.commit(&all).unwrap();
    store
}

/// Asks a server as another program would.
fn ask<T: Send + 'static, F>(
    etcd: &Etcd,
    request: impl Fn(Client) -> F + Clone + Send + Sync + 'static,
) -> Result<T, EtcdError>
where
    F: Future<Output = Result<T, etcd_client::Error>> + Send,
{
    etcd.run(
        move |servers: Arc<Servers>| async move { servers.ask(servers.patience, request).await },
    )
}

/// Puts a key below the prefix.
fn put(etcd: &Etcd, key: &str, value: &str) {
    let (key, value) = (format!("/toroid/test/{key}"), value.to_owned());
    let put = move |mut client: Client| {
        let (key, value) = (key.clone(), value.clone());
        async move { client.put(key, value, None).await }
    };
    ask(etcd, put).unwrap();
}

fn directory() -> Directory {
    let mut directory = Directory::new(TORUS.parse().unwrap());
    directory.begin_term(FabricId(7), 1);
    directory
}

/// The same with a domain, at the next revision.
fn with_domain(before: &Directory, name: &str, members: impl Iterator<Item = u32>) -> Directory {
    let mut directory = before.clone();
    let members: BTreeSet<NodeId> = members.map(NodeId).collect();
    let wanted = Wanted {
        name: name.into(),
        members: full_members(members),
        ..Wanted::default()
    };
    directory.create(wanted).unwrap();
    directory.advance(before);
    directory
}

fn without(before: &Directory, name: &str, members: &[u32]) -> Directory {
    let mut directory = before.clone();
    let members = members.iter().copied().map(NodeId).collect();
    directory.shrink(name, &members).unwrap();
    directory.advance(before);
    directory
}
