//! The machine of a run.

use std::fs;
use std::thread;
use std::time::Duration;

use crate::busy;
use crate::report::Fields;

/// This machine, and the program that measures it, as reports have them.
pub fn fields() -> Fields {
    Fields::default()
        .with("version", env!("CARGO_PKG_VERSION"))
        .with("cpus", cpus())
        .with("cpu", cpu_name())
        .with("kernel", kernel_release())
        .with("busy", busy::spins())
}

/// The processors and the kernel of this machine, and whether a process [spins](busy) beside.
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

/// Logical processors that the run can use.
fn cpus() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
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
