//! Names of members: the hosts file of each node.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::{OpenOptions, Permissions};
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;

use fabric::NodeId;

use crate::addressing::ipv6;
use crate::directory::{Directory, Domain};

const LOOPBACK: &str = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n";

/// The mode of a file that all users of a node read.
const READABLE: u32 = 0o644;

/// The texts of hosts files. The lines of a domain are made once for all of its members: made for
/// each, those of 512 took most of the time of a change.
pub(super) struct Texts<'a> {
    directory: &'a Directory,
    /// By name.
    domains: HashMap<&'a str, String>,
}

impl<'a> Texts<'a> {
    pub(super) fn new(directory: &'a Directory) -> Self {
        Texts {
            directory,
            domains: HashMap::new(),
        }
    }

    /// The hosts file of `node`: every member of each of its domains as `x-y-z.DOMAIN` and
    /// `ALIAS.DOMAIN`, by IPv4 and IPv6.
    pub(super) fn of(&mut self, node: NodeId) -> String {
        let mut text = LOOPBACK.to_owned();
        for domain in self.directory.domains_of(node) {
            let lines = self.domains.entry(&domain.name);
            text += lines.or_insert_with(|| lines_of(self.directory, domain));
        }
        text
    }
}

fn lines_of(directory: &Directory, domain: &Domain) -> String {
    let mut lines = String::new();
    for member in &domain.members {
        add_member(&mut lines, directory, domain, *member);
    }
    lines
}

fn add_member(text: &mut String, directory: &Directory, domain: &Domain, member: NodeId) {
    let Some(place) = directory.torus().place(member) else {
        return;
    };
    let Domain { name, subnet, .. } = domain;
    let mut names = format!("{}-{}-{}.{name}", place.x, place.y, place.z);
    for alias in directory.aliases_of(member) {
        // Writing to a string does not fail.
        let _ = write!(names, " {alias}.{name}");
    }
    let addresses: [IpAddr; 2] = [subnet.address(member).into(), ipv6(domain.id, place).into()];
    for address in addresses {
        let _ = writeln!(text, "{address} {names}");
    }
}

/// Writes a hosts file in place, because nodes have mounted it. A reader meanwhile sees whole
/// lines of the old or of the new text.
pub(super) fn write(path: &Path, text: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let file = options
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)?;
    let metadata = file.metadata()?;
    if metadata.mode() & 0o777 != READABLE {
        // Whatever the agent's umask is: the node's users are others.
        file.set_permissions(Permissions::from_mode(READABLE))?;
    }
    let old = usize::try_from(metadata.len()).unwrap_or_default();
    if old <= text.len() {
        return file.write_all_at(text.as_bytes(), 0);
    }
    // Empty lines cover what is left of a longer old text until it is cut off.
    let padded = format!("{text}{}", "\n".repeat(old - text.len()));
    file.write_all_at(padded.as_bytes(), 0)?;
    file.set_len(text.len() as u64)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::directory::Wanted;

    #[test]
    fn members_have_their_places_and_aliases_as_names() {
        let mut directory = Directory::new("2x2x2".parse().unwrap());
        directory.add_alias(NodeId(7), "head").unwrap();
        let blue = Wanted {
            name: "blue".into(),
            members: [NodeId(0), NodeId(7)].into(),
            ..Wanted::default()
        };
        directory.create(blue).unwrap();
        let expected = format!(
            "{LOOPBACK}\
             10.64.0.1 0-0-0.blue\n\
             fd74:6f72:6f69:1:1:: 0-0-0.blue\n\
             10.64.0.8 1-1-1.blue head.blue\n\
             fd74:6f72:6f69:1:1:1:1:1 1-1-1.blue head.blue\n"
        );
        let mut texts = Texts::new(&directory);
        assert_eq!(texts.of(NodeId(0)), expected);
        assert_eq!(texts.of(NodeId(1)), LOOPBACK);
        assert_eq!(texts.of(NodeId(7)), expected);
    }

    #[test]
    fn a_file_keeps_its_inode_and_takes_a_shorter_text() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("hosts");
        write(&path, "a longer text\n").unwrap();
        let inode = fs::metadata(&path).unwrap().ino();
        write(&path, "short\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "short\n");
        assert_eq!(fs::metadata(&path).unwrap().ino(), inode);
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        write(&path, "for all").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, READABLE);
    }
}
