//! Requests whose changes the leader has made lately, and the record of the one that it decides.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use toroid_fabric::NodeId;
use toroid_model::directory::Directory;
use toroid_model::directory::requests::{MadeRequest, RequestId};
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_model::rights::Actor;

/// Time that the record of a request is kept at least, from when this leader knows it. A client
/// repeats a request for a shorter time.
const KEPT: Duration = Duration::from_secs(60);

/// Most requests of one user or node that are kept for that time. An administrator's are not
/// limited.
const MOST: usize = 4096;

/// Records that one change removes at most, so that it stays small.
const FORGOTTEN: usize = 4;

/// Requests that the directory knows, by age. The effort for one does not grow with their number.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    /// Directory of the last look.
    known: Option<Directory>,
    /// About the oldest first, each with a time when it was young.
    since: VecDeque<(Instant, RequestId)>,
    /// Those of the last [`KEPT`] with their actors, the oldest first, and the number of each actor's.
    made: VecDeque<(Instant, Arc<str>)>,
    counts: HashMap<Arc<str>, usize>,
    /// Ends of the last attempts, and all ends of the last [`KEPT`], the oldest first.
    ended: HashMap<RequestId, Instant>,
    ends: VecDeque<(Instant, RequestId)>,
}

impl Requests {
    /// Admits the change of a request that has made none yet. Returns requests that are old enough
    /// to be forgotten with it: their last attempts have ended long ago.
    ///
    /// # Errors
    /// [`RefusalKind::Exhausted`] if the actor has made too many changes lately.
    pub(crate) fn admit(
        &mut self,
        now: Instant,
        directory: &Directory,
        actor: Actor,
        is_under_way: impl Fn(RequestId) -> bool,
    ) -> Result<Vec<RequestId>, Refusal> {
        self.look(now, directory);
        if !matches!(actor, Actor::Administrator(_)) {
            self.check(actor)?;
        }
        let mut old = Vec::new();
        while old.len() < FORGOTTEN
            && let Some((since, id)) = self.since.front().copied()
            && is_old(now, since)
        {
            self.since.pop_front();
            let ended = self.ended.remove(&id);
            if directory.made_request(id).is_none() {
                continue;
            }
            let used = ended.filter(|end| !is_old(now, *end));
            let used = used.or_else(|| is_under_way(id).then_some(now));
            match used {
                Some(used) => self.since.push_back((used, id)),
                None => old.push(id),
            }
        }
        // The change may fail.
        for id in old.iter().rev() {
            self.since.push_front((now - KEPT, *id));
        }
        Ok(old)
    }

    /// Notes the end of an attempt. A client may not have got the reply.
    pub(crate) fn note_end(&mut self, now: Instant, id: RequestId) {
        self.ended.insert(id, now);
        self.ends.push_back((now, id));
        while let Some((end, id)) = self.ends.front().copied()
            && is_old(now, end)
        {
            self.ends.pop_front();
            // Unless a later attempt has ended.
            if self.ended.get(&id) == Some(&end) {
                self.ended.remove(&id);
            }
        }
    }

    fn look(&mut self, now: Instant, directory: &Directory) {
        let nothing = || Directory::new(directory.torus());
        let is_first = self.known.is_none();
        let known = self.known.take().unwrap_or_else(nothing);
        for (id, made) in directory.requests_since(&known) {
            self.since.push_back((now, id));
            // The first ones may be old, and do not count.
            if !is_first {
                let by = Arc::from(&*made.by);
                *self.counts.entry(Arc::clone(&by)).or_default() += 1;
                self.made.push_back((now, by));
            }
        }
        let is_oldest_old = |(made, _): &(Instant, Arc<str>)| is_old(now, *made);
        while self.made.front().is_some_and(is_oldest_old)
            && let Some((_, by)) = self.made.pop_front()
            && let Some(count) = self.counts.get_mut(&by)
        {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&by);
            }
        }
        self.known = Some(directory.clone());
    }

    fn check(&self, actor: Actor) -> Result<(), Refusal> {
        let count = self.counts.get(&*actor.to_string());
        if count.is_none_or(|count| *count < MOST) {
            return Ok(());
        }
        let seconds = KEPT.as_secs();
        Err(Refusal::new(
            RefusalKind::Exhausted,
            format!("{actor} has made {MOST} changes in {seconds} s"),
            "try again later",
        ))
    }
}

fn is_old(now: Instant, time: Instant) -> bool {
    now.saturating_duration_since(time) >= KEPT
}

/// A request whose change is decided.
#[derive(Clone, Debug)]
pub(crate) struct Deciding {
    pub(crate) id: RequestId,
    /// Its record, as far as it is known before the change. The nodes are those that it hands over.
    pub(crate) made: MadeRequest,
    /// The domain that the reply describes.
    pub(crate) domain: Option<String>,
    /// Whether the change chooses nodes.
    pub(crate) allocates: bool,
    /// Requests that the change forgets.
    pub(crate) forgotten: Vec<RequestId>,
}

impl Deciding {
    /// The second part of the change, after one with this record or without effect.
    pub(crate) fn after(mut self, first: Option<&MadeRequest>) -> Self {
        if let Some(first) = first {
            self.made.hosts.extend(first.hosts.iter().cloned());
        }
        self
    }

