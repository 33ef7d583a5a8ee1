//! Mounts of a node: they hide the host's files, or replace them.
//!
//! All of them but `/sys` are made by root of the host, before the node has a user namespace. The kernel
//! locks such mounts together with what is below them (`MNT_LOCKED`, mount_namespaces(7)), so that the
//! node's root cannot unmount them. `/sys` shows the network namespace of its maker, which has to be the
//! node's. So the host's is unmounted first, and the agent makes the node's: see [`sysfs`].

use std::fs::{self, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{AccessFlags, access};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, fsconfig_create, fsmount, fsopen,
    move_mount,
};
use toroid_protocol::agent::Bind;

use super::{During, NodeError};

/// The home directory of a node's root, as `toroid exec` has it in `HOME`.
const HOME: &str = "/run/root";

/// The home directory of the host's root.
const HOME_OF_HOST: &str = "/root";

/// Files with secrets of the host, the files with the names in them, and the rest of an entry
/// without a password; see shadow(5) and gshadow(5). The date of the last change is in the past,
/// but not 0, which would ask for another password.
const SECRETS: [[&str; 3]; 2] = [
    ["/etc/shadow", "/etc/passwd", ":*:1::::::"],
    ["/etc/gshadow", "/etc/group", ":*::"],
];

/// Times to mount on a file of the host. useradd(8) puts another file in its place, and nothing can be
/// mounted on one that was found just before.
const TRIES: u32 = 100;

/// The group `tty` of distributions, to which terminals belong.
const TERMINAL_GROUP: u32 = 5;

const NONE: Option<&str> = None;

/// Makes a mount namespace with the hosts file of the node.
pub(super) fn separate(hosts_file: &Path) -> Result<(), NodeError> {
    unshare(CloneFlags::CLONE_NEWNS).during("make a mount namespace")?;
    // Where the host shares its mounts, as with systemd, later mounts and unmounts of the host
    // happen in the node too, so a node keeps no disk busy against its will. Mounts of the node
    // stay in the node.
    let slave = MsFlags::MS_SLAVE | MsFlags::MS_REC;
    mount(NONE, "/", NONE, slave, NONE).during("separate its mounts")?;
    let hosts = Path::new("/etc/hosts");
    if hosts.exists() {
        mount(Some(hosts_file), hosts, NONE, MsFlags::MS_BIND, NONE)
            .during("mount its /etc/hosts")?;
    }
    Ok(())
}

/// Mounts a file system of the kernel that shows the namespaces of this process.
pub(super) fn fresh(kind: &str, place: &str) -> io::Result<()> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    Ok(mount(Some(kind), place, Some(kind), flags, NONE)?)
}

/// Gives the node pseudo terminals of its own, so that it sees those neither of the host nor of
/// other nodes. `first` is the first of its groups.
pub(super) fn terminals(first: Option<u32>) -> io::Result<()> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
    let group = first.map(|first| format!(",gid={}", first + TERMINAL_GROUP));
    let options = format!("ptmxmode=0666,mode=0620{}", group.unwrap_or_default());
    let (kind, place) = (Some("devpts"), "/dev/pts");
    mount(kind, place, kind, flags, Some(&options[..]))?;
    // If this is a device and no link, it would open terminals of the host.
    bind("/dev/pts/ptmx", "/dev/ptmx")
}

/// Gives the node temporary files of its own, so that its processes meet those of no other node in
/// a directory that both may write.
pub(super) fn hide_temporary_files(owner: u32, bytes: u64) -> Result<(), NodeError> {
    for place in ["/tmp", "/var/tmp"] {
        tmpfs(place, owner, 0o1777, bytes).during("mount a /tmp of its own")?;
    }
    Ok(())
}

/// Gives the node a `/run` and a `/dev/shm` of its own, so that it sees neither the sockets and
/// process numbers of the host's daemons nor other nodes' shared memory, and has room for those
/// of its own.
pub(super) fn hide_runtime_files(owner: u32, shared_bytes: u64) -> Result<(), NodeError> {
    const RUN_BYTES: u64 = 64 << 20;
    tmpfs("/run", owner, 0o755, RUN_BYTES)
        .and_then(|()| tmpfs("/dev/shm", owner, 0o1777, shared_bytes))
        .during("mount a /run and a /dev/shm of its own")
}

/// Mounts an empty file system over a directory of the host, if there is one.
fn tmpfs(place: impl AsRef<Path>, owner: u32, mode: u32, bytes: u64) -> io::Result<()> {
    let place = place.as_ref();
    if !place.is_dir() {
        return Ok(());
    }
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    let options = format!("mode={mode:o},uid={owner},gid={owner},size={bytes}");
    let kind = Some("tmpfs");
    Ok(mount(kind, place, kind, flags, Some(&options[..]))?)
}

/// Gives the node's root a home directory, also in the place of the home of the host's root: the
/// password file names that.
pub(super) fn make_home(owner: u32) -> Result<(), NodeError> {
    let make = || {
        fs::create_dir(HOME)?;
        give(HOME, owner, owner, 0o700)?;
        if Path::new(HOME_OF_HOST).is_dir() {
            bind(HOME, HOME_OF_HOST)
        } else {
            Ok(())
        }
    };
    make().during("make a home for its root")
}

