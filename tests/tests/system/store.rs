//! The store, as stock memcached clients and as its own client see it.

use std::fs;
use std::time::Duration;

use nix::sys::signal::Signal;
use tests::cluster::{Cluster, is_nightly, leaves_nothing};
use tests::process::{Outcome, Running, eventually, send};

/// Exit statuses of `toroid-kv`, besides 1 for a key that is not there.
const NOT_REACHED: i32 = 3;
const REFUSED: i32 = 4;

/// A store at 0,0,0 of the domain blue, which has all nodes of a row of three.
struct Store {
    /// Before the cluster, so that it is ended first.
    server: Running,
    cluster: Cluster,
}

impl Store {
    fn up() -> Self {
        let cluster = Cluster::up("3x1x1");
        let _blue = cluster.domain("blue", &["*,0,0"]);
        Store {
            server: serve(&cluster, ""),
            cluster,
        }
    }

    /// Lets the stock client store `value` at `key`.
    fn memccp(&self, key: &str, value: &[u8]) -> Outcome {
        let file = self.cluster.files().join(key);
        fs::write(&file, value).expect("there is room");
        let words = format!("memccp --servers=0-0-0.blue {}", file.display());
        self.cluster.exec("1,0,0", &words)
    }

    /// Lets the stock client fetch it to a file, as it was.
    fn memccat(&self, key: &str) -> Vec<u8> {
        let file = "/dev/shm/fetched";
        let script = format!("memccat --servers=0-0-0.blue --file={file} {key} && cat {file}");
        self.cluster.shell("2,0,0", &script).ok().stdout
    }

    fn kv(&self, words: &str) -> Outcome {
        self.cluster.exec("1,0,0", &format!("toroid-kv {words}"))
    }

    /// Sends bytes to the server by TCP, and returns the reply.
    fn say(&self, input: &[u8]) -> String {
        let said = self
            .cluster
            .exec_with("2,0,0", "actor tcp 0-0-0.blue 11211", input)
            .ok();
        String::from_utf8_lossy(&said.stdout).into_owned()
    }
}

fn serve(cluster: &Cluster, options: &str) -> Running {
    cluster.store("0,0,0", options)
}

/// Bytes that tell where they belong.
fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8) ^ seed)
        .collect()
}

#[test]
fn stock_clients_and_ours_see_the_same_values() {
    let store = Store::up();
    for (n, len) in [0, 1, 1024, 4096, 65_536, (1 << 20) - 512]
        .into_iter()
        .enumerate()
    {
        let (key, value) = (format!("key{n}"), pattern(len, n as u8));
        store.memccp(&key, &value).ok();
        assert!(
            store.memccat(&key) == value,
            "{len} bytes by memcached's protocol"
        );
        let got = store.kv(&format!("get {key}")).ok();
        assert!(got.stdout == value, "{len} bytes by RDMA");

        let mut other = value.clone();
        other.reverse();
        let set = format!("toroid-kv set {key}");
        store.cluster.exec_with("1,0,0", &set, &other).ok();
        assert!(store.memccat(&key) == other, "{len} bytes, set by RDMA");
        assert!(store.kv(&format!("get {key}")).ok().stdout == other);
    }
}

#[test]
fn deleted_values_are_gone_for_both() {
    let store = Store::up();
    store.kv("set one 1").ok();
    store.kv("set two 2").ok();
    assert_eq!(
        store.say(b"delete one\r\ndelete one\r\n"),
        "DELETED\r\nNOT_FOUND\r\n"
    );
    store.kv("get one").fails(1, &["one"]);
    store.kv("delete two").ok();
    store.kv("delete two").fails(1, &["two"]);
    assert_eq!(store.say(b"get one two\r\n"), "END\r\n");
    store.kv("get never").fails(1, &["never"]);
}

#[test]
fn keys_may_have_250_bytes_and_no_more() {
    let store = Store::up();
    let (longest, longer) = ("k".repeat(250), "k".repeat(251));
    store.kv(&format!("set {longest} here")).ok();
    assert_eq!(store.kv(&format!("get {longest}")).ok().stdout, b"here");
    let get = format!("get {longest}\r\n");
    let value = format!("VALUE {longest} 0 4\r\nhere\r\nEND\r\n");
    assert_eq!(store.say(get.as_bytes()), value);

    for verb in ["get", "delete"] {
        store
            .kv(&format!("{verb} {longer}"))
            .fails(REFUSED, &["251", "250"]);
    }
    store
        .kv(&format!("set {longer} x"))
        .fails(REFUSED, &["251", "250"]);
    let get = format!("get {longer}\r\nget {longest}\r\n");
    assert_eq!(store.say(get.as_bytes()), format!("{ERROR_FORMAT}{value}"));
    let set = format!("set {longer} 0 0 1\r\nx\r\nversion\r\n");
    let said = store.say(set.as_bytes());
    assert!(said.starts_with(ERROR_FORMAT), "{said}");
    assert!(said.contains("VERSION"), "the connection goes on: {said}");
}

