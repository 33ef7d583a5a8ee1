//! Other hosts and external networks: tunnels and uplinks.

use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use toroid_client::rdma::prepare_line;
use toroid_fabric::Partition;
use toroid_model::rdma::Rdma;
use toroid_protocol::driver::Uplink as UplinkSpec;
use toroid_protocol::seal::SealKeys;
use tracing::warn;

use super::rdma_streams::StreamSupervisor;
use super::{ControlPath, PortFailure, PortKey};
use crate::port::uplink::Uplink;
use crate::switch::{Switch, SwitchEnded, TunnelId};
use crate::tunnel::{HostId, Tunnel};

impl ControlPath {
    pub(super) fn retain(
        &mut self,
        wanted: &[PortKey],
        hosts: &[String],
        rdma: Option<Rdma>,
        sealed: bool,
    ) -> Result<(), SwitchEnded> {
        let wanted: HashSet<PortKey> = wanted.iter().copied().collect();
        let present = self.ports.keys().chain(&self.remote_members);
        let extra: Vec<PortKey> = present.filter(|k| !wanted.contains(k)).copied().collect();
        extra.into_iter().try_for_each(|key| self.remove(key))?;
        let domains = wanted.iter().map(|(domain_id, _)| Partition(*domain_id));
        let domains = domains.collect();
        self.switch
            .call(move |switch| switch.retain_links(&domains))?;
        // All tunnels are made anew for another RDMA device or none.
        let is_same = std::mem::replace(&mut self.rdma, rdma) == self.rdma;
        let stay = if is_same { hosts } else { &[] };
        for id in self.tunnels.except(stay, sealed) {
            self.switch.call(move |switch| switch.cut_tunnel(id.host))?;
            self.tunnels.remove(id);
        }
        Ok(())
    }

    /// The number of a host.
    pub(super) fn host(&mut self, name: &str) -> HostId {
        if let Some(number) = self.host_numbers.get(name) {
            return *number;
        }
        let number = HostId(self.hosts.len() as u32);
        self.hosts.push(name.into());
        self.host_numbers.insert(name.into(), number);
        number
    }

    pub(super) fn connect_tunnel(
        &mut self,
        host: String,
        asks: bool,
        keys: Option<SealKeys>,
        socket: Option<OwnedFd>,
    ) -> Result<(), SwitchEnded> {
        let keys = keys.as_ref().map(|SealKeys(keys)| keys);
        let number = self.host(&host);
        let (id, by_rdma) = self.tunnels.add(number, host.clone(), keys.is_some());
        let connected = match socket.map(|socket| Tunnel::new(socket, keys, by_rdma)) {
            Some(Ok(tunnel)) => self.use_tunnel(id, tunnel, host, asks)?,
            Some(Err(error)) => Err(error),
            None => Err(io::ErrorKind::NotConnected.into()),
        };
        if let Err(error) = connected {
            warn!("cannot use a connection to another host: {error}");
            self.switch.call(move |switch| switch.cut_tunnel(id.host))?;
            self.tunnels.remove(id);
        }
        Ok(())
    }

    pub(super) fn end_tunnel(&mut self, host: &str) -> Result<(), SwitchEnded> {
        if let Some(id) = self.tunnels.to(host) {
            self.switch.call(move |switch| switch.cut_tunnel(id.host))?;
            self.tunnels.remove(id);
        }
        Ok(())
    }

    /// Starts using a tunnel, with a supervisor of RDMA streams if a device is configured.
    fn use_tunnel(
        &self,
        id: TunnelId,
        tunnel: Tunnel,
        host: String,
        asks: bool,
    ) -> Result<io::Result<()>, SwitchEnded> {
        let supervisor = self.rdma.clone().map(|rdma| {
            let prepare = Arc::new(move || prepare_line(&rdma));
            let tunnels = Arc::clone(&self.tunnels);
            let report_failure = Box::new(move |why: &str| tunnels.report_failure(&host, why));
            StreamSupervisor::new(id, asks, prepare, &self.switch, report_failure)
        });
        let (supervisor, events) = supervisor.unzip();
        let connected = self
            .switch
            .call(move |switch| switch.connect_tunnel(id, tunnel, events))?;
        // Without the thread packets go over the connection.
        if let Some(Err(error)) = supervisor.map(StreamSupervisor::start) {
            warn!("no thread for a stream to another host: {error}");
        }
        Ok(connected)
    }

    /// Opens and closes uplinks; unchanged uplinks stay.
    pub(super) fn connect(&mut self, wanted: Vec<UplinkSpec>) -> Result<(), SwitchEnded> {
        let unwanted = self
            .uplinks
            .extract_if(|_, uplink| !wanted.contains(uplink));
        for (domain_id, _) in unwanted {
            let partition = Partition(domain_id);
            self.switch
                .call(move |switch| switch.disconnect(partition))?;
        }
        for uplink in wanted {
            if self.uplinks.contains_key(&uplink.domain_id) {
                continue;
            }
            let key = (uplink.domain_id, uplink.node);
            let outcome = match Uplink::open(uplink.index) {
                Ok(opened) => {
                    let outside = uplink.clone();
                    let connected = move |switch: &mut Switch| switch.connect(&outside, opened);
                    let connected = self.switch.call(connected)?;
                    connected.map_err(PortFailure::Outside)
                }
                Err(source) => Err(PortFailure::Uplink {
                    name: uplink.ifname.clone(),
                    source,
                }),
            };
            if outcome.is_ok() {
                self.uplinks.insert(uplink.domain_id, uplink);
            }
            self.record(key, outcome);
        }
        Ok(())
    }
}
