//! Pages of the directory: an update that is too long for one message goes as some pages of its
//! records, one after another, and then the update with the rest. A page is made when it is sent.

use std::iter::Peekable;

use parking_lot::Mutex;
use toroid_model::directory::records::Records;
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_protocol::hosts::{DirectoryUpdate, HostRequest};

use crate::control::update::SharedUpdate;

/// Bytes of records after which a page ends. The longest record, of a domain with all nodes of the
/// largest torus, has room in a message beside it.
const PAGE_BYTES: usize = 4 << 20;

/// Most bytes of an update's records. The domains of all subnets of 10.64.0.0/10 need a third of
/// this with all nodes of the largest torus.
const MAX_BYTES: usize = 512 << 20;

/// Messages of long updates that are made and sent at a time. Each takes some 16 MiB of memory.
pub(super) const AT_ONCE: usize = 8;

/// Bytes of a record in a message: both are texts, the value with escaped quotation marks.
fn length(key: &str, value: &str) -> usize {
    let escaped = value
        .bytes()
        .filter(|byte| matches!(byte, b'"' | b'\\'))
        .count();
    key.len() + value.len() + escaped + "\"\":\"\",".len()
}

/// The messages of an update.
pub(crate) struct Messages<'u, I: Iterator<Item = (&'u str, &'u str)>> {
    update: &'u SharedUpdate,
    records: Peekable<I>,
}

/// Begins with the first message of an update.
pub(crate) fn messages(update: &SharedUpdate) -> Messages<'_, impl Iterator<Item = (&str, &str)>> {
    Messages {
        update,
        records: update.records().peekable(),
    }
}

impl<'u, I: Iterator<Item = (&'u str, &'u str)>> Messages<'u, I> {
    /// Makes the next page, or the update with the rest of its records. That is the last message.
    pub(crate) fn next(&mut self) -> HostRequest {
        let (mut page, mut bytes) = (Records::new(), 0);
        while bytes <= PAGE_BYTES
            && let Some((key, value)) = self.records.next()
        {
            bytes += length(key, value);
            page.insert(key.into(), value.into());
        }
        if self.records.peek().is_some() {
            HostRequest::Page(page)
        } else {
            HostRequest::Adopt(self.update.with(page))
        }
    }
}

/// Pages that a follower has got in a session, until the rest of their update comes.
#[derive(Debug, Default)]
pub(crate) struct Pages(Mutex<Received>);

#[derive(Debug, Default)]
struct Received {
    records: Records,
    bytes: usize,
}

impl Pages {
    /// Adds a page.
    ///
    /// # Errors
    /// The update is longer than any directory. The session gets no other update.
    pub(crate) fn add(&self, mut page: Records) -> Result<(), Refusal> {
        let mut received = self.0.lock();
        let lengths = page.iter().map(|(key, value)| length(key, value));
        received.bytes = received.bytes.saturating_add(lengths.sum());
        received.check()?;
        received.records.append(&mut page);
        Ok(())
    }

    /// The update with all pages before it.
    ///
    /// # Errors
    /// As [`Pages::add`].
    pub(crate) fn complete(&self, mut update: DirectoryUpdate) -> Result<DirectoryUpdate, Refusal> {
        let mut received = self.0.lock();
        received.check()?;
        let records = match &mut update {
            DirectoryUpdate::Whole(records) | DirectoryUpdate::Changes { put: records, .. } => {
                records
            }
        };
        records.append(&mut received.records);
        received.bytes = 0;
        Ok(update)
    }
}

