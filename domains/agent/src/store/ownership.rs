//! Directories and files of an agent that no other user can replace.
//!
//! An agent writes below its state and data directories by name. The owner of a directory on the
//! path, or a user with write permission there, could replace a name by a link to any file. So each
//! directory from the root down belongs to root or to the agent's user, and others cannot write in
//! it. Sticky directories such as `/tmp` are allowed on the path, but not at its end: other users
//! make names of their own there, but do not change the agent's.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::unistd::{Gid, Group, Uid, User};

/// Most symbolic links on a path, as in the kernel.
const MAX_LINKS: u32 = 40;

const WORLD_WRITABLE: u32 = 0o002;
const GROUP_WRITABLE: u32 = 0o020;
const STICKY: u32 = 0o1000;

/// Makes a directory and missing ones above it, with a mode.
///
/// # Errors
/// The system's; [`io::ErrorKind::PermissionDenied`] with the directory and its owner where another
/// user could replace files.
pub(crate) fn make_directory(path: &Path, mode: u32) -> io::Result<()> {
    let mut rest = words(&std::path::absolute(path)?);
    let (mut at, mut links) = (PathBuf::from("/"), 0);
    while let Some(word) = rest.pop_front() {
        match Path::new(&word).components().next() {
            Some(Component::RootDir) => at = "/".into(),
            Some(Component::ParentDir) => drop(at.pop()),
            Some(Component::Normal(name)) => at.push(name),
            _ => {}
        }
        let found = find_or_make(&at, mode)?;
        check_owner(&at, &found)?;
        if found.is_symlink() {
            links += 1;
            if links > MAX_LINKS {
                return Err(Errno::ELOOP.into());
            }
            let mut way = words(&fs::read_link(&at)?);
            at.pop();
            way.append(&mut rest);
            rest = way;
        } else if !found.is_dir() {
            return Err(Errno::ENOTDIR.into());
        } else {
            check_writers(&at, &found, rest.is_empty())?;
        }
    }
    Ok(())
}

/// Opens a file in a directory that was [made](make_directory), never through a link.
///
/// # Errors
/// The system's; [`io::ErrorKind::PermissionDenied`] if it is a link, has another name as well, or
/// belongs to another user.
pub(crate) fn open(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    // Opening a pipe must not block.
    options.custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits());
    let planted = || denied(format!("{} is a link; remove it", path.display()));
    let file = options.open(path).map_err(|error| match Errno::ELOOP {
        link if error.raw_os_error() == Some(link as i32) => planted(),
        _ => error,
    })?;
    let found = file.metadata()?;
    check_owner(path, &found)?;
    if found.is_file() && found.nlink() <= 1 {
        Ok(file)
    } else {
        Err(planted())
    }
}

/// Gives a file new contents: a reader sees the old or the new ones.
///
/// # Errors
/// As of [`open`].
pub(crate) fn replace(path: &Path, contents: &[u8]) -> io::Result<()> {
    let next = path.with_extension("next");
    let mut file = open(OpenOptions::new().write(true).create(true), &next)?;
    file.set_len(0)?;
    file.write_all(contents)?;
    fs::rename(&next, path)
}

fn words(path: &Path) -> VecDeque<OsString> {
    let words = path.components();
    words.map(|word| word.as_os_str().to_owned()).collect()
}

fn find_or_make(at: &Path, mode: u32) -> io::Result<Metadata> {
    match fs::symlink_metadata(at) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            match DirBuilder::new().mode(mode).create(at) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
                _ => fs::symlink_metadata(at),
            }
        }
        found => found,
    }
}

fn check_owner(at: &Path, found: &Metadata) -> io::Result<()> {
    let us = Uid::effective();
    // In a user namespace without root, root's directories have the owner of `/`.
    let trusted = [0, us.as_raw(), fs::symlink_metadata("/")?.uid()];
    if trusted.contains(&found.uid()) {
        return Ok(());
    }
    let (owner, us) = (name(Uid::from_raw(found.uid())), name(us));
    let at = at.display();
    Err(denied(format!("{at} belongs to {owner}, not to {us}")))
}

fn check_writers(at: &Path, found: &Metadata, is_last: bool) -> io::Result<()> {
    let mode = found.mode();
    let writers = if mode & STICKY != 0 && !is_last {
        return Ok(());
    } else if mode & WORLD_WRITABLE != 0 {
        "all users".to_owned()
    } else if mode & GROUP_WRITABLE != 0 && !is_private(Gid::from_raw(found.gid())) {
        format!("its group {}", found.gid())
    } else {
        return Ok(());
    };
    let (at, mode) = (at.display(), mode & 0o7777);
    Err(denied(format!(
        "{at} (mode {mode:04o}) can be written by {writers}"
    )))
}

/// Whether a group has no other member than the agent's user, or root, whose name it has.
fn is_private(gid: Gid) -> bool {
    let Ok(Some(group)) = Group::from_gid(gid) else {
        return false;
    };
    let owners = [Uid::from_raw(0), Uid::effective()].map(name);
    owners.contains(&group.name) && group.mem.iter().all(|member| *member == group.name)
}

fn name(uid: Uid) -> String {
    match User::from_uid(uid) {
        Ok(Some(user)) => user.name,
        _ => format!("uid {uid}"),
    }
}

fn denied(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, message)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn directories_are_made_where_others_cannot_write() {
        let place = tempfile::tempdir().unwrap();
        let place = place.path().canonicalize().unwrap();
        let deep = place.join("a/./b/../c");
        make_directory(&deep, 0o700).unwrap();
        assert_eq!(
            fs::metadata(place.join("a/c")).unwrap().mode() & 0o777,
            0o700
        );
        make_directory(&deep, 0o755).unwrap();
        assert_eq!(fs::metadata(&deep).unwrap().mode() & 0o777, 0o700);

        let open = place.join("open");
        fs::create_dir(&open).unwrap();
        set_mode(&open, 0o777);
        let refusal = make_directory(&open.join("state"), 0o700).unwrap_err();
        assert_eq!(refusal.kind(), io::ErrorKind::PermissionDenied);
        let said = format!("{} (mode 0777) can be written by all users", open.display());
        assert_eq!(refusal.to_string(), said);
        assert!(!open.join("state").exists());
        // In a sticky directory others make names of their own, and change no others.
        set_mode(&open, 0o1777);
        make_directory(&open.join("state"), 0o700).unwrap();
        assert!(make_directory(&open, 0o700).is_err());
        // A link is judged by its target.
        symlink("open", place.join("link")).unwrap();
        make_directory(&place.join("link/state"), 0o700).unwrap();
        set_mode(&open, 0o777);
        assert!(make_directory(&place.join("link/state"), 0o700).is_err());
        symlink("round", place.join("round")).unwrap();
        let round = make_directory(&place.join("round"), 0o700).unwrap_err();
        assert_eq!(round.raw_os_error(), Some(Errno::ELOOP as i32));
    }

    #[test]
    fn files_are_opened_under_their_only_name() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("file");
        let mut options = OpenOptions::new();
        options.write(true).create(true);
        open(&mut options, &file).unwrap();
        open(&mut options, &file).unwrap();
        symlink("file", place.path().join("link")).unwrap();
        fs::hard_link(&file, place.path().join("other")).unwrap();
        for name in ["link", "other"] {
            let path = place.path().join(name);
            let refusal = open(&mut options, &path).unwrap_err();
            let said = format!("{} is a link; remove it", path.display());
            assert_eq!(refusal.to_string(), said);
        }
    }
}