    /// Adds the record of the request to its change, or to a part of it.
    pub(crate) fn note(&self, before: &Directory, directory: &mut Directory) {
        let mut made = self.made.clone();
        let domain = self.domain.as_deref();
        let domain = domain.and_then(|name| directory.domain(name).ok());
        made.domain = domain.map(|domain| domain.id);
        if self.allocates {
            let given = directory.given_since(before).into_iter();
            made.nodes = given.map(|node| (node.0, before.owner_of(node))).collect();
        } else {
            let has_owner =
                |(node, owner): (&u32, &Option<u32>)| directory.owner_of(NodeId(*node)) == *owner;
            made.leaving = !made.nodes.is_empty() && made.nodes.iter().all(has_owner);
            if !made.leaving {
                made.nodes.clear();
            }
        }
        made.hosts.extend(directory.concerned_since(before));
        directory.note_request(before, self.id, made, &self.forgotten);
    }
}

#[cfg(test)]
mod tests {
    use toroid_model::directory::Wanted;

    use super::*;

    const USER: Actor = Actor::User(1000);

    fn make(directory: &mut Directory, id: u128, by: &str, forgotten: &[RequestId]) {
        let before = directory.clone();
        let made = MadeRequest {
            by: by.into(),
            ..MadeRequest::default()
        };
        if directory.remove("blue").is_err() {
            let wanted = Wanted {
                name: "blue".into(),
                ..Wanted::default()
            };
            directory.create(wanted).unwrap();
        }
        directory.note_request(&before, RequestId(id), made, forgotten);
    }

    #[test]
    fn requests_are_kept_for_a_minute_of_each_leader() {
        let mut directory = Directory::new("1x1x1".parse().unwrap());
        make(&mut directory, 1, "uid 1000", &[]);
        let start = Instant::now();
        let mut requests = Requests::default();
        let mut old = |seconds: u64, directory: &Directory| {
            let now = start + Duration::from_secs(seconds);
            let old = requests.admit(now, directory, USER, |_| false).unwrap();
            old.iter().map(|id| id.0).collect::<Vec<_>>()
        };
        // However old it is, this leader does not know.
        assert_eq!(old(0, &directory), [0; 0]);
        make(&mut directory, 2, "uid 1000", &[]);
        assert_eq!(old(59, &directory), [0; 0]);
        assert_eq!(old(60, &directory), [1]);
        // As if that change had failed.
        assert_eq!(old(61, &directory), [1]);
        make(&mut directory, 3, "uid 1000", &[RequestId(1)]);
        assert_eq!(old(118, &directory), [0; 0]);
        for id in 4..20 {
            make(&mut directory, id, "uid 1000", &[]);
        }
        assert_eq!(old(119, &directory), [2]);
        assert_eq!(old(1000, &directory), [2, 3, 4, 5]);
    }

    /// A change that waited for a slow host was once forgotten before its client could ask again.
    #[test]
    fn a_request_is_kept_for_a_minute_after_its_last_attempt() {
        let mut directory = Directory::new("1x1x1".parse().unwrap());
        make(&mut directory, 1, "uid 1000", &[]);
        let start = Instant::now();
        let mut requests = Requests::default();
        let at = |seconds| start + Duration::from_secs(seconds);
        let old = |requests: &mut Requests, seconds, is_under_way: bool| {
            let old = requests.admit(at(seconds), &directory, USER, |_| is_under_way);
            old.unwrap().len()
        };
        assert_eq!(old(&mut requests, 0, true), 0);
        assert_eq!(old(&mut requests, 70, true), 0);
        requests.note_end(at(100), RequestId(1));
        assert_eq!(old(&mut requests, 130, false), 0);
        assert_eq!(old(&mut requests, 159, false), 0);
        assert_eq!(old(&mut requests, 160, false), 1);
    }

    #[test]
    fn one_actor_fills_only_its_own_records() {
        let mut directory = Directory::new("1x1x1".parse().unwrap());
        for id in 0..MOST as u128 {
            make(&mut directory, id, "uid 1000", &[]);
        }
        let (start, mut requests) = (Instant::now(), Requests::default());
        let empty = Directory::new(directory.torus());
        let begin = start - Duration::from_secs(1);
        requests.admit(begin, &empty, USER, |_| false).unwrap();
        let refusal = requests
            .admit(start, &directory, USER, |_| false)
            .unwrap_err();
        assert_eq!(refusal.kind, RefusalKind::Exhausted);
        for other in [Actor::User(1001), Actor::Administrator(1000)] {
            requests.admit(start, &directory, other, |_| false).unwrap();
        }
        let old = requests.admit(start + KEPT, &directory, USER, |_| false);
        assert_eq!(old.unwrap().len(), FORGOTTEN);
        assert!(requests.counts.is_empty() && requests.made.is_empty());
    }

    /// Refused ones have no record. Thousands of their ends were once kept, and searched at each end.
    #[test]
    fn ends_of_attempts_are_kept_for_a_minute() {
        let (start, mut requests) = (Instant::now(), Requests::default());
        for id in 0..1000 {
            requests.note_end(start, RequestId(id));
        }
        let later = start + KEPT - Duration::from_secs(1);
        requests.note_end(later, RequestId(7));
        assert_eq!(requests.ended.len(), 1000);
        requests.note_end(start + KEPT, RequestId(1000));
        assert_eq!(requests.ended.len(), 2);
        assert_eq!(requests.ended[&RequestId(7)], later);
    }
}
