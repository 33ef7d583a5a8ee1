//! `toroid directory move`: the leader's part.
//!
//! ```text
//!   leader                            new place (etcd, or the files of a host)
//!   takes a turn, no change is made
//!   plans the record of the move ───> keeps a copy with the record, which none leads from
//!   makes the record durable at the old place: the move is committed
//!   sends it to all hosts             leads, as a host that has seen the record at the old place
//!   starts again, as a follower or candidate
//! ```
//!
//! A leader that dies before the commit leads on after its restart, and the copy is of no use. After
//! the commit, any host with the record completes the move.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use toroid_model::directory::Directory;
use toroid_model::directory::records::{Changes, Records};
use toroid_model::hosts::ETCD;
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_protocol::hosts::{DirectoryUpdate, HostRequest, HostResponse};

use super::audit::Caller;
use super::host::{Ending, Host};
use super::offers;
use crate::cluster::Cluster;
use crate::cluster::etcd::{Election, Etcd, Tenure};
use crate::members::Members;
use crate::random;
use crate::store::Store;

/// Time for a host to take an offer, also if it lacks changes that do not concern it.
const OFFER: Duration = Duration::from_secs(5);

/// Time in which a lead on etcd ends whose host was killed.
const LEASE: Duration = Duration::from_secs(5);

/// Time for a large copy on etcd, and for the rest of an interrupted one.
const COPY: Duration = Duration::from_secs(15);

/// Pause between attempts.
const PAUSE: Duration = Duration::from_millis(100);

impl Host {
    /// Moves the directory to etcd, or to the files of a host. The caller has its turn.
    pub(super) fn move_directory(&self, caller: &Caller, to: &str) -> Result<(), Refusal> {
        caller.actor.may_administer("move the directory")?;
        let cluster = self.among_hosts()?;
        check_certain(&self.members)?;
        let from = &cluster.config.directory;
        let candidates = self.members.directory(|its| check(cluster, its, to))?;
        let nonce = random::bytes().map(u64::from_ne_bytes)?;
        let plan = |directory: &mut Directory| {
            check_fences(directory)?;
            directory.relocate(from, to, candidates, nonce);
            Ok::<_, Refusal>(())
        };
        let ((), next) = self.members.plan(plan)?;
        let lead = if to == ETCD {
            Some(copy_to_etcd(cluster, &next)?)
        } else {
            self.offer(cluster, to, &next)?;
            None
        };
        tracing::info!("moving the directory from {from} to {to}");
        let moved = next.clone();
        if let Err(refusal) = self.members.adopt(next) {
            if let Some((etcd, _)) = lead {
                etcd.resign();
            }
            if self.members.is_uncertain() {
                // The next life finds out whether the move was committed.
                self.start_again();
            }
            return Err(refusal);
        }
        cluster.moves.keep(&moved);
        *cluster.moves.next_lead.lock() = lead;
        Ok(())
    }

    /// Ends this life of a leader whose directory has moved, when all hosts know.
    pub(super) fn leave_lead(&self) {
        let cluster = self.cluster.as_ref();
        if let Some(candidacy) = cluster.and_then(|cluster| cluster.candidacy.as_ref()) {
            candidacy.resign();
        }
        self.start_again();
    }

    /// Lets this agent start again, unless it ends.
    pub(crate) fn start_again(&self) {
        // This fails only when the agent is ending anyway.
        let _ = self.ending.send(Ending::Again);
    }

    /// Lets the host that is to lead keep a complete copy.
    fn offer(&self, cluster: &Cluster, to: &str, next: &Directory) -> Result<(), Refusal> {
        let present = self.members.directory(Directory::clone);
        let Some(since) = present.revision() else {
            return Err(unreachable(to, "the directory has no revision"));
        };
        let Changes { put, remove } = next.changes_since(&present);
        let offer = DirectoryUpdate::Changes { since, put, remove };
        if to == cluster.config.host {
            return offers::keep(self, cluster, &offer);
        }
        let end = Instant::now() + OFFER;
        loop {
            let link = cluster.followers().get(to).cloned();
            let Some(link) = link.filter(|link| !link.has_ended()) else {
                let problem = cluster.problems.of(to, Instant::now());
                let problem = problem.unwrap_or_else(|| "it is not connected".into());
                return Err(unreachable(to, &problem));
            };
            match link.ask(HostRequest::Offer(offer.clone()), OFFER) {
                Ok(HostResponse::Done) => return Ok(()),
                // It may lack a change that does not concern it.
                Ok(HostResponse::Refused(refusal))
                    if refusal.kind == RefusalKind::Failed && Instant::now() < end => {}
                Ok(HostResponse::Refused(refusal)) => return Err(refusal),
                Ok(_) => return Err(unreachable(to, "it does not answer as it should")),
                Err(error) => return Err(unreachable(to, &error.to_string())),
            }
            thread::sleep(PAUSE);
        }
    }
}

