//! Hollow hosts: followers that carry nothing, for measurements with more hosts than one machine has
//! room for.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use toroid_model::hosts::HostConfig;
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_protocol::hosts::{HostRequest, HostResponse};

use crate::channel::key_pair::KeyPair;
use crate::cluster::link::Link;
use crate::cluster::{Cluster, unreachable};
use crate::error::{AgentError, during};
use crate::sessions::follower::claim;
use crate::threads;

/// A follower that confirms every update and carries nothing out. It has no state on disk, no
/// processes, and its nodes exist in the leader's directory only. Dropping it ends its session.
#[derive(Debug)]
pub struct HollowHost {
    link: Arc<Link>,
}

impl HollowHost {
    /// Follows the leader of `config`, and takes `delay` to confirm each update.
    ///
    /// # Errors
    /// The key cannot be read, or the leader cannot be reached or refuses the host.
    pub fn follow(config: HostConfig, delay: Duration) -> Result<Self, Refusal> {
        let leader = config.directory.clone();
        let claim = claim(&config);
        let keys = KeyPair::generate().map_err(during("make a key pair"));
        let made = keys.and_then(|keys| Cluster::new(config, keys));
        let cluster = made.map_err(|error| error.refusal())?;
        let session = cluster
            .dial(&leader, None, Some(claim))
            .map_err(|error| unreachable(&leader, &error.to_string(), ""))?;
        let link = Link::new(leader, session.writer);
        let attended = Arc::clone(&link);
        let attend = move || {
            attended.attend(session.reader, move |request| confirm(&request, delay));
        };
        threads::start(attend)
            .map_err(during("start the thread of a hollow host"))
            .map_err(|error: AgentError| error.refusal())?;
        Ok(HollowHost { link })
    }
}

impl Drop for HollowHost {
    fn drop(&mut self) {
        self.link.end();
    }
}

fn confirm(request: &HostRequest, delay: Duration) -> HostResponse {
    match request {
        HostRequest::Page(_) => HostResponse::Done,
        HostRequest::Adopt(_) => {
            thread::sleep(delay);
            HostResponse::Done
        }
        _ => HostResponse::Refused(Refusal::new(
            RefusalKind::Invalid,
            "the host is hollow",
            "only hosts with an agent of their own serve others",
        )),
    }
}
