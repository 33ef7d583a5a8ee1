//! Nodes of a root agent have users of their own: root inside, an unprivileged user outside.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal;
use tests::cluster::{Cluster, Domain, leaves_nothing, program};
use tests::process::{Outcome, eventually, run};
use tests::software;
use tests::user::{Tun, User, as_uid};

const DENIED: i32 = 6;

/// The first uid on the host of each node's users, from the maps of their first processes.
fn first_uids(cluster: &Cluster) -> Vec<u32> {
    let of = |pid: &u32| {
        let map = fs::read_to_string(format!("/proc/{pid}/uid_map")).expect("it lives");
        let numbers: Vec<u32> = map
            .split_whitespace()
            .map(|number| number.parse().expect("a number"))
            .collect();
        match numbers[..] {
            [0, first, 65_536] => first,
            _ => panic!("{map} is no map of 65536 users"),
        }
    };
    cluster.node_pids().iter().map(of).collect()
}

fn overlap(a: &[u32], b: &[u32]) -> bool {
    a.iter()
        .any(|first| b.iter().any(|other| first.abs_diff(*other) < 65_536))
}

/// The numbers on the host of the processes in a node whose command line begins so.
fn outside(cluster: &Cluster, node: usize, beginning: &str) -> Vec<(u32, u32)> {
    let init = cluster.node_pids()[node];
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/pid_for_children")).ok();
    let inside = namespace(&init.to_string());
    let processes = fs::read_dir("/proc").expect("there is one");
    let numbers = processes.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    numbers
        .filter(|pid| inside.is_some() && namespace(pid) == inside)
        .filter_map(|pid| {
            let words = fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
            let uid = fs::metadata(format!("/proc/{pid}/stat")).ok()?.uid();
            let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
            let real = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
            let real = real.split_whitespace().next()?.parse().unwrap_or(uid);
            let is_it = words.replace('\0', " ").starts_with(beginning);
            is_it.then(|| Some((pid.parse().ok()?, real)))?
        })
        .collect()
}

#[test]
fn root_in_a_node_is_nobody_on_the_host() {
    leaves_nothing(|| {
        let cluster = Cluster::up("2x1x1");
        let firsts = first_uids(&cluster);
        assert!(!overlap(&firsts[..1], &firsts[1..]), "{firsts:?}");
        assert!(firsts.iter().all(|first| *first >= 0x7800_0000));
        assert_eq!(cluster.exec("0,0,0", "id -u").ok().text(), "0");

        assert_eq!(cluster.exec("0,0,0", "ls /run").ok().text(), "lock\nroot");
        let secret = cluster.files().join("secret");
        fs::write(&secret, "of the host").expect("there is room");
        fs::set_permissions(&secret, Permissions::from_mode(0o600)).expect("it is ours");
        let secret = secret.display();
        for attempt in [
            format!("cat {secret}"),
            format!("chmod 666 {secret}"),
            format!("touch {secret}.new"),
            "touch /etc/new".into(),
            "umount /etc/shadow".into(),
            "umount /tmp".into(),
            "umount /root".into(),
            // The mounts that hide the host's sockets stay.
            "umount /run".into(),
            "umount /etc/hosts".into(),
            "date -s 2001-01-01".into(),
            "sh -c echo>/proc/sys/kernel/panic".into(),
            "dmesg --clear".into(),
        ] {
            cluster.exec("0,0,0", &attempt).fails_somehow();
        }
        cluster.exec("0,0,0", "touch /run/mine").ok();
        cluster.exec("1,0,0", "ls /run/mine").fails_somehow();
        cluster.exec("0,0,0", "touch /dev/shm/mine").ok();
        cluster.exec("1,0,0", "ls /dev/shm/mine").fails_somehow();
        assert!(!Path::new("/dev/shm/mine").exists());
    });
}

#[test]
fn a_node_sees_and_signals_no_process_but_its_own() {
    let cluster = Cluster::up("2x1x1");
    let mut other = cluster.spawn("1,0,0", "sleep 600");
    let mut own = cluster.spawn("0,0,0", "sleep 600");
    eventually("both run", || {
        let one = |node| outside(&cluster, node, "sleep 600").len() == 1;
        one(0) && one(1)
    });
    let seen = cluster.exec("0,0,0", "ps -eo comm=").ok();
    assert_eq!(seen.text().matches("sleep").count(), 1, "{}", seen.text());
    // Its own, among others; the shell and the first process are spared.
    let (sleeping, _) = outside(&cluster, 1, "sleep 600")[0];
    let everything = "for pid in $(seq 2 40000); do [ $pid = $$ ] || kill -9 $pid; done";
    let _ = cluster.shell("0,0,0", &format!("{everything} 2>/dev/null"));
    let _ = cluster.shell("0,0,0", &format!("kill -9 {sleeping}"));
    eventually("its own is killed", || own.has_ended());
    assert!(!other.has_ended());
    assert_eq!(outside(&cluster, 1, "sleep 600").len(), 1);
    cluster.exec("1,0,0", "true").ok();
    other.kill();
}

