//! Files of an agent belong to its user alone: other users neither replace nor lock them.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;

use tests::cluster::{Cluster, leaves_nothing};
use tests::process::{Outcome, run};
use tests::user::{Tun, User, as_uid};

const DENIED: i32 = 6;

/// Exit status of flock(1) for a lock file that cannot be opened.
const NO_INPUT: i32 = 66;

/// An ordinary user once made the directory before root's agent did, with links to files of root in
/// place of the agent's: these files were truncated, overwritten and appended to.
#[test]
fn a_directory_that_another_user_can_change_is_refused() {
    leaves_nothing(|| {
        let (cluster, alice) = (Cluster::down_yet(), User::create());
        let secret = cluster.files().join("secret");
        fs::write(&secret, "kept").expect("there is room");
        let planted = cluster.files().join("planted");
        fs::create_dir(&planted).expect("it is new");
        for name in ["agent.log", "lock", "events.jsonl"] {
            symlink(&secret, planted.join(name)).expect("it is new");
        }
        let give_to = |uid: u32| chown(&planted, Some(uid), Some(uid)).expect("this is root");
        let up = |state: &Path, data: &Path| -> Outcome {
            let mut up = cluster.command("toroid");
            up.args(["up", "--torus", "1x1x1"]);
            run(up.env("TOROID_STATE", state).env("TOROID_DATA", data))
        };

        give_to(alice.uid());
        let said = format!(
            "{} belongs to {}, not to root",
            planted.display(),
            alice.name()
        );
        for state in [planted.clone(), planted.join("deeper")] {
            let denied = up(&state, &cluster.data());
            denied.fails(
                DENIED,
                &["cannot use the state directory", &said, "--state"],
            );
        }
        let denied = up(&cluster.state(), &planted);
        denied.fails(DENIED, &["cannot use the data directory", &said, "--data"]);

        // Root has taken it, and has not noticed the links.
        give_to(0);
        let denied = up(&planted, &cluster.data());
        let log = planted.join("agent.log");
        denied.fails(
            DENIED,
            &[&format!("{} is a link; remove it", log.display())],
        );

        let open = cluster.files().join("open");
        fs::create_dir(&open).expect("it is new");
        fs::set_permissions(&open, Permissions::from_mode(0o777)).expect("this is root");
        let said = format!("{} (mode 0777) can be written by all users", open.display());
        let denied = up(&open.join("state"), &cluster.data());
        denied.fails(DENIED, &[&said, "--state"]);

        assert_eq!(fs::read_to_string(&secret).expect("it is there"), "kept");
        let names = fs::read_dir(&planted).expect("it is there");
        assert_eq!(names.count(), 3, "the links alone");
    });
}

/// To lock a file takes the right to read it, and the lock of an agent that was killed was free for
/// all.
#[test]
fn an_ordinary_user_cannot_keep_a_killed_agent_from_coming_back() {
    let (cluster, alice) = (Cluster::up("1x1x1"), User::create());
    cluster.kill_agent();
    let data = fs::read_dir(cluster.data()).expect("the agent has made it");
    let data = data.flatten().map(|entry| entry.path().join("lock"));
    let locks = [cluster.state().join("lock"), "/run/toroid.users".into()];
    let locks: Vec<_> = locks.into_iter().chain(data).collect();
    assert_eq!(locks.len(), 3, "{locks:?}");
    for lock in locks {
        let mut flock = as_uid(alice.uid(), Tun::Missing);
        flock.args(["flock", "--nonblock"]).arg(&lock).arg("true");
        run(&mut flock).fails(NO_INPUT, &["Permission denied"]);
    }
    cluster.toroid("up").ok();
}
