//! Failures of the system: a driver that cannot start, a full state directory, no IPv6, no free
//! connections. Each is reported, changes nothing, and ends with its cause.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::mount::{MsFlags, mount, umount};
use nix::sys::signal::Signal;
use tests::actor::{Actor, Event};
use tests::cluster::{Cluster, leaves_nothing, program};
use tests::process::{eventually, run, send};
use tests::user::User;

const FAILED: i32 = 1;
const EXHAUSTED: i32 = 7;

/// A copy of the driver beside a copy of `toroid`, which starts the driver that it finds there.
fn copy_programs(to: &Path) -> PathBuf {
    for name in ["toroid", "toroid-ethernet"] {
        fs::copy(program(name), to.join(name)).expect("there is room");
    }
    to.join("toroid-ethernet")
}

#[test]
fn a_driver_that_cannot_be_started_again_is_said_and_tried_again() {
    leaves_nothing(|| {
        let cluster = Cluster::down_yet();
        let driver = copy_programs(cluster.files());
        let mut up = Command::new(cluster.files().join("toroid"));
        run(up
            .args(["up", "--torus", "2x1x1"])
            .env("TOROID_STATE", cluster.state())
            .env("TOROID_DATA", cluster.data()))
        .ok();
        let _blue = cluster.domain("blue", &["0,0,0", "1,0,0"]);
        let hidden = cluster.files().join("hidden");
        fs::rename(&driver, &hidden).expect("it is there");
        send(cluster.driver_pid().expect("it runs"), Signal::SIGKILL);
        eventually("the driver's end is noticed", || {
            cluster.driver_pid().is_none()
        });
        cluster
            .toroid("domain create red 0,0,0 1,0,0")
            .fails(FAILED, &["driver", "agent.log"]);
        assert!(cluster.log().contains("cannot restart the Ethernet driver"));
        assert_eq!(cluster.ask("domain ls").as_array().map(Vec::len), Some(1));
        fs::rename(&hidden, &driver).expect("it is there");
        eventually("the driver is back", || cluster.driver_pid().is_some());
        // Packets are lost until it has opened the interfaces.
        eventually("members reach each other", || {
            let ping = cluster.exec("0,0,0", "ping -c 1 -W 1 1-0-0.blue");
            ping.status == 0
        });
        let _red = cluster.domain("red", &["0,0,0", "1,0,0"]);
        cluster.reaches("0,0,0", "1-0-0.red");
    });
}

/// A directory on a file system of its own, which is small.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn at(place: PathBuf, size: &str) -> Self {
        fs::create_dir(&place).expect("it is new");
        let none = None::<&str>;
        let options = format!("size={size},mode=0755");
        let options = Some(options.as_str());
        mount(none, &place, Some("tmpfs"), MsFlags::empty(), options).expect("we are root");
        SmallDisk(place)
    }

    fn fill(&self) -> PathBuf {
        let filler = self.0.join("filler");
        // Writes as much as there is room for, and then fails.
        let _ = fs::write(&filler, vec![0; 16 << 20]);
        filler
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = umount(&self.0);
    }
}

#[test]
fn a_full_state_directory_stops_a_change_as_a_whole() {
    leaves_nothing(|| {
        let cluster = Cluster::down_yet();
        let disk = SmallDisk::at(cluster.state(), "256k");
        cluster.toroid("up --torus 2x1x1").ok();
        let _blue = cluster.domain("blue", &["0,0,0", "1,0,0"]);
        let filler = disk.fill();
        let names = (0..40).map(|n| format!("full{n}"));
        // The files have some room left in their last blocks.
        let refused = names
            .map(|name| cluster.toroid(&format!("domain create {name} 0,0,0 1,0,0")))
            .find(|outcome| outcome.status != 0)
            .expect("a disk cannot take names without end");
        refused.fails(FAILED, &["cannot write", "make room"]);
        cluster.reaches("0,0,0", "1-0-0.blue");
        fs::remove_file(filler).expect("it is there");
        let _red = cluster.domain("red", &["0,0,0", "1,0,0"]);
        cluster.reaches("0,0,0", "1-0-0.red");
        cluster.down();
    });
}

#[test]
fn a_full_data_disk_stops_a_change_as_a_whole() {
    leaves_nothing(|| {
        let cluster = Cluster::down_yet();
        let disk = SmallDisk::at(cluster.data(), "4m");
        cluster.toroid("up --torus 2x1x1").ok();
        let blue = cluster.domain("blue", &["0,0,0", "1,0,0"]);
        let filler = disk.fill();
        let names = (0..1000).map(|n| format!("full{n}"));
        // The file has some room left in itself.
        let (name, refused) = names
            .map(|name| {
                (
                    name.clone(),
                    cluster.toroid(&format!("domain create {name} 0,0,0")),
                )
            })
            .find(|(_, outcome)| outcome.status != 0)
            .expect("a disk cannot take domains without end");
        refused.fails(EXHAUSTED, &["cannot write the directory", "make room"]);
        cluster
            .toroid(&format!("domain show {name}"))
            .fails(4, &[&name]);
        cluster
            .exec("0,0,0", &format!("ip link show {name}"))
            .fails_somehow();
        cluster
            .toroid("domain shrink blue 1,0,0")
            .fails(EXHAUSTED, &["make room"]);
        assert_eq!(blue.show()["members"].as_array().map(Vec::len), Some(2));
        cluster.reaches("0,0,0", "1-0-0.blue");

        fs::remove_file(filler).expect("it is there");
        blue.shrink(&["1,0,0"]);
        let _red = cluster.domain("red", &["0,0,0", "1,0,0"]);
        let before = cluster.ask("domain ls");
        cluster.down();
        cluster.toroid("up").ok();
        assert_eq!(cluster.ask("domain ls"), before);
        cluster.down();
    });
}

#[test]
fn a_node_without_ipv6_has_ipv4() {
    let cluster = Cluster::up("2x1x1");
    let off = "echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6";
    cluster.shell("0,0,0", off).ok();
    let blue = cluster.domain("blue", &["0,0,0", "1,0,0"]);
    let addresses = cluster.exec("0,0,0", "ip -6 address show blue").ok();
    assert_eq!(addresses.text(), "", "IPv6 is off");
    let peer = blue.ipv4("1,0,0");
    cluster.reaches("0,0,0", &peer);
}

#[test]
fn who_takes_all_places_at_the_agent_leaves_some_to_its_administrator() {
    let cluster = Cluster::up("1x1x1");
    let user = User::create();
    let mut greedy = user.command("actor");
    let socket = cluster.state().join("agent.sock");
    let mut greedy = Actor::start(greedy.arg("hold").arg(socket).arg("400"), "hold");
    assert_eq!(greedy.event(), Event::Ready);
    let mut ask = user.command("toroid");
    ask.arg("--state").arg(cluster.state()).arg("status");
    run(&mut ask).fails_somehow();
    cluster.toroid("status").ok();
    drop(greedy.kill());
}
