//! A terminal, a command in a node, and the input after the command has ended.

use std::fs::{self, File};
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;
use tests::cluster::Cluster;
use tests::process::{Running, eventually, run, send};
use tests::terminal::Terminal;
use tests::user::User;

/// Says which of the standard streams are terminals.
const TERMINALS: &str = "for n in 0 1 2; do [ -t $n ] && echo terminal $n; done; echo no more";

fn bash(cluster: &Cluster) -> Command {
    let argv = ["bash", "--norc", "--noprofile", "-i"];
    let mut bash = cluster.in_node("0,0,0", &argv);
    bash.env("PS1", "$ ");
    bash
}

/// A command once got the caller's own terminal. Processes that it left behind read the later input
/// of the caller's shell: passwords, and the input of programs.
#[test]
fn nothing_in_a_node_reads_what_is_typed_after_the_command() {
    let cluster = Cluster::up("1x1x1");
    let terminal = Terminal::new();
    // It leaves the command's session with every stream that the command has.
    let listen = "touch /run/begun; head -n 1 <&3 >>/run/stolen; head -n 1 <&4 >>/run/stolen; \
                  head -n 1 <&5 >>/run/stolen; touch /run/over";
    let script = format!(
        "exec 3<&0 4<&1 5<&2; setsid sh -c '{listen}' & \
         until [ -e /run/begun ]; do sleep 0.01; done"
    );
    let exec = cluster.in_node("0,0,0", &["sh", "-c", &script]);
    let mut shell = Command::new("sh");
    let after = "\"$@\"; echo ended $?; read line; echo got $line; exit 5";
    shell.args(["-c", after, "sh"]).arg(exec.get_program());
    shell.args(exec.get_args());
    for (name, value) in exec.get_envs() {
        shell.env(name, value.unwrap_or_default());
    }
    let shell = terminal.start(&shell);
    terminal.shows("ended 0");
    let exists = |file: &str| cluster.exec("0,0,0", &format!("test -e {file}")).status == 0;
    eventually("all its streams have ended", || exists("/run/over"));
    terminal.types("passw0rd\n");
    terminal.shows("got passw0rd");
    assert_eq!(shell.wait(), 5);
    assert_eq!(cluster.exec("0,0,0", "cat /run/stolen").ok().text(), "");
}

/// It said "no job control in this shell".
#[test]
fn a_shell_in_a_node_has_a_terminal_and_job_control() {
    let cluster = Cluster::up("1x1x1");
    let terminal = Terminal::new();
    let before = terminal.modes();
    let shell = terminal.start(&bash(&cluster));
    terminal.types("tty\n");
    terminal.shows("/dev/pts/0\r\n");
    terminal.resizes_and_interrupts();
    terminal.types("sh -c 'echo be''gun; exec sleep 1000'\n");
    terminal.shows("begun\r\n");
    terminal.types([26]);
    terminal.shows("Stopped");
    terminal.types("kill -9 %1; wait; echo go''ne\n");
    terminal.shows("gone\r\n");
    terminal.types("sh -c 'echo be''gun; exec cat'\n");
    terminal.shows("begun\r\n");
    terminal.types("last line\n");
    terminal.shows("last line\r\nlast line\r\n");
    terminal.types([4]);
    terminal.types("exit 7\n");
    assert_eq!(shell.wait(), 7);
    let text = terminal.text();
    assert!(!text.contains("job control"), "{text}");
    assert_eq!(terminal.modes().local_modes, before.local_modes);
    assert_eq!(terminal.modes().input_modes, before.input_modes);
}

#[test]
fn a_terminal_passes_bytes_both_ways_unaltered() {
    let cluster = Cluster::up("1x1x1");
    let all: Vec<u8> = (0..1 << 20).map(|n: u32| (n * n / 255) as u8).collect();
    let file = cluster.files().join("all");
    fs::write(&file, &all).expect("there is room");
    let terminal = Terminal::new();
    let script = format!("stty raw -echo; exec cat {}", file.display());
    let exec = terminal.start(&cluster.in_node("0,0,0", &["sh", "-c", &script]));
    assert_eq!(exec.wait(), 0);
    eventually("all is shown", || terminal.shown().len() >= all.len());
    assert!(terminal.shown() == all, "{} bytes", terminal.shown().len());

    let (terminal, some) = (Terminal::new(), &all[..64 << 10]);
    let script = "stty raw -echo; echo ready; head -c 65536 >/run/typed";
    let exec = terminal.start(&cluster.in_node("0,0,0", &["sh", "-c", script]));
    terminal.shows("ready");
    terminal.types(some);
    assert_eq!(exec.wait(), 0);
    let typed = cluster.exec("0,0,0", "cat /run/typed").ok();
    assert!(typed.stdout == some, "{} bytes", typed.stdout.len());
}

