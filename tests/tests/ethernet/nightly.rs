//! Databases, copies and parallel programs, which take long.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use tests::cluster::Cluster;
use tests::process::{eventually, run, run_with};
use tests::user::User;

use crate::files::{some_bytes, write_file};
use crate::mix::{Mix, PAIR};
use crate::ssh::{SSH_OPTIONS, make_key, sshd};

for_each_mix!(
    #[ignore = "takes long: tests/run --nightly"]
    a_database_keeps_its_books_balanced,
    a_store_answers_many_at_once,
    a_tree_of_files_is_copied_and_kept_up_to_date,
    a_message_goes_around_a_ring,
);

/// A directory in which nodes may write.
fn open_directory(cluster: &Cluster, name: &str) -> PathBuf {
    let directory = cluster.files().join(name);
    fs::create_dir(&directory).expect("it is new");
    fs::set_permissions(&directory, Permissions::from_mode(0o777)).expect("it is ours");
    directory
}

/// Where Debian keeps the programs of the newest PostgreSQL.
fn postgresql() -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").expect("PostgreSQL is installed");
    let newest = versions.filter_map(|entry| Some(entry.ok()?.path())).max();
    newest.expect("a version of PostgreSQL").join("bin")
}

fn a_database_keeps_its_books_balanced(mix: Mix) {
    let cluster = Cluster::up("2x1x1");
    let _blue = mix.domain(&cluster, "blue", PAIR);
    let (programs, directory) = (postgresql(), open_directory(&cluster, "postgresql"));
    let (programs, directory) = (programs.display(), directory.display());
    let user = "setpriv --reuid=postgres --regid=postgres --clear-groups --";
    let init = format!("{user} {programs}/initdb -D {directory}/data -A trust -U postgres");
    cluster.exec("0,0,0", &init).ok();
    let allow = format!("echo host all all all trust >> {directory}/data/pg_hba.conf");
    cluster.shell("0,0,0", &allow).ok();
    let serve = format!("{user} {programs}/postgres -D {directory}/data -k {directory} -h *");
    let server = cluster.spawn("0,0,0", &serve);
    server.warns("ready to accept connections");

    let (whom, bench) = ("-h 0-0-0.blue -U postgres", format!("{programs}/pgbench"));
    let fill = format!("{bench} -q -i -s 5 {whom} postgres");
    cluster.exec("1,0,0", &fill).ok();
    let work = format!("{bench} -c 8 -j 2 -T 10 {whom} postgres");
    let work = cluster.exec("1,0,0", &work).ok();
    assert!(
        work.text().contains("number of failed transactions: 0 "),
        "{work}"
    );
    let sums = "select (select sum(abalance) from pgbench_accounts) \
        = all (select sum(delta) from pgbench_history union all select sum(tbalance) from \
        pgbench_tellers union all select sum(bbalance) from pgbench_branches), \
        count(*) > 100 from pgbench_history";
    let psql = format!("psql -At {whom} postgres -c '{sums}'");
    assert_eq!(cluster.shell("1,0,0", &psql).ok().text(), "t|t");
}

fn a_store_answers_many_at_once(mix: Mix) {
    let cluster = Cluster::up("2x1x1");
    let _blue = mix.domain(&cluster, "blue", PAIR);
    let redis = "redis-server --dir /run --protected-mode no --appendonly no";
    let server = cluster.spawn("0,0,0", redis);
    server.says("Ready to accept connections");
    for load in [
        "-n 100000 -c 50 -t set,get,incr,lpush",
        "-n 200000 -c 20 -P 16 -t set,get",
        "-n 5000 -c 20 -d 100000 -t set,get",
    ] {
        let bench = format!("redis-benchmark -h 0-0-0.blue -q {load}");
        let told = cluster.exec("1,0,0", &bench).ok();
        assert!(!told.text().to_lowercase().contains("error"), "{told}");
    }
    let count = cluster.exec("1,0,0", "redis-cli -h 0-0-0.blue get counter:__rand_int__");
    assert_eq!(count.ok().text(), "100000");
}

