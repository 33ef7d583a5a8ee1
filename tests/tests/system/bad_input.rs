//! Wrong input of users and programs: an error names the object and the remedy, the exit status is
//! one of `toroid --help`, and the agent goes on.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;

use serde_json::Value;
use tests::actor::Event;
use tests::cluster::{Cluster, program};
use tests::process::{FOR_EVER, run};
use tests::user::User;

/// Exit statuses of `toroid`.
const FAILED: i32 = 1;
const USAGE: i32 = 2;
const NO_AGENT: i32 = 3;
const NOT_FOUND: i32 = 4;
const EXISTS: i32 = 5;
const DENIED: i32 = 6;

#[test]
fn the_table_of_exit_statuses_is_documented() {
    let help = run(Command::new(program("toroid")).arg("--help")).ok();
    for line in [
        "0  done",
        "3  no agent runs",
        "4  no such node",
        "5  exists",
        "6  not permitted",
    ] {
        assert!(help.text().contains(line), "{line}: {help}");
    }
}

#[test]
fn a_request_that_cannot_be_carried_out_changes_nothing() {
    let cluster = Cluster::up("2x2x2");
    let _blue = cluster.domain("blue", &["0,0,0", "1,1,1"]);
    let before = state(&cluster);
    let cases: &[(&str, i32, &[&str])] = &[
        // Nodes.
        (
            "domain create red nowhere",
            NOT_FOUND,
            &["nowhere", "toroid node ls"],
        ),
        (
            "domain create red 2,0,0",
            NOT_FOUND,
            &["2,0,0", "2x2x2", "toroid node ls"],
        ),
        (
            "domain create red 0-7,0,0",
            NOT_FOUND,
            &["0-7,0,0", "2x2x2"],
        ),
        ("domain create red 0,0", USAGE, &["0,0", "1,0,0"]),
        ("domain create red 0,0,x", USAGE, &["0,0,x"]),
        (
            "domain create red @green",
            NOT_FOUND,
            &["green", "toroid domain ls"],
        ),
        ("domain grow blue 2,2,2", NOT_FOUND, &["2,2,2", "2x2x2"]),
        (
            "domain shrink blue 0,1,0",
            NOT_FOUND,
            &["0,1,0", "blue", "toroid domain show"],
        ),
        (
            "exec 2,0,0 -- true",
            NOT_FOUND,
            &["2,0,0", "2x2x2", "toroid node ls"],
        ),
        (
            "exec nowhere -- true",
            NOT_FOUND,
            &["nowhere", "toroid node ls"],
        ),
        ("ip 3,0,0 -d blue", NOT_FOUND, &["3,0,0"]),
        (
            "ip 0,1,0 -d blue",
            NOT_FOUND,
            &["0,1,0", "blue", "toroid domain grow"],
        ),
        ("ip 0,1,0", USAGE, &["0,1,0", "no domain"]),
        ("ping 0,0,0 0,1,0 -d blue", NOT_FOUND, &["0,1,0", "blue"]),
        ("ping 0,0,0 *,*,* -d blue", USAGE, &["*,*,*", "one node"]),
        ("node alias 9,9,9 db", NOT_FOUND, &["9,9,9"]),
        ("node alias 0,0,0 under_score", USAGE, &["under_score"]),
        // Domains.
        (
            "domain create blue 0,0,0",
            EXISTS,
            &["blue", "toroid domain grow"],
        ),
        (
            "domain grow green 0,0,0",
            NOT_FOUND,
            &["green", "toroid domain ls"],
        ),
        (
            "domain shrink green 0,0,0",
            NOT_FOUND,
            &["green", "toroid domain ls"],
        ),
        ("domain rm green", NOT_FOUND, &["green", "toroid domain ls"]),
        (
            "domain show green",
            NOT_FOUND,
            &["green", "toroid domain ls"],
        ),
        (
            "domain create sixteen-letters- 0,0,0",
            USAGE,
            &["sixteen-letters-", "15"],
        ),
        (
            "domain create sixteen-letterss 0,0,0",
            USAGE,
            &["sixteen-letterss", "15"],
        ),
        ("domain create lo 0,0,0", USAGE, &["\"lo\""]),
        ("domain create a/b 0,0,0", USAGE, &["a/b"]),
        ("domain create a:b 0,0,0", USAGE, &["a:b"]),
        ("domain create .. 0,0,0", USAGE, &[".."]),
        // Options.
        ("domain create red 0,0,0 --mtu 10", USAGE, &["10", "1280"]),
        ("domain create red 0,0,0 --mtu 70000", USAGE, &["70000"]),
        ("domain create red 0,0,0 --mtu many", USAGE, &["many"]),
        (
            "domain create red 0,0,0 --subnet 10.1.2.3",
            USAGE,
            &["10.1.2.3", "a.b.c.d/len"],
        ),
        (
            "domain create red 0,0,0 --subnet 10.1.2.3/24",
            USAGE,
            &["10.1.2.3/24", "10.1.2.0/24"],
        ),
        (
            "domain create red 0,0,0 --subnet 10.1.2.0/30",
            USAGE,
            &["10.1.2.0/30", "8 nodes"],
        ),
        (
            "domain create red 0,0,0 --subnet 127.0.0.0/8",
            USAGE,
            &["127.0.0.0/8"],
        ),
        (
            "domain create red 0,0,0 --subnet 10.64.0.0/16",
            EXISTS,
            &["10.64.0.0/24", "blue"],
        ),
        ("ping 0,0,0 1,1,1 -d blue -c 0", USAGE, &["0"]),
        ("ping 0,0,0 1,1,1 -d blue -s 70000", USAGE, &["70000"]),
        // Usage.
        ("domain grow blue", USAGE, &["<NODES>"]),
        ("exec 0,0,0", USAGE, &["COMMAND"]),
        ("domain", USAGE, &["create"]),
        ("frobnicate", USAGE, &["frobnicate", "toroid --help"]),
    ];
    let mut wrong = Vec::new();
    for (words, status, names) in cases {
        let outcome = cluster.toroid(words);
        let missing: Vec<_> = names
            .iter()
            .filter(|name| !outcome.stderr.contains(**name))
            .collect();
        if outcome.status != *status || !missing.is_empty() {
            wrong.push(format!(
                "{outcome}expected status {status}, missing {missing:?}"
            ));
        }
        if outcome.stderr.contains("panicked") {
            wrong.push(outcome.to_string());
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));

    // Empty names cannot be written above.
    let toroid = |words: &[&str]| run(cluster.command("toroid").args(words));
    toroid(&["domain", "create", "", "0,0,0"]).fails(USAGE, &["\"\""]);
    toroid(&["domain", "create", "two words", "0,0,0"]).fails(USAGE, &["two words"]);
    toroid(&["exec", "", "--", "true"]).fails(NOT_FOUND, &["toroid node ls"]);

    assert_eq!(state(&cluster), before, "something changed");
    cluster.reaches("0,0,0", "1-1-1.blue");
}

