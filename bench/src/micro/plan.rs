//! The tests as data: each row is the difference of two formulas of measured times.

pub mod message;

use clap::ValueEnum;
use serde::Serialize;

use crate::plan::Effort;
use crate::worker::micro::script::{Gather, Layer, Message, Nanos, Pattern, Script, Wait};

/// Bytes of a short message, as in the thesis's tables.
pub const SHORT: usize = 4;

/// Bytes of the longest message.
pub const LONGEST: usize = 32 << 10;

/// Bytes of a message beside idle connections.
const BESIDE: usize = 16;

/// Bytes of a message from a buffer of its own.
const BUFFER: usize = 512;

/// Bytes of all segments of a message.
const SEGMENTED: usize = 1024;

/// Messages before an acknowledgement, so many that the acknowledgement takes no share.
const BURST: u32 = 512;

/// Messages of a burst that no queue delays.
const SMALL_BURST: u32 = 4;

/// Messages that arrive during a counting loop.
const COUNTED: u32 = 64;

/// Pages of which each message takes another.
const PAGES: u32 = 4096;

/// The layers whose tests are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum LayerName {
    /// Packets of the path.
    Fabric,
    /// A small message layer over them: eager or three-way, any source, strided data.
    Msg,
}

impl LayerName {
    pub const ALL: [LayerName; 2] = [LayerName::Fabric, LayerName::Msg];

    pub fn of(script: &Script) -> Self {
        match script.layer {
            Layer::Fabric => LayerName::Fabric,
            Layer::Message { .. } => LayerName::Msg,
        }
    }
}

/// The eight tests of Kutlug's thesis at the lower layer (chapter 3), and any-source of its six at
/// the message layer (chapter 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Test {
    /// Half a round trip, by size.
    Latency,
    /// Many sends and one acknowledgement, by size.
    Bandwidth,
    /// Overheads, gap and latency of the LogP model.
    Logp,
    /// Sends from pages of their own.
    Buffers,
    /// Idle connections beside.
    Connections,
    /// Receives that sleep.
    Blocking,
    /// Messages of several segments.
    Segments,
    /// Completions of several queue pairs through one queue.
    Queues,
    /// Receives from any source beside those from a named one.
    AnySource,
    /// Time that each layer adds to the one below, and its share of the bandwidth.
    Layers,
}

impl Test {
    pub const ALL: [Test; 10] = [
        Test::Latency,
        Test::Bandwidth,
        Test::Logp,
        Test::Buffers,
        Test::Connections,
        Test::Blocking,
        Test::Segments,
        Test::Queues,
        Test::AnySource,
        Test::Layers,
    ];
}

/// A sum of measured times, each times a factor, and a constant in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Formula {
    pub constant: f64,
    pub terms: Vec<(f64, Script)>,
}

impl From<Script> for Formula {
    fn from(script: Script) -> Self {
        Formula {
            constant: 0.0,
            terms: vec![(1.0, script)],
        }
    }
}

impl Formula {
    fn plus(mut self, factor: f64, other: &Formula) -> Self {
        self.constant += factor * other.constant;
        let terms = other.terms.iter();
        self.terms
            .extend(terms.map(|(of, script)| (factor * of, *script)));
        self
    }

    fn plus_ns(mut self, time: Nanos) -> Self {
        self.constant += time as f64;
        self
    }

    /// The value for times of scripts; `None` if one is missing.
    pub fn value(&self, time: impl Fn(&Script) -> Option<f64>) -> Option<f64> {
        let terms = self.terms.iter();
        let values = terms.map(|(factor, script)| Some(factor * time(script)?));
        Some(self.constant + values.sum::<Option<f64>>()?)
    }
}

/// A row: a test, and the same with one change. Without a base, the change is the whole time.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// Test and variant.
    pub test: &'static str,
    pub bytes: usize,
    /// The varied quantity.
    pub x: u64,
    pub base: Formula,
    pub changed: Formula,
}

