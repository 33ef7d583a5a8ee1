//! A command in a node runs as if it ran here.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use nix::sys::signal::Signal;
use tests::cluster::{Cluster, leaves_nothing};
use tests::process::{Running, eventually, run};
use tests::user::User;

#[test]
fn input_output_and_error_are_passed() {
    let cluster = Cluster::up("2x1x1");
    let text = cluster.exec_with("0,0,0", "tr a-z A-Z", b"hello\n").ok();
    assert_eq!(text.stdout, b"HELLO\n");
    let both = cluster.shell("0,0,0", "echo out; echo err >&2").ok();
    assert_eq!((both.text(), both.stderr.as_str()), ("out", "err\n"));

    let large: Vec<u8> = (0..10u32 << 18).flat_map(|n| n.to_le_bytes()).collect();
    let back = cluster.exec_with("1,0,0", "cat", &large).ok();
    assert!(
        back.stdout == large,
        "{} of {} bytes came back",
        back.stdout.len(),
        large.len()
    );
}

#[test]
fn directory_environment_and_arguments_are_passed() {
    let cluster = Cluster::up("2x1x1");
    let mut pwd = cluster.in_node("1,0,0", &["pwd"]);
    let here = cluster.files().to_str().expect("UTF-8");
    assert_eq!(run(pwd.current_dir(here)).ok().text(), here);

    let argv = ["printf", "%s|", "two words", "", "*", "$HOME", "--help"];
    let said = run(&mut cluster.in_node("1,0,0", &argv)).ok();
    assert_eq!(said.text(), "two words||*|$HOME|--help|");

    let script = ["sh", "-c", "echo $COLOUR $TOROID_NODE $TOROID_DOMAIN"];
    let mut echo = cluster.in_node("1,0,0", &script);
    assert_eq!(run(echo.env("COLOUR", "teal")).ok().text(), "teal 1,0,0");
    let _blue = cluster.domain("blue", &["*,0,0"]);
    assert_eq!(
        run(echo.env("COLOUR", "teal")).ok().text(),
        "teal 1,0,0 blue"
    );
    let _red = cluster.domain("red", &["*,0,0"]);
    assert_eq!(run(echo.env("COLOUR", "teal")).ok().text(), "teal 1,0,0");
}

/// With the caller's, programs complained a hundred times about a home that they could not enter, and
/// `toroid` in a node asked the wrong agent.
#[test]
fn home_and_agent_are_those_of_the_node() {
    let cluster = Cluster::up("1x1x1");
    let script = "echo $HOME $USER; stat -c '%a %u' $HOME; echo ${TOROID_STATE-none}; \
                  toroid whoami --json | grep -o 0,0,0";
    let mut command = cluster.in_node("0,0,0", &["sh", "-c", script]);
    let said = run(command.env("HOME", "/root").env("USER", "alice")).ok();
    assert_eq!(said.text(), "/run/root root\n700 0\nnone\n0,0,0");
}

/// The first match in `PATH` was a script of pyenv below root's home, which could neither be read
/// in a node nor find its helpers. A missing program was reported as "Permission denied".
#[test]
fn programs_in_closed_directories_come_last() {
    let cluster = Cluster::up("1x1x1");
    let closed = cluster.files().join("closed");
    let bin = closed.join("bin");
    fs::create_dir_all(&bin).expect("it is new");
    for name in ["uname", "only-here"] {
        fs::write(bin.join(name), "#!/bin/sh\necho passed on\n").expect("there is room");
        let executable = Permissions::from_mode(0o755);
        fs::set_permissions(bin.join(name), executable).expect("it is ours");
    }
    fs::set_permissions(&closed, Permissions::from_mode(0o700)).expect("it is ours");
    let path = format!("{}:/usr/bin:/bin", bin.display());
    let exec = |argv: &[&str]| run(cluster.in_node("0,0,0", argv).env("PATH", &path));
    assert_eq!(exec(&["uname"]).ok().text(), "Linux");
    assert_eq!(exec(&["only-here"]).ok().text(), "passed on");
    let inside = exec(&["sh", "-c", "echo $PATH; nowhere"]);
    assert_eq!(
        inside.text(),
        "/usr/bin:/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/sbin"
    );
    inside.fails(127, &["nowhere: not found"]);
    exec(&["nowhere"]).fails(127, &["no program nowhere in node 0,0,0"]);
}

