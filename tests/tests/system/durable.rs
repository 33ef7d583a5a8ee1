//! Domains outlive their agent, however it ends.

use serde_json::{Value, json};
use tests::cluster::{Cluster, leaves_nothing};

/// An agent with a bit of everything.
fn furnished() -> Cluster {
    let cluster = Cluster::up("2x2x1");
    let blue = cluster.domain("blue", &["*,*,0"]);
    blue.shrink(&["0,1,0"]);
    cluster
        .toroid("domain create red 0,0,0 1,0,0 --mtu 1500")
        .ok();
    let gone = cluster.domain("gone", &["0,0,0"]);
    gone.remove();
    cluster.toroid("node alias 1,1,0 db").ok();
    cluster
}

fn aliases(cluster: &Cluster) -> Value {
    cluster.ask("node ls")[3]["aliases"].clone()
}

#[test]
fn domains_come_back_as_they_were() {
    leaves_nothing(|| {
        let cluster = furnished();
        let before = cluster.ask("domain ls");
        for end in ["kill", "down"] {
            match end {
                "kill" => cluster.kill_agent(),
                _ => cluster.down(),
            }
            cluster.toroid("up").ok();
            assert_eq!(cluster.ask("domain ls"), before, "after {end}");
            assert_eq!(aliases(&cluster), json!(["db"]));
            assert_eq!(cluster.status()["torus"], "2x2x1");
            cluster.reaches("0,0,0", "db.blue");
            cluster.reaches("1,0,0", "0-0-0.red");
            cluster.existing("blue").shuts_out("0,1,0", "0,0,0");
            cluster.toroid("ping 0,0,0 1,1,0 -d blue").ok();
        }
        // The next event is newer than all before.
        cluster.toroid("domain shrink blue 1,1,0").ok();
        assert_eq!(cluster.ask("domain show blue")["epoch"], 3);
        let next = cluster.domain("next", &["0,0,0"]).show();
        assert_eq!((&next["id"], &next["epoch"]), (&json!(4), &json!(1)));
        cluster.down();
    });
}

#[test]
fn a_directory_belongs_to_its_torus() {
    leaves_nothing(|| {
        let cluster = furnished();
        cluster.down();
        cluster
            .toroid("up --torus 2x2x2")
            .fails(5, &["2x2x1", "2x2x2", "--torus", "--data", "--fresh"]);
        cluster.toroid("status").fails(3, &["no agent"]);
        cluster.toroid("up --torus 2x2x2 --fresh").ok();
        assert_eq!(cluster.ask("domain ls"), json!([]));
        assert_eq!(cluster.status()["torus"], "2x2x2");
        let data = cluster.status()["data"].as_str().expect("text").to_owned();
        let old = std::path::Path::new(&data).join("directory.redb.old-1");
        assert!(old.is_file(), "{data} keeps the old one");
        cluster.down();
    });
}

#[test]
fn a_damaged_directory_is_said_and_left_alone() {
    let cluster = furnished();
    let data = cluster.status()["data"].as_str().expect("text").to_owned();
    cluster.down();
    let file = std::path::Path::new(&data).join("directory.redb");
    std::fs::write(&file, "not a directory").expect("it is ours");
    cluster
        .toroid("up")
        .fails(1, &["directory.redb", "--fresh", "--data"]);
    assert_eq!(
        std::fs::read(&file).expect("it is there"),
        b"not a directory"
    );
    cluster.toroid("up --fresh").ok();
}

#[test]
fn agents_of_two_state_directories_share_no_data() {
    let cluster = furnished();
    let other = cluster.files().join("other");
    let other = other.to_str().expect("UTF-8");
    cluster
        .toroid(&format!("up --torus 1x1x1 --state {other}"))
        .ok();
    assert_eq!(
        cluster.ask(&format!("domain ls --state {other}")),
        json!([])
    );
    cluster.toroid(&format!("down --state {other}")).ok();
}