#[test]
fn no_terminal_of_the_callers_gets_into_a_node() {
    let cluster = Cluster::up("2x1x1");
    let file = cluster.files().join("output");
    let script = ["sh", "-c", TERMINALS];
    let with = |arguments: &[&str], nodes: &str| {
        let mut command = cluster.command("toroid");
        command.arg("exec").args(arguments).args([nodes, "--"]);
        command.args(script);
        command
    };
    // Standard output leads to a file; the others lead to the terminal.
    let terminal = Terminal::new();
    let output = File::create(&file).expect("there is room");
    let exec = terminal.start_with(&with(&[], "0,0,0"), output.into());
    assert_eq!(exec.wait(), 0);
    assert_eq!(fs::read_to_string(&file).expect("it is ours"), "no more\n");
    for (arguments, nodes) in [(&["-T"][..], "0,0,0"), (&[], "*,0,0")] {
        let terminal = Terminal::new();
        assert_eq!(terminal.start(&with(arguments, nodes)).wait(), 0);
        terminal.shows("no more\r\n");
        let text = terminal.text();
        assert!(!text.contains("terminal"), "{text}");
    }
    // All that is typed goes there, and no more than that.
    let terminal = Terminal::new();
    let mut cat = cluster.command("toroid");
    let exec = terminal.start(cat.args(["exec", "-T", "0,0,0", "--", "cat"]));
    terminal.types("some words\n");
    terminal.shows("some words\r\nsome words\r\n");
    terminal.types([4]);
    assert_eq!(exec.wait(), 0);
    // Input and output other than a terminal pass unchanged.
    let all = "terminal 0\r\nterminal 1\r\nno more\r\n";
    let said = run(with(&["-t"], "0,0,0").stdin(Stdio::null())).ok();
    assert_eq!(String::from_utf8_lossy(&said.stdout), all);
    run(&mut with(&["-t"], "*,0,0")).fails(2, &["one node", "--tty"]);
}

#[test]
fn an_ordinary_users_node_has_terminals_too() {
    let cluster = Cluster::of_user(User::create());
    cluster.toroid("up --torus 1x1x1").ok();
    let terminal = Terminal::new();
    let shell = terminal.start(&bash(&cluster));
    terminal.types("tty; stty size\n");
    terminal.shows("/dev/pts/0\r\n24 80\r\n");
    terminal.types("exit 3\n");
    assert_eq!(shell.wait(), 3);
    let text = terminal.text();
    assert!(!text.contains("job control"), "{text}");
}

#[test]
fn a_forced_terminal_gets_the_end_of_input() {
    let cluster = Cluster::up("1x1x1");
    let count = |input: &[u8]| {
        let mut command = cluster.command("toroid");
        command.args(["exec", "-t", "0,0,0", "--", "sh", "-c"]);
        command.arg("stty -echo; echo ready; wc -c");
        let mut running = Running::start(command.stdin(Stdio::piped()));
        running.says("ready");
        std::io::Write::write_all(&mut running.stdin(), input).expect("it reads");
        running
            .wait()
            .ok()
            .text()
            .replace("ready", "")
            .trim()
            .to_owned()
    };
    assert_eq!(count(b"a line\n"), "7");
    assert_eq!(count(b"no line"), "7");
}

/// A background job that changes or reads its terminal is stopped.
#[test]
fn a_job_in_the_background_goes_on() {
    let cluster = Cluster::up("1x1x1");
    let terminal = Terminal::new();
    let exec = cluster.in_node("0,0,0", &["sh", "-c", "cat; echo said"]);
    let mut shell = Command::new("bash");
    shell.args(["-c", "set -m; \"$@\" & wait $!; echo ended $?", "bash"]);
    shell.arg(exec.get_program()).args(exec.get_args());
    for (name, value) in exec.get_envs() {
        shell.env(name, value.unwrap_or_default());
    }
    let shell = terminal.start(&shell);
    terminal.shows("said");
    terminal.shows("ended 0");
    assert_eq!(shell.wait(), 0);
}

#[test]
fn whatever_ends_the_command_gives_the_terminal_back() {
    let cluster = Cluster::up("1x1x1");
    let begin = |terminal: &Terminal, script: &str| {
        let exec = terminal.start(&cluster.in_node("0,0,0", &["sh", "-c", script]));
        terminal.shows("armed");
        exec
    };
    let loops = "echo armed; while :; do sleep 0.01; done";
    for (signal, status) in [(Signal::SIGTERM, 143), (Signal::SIGHUP, 129)] {
        let terminal = Terminal::new();
        let before = terminal.modes().local_modes;
        let exec = begin(&terminal, loops);
        eventually("the command has it", || {
            terminal.modes().local_modes != before
        });
        send(exec.pid(), signal);
        assert_eq!(exec.wait(), status);
        assert_eq!(terminal.modes().local_modes, before);
    }
    // Stopped from outside, as by the shell, it is back meanwhile.
    let terminal = Terminal::new();
    let before = terminal.modes().local_modes;
    let exec = begin(&terminal, "echo armed; read line; echo got $line");
    let is_back = || terminal.modes().local_modes == before;
    send(exec.pid(), Signal::SIGTSTP);
    eventually("the terminal is back", is_back);
    send(exec.pid(), Signal::SIGCONT);
    eventually("the command has it again", || !is_back());
    terminal.types("it\r");
    terminal.shows("got it");
    assert_eq!(exec.wait(), 0);
    assert!(is_back());
    // Nothing can be given back by a process that was killed; its command hears of that.
    let terminal = Terminal::new();
    let hears = format!("trap 'echo hung up >/run/heard; exit' HUP; {loops}");
    let exec = begin(&terminal, &hears);
    send(exec.pid(), Signal::SIGKILL);
    assert_eq!(exec.wait(), 137);
    eventually("it has heard", || {
        cluster.exec("0,0,0", "cat /run/heard").text() == "hung up"
    });
}