/// Gives the node its own files with secrets: all names of the host's users and groups, without a
/// password. The host's files cannot be read there, and software takes users without an entry for
/// locked.
pub(super) fn make_secrets(first: u32) -> Result<(), NodeError> {
    for [secrets, names, no_password] in SECRETS {
        let make = || {
            let Ok(of_host) = fs::metadata(secrets) else {
                return Ok(());
            };
            let text = without_passwords(&fs::read(names)?, no_password);
            // The file exists without its name once it is mounted.
            let unnamed = "/run/secrets";
            fs::write(unnamed, text)?;
            give(unnamed, first, first + of_host.gid(), 0o640)?;
            let mut tries = 1..TRIES;
            while let Err(error) = bind(unnamed, secrets) {
                if error.kind() != io::ErrorKind::NotFound || tries.next().is_none() {
                    return Err(error);
                }
            }
            fs::remove_file(unnamed)
        };
        make().during(&format!("make its {secrets}"))?;
    }
    Ok(())
}

/// A file with secrets for the names in one such as passwd(5).
fn without_passwords(names: &[u8], no_password: &str) -> String {
    let names = String::from_utf8_lossy(names);
    let names = names.lines().filter_map(|line| line.split_once(':'));
    // Entries of NIS begin with a sign.
    let names = names.filter(|(name, _)| !name.is_empty() && !name.starts_with(['+', '-', '#']));
    names
        .map(|(name, _)| format!("{name}{no_password}\n"))
        .collect()
}

fn give(path: &str, uid: u32, gid: u32, mode: u32) -> io::Result<()> {
    chown(path, Some(uid), Some(gid))?;
    fs::set_permissions(path, Permissions::from_mode(mode))
}

fn bind(from: &str, to: &str) -> io::Result<()> {
    Ok(mount(Some(from), to, NONE, MsFlags::MS_BIND, NONE)?)
}

/// Unmounts the host's `/sys`, everything below, and what it has been mounted over. Under a mount of
/// the node's own these would reappear.
pub(super) fn drop_sysfs() -> Result<(), NodeError> {
    loop {
        match umount2("/sys", MntFlags::MNT_DETACH) {
            Ok(()) => {}
            // Nothing is mounted there any more.
            Err(nix::errno::Errno::EINVAL | nix::errno::Errno::ENOENT) => return Ok(()),
            Err(error) => return Err(error).during("take the host's /sys away"),
        }
    }
}

/// Makes a `/sys` of the present network namespace, to be mounted elsewhere. A process in a user
/// namespace may make one only where it sees another.
pub(super) fn sysfs() -> io::Result<OwnedFd> {
    let context = fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    Ok(fsmount(
        &context,
        FsMountFlags::FSMOUNT_CLOEXEC,
        attributes,
    )?)
}

/// Mounts the result of [`sysfs`].
pub(super) fn mount_sysfs(made: &OwnedFd) -> io::Result<()> {
    attach(made, Path::new("/sys"))
}

/// Mounts directories of a caller, each of which comes as a detached mount, where only this thread
/// and its children see them.
pub(super) fn borrow(binds: &[Bind], mounts: &[OwnedFd]) -> Result<(), String> {
    if binds.is_empty() {
        return Ok(());
    }
    let separate = || {
        unshare(CloneFlags::CLONE_NEWNS)?;
        // Later mounts of the node happen here too, and not the other way round.
        let slave = MsFlags::MS_SLAVE | MsFlags::MS_REC;
        mount(NONE, "/", NONE, slave, NONE)
    };
    separate().map_err(|error| format!("cannot make a mount namespace: {error}"))?;
    let mut all: Vec<_> = binds.iter().zip(mounts).collect();
    // Places below others come after them.
    all.sort_by_key(|(bind, _)| Path::new(&bind.place));
    let mut covers = Vec::new();
    for (bind, mount) in all {
        let place = Path::new(&bind.place);
        make_place(place, &mut covers)
            .and_then(|()| attach(mount, place))
            .map_err(|error| {
                format!(
                    "cannot bind {} to {} in the node: {error}; choose a place that is there, or \
                     that the node's root can make: --bind {}:/run/NAME",
                    bind.directory, bind.place, bind.directory
                )
            })?;
    }
    for cover in &covers {
        let flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
        let limits = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(NONE, cover, NONE, flags | limits, NONE)
            .map_err(|error| format!("cannot limit {}: {error}", cover.display()))?;
    }
    Ok(())
}

/// Makes a directory. An empty directory covers an existing one above that the node's root may not
/// enter, such as a home: the command had no access to it.
fn make_place(place: &Path, covers: &mut Vec<PathBuf>) -> io::Result<()> {
    const COVER_BYTES: u64 = 64 << 10;
    let mut above: Vec<_> = place.ancestors().skip(1).collect();
    above.reverse();
    let closed = |directory: &&Path| access(*directory, AccessFlags::X_OK).is_err();
    if let Some(closed) = above.into_iter().find(closed)
        && closed.is_dir()
    {
        tmpfs(closed, 0, 0o755, COVER_BYTES)?;
        covers.push(closed.into());
    }
    fs::create_dir_all(place)
}

fn attach(made: &OwnedFd, place: &Path) -> io::Result<()> {
    let from_descriptor = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    Ok(move_mount(
        made,
        "",
        nix::fcntl::AT_FDCWD,
        place,
        from_descriptor,
    )?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_an_entry_without_a_password() {
        let passwd =
            b"root:x:0:0:root:/root:/bin/bash\n\n# a remark\n+::::::\nwww-data:x:33:33::/:/\n";
        assert_eq!(
            without_passwords(passwd, SECRETS[0][2]),
            "root:*:1::::::\nwww-data:*:1::::::\n"
        );
        assert_eq!(
            without_passwords(b"adm:x:4:alice\n", SECRETS[1][2]),
            "adm:*::\n"
        );
    }
}
