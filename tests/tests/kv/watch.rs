//! `watch`: the commands of other clients, in memcached's form.

use tests::process::eventually;

use crate::servers::{Connection, Memcached, Server, Toroid, number};

/// Lines of a watcher up to the one with `last`, without fields that differ from run to run.
fn lines(watcher: &mut Connection, last: &str) -> Vec<String> {
    let mut told = String::new();
    while !(told.contains(last) && told.ends_with('\n')) {
        told += &String::from_utf8_lossy(&watcher.receive(Some(b"\n")));
    }
    let plain = |line: &str| {
        let words = line.split(' ').filter(|word| {
            let changing = ["ts=", "gid=", "cfd=", "rport="];
            !changing.iter().any(|name| word.starts_with(name))
        });
        words.collect::<Vec<_>>().join(" ")
    };
    told.lines().map(plain).collect()
}

/// Names of a line's values, in its order.
fn names(line: &str) -> Vec<&str> {
    let words = line.split(' ');
    words
        .map(|word| word.split('=').next().unwrap_or_default())
        .collect()
}

fn watcher(server: &impl Server, kinds: &str) -> Connection {
    let mut watcher = server.connect();
    watcher.ask(&format!("watch {kinds}\r\n"), "OK\r\n");
    watcher
}

#[test]
fn fetches_and_mutations_are_told_as_by_memcached() {
    let (memcached, toroid) = (Memcached::start_with(&[]), Toroid::start());
    let told = |server: &dyn Fn() -> Connection, mut watcher: Connection| {
        let mut client = server();
        for (request, end) in [
            ("set a 0 0 1\r\n1\r\n", "STORED\r\n"),
            ("get a b%c a\r\n", "END\r\n"),
            ("gets none\r\n", "END\r\n"),
            ("add a 0 100 1\r\n1\r\n", "NOT_STORED\r\n"),
            ("replace a 0 100 2\r\n12\r\n", "STORED\r\n"),
            ("append none 0 0 1\r\n1\r\n", "NOT_STORED\r\n"),
            ("cas a 0 0 1 99\r\n1\r\n", "EXISTS\r\n"),
            ("cas none 0 0 1 99\r\n1\r\n", "NOT_FOUND\r\n"),
            ("incr a 1\r\n", "13\r\n"),
            ("incr none 1\r\n", "NOT_FOUND\r\n"),
            ("touch a 0\r\n", "TOUCHED\r\n"),
            ("touch none 0\r\n", "NOT_FOUND\r\n"),
            ("gat 0 a none\r\n", "END\r\n"),
            ("mg a v\r\n", "13\r\n"),
            ("mg none v\r\n", "EN\r\n"),
            ("ms m 2 T50\r\nxx\r\n", "HD\r\n"),
            ("ms m 2 ME\r\nxx\r\n", "NS\r\n"),
            ("ma a\r\n", "HD\r\n"),
            ("md m\r\n", "HD\r\n"),
            ("md m\r\n", "NF\r\n"),
            ("delete a\r\n", "DELETED\r\n"),
            ("delete a\r\n", "NOT_FOUND\r\n"),
            ("get last\r\n", "END\r\n"),
        ] {
            client.ask(request, end);
        }
        lines(&mut watcher, "key=last")
    };
    let kinds = "fetchers mutations";
    let theirs = told(&|| memcached.connect(), watcher(&memcached, kinds));
    let ours = told(&|| toroid.connect(), watcher(&toroid, kinds));
    assert_eq!(ours, theirs);
    // Without a kind it is this one.
    let mut fetches = watcher(&toroid, "");
    toroid.connect().ask("get x\r\n", "END\r\n");
    let expected = "type=item_get key=x status=not_found clsid=0 size=0";
    assert_eq!(lines(&mut fetches, "key=x"), [expected]);
}