impl Case {
    fn new(
        test: &'static str,
        bytes: usize,
        x: impl Into<u64>,
        base: impl Into<Formula>,
        changed: impl Into<Formula>,
    ) -> Self {
        Case {
            test,
            bytes,
            x: x.into(),
            base: base.into(),
            changed: changed.into(),
        }
    }

    /// The scripts of both formulas.
    pub fn scripts(&self) -> impl Iterator<Item = Script> {
        let terms = self.base.terms.iter().chain(&self.changed.terms);
        terms.map(|(_, script)| *script)
    }

    /// The layer of the change.
    pub fn layer(&self) -> LayerName {
        let (_, script) = &self.changed.terms[0];
        LayerName::of(script)
    }
}

/// Properties of the measured hosts.
#[derive(Clone, Copy, Debug)]
pub struct Subject {
    /// The usual wait.
    pub wait: Wait,
    /// An exchange whose completions can come through one queue for several queue pairs.
    pub completions: Option<Pattern>,
    /// About the latency of a short message.
    pub latency: Nanos,
}

/// Plans of the tests of one subject.
#[derive(Clone, Copy, Debug)]
pub struct Planner {
    pub subject: Subject,
    pub effort: Effort,
}

impl Planner {
    /// The rows of a test at a layer; none if the layer has no such test.
    pub fn cases(&self, layer: LayerName, test: Test) -> Vec<Case> {
        match layer {
            LayerName::Fabric => self.fabric(test),
            LayerName::Msg => self.message(test),
        }
    }

    fn fabric(&self, test: Test) -> Vec<Case> {
        match test {
            Test::Latency => self.latency(),
            Test::Bandwidth => self.bandwidth(),
            Test::Logp => self.logp(),
            Test::Buffers => self.buffers(),
            Test::Connections => self.connections(),
            Test::Blocking => self.blocking(),
            Test::Segments => self.segments(),
            Test::Queues => self.queues(),
            Test::AnySource | Test::Layers => Vec::new(),
        }
    }

    /// The script of the test of latency.
    pub fn ping_pong(&self, bytes: usize) -> Script {
        self.script(Pattern::PingPong, bytes)
    }

    fn script(&self, pattern: Pattern, bytes: usize) -> Script {
        Script {
            wait: self.subject.wait,
            ..Script::new(pattern, bytes)
        }
    }

    fn sizes(&self) -> Vec<usize> {
        let step = self.effort.quick_or(2, 1);
        let all = (0..).step_by(step).map(|doublings| SHORT << doublings);
        let mut sizes: Vec<usize> = all.take_while(|&bytes| bytes < LONGEST).collect();
        sizes.push(LONGEST);
        sizes
    }

    fn latency(&self) -> Vec<Case> {
        let base = self.ping_pong(SHORT);
        let of = |bytes| Case::new("latency", bytes, bytes as u64, base, self.ping_pong(bytes));
        self.sizes().into_iter().map(of).collect()
    }

    fn bandwidth(&self) -> Vec<Case> {
        let of = |bytes| {
            let burst = self.script(Pattern::Burst { count: BURST }, bytes);
            Case::new("bandwidth", bytes, BURST, self.ping_pong(bytes), burst)
        };
        self.sizes().into_iter().map(of).collect()
    }

    fn sends(&self, bytes: usize) -> Formula {
        let count = SMALL_BURST;
        self.script(Pattern::Sends { count }, bytes).into()
    }

