//! A model of one region: members open it, disconnect and leave in any order, during migrations and
//! restarts of the agent.
//!
//! The model has the real mappings of processes, which the agent cannot see, beside the
//! [`Memories`] by which the agent decides. A process that disconnects keeps its mappings. A change
//! is one step, because nothing is promised before it returns. The owner is not part of the model:
//! when its node leaves, the region ends.

use stateright::{Checker, Model, Property};

use super::*;

/// Nodes that open the region. A third adds no kind of history: the reach of one node depends on
/// the others only by the begin and end of migrations, and one other node does both.
const NODES: usize = 2;

/// Part of the agent's decisions that the model leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Without {
    Nothing,
    /// Waiting for migrations of earlier changes.
    EarlierMoves,
    /// Takeover of the source's holders.
    InheritedSource,
    /// Grants that outlive the connection of the process.
    Disconnected,
    /// Waiting for the source at all.
    Waiting,
    /// Fresh memory.
    Moving,
}

/// Access of a node's processes to a memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Reach {
    #[default]
    Nothing,
    Reads,
    Writes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Node {
    is_member: bool,
    /// Rights of a process that is connected to the agent.
    connected: Option<Reach>,
    present: Reach,
    source: Reach,
}

/// Source of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Source {
    None,
    Copied,
    /// The kernel refuses every write of it.
    Sealed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    nodes: [Node; NODES],
    source: Source,
    memories: Memories,
}

/// End of a change's wait for the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum End {
    Sealed,
    AllCopied,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Action {
    Open(usize, Reach),
    Disconnect(usize),
    Unmap(usize),
    Shrink(usize, End),
    Grow(usize),
    AllCopied,
    Restart,
}

struct Region {
    without: Without,
}

impl Model for Region {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let node = Node {
            is_member: true,
            connected: None,
            present: Reach::Nothing,
            source: Reach::Nothing,
        };
        vec![State {
            nodes: [node; NODES],
            source: Source::None,
            memories: Memories::default(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (n, node) in state.nodes.iter().enumerate() {
            if node.is_member {
                actions.extend([Reach::Reads, Reach::Writes].map(|reach| Action::Open(n, reach)));
                actions.extend([End::Sealed, End::AllCopied].map(|end| Action::Shrink(n, end)));
            } else {
                actions.push(Action::Grow(n))
            }
            if node.connected.is_some() {
                actions.push(Action::Disconnect(n));
            }
            if node.present.max(node.source) > Reach::Nothing {
                actions.push(Action::Unmap(n));
            }
        }
        if state.source != Source::None {
            actions.push(Action::AllCopied);
        }
        actions.push(Action::Restart);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Open(n, reach) => state.open(n, reach),
            Action::Disconnect(n) => {
                state.nodes[n].connected = None;
                if self.without == Without::Disconnected {
                    state.forget_disconnected();
                }
            }
            Action::Unmap(n) => {
                let node = &mut state.nodes[n];
                (node.connected, node.present, node.source) = Default::default();
            }
            Action::Shrink(n, end) => self.shrink(&mut state, n, end),
            Action::Grow(n) => state.nodes[n].is_member = true,
            Action::AllCopied => state.end_migration(),
            Action::Restart => self.restart(&mut state),
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(
                "no former member has what members use",
                |_, state: &State| state.former().all(|node| node.present == Reach::Nothing),
            ),
            Property::always(
                "no former member writes what is copied",
                |_, state: &State| {
                    state.source != Source::Copied
                        || state.former().all(|node| node.source < Reach::Writes)
                },
            ),
            Property::sometimes(
                "a former member keeps what has been sealed",
                |_, state: &State| {
                    state.source == Source::Sealed
                        && state.former().any(|node| node.source == Reach::Writes)
                },
            ),
        ]
    }
}

impl Region {
    /// Takes a node out of a domain, in the order of `Host::leave_all`.
    fn shrink(&self, state: &mut State, n: usize, end: End) {
        let left = BTreeSet::from([id(n)]);
        state.nodes[n].is_member = false;
        state.nodes[n].connected = None;
        let migrations = state.memories.must_migrate(&left) && self.without != Without::Moving;
        if migrations {
            state.end_migration();
            state.begin_migration();
        }
        let waits = match self.without {
            Without::Waiting => false,
            Without::EarlierMoves => migrations && state.memories.must_shut_out(&left),
            _ => state.memories.must_shut_out(&left),
        };
        match end {
            End::Sealed if waits => state.source = Source::Sealed,
            End::AllCopied if waits => state.end_migration(),
            _ => {}
        }
    }