/// The owner of a node reads the environment of its processes.
#[test]
fn what_an_administrator_keeps_in_variables_stays_out_of_the_nodes_of_others() {
    let (cluster, alice) = (Cluster::up("2x1x1"), User::create());
    let uid = alice.uid().to_string();
    cluster.toroid(&format!("node chown 0,0,0 {uid}")).ok();
    let told = |arguments: &[&str], node: &str| {
        let mut command = cluster.command("toroid");
        command.arg("exec").args(arguments).args([node, "--", "sh"]);
        command.args(["-c", "echo ${TOKEN-none} $TERM $LC_ALL"]);
        let command = command.env("TOKEN", "secret").env("TERM", "vt100");
        run(command.env("LC_ALL", "C"))
    };
    assert_eq!(told(&[], "0,0,0").ok().text(), "none vt100 C");
    assert_eq!(told(&[], "1,0,0").ok().text(), "secret vt100 C");
    let chosen = told(&["--env", "TOKEN", "-e", "TERM=dumb"], "0,0,0").ok();
    assert_eq!(chosen.text(), "secret dumb C");
    told(&["--env", "NOTHING"], "0,0,0").fails(2, &["NOTHING=VALUE"]);
}

#[test]
fn output_of_several_nodes_says_where_it_is_from() {
    let cluster = Cluster::up("2x1x1");
    let lines = |text: &str| {
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    };
    let script = "echo one; printf two; echo $TOROID_NODE >&2";
    let both = cluster.shell("*,0,0", script).ok();
    let expected = ["0,0,0: one", "0,0,0: two", "1,0,0: one", "1,0,0: two"];
    assert_eq!(lines(both.text()), expected);
    assert_eq!(lines(&both.stderr), ["0,0,0: 0,0,0", "1,0,0: 1,0,0"]);
    let with = |option: &str, node: &str, script: &str| {
        let mut command = cluster.command("toroid");
        run(command.args(["exec", option, node, "--", "sh", "-c", script])).ok()
    };
    assert_eq!(with("--label", "1,0,0", "echo it").text(), "1,0,0: it");
    let raw = with("--no-label", "*,0,0", r"printf '\0\377\n\r'");
    assert_eq!(raw.stdout, b"\0\xff\n\r\0\xff\n\r");
    // Lines of two nodes never mix, however fast they come.
    let fast = cluster
        .shell("*,0,0", "yes $TOROID_NODE | head -n 20000")
        .ok();
    let good = |line: &str| line == "0,0,0: 0,0,0" || line == "1,0,0: 1,0,0";
    assert_eq!(
        fast.text().lines().filter(|line| good(line)).count(),
        40_000
    );
}

#[test]
fn the_exit_status_is_the_commands() {
    let cluster = Cluster::up("2x1x1");
    for status in [0, 1, 3, 42, 255] {
        assert_eq!(
            cluster.shell("0,0,0", &format!("exit {status}")).status,
            status
        );
    }
    assert_eq!(cluster.shell("0,0,0", "kill -9 $$").status, 137);
    assert_eq!(cluster.shell("0,0,0", "kill -TERM $$").status, 143);
    cluster
        .exec("0,0,0", "no-such-program")
        .fails(127, &["no program no-such-program in node 0,0,0", "host"]);
    cluster
        .exec("0,0,0", "/no/such/program")
        .fails(127, &["toroid: /no/such/program: not found"]);
    cluster
        .exec("0,0,0", "/etc/hosts")
        .fails(126, &["/etc/hosts"]);
    // In several nodes, the worst of them.
    let script = "[ $TOROID_NODE = 0,0,0 ] || exit 7";
    assert_eq!(cluster.shell("*,0,0", script).status, 7);
}

#[test]
fn signals_are_passed_to_the_command() {
    let cluster = Cluster::up("1x1x1");
    let signals = [
        (Signal::SIGTERM, "TERM"),
        (Signal::SIGINT, "INT"),
        (Signal::SIGHUP, "HUP"),
        (Signal::SIGUSR1, "USR1"),
        (Signal::SIGQUIT, "QUIT"),
    ];
    for (signal, name) in signals {
        let script = format!(
            "trap 'echo caught {name}; exit 9' {name}; echo ready; while :; do sleep 0.01; done"
        );
        let running = cluster.spawn_shell("0,0,0", &script);
        running.says("ready");
        running.signal(signal);
        let end = running.wait();
        assert_eq!(
            (end.status, end.text()),
            (9, format!("ready\ncaught {name}").as_str())
        );
    }
}

