//! The environment of a command in a node.
//!
//! In a node with users of its own the caller's home, session and private directories are absent,
//! so variables that name them are dropped. In a node of another user all other variables may be
//! confidential.

use std::env;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// The home directory of a node's root.
const HOME: &str = "/run/root";

/// Directories of programs in every node.
const STANDARD_PATH: [&str; 6] = [
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
];

/// Search path of execvp(3) without `PATH`.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// Variables with the place of the caller's agent, which is not for processes of nodes.
const OF_AGENTS: [&str; 2] = ["TOROID_STATE", "TOROID_DATA"];

/// Variables of the caller's session, which a node does not have.
const OF_SESSIONS: [&str; 6] = [
    "XDG_RUNTIME_DIR",
    "DBUS_SESSION_BUS_ADDRESS",
    "SSH_AUTH_SOCK",
    "TMPDIR",
    "XAUTHORITY",
    "GPG_AGENT_INFO",
];

/// Variables that may be known in the nodes of others: how to show and to write, as ssh(1) and sudo(8)
/// pass them on, and settings of Toroid.
const HARMLESS: [&str; 6] = ["TERM", "COLORTERM", "LANG", "LANGUAGE", "TZ", "RUST_LOG"];
const HARMLESS_PREFIXES: [&str; 2] = ["LC_", "TOROID_"];

/// A node, as far as it matters here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    /// Whether it has users of its own.
    pub(super) has_users: bool,
    /// Whether it is the caller's.
    pub(super) is_callers: bool,
}

/// Environment of a command.
#[derive(Debug, PartialEq)]
pub(super) struct Environment {
    pub(super) variables: Vec<(String, String)>,
    /// Search path of the program: `PATH`, then directories of the caller that the node cannot
    /// enter, from which a program is passed as a descriptor.
    pub(super) search: String,
}

impl Environment {
    /// Environment for a caller's command. `chosen` are `NAME` and `NAME=VALUE`.
    pub(super) fn new(
        callers: &[(String, String)],
        node: Node,
        chosen: &[String],
    ) -> Result<Self, Failure> {
        let kept = callers.iter().filter(|(name, _)| node.gets(name));
        let mut variables: Vec<_> = kept.cloned().collect();
        let own = value(callers, "PATH").unwrap_or(DEFAULT_PATH);
        let mut search = own.to_owned();
        if node.has_users {
            let (path, closed) = split_path(own);
            search = [&path, &closed].map(|list| list.join(":")).join(":");
            set(&mut variables, "PATH", path.join(":"));
            set(&mut variables, "HOME", HOME.into());
            for name in ["USER", "LOGNAME"] {
                set(&mut variables, name, "root".into());
            }
        }
        for one in chosen {
            let (name, new) = match one.split_once('=') {
                Some((name, new)) => (name, new),
                None => (one.as_str(), known(callers, one)?),
            };
            if name.is_empty() {
                return Err(Failure::usage(&format!("{one}: write NAME or NAME=VALUE")));
            }
            if name == "PATH" {
                search = new.into();
            }
            set(&mut variables, name, new.into());
        }
        Ok(Environment { variables, search })
    }
}

impl Node {
    fn gets(self, name: &str) -> bool {
        let is_harmless = || {
            HARMLESS.contains(&name)
                || HARMLESS_PREFIXES
                    .iter()
                    .any(|prefix| name.starts_with(prefix))
        };
        let is_absent =
            OF_AGENTS.contains(&name) || (self.has_users && OF_SESSIONS.contains(&name));
        !is_absent && (self.is_callers || is_harmless())
    }
}

/// This process's variables, as far as they are texts.
pub(super) fn own() -> Vec<(String, String)> {
    env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

fn value<'a>(variables: &'a [(String, String)], name: &str) -> Option<&'a str> {
    let found = variables.iter().find(|(known, _)| known == name);
    found.map(|(_, value)| value.as_str())
}

fn known<'a>(variables: &'a [(String, String)], name: &str) -> Result<&'a str, Failure> {
    value(variables, name).ok_or_else(|| {
        Failure::usage(&format!(
            "--env {name}: there is no such variable here; write {name}=VALUE"
        ))
    })
}

fn set(variables: &mut Vec<(String, String)>, name: &str, value: String) {
    variables.retain(|(known, _)| known != name);
    variables.push((name.into(), value));
}

/// Splits a `PATH` into directories that a node can enter, with the standard directories last, and
/// the others.
fn split_path(path: &str) -> (Vec<String>, Vec<String>) {
    let all = path.split(':').filter(|directory| !directory.is_empty());
    let (mut open, closed): (Vec<_>, Vec<_>) = all
        .map(str::to_owned)
        .partition(|directory| is_open(Path::new(directory)));
    for standard in STANDARD_PATH {
        if !open.iter().any(|directory| directory == standard) {
            open.push(standard.into());
        }
    }
    (open, closed)
}

