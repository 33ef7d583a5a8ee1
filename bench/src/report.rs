//! What a run leaves: its configuration and its rows.

use std::path::PathBuf;

use serde::Serialize;
use toroid_model::refusal::Refusal;

use crate::files::Tally;
use crate::machine::Machine;
use crate::plan::{Effort, Path, WorkingSet};
use crate::rows::{Op, Row};
use crate::store::KeySet;

/// A report, as `--json` prints it.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// How it was measured.
    pub config: Config,
    /// What was measured.
    pub rows: Vec<Row>,
}

/// The circumstances of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Config {
    /// What moves the bytes of one-sided operations: `shm`, which stands in for RDMA.
    pub provider: &'static str,
    /// What sends and receives frames: `tap`, interfaces of the kernel, or `stack`, smoltcp in the
    /// processes, where there are none.
    pub ethernet: &'static str,
    /// Why there are none, and what to do.
    pub no_taps: Option<Refusal>,
    /// The shape of the torus.
    pub torus: String,
    /// The node of the servers.
    pub server: &'static str,
    /// The node of the clients.
    pub client: &'static str,
    /// Of the domain, in bytes.
    pub mtu: u32,
    /// Whether the agent ran without root.
    pub rootless: bool,
    /// Which budget was asked for.
    pub effort: Effort,
    /// How often each measurement was repeated; what is bound by memory had ten short turns
    /// each time.
    pub rounds: u32,
    /// Bytes of a hot working set, at most.
    pub hot_bytes: u64,
    /// Bytes of a cold working set: 1 GiB, or less where memory or time were short; then of the
    /// smallest.
    pub cold_bytes: u64,
    /// The cold working set of each size of values.
    pub cold_sets: Vec<KeySet>,
    /// Operations in flight when pipelined.
    pub pipeline: u32,
    /// The real input.
    pub dir: PathBuf,
    /// What was read of it.
    pub files: Tally,
    /// Where it was measured.
    #[serde(flatten)]
    pub machine: Machine,
    /// Wall time of the whole in seconds.
    pub elapsed_s: f64,
}

impl Report {
    /// Operations that failed or gave wrong bytes, in all rows.
    pub fn errors(&self) -> u64 {
        self.rows.iter().map(|row| row.errors).sum()
    }

    /// The row of these properties.
    pub fn row(&self, wanted: &Wanted) -> Option<&Row> {
        self.rows.iter().find(|row| wanted.is(row))
    }
}

/// Which row is meant. Real input has no working set and so is told from the store's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Between whom and through what.
    pub path: Path,
    /// What was done.
    pub op: Op,
    /// The transport; absent for any.
    pub proto: Option<crate::network::Transport>,
    /// Bytes of one.
    pub bytes: usize,
    /// Operations in flight; absent for any.
    pub depth: Option<u32>,
    /// The working set.
    pub set: Option<WorkingSet>,
}

impl Wanted {
    fn is(&self, row: &Row) -> bool {
        row.path == self.path
            && row.op == self.op
            && (self.proto.is_none() || row.proto == self.proto)
            && row.bytes == self.bytes as u64
            && (self.depth.is_none() || row.depth == self.depth)
            && row.set == self.set
    }
}