#[test]
fn signals_reach_the_whole_process_group() {
    let cluster = Cluster::up("1x1x1");
    // A shell that waits for a pipeline of two: all three are in one group.
    let running = cluster.spawn_shell("0,0,0", "sleep 1000 | sleep 1000; true");
    let sleeps = || cluster.exec("0,0,0", "pgrep -x -c sleep").text().to_owned();
    eventually("both run", || sleeps() == "2");
    running.signal(Signal::SIGTERM);
    assert_eq!(running.wait().status, 143);
    eventually("both have ended", || sleeps() == "0");
}

#[test]
fn a_command_ends_with_the_one_who_started_it() {
    leaves_nothing(|| {
        let cluster = Cluster::up("1x1x1");
        let running = cluster.spawn("0,0,0", "sleep 1000");
        eventually("it runs", || {
            cluster.exec("0,0,0", "pgrep sleep").status == 0
        });
        assert_eq!(running.kill().status, 137);
        eventually("it has ended", || {
            cluster.exec("0,0,0", "pgrep sleep").status == 1
        });
    });
}

#[test]
fn a_node_has_processes_and_a_network_of_its_own() {
    let cluster = Cluster::up("2x1x1");
    let here = std::fs::read_link("/proc/self/ns/net").expect("it is there");
    let mut seen = vec![here.to_str().expect("UTF-8").to_owned()];
    for node in ["0,0,0", "1,0,0"] {
        seen.push(
            cluster
                .exec(node, "readlink /proc/self/ns/net")
                .ok()
                .text()
                .to_owned(),
        );
        cluster.reaches(node, "127.0.0.1");
        cluster.reaches(node, "::1");
    }
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 3, "three networks: {seen:?}");

    let _hidden = cluster.spawn("1,0,0", "sleep 1000");
    eventually("it runs", || {
        cluster.exec("1,0,0", "pgrep sleep").status == 0
    });
    assert_eq!(
        cluster.exec("0,0,0", "pgrep sleep").status,
        1,
        "the other's are not seen"
    );
    let first = cluster.exec("0,0,0", "cat /proc/1/cmdline").ok();
    assert!(first.text().contains("toroid-node"), "{first}");
}

#[test]
fn many_commands_run_at_once() {
    let cluster = Cluster::up("2x1x1");
    let start = |n: usize| cluster.spawn(["0,0,0", "1,0,0"][n % 2], &format!("echo {n}"));
    let all: Vec<Running> = (0..40).map(start).collect();
    for (n, running) in all.into_iter().enumerate() {
        assert_eq!(running.wait().ok().text(), n.to_string());
    }
}

/// Only the node's first thread can adopt orphans, and no other process may take a command.
#[test]
fn orphans_are_reaped_and_commands_keep_their_status() {
    let cluster = Cluster::up("1x1x1");
    let orphans = "for n in 1 2 3 4; do (sleep 0.0$n; exit 1) & done; exit $0";
    let start = |n: u32| {
        let n = n.to_string();
        Running::start(&mut cluster.in_node("0,0,0", &["sh", "-c", orphans, &n]))
    };
    let all: Vec<Running> = (0..20).map(start).collect();
    for (n, running) in all.into_iter().enumerate() {
        assert_eq!(running.wait().status, n as i32);
    }
    let no_zombie = "! pgrep sleep && ! grep -q '^State:.Z' /proc/[0-9]*/status";
    eventually("all are reaped", || {
        cluster.shell("0,0,0", no_zombie).status == 0
    });
}

#[test]
fn whoami_says_which_node_this_is() {
    let cluster = Cluster::up("2x1x1");
    let _blue = cluster.domain("blue", &["1,0,0"]);
    let toroid = tests::cluster::program("toroid");
    let words = format!("{} whoami --json", toroid.display());
    let me = cluster.exec("1,0,0", &words).ok().json();
    assert_eq!(
        (&me["node"], &me["torus"]),
        (&"1,0,0".into(), &"2x1x1".into())
    );
    assert_eq!(me["domains"], serde_json::json!(["blue"]));
    cluster
        .toroid("whoami")
        .fails(3, &["not in a node", "toroid exec"]);
}
