//! The decision of a router among candidates.

use super::{LinkId, Mode, Path, RouterId, Step, Topology};

/// What a router knows of the first hop of a candidate, in packets of 64 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Packets in the router's own queue for the link, now.
    pub queue: u32,
    /// Credits in use behind the link, as the router last heard.
    pub credits: u32,
}

impl Load {
    fn sum(self) -> u64 {
        u64::from(self.queue) + u64::from(self.credits)
    }
}

/// What makes a non-minimal candidate worse than its load: the load is multiplied by 2^shift, then
/// `add` packets are added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Bias {
    pub shift: u32,
    pub add: u32,
}

impl Bias {
    fn apply(self, load: u64) -> u64 {
        (load << self.shift()) + u64::from(self.add)
    }

    /// The least load with a score of at least this.
    fn least(self, score: u64) -> u64 {
        match score.saturating_sub(self.add.into()) {
            0 => 0,
            above => ((above - 1) >> self.shift()) + 1,
        }
    }

    fn shift(self) -> u32 {
        self.shift.min(24)
    }
}

/// The values of bias. Cray does not publish them: the defaults are this project's choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Biases {
    /// Of [`Mode::Adaptive2`].
    pub low: Bias,
    /// Of [`Mode::Adaptive3`].
    pub high: Bias,
    /// Of [`Mode::Adaptive1`], for each hop made, up to the fourth.
    pub per_hop: Bias,
}

impl Default for Biases {
    fn default() -> Self {
        Biases {
            low: Bias { shift: 1, add: 20 },
            high: Bias { shift: 2, add: 400 },
            per_hop: Bias { shift: 1, add: 100 },
        }
    }
}

impl Biases {
    /// The bias of a mode behind `hops` hops.
    pub fn of(&self, mode: Mode, hops: u8) -> Bias {
        let hops = u32::from(hops.min(4));
        match mode {
            Mode::Adaptive1 => Bias {
                shift: self.per_hop.shift * hops,
                add: self.per_hop.add * hops,
            },
            Mode::Adaptive2 => self.low,
            Mode::Adaptive3 => self.high,
            _ => Bias::default(),
        }
    }
}

/// Chooses the path of a packet at its first router. An adaptive mode draws two minimal and two
/// non-minimal candidates and takes the one with the least load at its first hop, a minimal one if
/// loads are equal.
#[inline]
pub fn choose<T: Topology + ?Sized>(
    topology: &T,
    mode: Mode,
    (from, to): (RouterId, RouterId),
    biases: &Biases,
    random: impl FnMut() -> u64,
    load: impl Fn(LinkId, u8) -> Load,
) -> Path {
    choose_by(topology, mode, (from, to), biases, random, |path, _| {
        at_first(topology, path, &load)
    })
}

/// As [`choose`], by any measure of a path in packets. With a measure from a limit on the path is not
/// taken, so `load` may return any number from the limit on instead.
#[inline]
pub fn choose_by<T: Topology + ?Sized>(
    topology: &T,
    mode: Mode,
    (from, to): (RouterId, RouterId),
    biases: &Biases,
    mut random: impl FnMut() -> u64,
    load: impl FnMut(&Path, u64) -> u64,
) -> Path {
    match mode {
        _ if from == to => topology.minimal(from, to, 0),
        Mode::InOrder => topology.minimal(from, to, 0),
        Mode::MinHash => topology.minimal(from, to, hash(from, to)),
        Mode::NminHash => topology.non_minimal(from, to, hash(from, to)),
        _ => {
            let mut best = Best::new(biases.of(mode, 0), load);
            for _ in 0..2 {
                best.offer(topology.minimal(from, to, random()));
            }
            for _ in 0..2 {
                let random = random();
                if best.takes_more() {
                    best.offer(topology.non_minimal(from, to, random));
                }
            }
            best.path.unwrap_or_else(|| topology.minimal(from, to, 0))
        }
    }
}

/// Decides again at the router that a path has reached, as [`Mode::Adaptive1`] does: the path
/// itself, two minimal and two non-minimal ones are the candidates.
pub fn choose_again<T: Topology + ?Sized>(
    topology: &T,
    path: &Path,
    biases: &Biases,
    mut random: impl FnMut() -> u64,
    load: impl Fn(LinkId, u8) -> Load,
) -> Path {
    let bias = biases.of(Mode::Adaptive1, path.hop());
    let mut best = Best::new(bias, |path: &Path, _| at_first(topology, path, &load));
    best.offer(*path);
    for is_minimal in [true, true, false, false] {
        let random = random();
        if best.score > 0
            && let Some(path) = topology.divert(path, is_minimal, random)
        {
            best.offer(path);
        }
    }
    best.path.unwrap_or(*path)
}

#[inline]
fn at_first<T: Topology + ?Sized>(
    topology: &T,
    path: &Path,
    load: impl Fn(LinkId, u8) -> Load,
) -> u64 {
    match topology.first(path) {
        Some(Step { link, channel }) => load(link, channel).sum(),
        None => 0,
    }
}

struct Best<L> {
    bias: Bias,
    load: L,
    path: Option<Path>,
    score: u64,
}

impl<L: FnMut(&Path, u64) -> u64> Best<L> {
    fn new(bias: Bias, load: L) -> Self {
        Best {
            bias,
            load,
            path: None,
            score: u64::MAX,
        }
    }

    /// Whether a path with the bias could be better.
    #[inline]
    fn takes_more(&self) -> bool {
        self.bias.least(self.score) > 0
    }

    #[inline]
    fn offer(&mut self, path: Path) {
        let is_behind_via = path.is_minimal() || !path.is_before_via();
        let bias = if is_behind_via {
            Bias::default()
        } else {
            self.bias
        };
        let limit = bias.least(self.score);
        // No load is less than none.
        if limit == 0 {
            return;
        }
        let score = bias.apply((self.load)(&path, limit));
        if score < self.score {
            (self.path, self.score) = (Some(path), score);
        }
    }
}

/// A hash of a pair of routers (the finalizer of SplitMix64, Steele et al., 2014).
fn hash(from: RouterId, to: RouterId) -> u64 {
    let pair = u64::from(from.0) << 32 | u64::from(to.0);
    let mut hash = pair.wrapping_add(0x9e37_79b9_7f4a_7c15);
    hash = (hash ^ hash >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ hash >> 31
}
