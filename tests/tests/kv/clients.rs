//! Clients that were written for memcached.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use tests::cluster::program;
use tests::process::run;

use crate::servers::Toroid;

#[test]
fn memccapable_finds_nothing_missing() {
    let server = Toroid::start();
    let port = server.port.to_string();
    let mut command = Command::new("memccapable");
    command.args(["-h", "127.0.0.1", "-p", &port, "-a"]);
    let outcome = run(&mut command).ok();
    assert!(!outcome.text().contains("FAIL"), "{outcome}");
}

/// memcached's own script copies the items of one server to another.
#[test]
fn memcached_tool_dumps_what_another_server_takes() {
    let servers = [Toroid::start(), Toroid::start()];
    let [mut from, mut to] = servers.each_ref().map(|server| {
        let stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        stream
    });
    let sets = (0..5000).map(|n| format!("set key{n} {n} 0 4 noreply\r\n{n:04}\r\n"));
    from.write_all(sets.collect::<String>().as_bytes()).unwrap();
    let ask = |stream: &mut TcpStream, request: &str, end: &str| {
        stream.write_all(request.as_bytes()).unwrap();
        let mut told = String::new();
        let mut piece = [0; 4096];
        while !told.ends_with(end) {
            let count = stream.read(&mut piece).unwrap();
            assert!(count > 0, "{told}");
            told.push_str(std::str::from_utf8(&piece[..count]).unwrap());
        }
        told
    };
    // All are in the store by then.
    ask(&mut from, "mn\r\n", "MN\r\n");
    let mut dump = Command::new("/usr/share/memcached/scripts/memcached-tool");
    dump.args([&format!("127.0.0.1:{}", servers[0].port), "dump"]);
    let dump = run(&mut dump).ok();
    let adds = dump.text();
    // The last line's end is no part of the text.
    let adds = format!("{}\r\n", &adds[adds.find("add ").expect("items")..]);
    let stored = "STORED\r\n".repeat(5000);
    assert_eq!(ask(&mut to, &adds, &stored), stored);
    for n in [0, 1234, 4999] {
        let told = ask(&mut to, &format!("get key{n}\r\n"), "END\r\n");
        assert_eq!(told, format!("VALUE key{n} {n} 4\r\n{n:04}\r\nEND\r\n"));
    }
}

/// Typical use of a cache in Python, with the most used client.
#[test]
fn pymemcache_is_served() {
    let library = program("toroid-kv").with_file_name("pymemcache");
    assert!(
        library.is_dir(),
        "{} is missing; run `tests/run kv`, which installs it",
        library.display()
    );
    let server = Toroid::start();
    let script = format!(
        r#"
from pymemcache.client.base import Client
from pymemcache.exceptions import MemcacheClientError, MemcacheServerError

client = Client(("127.0.0.1", {}), connect_timeout=60, timeout=60)

def refused(error, operation, *arguments, **options):
    try:
        operation(*arguments, noreply=False, **options)
    except error:
        return True

assert client.set("a", "one", noreply=False)
assert client.get("a") == b"one"
assert client.get("b", default=7) == 7
assert client.add("b", b"two", noreply=False)
assert not client.add("b", b"three", noreply=False)
assert client.replace("b", b"2", noreply=False)
assert client.append("b", b"0", noreply=False) and client.prepend("b", b"1", noreply=False)
assert client.incr("b", 5) == 125 and client.decr("b", 126) == 0
assert client.incr("none", 1) is None
value, cas = client.gets("a")
assert client.cas("a", b"new", cas, noreply=False) is True
assert client.cas("a", b"newer", cas, noreply=False) is False
assert client.cas("none", b"x", cas, noreply=False) is None
assert client.set_many({{f"k{{n}}": str(n) for n in range(1000)}}, noreply=False) == []
many = client.get_many([f"k{{n}}" for n in range(2000)])
assert many == {{f"k{{n}}": str(n).encode() for n in range(1000)}}
assert client.touch("k1", 100, noreply=False)
assert client.set("large", b"v" * 1_000_000, noreply=False)
assert client.get("large") == b"v" * 1_000_000
assert refused(MemcacheServerError, client.set, "large", b"v" * 1_100_000)
assert client.get("large") is None
assert refused(MemcacheClientError, client.set, "k" * 251, "v")
assert client.delete("a", noreply=False) and not client.delete("a", noreply=False)
stats = client.stats()
assert stats[b"curr_items"] >= 1000 and stats[b"cmd_get"] >= 2000, stats
assert client.version().startswith(b"1.6.18")
assert client.flush_all(noreply=False)
assert client.get("k1") is None
client.quit()
print("well")
"#,
        server.port
    );
    let mut python = Command::new("python3");
    python.args(["-c", &script]).env("PYTHONPATH", library);
    let outcome = run(&mut python).ok();
    assert_eq!(outcome.text(), "well");
}