    /// Gives the state in the fd store to the next agent.
    fn restart(&self, state: &mut State) {
        let keep = |holders: &Holders| -> Holders {
            let kept = serde_json::to_value(holders).expect("numbers");
            serde_json::from_value(kept).expect("it was kept so")
        };
        let source = state.memories.source().map(|source| match self.without {
            Without::InheritedSource => Holders::default(),
            _ => keep(source),
        });
        state.memories = Memories::inherited(keep(state.memories.present()), source);
    }
}

impl State {
    fn former(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| !node.is_member)
    }

    fn open(&mut self, n: usize, reach: Reach) {
        let node = &mut self.nodes[n];
        node.connected = node.connected.max(Some(reach));
        node.present = node.present.max(reach);
        if self.source != Source::None {
            // A process that opens a migrating region also gets the source, for reading.
            node.source = node.source.max(Reach::Reads);
        }
        self.memories.grant(id(n), reach == Reach::Writes);
    }

    fn begin_migration(&mut self) {
        self.source = Source::Copied;
        for node in &mut self.nodes {
            node.source = node.present;
            node.present = node.connected.unwrap_or_default();
        }
        self.memories.begin_migration(self.connected());
    }

    fn end_migration(&mut self) {
        self.source = Source::None;
        for node in &mut self.nodes {
            node.source = Reach::Nothing;
        }
        self.memories.end_migration();
    }

    fn connected(&self) -> Holders {
        let nodes = self.nodes.iter().enumerate();
        let granted = nodes.filter_map(|(n, node)| Some((id(n), node.connected? == Reach::Writes)));
        granted.collect()
    }

    fn forget_disconnected(&mut self) {
        let source = self.memories.source().cloned();
        self.memories = Memories::inherited(self.connected(), source);
    }
}

fn id(n: usize) -> NodeId {
    NodeId(n as u32)
}

fn check(without: Without) -> impl Checker<Region> {
    Region { without }.checker().spawn_bfs().join()
}

/// In every history of two nodes.
#[test]
fn no_former_member_writes_the_present_memory_or_its_source() {
    check(Without::Nothing).assert_properties();
}

/// Two nodes once left one after the other, and the second wrote to memory that the region had left
/// for the first, while the agent was still copying from it. The agent recorded writers of the
/// present memory only.
#[test]
fn the_model_finds_the_second_leaver_of_an_earlier_migration() {
    let checker = check(Without::EarlierMoves);
    let history = checker.assert_any_discovery("no former member writes what is copied");
    let actions: Vec<Action> = history.into_actions();
    let shrinks = actions
        .iter()
        .filter(|action| matches!(action, Action::Shrink(..)));
    assert_eq!(shrinks.count(), 2, "{actions:?}");
}

#[test]
fn each_part_of_the_decisions_is_needed() {
    for (without, broken) in [
        (
            Without::InheritedSource,
            "no former member writes what is copied",
        ),
        (Without::Waiting, "no former member writes what is copied"),
        (
            Without::Disconnected,
            "no former member has what members use",
        ),
        (Without::Moving, "no former member has what members use"),
    ] {
        assert!(check(without).discovery(broken).is_some(), "{without:?}");
    }
}
