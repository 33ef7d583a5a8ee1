//! The thesis's six tests at the message layer (chapter 4).

use super::{BESIDE, BUFFER, BURST, Case, LONGEST, PAGES, Planner, SEGMENTED, SHORT, Test};
use crate::worker::micro::message_layer::EAGER;
use crate::worker::micro::script::{Layer, Message, Pattern, Script};

/// Another limit of eager messages, with which the thesis saw a drop of the bandwidth.
pub const LATER: usize = 16 << 10;

/// Bytes of a long strided message.
const LONG: usize = 16 << 10;

/// Bytes of messages at both layers, all in the tests of latency and bandwidth as well.
const COMPARED: [usize; 4] = [SHORT, 1024, 4096, LONGEST];

/// Connections of the tests of connections and sources.
const CONNECTIONS: [u32; 3] = [1, 4, 16];

impl Planner {
    pub(super) fn message(&self, test: Test) -> Vec<Case> {
        match test {
            Test::Latency => self.message_latency(),
            Test::Bandwidth => self.message_bandwidth(),
            Test::Buffers => self.message_buffers(),
            Test::Connections => self.message_connections(),
            Test::Segments => self.strided(),
            Test::AnySource => self.sources(),
            Test::Layers => self.layers(),
            Test::Logp | Test::Blocking | Test::Queues => Vec::new(),
        }
    }

    /// A script over the message layer.
    fn over(&self, pattern: Pattern, bytes: usize, eager: usize) -> Script {
        let any_source = false;
        Script {
            layer: Layer::Message { eager, any_source },
            ..self.script(pattern, bytes)
        }
    }

    /// The script of the message layer's test of latency.
    fn message_ping_pong(&self, bytes: usize) -> Script {
        self.over(Pattern::PingPong, bytes, EAGER)
    }

    fn message_latency(&self) -> Vec<Case> {
        let base = self.message_ping_pong(SHORT);
        let of = |bytes| {
            let changed = self.message_ping_pong(bytes);
            Case::new("latency", bytes, bytes as u64, base, changed)
        };
        self.sizes().into_iter().map(of).collect()
    }

    /// Bursts by size, and of the sizes around both limits of eager messages with the later one.
    fn message_bandwidth(&self) -> Vec<Case> {
        let burst = |bytes, eager| self.over(Pattern::Burst { count: BURST }, bytes, eager);
        let of = |bytes| {
            let base = self.message_ping_pong(bytes);
            Case::new("bandwidth", bytes, BURST, base, burst(bytes, EAGER))
        };
        let switch = |bytes| {
            let [base, changed] = [EAGER, LATER].map(|eager| burst(bytes, eager));
            Case::new("bandwidth/switch", bytes, LATER as u64, base, changed)
        };
        let sizes = self.sizes().into_iter().map(of);
        let around = [EAGER, EAGER + 1024, LATER, LATER + 1024];
        sizes.chain(around.map(switch)).collect()
    }

    fn message_buffers(&self) -> Vec<Case> {
        let of = |bytes| {
            let base = self.message_ping_pong(bytes);
            let message = Message {
                pages: PAGES,
                ..base.message
            };
            Case::new("buffers", bytes, 0_u32, base, Script { message, ..base })
        };
        [BUFFER, LONG].map(of).into()
    }

    fn message_connections(&self) -> Vec<Case> {
        let base = self.message_ping_pong(BESIDE);
        let of = |idle| Case::new("connections", BESIDE, idle, base, Script { idle, ..base });
        CONNECTIONS.map(of).into()
    }

    /// Strided messages beside contiguous ones of the same length.
    fn strided(&self) -> Vec<Case> {
        let of = |bytes, segments: u32| {
            let base = self.message_ping_pong(bytes);
            let message = Message {
                segments,
                ..base.message
            };
            let changed = Script { message, ..base };
            Case::new("segments/strided", bytes, segments, base, changed)
        };
        let short = [2, 8, 32].map(|segments| of(SEGMENTED, segments));
        let long = [2, 32].map(|segments| of(LONG, segments));
        short.into_iter().chain(long).collect()
    }

    /// Receives from any source beside those from the same source by name.
    fn sources(&self) -> Vec<Case> {
        let of = |connections: u32| {
            let base = Script {
                idle: connections - 1,
                ..self.message_ping_pong(BESIDE)
            };
            let layer = Layer::Message {
                eager: EAGER,
                any_source: true,
            };
            let changed = Script { layer, ..base };
            Case::new("any_source", BESIDE, connections, base, changed)
        };
        CONNECTIONS.map(of).into()
    }

    /// Messages beside packets of the same path.
    fn layers(&self) -> Vec<Case> {
        let tests = [
            ("layers/latency", Pattern::PingPong),
            ("layers/bandwidth", Pattern::Burst { count: BURST }),
        ];
        let of = |(test, pattern)| {
            COMPARED.map(|bytes| {
                let base = self.script(pattern, bytes);
                let changed = self.over(pattern, bytes, EAGER);
                Case::new(test, bytes, bytes as u64, base, changed)
            })
        };
        tests.into_iter().flat_map(of).collect()
    }
}