fn a_tree_of_files_is_copied_and_kept_up_to_date(mix: Mix) {
    let cluster = Cluster::up("2x1x1");
    let _blue = mix.domain(&cluster, "blue", PAIR);
    let there = open_directory(&cluster, "there");
    let module = "use chroot = no\nuid = 0\ngid = 0\nread only = no";
    let text = format!(
        "pid file = /run/rsyncd.pid\n[files]\npath = {}\n{module}\n",
        there.display()
    );
    let configuration = write_file(&cluster, "rsyncd.conf", text.as_bytes());
    let daemon = format!("rsync --daemon --no-detach --config={configuration}");
    let _daemon = cluster.spawn("1,0,0", &daemon);

    let here = cluster.files().join("here");
    fs::create_dir(&here).expect("it is new");
    let write = |name: &str, size| write_file(&cluster, &format!("here/{name}"), &some_bytes(size));
    for number in 0..500 {
        write(&number.to_string(), number * 40);
    }
    write("large", 64 << 20);
    let copy = |options: &str| {
        let here = here.display();
        cluster.exec(
            "0,0,0",
            &format!("rsync {options} {here}/ rsync://1-0-0.blue/files/"),
        )
    };
    eventually("rsync answers", || copy("-rtO").status == 0);
    let differences = || {
        copy("-rnc --delete --itemize-changes")
            .ok()
            .text()
            .to_owned()
    };
    assert_eq!(differences(), "");
    for number in 0..100 {
        write(&number.to_string(), number * 50 + 1);
    }
    fs::remove_file(here.join("200")).expect("it is there");
    write("large", (64 << 20) + 5);
    assert_ne!(differences(), "");
    copy("-rtO --delete").ok();
    assert_eq!(differences(), "");
}

const RING: &str = include_str!("ring.c");

/// Open MPI over TCP, started over ssh.
fn a_message_goes_around_a_ring(mix: Mix) {
    let cluster = Cluster::up("3x1x1");
    let blue = mix.domain(&cluster, "blue", &["0,0,0", "1,0,0", "2,0,0"]);
    let source = write_file(&cluster, "ring.c", RING.as_bytes());
    let ring = cluster.files().join("ring");
    run(Command::new("mpicc")
        .arg("-O1")
        .arg("-o")
        .arg(&ring)
        .arg(source))
    .ok();
    let key = make_key(&cluster, "0,0,0");
    let _servers = ["1,0,0", "2,0,0"].map(|node| sshd(&cluster, node, &key));
    let hosts = ["0,0,0", "1,0,0", "2,0,0"].map(|node| blue.ipv4(node) + ":2");
    let (hosts, ssh, ring) = (
        hosts.join(","),
        format!("ssh {SSH_OPTIONS}"),
        ring.display(),
    );
    let script = format!(
        "exec mpirun --allow-run-as-root --host {hosts} --mca plm_rsh_agent '{ssh}' \
         --mca orte_tmpdir_base /run --mca btl tcp,self --mca btl_tcp_if_include blue \
         --mca oob_tcp_if_include blue {ring}"
    );
    let mut mpirun = cluster.in_node("0,0,0", &["sh", "-c", &script]);
    let told = run(mpirun.stdin(Stdio::null())).ok();
    assert_eq!(told.text(), "around 6");
}

/// The scripts of a section of the handbook.
fn scripts(section: &str) -> String {
    let handbook = include_str!("../../../docs/operating.md");
    let (_, rest) = handbook
        .split_once(section)
        .expect("there is such a section");
    let section = rest.split("\n## ").next().unwrap_or_default();
    let blocks = section.split("```sh\n").skip(1);
    let scripts = blocks.filter_map(|block| Some(block.split_once("```")?.0));
    scripts.collect()
}

/// Programs in nodes could not read the home of the nodes' owner, and no launcher was known to work.
#[test]
#[ignore = "takes long: tests/run --nightly"]
fn a_parallel_program_is_started_by_lines_pasted_from_the_handbook() {
    let (cluster, alice) = (Cluster::up("2x1x1"), User::create());
    let uid = alice.uid().to_string();
    cluster.toroid(&format!("node chown *,*,* {uid}")).ok();
    let home = open_directory(&cluster, "home");
    fs::set_permissions(&home, Permissions::from_mode(0o700)).expect("it is ours");
    chown(&home, Some(alice.uid()), Some(alice.uid())).expect("this is root");
    let mut shell = Command::new("setpriv");
    shell
        .args(["--reuid", &uid, "--regid", &uid, "--clear-groups"])
        .args(["--", "bash", "-e"])
        .env("PATH", cluster.path())
        .env("HOME", &home)
        .env("TOROID_STATE", cluster.state())
        .current_dir(&home);
    let told = run_with(&mut shell, scripts("### Parallel programs\n").as_bytes()).ok();
    let lines = told.text().lines();
    let results: Vec<_> = lines.filter(|line| line.contains("ranks")).collect();
    assert_eq!(results, ["4 ranks, sum 6"; 2], "{told}");
}
