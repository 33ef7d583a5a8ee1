//! The process that a server becomes, as scripts and units see it.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal;
use tests::cluster::program;
use tests::process::{Running, eventually, run, send};

use crate::servers::Connection;

fn serve(options: &[&str]) -> Command {
    let mut command = Command::new(program("toroid-kv"));
    command.args(["serve", "--no-rdma"]).args(options);
    command
}

/// A free port of this host.
const FREE_PORT: [&str; 4] = ["-l", "127.0.0.1", "-p", "-1"];

/// A daemon of the user nobody, with files for its process id and for its port.
fn daemon(pid: &str, ports: &Path, options: &[&str]) -> Command {
    let mut command = serve(&["-d", "-u", "nobody", "-P", pid]);
    command.args(FREE_PORT).args(options);
    command.env("MEMCACHED_PORT_FILENAME", ports);
    command
}

/// The port in such a file, and a client of the server there.
fn client(ports: &Path) -> (String, Connection) {
    let told = fs::read_to_string(ports).expect("the ports");
    let port = told.trim().strip_prefix("TCP INET: ").expect("a port");
    (
        port.to_owned(),
        Connection::tcp(&format!("127.0.0.1:{port}")),
    )
}

/// A daemon, ended when dropped.
struct Daemon(u32);

impl Drop for Daemon {
    fn drop(&mut self) {
        send(self.0, Signal::SIGTERM);
    }
}

fn open_to_all(place: &Path) {
    fs::set_permissions(place, Permissions::from_mode(0o777)).expect("it is ours");
}

/// The first example of docs/memcached-server.md: the directory is root's, and the server runs as
/// the user nobody.
#[test]
fn a_daemon_of_another_user_keeps_its_id_where_root_asked_for_it() {
    let (place, ports) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (file, ports) = (place.path().join("pid"), ports.path().join("ports"));
    fs::set_permissions(place.path(), Permissions::from_mode(0o755)).unwrap();
    open_to_all(ports.parent().unwrap());
    let name = file.to_str().unwrap();
    run(&mut daemon(name, &ports, &[])).ok();
    let mut pid = String::new();
    eventually("it has an id", || {
        pid = fs::read_to_string(&file).unwrap_or_default();
        pid.ends_with('\n')
    });
    let daemon = Daemon(pid.trim().parse().expect("an id"));
    let (port, mut client) = client(&ports);
    let stats = client.ask("stats\r\n", "END\r\n");
    assert!(
        stats.contains(&format!("STAT pid {}\r\n", daemon.0)),
        "{stats}"
    );
    // Another one, which cannot serve there, leaves the file alone.
    let mut second = serve(&["-P", name, "-l", "127.0.0.1", "-p", &port]);
    run(&mut second).fails(71, &["cannot listen", &port]);
    assert_eq!(fs::read_to_string(&file).unwrap(), pid);
    drop(daemon);
    // Where the user cannot remove it, it has no id any more.
    eventually("it is empty", || fs::read(&file).unwrap().is_empty());
}

/// Errors of a start are reported before the server detaches.
#[test]
fn a_daemon_that_cannot_keep_its_id_says_so_before_it_goes_to_the_background() {
    let (place, ports) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    // Other users could place a link there, so the server does not write it as root.
    fs::set_permissions(place.path(), Permissions::from_mode(0o775)).unwrap();
    let file = place.path().join("pid");
    open_to_all(ports.path());
    let ports = ports.path().join("ports");
    let name = file.to_str().unwrap();
    let outcome = run(&mut daemon(name, &ports, &["-A"])).ok();
    assert!(
        outcome.stderr.contains("Could not open the pid file"),
        "{outcome}"
    );
    assert!(outcome.stderr.contains("Permission denied"), "{outcome}");
    eventually("it serves", || ports.exists());
    let (_, mut client) = client(&ports);
    client.send(b"shutdown\r\n").expect("it reads");
    assert_eq!(client.receive(None), b"");
    assert!(!file.exists());
}

/// Test suites that start a memcached look for the line of IPv4, also where it listens everywhere.
#[test]
fn the_port_file_has_the_lines_of_memcacheds() {
    let place = tempfile::tempdir().unwrap();
    let lines = |mut command: Command, name: &str| {
        let ports = place.path().join(name);
        let running = Running::start(command.env("MEMCACHED_PORT_FILENAME", &ports));
        eventually("its ports are told", || ports.exists());
        let told = fs::read_to_string(&ports).unwrap();
        drop(running);
        let kind = |line: &str| line.split(": ").next().unwrap().to_owned();
        told.lines().map(kind).collect::<Vec<_>>()
    };
    for addresses in [&[][..], &["-l", "127.0.0.1"], &["-l", "127.0.0.1,[::1]"]] {
        let mut theirs = Command::new("memcached");
        theirs.args(["-u", "root", "-p", "-1"]).args(addresses);
        let name = addresses.join("");
        let theirs = lines(theirs, &format!("theirs{name}"));
        let ours = lines(
            serve(&[&["-p", "-1"], addresses].concat()),
            &format!("ours{name}"),
        );
        assert_eq!(ours, theirs, "{addresses:?}");
    }
}

#[test]
fn each_place_may_have_a_port_of_its_own() {
    let free = |address: &str| {
        let listener = std::net::TcpListener::bind((address, 0)).expect("a free port");
        listener.local_addr().expect("it has one")
    };
    // Both are free now; another process may take one until it is used.
    let (v4, v6) = (free("127.0.0.1"), free("::1"));
    let places = format!("{v4},{v6}");
    let mut server = Running::start(&mut serve(&["-l", &places]));
    assert_eq!(server.line(), format!("ready tcp {v4} tcp {v6}"));
    for address in [v4, v6] {
        let mut client = Connection::tcp(&address.to_string());
        let stats = client.ask("stats settings\r\n", "END\r\n");
        assert!(
            stats.contains(&format!("STAT inter {places}\r\n")),
            "{stats}"
        );
    }
}

/// Logs in files and pipes had a terminal's codes for colours.
#[test]
fn a_log_in_a_pipe_has_no_colours() {
    let mut server = Running::start(&mut serve(&[&["-vv"][..], &FREE_PORT].concat()));
    server.line();
    server.warns("ready after");
    assert!(!server.complaints_so_far().contains('\u{1b}'));
}

/// Under the name that scripts wait for, it once was ready before it had any thread.
#[test]
fn a_server_that_is_ready_has_all_its_threads() {
    let mut server = Running::start(&mut serve(&[&["-t", "7"][..], &FREE_PORT].concat()));
    server.line();
    let threads = fs::read_dir(format!("/proc/{}/task", server.pid())).expect("it runs");
    // Beside those of -t: one accepts, one keeps the time, and one waits for signals.
    assert_eq!(threads.count(), 7 + 3);
}