fn state(cluster: &Cluster) -> [Value; 3] {
    [
        cluster.ask("node ls"),
        cluster.ask("domain ls"),
        cluster.status(),
    ]
}

#[test]
fn an_impossible_torus_is_refused() {
    let cluster = Cluster::down_yet();
    let cases: &[(&str, &str)] = &[
        ("0x1x1", "0x1x1"),
        ("2x2x0", "2x2x0"),
        ("2x2", "2x2"),
        ("2x2x2x2", "2x2x2x2"),
        ("axbxc", "axbxc"),
        ("-1x1x1", "-1x1x1"),
        ("257x1x1", "257"),
        ("256x256x256", "256"),
        ("32x32x2", "2048"),
        ("", "''"),
    ];
    for (torus, name) in cases {
        cluster
            .toroid(&format!("up --torus={torus}"))
            .fails(USAGE, &[name, "torus"]);
        cluster.toroid("status").fails(NO_AGENT, &["no agent"]);
    }
}

#[test]
fn without_an_agent_every_command_says_how_to_start_one() {
    let cluster = Cluster::down_yet();
    let state = cluster.state();
    let commands = [
        "status",
        "down",
        "node ls",
        "node alias 0,0,0 db",
        "domain ls",
        "domain create blue 0,0,0",
        "domain show blue",
        "exec 0,0,0 -- true",
        "ip 0,0,0",
        "ping 0,0,0 1,0,0",
        "explain 0,0,0 1,0,0",
        "alloc 1",
        "free 0,0,0",
        "dump",
        "apply /dev/null",
    ];
    for words in commands {
        let outcome = cluster.toroid(words);
        outcome.fails(
            NO_AGENT,
            &["no agent", "toroid up", state.to_str().expect("UTF-8")],
        );
    }
}

#[test]
fn a_state_directory_that_cannot_be_is_named() {
    let cluster = Cluster::down_yet();
    let file = cluster.files().join("file");
    std::fs::write(&file, "").expect("it is ours");
    for state in [file.join("below"), file.clone(), "/proc/nowhere".into()] {
        let name = state.to_str().expect("UTF-8").to_owned();
        cluster
            .toroid(&format!("up --state {name}"))
            .fails(FAILED, &[&name, "--state"]);
    }
    // The name of a socket must fit into 107 bytes.
    let long = cluster.files().join("x".repeat(120));
    let name = long.to_str().expect("UTF-8");
    cluster
        .toroid(&format!("up --state {name}"))
        .fails(FAILED, &[name, "--state", "107 are possible"]);
}

