//! Pages of the directory: an update that is too long for one message goes as some pages of its
//! records, one after another, and then the update with the rest.

use std::mem;

use parking_lot::Mutex;
use toroid_model::directory::records::Records;
use toroid_protocol::hosts::DirectoryUpdate;

/// Bytes of records after which a page ends. The longest record, of a domain with all nodes of the
/// largest torus, has room in a message beside it.
const PAGE_BYTES: usize = 4 << 20;

/// Bytes of a record in a message: both are texts, the value with escaped quotation marks.
fn length((key, value): (&String, &String)) -> usize {
    let escaped = value
        .bytes()
        .filter(|byte| matches!(byte, b'"' | b'\\'))
        .count();
    key.len() + value.len() + escaped + "\"\":\"\",".len()
}

/// New and changed records of an update.
fn records(update: &mut DirectoryUpdate) -> &mut Records {
    match update {
        DirectoryUpdate::Whole(records) | DirectoryUpdate::Changes { put: records, .. } => records,
    }
}

/// The pages to send before an update, and the update with the rest.
pub(crate) fn split(mut update: DirectoryUpdate) -> (Vec<Records>, DirectoryUpdate) {
    let records = records(&mut update);
    let (mut pages, mut page, mut bytes) = (Vec::new(), Records::new(), 0);
    for (key, value) in mem::take(records) {
        if bytes > PAGE_BYTES {
            pages.push(mem::take(&mut page));
            bytes = 0;
        }
        bytes += length((&key, &value));
        page.insert(key, value);
    }
    *records = page;
    (pages, update)
}

/// Pages that a follower has got in a session, until their update comes.
#[derive(Debug, Default)]
pub(crate) struct Pages(Mutex<Records>);

impl Pages {
    /// Adds a page.
    pub(crate) fn add(&self, mut page: Records) {
        self.0.lock().append(&mut page);
    }

    /// The update with all pages before it.
    pub(crate) fn complete(&self, mut update: DirectoryUpdate) -> DirectoryUpdate {
        records(&mut update).append(&mut self.0.lock());
        update
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use toroid_fabric::NodeId;
    use toroid_model::directory::{Directory, Wanted, full_members};
    use toroid_protocol::hosts::{HostMessage, HostRequest};
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

    /// A directory that was too long for a message once kept each follower from following.
    #[test]
    fn the_largest_directory_fits_into_messages() {
        let records = largest().records();
        let whole = HostRequest::Adopt(DirectoryUpdate::Whole(records.clone()));
        assert!(
            message_len(whole) > MAX_PAYLOAD as usize,
            "the test needs a longer one"
        );
        let (pages, rest) = split(DirectoryUpdate::Whole(records.clone()));
        assert!(pages.len() > 1);
        let received = Pages::default();
        pages.into_iter().for_each(|page| received.add(page));
        let DirectoryUpdate::Whole(again) = received.complete(rest) else {
            panic!("no whole directory");
        };
        assert_eq!(again, records);
        let (pages, rest) = split(DirectoryUpdate::Whole(records));
        let pages = pages.into_iter().map(HostRequest::Page);
        let longest = pages
            .chain([HostRequest::Adopt(rest)])
            .map(message_len)
            .max();
        assert!(longest < Some(MAX_PAYLOAD as usize), "{longest:?}");
    }

    #[test]
    fn a_short_update_goes_at_once_and_takes_no_pages_of_another() {
        let records = Records::from([("alias/db".into(), "7".into())]);
        let update = || DirectoryUpdate::Changes {
            since: revision(1, 1, 1),
            put: records.clone(),
            remove: BTreeSet::new(),
        };
        let (pages, update) = split(update());
        assert!(pages.is_empty());
        let received = Pages::default();
        received.add([("alias/x".into(), "1".into())].into());
        let DirectoryUpdate::Changes { put, .. } = received.complete(update) else {
            panic!("no changes");
        };
        assert_eq!(put.len(), 2);
        let DirectoryUpdate::Whole(next) = received.complete(DirectoryUpdate::Whole(records))
        else {
            panic!("no whole directory");
        };
        assert_eq!(next.len(), 1);
    }
}