/// Whether users without rights here can reach a directory. A relative one depends on the working
/// directory, so it counts as reachable.
fn is_open(directory: &Path) -> bool {
    if directory.is_relative() {
        return true;
    }
    let Ok(place) = directory.canonicalize() else {
        return false;
    };
    let others_enter = |place: &Path| {
        let found = place.metadata();
        found.is_ok_and(|found| found.permissions().mode() & 0o001 != 0)
    };
    place.ancestors().all(others_enter)
}

/// The working directory.
pub(super) fn directory() -> Result<String, Failure> {
    let directory: PathBuf = env::current_dir()?;
    let text = directory.into_os_string().into_string();
    text.map_err(|directory| Failure::new(format!("{}: not UTF-8", directory.display())))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};

    use super::*;

    const OWN: Node = Node {
        has_users: true,
        is_callers: true,
    };

    fn variables(all: &[(&str, &str)]) -> Vec<(String, String)> {
        let owned = |(name, value): &(&str, &str)| ((*name).into(), (*value).into());
        all.iter().map(owned).collect()
    }

    fn given(node: Node, chosen: &[&str]) -> Environment {
        let callers = variables(&[
            ("HOME", "/home/alice"),
            ("PATH", "/usr/bin:/no/such/place"),
            ("RUST_LOG", "debug"),
            ("SECRET", "xyzzy"),
            ("TOROID_STATE", "/tmp/state"),
            ("USER", "alice"),
            ("XDG_RUNTIME_DIR", "/run/user/1000"),
        ]);
        let chosen: Vec<_> = chosen.iter().map(|one| (*one).to_owned()).collect();
        Environment::new(&callers, node, &chosen).unwrap()
    }

    #[test]
    fn in_the_callers_own_node_only_names_of_other_places_change() {
        let path = "/usr/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/sbin:/bin";
        let expected = variables(&[
            ("RUST_LOG", "debug"),
            ("SECRET", "xyzzy"),
            ("PATH", path),
            ("HOME", "/run/root"),
            ("USER", "root"),
            ("LOGNAME", "root"),
        ]);
        let environment = given(OWN, &[]);
        assert_eq!(environment.variables, expected);
        assert_eq!(environment.search, format!("{path}:/no/such/place"));
    }

    #[test]
    fn in_the_node_of_another_user_little_is_known() {
        let node = Node {
            is_callers: false,
            ..OWN
        };
        let names = |environment: Environment| -> Vec<String> {
            let variables = environment.variables.into_iter();
            variables.map(|(name, _)| name).collect()
        };
        let always = ["RUST_LOG", "PATH", "HOME", "USER", "LOGNAME"];
        assert_eq!(names(given(node, &[])), always);
        let chosen = given(node, &["SECRET", "HOME=/tmp", "PATH=/opt/bin"]);
        assert_eq!(value(&chosen.variables, "SECRET"), Some("xyzzy"));
        assert_eq!(value(&chosen.variables, "HOME"), Some("/tmp"));
        assert_eq!(chosen.search, "/opt/bin");
    }

    #[test]
    fn a_node_with_the_callers_users_has_the_callers_places() {
        let node = Node {
            has_users: false,
            is_callers: true,
        };
        let environment = given(node, &[]);
        let value = |name| value(&environment.variables, name);
        assert_eq!(value("HOME"), Some("/home/alice"));
        assert_eq!(value("PATH"), Some("/usr/bin:/no/such/place"));
        assert_eq!(value("XDG_RUNTIME_DIR"), Some("/run/user/1000"));
        assert_eq!(value("TOROID_STATE"), None);
        let without = Environment::new(&[], node, &[]).unwrap();
        assert_eq!(without.search, "/bin:/usr/bin");
    }

    #[test]
    fn a_variable_must_be_known_or_have_a_value() {
        for (chosen, remedy) in [("NONE", "NONE=VALUE"), ("=x", "NAME=VALUE")] {
            let error = Environment::new(&[], OWN, &[chosen.to_owned()]).unwrap_err();
            assert!(error.to_string().contains(remedy), "{error}");
        }
    }

    #[test]
    fn directories_below_a_closed_one_come_last() {
        let place = tempfile::tempdir().unwrap();
        let bin = place.path().join("bin");
        fs::create_dir(&bin).unwrap();
        let bin = bin.to_str().unwrap();
        let closed = |mode| {
            fs::set_permissions(place.path(), Permissions::from_mode(mode)).unwrap();
            split_path(bin).1
        };
        assert_eq!(closed(0o700), [bin]);
        assert!(closed(0o755).is_empty());
    }
}
