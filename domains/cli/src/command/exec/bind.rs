//! `--bind`: directories of the caller for commands in nodes.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf, absolute};

use rustix::fs::OFlags;
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_protocol::agent::Bind;

use crate::failure::Failure;

/// Opens the directories that `DIR[:DEST][:ro]` name, as this process's user may.
pub(super) fn open(all: &[String]) -> Result<Vec<(Bind, OwnedFd)>, Failure> {
    all.iter().map(|one| open_one(one)).collect()
}

fn open_one(text: &str) -> Result<(Bind, OwnedFd), Failure> {
    let (directory, place, read_only) = parse(text)?;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(OFlags::DIRECTORY.bits().cast_signed())
        .open(directory)
        .map_err(|error| refused(directory, &error))?;
    let place = match place {
        Some(place) => place.into(),
        None => same_place(directory).map_err(|error| refused(directory, &error))?,
    };
    let place = place.into_os_string().into_string();
    let place = place.map_err(|path| Failure::new(format!("{}: not UTF-8", path.display())))?;
    let bind = Bind {
        directory: directory.into(),
        place,
        read_only,
    };
    Ok((bind, file.into()))
}

/// Directory, destination if present, and whether the bind is read-only.
fn parse(text: &str) -> Result<(&str, Option<&str>, bool), Failure> {
    let (rest, read_only) = match text.strip_suffix(":ro") {
        Some(rest) => (rest, true),
        None => (text, false),
    };
    let (directory, place) = match rest.split_once(':') {
        Some((directory, place)) => (directory, Some(place)),
        None => (rest, None),
    };
    if directory.is_empty() || place.is_some_and(|place| !place.starts_with('/')) {
        return Err(Failure::usage(&format!(
            "--bind {text}: write DIR, DIR:DEST, DIR:ro or DIR:DEST:ro, DEST with a leading /"
        )));
    }
    Ok((directory, place, read_only))
}

/// The path by which the caller names a directory. The node may have no directories to go back from,
/// so `..` is resolved here.
fn same_place(directory: &str) -> io::Result<PathBuf> {
    let path = absolute(directory)?;
    if path.components().any(|part| part == Component::ParentDir) {
        fs::canonicalize(path)
    } else {
        // Without a slash at its end.
        Ok(path.components().collect())
    }
}

fn refused(directory: &str, error: &io::Error) -> Failure {
    let (kind, remedy) = match error.kind() {
        ErrorKind::PermissionDenied => (
            RefusalKind::Denied,
            "bind a directory that you may read".to_owned(),
        ),
        ErrorKind::NotFound => (RefusalKind::NotFound, format!("mkdir {directory}")),
        ErrorKind::NotADirectory => {
            let parent = Path::new(directory).parent();
            let parent = parent.filter(|parent| *parent != Path::new(""));
            let parent = parent.unwrap_or(Path::new(".")).display();
            let remedy = format!("bind the directory that it is in: --bind {parent}");
            (RefusalKind::Invalid, remedy)
        }
        _ => (RefusalKind::Failed, String::new()),
    };
    Refusal::new(kind, format!("cannot bind {directory}: {error}"), remedy).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bind_is_a_directory_a_place_and_whether_it_is_read_only() {
        let parsed = |text| parse(text).unwrap();
        assert_eq!(parsed("."), (".", None, false));
        assert_eq!(parsed("/a/b:ro"), ("/a/b", None, true));
        assert_eq!(parsed("a:/srv/b"), ("a", Some("/srv/b"), false));
        assert_eq!(parsed("a:/srv/b:ro"), ("a", Some("/srv/b"), true));
        for wrong in ["", ":ro", ":/srv", "a:", "a:b", "a:ro:/b", "a:rw"] {
            assert_eq!(parse(wrong).unwrap_err().status(), 2, "{wrong}");
        }
    }

    #[test]
    fn the_same_place_has_no_way_back() {
        let here = std::env::current_dir().unwrap();
        let same = |directory| same_place(directory).unwrap();
        assert_eq!(same("."), here);
        assert_eq!(same("src/"), here.join("src"));
        assert_eq!(same("src/../src"), here.join("src"));
        assert_eq!(same("/usr/bin/"), Path::new("/usr/bin"));
    }
}
