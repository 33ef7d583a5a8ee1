//! The machine of a run.

use std::fs;
use std::thread;
use std::time::Duration;

use crate::busy;
use crate::report::Fields;

/// Fields of reports: this machine, and the version of this program.
pub fn fields() -> Fields {
    Fields::default()
        .with("version", env!("CARGO_PKG_VERSION"))
        .with("cpus", cpus())
        .with("cpu", cpu_name())
        .with("kernel", kernel_release())
        .with("busy", busy::spins())
}

/// Processors and kernel of this machine, and whether a process [spins](busy) beside the run.
pub fn describe() -> String {
    let beside = if busy::spins() {
        ", one process spinning beside"
    } else {
        ""
    };
    format!(
        "{} x {}, Linux {}{beside}",
        cpus(),
        cpu_name(),
        kernel_release()
    )
}

/// Number of logical processors available to the run.
fn cpus() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Busy time of all processors together since boot (`/proc/stat` of proc(5), in steps of 10 ms).
pub fn busy_time() -> Option<Duration> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    let fields = text.lines().next()?.split_whitespace().skip(1);
    let ticks: Vec<u64> = fields.map(str::parse).collect::<Result<_, _>>().ok()?;
    let [user, nice, system, _idle, _waiting, irq, softirq, ..] = ticks[..] else {
        return None;
    };
    // USER_HZ is 100 on every supported architecture.
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
