//! What a run leaves, for programs and for people.

use std::fmt::Write;

use serde::Serialize;

use crate::machine::Machine;
use crate::plan::Effort;
use crate::table;
use crate::targets::Target;

/// What members export in a scenario.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Export {
    /// Nothing is registered.
    #[default]
    None,
    /// The owner writes, others read.
    Ro,
    /// All write.
    Rw,
}

/// Many changes of one kind.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Row {
    /// Members of the domain before it shrinks.
    pub members: u32,
    /// Bytes that one of them has registered.
    pub registered_bytes: u64,
    /// How.
    pub export: Export,
    /// From the request to the reply.
    pub p50_ns: f64,
    /// From the request to the reply.
    pub p99_ns: f64,
    /// The longest time without an operation of one who stays, in each change.
    pub pause_p50_ns: f64,
    /// The longest time without an operation of one who stays, in each change.
    pub pause_p99_ns: f64,
    /// The same in as much time before each change but the first, in which nothing happens: what the
    /// machine does by itself. Of shrinks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pause_before_p99_ns: Option<f64>,
    /// How many.
    pub cycles: u32,
    /// Shared memory that was there more than before, while regions moved; of one shrink.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extra_bytes: Option<u64>,
}

/// A domain of all nodes.
#[derive(Clone, Debug, Serialize)]
pub struct Scale {
    /// Its members, and the nodes of the agent.
    pub members: u32,
    /// Whether they have interfaces.
    pub ethernet: bool,
    /// Time to start the agent with its nodes.
    pub up_ns: f64,
    /// Time to create it.
    pub create_ns: f64,
    /// Time to remove it.
    pub rm_ns: f64,
    /// Time to create it again at once, with its interfaces still being removed.
    pub create_again_ns: f64,
    /// Time to end the agent and all nodes while it is there.
    pub down_ns: f64,
}

/// Many domains in which nothing happens.
#[derive(Clone, Debug, Serialize)]
pub struct Idle {
    /// How many.
    pub domains: u32,
    /// Of each.
    pub members: u32,
    /// Of the agent.
    pub nodes: u32,
    /// Time to create all.
    pub create_ns: f64,
    /// Processor time of agent, keeper and nodes, over time.
    pub cpu_share: f64,
    /// Their proportional memory.
    pub pss_bytes: u64,
}

/// One kind of operation in a domain in which nothing happens, in nanoseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Bystander {
    /// What it does.
    pub op: &'static str,
    /// While nothing happens elsewhere.
    pub quiet_p50_ns: f64,
    /// While nothing happens elsewhere.
    pub quiet_p99_ns: f64,
    /// While other domains grow and shrink.
    pub busy_p50_ns: f64,
    /// While other domains grow and shrink.
    pub busy_p99_ns: f64,
}

/// The circumstances of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Config {
    /// What stands in for RDMA.
    pub provider: &'static str,
    /// Which budget was asked for.
    pub effort: Effort,
    /// Whether the agents ran without root.
    pub rootless: bool,
    /// Where the agents kept their directories.
    pub data: String,
    /// Where it was measured.
    #[serde(flatten)]
    pub machine: Machine,
    /// The kernel's policy for pages of 2 MiB in shared memory.
    pub huge_pages: String,
    /// Wall time of the whole in seconds.
    pub elapsed_s: f64,
}

/// A report, as `--json` prints it.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// How it was measured.
    pub config: Config,
    /// One member leaves.
    pub shrink: Vec<Row>,
    /// It comes back.
    pub grow: Vec<Row>,
    /// From the command to the end of what was in flight.
    pub inflight_failed_p99_ns: f64,
    /// Bytes that passed after the return, in either direction.
    pub leaked_bytes: u64,
    /// Datagrams and packets sent after the return that arrived.
    pub leaked_frames: u64,
    /// Shrinks after which was looked for leaks.
    pub cycles: u32,
    /// Operations of those who stay that failed.
    pub stayers_failed: u64,
    /// A one-sided read of 64 B before anybody left.
    pub read_p50_before_ns: f64,
    /// And after all came and went.
    pub read_p50_after_ns: f64,
    /// 4 KiB to the disk on which the directory is.
    pub fdatasync_p50_ns: f64,
    /// And the slowest of a hundred.
    pub fdatasync_p99_ns: f64,
    /// That while the members of the small domains work, as they do when those shrink.
    pub fdatasync_busy_p99_ns: f64,
    /// Nothing if only rows were asked for.
    #[serde(flatten)]
    pub rest: Option<Rest>,
}

