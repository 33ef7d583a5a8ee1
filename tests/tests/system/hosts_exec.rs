//! Commands in nodes of other hosts, which run as if the nodes were here.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use tests::cluster::leaves_nothing;
use tests::hosts::{Host, Hosts, Oddities};
use tests::process::{Running, eventually, run, run_with, send};
use tests::terminal::Terminal;
use tests::user::User;

/// A node of host `b`.
const FAR: &str = "1,1,0";

fn two(story: impl FnOnce(&Host, &Host)) {
    leaves_nothing(|| {
        let hosts = Hosts::up(2);
        let [a, b] = hosts.each();
        hosts.agree();
        story(a, b);
    });
}

/// Process ids of relays of this title.
fn relay_pids(title: &str) -> BTreeSet<u32> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let relays = all.filter_map(|entry| {
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        let pid = entry.file_name().to_str()?.parse().ok()?;
        line.starts_with(title.as_bytes()).then_some(pid)
    });
    relays.collect()
}

fn relays(title: &str) -> usize {
    relay_pids(title).len()
}

/// A command that waits, which has begun.
fn waiting(at: &Host, node: &str) -> Running {
    let command = at.agent.spawn_shell(node, "echo begun; exec sleep 1000");
    command.says("begun");
    command
}

#[test]
fn streams_arguments_and_status_are_passed_in_both_directions() {
    two(|a, b| {
        let _blue = a.agent.domain("blue", &["*,*,0"]);
        for (at, node) in [(a, FAR), (b, "1,0,0")] {
            let at = &at.agent;
            let both = at.shell(node, "echo out; echo err >&2; exit 3");
            assert_eq!((both.text(), both.stderr.as_str()), ("out", "err\n"));
            assert_eq!(both.status, 3);
            let large: Vec<u8> = (0..3u32 << 18).flat_map(|n| n.to_le_bytes()).collect();
            let back = at.exec_with(node, "cat", &large).ok();
            assert!(back.stdout == large, "{} came back", back.stdout.len());
            let argv = ["printf", "%s|", "two words", "", "*", "$HOME", "--help"];
            let said = run(&mut at.in_node(node, &argv)).ok();
            assert_eq!(said.text(), "two words||*|$HOME|--help|");
            let told = at
                .shell(node, "echo $TOROID_NODE $TOROID_DOMAIN $USER; pwd")
                .ok();
            let here = at.files().display();
            assert_eq!(told.text(), format!("{node} blue root\n{here}"));
            at.exec(node, "nowhere").fails(127, &["no program nowhere"]);
            assert_eq!(at.shell(node, "kill -9 $$").status, 137);
        }
        let mut lines: Vec<String> = a
            .agent
            .shell("@blue", "echo $TOROID_NODE")
            .ok()
            .text()
            .lines()
            .map(str::to_owned)
            .collect();
        lines.sort_unstable();
        let nodes = ["0,0,0", "0,1,0", "1,0,0", "1,1,0"];
        assert_eq!(lines, nodes.map(|node| format!("{node}: {node}")));
        for title in ["toroid-near-relay", "toroid-far-relay"] {
            eventually("no relay is left", || relays(title) == 0);
        }
    });
}

/// Neither side may hold more of a stream than its window.
#[test]
fn a_reader_that_stops_stops_the_command_and_one_that_goes_ends_it() {
    two(|a, _| {
        let mut yes = a.agent.in_node(FAR, &["yes"]);
        let mut yes = yes.stdout(Stdio::piped()).spawn().unwrap();
        let mut first = [0; 2];
        let mut stdout = yes.stdout.take().unwrap();
        stdout.read_exact(&mut first).unwrap();
        assert_eq!(&first, b"y\n");
        drop(stdout);
        assert_eq!(yes.wait().unwrap().code(), Some(128 + 13), "SIGPIPE");
        // More than is under way, in both directions.
        const LENGTH: usize = 8 << 20;
        let unread = run_with(&mut a.agent.in_node(FAR, &["true"]), &vec![0; LENGTH]);
        unread.ok();
        let script = format!("head -c {LENGTH} /dev/zero; touch /run/over");
        let mut stopped = a.agent.in_node(FAR, &["sh", "-c", &script]);
        let mut stopped = stopped.stdout(Stdio::piped()).spawn().unwrap();
        thread::sleep(Duration::from_secs(1));
        let is_over = || a.agent.exec(FAR, "test -e /run/over").status == 0;
        assert!(!is_over());
        let mut all = Vec::new();
        stopped
            .stdout
            .take()
            .unwrap()
            .read_to_end(&mut all)
            .unwrap();
        assert_eq!(all.len(), LENGTH);
        assert!(stopped.wait().unwrap().success() && is_over());
    });
}

