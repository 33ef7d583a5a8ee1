//! A finished run as JSON and as a table.

use toroid_fabric::routes::Mode;

use super::{Done, Options, Task};
use crate::report::Fields;
use crate::table::{self, Table};

/// The row of a run.
pub fn fields(options: &Options, task: &Task, done: &Done) -> Fields {
    let busiest = done.busiest();
    let events = done.network.events();
    let by_mode = |fields: Fields, (mode, bytes): (Mode, u64)| fields.with(mode.name(), bytes);
    Fields::default()
        .with("program", task.name())
        .with("size", task.size())
        .with("fabric", options.fabric.to_string())
        .with("level", options.level)
        .with("nodes", options.nodes)
        .with("routing", options.routing.name())
        .with("placement", options.placement.to_string())
        .with("seed", options.seed)
        .with("elapsed_ns", done.elapsed_ns())
        .with("communication", done.communication())
        .with("messages", done.sum(|usage| usage.messages))
        .with("bytes", done.sum(|usage| usage.bytes))
        .with("checked", true)
        .with(
            "busiest_link",
            busiest.map(|link| options.fabric.link(link.link)),
        )
        .with("busiest_bytes", busiest.map(|link| link.bytes))
        .with("non_minimal", done.network.routed().share_non_minimal())
        .with(
            "bytes_by_mode",
            done.modes().fold(Fields::default(), by_mode),
        )
        .with("skipped_bytes", done.traffic.skipped_bytes)
        .with("decisions", done.traffic.decisions)
        .with("switches", done.traffic.switches)
        .with("events", events)
        .with("events_per_s", events as f64 / done.real_s)
        .with("real_s", done.real_s)
}

/// The row for people.
pub fn text(options: &Options, task: &Task, done: &Done) -> Table {
    let mut table = Table::new(2, &["", ""]);
    let mut line = |name: &str, value: String| table.row([name.to_owned(), value]);
    line("program", task.to_string());
    let Options {
        fabric,
        nodes,
        level,
        placement,
        ..
    } = options;
    let level = crate::report::name(level);
    line(
        "machine",
        format!("{nodes} nodes of {fabric}, {placement}; {level}"),
    );
    let elapsed = table::time(Some(done.elapsed_ns() as f64));
    line(
        "time",
        format!("{elapsed} of virtual time; the result is right"),
    );
    line("communication", table::percent(Some(done.communication())));
    let megabytes = done.sum(|usage| usage.bytes) as f64 / 1e6;
    let messages = done.sum(|usage| usage.messages);
    line("messages", format!("{messages} with {megabytes:.2} MB"));
    if let Some(link) = done.busiest() {
        let megabytes = link.bytes as f64 / 1e6;
        let name = fabric.link(link.link);
        line(
            "busiest link",
            format!("{name}: {megabytes:.2} MB on the wire"),
        );
    }
    line("routing", routing(options, done));
    let events = done.network.events() as f64;
    let rate = events / done.real_s / 1e6;
    let events = events / 1e6;
    line(
        "simulator",
        format!(
            "{events:.2} M events in {:.2} s: {rate:.1} M/s",
            done.real_s
        ),
    );
    table
}

/// Traffic by mode as a sentence.
fn routing(options: &Options, done: &Done) -> String {
    let total = done.traffic.total_bytes();
    let share = |(mode, bytes): (Mode, u64)| {
        format!(
            "{mode} {}",
            table::percent(Some(bytes as f64 / total as f64))
        )
    };
    let shares: Vec<String> = done.modes().map(share).collect();
    if shares.is_empty() {
        return format!("{}: no messages", options.routing.name());
    }
    let non_minimal = table::percent(Some(done.network.routed().share_non_minimal()));
    format!(
        "{}: {} of the bytes; {} decisions, {} switches; {non_minimal} not minimal",
        options.routing.name(),
        shares.join(", "),
        done.traffic.decisions,
        done.traffic.switches
    )
}