/// What is measured besides shrinks and growths.
#[derive(Clone, Debug, Serialize)]
pub struct Rest {
    /// A domain of all nodes.
    pub scale: Vec<Scale>,
    /// Many domains in which nothing happens.
    pub idle: Idle,
    /// How many domains grew and shrank beside it.
    pub busy_domains: u32,
    /// How often one of them did, in a second.
    pub busy_changes_per_s: f64,
    /// One domain in which nothing happens, beside those.
    pub bystander: Vec<Bystander>,
}

impl Report {
    /// What passed that must not, and what failed that must not.
    pub fn errors(&self) -> u64 {
        self.leaked_bytes + self.leaked_frames + self.stayers_failed
    }

    /// All targets. Printed, never asserted.
    pub fn targets(&self) -> Vec<Target> {
        let p99 = |wanted: fn(&Row) -> bool, value: fn(&Row) -> f64| {
            self.shrink
                .iter()
                .filter(|row| wanted(row))
                .map(value)
                .reduce(f64::max)
        };
        let scale = |ethernet: bool| {
            let all = self.rest.iter().flat_map(|rest| &rest.scale);
            all.filter(move |scale| scale.ethernet == ethernet)
                .flat_map(|s| [s.create_ns, s.rm_ns, s.down_ns])
                .reduce(f64::max)
        };
        let change = (self.read_p50_before_ns > 0.0)
            .then(|| (self.read_p50_after_ns / self.read_p50_before_ns - 1.0) * 100.0);
        let small = p99(
            |row| row.members <= 8 && row.registered_bytes == 0,
            |row| row.p99_ns,
        );
        let large = p99(|row| row.members > 8, |row| row.p99_ns);
        let with_memory = p99(|row| row.registered_bytes > 0, |row| row.p99_ns);
        let pause = p99(|row| row.registered_bytes > 0, |row| row.pause_p99_ns);
        let in_flight = Some(self.inflight_failed_p99_ns).filter(|time| *time > 0.0);
        let idle = self.rest.as_ref().map(|rest| &rest.idle);
        let found = |value: Option<String>| value.unwrap_or_else(|| "-".into());
        vec![
            at_most("Shrink p99, 2 and 8 members", small, 5.0),
            at_most("Shrink p99, 512 members", large, 50.0),
            at_most(
                "Shrink p99, 8 members with memory registered",
                with_memory,
                20.0,
            ),
            at_most("Pause of those who stay, p99", pause, 10.0),
            at_most("Operations in flight failed after", in_flight, 50.0),
            none("Bytes after the return", self.leaked_bytes),
            none("Frames and packets after the return", self.leaked_frames),
            none("Failed operations of those who stay", self.stayers_failed),
            Target {
                what: "One-sided read after shrinks, against before",
                found: found(change.map(|change| format!("{change:+.1} %"))),
                wanted: "within 5 %".into(),
                met: change.map(|change| change.abs() <= 5.0),
            },
            at_most("Create, rm and down of 512 members", scale(true), 2000.0),
            at_most("The same without Ethernet", scale(false), 1000.0),
            Target {
                what: "Idle domains, processor",
                found: found(idle.map(|idle| format!("{:.2} %", idle.cpu_share * 100.0))),
                wanted: "under 2 %".into(),
                met: idle.map(|idle| idle.cpu_share < 0.02),
            },
            Target {
                what: "Idle domains, memory",
                found: found(idle.map(|idle| mebibytes(idle.pss_bytes))),
                wanted: "under 512 MiB".into(),
                met: idle.map(|idle| idle.pss_bytes < 512 << 20),
            },
        ]
    }

