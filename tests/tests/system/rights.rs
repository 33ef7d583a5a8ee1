//! Rights of users on a shared agent.

use serde_json::{Value, json};
use tests::cluster::Cluster;
use tests::process::run;
use tests::user::{Tun, User, as_uid};

const NOT_FOUND: i32 = 4;
const EXISTS: i32 = 5;
const DENIED: i32 = 6;

fn members(cluster: &Cluster, domain: &str) -> Vec<String> {
    let info = cluster.ask(&format!("domain show {domain}"));
    let members = info["members"].as_array().expect("a list").iter();
    let place = |member: &Value| member["node"].as_str().expect("text").to_owned();
    members.map(place).collect()
}

#[test]
fn a_domain_obeys_its_owner_and_nobody_else() {
    let (cluster, alice, bob) = (Cluster::up("2x2x1"), User::create(), User::create());
    let (alices, bobs) = (alice.uid().to_string(), bob.uid().to_string());
    cluster
        .toroid_of(&alice, "domain create blue 0,0,0")
        .fails(DENIED, &["0,0,0", &alices, "toroid node chown"]);
    cluster
        .toroid(&format!("node chown 0,0,0 1,0,0 {alices}"))
        .ok();
    cluster.toroid(&format!("node chown 0,1,0 {bobs}")).ok();
    cluster.toroid_of(&alice, "domain create blue 0,0,0").ok();
    let blue = cluster.ask("domain show blue");
    assert_eq!(blue["owner"], json!(alice.uid()));

    for words in [
        "domain grow blue 0,1,0",
        "domain shrink blue 0,0,0",
        "domain rm blue",
        "domain manage blue 0,1,0",
        "domain set blue --public true",
    ] {
        // To him it is no domain, as one that is not there.
        let other = words.replace("blue", "green");
        let unseen = cluster
            .toroid_of(&bob, words)
            .fails(NOT_FOUND, &["no domain is called blue"]);
        let missing = cluster.toroid_of(&bob, &other).fails(NOT_FOUND, &[]);
        assert_eq!(unseen.stderr.replace("blue", "green"), missing.stderr);
    }
    for words in ["node alias 0,0,0 mine", "node consent 0,0,0 -d blue"] {
        cluster
            .toroid_of(&bob, words)
            .fails(DENIED, &["0,0,0", &bobs]);
    }
    for words in ["down", "node chown 0,0,0 0", "domain create x --owner 0"] {
        cluster
            .toroid_of(&bob, words)
            .fails(DENIED, &["administrator"]);
    }
    // He does not even see it.
    cluster
        .toroid_of(&bob, "domain show blue")
        .fails(NOT_FOUND, &["blue"]);
    assert_eq!(
        cluster.toroid_of(&bob, "domain ls --json").ok().json(),
        json!([])
    );
    let nodes = cluster.toroid_of(&bob, "node ls --json").ok().json();
    assert_eq!(nodes[0]["domains"], json!([]));

    cluster.toroid_of(&alice, "domain grow blue 1,0,0").ok();
    cluster.reaches("0,0,0", "1-0-0.blue");
    cluster
        .toroid_of(&alice, "domain grow blue 0,1,0")
        .fails(DENIED, &["0,1,0", "toroid node consent 0,1,0 -d blue"]);
    cluster.toroid_of(&bob, "node consent 0,1,0 -d blue").ok();
    cluster.toroid_of(&alice, "domain grow blue 0,1,0").ok();
    assert_eq!(members(&cluster, "blue").len(), 3);

    // A node's owner takes it out whenever he likes, and it stays out.
    cluster.toroid_of(&bob, "domain shrink blue 0,1,0").ok();
    cluster
        .toroid_of(&alice, "domain grow blue 0,1,0")
        .fails(DENIED, &["consent"]);
    cluster.toroid_of(&alice, "domain rm blue").ok();
}

