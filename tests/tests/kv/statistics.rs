//! A server's statistics beside memcached's, and the tools that read them.

use std::process::Command;

use tests::process::{Running, eventually, run};

use crate::servers::{Connection, Memcached, Server, Toroid, ask_both, number};

/// Ours, which memcached has not; they come last.
const OURS: [&str; 3] = ["one_sided_gets", "one_sided_hits", "binary_clients_refused"];

/// Memcached and ours, each with the same items.
fn both(options: &[&str]) -> (Memcached, Toroid, [Connection; 2]) {
    let (memcached, toroid) = (Memcached::start_with(options), Toroid::start_with(options));
    let mut connections = [memcached.connect(), toroid.connect()];
    for connection in &mut connections {
        connection.ask("set a 0 0 1\r\n1\r\n", "STORED\r\n");
        connection.ask("set b 0 2000000000 5\r\n12345\r\n", "STORED\r\n");
        connection.ask("get a\r\n", "END\r\n");
    }
    (memcached, toroid, connections)
}

/// The names that a reply tells, in its order.
fn names(reply: &str) -> Vec<&str> {
    let lines = reply.lines().filter_map(|line| line.strip_prefix("STAT "));
    lines
        .map(|line| line.split(' ').next().unwrap_or_default())
        .collect()
}

/// Exporters and dashboards read these by name.
#[test]
fn statistics_have_memcacheds_names_in_its_order() {
    for options in [&[][..], &["-o", "idle_timeout=60,no_maxconns_fast"]] {
        let (_theirs, _ours, mut connections) = both(options);
        let mut say = |request: &str| ask_both(&mut connections, request, "END\r\n");
        let [theirs, ours] = say("stats\r\n");
        let expected = [&names(&theirs)[..], &OURS].concat();
        assert_eq!(names(&ours), expected, "{options:?}");
        for kind in ["items", "slabs", "settings", "sizes"] {
            let [theirs, ours] = say(&format!("stats {kind}\r\n"));
            assert_eq!(names(&ours), names(&theirs), "{kind} with {options:?}");
        }
    }
}

#[test]
fn connections_and_listeners_are_told_with_their_states() {
    let place = tempfile::tempdir().expect("a place for a socket");
    let socket = place.path().join("socket");
    let socket = socket.to_str().expect("it is UTF-8");
    for options in [&[][..], &["-s", socket]] {
        let mut command = Command::new(tests::cluster::program("toroid-kv"));
        command.args(["serve", "--no-rdma", "-l", "127.0.0.1", "-p", "-1"]);
        let mut server = Running::start(command.args(options));
        let ready = server.line();
        let connect = || match ready.strip_prefix("ready tcp ") {
            Some(address) => Connection::tcp(address),
            None => Connection::unix(socket),
        };
        let mut value = connect();
        value.send(b"set a 0 0 10\r\n123").expect("it reads");
        let mut refused = connect();
        refused.send(b"set a 0 0 2000000\r\n1").expect("it reads");
        refused.receive(Some(b"cache\r\n"));
        let mut asks = connect();
        let listener = match ready.strip_prefix("ready tcp ") {
            Some(address) => format!("tcp:{address}"),
            None => format!("unix:{socket}"),
        };
        let mut told = String::new();
        // Whether the server has read the others' requests by now, only it knows.
        eventually("all are told", || {
            told = asks.ask("stats conns\r\n", "END\r\n");
            let states = ["listening", "nread", "swallow", "parse_cmd"];
            states
                .iter()
                .all(|state| told.contains(&format!(":state conn_{state}\r\n")))
        });
        let first = format!("STAT 1:addr {listener}\r\nSTAT 1:state conn_listening\r\n");
        assert!(told.starts_with(&first), "{told}");
        let at = told
            .matches(&format!(":listen_addr {listener}\r\n"))
            .count();
        assert_eq!(at, 3, "{told}");
        assert!(!told.contains("addr unix:\r\n"), "{told}");
    }
}

