//! Frames that are not for a domain are not in it.
//!
//! Raw sockets listen at every interface. A story says which of them hear a mark; that they would
//! is shown by those that do, in the sender's own domain, or once a check is left out.

use tests::actor::{Actor, Event};
use tests::cluster::{Cluster, Domain};

use crate::mix::Mix;

for_each_mix!(
    a_storm_in_one_domain_is_not_heard_in_others,
    forged_frames_are_heard_nowhere,
);

/// In every frame of a storm.
const MARK: &str = "this-belongs-to-blue";

/// Raw sockets at the interfaces of a domain.
struct Listeners<'a> {
    domain: Domain<'a>,
    sockets: Vec<(String, Actor)>,
}

/// Frames that one of the sockets received.
#[derive(Debug)]
struct Heard {
    node: String,
    /// How many frames of a storm.
    marked: u64,
    /// Sources of frames that are no members.
    strangers: Vec<String>,
}

impl<'a> Listeners<'a> {
    fn start(cluster: &Cluster, domain: Domain<'a>, name: &str, nodes: &[&str]) -> Self {
        let listen = |node: &&str| {
            let socket = cluster.ready_actor(node, &format!("sniff {name} {MARK}"));
            ((*node).to_owned(), socket)
        };
        let sockets = nodes.iter().map(listen).collect();
        Listeners { domain, sockets }
    }

    fn all_hear_something(&self) {
        for (_, socket) in &self.sockets {
            socket.reports(&Event::First);
        }
    }

    fn end(self) -> Vec<Heard> {
        let members = self.domain.members();
        let is_member = |mac: &String| members.iter().any(|member| member["mac"] == **mac);
        let heard = |(node, socket): (String, Actor)| {
            let Event::Frames { marked, sources } = Event::last(socket.end()) else {
                panic!("{node} does not listen");
            };
            let strangers = sources.into_iter().filter(|mac| !is_member(mac));
            Heard {
                node,
                marked,
                strangers: strangers.collect(),
            }
        };
        self.sockets.into_iter().map(heard).collect()
    }
}

/// Three domains, and raw sockets at all interfaces but the sender's, `0,0,0` in blue. Node
/// `1,1,0` is in all of them, so that its own kernel could mix them up, too.
struct Neighbourhood<'a> {
    cluster: &'a Cluster,
    blue: Listeners<'a>,
    others: [Listeners<'a>; 2],
}

impl<'a> Neighbourhood<'a> {
    fn new(mix: Mix, cluster: &'a Cluster) -> Self {
        let [in_blue, in_red, in_green] = [
            ["0,0,0", "1,0,0", "1,1,0"],
            ["0,1,0", "1,1,0", "2,0,0"],
            ["0,0,0", "1,1,0", "2,1,0"],
        ];
        let blue = mix.domain(cluster, "blue", &in_blue);
        let red = mix.domain(cluster, "red", &in_red);
        let green = mix.domain(cluster, "green", &in_green);
        Neighbourhood {
            cluster,
            blue: Listeners::start(cluster, blue, "blue", &in_blue[1..]),
            others: [
                Listeners::start(cluster, red, "red", &in_red),
                Listeners::start(cluster, green, "green", &in_green),
            ],
        }
    }

    /// Sends some frames from the sender.
    fn send(&self, what: &str) {
        self.cluster.actor("0,0,0", what).end().ok();
    }

    /// Ends it, and returns the frames received in blue; the other domains have received none.
    #[track_caller]
    fn end(self) -> Vec<Heard> {
        for heard in self.others.into_iter().flat_map(Listeners::end) {
            let is_quiet = heard.marked == 0 && heard.strangers.is_empty();
            assert!(is_quiet, "{} in another domain: {heard:?}", heard.node);
        }
        self.blue.end()
    }
}

fn a_storm_in_one_domain_is_not_heard_in_others(mix: Mix) {
    let cluster = Cluster::up("3x2x1");
    let neighbourhood = Neighbourhood::new(mix, &cluster);
    let storm = cluster.actor("0,0,0", &format!("storm blue {MARK}"));
    neighbourhood.blue.all_hear_something();
    // Programs that search for neighbours, beside the storm.
    for search in [
        "ping -b -f -c 50 -W 1 10.64.0.255",
        "ping -6 -f -c 50 -W 1 ff02::1%blue",
        "ping -c 1 -W 1 10.64.0.200",
        "udhcpc -i blue -f -n -q -t 1 -T 1 -s /bin/true",
    ] {
        // An answer is not required.
        let _ = cluster.exec("0,0,0", search);
    }
    storm.end().ok();
    for heard in neighbourhood.end() {
        assert!(heard.marked > 1000, "{heard:?}");
        assert!(heard.strangers.is_empty(), "{heard:?}");
    }
}

/// Sends frames that no interface should receive: from the addresses of others, and to addresses
/// outside of the domain.
fn forge(neighbourhood: &Neighbourhood<'_>) {
    let (blue, red) = (neighbourhood.blue.domain, neighbourhood.others[0].domain);
    let (own, member) = (blue.mac("0,0,0"), blue.mac("1,0,0"));
    let (both, stranger) = (red.mac("1,1,0"), red.mac("2,0,0"));
    for name in [&member, &both, &stranger] {
        neighbourhood.send(&format!("storm blue {MARK} {name}"));
    }
    // Where it would be, if it were a member.
    let absent = own.replace("00:00:00", "02:00:00");
    for to in [&both, &stranger, &absent] {
        neighbourhood.send(&format!("aim blue {MARK} {own} {to}"));
    }
    neighbourhood.send(&format!("aim blue {MARK} {both} {stranger}"));
}

fn forged_frames_are_heard_nowhere(mix: Mix) {
    let cluster = Cluster::up("3x2x1");
    let neighbourhood = Neighbourhood::new(mix, &cluster);
    forge(&neighbourhood);
    for heard in neighbourhood.end() {
        assert_eq!(heard.marked, 0, "{heard:?}");
    }
}

#[cfg(feature = "unprotected")]
mod unprotected {
    use super::*;

    for_each_mix!(forged_frames_would_be_heard_without_a_check);

    /// Even then they do not get out of the domain.
    fn forged_frames_would_be_heard_without_a_check(mix: Mix) {
        let cluster = Cluster::up_without("3x2x1", &["SOURCE_CHECK"]);
        let neighbourhood = Neighbourhood::new(mix, &cluster);
        forge(&neighbourhood);
        for heard in neighbourhood.end() {
            assert!(heard.marked > 0, "{heard:?}");
            assert!(!heard.strangers.is_empty(), "{heard:?}");
        }
    }
}
