//! An ordinary user, with nothing but an open /dev/net/tun.

use tests::actor::Event;
use tests::cluster::{Cluster, leaves_nothing};
use tests::leftovers::has_ended;
use tests::process::run;
use tests::user::{Tun, User};

#[test]
fn an_ordinary_user_has_it_all() {
    leaves_nothing(|| {
        let cluster = Cluster::of_user(User::create());
        let up = cluster.toroid("up --torus 2x2x1").ok();
        assert!(up.stderr.contains("not against malice"), "it says so: {up}");
        let status = cluster.toroid("status").ok();
        assert!(
            status.text().contains("not against malice"),
            "it says so: {status}"
        );
        assert_eq!(cluster.status()["rootless"], true);

        let blue = cluster.domain("blue", &["0,0,0", "1,1,0"]);
        assert_ne!(blue.show()["owner"], 0);
        for family in ["-4", "-6"] {
            cluster.reaches("0,0,0", &format!("{family} 1-1-0.blue"));
        }
        blue.shuts_out("1,0,0", "1,1,0");
        blue.grow(&["1,0,0"]);
        cluster.reaches("1,0,0", "1-1-0.blue");
        blue.shrink(&["1,0,0"]);
        blue.shuts_out("1,0,0", "1,1,0");
        cluster.toroid("ping 0,0,0 1,1,0 -d blue").ok();

        let server = cluster.spawn("0,0,0", "iperf3 -s -1 --forceflush");
        server.says("listening");
        cluster.exec("1,1,0", "iperf3 -c 0-0-0.blue -n 20M").ok();
        server.wait().ok();

        let store = cluster.store("0,0,0", "");
        cluster.exec("1,1,0", "toroid-kv set key value").ok();
        assert_eq!(
            cluster.exec("1,1,0", "toroid-kv get key").ok().stdout,
            b"value"
        );
        store.kill();

        let (pids, namespaces) = (cluster.pids(), cluster.namespaces());
        cluster.down();
        assert!(pids.into_iter().all(has_ended));
        namespaces.assert_gone();
    });
}

#[test]
fn a_users_nodes_outlive_the_agent() {
    leaves_nothing(|| {
        let cluster = Cluster::of_user(User::create());
        cluster.toroid("up --torus 2x1x1").ok();
        let _blue = cluster.domain("blue", &["*,0,0"]);
        let (pids, namespaces) = (cluster.pids(), cluster.namespaces());
        let nodes = cluster.node_pids();
        cluster.kill_agent();
        cluster.toroid("up").ok();
        assert_eq!(cluster.node_pids(), nodes);
        cluster.reaches("0,0,0", "1-0-0.blue");
        cluster.toroid("domain shrink blue 0,0,0").ok();
        cluster.toroid("domain grow blue 0,0,0").ok();
        cluster.reaches("0,0,0", "1-0-0.blue");
        cluster.kill_agent();
        cluster.down();
        assert!(pids.iter().all(|pid| has_ended(*pid)));
        namespaces.assert_gone();
    });
}

#[test]
fn without_an_open_tun_device_members_are_stacks_and_it_says_what_to_do() {
    let user = User::create();
    let state = user.home().join("state");
    let mut up = user.command_with(Tun::Missing, "toroid");
    let outcome = run(up.args(["up", "--torus", "1x1x1", "--state"]).arg(&state));
    // The home directory of this user is root's, so is its state directory.
    outcome.fails(6, &[state.to_str().expect("UTF-8"), "--state"]);

    let cluster = Cluster::of_user(user);
    for (tun, remedy) in [(Tun::Missing, "modprobe tun"), (Tun::Closed, "chmod 0666")] {
        let mut up = cluster.command_with(tun, "toroid");
        let outcome = run(up.args(["up", "--torus", "2x1x1"])).ok();
        for words in ["no TAPs", "/dev/net/tun", remedy] {
            assert!(outcome.text().contains(words), "{outcome}");
        }
        let blue = cluster.domain("blue", &["*,0,0"]);
        let server = cluster.ready_actor("0,0,0", "stack blue echo 7");
        let to = blue.ipv4("0,0,0");
        let answer = cluster.exec("1,0,0", &format!("actor stack blue ask {to} 7"));
        assert_eq!(Event::last(answer), Event::Answer { same: true });
        blue.remove();
        drop(server);
        cluster.down();
    }
    cluster.toroid("up --torus 2x1x1 --no-ethernet").ok();
    let _blue = cluster.domain("blue", &["*,0,0"]);
    cluster.toroid("ping 0,0,0 1,0,0").ok();
}

#[test]
fn the_runtime_directory_is_the_place_of_its_state() {
    leaves_nothing(|| {
        let cluster = Cluster::of_user(User::create());
        let toroid = |words: &str| {
            let mut command = cluster.command("toroid");
            command.env_remove("TOROID_STATE");
            command.env("XDG_RUNTIME_DIR", cluster.files());
            run(command.args(words.split(' ')))
        };
        toroid("up --torus 1x1x1").ok();
        let state = cluster.files().join("toroid");
        let status = toroid("status --json").ok().json();
        assert_eq!(status["state"].as_str(), state.to_str());
        // It can be named as well.
        let named = format!("status --state {}", state.display());
        run(cluster.command("toroid").args(named.split(' '))).ok();
        toroid("down").ok();
    });
}

#[test]
fn without_a_place_for_its_state_it_asks_for_one() {
    let user = User::create();
    let mut up = user.command("toroid");
    let outcome = run(up
        .arg("up")
        .env_remove("TOROID_STATE")
        .env_remove("XDG_RUNTIME_DIR"));
    outcome.fails(2, &["XDG_RUNTIME_DIR", "--state", "TOROID_STATE"]);
}

/// It once removed nodes from their domains for a user that could not use them.
#[test]
fn an_ordinary_users_agent_gives_nothing_to_others() {
    let cluster = Cluster::of_user(User::create());
    cluster.toroid("up --torus 2x1x1").ok();
    let blue = cluster.domain("blue", &["*,0,0"]);
    for change in [
        "node chown 0,0,0 nobody",
        "domain set blue --owner nobody",
        "domain create red --owner nobody",
    ] {
        let words = ["the agent serves only its user", "sudo toroid up"];
        cluster.toroid(change).fails(6, &words);
    }
    assert_eq!(blue.members().len(), 2);
    let own = blue.show()["owner"].to_string();
    cluster
        .toroid(&format!("domain set blue --owner {own}"))
        .ok();
    cluster.toroid(&format!("node chown 0,0,0 {own}")).ok();
}
