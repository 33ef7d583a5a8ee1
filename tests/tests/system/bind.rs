//! A caller's directory in a node: `toroid exec --bind`.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tests::cluster::Cluster;
use tests::process::{Outcome, Running, eventually, run};
use tests::user::User;

const OF_ALICE: &str = "0,0,0";
const OF_ROOT: &str = "1,0,0";

/// A user with a node, and a home that is closed to others.
struct Alice<'a> {
    cluster: &'a Cluster,
    user: User,
    home: PathBuf,
    project: PathBuf,
}

impl<'a> Alice<'a> {
    fn moves_into(cluster: &'a Cluster) -> Self {
        let user = User::create();
        let uid = user.uid().to_string();
        cluster
            .toroid(&format!("node chown {} {uid}", OF_ALICE))
            .ok();
        let home = directory(cluster.files().join("home"), &user);
        let project = directory(home.join("project"), &user);
        file(&project.join("in"), "of alice", &user);
        Alice {
            cluster,
            user,
            home,
            project,
        }
    }

    /// A script in her node, run from her project, with these options; she has a shell on the host.
    fn script(&self, options: &[&str], script: &str) -> Command {
        let uid = self.user.uid().to_string();
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid", &uid, "--regid", &uid, "--clear-groups", "--"])
            .arg(self.cluster.files().join("bin/toroid"))
            .arg("exec")
            .args(options)
            .args([OF_ALICE, "--", "sh", "-c", script])
            .env("TOROID_STATE", self.cluster.state())
            .current_dir(&self.project);
        command
    }

    fn runs(&self, options: &[&str], text: &str) -> Outcome {
        run(&mut self.script(options, text))
    }
}

fn directory(path: PathBuf, owner: &User) -> PathBuf {
    fs::create_dir(&path).expect("it is new");
    fs::set_permissions(&path, Permissions::from_mode(0o700)).expect("it is ours");
    chown(&path, Some(owner.uid()), Some(owner.uid())).expect("this is root");
    path
}

fn file(path: &Path, text: &str, owner: &User) {
    fs::write(path, text).expect("there is room");
    fs::set_permissions(path, Permissions::from_mode(0o600)).expect("it is ours");
    chown(path, Some(owner.uid()), Some(owner.uid())).expect("this is root");
}

/// Her node could neither read her home nor write there: its files belonged to no user.
#[test]
fn files_of_a_bound_directory_are_the_callers_here_and_of_the_nodes_root_there() {
    let cluster = Cluster::up("2x1x1");
    let alice = Alice::moves_into(&cluster);
    alice
        .runs(&[], "cat in")
        .fails(1, &["may not go there", "cat: in"]);

    let work = "pwd; cat in; stat -c ' %u:%g' in; echo result > out; mkdir -p a/b; chmod 640 out";
    let said = alice.runs(&["--bind", "."], work).ok();
    let project = alice.project.display();
    assert_eq!(said.text(), format!("{project}\nof alice 0:0"));
    for name in ["out", "a", "a/b"] {
        let made = alice.project.join(name).metadata().expect("it was made");
        let owner = (made.uid(), made.gid());
        assert_eq!(owner, (alice.user.uid(), alice.user.uid()), "{name}");
    }
    let out = alice.project.join("out");
    assert_eq!(fs::read_to_string(&out).expect("it is there"), "result\n");
    assert_eq!(out.metadata().expect("it is there").mode() & 0o777, 0o640);

    // Writes that would be lost fail: her home is not bound, only the path to her project.
    let lost = format!("touch {}/lost", alice.home.display());
    alice
        .runs(&["--bind", "."], &lost)
        .fails(1, &["Read-only file system"]);
    // Elsewhere, and two of them, one below the other.
    let two = ["--bind", ".:/run/work", "--bind", "a:/run/work/a"];
    let said = alice.runs(&two, "cd /run/work && cat in && rmdir a/b").ok();
    assert_eq!(said.text(), "of alice");
    assert!(!alice.project.join("a/b").exists());
}