    fn logp(&self) -> Vec<Case> {
        let burst = |count| Formula::from(self.script(Pattern::Burst { count }, SHORT));
        let latency = self.subject.latency.max(1);
        // The answer has come before a delay of a round trip ends.
        let delay = 3 * latency;
        let counting = Pattern::Counting {
            time: 2 * u64::from(COUNTED) * latency,
            messages: COUNTED,
        };
        let send = self.sends(SHORT);
        let delayed = Formula::from(self.script(Pattern::Delayed { delay }, SHORT));
        let undelayed = send.clone().plus_ns(delay);
        // Both bursts end with one acknowledgement.
        let gap = Formula::default()
            .plus(2.0, &burst(BURST))
            .plus(-1.0, &burst(BURST / 2));
        let overheads = send.clone().plus(1.0, &delayed).plus(-1.0, &undelayed);
        let row = |test, x: u64, base, changed| Case::new(test, SHORT, x, base, changed);
        let mut cases = vec![
            row(
                "logp/os",
                SMALL_BURST.into(),
                Formula::default(),
                send.clone(),
            ),
            row("logp/or_delay", delay, undelayed, delayed),
            row(
                "logp/or_count",
                COUNTED.into(),
                Formula::default(),
                self.script(counting, SHORT).into(),
            ),
            row("logp/l", 0, overheads, self.ping_pong(SHORT).into()),
            row("logp/g", BURST.into(), send.clone(), gap),
        ];
        let growing = (0..).map(|doublings| SMALL_BURST << doublings);
        for count in growing.take_while(|&count| count <= BURST).step_by(2) {
            cases.push(row("logp/burst", count.into(), send.clone(), burst(count)));
        }
        for bytes in self.sizes() {
            let sends = self.sends(bytes);
            cases.push(Case::new(
                "logp/os_size",
                bytes,
                bytes as u64,
                send.clone(),
                sends,
            ));
        }
        cases
    }

    fn buffers(&self) -> Vec<Case> {
        let changed = |bytes, pages, reuse| {
            let base = self.ping_pong(bytes);
            let message = Message {
                pages,
                reuse,
                ..base.message
            };
            (base, Script { message, ..base })
        };
        let of = |test, bytes, pages, reuse, x: u32| {
            let (base, changed) = changed(bytes, pages, reuse);
            Case::new(test, bytes, x, base, changed)
        };
        let reuse = [0, 25, 50, 75, 100].map(|reuse| of("buffers", BUFFER, PAGES, reuse, reuse));
        let sizes = [SHORT, 4096].map(|bytes| of("buffers", bytes, PAGES, 0, 0));
        let sets = [16, 64, 128, 1024];
        let sets = sets.map(|pages| of("buffers/pages", BUFFER, pages, 0, pages));
        reuse.into_iter().chain(sizes).chain(sets).collect()
    }

    fn connections(&self) -> Vec<Case> {
        let base = self.ping_pong(BESIDE);
        let of = |idle: u32| Case::new("connections", BESIDE, idle, base, Script { idle, ..base });
        [1, 4, 16, 64].map(of).into()
    }

    fn blocking(&self) -> Vec<Case> {
        let of = |bytes| {
            let wait = |wait| Script {
                wait,
                ..self.ping_pong(bytes)
            };
            let row = |test, changed| {
                Case::new(test, bytes, bytes as u64, wait(Wait::Poll), wait(changed))
            };
            [
                row("blocking/block", Wait::Block),
                row("blocking/spin", Wait::SpinThenBlock),
            ]
        };
        [SHORT, 4096].map(of).into_iter().flatten().collect()
    }

    fn segments(&self) -> Vec<Case> {
        let base = self.ping_pong(SEGMENTED);
        let of = |test, segments: u32, gather| {
            let message = Message {
                segments,
                gather,
                ..base.message
            };
            Case::new(test, SEGMENTED, segments, base, Script { message, ..base })
        };
        let counts = [2, 4, 8, 16, 32];
        let native = counts.map(|count| of("segments/gather", count, Gather::Native));
        let packed = counts.map(|count| of("segments/pack", count, Gather::Pack));
        native.into_iter().chain(packed).collect()
    }

    fn queues(&self) -> Vec<Case> {
        let Some(pattern) = self.subject.completions else {
            return Vec::new();
        };
        let base = self.script(pattern, SHORT);
        let of = |queues: u32| Case::new("queues", SHORT, queues, base, Script { queues, ..base });
        let counts = (0..=6).step_by(self.effort.quick_or(2, 1));
        counts.map(|doublings| of(1 << doublings)).collect()
    }
}