#[test]
fn signals_reach_the_command_and_it_ends_with_its_caller() {
    two(|a, b| {
        let trapped = "trap 'echo caught; exit 7' USR1; echo begun; while :; do sleep 0.01; done";
        let command = a.agent.spawn_shell(FAR, trapped);
        command.says("begun");
        command.signal(Signal::SIGUSR1);
        command.says("caught");
        assert_eq!(command.wait().status, 7);

        let command = waiting(a, FAR);
        command.signal(Signal::SIGTERM);
        assert_eq!(command.wait().status, 143);

        let sleeps = || b.agent.shell(FAR, "pgrep -c sleep; true").text().to_owned();
        let command = waiting(a, FAR);
        assert_eq!(sleeps(), "1");
        command.signal(Signal::SIGKILL);
        assert_eq!(command.wait().status, 137);
        eventually("it has ended", || sleeps() == "0");

        // With its node, and without its host.
        let command = waiting(a, FAR);
        b.agent.toroid(&format!("node chown {FAR} 12345")).ok();
        assert_eq!(command.wait().status, 137);
        let command = waiting(a, FAR);
        for pid in relay_pids("toroid-far-relay") {
            send(pid, Signal::SIGKILL);
        }
        let words = ["lost the command on host b", "toroid status"];
        command.wait().fails(1, &words);
        eventually("it has ended", || sleeps() == "0");
    });
}

#[test]
fn a_terminal_is_that_of_the_far_node() {
    two(|a, _| {
        let terminal = Terminal::new();
        let mut bash = a
            .agent
            .in_node(FAR, &["bash", "--norc", "--noprofile", "-i"]);
        bash.env("PS1", "$ ");
        let shell = terminal.start(&bash);
        terminal.types("tty\n");
        terminal.shows("/dev/pts/0\r\n");
        terminal.resizes_and_interrupts();
        // More than any buffer between it and us, then its end.
        terminal.types("seq 200000; exit 5\n");
        assert_eq!(shell.wait(), 5);
        terminal.shows("\r\n200000\r\n");
        let text = terminal.text();
        let last = text.lines().filter(|line| *line == "200000").count();
        assert_eq!(last, 1, "{}", &text[text.len().saturating_sub(200)..]);
    });
}

#[test]
fn users_have_the_rights_there_that_they_have_here() {
    two(|a, b| {
        let alice = User::create();
        let uid = alice.uid().to_string();
        let words = format!("exec {FAR} -- cat /proc/self/uid_map");
        let refused = [&format!("1,1,0 is not uid {uid}")[..]];
        a.agent.toroid_of(&alice, &words).fails(6, &refused);
        a.agent.toroid(&format!("node chown {FAR} {uid}")).ok();
        eventually("b knows the owner", || {
            b.agent.toroid_of(&alice, &words).status == 0
        });
        let mapped = a.agent.toroid_of(&alice, &words).ok();
        let there = b.agent.toroid_of(&alice, &words).ok();
        assert_eq!(mapped.text(), there.text());
        // A directory that she alone may enter has the program.
        let bin = alice.home().join("own");
        fs::create_dir(&bin).unwrap();
        fs::copy("/bin/echo", bin.join("mine")).unwrap();
        run(Command::new("chown").args(["-R", &uid]).arg(alice.home())).ok();
        fs::set_permissions(&bin, Permissions::from_mode(0o700)).unwrap();
        let mine = format!("exec {FAR} -- {} it", bin.join("mine").display());
        assert_eq!(a.agent.toroid_of(&alice, &mine).ok().text(), "it");
        // Far relays that are refused end.
        let hold = "import socket, sys, time\n\
                    all = [socket.socket(socket.AF_UNIX) for _ in range(300)]\n\
                    for one in all: one.connect(sys.argv[1])\n\
                    print('held', flush=True)\n\
                    time.sleep(1000)";
        let socket = b.agent.state().join("agent.sock");
        let mut python = Command::new("setpriv");
        python.args(["--reuid", &uid, "--regid", &uid, "--clear-groups"]);
        python.args(["/usr/bin/python3", "-c", hold]).arg(&socket);
        let held = Running::start(&mut python);
        held.says("held");
        let refused = ["host b: ", "connections"];
        a.agent.toroid_of(&alice, &words).fails(7, &refused);
        eventually("no relay is left", || relays("toroid-far-relay") == 0);
        held.kill();
        let other = User::create();
        let refused = [&format!("1,1,0 is not uid {}", other.uid())[..]];
        a.agent.toroid_of(&other, &words).fails(6, &refused);
        a.agent
            .toroid(&format!("exec --bind /tmp {FAR} -- true"))
            .fails(2, &["node 1,1,0 is on host b", "leave --bind out"]);
    });
}