    /// The report for people.
    pub fn render(&self) -> String {
        table::text(|to| self.write(to))
    }

    fn write(&self, to: &mut String) -> std::fmt::Result {
        let config = &self.config;
        writeln!(
            to,
            "Domains on this machine ({}{}). Shared memory stands in for RDMA.\n\
             Huge pages for it: {}. Directory in {}, where 4 KiB take {} to reach the disk,\n\
             {} at p99, and {} at p99 while members work.",
            config.machine,
            if config.rootless { ", rootless" } else { "" },
            config.huge_pages,
            config.data,
            ms(self.fdatasync_p50_ns),
            ms(self.fdatasync_p99_ns),
            ms(self.fdatasync_busy_p99_ns),
        )?;
        for (title, rows) in [("One leaves", &self.shrink), ("It comes back", &self.grow)] {
            let heads = [
                "registered",
                "p50",
                "p99",
                "pause p50",
                "pause p99",
                "without",
                "extra",
                "times",
            ];
            line(to, &format!("\n{title}"), &heads.map(String::from))?;
            for row in rows {
                let export = match row.export {
                    Export::None => "nothing".into(),
                    Export::Ro => format!("{} ro", mebibytes(row.registered_bytes)),
                    Export::Rw => format!("{} rw", mebibytes(row.registered_bytes)),
                };
                let cells = [
                    export,
                    ms(row.p50_ns),
                    ms(row.p99_ns),
                    ms(row.pause_p50_ns),
                    ms(row.pause_p99_ns),
                    crate::table::time(row.pause_before_p99_ns),
                    row.extra_bytes.map_or_else(|| "-".into(), mebibytes),
                    row.cycles.to_string(),
                ];
                line(to, &format!("  {} members", row.members), &cells)?;
            }
        }
        if let Some(rest) = &self.rest {
            rest.write(to)?;
        }
        self.write_targets(to)
    }

    fn write_targets(&self, to: &mut String) -> std::fmt::Result {
        writeln!(to, "\nTargets")?;
        for target in self.targets() {
            let verdict = match target.met {
                Some(true) => "met",
                Some(false) => "MISSED",
                None => "not measured",
            };
            let Target {
                what,
                found,
                wanted,
                ..
            } = target;
            writeln!(to, "  {what:<46} {found:>11}  {wanted:<16} {verdict}")?;
        }
        writeln!(to, "\n{:.0} s in all.", self.config.elapsed_s)
    }
}

impl Rest {
    fn write(&self, to: &mut String) -> std::fmt::Result {
        let heads = ["up", "create", "rm", "create again", "down"].map(String::from);
        line(to, "\nA domain of all nodes", &heads)?;
        for scale in &self.scale {
            let with = if scale.ethernet { "" } else { ", no Ethernet" };
            let times = [
                scale.up_ns,
                scale.create_ns,
                scale.rm_ns,
                scale.create_again_ns,
                scale.down_ns,
            ];
            line(
                to,
                &format!("  {} nodes{with}", scale.members),
                &times.map(ms),
            )?;
        }
        let idle = &self.idle;
        writeln!(
            to,
            "\n{} idle domains of {} members on {} nodes: created in {}, {:.2} % of a core, {}",
            idle.domains,
            idle.members,
            idle.nodes,
            ms(idle.create_ns),
            idle.cpu_share * 100.0,
            mebibytes(idle.pss_bytes),
        )?;
        let beside = format!(
            "\nBeside {} domains that change {:.0} times a second",
            self.busy_domains, self.busy_changes_per_s
        );
        writeln!(to, "{beside}")?;
        let heads = ["quiet p50", "quiet p99", "busy p50", "busy p99"].map(String::from);
        line(to, "", &heads)?;
        for row in &self.bystander {
            let times = [
                row.quiet_p50_ns,
                row.quiet_p99_ns,
                row.busy_p50_ns,
                row.busy_p99_ns,
            ];
            let times = times.map(|ns| crate::table::time(Some(ns)));
            line(to, &format!("  {}", row.op), &times)?;
        }
        Ok(())
    }
}