#[test]
fn connections_evictions_and_deletions_are_told() {
    let (memcached, toroid) = (
        Memcached::start_with(&["-m", "2"]),
        Toroid::start_with(&["-m", "2"]),
    );
    let told = |connect: &dyn Fn() -> Connection, mut watcher: Connection| {
        let mut client = connect();
        client.ask("quit\r\n", "");
        let value = "v".repeat(10_000);
        let mut client = connect();
        for n in 0..1000 {
            client.ask(&format!("set k{n} 0 0 10000\r\n{value}\r\n"), "STORED\r\n");
        }
        lines(&mut watcher, "type=eviction")
    };
    let kinds = "connevents evictions";
    let all = [
        told(&|| memcached.connect(), watcher(&memcached, kinds)),
        told(&|| toroid.connect(), watcher(&toroid, kinds)),
    ];
    for kind in ["type=conn_new", "type=conn_close", "type=eviction"] {
        let [theirs, ours] = all.each_ref().map(|lines| {
            let line = lines.iter().find(|line| line.starts_with(kind));
            names(line.expect("such a line"))
        });
        assert_eq!(ours, theirs, "{kind}");
    }
    let new = "type=conn_new rip=127.0.0.1 transport=tcp".to_owned();
    let close = "type=conn_close rip=127.0.0.1 transport=tcp reason=normal".to_owned();
    assert!(all[1].contains(&new) && all[1].contains(&close), "{all:?}");
    // Later versions of memcached have these.
    let mut deletions = watcher(&toroid, "deletions");
    let mut client = toroid.connect();
    client.ask("set a 0 0 3\r\nabc\r\n", "STORED\r\n");
    client.ask("delete a\r\n", "DELETED\r\n");
    let expected = "type=deleted key=a cmd=delete clsid=1 size=3";
    assert_eq!(lines(&mut deletions, "key=a"), [expected]);
}

/// The buffer of a watcher is bounded: lines that it does not read are skipped, and the server does
/// not wait.
#[test]
fn a_watcher_that_does_not_read_holds_nothing_up() {
    let server = Toroid::start_with(&["-o", "watcher_logbuf_size=16"]);
    let mut deaf = watcher(&server, "fetchers");
    let mut client = server.connect();
    let get = format!("get{}\r\n", format!(" {}", "k".repeat(250)).repeat(100));

    // The system takes some megabytes of them, then none.
    let mut told = String::new();
    eventually("lines are skipped", || {
        for _ in 0..100 {
            assert_eq!(client.ask(&get, "END\r\n"), "END\r\n");
        }
        told = client.ask("stats\r\n", "END\r\n");
        number(&told, "log_watcher_skipped") > 0
    });
    assert_eq!(number(&told, "log_watchers"), 1);
    let written = number(&told, "log_worker_written");
    let skipped = number(&told, "log_watcher_skipped");
    assert_eq!(number(&told, "log_watcher_sent") + skipped, written);
    let connections = client.ask("stats conns\r\n", "END\r\n");
    assert!(connections.contains(":state conn_"), "{connections}");
    // Once it reads, it learns how many lines it has missed.
    let mut said = String::new();
    while !said.lines().any(|line| line.starts_with("skipped=")) {
        client.ask(&get, "END\r\n");
        said = String::from_utf8_lossy(&deaf.receive(Some(b"\n"))).into_owned();
    }
    drop(deaf);
    eventually("it is gone", || {
        let told = client.ask("stats\r\n", "END\r\n");
        number(&told, "log_watchers") == 0
    });
}

#[test]
fn what_may_not_watch_is_told_so() {
    let server = Toroid::start();
    let mut client = server.connect();
    assert_eq!(client.ask("watch x\r\n", "\r\n"), "ERROR\r\n");
    let pipelined = "MN\r\nERROR cannot pipeline other commands before watch\r\n";
    assert_eq!(client.ask("mn\r\nwatch\r\n", "watch\r\n"), pipelined);
    let watchers: Vec<_> = (0..20).map(|_| watcher(&server, "fetchers")).collect();
    let many = "WATCHER_TOO_MANY log watcher limit reached\r\n";
    assert_eq!(client.ask("watch\r\n", "\r\n"), many);
    drop(watchers);
    let forbids = Toroid::start_with(&["-W"]);
    let forbidden = "CLIENT_ERROR watch commands not allowed\r\n";
    assert_eq!(forbids.connect().ask("watch\r\n", "\r\n"), forbidden);
}
