//! Moves of the directory, as this host knows them. A file that names a former place is obeyed no
//! more: this host looks for the leader, or stands for election, where the directory is now.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use toroid_model::directory::Directory;
use toroid_model::directory::moved::Moved;
use toroid_model::directory::revision::FabricId;
use toroid_model::hosts::{ETCD, HostConfig};
use toroid_model::refusal::{Refusal, RefusalKind};

use super::Cluster;
use super::etcd::{Etcd, Tenure};

/// Time after a move in which its new leader may still be starting.
const ARRIVAL: Duration = Duration::from_secs(10);

/// Moves of the directory.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    /// The last move that any host has told of, and when this life heard of it.
    last: Mutex<Option<(Moved, Instant)>>,
    /// The last move in this host's copy of the directory: it was committed.
    kept: Mutex<Option<Moved>>,
    /// Fabric of the copy.
    fabric: Mutex<Option<FabricId>>,
    /// A move in this host's copy to a place that is lost, as an administrator says.
    lost: Option<Moved>,
    /// Lead on etcd that this host has taken for its next life.
    pub(crate) next_lead: Mutex<Option<(Etcd, Tenure)>>,
}

impl Moves {
    /// Moves at the start of an agent, whose copy of the directory has the last one and the fabric.
    ///
    /// # Errors
    /// A refusal if the file's owner says that another place is lost.
    pub(crate) fn new(
        file: &HostConfig,
        (kept, fabric): (Option<Moved>, Option<FabricId>),
    ) -> Result<Self, Refusal> {
        let is_lost = |moved: &Moved| file.lost.as_ref() == Some(&moved.to);
        if let Some(lost) = file.lost.as_ref()
            && !kept.as_ref().is_some_and(is_lost)
        {
            let message =
                format!("this host's copy knows of no last move of the directory to {lost}");
            let remedy = "leave --lost out";
            return Err(Refusal::new(RefusalKind::Invalid, message, remedy));
        }
        let last = kept.clone().filter(|moved| !is_lost(moved));
        Ok(Moves {
            last: Mutex::new(last.map(|last| (last, Instant::now()))),
            fabric: Mutex::new(fabric),
            lost: kept.clone().filter(is_lost),
            kept: Mutex::new(kept),
            next_lead: Mutex::default(),
        })
    }

    /// Notes a move that another host, or etcd, tells of. Returns whether it is news.
    pub(crate) fn note(&self, moved: Moved) -> bool {
        let is_foreign = |ours: FabricId| ours != moved.revision.fabric;
        // A follower of the new leader may still have the move to the place that is lost.
        if self.fabric.lock().is_some_and(is_foreign) || self.lost.as_ref() == Some(&moved) {
            return false;
        }
        let mut last = self.last.lock();
        let is_news = last
            .as_ref()
            .is_none_or(|(last, _)| last.revision.number < moved.revision.number);
        if is_news {
            *last = Some((moved, Instant::now()));
        }
        is_news
    }

    /// Notes this host's copy of the directory, with the last move in it.
    pub(crate) fn keep(&self, directory: &Directory) {
        let revision = directory.revision();
        *self.fabric.lock() = revision.map(|its| its.fabric);
        *self.kept.lock() = directory.moved().cloned();
        let moved = directory.moved();
        let moved = moved.filter(|moved| self.lost.as_ref() != Some(*moved));
        let mut last = self.last.lock();
        let is_later = |told: &Moved| {
            let its = revision.filter(|its| its.fabric == told.revision.fabric);
            its.is_some_and(|its| its.number < told.revision.number)
        };
        let told = last.as_ref().map(|(told, _)| told);
        if told != moved && !told.is_some_and(is_later) {
            *last = moved.map(|moved| (moved.clone(), Instant::now()));
        }
    }

    /// Whether the leader at the place of the last move may still be starting.
    pub(crate) fn is_recent(&self) -> bool {
        let last = self.last.lock();
        last.as_ref()
            .is_some_and(|(_, since)| since.elapsed() < ARRIVAL)
    }

    pub(crate) fn kept(&self) -> Option<Moved> {
        self.kept.lock().clone()
    }