#[test]
fn files_of_others_in_a_bound_directory_stay_theirs() {
    let cluster = Cluster::up("2x1x1");
    let (alice, bob) = (Alice::moves_into(&cluster), User::create());
    let secret = alice.project.join("secret");
    file(&secret, "of bob", &bob);
    let closed = directory(alice.project.join("closed"), &bob);
    file(&closed.join("file"), "of bob", &bob);
    let says = |script: &str, complaint: &str| {
        let said = alice.runs(&["--bind", "."], script).fails_somehow();
        assert!(said.stderr.contains(complaint), "{said}");
    };
    says("cat secret", "Permission denied");
    says("ls closed", "Permission denied");
    says("chmod 666 secret", "Value too large");
    says("chown 0 secret", "Value too large");
    // Of the node's users only root has a counterpart on the host.
    says("touch new && chown 33 new", "Value too large");
    assert_eq!(secret.metadata().expect("it is there").uid(), bob.uid());
}

/// The node's root may mount, and so lift the limits of mounts that it has made.
#[test]
fn what_is_bound_read_only_stays_so() {
    let cluster = Cluster::up("2x1x1");
    let alice = Alice::moves_into(&cluster);
    let script = "cat in && ! touch x && ! mount -o remount,bind,rw . && ! touch x && \
                  ! chmod 666 in && unshare -m sh -c '! mount -o remount,bind,rw . && ! touch x'";
    let said = alice.runs(&["--bind", ".:ro"], script).ok();
    assert_eq!(said.text(), "of alice");
    let refused = said.stderr.matches("Read-only file system").count();
    assert_eq!(refused, 4, "{said}");
    let said = alice.runs(&["--bind", ".:/run/x:ro"], "touch /run/x/new");
    said.fails(1, &["Read-only file system"]);
    assert!(!alice.project.join("x").exists());
}

/// Other users of the node enter a bound directory that is open to all, as the user nobody.
#[test]
fn nobody_becomes_the_caller_by_a_file_in_a_bound_directory() {
    let cluster = Cluster::up("2x1x1");
    let alice = Alice::moves_into(&cluster);
    let script = "cd /run/x && chmod 777 . && cp /usr/bin/id . && chmod 4755 id && \
                  setpriv --reuid 33 --regid 33 --clear-groups sh -c './id -u; touch new'";
    alice
        .runs(&["--bind", ".:/run/x"], script)
        .fails(1, &["cannot touch 'new'"]);
    let said = alice.runs(&["--bind", ".:/run/x"], &format!("{script}; true"));
    assert_eq!(said.ok().text(), "33");
}

#[test]
fn a_bound_directory_is_its_commands_alone_and_goes_with_it() {
    let cluster = Cluster::up("2x1x1");
    let alice = Alice::moves_into(&cluster);
    let mounts = || fs::read_to_string("/proc/self/mountinfo").expect("this is Linux");
    let before = mounts();
    let bind = ["--bind", ".:/run/work"];
    let mut long = alice.script(&bind, "ls /run/work; read line; ls /run/work");
    let mut long = Running::start(long.stdin(Stdio::piped()));
    long.says("in");
    // Even where its node shares its mounts.
    alice.runs(&[], "mount --make-rshared /").ok();
    let mut second = alice.script(&bind, "ls /run/work; read line");
    let mut second = Running::start(second.stdin(Stdio::piped()));
    second.says("in");
    assert_eq!(alice.runs(&[], "ls -A /run/work").ok().text(), "");
    assert_eq!(mounts(), before);
    let count = "grep -c /run/work /proc/[0-9]*/task/*/mountinfo | grep -v ':0$'";
    let holders = || alice.runs(&[], count).text().lines().count();
    assert_ne!(holders(), 0);
    cluster.kill_agent();
    cluster.toroid("up").ok();
    drop((long.stdin(), second.stdin()));
    assert_eq!(long.wait().text(), "in\nin");
    second.wait();
    eventually("no process has it", || holders() == 0);
}