const ERROR_FORMAT: &str = "CLIENT_ERROR bad command line format\r\n";

#[test]
fn a_value_over_the_limit_is_refused_and_the_rest_goes_on() {
    let store = Store::up();
    let large = vec![b'x'; (1 << 20) + 1];
    store.kv("set key before").ok();
    let said = store
        .cluster
        .exec_with("1,0,0", "toroid-kv set key", &large);
    said.fails(REFUSED, &[&large.len().to_string(), "1048576"]);

    let mut input = format!("set other 0 0 {}\r\n", large.len()).into_bytes();
    input.extend_from_slice(&large);
    input.extend_from_slice(b"\r\nset small 0 0 2\r\nok\r\nget small\r\n");
    let answers = "SERVER_ERROR object too large for cache\r\nSTORED\r\n\
                   VALUE small 0 2\r\nok\r\nEND\r\n";
    assert_eq!(store.say(&input), answers);
    store.memccp("stock", &large).fails_somehow();
    assert_eq!(store.kv("get small").ok().stdout, b"ok");
}

#[test]
fn malformed_lines_are_refused_and_the_connection_goes_on() {
    let store = Store::up();
    let lines = [
        ("", "ERROR\r\n"),
        ("nonsense", "ERROR\r\n"),
        ("get", "ERROR\r\n"),
        ("set", "ERROR\r\n"),
        ("set key", "ERROR\r\n"),
        ("set key 0 0 x", ERROR_FORMAT),
        ("set key 0 0 -1", ERROR_FORMAT),
        ("set key x 0 0", ERROR_FORMAT),
        ("delete", "ERROR\r\n"),
        ("GET key", "ERROR\r\n"),
        ("\u{1}\u{2}\u{7f}", "ERROR\r\n"),
    ];
    for (line, answer) in lines {
        let input = format!("{line}\r\nget nothing\r\n");
        assert_eq!(
            store.say(input.as_bytes()),
            format!("{answer}END\r\n"),
            "{line:?}"
        );
    }
    // A value that is longer than announced.
    let said = store.say(b"set key 0 0 2\r\nlong\r\nget key\r\n");
    assert!(
        said.starts_with("CLIENT_ERROR bad data chunk\r\n") && said.ends_with("END\r\n"),
        "{said}"
    );
    // A line without an end, and bytes that are no text at all.
    store.say(&vec![b'x'; 1 << 20]);
    store.say(&pattern(100_000, 7));
    assert!(
        store
            .say(b"version\r\nquit\r\nversion\r\n")
            .starts_with("VERSION ")
    );
}

#[test]
fn a_store_is_found_by_its_domain_alone() {
    let store = Store::up();
    store.kv("set --domain blue --server 0,0,0 key value").ok();
    assert_eq!(store.kv("get key").ok().stdout, b"value");
    let through_toroid = store.cluster.exec("1,0,0", "toroid kv get key");
    assert_eq!(through_toroid.ok().stdout, b"value");
    let (red, green) = (
        store.cluster.domain("red", &["1,0,0", "2,0,0"]),
        store.cluster.domain("green", &["2,0,0"]),
    );
    store
        .kv("get key")
        .fails(NOT_REACHED, &["several domains", "blue", "red", "--domain"]);
    store
        .kv("get -d red key")
        .fails(NOT_REACHED, &["red", "toroid-kv serve"]);
    store.kv("get -d green key").fails(NOT_REACHED, &["green"]);
    store
        .kv("get -d blue -s 2,0,0 key")
        .fails(NOT_REACHED, &["2,0,0"]);
    red.remove();
    green.remove();
    assert_eq!(store.kv("get key").ok().stdout, b"value");
}

#[test]
fn the_keys_that_are_used_most_are_shown() {
    let store = Store::up();
    store.kv("set cold value").ok();
    store.kv("set hot%key value").ok();
    let gets = "get hot%key\r\n".repeat(100) + "get cold\r\n";
    store.say(gets.as_bytes());
    // Each second an eighth fades.
    let shown = store.cluster.exec("1,0,0", "toroid kv top --once").ok();
    let lines: Vec<&str> = shown.text().lines().collect();
    assert_eq!(lines[0].trim(), "GETS/S  KEY");
    assert!(lines[1].ends_with("  hot%25key"), "{shown}");
    store.kv("top --once -n 0").ok();
    assert!(
        store
            .say(b"stats hotkeys 1\r\n")
            .starts_with("STAT hot%25key ")
    );
    assert_eq!(store.say(b"stats hotkeys x\r\n"), "ERROR\r\n");
}