/// Refuses a move while an earlier change may have been made or not. If that was a move, another one
/// would replace its offer at the host which is to lead.
fn check_certain(members: &Members) -> Result<(), Refusal> {
    if !members.is_uncertain() {
        return Ok(());
    }
    Err(Refusal::new(
        RefusalKind::Failed,
        "whether the last change of the directory was made is unknown",
        "make that change again, which settles it, and move the directory then",
    ))
}

/// Checks that the directory can move to a place. Returns the candidates there.
fn check(cluster: &Cluster, directory: &Directory, to: &str) -> Result<BTreeSet<String>, Refusal> {
    let (config, file) = (&cluster.config, &cluster.file);
    let refuse = |kind, message: String, remedy: &str| Err(Refusal::new(kind, message, remedy));
    if to == config.directory {
        let place = if to == ETCD { "on etcd" } else { "there" };
        let message = format!("the directory is {place} already");
        return refuse(RefusalKind::Exists, message, "see `toroid status`");
    }
    if to != ETCD {
        if to == config.host || directory.is_admitted(to) {
            return Ok(Default::default());
        }
        let message = format!("host {} knows no host {to}", config.host);
        let remedy = "name etcd, or a host of `toroid host ls`";
        return refuse(RefusalKind::NotFound, message, remedy);
    }
    if file.etcd.is_none() || !file.candidates.contains(&config.host) {
        let message = format!("the file of host {} has no access to etcd", config.host);
        let remedy = "add its [etcd] and `candidates` with that host, kill its agent (`kill -9`), \
                      and start it again: `toroid up --config FILE`";
        return refuse(RefusalKind::Invalid, message, remedy);
    }
    let is_there = |host: &str| host == config.host || directory.is_admitted(host);
    let candidates = file.candidates.iter().map(String::as_str);
    let unknown: Vec<&str> = candidates.filter(|host| !is_there(host)).collect();
    if !unknown.is_empty() {
        let names = unknown.join(", ");
        let message = format!(
            "the file of host {} names candidates that are not admitted: {names}",
            config.host
        );
        let remedy = "start their agents, and see `toroid host ls`; or correct `candidates`, kill \
                      this agent (`kill -9`), and start it again: `toroid up --config FILE`";
        return refuse(RefusalKind::NotFound, message, remedy);
    }
    Ok(file.candidates.clone())
}

/// Refuses a move while a domain has a fence: the leases that fences count on are of one leader.
fn check_fences(directory: &Directory) -> Result<(), Refusal> {
    let fenced = directory.fenced_domains();
    let fenced: Vec<&str> = fenced.map(|domain| domain.name.as_str()).collect();
    if fenced.is_empty() {
        return Ok(());
    }
    let names = fenced.join(", ");
    Err(Refusal::new(
        RefusalKind::Invalid,
        format!("the directory cannot move while domains have fences: {names}"),
        "`toroid domain set DOMAIN --fence off` for each, and set them again afterwards",
    ))
}

/// Makes a copy on etcd, and takes the lead there for the next life of this agent.
fn copy_to_etcd(cluster: &Cluster, next: &Directory) -> Result<(Etcd, Tenure), Refusal> {
    let access = cluster.file.etcd.as_ref().ok_or_else(|| {
        let message = "this host has no access to etcd";
        Refusal::new(RefusalKind::Invalid, message, "add [etcd] to its file")
    })?;
    let place = format!("{} in etcd", access.prefix);
    let config = &cluster.config;
    let etcd = Etcd::open(access, config.torus, None).map_err(|error| error.refusal())?;
    // Before anything is written.
    let found = etcd.records().map_err(|error| error.refusal())?;
    check_target(&place, &found, next)?;
    let end = Instant::now() + LEASE;
    let tenure = loop {
        match etcd
            .campaign(&config.host, None)
            .map_err(|error| error.refusal())?
        {
            Election::Won(tenure) => break tenure,
            // A host that was killed in a move left it.
            Election::Led(_) if Instant::now() < end => {}
            Election::Led(other) => {
                return Err(Refusal::new(
                    RefusalKind::Exists,
                    format!("host {other} leads the directory {place}"),
                    "end its agent, or choose another `prefix` in the files of all candidates",
                ));
            }
        }
        thread::sleep(PAUSE);
    };
    let mut store = etcd.store(&tenure);
    let copied = store.load().map_err(Refusal::from).and_then(|found| {
        check_target(&place, &found, next)?;
        store.replace(&found, &next.records(), COPY)?;
        Ok(())
    });
    if let Err(refusal) = copied {
        etcd.resign();
        return Err(refusal);
    }
    Ok((etcd, tenure))
}

/// Refuses a place that has anything else than a copy of this directory which moved away, or which
/// never came into use.
fn check_target(place: &str, found: &Records, next: &Directory) -> Result<(), Refusal> {
    if found.is_empty() {
        return Ok(());
    }
    let found = Directory::from_records(found).ok();
    let fabric = |directory: &Directory| directory.revision().map(|its| its.fabric);
    let is_former = |found: &Directory| {
        let is_away = found.moved().is_some_and(|moved| moved.to != ETCD);
        fabric(found) == fabric(next) && (is_away || found.is_arriving())
    };
    if found.is_some_and(|found| is_former(&found)) {
        return Ok(());
    }
    Err(Refusal::new(
        RefusalKind::Exists,
        format!("the directory {place} is not empty"),
        "choose another `prefix` in the files of all candidates, or remove its keys: `etcdctl del \
         --prefix PREFIX/`; nothing was changed",
    ))
}

