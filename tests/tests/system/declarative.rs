//! Saying what shall be, once or many times.

use tests::cluster::Cluster;

const NOT_FOUND: i32 = 4;
const EXISTS: i32 = 5;

#[test]
fn a_script_may_run_twice() {
    let cluster = Cluster::up("2x2x1");
    let toroid = |words: &str| cluster.toroid(&words.split(' ').collect::<Vec<_>>());
    for _ in 0..2 {
        toroid("domain create blue 0,0,0 1,0,0 --mtu 1500 --may-exist").ok();
    }
    let blue = cluster.ask(&["domain", "show", "blue"]);
    assert_eq!((&blue["size"], &blue["mtu"]), (&2.into(), &1500.into()));

    toroid("domain grow blue 0,1,0").ok();
    toroid("domain create blue 0,0,0 --may-exist").ok();
    toroid("domain create blue 1,1,0 --may-exist").fails(EXISTS, &["1,1,0", "domain grow"]);
    let other = ["--mtu 9000", "--subnet 10.64.9.0/24"];
    for option in other {
        let words = format!("domain create blue 0,0,0 --may-exist {option}");
        toroid(&words).fails(EXISTS, &["blue", "and not"]);
    }

    for _ in 0..2 {
        toroid("domain shrink blue 0,1,0 --if-exists").ok();
    }
    toroid("domain shrink blue 0,1,0 1,0,0 --if-exists").ok();
    let blue = cluster.ask(&["domain", "show", "blue"]);
    assert_eq!((&blue["size"], &blue["epoch"]), (&1.into(), &3.into()));
    toroid("domain shrink blue 7,0,0 --if-exists").fails(NOT_FOUND, &["7,0,0"]);

    for _ in 0..2 {
        toroid("domain rm blue --if-exists").ok();
    }
    toroid("domain shrink blue 0,0,0 --if-exists").ok();
    toroid("domain rm blue").fails(NOT_FOUND, &["blue"]);
}