impl Received {
    fn check(&mut self) -> Result<(), Refusal> {
        if self.bytes <= MAX_BYTES {
            return Ok(());
        }
        self.records.clear();
        let message = format!(
            "an update of the directory has over {} MiB",
            MAX_BYTES >> 20
        );
        let remedy = "use the same release on all hosts";
        Err(Refusal::new(RefusalKind::Invalid, message, remedy))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use toroid_fabric::NodeId;
    use toroid_model::directory::revision::Revision;
    use toroid_model::directory::{Directory, Wanted, full_members};
    use toroid_protocol::hosts::HostMessage;
    use toroid_protocol::wire::MAX_PAYLOAD;

    use super::*;
    use crate::cluster::revisions::tests::revision;

    /// A directory of 65,534 nodes of 4,096 hosts, each node with an owner and two names in
    /// some domains of all, whose members have left and joined again.
    fn largest() -> Directory {
        let mut directory = Directory::new("151x31x14".parse().unwrap());
        let all: BTreeSet<NodeId> = (0..65_534).map(NodeId).collect();
        for host in 0..4096 {
            let its = all.iter().copied().filter(|node| node.0 % 4096 == host);
            directory
                .claim(&format!("rack-{host}"), &its.collect())
                .unwrap();
        }
        directory.give(&all, Some(1_000_000_000));
        for node in &all {
            let alias = format!("a-rather-long-name-of-node-{}", node.0);
            directory.add_alias(*node, &alias).unwrap();
        }
        for n in 0..6 {
            let name = format!("fifteen-letter{n}");
            let wanted = Wanted {
                name: name.clone(),
                members: full_members(all.iter().copied()),
                ..Wanted::default()
            };
            directory.create(wanted).unwrap();
            directory.shrink(&name, &all).unwrap();
            directory.grow(&name, &all).unwrap();
            directory.consent(&all, &name, false).unwrap();
        }
        directory
    }

    fn message_len(ask: HostRequest) -> usize {
        let message = HostMessage::HostRequest { number: 1, ask };
        serde_json::to_vec(&message).unwrap().len()
    }

    fn update(records: &Records, since: Option<Revision>) -> SharedUpdate {
        let mut update = since.map_or_else(SharedUpdate::default, SharedUpdate::from_revision);
        for (key, value) in records {
            update
                .put
                .insert(key.as_str().into(), value.as_str().into());
        }
        update
    }

    /// All pages, and the message after them.
    fn split(update: &SharedUpdate) -> (Vec<HostRequest>, DirectoryUpdate) {
        let (mut messages, mut pages) = (messages(update), Vec::new());
        loop {
            match messages.next() {
                HostRequest::Adopt(rest) => return (pages, rest),
                page => pages.push(page),
            }
        }
    }

    /// A directory that was too long for a message once kept each follower from following.
    #[test]
    fn the_largest_directory_fits_into_messages() {
        let records = largest().records();
        let whole = HostRequest::Adopt(DirectoryUpdate::Whole(records.clone()));
        assert!(
            message_len(whole) > MAX_PAYLOAD as usize,
            "the test needs a longer one"
        );
        // Six of the 64 domains for which there are subnets.
        let bytes: usize = records.iter().map(|(k, v)| length(k, v)).sum();
        assert!(bytes / 6 * 64 < MAX_BYTES, "{bytes}");
        let (pages, rest) = split(&update(&records, None));
        assert!(pages.len() > 1);
        let received = Pages::default();
        let mut longest = 0;
        for page in pages {
            if let HostRequest::Page(records) = &page {
                received.add(records.clone()).unwrap();
            }
            longest = longest.max(message_len(page));
        }
        let Ok(DirectoryUpdate::Whole(again)) = received.complete(rest.clone()) else {
            panic!("no whole directory");
        };
        assert_eq!(again, records);
        longest = longest.max(message_len(HostRequest::Adopt(rest)));
        assert!(longest < MAX_PAYLOAD as usize, "{longest}");
    }

    #[test]
    fn a_short_update_has_no_pages_and_takes_those_before_it_only() {
        let records = Records::from([("alias/db".into(), "7".into())]);
        let short = update(&records, Some(revision(1, 1, 1)));
        assert!(!short.is_long());
        let (pages, rest) = split(&short);
        assert!(pages.is_empty());
        let received = Pages::default();
        received
            .add([("alias/x".into(), "1".into())].into())
            .unwrap();
        let Ok(DirectoryUpdate::Changes { put, .. }) = received.complete(rest) else {
            panic!("no changes");
        };
        assert_eq!(put.len(), 2);
        let next = received.complete(DirectoryUpdate::Whole(records));
        let Ok(DirectoryUpdate::Whole(next)) = next else {
            panic!("no whole directory");
        };
        assert_eq!(next.len(), 1);
    }

    /// A leader could once fill the memory of a follower.
    #[test]
    fn an_endless_update_is_refused_and_so_is_its_session() {
        let page = || Records::from([("alias/db".into(), "7".into())]);
        let received = Pages::default();
        received.add(page()).unwrap();
        received.0.lock().bytes += MAX_BYTES - 2 * length("alias/db", "7");
        received.add(page()).unwrap();
        let refusal = received.add(page()).unwrap_err();
        assert_eq!(
            refusal.message,
            "an update of the directory has over 512 MiB"
        );
        received.add(Records::new()).unwrap_err();
        let rest = DirectoryUpdate::Whole(Records::new());
        received.complete(rest).unwrap_err();
    }
}
