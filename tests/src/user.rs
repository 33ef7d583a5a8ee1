//! An ordinary user, made for a story and removed after it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::unistd::User as Account;
use tempfile::TempDir;

use crate::cluster::{PLACE, program};
use crate::leftovers::prefix;
use crate::process::{clean_up, run};

/// Programs copied for the user: the build directory may be closed to it.
const PROGRAMS: [&str; 5] = [
    "toroid",
    "toroid-ethernet",
    "toroid-kv",
    "toroid-bench",
    "actor",
];

/// The `PATH` of an ordinary user, with the directories that [`BECOME`] needs.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin";

/// Prepares a mount namespace of the command's own, and drops the rights of root.
const BECOME: &str = r#"
set -e
uid=$1 tun=$2
shift 2
mount -t tmpfs -o mode=0755 none /dev/net
[ "$tun" = missing ] || mknod --mode "$tun" /dev/net/tun c 10 200
[ "$uid" != 0 ] || exec "$@"
exec setpriv --reuid "$uid" --regid "$uid" --clear-groups --inh-caps=-all -- "$@"
"#;

/// Access of a command to `/dev/net/tun`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tun {
    /// All users may open it, as in most distributions.
    Open,
    /// Only root may open it.
    Closed,
    /// It does not exist.
    Missing,
}

/// An ordinary user.
#[derive(Debug)]
pub struct User {
    name: String,
    uid: u32,
    home: TempDir,
}

impl User {
    /// Makes a user, with copies of this workspace's programs.
    ///
    /// # Panics
    /// When that fails; only root can.
    pub fn create() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}{count}", prefix());
        // An interrupted run with the same process numbers may have left one; usually there is none.
        let _ = run(Command::new("userdel").arg(&name));
        let home = tempfile::Builder::new().prefix(&prefix()).tempdir_in(PLACE);
        let home = home.expect("a temporary directory");
        run(Command::new("useradd")
            .args(["--no-create-home", "--user-group"])
            .arg(&name))
        .ok();
        let account = Account::from_name(&name).expect("users can be looked up");
        let uid = account.expect("it was made just now").uid.as_raw();
        let user = User { name, uid, home };
        user.furnish();
        user
    }

    fn furnish(&self) {
        fs::set_permissions(self.home(), fs::Permissions::from_mode(0o755)).expect("it is ours");
        fs::create_dir(self.home().join("bin")).expect("it is new");
        for name in PROGRAMS {
            fs::copy(program(name), self.home().join("bin").join(name)).expect("there is room");
        }
    }

    /// Its login name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its user id, which is also its group id.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// A directory that it can read; `bin` in it has the programs.
    pub fn home(&self) -> &Path {
        self.home.path()
    }

    /// A program of this workspace, run by this user with the tun device open to it.
    pub fn command(&self, name: &str) -> Command {
        self.command_with(Tun::Open, name)
    }

    /// A program of this workspace, run by this user.
    pub fn command_with(&self, tun: Tun, name: &str) -> Command {
        let program = self.home().join("bin").join(name);
        let mut command = as_uid(self.uid, tun);
        command.arg(program).current_dir(self.home());
        let path = format!("{}:{PATH}", self.home().join("bin").display());
        command
            .env("HOME", self.home())
            .env("USER", &self.name)
            .env("PATH", path);
        command
    }
}

impl Drop for User {
    fn drop(&mut self) {
        clean_up(Command::new("userdel").arg(&self.name));
    }
}

/// A command that runs the program and arguments appended to it as `uid` (0 is root), in a mount namespace
/// of its own.
pub fn as_uid(uid: u32, tun: Tun) -> Command {
    let tun = match tun {
        Tun::Open => "0666",
        Tun::Closed => "0600",
        Tun::Missing => "missing",
    };
    let mut command = Command::new("unshare");
    command.args([
        "--mount",
        "--propagation",
        "private",
        "--",
        "sh",
        "-c",
        BECOME,
        "sh",
    ]);
    command.arg(uid.to_string()).arg(tun);
    command
}