/// A node gets only files that its caller could open.
#[test]
fn what_the_caller_may_not_read_is_not_bound() {
    let cluster = Cluster::up("2x1x1");
    let (alice, bob) = (Alice::moves_into(&cluster), User::create());
    let closed = directory(cluster.files().join("bobs"), &bob);
    let bobs = closed.to_str().expect("UTF-8");
    let denied = |directory: &str| {
        alice
            .runs(&["--bind", &format!("{directory}:/run/x")], "true")
            .fails(6, &["cannot bind", directory, "Permission denied"]);
    };
    denied(bobs);
    denied(&format!("{bobs}/below"));
    symlink(&closed, alice.project.join("link")).expect("it is new");
    denied("link");
    fs::remove_file(alice.project.join("link")).expect("it is there");
    // One to a directory of hers is as good as that.
    symlink(&alice.project, alice.project.join("link")).expect("it is new");
    let said = alice.runs(&["--bind", "link"], "cd link 2> /dev/null; cat in");
    assert_eq!(said.ok().text(), "of alice");

    let fails = |bind: &str, status: i32, words: &[&str]| {
        alice.runs(&["--bind", bind], "true").fails(status, words);
    };
    fails("in", 2, &["cannot bind in: Not a directory", "--bind ."]);
    fails("nothing", 4, &["cannot bind nothing", "mkdir nothing"]);
    fails(".:run", 2, &["DIR:DEST"]);
    fails(".:/", 2, &["\"/\" is no place", "--bind DIR:/run/NAME"]);
    fails(
        ".:/usr/x",
        126,
        &[
            "to /usr/x in the node: Permission denied",
            "--bind .:/run/NAME",
        ],
    );
    fails(".:/etc/hosts", 126, &["to /etc/hosts in the node"]);
    let nine = ["--bind", "."].repeat(9);
    alice
        .runs(&nine, "true")
        .fails(2, &["at most 8 directories"]);
}

#[test]
fn what_cannot_be_bound_says_why() {
    let cluster = Cluster::up("2x1x1");
    let alice = Alice::moves_into(&cluster);
    // Her command line with mounts of its own.
    let home = alice.user.home().to_str().expect("UTF-8");
    let mut apart = alice.user.command("toroid");
    apart.args([
        "exec",
        "--bind",
        &format!("{home}:/run/x"),
        OF_ALICE,
        "--",
        "true",
    ]);
    run(apart.env("TOROID_STATE", cluster.state())).fails(
        6,
        &[
            "in another mount namespace than the agent",
            "outside of the container",
        ],
    );

    let exec = |options: &[&str], node: &str, script: &str| {
        let mut command = cluster.command("toroid");
        command
            .arg("exec")
            .args(options)
            .args([node, "--", "sh", "-c", script]);
        run(&mut command)
    };
    let words = ["cannot bind /sys/kernel", "idmapped mounts", "ext4"];
    exec(&["--bind", "/sys/kernel:/run/x"], OF_ROOT, "true").fails(1, &words);
    exec(&["-t", "--bind", "/sys/kernel:/run/x"], OF_ROOT, "true").fails(1, &words);

    // Root's own, in a node of root and in that of another.
    let files = cluster.files().join("roots");
    fs::create_dir(&files).expect("it is new");
    fs::set_permissions(&files, Permissions::from_mode(0o700)).expect("it is ours");
    fs::write(files.join("note"), "of root").expect("there is room");
    let files = format!("{}:/run/x", files.display());
    let (show, write) = ("cat /run/x/note", "touch /run/x/new");
    exec(&["--bind", &files], OF_ROOT, write).ok();
    exec(&["--bind", &files], OF_ALICE, show).fails(6, &["belongs to another user", ":ro"]);
    let read_only = format!("{files}:ro");
    assert_eq!(
        exec(&["--bind", &read_only], OF_ALICE, show).ok().text(),
        "of root"
    );
    exec(&["--bind", &read_only], OF_ALICE, write).fails(1, &["Read-only file system"]);
}

/// There a node sees the files of its agent's user with their owners.
#[test]
fn an_ordinary_users_nodes_need_no_bound_directories() {
    let cluster = Cluster::of_user(User::create());
    cluster.toroid("up --torus 1x1x1").ok();
    cluster
        .toroid("exec --bind . 0,0,0 -- true")
        .fails(6, &["leave --bind out"]);
    let made = cluster.files().join("made");
    cluster.exec("0,0,0", "touch made").ok();
    assert!(made.exists());
}
