//! Files, sound and not.

use super::*;
use crate::directory::Directory;
use crate::directory::revision::FabricId;
use crate::limits::MAX_HOSTS;

const SOUND: &str = r#"host = "a"
torus = "2x2x2"
nodes = ["0,*,*"]
listen = "10.0.0.1:7470"
key = "key"
directory = "b"
ack-timeout = 500
offload = false
state = "/run/a"

[hosts]
b = "[fd00::2]:7470"

[alias]
db = "0,1,1"
"#;

#[test]
fn a_file_describes_a_host() {
    let file = parse(SOUND).unwrap();
    let host = &file.host;
    assert_eq!((host.host.as_str(), host.holds_directory()), ("a", false));
    assert_eq!(host.nodes.len(), 4);
    assert_eq!(host.provider, Provider::Tcp);
    assert_eq!(host.encryption, Encryption::On);
    assert_eq!(host.admission, Admission::Key);
    assert_eq!(host.hosts["b"].port(), 7470);
    let db = host.torus.node("0,1,1".parse().unwrap()).unwrap();
    assert_eq!(host.aliases["db"], db.0);
    assert_eq!(
        (file.ack_timeout_ms, file.offload),
        (Some(500), Some(false))
    );
    assert_eq!((file.state, file.data), (Some("/run/a".into()), None));
    assert!(file.ethernet);
}

#[test]
fn a_host_tells_where_the_others_reach_it() {
    let told = |text: &str| {
        let host = parse(text).unwrap().host;
        host.told_address().unwrap().to_string()
    };
    assert_eq!(told(SOUND), "10.0.0.1:7470");
    assert_eq!(
        told(&SOUND.replace("10.0", "[::ffff:10.0").replace("1:7", "1]:7")),
        "10.0.0.1:7470"
    );
    let behind = SOUND.replace(
        "10.0.0.1:7470\"",
        "0.0.0.0:7470\"\naddress = \"203.0.113.7:17470\"",
    );
    assert_eq!(told(&behind), "203.0.113.7:17470");
    // A file of the leader names no other host.
    let leader = SOUND.replace("directory = \"b\"", "directory = \"a\"");
    let leader = leader.replace("[hosts]\nb = \"[fd00::2]:7470\"\n", "");
    assert!(parse(&leader).unwrap().host.hosts.is_empty());
}

#[test]
fn an_rdma_device_can_be_chosen() {
    let with = |lines: &str| {
        let text = SOUND.replace("state = \"/run/a\"", lines);
        let host = parse(&text).unwrap().host;
        (host.provider, host.rdma)
    };
    assert_eq!(with(""), (Provider::Tcp, None));
    let verbs = "provider = \"verbs\"\n";
    assert_eq!(with(verbs), (Provider::Verbs, Some(Rdma::default())));
    let all = "device = \"rxe0\"\nport = 2\ngid-index = 3\npartition-key-index = 4";
    let chosen = Rdma {
        device: Some("rxe0".into()),
        port: Some(2),
        gid_index: Some(3),
        partition_key_index: Some(4),
    };
    let (_, rdma) = with(&format!("{verbs}{all}"));
    assert_eq!(rdma, Some(chosen));
}

#[test]
fn only_the_word_off_switches_encryption_off() {
    let with = |value: &str| {
        let text = SOUND.replace("state = \"/run/a\"", &format!("encryption = {value}"));
        parse(&text).map(|file| file.host.encryption)
    };
    assert_eq!(with("\"on\""), Ok(Encryption::On));
    assert_eq!(with("\"off\""), Ok(Encryption::Off));
    for other in ["false", "\"\"", "\"no\"", "\"OFF\""] {
        assert!(with(other).is_err(), "{other}");
    }
}

/// A file with so many other hosts.
fn with_hosts(count: usize, torus: &str, nodes: &str) -> String {
    let hosts = (1..count).map(|n| format!("h{n} = \"10.1.{}.{}:7470\"\n", n / 256, n % 256));
    let hosts: String = hosts.collect();
    SOUND
        .replace("2x2x2", torus)
        .replace("0,*,*", nodes)
        .replace("0,1,1", "0,0,0")
        .replace("[hosts]\n", &format!("[hosts]\n{hosts}"))
}

/// Of 65,534 nodes.
const LARGEST: &str = "151x31x14";

#[test]
fn the_largest_fabric_has_4096_hosts() {
    let largest = with_hosts(MAX_HOSTS - 1, LARGEST, "0,0,*");
    let host = parse(&largest).unwrap().host;
    assert_eq!((host.hosts.len(), host.nodes.len()), (MAX_HOSTS - 1, 14));
    assert_eq!(u64::from(host.torus.nodes()), Torus::MAX_NODES);
    let problems = parse(&with_hosts(MAX_HOSTS, LARGEST, "0,0,*")).unwrap_err();
    let [problem] = &problems[..] else {
        panic!("{problems:?}")
    };
    assert!(
        problem.message.contains("more than 4096 hosts"),
        "{problem}"
    );
    assert!(problem.message.contains("let fewer hosts"), "{problem}");
}