fn unreachable(host: &str, why: &str) -> Refusal {
    Refusal::new(
        RefusalKind::Failed,
        format!("host {host} cannot lead: {why}"),
        "nothing was changed; see to that host, and try again",
    )
}

#[cfg(test)]
mod tests {
    use toroid_model::directory::Wanted;
    use toroid_model::directory::revision::FabricId;
    use toroid_model::host_key::PublicKey;
    use toroid_model::hosts::etcd::EtcdConfig;

    use super::*;
    use crate::cluster::tests::cluster;
    use crate::leases::Leases;
    use crate::store::memory::{Memory, Mood};

    fn led(fabric: u128) -> Directory {
        let mut directory = Directory::new("2x1x1".parse().unwrap());
        directory.begin_term(FabricId(fabric), 1);
        directory
    }

    fn moved(before: &Directory, from: &str, to: &str) -> Directory {
        let mut next = before.clone();
        next.relocate(from, to, BTreeSet::new(), 7);
        next.advance(before);
        next
    }

    #[test]
    fn a_directory_moves_to_an_empty_place_or_to_one_that_it_has_left() {
        let directory = led(1);
        let next = moved(&directory, "a", ETCD);
        let target = |found: &Records| check_target("/toroid in etcd", found, &next);
        target(&Records::new()).unwrap();
        // An attempt that was not committed, and a former place.
        target(&next.records()).unwrap();
        target(&moved(&next, ETCD, "b").records()).unwrap();
        let mut begun = next.clone();
        begun.begin_term(FabricId(1), 2);
        let other = moved(&led(2), ETCD, "b");
        let foreign = [("what".into(), "0".into())].into();
        for found in [
            directory.records(),
            begun.records(),
            other.records(),
            foreign,
        ] {
            let refusal = target(&found).unwrap_err();
            assert!(refusal.message.contains("is not empty"), "{refusal}");
            assert!(refusal.remedy.contains("prefix"), "{refusal}");
        }
    }

    #[test]
    fn a_directory_with_fences_stays() {
        let mut directory = led(1);
        let wanted = Wanted {
            name: "blue".into(),
            ..Wanted::default()
        };
        directory.create(wanted).unwrap();
        check_fences(&directory).unwrap();
        directory.fence("blue", Some(10)).unwrap();
        let refusal = check_fences(&directory).unwrap_err();
        assert!(refusal.message.ends_with("fences: blue"), "{refusal}");
        assert!(refusal.remedy.contains("--fence off"), "{refusal}");
    }

    /// A second move to a host once replaced its offer of the first, which had been committed.
    #[test]
    fn a_directory_whose_last_change_is_in_doubt_stays() {
        let (directory, memory) = (led(1), Memory::default());
        let (members, _) = Members::new(
            directory.clone(),
            Box::new(memory.clone()),
            1 << 20,
            Leases::none(),
        );
        check_certain(&members).unwrap();
        memory.feels(Mood::Silent);
        members.adopt(moved(&directory, ETCD, "b")).unwrap_err();
        let refusal = check_certain(&members).unwrap_err();
        assert!(refusal.message.contains("is unknown"), "{refusal}");
        // The same or any other change settles it.
        memory.feels(Mood::Well);
        members.adopt(moved(&directory, ETCD, "b")).unwrap();
        check_certain(&members).unwrap();
    }

    #[test]
    fn a_directory_moves_to_known_places_only() {
        let mut cluster = cluster();
        let mut directory = led(1);
        directory.set_host_keys("c", vec![PublicKey([3; 32])]);
        let check = |cluster: &Cluster, to| check(cluster, &directory, to);
        let refused = |cluster: &Cluster, to, words: &str| {
            let refusal = check(cluster, to).unwrap_err();
            assert!(refusal.to_string().contains(words), "{to}: {refusal}");
        };
        refused(&cluster, "a", "there already");
        refused(&cluster, "z", "knows no host z");
        // The file has an address of b, but b has never come.
        refused(&cluster, "b", "knows no host b");
        refused(&cluster, ETCD, "add its [etcd]");
        assert!(check(&cluster, "c").unwrap().is_empty());
        cluster.file.etcd = Some(EtcdConfig {
            endpoints: vec!["http://10.0.0.1:2379".into()],
            prefix: "/toroid".into(),
            ca: None,
            cert: None,
            key: None,
        });
        cluster.file.candidates = ["a", "c", "z"].map(str::to_owned).into();
        refused(&cluster, ETCD, "are not admitted: z");
        cluster.file.candidates.remove("z");
        let candidates = check(&cluster, ETCD).unwrap();
        assert_eq!(candidates, cluster.file.candidates);
        cluster.config.directory = ETCD.into();
        refused(&cluster, ETCD, "on etcd already");
        // Back to this host's own files.
        check(&cluster, "a").unwrap();
    }
}
