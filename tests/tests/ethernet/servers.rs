//! Servers and their clients: ssh, nginx and memcached.

use std::fs;

use tests::cluster::Cluster;
use tests::process::eventually;
use tests::software::nginx;

use crate::files::{checksum, some_bytes, write_file};
use crate::mix::{Mix, PAIR};
use crate::ssh::{SSH_OPTIONS, make_key, sshd};

for_each_mix!(
    commands_and_files_go_through_ssh,
    pages_are_served_to_many_at_once,
    a_cache_keeps_what_it_is_given,
);

fn commands_and_files_go_through_ssh(mix: Mix) {
    let cluster = Cluster::up("2x1x1");
    let _blue = mix.domain(&cluster, "blue", PAIR);
    let key = make_key(&cluster, "0,0,0");
    let _sshd = sshd(&cluster, "1,0,0", &key);
    for family in ["-4", "-6"] {
        let ssh = format!("ssh {family} {SSH_OPTIONS} root@1-0-0.blue hostname; id -u");
        let said = cluster.exec("0,0,0", &ssh).ok();
        assert_eq!(said.text(), "1-0-0\n0", "{said}");
    }
    let file = write_file(&cluster, "file", &some_bytes(8 << 20));
    let scp = format!("scp -q {SSH_OPTIONS}");
    cluster
        .exec("0,0,0", &format!("{scp} {file} root@1-0-0.blue:/run/there"))
        .ok();
    cluster
        .exec(
            "0,0,0",
            &format!("{scp} root@1-0-0.blue:/run/there /run/back"),
        )
        .ok();
    let sent = checksum(&cluster, "0,0,0", &file);
    assert_eq!(checksum(&cluster, "1,0,0", "/run/there"), sent);
    assert_eq!(checksum(&cluster, "0,0,0", "/run/back"), sent);
}

fn pages_are_served_to_many_at_once(mix: Mix) {
    let cluster = Cluster::up("2x1x1");
    let _blue = mix.domain(&cluster, "blue", PAIR);
    let pages = cluster.files().join("pages");
    fs::create_dir(&pages).expect("it is new");
    let large = write_file(&cluster, "pages/large", &some_bytes(8 << 20));
    write_file(&cluster, "pages/index.html", b"from a node");
    write_file(&cluster, "pages/some", &some_bytes(100_000));
    let _nginx = nginx(&cluster, "0,0,0", &pages);
    let curl = "curl --silent --show-error --fail";
    let page = format!("{curl} http://0-0-0.blue/");
    eventually("nginx answers", || cluster.exec("1,0,0", &page).status == 0);
    assert_eq!(cluster.exec("1,0,0", &page).ok().text(), "from a node");
    for family in ["-4", "-6"] {
        let get = format!("{curl} {family} -o /run/large http://0-0-0.blue/large");
        cluster.exec("1,0,0", &get).ok();
        assert_eq!(
            checksum(&cluster, "1,0,0", "/run/large"),
            checksum(&cluster, "0,0,0", &large)
        );
    }
    for path in ["", "some"] {
        let wrk = format!("wrk -t 2 -c 32 -d 1 http://0-0-0.blue/{path}");
        let told = cluster.exec("1,0,0", &wrk).ok();
        for wrong in ["Socket errors", "Non-2xx"] {
            assert!(!told.text().contains(wrong), "{told}");
        }
        let requests = told
            .text()
            .lines()
            .find(|line| line.contains("requests in"));
        let count = requests.and_then(|line| line.split_whitespace().next()?.parse().ok());
        assert!(count > Some(100u64), "{told}");
    }
}

fn a_cache_keeps_what_it_is_given(mix: Mix) {
    let cluster = Cluster::up("2x1x1");
    let _blue = mix.domain(&cluster, "blue", PAIR);
    let _memcached = cluster.spawn("0,0,0", "memcached -u nobody -I 4m");
    let servers = "--servers=0-0-0.blue:11211";
    for (name, size) in [("small", 100), ("middle", 20_000), ("large", 3 << 20)] {
        let file = write_file(&cluster, name, &some_bytes(size));
        let copy = format!("memccp {servers} {file}");
        eventually("memcached answers", || {
            cluster.exec("1,0,0", &copy).status == 0
        });
        let cat = format!("memccat {servers} --file=/run/{name} {name}");
        cluster.exec("1,0,0", &cat).ok();
        let got = checksum(&cluster, "1,0,0", &format!("/run/{name}"));
        assert_eq!(got, checksum(&cluster, "0,0,0", &file), "{name}");
    }
    for test in ["get", "set"] {
        let load = format!("memcslap {servers} --concurrency=8 --execute-number=200 --test={test}");
        cluster.exec("1,0,0", &load).ok();
    }
    let stats = cluster.exec("1,0,0", &format!("memcstat {servers}")).ok();
    assert!(stats.text().contains("get_hits"), "{stats}");
}