/// A file does not say how many hosts exist.
#[test]
fn a_host_carries_1024_nodes_and_no_more() {
    let most = parse(&with_hosts(2, "64x17x1", "*,0-15,0")).unwrap();
    assert_eq!(most.host.nodes.len(), 1024);
    let one = |count, torus, nodes, line, words: &[&str]| {
        let problems = parse(&with_hosts(count, torus, nodes)).unwrap_err();
        let [problem] = &problems[..] else {
            panic!("{problems:?}")
        };
        assert_eq!(problem.line, line, "{problem}");
        for words in words {
            assert!(problem.message.contains(words), "{problem}");
        }
    };
    let too_many = ["1025 nodes are too many for one host", "let other hosts"];
    one(2, "41x25x2", "*,*,0", 3, &too_many);
    parse(&with_hosts(1, LARGEST, "0,0,0")).unwrap();
    let beyond = ["65536 nodes is too large", "at most 65534"];
    one(4000, "256x256x1", "0,0,0", 2, &beyond);
}

#[test]
fn mistakes_are_reported_with_their_line() {
    let bad = [
        ("host = \"a\"", "host = \"A\"", 1, "names no host"),
        ("host = \"a\"", "hots = \"a\"", 1, "did you mean \"host\"?"),
        ("2x2x2", "2x2", 2, ""),
        ("0,*,*", "2,*,*", 3, "outside the torus"),
        ("[\"0,*,*\"]", "\"0,*,*\"", 3, "a list of node sets"),
        ("10.0.0.1:7470", "10.0.0.1", 4, "is no address"),
        (
            "10.0.0.1",
            "0.0.0.0",
            4,
            "names all interfaces; add `address`",
        ),
        ("10.0.0.1", "[::ffff:0.0.0.0]", 4, "names all interfaces"),
        (":7470\"\nkey", ":0\"\nkey", 4, "names no port"),
        ("\"key\"", "7", 5, "a text in quotes"),
        (
            "offload = false",
            "address = \"[ff02::1]:7470\"",
            8,
            "that of many hosts; write where",
        ),
        (
            "directory = \"b\"",
            "directory = \"c\"",
            6,
            "not among the hosts",
        ),
        ("500", "0", 7, "0 is not from 1"),
        ("offload = false", "offload = 0", 8, "true or false"),
        ("state = ", "provider = ", 9, "there are tcp and verbs"),
        ("state = ", "encryption = ", 9, "\"on\" or \"off\""),
        ("state = ", "admission = ", 9, "\"key\" or \"manual\""),
        ("state = ", "commands = ", 9, "\"on\" or \"off\""),
        (
            "state = \"/run/a\"",
            "device = \"mlx5_0\"",
            9,
            "is for provider = \"verbs\"",
        ),
        ("offload = false", "port = 0", 8, "0 is not from 1"),
        (
            "b = \"[fd00::2]:7470\"",
            "a = \"[fd00::2]:7470\"",
            12,
            "this one",
        ),
        ("\"0,1,1\"", "\"1,1,1\"", 15, "not among the nodes"),
        ("db = ", "Db = ", 15, "cannot be an alias"),
        ("[alias]", "[alias", 14, ""),
    ];
    for (from, to, line, words) in bad {
        let problems = parse(&SOUND.replacen(from, to, 1)).unwrap_err();
        let found = problems
            .iter()
            .any(|p| p.line == line && p.message.contains(words));
        assert!(found, "{to}: {problems:?}");
    }
    for line in SOUND.lines().take(6) {
        let problems = parse(&SOUND.replace(line, "")).unwrap_err();
        let (key, _) = line.split_once(' ').unwrap();
        let missing = format!("no \"{key}\"");
        assert!(
            problems.iter().any(|p| p.message.contains(&missing)),
            "{problems:?}"
        );
    }
}

/// [`SOUND`] with a directory on etcd, of host a and with these lines at the end.
fn on_etcd(candidates: &str, lines: &str) -> String {
    let directory = format!("directory = \"etcd\"\ncandidates = {candidates}");
    SOUND.replace("directory = \"b\"", &directory) + lines
}

#[test]
fn candidates_have_access_to_etcd() {
    let http = "[etcd]\nendpoints = [\"http://10.0.0.1:2379\", \"http://h:1\"]\n";
    let host = parse(&on_etcd("[\"a\", \"b\"]", http)).unwrap().host;
    let access = host.candidacy().unwrap();
    assert_eq!(access.endpoints.len(), 2);
    assert_eq!(access.prefix, "/toroid");
    assert_eq!(host.possible_leaders(), ["a", "b"]);
    assert!(!host.holds_directory());
    let https = "[etcd]\nendpoints = [\"https://[fd00::1]:2379\"]\nprefix = \"/toroid/main\"\n\
                 ca = \"ca.pem\"\ncert = \"a.pem\"\nkey = \"a.key\"\n";
    let host = parse(&on_etcd("[\"a\"]", https)).unwrap().host;
    let access = host.candidacy().unwrap();
    assert_eq!(access.prefix, "/toroid/main");
    assert_eq!(access.key, Some("a.key".into()));

    let follower = parse(&on_etcd("[\"b\"]", "")).unwrap().host;
    assert_eq!(follower.candidacy(), None);
    assert_eq!(follower.possible_leaders(), ["b"]);
    // Ready for a move of the directory, and without an effect yet.
    let ready = on_etcd("[\"a\", \"c\"]", http).replace("\"etcd\"", "\"b\"");
    let host = parse(&ready).unwrap().host;
    assert_eq!(
        (host.candidacy(), host.possible_leaders()),
        (None, vec!["b"])
    );
    assert!(host.etcd.is_some());
    // The next life of an agent reads it as JSON.
    let text = serde_json::to_string(&host).unwrap();
    assert_eq!(serde_json::from_str::<HostConfig>(&text).unwrap(), host);
}

