//! A node is a machine of its own: name, users, temporary files and views of the kernel.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;
use tests::cluster::{Cluster, leaves_nothing};
use tests::process::{Running, eventually, run, send};

const NODE: &str = "1,0,0";

#[test]
fn a_node_has_a_name_that_resolves() {
    let cluster = Cluster::up("2x1x1");
    let names = cluster.exec("*,0,0", "hostname").ok();
    let mut names: Vec<_> = names.text().lines().collect();
    names.sort_unstable();
    assert_eq!(names, ["0,0,0: 0-0-0", "1,0,0: 1-0-0"]);
    let is = |address: &str, has: bool| {
        let addresses = cluster.exec(NODE, "hostname -i").ok();
        let mut words = addresses.text().split_whitespace();
        assert_eq!(
            words.any(|word| word == address),
            has,
            "{address}: {addresses}"
        );
    };
    is("127.0.1.1", true);

    // Peers have short names as well. Of two domains the older one has them.
    let red = cluster.domain("red", &["*,0,0"]);
    let blue = cluster.domain("blue", &["*,0,0"]);
    let (in_red, in_blue) = (red.ipv4(NODE), blue.ipv4(NODE));
    is(&in_red, true);
    is(&in_blue, false);
    is("127.0.1.1", false);
    assert_eq!(cluster.exec(NODE, "hostname -f").ok().text(), "1-0-0.red");
    cluster.reaches("0,0,0", "1-0-0");
    red.remove();
    is(&in_blue, true);
    blue.remove();
    is("127.0.1.1", true);
}

/// The host's passwords cannot be read in a node, and accounts without an entry are locked: `su`,
/// sshd and all else that asks PAM refused every user, root too.
#[test]
fn a_node_knows_all_users_and_no_passwords() {
    let cluster = Cluster::up("1x1x1");
    let names = |file: &str, command: &str| -> Vec<String> {
        let text = match command {
            "" => fs::read_to_string(file).expect("every host has one"),
            _ => cluster.exec("0,0,0", command).ok().text().to_owned(),
        };
        let name = |line: &str| line.split(':').next().unwrap_or_default().to_owned();
        text.lines().map(name).collect()
    };
    for [names_of_host, secrets] in [
        ["/etc/passwd", "/etc/shadow"],
        ["/etc/group", "/etc/gshadow"],
    ] {
        let of_node = names(secrets, &format!("cat {secrets}"));
        assert_eq!(of_node, names(names_of_host, ""), "{secrets}");
        let unlocked = cluster
            .shell("0,0,0", &format!("cut -d: -f2 {secrets} | sort -u"))
            .ok();
        assert_eq!(unlocked.text(), "*", "{secrets}");
        let mode = cluster
            .exec("0,0,0", &format!("stat -c %a,%u {secrets}"))
            .ok();
        assert_eq!(mode.text(), "640,0", "{secrets}");
    }
    let su = cluster.shell("0,0,0", "su nobody -s /bin/sh -c 'id -un; cat /etc/shadow'");
    assert_eq!(su.text(), "nobody", "{su}");
    assert!(su.stderr.contains("/etc/shadow: Permission denied"), "{su}");
    let login = cluster
        .shell(
            "0,0,0",
            "su - -c 'pwd; touch here; stat -c %a,%u /run/root'",
        )
        .ok();
    assert_eq!(login.text(), "/root\n700,0", "{login}");
}

/// `umount /sys` once showed the interfaces and groups of the host.
#[test]
fn a_node_shows_no_kernel_files_of_the_host() {
    let cluster = Cluster::up("1x1x1");
    assert_eq!(cluster.exec("0,0,0", "ls /sys/class/net").ok().text(), "lo");
    // All that can come to light is the directory for it.
    let _ = cluster.exec("0,0,0", "umount --recursive /sys");
    assert_eq!(cluster.exec("0,0,0", "ls -A /sys").ok().text(), "");
    cluster.exec("0,0,0", "umount /sys").fails_somehow();
}

/// Hands a descriptor of a file to a process that asks for one.
const GIVE: &str = r#"
import array, os, socket, sys
path = sys.argv[1]
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
os.chmod(path, 0o666)
listener.listen()
print("ready", flush=True)
while True:
    other, _ = listener.accept()
    file = os.memfd_create("secret")
    os.write(file, b"handed over")
    socket.send_fds(other, [b"x"], [file])
"#;

/// Asks for it, and reads from it.
const TAKE: &str = r#"
import os, socket, sys
peer = socket.socket(socket.AF_UNIX)
peer.connect(sys.argv[1])
_, [file], _, _ = socket.recv_fds(peer, 1, 1)
print(os.pread(file, 99, 0).decode())
"#;

/// A member once handed the descriptor of a region to a node of another owner, through a socket in the
/// `/tmp` of all: the agent did not know that this node had it.
#[test]
fn nodes_meet_in_no_directory_for_temporary_files_unless_the_operator_lets_them() {
    leaves_nothing(|| {
        let cluster = Cluster::up("2x1x1");
        let take = |place: &str| {
            let argv = ["/usr/bin/python3", "-c", TAKE, &format!("{place}/meet")];
            run(&mut cluster.in_node("1,0,0", &argv))
        };
        let give = |place: &str| {
            let argv = ["/usr/bin/python3", "-uc", GIVE, &format!("{place}/meet")];
            let giver = Running::start(cluster.in_node("0,0,0", &argv).stdin(Stdio::null()));
            giver.says("ready");
            giver
        };
        for place in ["/tmp", "/var/tmp"] {
            let _giver = give(place);
            take(place).fails(1, &["FileNotFoundError"]);
            assert!(!Path::new(place).join("meet").exists());
        }
        cluster.down();

        cluster.toroid("up --share-tmp").ok();
        let place = tempfile::tempdir().expect("a directory of the host");
        let open_to_all = Permissions::from_mode(0o777);
        fs::set_permissions(place.path(), open_to_all).expect("it is ours");
        let place = place.path().to_str().expect("UTF-8");
        let giver = give(place);
        assert_eq!(take(place).ok().text(), "handed over");
        giver.kill();
        // Nodes do not change while they live.
        cluster.kill_agent();
        cluster
            .toroid("up")
            .fails(5, &["and the host's /tmp", "toroid down"]);
        cluster.toroid("up --share-tmp").ok();
    });
}

/// Tools of the host, containers among them, find a node's network by a name that stays.
#[test]
fn a_nodes_network_has_a_name_on_the_host() {
    let cluster = Cluster::up("2x1x1");
    let blue = cluster.domain("blue", &["*,0,0"]);
    let name = cluster.state().join("netns/1-0-0");
    let inside = |words: &str| {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", name.display()));
        run(command.args(words.split(' ')))
    };
    let reaches = || {
        let ping = format!("ping -c 1 -W 5 -q {}", blue.ipv4("0,0,0"));
        inside(&ping).ok();
        let address = inside("ip -4 -o address show blue").ok();
        assert!(address.text().contains(&blue.ipv4(NODE)), "{address}");
    };
    reaches();
    cluster.kill_agent();
    cluster.toroid("up").ok();
    reaches();
    // Another life has another namespace, and the same name.
    let before = fs::metadata(&name).expect("it leads there").ino();
    let first = cluster.node_pids()[1];
    send(first, Signal::SIGKILL);
    eventually("it is made anew", || {
        fs::metadata(&name).is_ok_and(|network| network.ino() != before)
    });
    eventually("it has its interfaces", || {
        inside("ip link show blue").status == 0
    });
    reaches();
    cluster.down();
    assert!(!name.is_symlink());
}
