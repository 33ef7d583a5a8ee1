//! The hosts file of each node, with the names of members.

use std::collections::HashMap;
use std::fs::{OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;

use toroid_fabric::{NodeId, Place};
use toroid_model::addressing::{host_name, ipv6};
use toroid_model::directory::{Directory, Domain};

use crate::store::ownership;

const LOOPBACK: &str = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n";

/// Address of a node in no domain, as Debian has it for hosts without a permanent one.
const ALONE: &str = "127.0.1.1";

/// The mode of a file that all users of a node read.
const READABLE: u32 = 0o644;

/// Texts of hosts files. The lines of a domain are made once for all its members: made for each of
/// 512, they took most of the time of a change.
pub(crate) struct Texts<'a> {
    directory: &'a Directory,
    /// Lines by name of the domain.
    domains: HashMap<&'a str, Lines>,
}

/// Lines of a domain.
struct Lines {
    /// The lines of all members, with short names.
    all: String,
    /// The lines of each member, with its short name and without.
    of_members: Vec<(NodeId, [String; 2])>,
}

impl<'a> Texts<'a> {
    pub(crate) fn new(directory: &'a Directory) -> Self {
        Texts {
            directory,
            domains: HashMap::new(),
        }
    }

    /// Makes the hosts file of `node`: every member of each of its domains as `x-y-z.DOMAIN` and
    /// `ALIAS.DOMAIN`, by IPv4 and IPv6. The short name `x-y-z` is an address in the common domain
    /// with the lowest number. The short name of a node in no domain is a loopback address.
    pub(crate) fn of(&mut self, node: NodeId) -> String {
        let mut text = LOOPBACK.to_owned();
        let mut domains: Vec<&Domain> = self.directory.domains_of(node).collect();
        domains.sort_by_key(|domain| domain.id);
        if domains.is_empty()
            && let Some(place) = self.directory.torus().place(node)
        {
            text += &format!("{ALONE} {}\n", host_name(place));
        }
        for (n, domain) in domains.iter().enumerate() {
            let lines = self.domains.entry(&domain.name);
            let lines = lines.or_insert_with(|| Lines::of(self.directory, domain));
            if n == 0 {
                text += &lines.all;
                continue;
            }
            for (member, [short, long]) in &lines.of_members {
                let mut before = domains[..n].iter();
                text += if before.any(|domain| domain.members.contains_key(member)) {
                    long
                } else {
                    short
                };
            }
        }
        text
    }
}

impl Lines {
    fn of(directory: &Directory, domain: &Domain) -> Self {
        let of_member = |member: &NodeId| {
            let place = directory.torus().place(*member)?;
            Some((*member, lines_of(directory, domain, *member, place)?))
        };
        let of_members: Vec<_> = domain.members.keys().filter_map(of_member).collect();
        Lines {
            all: of_members
                .iter()
                .map(|(_, [short, _])| &short[..])
                .collect(),
            of_members,
        }
    }
}

fn lines_of(
    directory: &Directory,
    domain: &Domain,
    member: NodeId,
    place: Place,
) -> Option<[String; 2]> {
    let name = &domain.name;
    let short = host_name(place);
    let mut names = format!("{short}.{name}");
    for alias in directory.aliases_of(member) {
        names += &format!(" {alias}.{name}");
    }
    let (v4, v6) = (domain.address(member)?, ipv6(domain.id, place));
    Some([
        format!("{v4} {names} {short}\n{v6} {names} {short}\n"),
        format!("{v4} {names}\n{v6} {names}\n"),
    ])
}

/// Writes a hosts file in place, because nodes have mounted it. A reader meanwhile sees whole
/// lines of the old or of the new text.
pub(crate) fn write(path: &Path, text: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).write(true);
    let file = ownership::open(&mut options, path)?;
    let metadata = file.metadata()?;
    if metadata.mode() & 0o777 != READABLE {
        // Independent of the agent's umask: the node's users are others.
        file.set_permissions(Permissions::from_mode(READABLE))?;
    }
    let old = usize::try_from(metadata.len()).unwrap_or_default();
    if old <= text.len() {
        return file.write_all_at(text.as_bytes(), 0);
    }
    // Empty lines cover the rest of a longer old text until the file is cut.
    let padded = format!("{text}{}", "\n".repeat(old - text.len()));
    file.write_all_at(padded.as_bytes(), 0)?;
    file.set_len(text.len() as u64)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use toroid_model::directory::{Wanted, full_members};

    use super::*;

    #[test]
    fn members_have_their_places_and_aliases_as_names() {
        let mut directory = Directory::new("2x2x2".parse().unwrap());
        directory.add_alias(NodeId(7), "head").unwrap();
        let blue = Wanted {
            name: "blue".into(),
            members: full_members([NodeId(0), NodeId(7)]),
            ..Wanted::default()
        };
        directory.create(blue).unwrap();
        let expected = format!(
            "{LOOPBACK}\
             10.64.0.1 0-0-0.blue 0-0-0\n\
             fd74:6f72:6f69:1:1:: 0-0-0.blue 0-0-0\n\
             10.64.0.8 1-1-1.blue head.blue 1-1-1\n\
             fd74:6f72:6f69:1:1:1:1:1 1-1-1.blue head.blue 1-1-1\n"
        );
        let mut texts = Texts::new(&directory);
        assert_eq!(texts.of(NodeId(0)), expected);
        assert_eq!(texts.of(NodeId(1)), format!("{LOOPBACK}127.0.1.1 1-0-0\n"));
        assert_eq!(texts.of(NodeId(7)), expected);
    }

    #[test]
    fn a_short_name_is_the_one_of_the_oldest_common_domain() {
        let mut directory = Directory::new("2x2x2".parse().unwrap());
        // The number decides, not the name.
        for (name, members) in [("red", [0, 1].as_slice()), ("blue", &[0, 1, 2])] {
            let wanted = Wanted {
                name: name.into(),
                members: full_members(members.iter().copied().map(NodeId)),
                ..Wanted::default()
            };
            directory.create(wanted).unwrap();
        }
        let text = Texts::new(&directory).of(NodeId(0));
        let has_short_name = |line: &&str| !line.ends_with("red") && !line.ends_with("blue");
        let short: Vec<_> = text.lines().skip(2).filter(has_short_name).collect();
        assert_eq!(
            short,
            [
                "10.64.0.1 0-0-0.red 0-0-0",
                "fd74:6f72:6f69:1:1:: 0-0-0.red 0-0-0",
                "10.64.0.2 1-0-0.red 1-0-0",
                "fd74:6f72:6f69:1:1:1:: 1-0-0.red 1-0-0",
                "10.64.1.3 0-1-0.blue 0-1-0",
                "fd74:6f72:6f69:2:1:0:1:0 0-1-0.blue 0-1-0",
            ]
        );
        assert_eq!(text.lines().count(), 2 + 2 * 5);
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
