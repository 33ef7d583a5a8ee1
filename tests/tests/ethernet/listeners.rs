//! Datagrams to a group reach each member that has joined it, once, during changes as well.

use std::fs;
use std::path::PathBuf;

use tests::actor::Event;
use tests::cluster::{Cluster, leaves_nothing};
use tests::process::{Outcome, Running, eventually};

use crate::mix::Mix;
use crate::survival::{received, sent};

for_each_mix!(a_group_loses_nothing_while_others_come_and_go);

const GROUP: &str = "239.1.2.3";

/// `hear GROUP PORT` joins a group and sends back all datagrams for the port.
const HEAR: &str = r#"
import socket, struct, sys
group, interface = sys.argv[1], socket.if_nametoindex("blue")
if ":" in group:
    s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    joined = socket.inet_pton(socket.AF_INET6, group) + struct.pack("@I", interface)
    s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, joined)
else:
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    joined = struct.pack("@4s4si", socket.inet_aton(group), bytes(4), interface)
    s.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, joined)
s.bind((group, int(sys.argv[2])))
print("ready", flush=True)
while True:
    s.sendto(*s.recvfrom(100))
"#;

/// `say GROUP HEARERS PATIENCE COUNT MARK` sends datagrams with a mark to a group, and each when so many have sent back
/// the one before. Without a count it goes on until its input ends.
const SAY: &str = r#"
import select, socket, struct, sys
group, hearers, patience, count, mark = sys.argv[1:]
interface = socket.if_nametoindex("blue")
if ":" in group:
    s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, interface)
else:
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    by = struct.pack("@4s4si", bytes(4), bytes(4), interface)
    s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, by)
s.settimeout(float(patience))
said = 0
def goes_on():
    if int(count) > 0:
        return said < int(count)
    return not select.select([sys.stdin], [], [], 0)[0]
while goes_on():
    datagram = f"{mark} {said}".encode()
    s.sendto(datagram, (group, 7000))
    heard = set()
    while len(heard) < int(hearers):
        answer, address = s.recvfrom(100)
        if answer == datagram:
            heard.add(address[0])
    if said == 0:
        print("first", flush=True)
    said += 1
print("said", said)
"#;

/// A mark that no story looks for.
const NO_MARK: &str = "unmarked";

/// Longer than any machine takes.
const FOR_EVER: &str = "30";

struct Programs<'a> {
    cluster: &'a Cluster,
    hear: PathBuf,
    say: PathBuf,
}

impl<'a> Programs<'a> {
    fn new(cluster: &'a Cluster) -> Self {
        let [hear, say] = [("hear.py", HEAR), ("say.py", SAY)].map(|(name, text)| {
            let file = cluster.files().join(name);
            fs::write(&file, text).expect("there is room");
            file
        });
        Programs { cluster, hear, say }
    }

    /// Lets a node join a group.
    #[track_caller]
    fn hear(&self, node: &str, group: &str) -> Running {
        self.hear_at(node, group, 7000)
    }

    #[track_caller]
    fn hear_at(&self, node: &str, group: &str, port: u16) -> Running {
        let words = format!("/usr/bin/python3 {} {group} {port}", self.hear.display());
        let hearer = self.cluster.spawn(node, &words);
        hearer.says("ready");
        hearer
    }

    fn words(&self, arguments: &str) -> String {
        format!("/usr/bin/python3 {} {arguments}", self.say.display())
    }

    /// Lets `0,0,0` say something.
    fn say(&self, arguments: &str) -> Outcome {
        self.cluster.exec("0,0,0", &self.words(arguments))
    }
}