    /// The last known move that this host follows.
    pub(crate) fn last(&self) -> Option<Moved> {
        self.last.lock().as_ref().map(|(last, _)| last.clone())
    }
}

impl Cluster {
    /// Where the directory is as far as this host knows, and the hosts that may lead there.
    pub(crate) fn whereabouts(&self) -> (String, Vec<String>) {
        let last = self.moves.last();
        let now = self.file.whereabouts(last.as_ref());
        let leaders = now.possible_leaders().into_iter();
        (now.directory.into(), leaders.map(str::to_owned).collect())
    }

    /// Other hosts that may lead by this host's file, if that names a former place of the directory:
    /// it may have come back there.
    pub(crate) fn former_leaders(&self) -> Vec<String> {
        let (_, present) = self.whereabouts();
        let mut named = self.file.possible_leaders();
        named.retain(|host| *host != self.config.host && !present.iter().any(|its| its == host));
        named.into_iter().map(str::to_owned).collect()
    }

    /// Checks that the directory of a host is at its present place: where this host knows it to be,
    /// or where it came by a later move.
    pub(crate) fn check_place(&self, leader: &str, moved: Option<&Moved>) -> Result<(), Refusal> {
        let number = |moved: &Moved| moved.revision.number;
        let (_, leaders) = self.whereabouts();
        let Some(last) = self.moves.last() else {
            return Ok(());
        };
        if leaders.iter().any(|its| its == leader) || moved.map(number) > Some(number(&last)) {
            return Ok(());
        }
        Err(Refusal::new(
            RefusalKind::Invalid,
            format!("the directory has moved to {last}, and not back to host {leader}"),
            format!(
                "if {last} is lost, start this host's agent with `--lost {}`",
                last.to
            ),
        ))
    }

    /// Whether the copy of the directory here gives this host another role than that of this life.
    pub(crate) fn has_new_role(&self) -> bool {
        let kept = self.moves.kept();
        let kept = kept.filter(|kept| self.moves.lost.as_ref() != Some(kept));
        let next = self.file.whereabouts(kept.as_ref());
        let present = self.config.whereabouts(None);
        present != next
    }

    /// Notes a move that the host which was to lead tells of, and the leader that it names. Returns
    /// whether the move is news.
    pub(crate) fn follow_move(&self, moved: Moved, named: Option<String>) -> bool {
        let next = if moved.to == ETCD {
            named
        } else {
            Some(moved.to.clone())
        };
        let text = self.stale_file(&moved).map(|refusal| refusal.to_string());
        let is_news = self.moves.note(moved);
        if is_news {
            tracing::warn!(
                "{}",
                text.unwrap_or_else(|| "the directory has moved".into())
            );
            self.leader().name = next;
        }
        is_news
    }

    /// What to write in this host's file, if it names a former place of the directory.
    pub(crate) fn describe_move(&self) -> Option<Refusal> {
        self.stale_file(&self.moves.last()?)
    }