/// Names, subnets, members, owners and process numbers of others were once in error messages, in
/// `node ls`, in the nodes' hosts files and in the log.
#[test]
fn what_others_have_is_theirs_to_know() {
    let (cluster, alice, bob) = (Cluster::up("2x2x1"), User::create(), User::create());
    cluster
        .toroid(&format!("node chown 0,0,0 1,0,0 {}", alice.uid()))
        .ok();
    cluster
        .toroid(&format!("node chown 0,1,0 {}", bob.uid()))
        .ok();
    cluster
        .toroid_of(&alice, "domain create secret 0,0,0 --subnet 10.70.0.0/24")
        .ok();
    cluster.toroid_of(&alice, "node alias 0,0,0 hidden").ok();

    // A name can be taken once, and addresses too; but that is all he learns.
    cluster
        .toroid_of(&bob, "domain create secret 0,1,0")
        .fails(EXISTS, &["a domain called secret exists already"]);
    let overlaps = cluster.toroid_of(&bob, "domain create wide 0,1,0 --subnet 10.70.0.0/16");
    let overlaps = overlaps.fails(EXISTS, &["subnet 10.70.0.0/16 overlaps one that is in use"]);
    assert!(!overlaps.stderr.contains("secret"), "{overlaps}");
    cluster
        .toroid_of(&alice, "domain create wide 1,0,0 --subnet 10.70.0.0/16")
        .fails(EXISTS, &["overlaps 10.70.0.0/24 of domain secret"]);

    let nodes = cluster.toroid_of(&bob, "node ls --json").ok().json();
    let hidden = json!({
        "id": 0, "place": "0,0,0", "aliases": [], "owner": null, "allocated": true,
        "free": false, "domains": [], "consents": []
    });
    assert_eq!(nodes[0], hidden);
    let his = &nodes.as_array().expect("a list")[2];
    assert_eq!(his["owner"], json!(bob.uid()));
    assert!(his["pid"].is_u64(), "{his}");
    // Members of a domain know its names.
    cluster.toroid_of(&bob, "node consent 0,1,0 -d secret").ok();
    cluster.toroid_of(&alice, "domain grow secret 0,1,0").ok();
    let nodes = cluster.toroid_of(&bob, "node ls --json").ok().json();
    assert_eq!(nodes[0]["aliases"], json!(["hidden"]));
    assert_eq!(nodes[0]["owner"], json!(alice.uid()));
    assert_eq!(nodes[0]["pid"], Value::Null);

    for file in ["nodes/0/hosts", "agent.log"] {
        let mut cat = as_uid(bob.uid(), Tun::Open);
        let cat = cat.arg("cat").arg(cluster.state().join(file));
        run(cat).fails(1, &["Permission denied"]);
    }
    let path = cluster.state().join("nodes/0/hosts");
    let in_node = cluster.exec("0,1,0", &format!("cat {}", path.display()));
    in_node.fails(1, &["Permission denied"]);
    // Its own is that of all its users.
    let own = "setpriv --reuid 1000 --clear-groups cat /etc/hosts";
    let own = cluster.exec("0,1,0", own).ok();
    assert!(own.text().contains("hidden.secret"), "{own}");
}

/// Processes of the former owner once stayed in the node, and in that owner's domains.
#[test]
fn a_node_that_changes_hands_takes_nobody_along() {
    let (cluster, alice, bob) = (Cluster::up("2x1x1"), User::create(), User::create());
    cluster
        .toroid(&format!("node chown 0,0,0 1,0,0 {}", alice.uid()))
        .ok();
    cluster.toroid_of(&alice, "domain create blue *,0,0").ok();
    cluster.toroid_of(&alice, "domain manage blue 1,0,0").ok();
    let (left, _) = cluster.owner("1,0,0");
    cluster
        .toroid(&format!("node chown 1,0,0 {}", alice.uid()))
        .ok();
    assert_eq!(members(&cluster, "blue").len(), 2, "it has changed nothing");
    cluster
        .toroid(&format!("node chown 1,0,0 {}", bob.uid()))
        .ok();
    assert_ne!(left.wait().status, 0);
    let blue = cluster.ask("domain show blue");
    assert_eq!(members(&cluster, "blue"), ["0,0,0"]);
    assert_eq!(blue["managers"], json!([]));
    cluster.toroid_of(&bob, "domain create red 1,0,0").ok();
    cluster.exec("1,0,0", "ip link show red").ok();
}

#[test]
fn a_guest_withdraws_no_consent_but_its_own() {
    let (cluster, alice, bob) = (Cluster::up("3x1x1"), User::create(), User::create());
    cluster
        .toroid(&format!("node chown 1,0,0 {}", alice.uid()))
        .ok();
    cluster
        .toroid(&format!("node chown 2,0,0 {}", bob.uid()))
        .ok();
    cluster.toroid("domain create blue 0,0,0").ok();
    for (user, node) in [(&alice, "1,0,0"), (&bob, "2,0,0")] {
        cluster
            .toroid_of(user, &format!("node consent {node} -d blue"))
            .ok();
    }
    cluster.toroid("domain grow blue 1,0,0").ok();
    cluster
        .toroid_of(&alice, "domain shrink blue 1,0,0 2,0,0")
        .ok();
    let nodes = cluster.ask("node ls");
    assert_eq!(nodes[1]["consents"], json!([]));
    assert_eq!(nodes[2]["consents"], json!(["blue"]));
}