/// A datagram is sent once for all its receivers.
fn a_group_loses_nothing_while_others_come_and_go(mix: Mix) {
    let cluster = Cluster::up("4x1x1");
    let blue = mix.domain(&cluster, "blue", &["0,0,0", "1,0,0", "2,0,0"]);
    let programs = Programs::new(&cluster);
    let _hearers = ["1,0,0", "2,0,0"].map(|node| programs.hear(node, GROUP));
    let endless = programs.words(&format!("{GROUP} 2 {FOR_EVER} 0 {NO_MARK}"));
    let mut stream = cluster.spawn("0,0,0", &endless);
    stream.says("first");
    for _ in 0..5 {
        blue.grow(&["3,0,0"]);
        // It listens, and says nothing.
        let _another = programs.hear_at("3,0,0", GROUP, 7001);
        blue.shrink(&["3,0,0"]);
    }
    drop(stream.stdin());
    assert!(stream.wait().ok().text().contains("said"));

    let packets = || sent(&cluster, "0,0,0", "packets");
    let before = packets();
    let count = 200;
    programs
        .say(&format!("{GROUP} 2 {FOR_EVER} {count} {NO_MARK}"))
        .ok();
    // Its kernel may have sent a few of its own.
    assert!((count..count * 3 / 2).contains(&(packets() - before)));
}

/// In each version of IGMP and MLD.
#[test]
fn who_has_not_joined_a_group_does_not_hear_it() {
    leaves_nothing(|| {
        let cluster = Cluster::up("4x1x1");
        let _blue = Mix::Mixed.domain(&cluster, "blue", &["0,0,0", "1,0,0", "2,0,0", "3,0,0"]);
        let programs = Programs::new(&cluster);
        for (group, version) in [
            ("239.1.2.3", "ipv4/conf/blue/force_igmp_version 3"),
            ("239.1.2.2", "ipv4/conf/blue/force_igmp_version 2"),
            ("239.1.2.1", "ipv4/conf/blue/force_igmp_version 1"),
            ("ff15::2", "ipv6/conf/blue/force_mld_version 2"),
            ("ff15::1", "ipv6/conf/blue/force_mld_version 1"),
        ] {
            let (path, number) = version.split_once(' ').expect("two words");
            let set = format!("echo {number} > /proc/sys/net/{path}");
            cluster.shell("1,0,0", &set).ok();
            let _hearer = programs.hear("1,0,0", group);
            eventually("it is known who has joined", || {
                let before = received(&cluster, "3,0,0");
                // When the second is heard, the first has reached all that it reaches.
                programs
                    .say(&format!("{group} 1 {FOR_EVER} 2 {NO_MARK}"))
                    .ok();
                received(&cluster, "3,0,0") == before
            });
            let mark = "only-who-has-joined";
            let other = cluster.ready_actor("3,0,0", &format!("sniff blue {mark}"));
            programs
                .say(&format!("{group} 1 {FOR_EVER} 50 {mark}"))
                .ok();
            let heard = Event::last(other.end());
            let is_quiet = matches!(heard, Event::Frames { marked: 0, .. });
            assert!(is_quiet, "{version}: {heard:?}");
        }
    });
}

/// The next driver does not know the members of groups, and brings datagrams of groups to all
/// nodes.
#[test]
fn who_has_joined_hears_another_driver_too() {
    leaves_nothing(|| {
        let cluster = Cluster::up("3x1x1");
        let _blue = Mix::Mixed.domain(&cluster, "blue", &["0,0,0", "1,0,0", "2,0,0"]);
        let programs = Programs::new(&cluster);
        let _hearer = programs.hear("1,0,0", GROUP);
        programs
            .say(&format!("{GROUP} 1 {FOR_EVER} 1 {NO_MARK}"))
            .ok();
        cluster.kill_driver();
        // Of two it knows one only that has joined.
        let _another = programs.hear("2,0,0", GROUP);
        eventually("both hear", || {
            let said = programs.say(&format!("{GROUP} 2 1 1 {NO_MARK}"));
            said.status == 0
        });
        programs
            .say(&format!("{GROUP} 2 {FOR_EVER} 50 {NO_MARK}"))
            .ok();
    });
}