#[test]
fn mistakes_about_etcd_are_reported_with_their_line() {
    let etcd = |lines: &str| format!("[etcd]\n{lines}\n");
    let http = &etcd("endpoints = [\"http://10.0.0.1:2379\"]");
    let bad = [
        (on_etcd("[\"a\"]", ""), 1, "add [etcd] with its endpoints"),
        (on_etcd("[\"b\"]", http), 17, "remove [etcd] here"),
        (on_etcd("[]", http), 7, "there are no candidates"),
        (
            on_etcd("[\"a\", \"c\"]", http),
            7,
            "candidate c is not among",
        ),
        (on_etcd("[\"a\", \"a\"]", http), 7, "named twice"),
        (on_etcd("[\"etcd\"]", http), 7, "cannot be a host"),
        (on_etcd("\"a\"", http), 7, "a list of hosts"),
        (
            SOUND.replace("\"b\"", "\"etcd\"") + http,
            1,
            "no \"candidates\"",
        ),
        (SOUND.replace("\"a\"", "\"etcd\""), 1, "cannot be a host"),
        (SOUND.replace("b = ", "etcd = "), 12, "cannot be a host"),
        (
            on_etcd("[\"a\"]", &etcd("end = []")),
            18,
            "unknown key \"end\" in [etcd]",
        ),
        (on_etcd("[\"a\"]", &etcd("")), 17, "no \"endpoints\""),
        (
            on_etcd("[\"a\"]", &etcd("endpoints = []")),
            18,
            "a list of URLs",
        ),
        (
            on_etcd("[\"a\"]", &etcd("endpoints = \"http://a:1\"")),
            18,
            "a list of URLs",
        ),
        (
            on_etcd("[\"a\"]", &etcd("endpoints = [\"10.0.0.1:2379\"]")),
            18,
            "is no endpoint",
        ),
        (
            on_etcd(
                "[\"a\"]",
                &etcd("endpoints = [\"http://a:1\", \"https://b:1\"]\nca = \"ca\""),
            ),
            18,
            "for all endpoints, or for none",
        ),
        (
            on_etcd("[\"a\"]", &etcd("endpoints = [\"https://a:1\"]")),
            17,
            "https needs \"ca\"",
        ),
        (
            on_etcd("[\"a\"]", &format!("{http}ca = \"ca\"\n")),
            19,
            "for endpoints with https",
        ),
        (
            on_etcd(
                "[\"a\"]",
                &etcd("endpoints = [\"https://a:1\"]\nca = \"ca\"\nkey = \"key\""),
            ),
            20,
            "belong together",
        ),
        (
            on_etcd("[\"a\"]", &format!("{http}prefix = \"toroid/\"\n")),
            19,
            "is no prefix of keys",
        ),
    ];
    for (text, line, words) in bad {
        let problems = parse(&text).unwrap_err();
        let found = problems
            .iter()
            .any(|p| p.line == line && p.message.contains(words));
        assert!(found, "{line} {words}: {problems:?}\n{text}");
    }
}

/// A file that was not changed after a move leads nobody astray, and one that was is obeyed.
#[test]
fn a_file_that_names_a_former_place_is_redirected() {
    let file = parse(SOUND).unwrap().host;
    assert_eq!(file.redirected(None), file);
    let mut directory = Directory::new("2x2x2".parse().unwrap());
    directory.begin_term(FabricId(1), 1);
    directory.relocate("b", ETCD, ["a".into(), "b".into()].into(), 7);
    let there = file.redirected(directory.moved());
    assert_eq!(there.directory, ETCD);
    assert_eq!(there.possible_leaders(), ["a", "b"]);
    // Without access to etcd it follows.
    assert_eq!(there.candidacy(), None);
    assert_eq!(there.redirected(directory.moved()), there);
    // Another list of candidates than that of the move.
    let mut etcd = file.clone();
    (etcd.directory, etcd.candidates) = (ETCD.into(), ["b".into()].into());
    assert_eq!(etcd.redirected(directory.moved()), etcd);
    directory.relocate(ETCD, "a", BTreeSet::new(), 8);
    for before in [&file, &etcd, &there] {
        let now = before.redirected(directory.moved());
        assert!(now.holds_directory() && now.possible_leaders() == ["a"]);
    }
    // One that names neither: an administrator lets another host lead.
    let mut other = file.clone();
    other.directory = "c".into();
    assert_eq!(other.redirected(directory.moved()), other);
}