    fn stale_file(&self, moved: &Moved) -> Option<Refusal> {
        let named = &self.file.directory;
        moved.from.contains(named).then(|| {
            let message =
                format!("the directory has moved to {moved}, and this host's file names {named}");
            let lines = moved.lines();
            let remedy = format!("write {lines} in the file for `toroid up --config`");
            Refusal::new(RefusalKind::Invalid, message, remedy)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::cluster::tests::cluster;

    /// A directory, after a move from host a to another place, and after one further.
    fn moves() -> [Directory; 3] {
        let mut first = Directory::new("2x1x1".parse().unwrap());
        first.begin_term(FabricId(1), 1);
        let next = |before: &Directory, from, to| {
            let mut next = before.clone();
            next.relocate(from, to, BTreeSet::new(), 7);
            next.advance(before);
            next
        };
        let second = next(&first, "a", "b");
        let third = next(&second, "b", "c");
        [first, second, third]
    }

    fn record(directory: &Directory) -> Moved {
        directory.moved().unwrap().clone()
    }

    #[test]
    fn the_newest_move_counts() {
        let [_, first, second] = moves();
        let cluster = cluster();
        assert_eq!(cluster.whereabouts(), ("a".into(), vec!["a".into()]));
        assert!(cluster.describe_move().is_none() && !cluster.moves.is_recent());
        assert!(cluster.follow_move(record(&second), None));
        assert!(!cluster.follow_move(record(&first), None));
        assert_eq!(cluster.whereabouts().0, "c");
        assert!(cluster.moves.is_recent());
        let stale = cluster.describe_move().unwrap().to_string();
        assert!(stale.contains("moved to host c"), "{stale}");
        assert!(stale.contains("write directory = \"c\" in"), "{stale}");
        // Without a copy that has it the role stays.
        assert!(!cluster.has_new_role());
        cluster.moves.keep(&first);
        assert!(cluster.has_new_role());
        assert_eq!(cluster.whereabouts().0, "c");
    }

    /// A host that was away during a move and another one back once followed no host when that of the
    /// former was lost.
    #[test]
    fn a_former_place_counts_again_by_a_later_move_only() {
        let [led, first, second] = moves();
        let mut cluster = cluster();
        assert!(cluster.former_leaders().is_empty());
        cluster.check_place("a", None).unwrap();
        cluster.config.host = "d".into();
        cluster.moves.keep(&first);
        assert_eq!(cluster.former_leaders(), ["a"]);
        cluster.check_place("b", first.moved()).unwrap();
        for stale in [&led, &first] {
            let refusal = cluster.check_place("a", stale.moved()).unwrap_err();
            assert!(refusal.message.contains("moved to host b"), "{refusal}");
            assert!(refusal.remedy.contains("--lost b"), "{refusal}");
        }
        cluster.check_place("a", second.moved()).unwrap();
        cluster.file.directory = "z".into();
        // It is obeyed.
        assert_eq!(cluster.whereabouts().0, "z");
        assert!(cluster.former_leaders().is_empty());
    }

    /// Numbers of another history once told nothing about this one.
    #[test]
    fn a_move_of_another_fabric_is_none() {
        let [copy, moved, _] = moves();
        let mut other = Directory::new("2x1x1".parse().unwrap());
        for _ in 0..9 {
            other.begin_term(FabricId(2), 1);
        }
        let before = other.clone();
        other.relocate("a", "c", BTreeSet::new(), 7);
        other.advance(&before);
        let moves = Moves::default();
        // Without a copy it may be the right one, until there is one.
        assert!(moves.note(record(&other)));
        moves.keep(&copy);
        assert_eq!(moves.last(), None);
        moves.keep(&moved);
        assert_eq!(moves.last(), Some(record(&moved)));
        assert!(!moves.note(record(&other)));
        let mut by_hand = moved.clone();
        by_hand.forget_move();
        by_hand.advance(&moved);
        moves.keep(&by_hand);
        assert_eq!(moves.last(), None);
    }

    /// Otherwise no former host of the directory could lead again after the loss of the present one.
    #[test]
    fn a_file_is_obeyed_when_the_place_of_the_directory_is_said_to_be_lost() {
        let [_, first, second] = moves();
        let mut cluster = cluster();
        let mut file = cluster.file.clone();
        let start = |file: &HostConfig, kept: &Directory| {
            let moves = Moves::new(file, (kept.moved().cloned(), None));
            moves.map(|moves| file.redirected(moves.last().as_ref()).directory)
        };
        // However often the file was changed meanwhile.
        for named in ["a", "b", "a"] {
            file.directory = named.into();
            assert_eq!(start(&file, &first).unwrap(), "b");
            assert_eq!(start(&file, &second).unwrap(), "c");
        }
        file.lost = Some("b".into());
        assert_eq!(start(&file, &first).unwrap(), "a");
        let refusal = start(&file, &second).unwrap_err();
        assert!(
            refusal
                .message
                .contains("no last move of the directory to b"),
            "{refusal}"
        );
        Moves::new(&file, (None, None)).unwrap_err();
        // It does not start again for ever.
        cluster.moves = Moves::new(&file, (first.moved().cloned(), None))
            .unwrap()
            .into();
        assert!(!cluster.has_new_role());
        // Nor because a host that was not started so tells of the lost place.
        assert!(!cluster.moves.note(record(&first)));
        assert!(cluster.moves.note(record(&second)));
    }
}