#[test]
fn a_killed_server_can_be_started_again() {
    let kills = if is_nightly() { 100 } else { 3 };
    leaves_nothing(|| {
        let Store {
            mut server,
            cluster,
        } = Store::up();
        for n in 0..kills {
            cluster
                .exec("1,0,0", &format!("toroid-kv set key value{n}"))
                .ok();
            let pid = server_in(&cluster);
            cluster.exec("0,0,0", &format!("kill -9 {pid}")).ok();
            assert_eq!(server.wait().status, 137);
            let late = cluster.exec("1,0,0", "toroid-kv get key");
            late.fails(NOT_REACHED, &["blue", "toroid-kv serve"]);
            server = serve(&cluster, "");
            // The next server is empty, and no client reads values of the one before.
            cluster
                .exec("1,0,0", "toroid-kv get key")
                .fails(1, &["key"]);
        }
        cluster.exec("1,0,0", "toroid-kv set key value").ok();
        assert_eq!(
            cluster.exec("2,0,0", "toroid-kv get key").ok().stdout,
            b"value"
        );
        server.signal(Signal::SIGTERM);
        server.wait().ok();
        eventually("its memory is given back", || {
            cluster.status()["registered_bytes"] == 0
        });
    });
}

fn server_in(cluster: &Cluster) -> String {
    cluster
        .exec("0,0,0", "pgrep -f ^toroid-kv.serve")
        .ok()
        .text()
        .to_owned()
}

#[test]
fn clients_that_die_in_the_middle_of_a_set_do_no_harm() {
    let kills = if is_nightly() { 100 } else { 8 };
    let Store { server, cluster } = Store::up();
    let large = |seed| pattern(1_000_000, seed);

    // By TCP: announced, begun, and gone.
    cluster
        .exec_with("1,0,0", "toroid-kv set tcp", b"before")
        .ok();
    let mut half = b"set tcp 0 0 1000000\r\n".to_vec();
    half.extend_from_slice(&large(0)[..500_000]);
    cluster
        .exec_with("1,0,0", "actor tcp 0-0-0.blue 11211", &half)
        .ok();
    assert_eq!(
        cluster.exec("2,0,0", "toroid-kv get tcp").ok().stdout,
        b"before"
    );

    // By RDMA: the server reads the value from a client that is being killed.
    let files = [0u8, 1].map(|seed| {
        let file = cluster.files().join(format!("value{seed}"));
        fs::write(&file, large(seed)).expect("there is room");
        file.display().to_string()
    });
    let script = format!(
        "while :; do toroid-kv set key <{}; toroid-kv set key <{}; done",
        files[0], files[1]
    );
    cluster
        .exec_with("1,0,0", "toroid-kv set key", &large(0))
        .ok();
    for n in 0..kills {
        let mut command = cluster.in_node("1,0,0", &["sh", "-c", &script]);
        let client = Running::start(command.stdin(std::process::Stdio::null()));
        std::thread::sleep(Duration::from_millis(20 + n * 13 % 50));
        // The command's whole process group is killed with it.
        client.kill();
        // As with memcached, a set that failed may leave no value, but never half of one.
        let got = cluster.exec("2,0,0", "toroid-kv get key");
        let is_whole = got.stdout == large(0) || got.stdout == large(1);
        match got.status {
            0 => assert!(is_whole, "{} torn bytes", got.stdout.len()),
            _ => drop(got.fails(1, &["no key"])),
        }
    }
    let stored = cluster.exec_with("1,0,0", "toroid-kv set key", b"after");
    stored.ok();
    assert_eq!(
        cluster.exec("2,0,0", "toroid-kv get key").ok().stdout,
        b"after"
    );
    server.signal(Signal::SIGINT);
    server.wait().ok();
}

#[test]
fn a_client_that_leaves_the_domain_is_cut_off() {
    let store = Store::up();
    store.kv("set key value").ok();
    store.cluster.toroid("domain shrink blue 1,0,0").ok();
    store.kv("get -d blue key").fails(NOT_REACHED, &["blue"]);
    assert_eq!(
        store.cluster.exec("2,0,0", "toroid-kv get key").ok().stdout,
        b"value"
    );
    store.cluster.toroid("domain grow blue 1,0,0").ok();
    assert_eq!(store.kv("get key").ok().stdout, b"value");
}

#[test]
fn a_store_outside_of_nodes_serves_tcp_alone() {
    leaves_nothing(|| {
        let cluster = Cluster::down_yet();
        let mut serve = cluster.command("toroid-kv");
        let server = Running::start(serve.args(["serve", "-l", "127.0.0.1", "-p", "-1"]));
        server.says("ready tcp 127.0.0.1:");
        let line = server.so_far();
        let port = line.trim().rsplit(':').next().expect("a port").to_owned();
        let mut client = cluster.command("actor");
        let client = client.args(["tcp", "127.0.0.1", &port]);
        let said = tests::process::run_with(client, b"set a 5 0 1\r\nx\r\nget a\r\n").ok();
        assert_eq!(said.stdout, b"STORED\r\nVALUE a 5 1\r\nx\r\nEND\r\n");
        send(server.pid(), Signal::SIGTERM);
        server.wait().ok();

        let mut get = cluster.command("toroid-kv");
        let outcome = tests::process::run(get.args(["get", "a"]));
        outcome.fails(NOT_REACHED, &["not in a node", "toroid exec"]);
    });
}