/// With `commands = "off"`, and where only administrators run commands.
#[test]
fn a_host_may_refuse_commands_of_others() {
    let off = Oddities {
        commands: Some("off"),
        ..Oddities::RIGHT
    };
    leaves_nothing(|| {
        let hosts = Hosts::down_yet(2);
        let [a, b] = hosts.each();
        a.up();
        b.try_up(off).ok();
        hosts.agree();
        let refused = ["the file of host b has commands = \"off\""];
        a.agent.exec(FAR, "true").fails(6, &refused);
        assert_eq!(b.agent.exec("0,0,0", "echo it").ok().text(), "it");
        assert_eq!(relays("toroid-near-relay"), 0);
    });
}

/// Also those that an agent before this one has started.
#[test]
fn commands_outlive_agents_and_those_of_a_removed_host_end_with_its_removal() {
    leaves_nothing(|| {
        let hosts = Hosts::up(3);
        let [a, b, c] = hosts.each();
        hosts.agree();
        let to_b = waiting(a, "0,1,0");
        let own = relay_pids("toroid-near-relay");
        let theirs = relay_pids("toroid-far-relay");
        let to_c = waiting(b, "0,2,0");
        let to_a = waiting(b, "0,0,0");
        let mut barred = relay_pids("toroid-far-relay");
        barred.retain(|pid| !theirs.contains(pid));
        barred.extend(own);
        assert_eq!(barred.len(), 3);
        let mut from_a = waiting(a, "0,2,0");
        send(c.agent.agent_pid(), Signal::SIGUSR1);
        c.agent.goes_on();
        c.agent.kill_agent();
        let words = ["host c", "toroid status"];
        b.agent.exec("0,2,0", "true").fails(1, &words);
        c.up();
        a.meets("c");
        let echo = b.agent.exec("0,2,0", "echo it goes on").ok();
        assert_eq!(echo.text(), "it goes on");
        a.agent.toroid("host remove b").ok();
        let left = &relay_pids("toroid-far-relay") | &relay_pids("toroid-near-relay");
        assert!(left.is_disjoint(&barred), "they had ended when it returned");
        to_b.wait().fails_somehow();
        to_c.wait().fails_somehow();
        to_a.wait().fails_somehow();
        assert!(!from_a.has_ended());
        from_a.signal(Signal::SIGTERM);
        assert_eq!(from_a.wait().status, 143);
        b.agent.exec("0,2,0", "true").fails_somehow();
    });
}

#[test]
fn ping_measures_both_paths_between_hosts_and_on_another_one() {
    two(|a, b| {
        let _blue = a.agent.domain("blue", &["*,*,0"]);
        a.trunk_to("b");
        b.trunk_to("a");
        for (at, from, to, provider) in [
            (a, "0,0,0", FAR, "tcp"),
            (a, "0,1,0", "0,0,0", "tcp"),
            (a, "0,1,0", FAR, "shm"),
            (b, "0,1,0", FAR, "shm"),
        ] {
            let measured = at.agent.ask(&format!("ping {from} {to} --count 3"));
            assert_eq!(measured["provider"], provider, "{measured}");
            for (n, path) in ["ethernet", "rdma"].into_iter().enumerate() {
                let row = &measured["paths"][n];
                assert_eq!((&row["path"], &row["lost"]), (&path.into(), &0.into()));
                assert!(row["p50_ns"].as_u64() > Some(0), "{row}");
            }
        }
    });
}
