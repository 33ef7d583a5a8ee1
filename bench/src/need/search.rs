//! The search for the harshest link under which a program still keeps its limit.
//!
//! Sans-I/O: the search names the next setting, as a depth from 0 (the mildest link) to 1 (the
//! harshest) on a logarithmic scale, and takes the verdict. It descends in steps from the mildest
//! link, so that no run is much slower than the limit, then bisects, then compares both ends of the
//! interval again.

/// The verdict on a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The program keeps the limit.
    Within,
    /// The program exceeds the limit.
    Over,
    /// The most pairs of runs did not decide.
    Undecided,
}

/// A range of settings from the mildest to the harshest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Axis {
    pub mild: f64,
    pub harsh: f64,
}

impl Axis {
    /// The setting at a depth.
    pub fn at(&self, depth: f64) -> f64 {
        self.mild * (self.harsh / self.mild).powf(depth)
    }

    /// The difference of depth of two settings in this ratio.
    fn depth_of(&self, factor: f64) -> f64 {
        factor.ln() / (self.harsh / self.mild).ln().abs()
    }
}

/// Ratio of two settings of the descent.
const STEP: f64 = 4.0;

/// The search ends when a setting within and a setting over the limit are in this ratio.
const RESOLUTION: f64 = 1.05;

/// An interval of a larger ratio is no answer.
const WIDEST: f64 = 2.0;

/// The most comparisons of a search.
const COMPARISONS: usize = 40;

/// The answer of a search, in depths.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Answer {
    /// The program needs a setting between these: it keeps the limit at the first, not at the
    /// second.
    Between(f64, f64),
    /// The program keeps the limit with the harshest setting.
    Harshest,
    /// The program exceeds the limit with the mildest setting.
    Mildest,
    /// The runs vary too much. The program keeps the limit at the first depth and exceeds it at the
    /// second, if known.
    Undecided(Option<f64>, Option<f64>),
}

/// A compared setting.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Point {
    depth: f64,
    verdict: Verdict,
    /// Whether a second comparison had the same verdict.
    confirmed: bool,
}

/// A search under way.
#[derive(Clone, Debug)]
pub struct Search {
    step: f64,
    resolution: f64,
    widest: f64,
    points: Vec<Point>,
    left: usize,
}

impl Search {
    pub fn of(axis: Axis) -> Self {
        Search {
            step: axis.depth_of(STEP),
            resolution: axis.depth_of(RESOLUTION),
            widest: axis.depth_of(WIDEST),
            points: Vec::new(),
            left: COMPARISONS,
        }
    }

    /// The depth to compare next; `None` at the end.
    pub fn next(&self) -> Option<f64> {
        if self.left == 0 {
            return None;
        }
        let Some(deepest) = self.points.last() else {
            return Some(0.0);
        };
        let (within, over) = (self.within(), self.over());
        match (within, over) {
            (None, None) => None,
            (None, Some(over)) => unconfirmed(&over),
            (Some(within), None) if deepest.depth >= 1.0 => {
                let is_end = within.depth >= 1.0;
                is_end.then(|| unconfirmed(&within)).flatten()
            }
            (Some(_), None) => Some((deepest.depth + self.step).min(1.0)),
            (Some(within), Some(over)) => self
                .gap(within.depth, over.depth)
                .or_else(|| unconfirmed(&within))
                .or_else(|| unconfirmed(&over)),
        }
    }

    /// Takes the verdict on a depth. A second verdict other than the first leaves it undecided.
    pub fn tried(&mut self, depth: f64, verdict: Verdict) {
        self.left = self.left.saturating_sub(1);
        if let Some(known) = self.points.iter_mut().find(|point| point.depth == depth) {
            known.confirmed = known.verdict == verdict;
            if !known.confirmed {
                known.verdict = Verdict::Undecided;
            }
            return;
        }
        self.points.push(Point {
            depth,
            verdict,
            confirmed: false,
        });
        self.points.sort_by(|a, b| a.depth.total_cmp(&b.depth));
    }

    /// The answer so far.
    pub fn answer(&self) -> Answer {
        let is_sure = |point: &Point| point.confirmed;
        let (within, over) = (self.within().filter(is_sure), self.over().filter(is_sure));
        let depth = |point: Option<Point>| point.map(|point| point.depth);
        match (depth(within), depth(over)) {
            (Some(within), Some(over)) if over - within <= self.widest => {
                Answer::Between(within, over)
            }
            (Some(1.0), None) => Answer::Harshest,
            (None, Some(0.0)) => Answer::Mildest,
            (within, over) => Answer::Undecided(within, over),
        }
    }

    /// The mildest point over the limit.
    fn over(&self) -> Option<Point> {
        let mut points = self.points.iter();
        points.find(|point| point.verdict == Verdict::Over).copied()
    }

    /// The harshest point within the limit that is milder than [`Search::over`].
    fn within(&self) -> Option<Point> {
        let over = self.over().map_or(f64::INFINITY, |over| over.depth);
        let mut points = self.points.iter().rev();
        points
            .find(|point| point.verdict == Verdict::Within && point.depth < over)
            .copied()
    }

    /// The middle of the widest gap between `within`, undecided points and `over` that is wider
    /// than the resolution. Gaps between undecided points are of no interest.
    fn gap(&self, within: f64, over: f64) -> Option<f64> {
        let between = |point: &&Point| within < point.depth && point.depth < over;
        let mut undecided = self.points.iter().filter(between);
        let first = undecided.next().map_or(over, |point| point.depth);
        let last = undecided.next_back().map_or(first, |point| point.depth);
        let gaps = [(within, first), (last, over)];
        let (low, high) = gaps
            .into_iter()
            .max_by(|a, b| (a.1 - a.0).total_cmp(&(b.1 - b.0)))?;
        (high - low > self.resolution).then_some((low + high) / 2.0)
    }
}

fn unconfirmed(point: &Point) -> Option<f64> {
    (!point.confirmed).then_some(point.depth)
}
