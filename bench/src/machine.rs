//! The machine of a run.

use std::fmt;
use std::fs;
use std::thread;
use std::time::Duration;

use crate::busy;
use crate::report::Fields;

/// This machine, and the program that measures it. Displayed: its processors, its kernel, and
/// whether something spun beside.
#[derive(Clone, Debug)]
pub struct Machine {
    version: &'static str,
    /// Logical processors that the run could use.
    cpus: usize,
    cpu: String,
    kernel: String,
    /// Whether a process spun beside the run: see [`crate::busy`].
    busy: bool,
}

impl Machine {
    pub fn this() -> Self {
        Machine {
            version: env!("CARGO_PKG_VERSION"),
            cpus: thread::available_parallelism().map_or(1, usize::from),
            cpu: cpu_name(),
            kernel: kernel_release(),
            busy: busy::spins(),
        }
    }

    /// As reports have it.
    pub fn fields(self) -> Fields {
        Fields::default()
            .with("version", self.version)
            .with("cpus", self.cpus)
            .with("cpu", self.cpu)
            .with("kernel", self.kernel)
            .with("busy", self.busy)
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x {}, Linux {}", self.cpus, self.cpu, self.kernel)?;
        if self.busy {
            f.write_str(", one process spinning beside")
        } else {
            Ok(())
        }
    }
}

/// The time for which the processors of this machine, all together, have been busy since its start
/// (`/proc/stat` of proc(5), in steps of 10 ms).
pub fn busy_time() -> Option<Duration> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    let fields = text.lines().next()?.split_whitespace().skip(1);
    let ticks: Vec<u64> = fields.map(str::parse).collect::<Result<_, _>>().ok()?;
    let [user, nice, system, _idle, _waiting, irq, softirq, ..] = ticks[..] else {
        return None;
    };
    // The kernel counts in USER_HZ, which is 100 everywhere.
    Some(Duration::from_millis(
        10 * (user + nice + system + irq + softirq),
    ))
}

fn kernel_release() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease")
        .map_or_else(|_| "unknown".into(), |text| text.trim_end().into())
}

fn cpu_name() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    let name = model.and_then(|rest| rest.split_once(':'));
    name.map_or_else(|| "unknown".into(), |(_, name)| name.trim().into())
}