/// In a node any process may be root, or become one user after another.
#[test]
fn nodes_do_not_use_the_control_socket() {
    let cluster = Cluster::up("1x1x1");
    let state = cluster.state();
    let toroid = format!("toroid --state {}", state.display());
    cluster
        .exec("0,0,0", &format!("{toroid} status"))
        .fails(DENIED, &["in nodes", "TOROID_STATE"]);
    let orphan = format!("({toroid} domain create red; true) & wait");
    cluster.shell("0,0,0", &orphan).ok();
    assert_eq!(cluster.ask("domain ls"), json!([]));
    cluster.toroid_in("0,0,0", "status").ok();
}

#[test]
fn whoever_owns_a_node_may_join_a_public_domain() {
    let (cluster, bob) = (Cluster::up("2x1x1"), User::create());
    cluster
        .toroid(&format!("node chown 1,0,0 {}", bob.uid()))
        .ok();
    cluster.toroid("domain create agora 0,0,0 --public").ok();
    cluster.toroid_of(&bob, "domain grow agora 1,0,0").ok();
    cluster.reaches("1,0,0", "0-0-0.agora");
    cluster
        .toroid_of(&bob, "domain shrink agora 0,0,0")
        .fails(DENIED, &["agora"]);
    cluster.toroid_of(&bob, "domain shrink agora 1,0,0").ok();
    cluster.toroid("domain set agora --public false").ok();
    cluster
        .toroid_of(&bob, "domain grow agora 1,0,0")
        .fails(NOT_FOUND, &["agora"]);
}

#[test]
fn limited_members_talk_to_full_ones_only() {
    let cluster = Cluster::up("3x1x1");
    let blue = cluster.domain("blue", &["0,0,0"]);
    cluster
        .toroid("domain grow blue 1,0,0 2,0,0 --limited")
        .ok();
    let limited: Vec<Value> = ["0,0,0", "1,0,0", "2,0,0"]
        .map(|node| blue.member(node)["limited"].clone())
        .into();
    assert_eq!(limited, [json!(false), json!(true), json!(true)]);

    cluster.reaches("1,0,0", "0-0-0.blue");
    cluster.reaches("0,0,0", "2-0-0.blue");
    cluster.cannot_reach("1,0,0", &blue.ipv4("2,0,0"));
    cluster.cannot_reach("2,0,0", &blue.ipv6("1,0,0"));

    let count = |agent: Value, node: &str, reason: &str| {
        let members = agent.as_array().expect("a list").clone();
        let its = members.iter().find(|member| member["node"] == node);
        its.map(|member| member["dropped"][reason].as_u64().unwrap_or_default())
    };
    let ask = || cluster.ask("domain drops blue");
    assert!(count(ask(), "1,0,0", "limited") > Some(0), "{}", ask());
    assert_eq!(count(ask(), "0,0,0", "limited"), Some(0));
    assert_eq!(count(ask(), "0,0,0", "wrong_source"), Some(0));
    let forge = "ip neigh add 10.64.0.9 lladdr 06:00:01:01:00:00 dev blue && \
                 ip link set blue address 06:00:01:07:07:07 && ping -c 3 -i 0.2 -W 1 10.64.0.9";
    cluster.shell("0,0,0", forge).fails_somehow();
    assert!(count(ask(), "0,0,0", "wrong_source") > Some(0), "{}", ask());
    cluster
        .shell("0,0,0", "ip link set blue address 06:00:01:00:00:00")
        .ok();
    // Other users see the drops of their own nodes.
    let alice = User::create();
    cluster
        .toroid_of(&alice, "domain drops blue")
        .fails(NOT_FOUND, &["blue"]);
    cluster.toroid("domain set blue --public true").ok();
    let seen = cluster
        .toroid_of(&alice, "domain drops blue --json")
        .ok()
        .json();
    assert_eq!(seen, json!([]));
    let own = cluster
        .toroid_in("1,0,0", "domain drops blue --json")
        .ok()
        .json();
    assert_eq!(own.as_array().map(Vec::len), Some(1), "{own}");
    assert!(count(own, "1,0,0", "limited") > Some(0));

    let (full, limited) = (cluster.owner("0,0,0"), cluster.owner("1,0,0"));
    for ((owner, key), peers) in [(full, &["1,0,0", "2,0,0"][..]), (limited, &["0,0,0"])] {
        let open = |node: &str| cluster.open(node, &key);
        for node in peers {
            open(node).ok();
        }
        if peers.len() == 1 {
            open("2,0,0").fails_somehow();
        }
        owner.kill();
    }
    cluster.toroid("ping 1,0,0 2,0,0 -d blue").fails_somehow();
    cluster.toroid("explain 0,0,0 1,0,0 -d blue").ok();
    let no = cluster.toroid("explain 1,0,0 2,0,0 -d blue");
    assert_eq!(no.status, DENIED, "{no}");
    assert!(no.text().contains("limited"), "{no}");

    // It stays so when they are named again, and over the agent's end.
    cluster
        .toroid("domain grow blue 1,0,0")
        .fails(EXISTS, &["1,0,0", "limited", "shrink"]);
    cluster.down();
    cluster.toroid("up").ok();
    cluster.cannot_reach("1,0,0", &blue.ipv4("2,0,0"));
    cluster.toroid("domain shrink blue 1,0,0").ok();
    cluster.toroid("domain grow blue 1,0,0").ok();
    cluster.reaches("1,0,0", "2-0-0.blue");
}