#[test]
fn no_two_lives_of_nodes_have_the_same_users() {
    let first = Cluster::up("2x2x1");
    let second = Cluster::up("3x1x1");
    let (of_first, of_second) = (first_uids(&first), first_uids(&second));
    assert!(
        !overlap(&of_first, &of_second),
        "{of_first:?} {of_second:?}"
    );
    // They are the nodes' for as long as these live, with or without an agent.
    first.kill_agent();
    let third = Cluster::up("1x1x1");
    let of_third = first_uids(&third);
    assert!(!overlap(&of_first, &of_third) && !overlap(&of_second, &of_third));
    first.toroid("up").ok();
    assert_eq!(first_uids(&first), of_first);
    first.down();
    // Those of the first are used again last: files may be left that belong to them.
    let fourth = Cluster::up("4x1x1");
    let of_fourth = first_uids(&fourth);
    assert!(!overlap(&of_first, &of_fourth));
    // The next owner of a node finds no process of the former one.
    let alice = User::create().uid().to_string();
    fourth.toroid(&format!("node chown 0,0,0 {alice}")).ok();
    let anew = first_uids(&fourth);
    assert_eq!(anew[1..], of_fourth[1..]);
    assert!(!overlap(&anew[..1], &of_fourth), "{anew:?} {of_fourth:?}");
}

/// Nodes do not inherit descriptors, signals and umask of the process that starts the agent.
#[test]
fn nodes_inherit_nothing_of_who_starts_the_agent() {
    let cluster = Cluster::down_yet();
    let secret = cluster.files().join("secret");
    fs::write(&secret, "of the host").expect("there is room");
    let up = format!(
        "exec 9<{} && trap '' QUIT USR1 && umask 0 && exec {} up --torus 1x1x1",
        secret.display(),
        program("toroid").display()
    );
    let mut shell = Command::new("sh");
    shell.env("TOROID_STATE", cluster.state());
    shell.env("TOROID_DATA", cluster.data());
    run(shell.args(["-c", &up])).ok();
    let descriptors = cluster.exec("0,0,0", "ls /proc/self/fd").ok();
    assert_eq!(descriptors.text().lines().count(), 4, "{descriptors}");
    let umask = cluster.shell("0,0,0", "umask").ok();
    assert_eq!(umask.text(), "0022");
    let ignored = cluster.shell("0,0,0", "grep SigIgn /proc/self/status").ok();
    let mask = ignored.text().split_whitespace().last().expect("a mask");
    let mask = u64::from_str_radix(mask, 16).expect("hexadecimal");
    let of_starter = 1 << (Signal::SIGQUIT as u8 - 1) | 1 << (Signal::SIGUSR1 as u8 - 1);
    assert_eq!(mask & of_starter, 0, "{mask:x}");
    // No terminal of the agent's to type into.
    let terminal = cluster.shell("0,0,0", "exec 3</dev/tty");
    terminal.fails_somehow();
    let session = cluster.shell("0,0,0", "cat /proc/1/stat").ok();
    let of_init: Vec<&str> = session.text().split_whitespace().skip(4).take(3).collect();
    assert_eq!(of_init, ["1", "1", "0"], "group, session and terminal");
}

/// A node's users exist on the host as well: a process of the host that becomes one of them is
/// still a node's user.
#[test]
fn a_user_of_a_node_is_nobody_to_the_agent() {
    let cluster = Cluster::up("1x1x1");
    let uid = first_uids(&cluster)[0] + 5;
    let mut toroid = as_uid(uid, Tun::Missing);
    let toroid = toroid.arg(program("toroid")).arg("status");
    run(toroid.env("TOROID_STATE", cluster.state())).fails(DENIED, &["control socket"]);
}

/// A page, asked for without a program for it.
fn page(cluster: &Cluster, node: &str, host: &str) -> Outcome {
    let script =
        format!("exec 3<>/dev/tcp/{host}/80; printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3");
    run(&mut cluster.in_node(node, &["bash", "-c", &script]))
}