#[test]
fn sizes_and_keys_are_told_as_there() {
    let (_theirs, _ours, mut connections) = both(&["-o", "track_sizes"]);
    let mut say = |request: &str, end: &str| ask_both(&mut connections, request, end);
    let [theirs, ours] = say("stats sizes\r\n", "END\r\n");
    assert_eq!(ours, theirs);
    let lines = |reply: &str| {
        let mut lines: Vec<_> = reply.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    // The expiry of memcached's is a second early or late at times.
    let plain = |reply: &str| lines(&reply.replace("1999999999", "2000000000"));
    for request in ["1 0", "1 10", "0 0", "7 0", "63 1"] {
        let mut said = [String::new(), String::new()];
        // Memcached's are told once they have cooled down.
        eventually(request, || {
            said = say(&format!("stats cachedump {request}\r\n"), "END\r\n");
            plain(&said[0]) == plain(&said[1])
        });
    }
    let [theirs, ours] = say("stats cachedump 1 1\r\n", "END\r\n");
    assert_eq!(lines(&ours).len(), lines(&theirs).len());
    for request in [
        "stats cachedump 64 1",
        "stats cachedump",
        "stats cachedump x 1",
    ] {
        let [theirs, ours] = say(&format!("{request}\r\n"), "\r\n");
        assert_eq!(ours, theirs, "{request}");
    }
    for request in ["stats sizes_disable", "stats sizes_enable"] {
        let [theirs, ours] = say(&format!("{request}\r\n"), "abled\r\n");
        assert_eq!(ours, theirs);
    }
    let (_theirs, _ours, mut connections) = both(&["-X", "-C"]);
    for (request, end) in [
        ("stats cachedump 1 1", "allowed\r\n"),
        ("lru_crawler metadump all", "allowed\r\n"),
        ("stats sizes", "END\r\n"),
        ("stats sizes_enable", "cas_support_disabled\r\n"),
    ] {
        let [theirs, ours] = ask_both(&mut connections, &format!("{request}\r\n"), end);
        assert_eq!(ours, theirs, "{request}");
    }
}

/// Both printed nothing.
#[test]
fn memcdump_and_the_display_of_memcached_tool_show_what_is_there() {
    let server = Toroid::start();
    let mut client = server.connect();
    for n in 0..100 {
        client.ask(&format!("set key{n} 0 0 1\r\nx\r\n"), "STORED\r\n");
    }
    let mut dump = Command::new("memcdump");
    let dump = run(dump.arg(format!("--servers=127.0.0.1:{}", server.port))).ok();
    let mut keys: Vec<&str> = dump.text().lines().collect();
    keys.sort();
    let mut expected: Vec<_> = (0..100).map(|n| format!("key{n}")).collect();
    expected.sort();
    assert_eq!(keys, expected);
    let mut display = Command::new("/usr/share/memcached/scripts/memcached-tool");
    let display = run(display.args([&format!("127.0.0.1:{}", server.port), "display"])).ok();
    let class = display.text().lines().nth(1).expect("a class");
    let words: Vec<&str> = class.split_whitespace().collect();
    // Class, chunk, age, pages, items, and whether it is full.
    assert_eq!(
        words[..6],
        ["1", "16B", "0s", "64", "100", "no"],
        "{display}"
    );
}

/// Commands that tune memory and threads of which there are none here.
#[test]
fn commands_to_the_server_are_answered_as_there() {
    let (_theirs, _ours, mut connections) = both(&[]);
    let classes = ["0", "1", "39", "40", "63", "64", "-1", "x"];
    let reassign = classes.iter().flat_map(|from| {
        let to = move |to: &&str| format!("slabs reassign {from} {to}");
        classes.iter().map(to)
    });
    let crawl = ["all", "hash", "1", "1,2", "63", "64", "0", "x", "1,x", ""];
    let crawl = crawl.iter().map(|list| format!("lru_crawler crawl {list}"));
    let rest = [
        "slabs automove 0",
        "slabs automove 1",
        "slabs automove 2",
        "slabs automove 3",
        "slabs automove -1",
        "slabs automove ratio 0.9",
        "slabs automove ratio 2",
        "slabs automove ratio",
        "slabs automove x",
        "slabs x",
        "lru mode flat",
        "lru mode segmented",
        "lru mode x",
        "lru mode",
        "lru temp_ttl 5",
        "lru temp_ttl -1",
        "lru temp_ttl x",
        "lru tune 10 20 0.2 2.0",
        "lru tune 10 20 0.2",
        "lru tune 10 20",
        "lru tune 50 40 0.2 2.0",
        "lru x y",
        "lru_crawler disable",
        "lru_crawler disable",
        "lru_crawler crawl all",
        "lru_crawler metadump all",
        "lru_crawler enable",
        "lru_crawler enable",
        "lru_crawler tocrawl 5",
        "lru_crawler sleep 5",
        "stats detail on",
        "stats detail off",
        "verbosity 1",
    ];
    for request in reassign.chain(crawl).chain(rest.map(str::to_owned)) {
        let mut replies = [String::new(), String::new()];
        // Memcached may not have ended the last crawl, or the thread that crawls: until that one has
        // ended, a crawl of all is an error without a name.
        eventually("memcached has time", || {
            replies = ask_both(&mut connections, &format!("{request}\r\n"), "\r\n");
            let ends = request == "lru_crawler crawl all" && replies[0].starts_with("ERROR ");
            !replies[0].starts_with("BUSY") && !ends
        });
        assert_eq!(replies[1], replies[0], "{request}");
    }
}

/// A tool reads the setting that it has changed.
#[test]
fn settings_are_told_as_commands_have_changed_them() {
    let (_theirs, _ours, mut connections) = both(&[]);
    for request in [
        "slabs automove 0",
        "slabs automove ratio 0.9",
        "lru tune 10 25 0.1 1.5",
        "lru temp_ttl 5",
        "lru_crawler tocrawl 7",
        "lru_crawler sleep 300",
        "cache_memlimit 32",
        "lru temp_ttl -1",
    ] {
        let told = connections.each_mut().map(|connection| {
            connection.ask(&format!("{request}\r\n"), "OK\r\n");
            let told = connection.ask("stats settings\r\n", "END\r\n");
            let names = [
                "maxbytes ",
                "slab_automove ",
                "slab_automove_ratio ",
                "lru_crawler_sleep ",
                "lru_crawler_tocrawl ",
                "hot_",
                "warm_",
                "temp_lru ",
                "temporary_ttl ",
            ];
            let is_one = |line: &&str| {
                let setting = line.strip_prefix("STAT ").unwrap_or_default();
                names.iter().any(|name| setting.starts_with(name))
            };
            told.lines().filter(is_one).collect::<Vec<_>>().join("\n")
        });
        assert_eq!(told[1], told[0], "{request}");
        assert_eq!(told[1].lines().count(), 11, "{}", told[1]);
    }
}

/// Of 90 items 30 expire, of which 10 were got before, and one more that is asked for afterwards.
#[test]
fn expired_items_are_found_by_a_crawl_and_counted_as_there() {
    let options = ["-o", "no_lru_maintainer"];
    let (theirs, ours) = (
        Memcached::start_with(&options),
        Toroid::start_with(&options),
    );
    for mut connection in [theirs.connect(), ours.connect()] {
        for n in 0..30 {
            for (kind, exptime) in [("i", 0), ("l", 1000), ("s", 2)] {
                let set = format!("set {kind}{n} 0 {exptime} 1\r\nx\r\n");
                connection.ask(&set, "STORED\r\n");
            }
        }
        for n in 0..10 {
            connection.ask(&format!("get s{n}\r\n"), "END\r\n");
        }
        connection.ask("set last 0 2 1\r\nx\r\n", "STORED\r\n");
        eventually("it expires", || {
            connection.ask("get last\r\n", "END\r\n") == "END\r\n"
        });
        // Memcached's crawler waits for the second after that.
        let mut told = String::new();
        eventually("a crawl finds them", || {
            connection.ask("lru_crawler crawl all\r\n", "\r\n");
            eventually("the crawl ends", || {
                told = connection.ask("stats\r\n", "END\r\n");
                number(&told, "lru_crawler_running") == 0
            });
            number(&told, "curr_items") == 60
        });
        let items = connection.ask("stats items\r\n", "END\r\n");
        let [reclaimed, unfetched, checked] = [
            "crawler_reclaimed",
            "expired_unfetched",
            "crawler_items_checked",
        ]
        .map(|name| {
            let [all, class] = [
                number(&told, name),
                number(&items, &format!("items:1:{name}")),
            ];
            assert_eq!(all, class, "{name}");
            all
        });
        // Ours may have found the last one before it was asked for.
        assert_eq!(reclaimed + number(&told, "get_expired"), 31, "{told}");
        assert_eq!(unfetched, 20, "{told}");
        assert!(checked >= 90, "{told}");
        assert!(number(&told, "lru_crawler_starts") >= 1, "{told}");
        let rest = ["curr_items", "reclaimed", "evictions"].map(|name| number(&told, name));
        assert_eq!(rest, [60, 0, 0], "{told}");
    }
}

/// Nobody asks for them, nor for a crawl.
#[test]
fn expired_items_go_by_themselves() {
    let server = Toroid::start();
    let mut connection = server.connect();
    for n in 0..100 {
        let set = format!("set k{n} 0 {} 1\r\nx\r\n", n % 2);
        connection.ask(&set, "STORED\r\n");
    }
    let mut told = String::new();
    eventually("half of them go", || {
        told = connection.ask("stats\r\n", "END\r\n");
        number(&told, "curr_items") == 50
    });
    let counts = [
        "crawler_reclaimed",
        "expired_unfetched",
        "get_expired",
        "reclaimed",
    ];
    assert_eq!(counts.map(|name| number(&told, name)), [50, 50, 0, 0]);
}

/// Memcached takes a line that came in one piece; how long one is of which the end has not come, it looks
/// at each time.
#[test]
fn lines_without_an_end_close_the_connection_unless_they_are_gets() {
    let servers: (Memcached, Toroid) = (Memcached::start(), Toroid::start());
    let filler = "k ".repeat(1500);
    for (line, stays) in [
        ("x".repeat(2048), true),
        ("x".repeat(2049), false),
        (format!("set {filler}"), false),
        (format!("mg {filler}"), false),
        (format!("gat 0 {filler}"), false),
        (format!("get {filler}"), true),
        (format!("gets {filler}"), true),
        (format!("  get {filler}"), true),
    ] {
        for mut connection in [servers.0.connect(), servers.1.connect()] {
            connection.send(line.as_bytes()).expect("it reads");
            if !stays {
                assert_eq!(connection.receive(None), b"", "{line:.20}");
                continue;
            }
            let said = connection.ask("\r\nmn\r\n", "MN\r\n");
            let is_get = line.trim_start().starts_with("get");
            assert_eq!(said.starts_with("END"), is_get, "{line:.20} {said}");
        }
    }
}

/// It once ended the connection.
#[test]
fn a_get_that_is_too_long_is_refused_and_the_connection_goes_on() {
    let server = Toroid::start();
    let mut connection = server.connect();
    let long = format!("get{}\r\nmn\r\n", " key".repeat(300_000));
    let said = connection.ask(&long, "MN\r\n");
    assert_eq!(
        said,
        "SERVER_ERROR out of memory writing get response\r\nMN\r\n"
    );
    let stats = connection.ask("stats\r\n", "END\r\n");
    assert!(stats.contains("STAT read_buf_oom 1\r\n"), "{stats}");
    let fits = format!("get{}\r\n", " key".repeat(200_000));
    assert_eq!(connection.ask(&fits, "END\r\n"), "END\r\n");
}
