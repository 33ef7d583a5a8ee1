//! The machine of a run.

use std::fs::{self, File};
use std::io::{self, Write};
use std::thread;
use std::time::Duration;

use crate::busy;
use crate::report::Fields;

/// Longest wake-up of processors that processes ask for, a signed number of microseconds.
const DMA_LATENCY: &str = "/dev/cpu_dma_latency";

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

/// A request that processors wake up at once, which holds until this is dropped or the process ends
/// (Linux, "PM Quality Of Service Interface"). Only root may make it.
#[derive(Debug)]
pub struct Awake(Option<File>);

impl Awake {
    /// Requests a latency of 0 us, if this process may.
    pub fn hold() -> Self {
        let request = || -> io::Result<File> {
            let mut file = File::options().write(true).open(DMA_LATENCY)?;
            file.write_all(&0_i32.to_ne_bytes())?;
            Ok(file)
        };
        Awake(request().ok())
    }

    /// Whether the kernel has accepted the request.
    pub fn is_held(&self) -> bool {
        self.0.is_some()
    }
}

/// Number of logical processors available to the run.
pub fn cpus() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Time of all processors together since boot, in steps of 10 ms: USER_HZ is 100 on every supported
/// architecture.
#[derive(Clone, Copy, Debug)]
pub struct Ticks {
    busy: u64,
    steal: u64,
    all: u64,
}

/// The first line of `/proc/stat` (proc(5)).
pub fn ticks() -> Option<Ticks> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    let fields = text.lines().next()?.split_whitespace().skip(1);
    let ticks: Vec<u64> = fields.map(str::parse).collect::<Result<_, _>>().ok()?;
    let [user, nice, system, idle, waiting, irq, softirq, steal, ..] = ticks[..] else {
        return None;
    };
    let busy = user + nice + system + irq + softirq;
    Some(Ticks {
        busy,
        steal,
        all: busy + idle + waiting + steal,
    })
}

impl Ticks {
    /// Time since an earlier moment.
    pub fn since(self, earlier: Ticks) -> Ticks {
        Ticks {
            busy: self.busy.saturating_sub(earlier.busy),
            steal: self.steal.saturating_sub(earlier.steal),
            all: self.all.saturating_sub(earlier.all),
        }
    }

    /// Time that the hypervisor gave to others, as a share of all time.
    pub fn steal_share(self) -> f64 {
        self.steal as f64 / self.all.max(1) as f64
    }
}

/// Busy time of all processors together since boot.
pub fn busy_time() -> Option<Duration> {
    Some(Duration::from_millis(10 * ticks()?.busy))
}

/// The name of this machine.
pub fn host() -> String {
    of_kernel("hostname")
}

/// Processors on which the run may be scheduled, as a list such as `0-1`.
pub fn cpus_allowed() -> Option<String> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    let list = text
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    Some(list.trim().into())
}

fn kernel_release() -> String {
    of_kernel("osrelease")
}

/// A value of sysctl(8) under `kernel`.
fn of_kernel(name: &str) -> String {
    fs::read_to_string(format!("/proc/sys/kernel/{name}"))
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