#[test]
fn a_manager_grows_and_shrinks_its_domain_from_inside() {
    let cluster = Cluster::up("2x2x1");
    let _blue = cluster.domain("blue", &["0,0,0"]);
    let _grey = cluster.domain("grey", &["1,1,0"]);
    cluster.toroid_in("0,0,0", "domain grow blue 1,0,0").fails(
        DENIED,
        &["0,0,0", "blue", "toroid domain manage blue 0,0,0"],
    );
    cluster.toroid("domain manage blue 0,0,0").ok();
    cluster.toroid_in("0,0,0", "domain grow blue 1,0,0").ok();
    cluster.reaches("0,0,0", "1-0-0.blue");
    cluster
        .toroid_in("0,0,0", "domain grow blue 1,1,0")
        .fails(DENIED, &["1,1,0", "consent"]);
    cluster.toroid_in("0,0,0", "domain shrink blue 1,0,0").ok();
    assert_eq!(members(&cluster, "blue"), ["0,0,0"]);
    for words in [
        "domain rm blue",
        "domain manage blue 1,0,0",
        "domain create red",
        "node chown 1,0,0 0",
        "domain shrink grey 1,1,0",
        "down",
    ] {
        let denied = cluster.toroid_in("0,0,0", words);
        assert!(denied.status != 0, "{words}: {denied}");
    }
    cluster.toroid("domain manage blue 0,0,0 --revoke").ok();
    cluster
        .toroid_in("0,0,0", "domain grow blue 1,0,0")
        .fails(DENIED, &["manage"]);
    assert_eq!(members(&cluster, "blue"), ["0,0,0"]);
    assert_eq!(members(&cluster, "grey"), ["1,1,0"]);
}

#[test]
fn owners_consents_and_managers_outlive_the_agent() {
    let (cluster, bob) = (Cluster::up("2x1x1"), User::create());
    cluster
        .toroid(&format!("node chown 1,0,0 {}", bob.uid()))
        .ok();
    cluster.toroid("domain create blue 0,0,0 --public").ok();
    cluster.toroid("domain manage blue 0,0,0").ok();
    cluster.toroid_of(&bob, "node consent 1,0,0 -d blue").ok();
    let without_pids = || {
        let mut nodes = cluster.ask("node ls");
        for node in nodes.as_array_mut().expect("a list") {
            node.as_object_mut().expect("an object").remove("pid");
        }
        (nodes, cluster.ask("domain ls"))
    };
    let before = without_pids();
    assert_eq!(before.0[1]["owner"], json!(bob.uid()));
    assert_eq!(before.0[1]["consents"], json!(["blue"]));
    cluster.kill_agent();
    cluster.toroid("up").ok();
    assert_eq!(without_pids(), before);
    cluster.toroid("node chown 1,0,0 free").ok();
    assert_eq!(cluster.ask("node ls")[1]["free"], json!(true));
}
