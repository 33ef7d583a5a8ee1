//! All programs with their sizes.

use std::fmt;

use anyhow::{Result, ensure};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::grid::SerialPart;
use super::npb::Class;
use super::rank::{Meter, Rank, Usage};
use super::{cg, ep, ft, gups, halo3d, is, lu, messages, mg, sweep3d};
use crate::plan::Effort;
use crate::table;

/// The most ranks of a live program.
pub const MOST_RANKS: usize = 16;

/// The programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Name {
    /// NPB: pairs of random numbers; nearly no messages.
    Ep,
    /// NPB: ranks of integers; all to all.
    Is,
    /// NPB: conjugate gradients; sums in rows of ranks.
    Cg,
    /// NPB: Fourier transforms; long messages, all to all.
    Ft,
    /// A wavefront in the shape of NPB's LU: very many short messages.
    Lu,
    /// NPB: multigrid; neighbours at all sizes.
    Mg,
    /// HPCC: random updates of a table; short messages, all to all.
    Gups,
    /// Round trips between two ranks.
    PingPong,
    /// Messages from each rank to each.
    Alltoall,
    /// Sums over all ranks.
    Allreduce,
    /// Barriers.
    Barrier,
    /// Messages to all ranks.
    Broadcast,
    /// Exchanges with all neighbours in three dimensions.
    Halo3d,
    /// Wavefronts from all corners.
    Sweep3d,
}

impl Name {
    pub const ALL: [Name; 14] = [
        Name::Ep,
        Name::Is,
        Name::Cg,
        Name::Ft,
        Name::Lu,
        Name::Mg,
        Name::Gups,
        Name::PingPong,
        Name::Alltoall,
        Name::Allreduce,
        Name::Barrier,
        Name::Broadcast,
        Name::Halo3d,
        Name::Sweep3d,
    ];
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&crate::report::name(self))
    }
}

/// A program with its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    Ep(Class),
    Is(Class),
    Cg(Class),
    Ft(Class),
    Lu(lu::Size),
    Mg(Class),
    Gups(gups::Size),
    PingPong(messages::Size),
    Alltoall(messages::Size),
    Allreduce(messages::Size),
    Barrier(messages::Size),
    Broadcast(messages::Size),
    Halo3d(halo3d::Size),
    Sweep3d(sweep3d::Size),
}

impl Task {
    /// The usual size of a program, or a quick one.
    pub fn new(name: Name, effort: Effort) -> Self {
        let class = effort.quick_or(Class::S, Class::W);
        let messages = |quick: [usize; 2], usual: [usize; 2]| {
            let [bytes, count] = effort.quick_or(quick, usual);
            messages::Size { bytes, count }
        };
        match name {
            Name::Ep => Task::Ep(class),
            Name::Is => Task::Is(class),
            Name::Cg => Task::Cg(class),
            Name::Ft => Task::Ft(class),
            Name::Mg => Task::Mg(class),
            Name::Lu => Task::Lu(lu::Size {
                points: effort.quick_or(16, 62),
                iterations: effort.quick_or(20, 250),
            }),
            Name::Gups => Task::Gups(gups::Size {
                log2_words: effort.quick_or(16, 20),
            }),
            Name::PingPong => Task::PingPong(messages([1 << 10, 500], [64 << 10, 2000])),
            Name::Alltoall => Task::Alltoall(messages([1 << 10, 100], [16 << 10, 500])),
            Name::Allreduce => Task::Allreduce(messages([8 << 10, 100], [8 << 10, 2000])),
            Name::Barrier => Task::Barrier(messages([1, 200], [1, 5000])),
            Name::Broadcast => Task::Broadcast(messages([64 << 10, 50], [1 << 20, 100])),
            Name::Halo3d => Task::Halo3d(halo3d::Size {
                points: effort.quick_or(16, 64),
                iterations: effort.quick_or(50, 200),
            }),
            Name::Sweep3d => Task::Sweep3d(sweep3d::Size {
                points: effort.quick_or(16, 64),
                planes: effort.quick_or(32, 64),
                depth: effort.quick_or(4, 8),
                iterations: effort.quick_or(2, 8),
            }),
        }
    }

    /// Sums of `bytes` bytes over all ranks, `count` times.
    pub fn allreduce(bytes: usize, count: usize) -> Self {
        Task::Allreduce(messages::Size { bytes, count })
    }