#[test]
fn anothers_agent_takes_no_orders() {
    let user = User::create();
    let cluster = Cluster::up("2x1x1");
    let _blue = cluster.domain("blue", &["0,0,0"]);
    let before = state(&cluster);
    let orders = [
        ("domain create red 0,0,0", DENIED),
        ("domain grow blue 1,0,0", NOT_FOUND),
        ("domain shrink blue 0,0,0", NOT_FOUND),
        ("domain rm blue", NOT_FOUND),
        ("exec 0,0,0 -- true", DENIED),
        ("down", DENIED),
    ];
    for (words, status) in orders {
        let mut toroid = user.command("toroid");
        toroid
            .env("TOROID_STATE", cluster.state())
            .args(words.split_whitespace());
        let outcome = run(&mut toroid);
        assert_eq!(outcome.status, status, "{outcome}");
        assert!(!outcome.stderr.trim().is_empty() && !outcome.stderr.contains("panicked"));
    }
    assert_eq!(state(&cluster), before);
}

#[test]
fn strangers_at_the_control_socket_do_no_harm() {
    let cluster = Cluster::up("1x1x1");
    let frame = |payload: &[u8]| {
        let mut bytes = u32::try_from(payload.len())
            .expect("short")
            .to_le_bytes()
            .to_vec();
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(payload);
        bytes
    };
    let hello = frame(br#"{"request":"hello","version":1}"#);
    let inputs: Vec<Vec<u8>> = vec![
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        vec![0xff; 64],
        vec![0; 64],
        frame(b"not json"),
        frame(br#"{"request":"hello","version":99}"#),
        frame(br#"{"request":"down"}"#),
        [hello.clone(), frame(br#"{"request":"frobnicate"}"#)].concat(),
        [
            hello.clone(),
            frame(br#"{"request":"exec","node":"0,0,0","argv":[],"env":[],"cwd":"/"}"#),
        ]
        .concat(),
        [hello.clone(), frame(br#"{"request":"whoami"}"#)].concat(),
        [hello.clone(), b"\x10\0\0\0\0\0\0\0half".to_vec()].concat(),
        hello,
    ];
    for input in inputs {
        let mut stream =
            UnixStream::connect(cluster.state().join("agent.sock")).expect("it listens");
        stream.set_read_timeout(Some(FOR_EVER)).expect("it is open");
        // It may have closed before it has read all.
        let _ = stream.write_all(&input);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let end = stream.read_to_end(&mut Vec::new());
        let timed_out = end
            .as_ref()
            .is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
        assert!(
            !timed_out,
            "it waits for ever after {}",
            String::from_utf8_lossy(&input)
        );
    }
    // A silent connection does not delay others.
    let _silent: Vec<_> = (0..20)
        .map(|_| UnixStream::connect(cluster.state().join("agent.sock")))
        .collect();
    cluster.exec("0,0,0", "true").ok();
    assert!(!cluster.log().contains("panicked"), "{}", cluster.log());
}

/// The most memory that a process ever had, in KiB.
fn peak_memory_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak = peak.and_then(|peak| peak.trim().strip_suffix(" kB"));
    peak.and_then(|kib| kib.parse().ok()).expect("a number")
}

/// 100 connections of one node once made the agent hold 1.5 GiB: 15 MiB of a request each, without
/// its end.
#[test]
fn a_node_makes_the_agent_hold_little() {
    let cluster = Cluster::up("2x1x1");
    let before = peak_memory_kib(cluster.agent_pid());
    let gorge = |bytes: u32| {
        let gorge = cluster.exec("0,0,0", &format!("actor gorge 100 {bytes}"));
        let Event::Answers(answers) = Event::last(gorge) else {
            panic!("no answers");
        };
        assert_eq!(answers.len(), 100);
        answers
    };
    for answer in gorge(15 << 20) {
        let answer = answer.expect("it says why");
        assert_eq!(answer["kind"], "invalid");
        assert_eq!(
            answer["message"],
            "malformed message: a frame of 15728640 bytes and 0 descriptors is over the limit of \
             262144 bytes and 16 descriptors"
        );
    }
    // Requests within the limit are held, which takes little memory.
    assert!(gorge(64 << 10).iter().all(Option::is_none));
    let more = peak_memory_kib(cluster.agent_pid()) - before;
    assert!(more < 64 << 10, "{more} KiB");
    cluster.exec("1,0,0", "true").ok();
}