fn line(to: &mut String, label: &str, cells: &[String]) -> std::fmt::Result {
    write!(to, "{label:<26}")?;
    for cell in cells {
        write!(to, "{cell:>13}")?;
    }
    writeln!(to)
}

fn ms(ns: f64) -> String {
    crate::table::time(Some(ns))
}

fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

fn at_most(what: &'static str, found_ns: Option<f64>, limit_ms: f64) -> Target {
    Target {
        what,
        found: crate::table::time(found_ns),
        wanted: format!("at most {limit_ms} ms").into(),
        met: found_ns.map(|ns| ns <= limit_ms * 1e6),
    }
}

fn none(what: &'static str, found: u64) -> Target {
    Target {
        what,
        found: found.to_string(),
        wanted: "0".into(),
        met: Some(found == 0),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn report() -> Report {
        let row = Row {
            members: 8,
            p99_ns: 4e6,
            cycles: 3,
            ..Row::default()
        };
        let scale = |ethernet| Scale {
            members: 512,
            ethernet,
            up_ns: 1e9,
            create_ns: 1e9,
            rm_ns: 1e9,
            create_again_ns: 1e9,
            down_ns: 1.5e9,
        };
        Report {
            config: Config {
                provider: "shm",
                effort: Effort::Quick,
                rootless: false,
                data: "/tmp".into(),
                machine: Machine {
                    version: "1",
                    cpus: 2,
                    cpu: "fast".into(),
                    kernel: "6".into(),
                    busy: false,
                },
                huge_pages: "never".into(),
                elapsed_s: 1.0,
            },
            shrink: vec![row.clone()],
            grow: vec![row],
            inflight_failed_p99_ns: 0.0,
            leaked_bytes: 8,
            leaked_frames: 1,
            cycles: 3,
            stayers_failed: 0,
            read_p50_before_ns: 100.0,
            read_p50_after_ns: 106.0,
            fdatasync_p50_ns: 0.0,
            fdatasync_p99_ns: 0.0,
            fdatasync_busy_p99_ns: 0.0,
            rest: Some(Rest {
                scale: vec![scale(true), scale(false)],
                idle: Idle {
                    domains: 1,
                    members: 16,
                    nodes: 64,
                    create_ns: 0.0,
                    cpu_share: 0.0,
                    pss_bytes: 0,
                },
                busy_domains: 1,
                busy_changes_per_s: 0.0,
                bystander: Vec::new(),
            }),
        }
    }

    #[test]
    fn programs_find_the_keys_that_they_rely_on() {
        let json = serde_json::to_value(report()).unwrap();
        for key in [
            "inflight_failed_p99_ns",
            "leaked_bytes",
            "leaked_frames",
            "cycles",
            "read_p50_before_ns",
            "read_p50_after_ns",
            "fdatasync_p50_ns",
        ] {
            assert!(json[key].is_number(), "{key}");
        }
        for change in ["shrink", "grow"] {
            let row = &json[change][0];
            assert_eq!(row["export"], Value::from("none"));
            for key in [
                "members",
                "registered_bytes",
                "p50_ns",
                "p99_ns",
                "pause_p99_ns",
            ] {
                assert!(row[key].is_number(), "{change}: {key}");
            }
        }
    }

    #[test]
    fn what_passes_after_the_return_is_an_error_and_a_target_missed() {
        let report = report();
        assert_eq!(report.errors(), 9);
        let met = |what: &str| {
            let targets = report.targets();
            let target = targets.iter().find(|target| target.what.contains(what));
            target.unwrap().met
        };
        assert_eq!(met("Bytes after"), Some(false));
        assert_eq!(met("Frames and packets"), Some(false));
        assert_eq!(met("2 and 8 members"), Some(true));
        assert_eq!(met("512 members"), None, "it was not measured");
        assert_eq!(met("against before"), Some(false));
        assert_eq!(met("Create, rm and down"), Some(true));
        assert_eq!(met("without Ethernet"), Some(false));
        let text = report.render();
        assert!(
            text.contains("MISSED") && text.contains("not measured"),
            "{text}"
        );
    }
}