    pub fn name(&self) -> Name {
        match self {
            Task::Ep(_) => Name::Ep,
            Task::Is(_) => Name::Is,
            Task::Cg(_) => Name::Cg,
            Task::Ft(_) => Name::Ft,
            Task::Lu(_) => Name::Lu,
            Task::Mg(_) => Name::Mg,
            Task::Gups(_) => Name::Gups,
            Task::PingPong(_) => Name::PingPong,
            Task::Alltoall(_) => Name::Alltoall,
            Task::Allreduce(_) => Name::Allreduce,
            Task::Barrier(_) => Name::Barrier,
            Task::Broadcast(_) => Name::Broadcast,
            Task::Halo3d(_) => Name::Halo3d,
            Task::Sweep3d(_) => Name::Sweep3d,
        }
    }

    /// The size as text, a label of rows.
    pub fn size(&self) -> String {
        match self {
            Task::Ep(class)
            | Task::Is(class)
            | Task::Cg(class)
            | Task::Ft(class)
            | Task::Mg(class) => format!("class {class:?}"),
            Task::Lu(size) => format!("{}^3 x {}", size.points, size.iterations),
            Task::Gups(size) => format!("2^{} words", size.log2_words),
            Task::PingPong(size)
            | Task::Alltoall(size)
            | Task::Allreduce(size)
            | Task::Barrier(size)
            | Task::Broadcast(size) => format!("{} x {}", table::size(size.bytes), size.count),
            Task::Halo3d(size) => format!("{}^3 each x {}", size.points, size.iterations),
            Task::Sweep3d(size) => {
                let points = size.points;
                format!(
                    "{points} x {points} x {} each x {}",
                    size.planes, size.iterations
                )
            }
        }
    }

    /// Whether the program has work for each of so many ranks.
    pub fn runs_on(&self, ranks: usize) -> bool {
        match self {
            _ if ranks == 0 => false,
            Task::Is(class) => is::runs_on(*class, ranks),
            Task::Cg(_) => ranks.is_power_of_two(),
            Task::Ft(class) => ft::runs_on(*class, ranks),
            Task::Lu(size) => lu::runs_on(size, ranks),
            Task::Mg(_) => ranks.is_power_of_two() && ranks <= mg::MOST_RANKS,
            Task::PingPong(_) => ranks > 1,
            _ => true,
        }
    }

    /// Operations of the serial run with which the result is compared; 0 for other programs.
    pub fn serial_operations(&self, ranks: usize) -> usize {
        match self {
            Task::Lu(size) => size.operations(),
            Task::Halo3d(size) => size.operations(ranks),
            Task::Sweep3d(size) => size.operations(ranks),
            _ => 0,
        }
    }

    /// Runs the program at one of its ranks, and checks its result, with what an earlier run of it
    /// left in `serial`. Returns times and messages of its measured part.
    ///
    /// # Errors
    /// A number of ranks on which it does not run, a wrong result, and the rank's.
    pub fn run<R: Rank>(&self, ranks: &mut Meter<'_, R>, serial: &mut SerialPart) -> Result<Usage> {
        let count = ranks.ranks();
        ensure!(
            self.runs_on(count),
            "{self} does not run on {count} ranks; choose another number or a larger size"
        );
        match self {
            Task::Ep(class) => ep::run(ranks, *class),
            Task::Is(class) => is::run(ranks, *class),
            Task::Cg(class) => cg::run(ranks, *class),
            Task::Ft(class) => ft::run(ranks, *class),
            Task::Lu(size) => lu::run(ranks, size, serial),
            Task::Mg(class) => mg::run(ranks, *class),
            Task::Gups(size) => gups::run(ranks, size),
            Task::PingPong(size) => messages::ping_pong(ranks, size),
            Task::Alltoall(size) => messages::all_to_all(ranks, size),
            Task::Allreduce(size) => messages::all_reduce(ranks, size),
            Task::Barrier(size) => messages::barriers(ranks, size),
            Task::Broadcast(size) => messages::broadcasts(ranks, size),
            Task::Halo3d(size) => halo3d::run(ranks, size, serial),
            Task::Sweep3d(size) => sweep3d::run(ranks, size, serial),
        }
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.size())
    }
}