#[test]
fn daemons_that_drop_privileges_serve_other_members() {
    let cluster = Cluster::up("2x1x1");
    let _blue: Domain<'_> = cluster.domain("blue", &["*,0,0"]);
    let www = cluster.files().join("www");
    fs::create_dir(&www).expect("it is new");
    fs::write(www.join("index.html"), "from a node").expect("there is room");
    let nginx = software::nginx(&cluster, "0,0,0", &www);
    let memcached = cluster.spawn("0,0,0", "memcached -u nobody -p 11299");
    eventually("nginx answers", || {
        page(&cluster, "1,0,0", "0-0-0.blue")
            .text()
            .ends_with("from a node")
    });
    let key = cluster.files().join("key");
    fs::write(&key, "value").expect("there is room");
    let copy = format!("memccp --servers=0-0-0.blue:11299 {}", key.display());
    eventually("memcached answers", || {
        cluster.exec("1,0,0", &copy).status == 0
    });
    let got = cluster.exec("1,0,0", "memccat --servers=0-0-0.blue:11299 key");
    assert_eq!(got.ok().text().trim(), "value");

    let first = first_uids(&cluster)[0];
    let uids = |beginning: &str| -> Vec<u32> {
        let found = outside(&cluster, 0, beginning).into_iter();
        found.map(|(_, uid)| uid - first).collect()
    };
    assert_eq!(uids("memcached"), [65_534]);
    let www_data = run(Command::new("id").args(["-u", "www-data"])).ok();
    assert_eq!(
        uids("nginx: worker"),
        [www_data.text().parse::<u32>().expect("a number")]
    );
    assert_eq!(uids("nginx: master"), [0]);
    nginx.kill();
    memcached.kill();
}

#[test]
fn who_owns_a_node_runs_what_it_likes_there_and_nowhere_else() {
    let (cluster, alice) = (Cluster::up("2x1x1"), User::create());
    let uid = alice.uid().to_string();
    cluster.toroid(&format!("node chown 0,0,0 {uid}")).ok();
    let exec = |node: &str| {
        let mut toroid = alice.command("toroid");
        toroid.env("TOROID_STATE", cluster.state());
        run(toroid.args(["exec", node, "--", "sh", "-c", "id -u; pwd"]))
    };
    let home = alice.home().display();
    assert_eq!(exec("0,0,0").ok().text(), format!("0\n{home}"));
    exec("1,0,0").fails(DENIED, &["1,0,0"]);
}

/// Root's programs are often where only root can walk, such as in its home.
#[test]
fn programs_scripts_and_directories_out_of_reach_are_passed_on() {
    let cluster = Cluster::up("1x1x1");
    let closed = cluster.files().join("closed");
    let inside = closed.join("inside");
    fs::create_dir_all(&inside).expect("it is new");
    fs::copy(program("toroid"), inside.join("tor")).expect("there is room");
    let script = inside.join("lister");
    // Programs that the node has by name come first, so this is the name of none.
    fs::write(&script, "#!/bin/sh\npwd; ls\n").expect("there is room");
    fs::set_permissions(&script, Permissions::from_mode(0o755)).expect("it is ours");
    fs::set_permissions(&closed, Permissions::from_mode(0o700)).expect("it is ours");
    let exec = |directory: &Path, name: &str, arguments: &[&str]| {
        let mut command = cluster.in_node("0,0,0", &[&[name], arguments].concat());
        let path = format!("{}:/usr/bin:/bin", inside.display());
        run(command.current_dir(directory).env("PATH", path))
    };
    let tor = exec(Path::new("/"), "tor", &["--version"]).ok();
    assert!(tor.text().starts_with("toroid"), "{}", tor.text());
    let listed = exec(&inside, "lister", &[]).ok();
    assert_eq!(listed.text(), format!("{}\nlister\ntor", inside.display()));
    assert_eq!(listed.stderr, "");
    let relative = exec(&inside, "./tor", &["--version"]).ok();
    assert_eq!(relative.text(), tor.text());
    // Where not even a descriptor helps, it goes on elsewhere, and says so.
    let elsewhere = exec(&closed, "pwd", &[]).ok();
    assert_eq!(elsewhere.text(), "/");
    let name = closed.to_str().expect("UTF-8");
    assert!(elsewhere.stderr.contains(name), "{}", elsewhere.stderr);
    // Files of the host below mounts of the node are hidden.
    let hidden = Path::new("/run").join(cluster.files().file_name().expect("it has one"));
    fs::create_dir(&hidden).expect("it is new");
    let outcome = exec(&hidden, "pwd", &[]);
    fs::remove_dir(&hidden).expect("it is ours");
    let elsewhere = outcome.ok();
    assert_eq!(elsewhere.text(), "/");
    let said = format!("{}: no such directory in the node", hidden.display());
    assert!(elsewhere.stderr.contains(&said), "{}", elsewhere.stderr);
    // Programs that the node's root may not execute stay so.
    fs::set_permissions(&script, Permissions::from_mode(0o700)).expect("it is ours");
    exec(&inside, "lister", &[]).fails(126, &["lister"]);
}
