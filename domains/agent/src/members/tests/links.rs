//! Links reach the processes that emulate them, with clocks that former members do not have.

use std::os::unix::fs::MetadataExt;

use tempfile::TempDir;
use toroid_model::link::{DomainLinks, LinkModel, LinkSpec, TorusLinks};

use super::*;
use crate::fdstore::InThread;
use crate::fdstore::takeover::Takeover;

fn link(text: &str) -> LinkSpec {
    text.parse().unwrap()
}

fn all(text: &str) -> DomainLinks {
    DomainLinks {
        default: link(text),
        ..DomainLinks::default()
    }
}

fn relink(members: &Members, links: &DomainLinks) {
    let plan = members.plan(|directory| directory.set_links("blue", links, false));
    let (domain, directory) = plan.unwrap();
    members.relink(&domain, directory).unwrap();
}

impl Process {
    fn emulating(members: &Arc<Members>, node: u32) -> Self {
        let process = Process::attach(members, node);
        members.send_links(process.id);
        process
    }

    /// Hears links; returns their model and the number of their table.
    fn hears_of_links(&mut self) -> (Option<LinkModel>, Option<u64>) {
        let (message, clocks) = self.hears();
        let Message::Event(Event::Links {
            partition: 1,
            model,
        }) = message
        else {
            panic!("{message:?} has no links");
        };
        let number = |clocks: OwnedFd| File::from(clocks).metadata().unwrap().ino();
        (model, clocks.into_iter().next().map(number))
    }

    fn hears_of_epoch(&mut self) {
        let event = self.hears_event();
        assert!(matches!(event, Event::Epoch { .. }), "{event:?}");
    }
}

#[test]
fn changes_of_links_keep_their_clocks() {
    let members = members();
    let mut process = Process::emulating(&members, 0);
    // As the target proxy.
    let mut other = Process::attach(&members, 1);
    relink(&members, &all("latency=5us"));
    let (model, clocks) = process.hears_of_links();
    assert_eq!(model, Some(LinkModel::Pairs(all("latency=5us"))));
    assert!(clocks.is_some());
    relink(&members, &all("rate=1Gbit"));
    let rate = Some(LinkModel::Pairs(all("rate=1Gbit")));
    assert_eq!(process.hears_of_links(), (rate.clone(), clocks));
    let mut late = Process::emulating(&members, 1);
    assert_eq!(late.hears_of_links(), (rate, clocks));

    relink(&members, &DomainLinks::default());
    for process in [&mut process, &mut late] {
        assert_eq!(process.hears_of_links(), (None, None));
    }
    relink(&members, &all("rate=1Gbit"));
    assert_ne!(process.hears_of_links().1, clocks, "former clocks");
    shrink(&members, 0);
    other.hears_of_epoch();
}

#[test]
fn a_node_hears_of_its_own_links_only() {
    let members = members();
    create(&members, "red", &[5]);
    let mut process = Process::emulating(&members, 1);
    let mut stranger = Process::emulating(&members, 5);
    change(&members, |directory| {
        directory.grow("blue", &[NodeId(2)].into())
    });
    process.hears_of_epoch();
    let pairs = |texts: &[&str]| -> DomainLinks {
        let pair = |text: &&str| (text.parse().unwrap(), link("loss=1%"));
        DomainLinks {
            pairs: texts.iter().map(pair).collect(),
            ..DomainLinks::default()
        }
    };
    relink(&members, &pairs(&["0>1", "1>2", "2>0"]));
    let own = LinkModel::Pairs(pairs(&["0>1", "1>2"]));
    assert_eq!(process.hears_of_links().0, Some(own));
    change(&members, |directory| {
        directory.grow("red", &[NodeId(6)].into())
    });
    stranger.hears_of_epoch();
}

#[test]
fn fresh_clocks_come_before_the_epoch_of_a_shrink() {
    let members = members();
    relink(&members, &all("latency=5us"));
    let mut stays = Process::emulating(&members, 0);
    let mut leaves = Process::emulating(&members, 1);
    let (_, former) = stays.hears_of_links();
    assert_eq!(leaves.hears_of_links().1, former);
    shrink(&members, 1);
    let (model, fresh) = stays.hears_of_links();
    assert_eq!(model, Some(LinkModel::Pairs(all("latency=5us"))));
    assert!(fresh.is_some() && fresh != former);
    stays.hears_of_epoch();
    leaves.hears_of_epoch();

    // The former member joins again.
    change(&members, |directory| {
        directory.grow("blue", &[NodeId(1)].into())
    });
    assert_eq!(leaves.hears_of_links().1, fresh);
    for process in [&mut stays, &mut leaves] {
        process.hears_of_epoch();
    }
}

#[test]
fn clocks_outlive_the_agent() {
    let state = TempDir::new().unwrap();
    let _fd_store = InThread::start(state.path());
    let mut directory = Directory::new("2x2x1".parse().unwrap());
    for name in ["blue", "red"] {
        let wanted = Wanted {
            name: name.into(),
            members: full_members([0, 1].map(NodeId)),
            ..Wanted::default()
        };
        directory.create(wanted).unwrap();
        directory
            .set_links(name, &all("latency=5us"), false)
            .unwrap();
    }
    let agent = |directory: &Directory, torus: Option<TorusLinks>| {
        let mut takeover = Takeover::take(state.path()).unwrap();
        let store = Box::new(Memory::holding(directory));
        let (mut members, _) = Members::new(directory.clone(), store, 1 << 20, Leases::none());
        members.inherit(Arc::clone(&takeover.fd_store), &mut takeover);
        members.inherit_links(torus, &mut takeover).unwrap();
        Arc::new(members)
    };
    let members = agent(&directory, None);
    let mut process = Process::emulating(&members, 0);
    let heard = process.hears_of_links();
    process.hears();
    let Reply::Ticket { attachment, secret } = members.ticket(process.id).unwrap() else {
        panic!("no ticket");
    };
    drop((process, members));

    // Killed after red's became the machine's, before anybody heard of it.
    directory
        .set_links("red", &DomainLinks::default(), false)
        .unwrap();
    let members = agent(&directory, None);
    let process = Process::emulating(&members, 0);
    let mut fresh = process;
    assert_eq!(fresh.hears_of_links(), heard);
    let known = Known {
        regions: &[],
        channels: &[],
        listeners: &[],
    };
    members
        .resume(fresh.id, (attachment, &secret), &known)
        .unwrap();
    let resumed = fresh.hears().0;
    assert!(
        matches!(resumed, Message::Reply(Reply::Resumed { .. })),
        "{resumed:?}"
    );
    assert_eq!(fresh.hears_of_links(), heard);
    let red = fresh.hears();
    let none = Event::Links {
        partition: 2,
        model: None,
    };
    assert_eq!((red.0, red.1.len()), (Message::Event(none), 0));
    fresh.hears_of_epoch();
}
