//! The page.

use std::fmt::Write as _;

use anyhow::{Context, Result};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use plotters::style::RGBColor;
use serde_json::Value;

use super::charts::{self, Chart, Kind};
use super::draw::{self, COLOURS};
use super::format;
use super::papers::{self, Basis, Beside, Paper, Verdict};
use super::rows::{List, Row};
use crate::comparison::run::Run;

const STYLE: &str = include_str!("page.css");

/// Rows above which a table is folded.
const FOLDED: usize = 24;

/// Fields of the manifest in the list of runs, and their heads.
const SHOWN: [(&str, &str); 6] = [
    ("unix_time_s", "time"),
    ("host", "host"),
    ("cpu", "processor"),
    ("kernel", "kernel"),
    ("load", "load before"),
    ("steal", "steal"),
];

/// The page of these runs, and of the papers' numbers beside them.
pub fn page(runs: &[Run], papers: &[(Paper, Vec<Beside>)]) -> Result<String> {
    let sections: Result<Vec<Markup>> = runs
        .iter()
        .enumerate()
        .map(|(at, run)| section(at, run))
        .collect();
    let sections = sections?;
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { "toroid-bench report" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { "Measurements of communication domains" }
                (overview(runs))
                @if !papers.is_empty() { (all_papers(papers)) }
                @for section in &sections { (section) }
                footer { "Written by toroid-bench " (env!("CARGO_PKG_VERSION")) "." }
            }
        }
    };
    Ok(page.into_string())
}

fn command(run: &Run) -> String {
    let words = run.manifest.get("configuration").and_then(Value::as_array);
    let words = words.into_iter().flatten().filter_map(Value::as_str);
    let words: Vec<&str> = words.collect();
    if words.is_empty() {
        run.name.clone()
    } else {
        words.join(" ")
    }
}

fn overview(runs: &[Run]) -> Markup {
    html! {
        h2 { "Runs" }
        div.wide { table {
            thead { tr {
                th { "" } th { "command" } th { "file" }
                @for (_, head) in SHOWN { th { (head) } }
                th.number { "rows" }
            } }
            tbody { @for (at, run) in runs.iter().enumerate() { tr {
                td { (at + 1) }
                td { a href={ "#run-" (at + 1) } { (command(run)) } }
                td { (run.name) }
                @for (name, _) in SHOWN {
                    td { (format::value(name, "", run.manifest.get(name).unwrap_or(&Value::Null))) }
                }
                td.number { (run.rows.len()) }
            } } }
        } }
    }
}

fn all_papers(papers: &[(Paper, Vec<Beside>)]) -> Markup {
    html! {
        h2 { "Numbers of the papers" }
        p {
            "A number is reproduced if ours is within the deviation beside it, or keeps the paper's \
             bound. Shape only: all numbers of its table have the paper's order; a ratio is on the \
             paper's side of 1. A number without a run here names the command that finds it."
        }
        p { @for verdict in Verdict::ALL {
            span.verdict.(verdict.class()) { (papers::count(papers, verdict)) " " (verdict) } " "
        } }
        @for (paper, beside) in papers { (one_paper(paper, beside)) }
    }
}

fn one_paper(paper: &Paper, all: &[Beside]) -> Markup {
    let found = all.iter().filter(|beside| beside.ours.is_some()).count();
    html! {
        details open[found > 0] {
            summary {
                (paper.authors) ": " em { (paper.title) } " (" (paper.year) "), "
                (found) " of " (all.len()) " numbers found here"
            }
            div.wide { table {
                thead { tr {
                    th { "number" } th { "place" } th { "" } th.number { "paper" }
                    th.number { "ours" } th.number { "ours/paper" } th { "verdict" } th { "why" } th { "run" }
                } }
                tbody { @for (at, beside) in all.iter().enumerate() {
                    @let table = &paper.tables[beside.table];
                    tr.first[begins(at, all)] {
                        td { (table.name) ": " (beside.what) }
                        td { (table.place) }
                        td { @match table.basis { Basis::Stated => "stated", Basis::Derived => "derived" } }
                        (number(beside, &table.unit))
                    }
                } }
            } }
        }
    }
}

/// Whether a number begins another table than the one before.
fn begins(at: usize, beside: &[Beside]) -> bool {
    at > 0 && beside[at - 1].table != beside[at].table
}

/// The cells of a number.
fn number(beside: &Beside, unit: &str) -> Markup {
    let ours = beside.ours.as_ref();
    html! {
        td.number { (beside.paper) }
        td.number { @match ours {
            Some(ours) => { (format::number(ours.value)) " " (unit) }
            None => (format::NONE)
        } }
        td.number { (beside.ratio.map_or(format::NONE.into(), format::number)) }
        td { span.verdict.(beside.verdict.class()) { (beside.verdict) } }
        td.text { (beside.why) }
        td { @if let Some(ours) = ours {
            a href={ "#run-" (ours.run + 1) } { (ours.run + 1) }
            @let how = ours.how();
            @if !how.is_empty() { " (" (how) ")" }
        } }
    }
}

fn section(at: usize, run: &Run) -> Result<Markup> {
    let lists = List::all(run);
    let mut parts = Vec::new();
    for list in &lists {
        parts.push(one_list(list)?);
    }
    Ok(html! {
        section id={ "run-" (at + 1) } {
            h2 { (at + 1) ". " (command(run)) }
            p.file { (run.name) }
            @for part in &parts { (part) }
            (conditions("manifest", &Value::Object(run.manifest.clone())))
            @for (name, value) in &run.report {
                @if name != "manifest" && value.is_object() { (conditions(name, value)) }
            }
            (single(run))
        }
    })
}

fn one_list(list: &List) -> Result<Markup> {
    let mut figures = Vec::new();
    let charts = charts::charts(list);
    for chart in &charts {
        figures.push(figure(chart)?);
    }
    let undrawn = charts::undrawn(list, &charts);
    let table = table(list);
    Ok(html! {
        h3 { (list.name) }
        @if !figures.is_empty() { div.charts { @for figure in &figures { (figure) } } }
        @if undrawn > 0 {
            p {
                (undrawn) " of " (list.rows.len()) " rows not drawn: too near 0, too large, \
                 or without another row of their figure."
            }
        }
        details open[list.rows.len() <= FOLDED] {
            summary { "Table of " (list.rows.len()) " rows" }
            (table)
        }
    })
}

fn figure(chart: &Chart) -> Result<Markup> {
    let svg = draw::svg(chart).with_context(|| format!("cannot draw {}", chart.title))?;
    let of = match &chart.kind {
        Kind::Lines { .. } => format!("{}, median and interval of rounds", chart.of),
        Kind::Bars(_) => "median and interval of rounds".into(),
    };
    Ok(html! {
        figure {
            figcaption { strong { (chart.title) } " " (of) }
            (PreEscaped(svg))
            @if let Kind::Lines { lines, .. } = &chart.kind {
                p.legend { @for (line, colour) in lines.iter().zip(COLOURS) {
                    span.key style={ "background:" (hex(colour)) } {} (line.name) " "
                } }
            }
        }
    })
}

fn hex(RGBColor(red, green, blue): RGBColor) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}

fn table(list: &List) -> Markup {
    let is_shown = |name: &&String| {
        let is_there = list.rows.iter().any(|row| !row.get(name).is_null());
        is_there && list.common(name).is_none()
    };
    let labels: Vec<&String> = list.labels.iter().filter(is_shown).collect();
    let figures: Vec<&String> = list.figures.iter().filter(is_shown).collect();
    let has_rounds = list.has_rounds();
    html! {
        @if let Some(common) = common(list) { p { "In all rows: " (common) "." } }
        div.wide { table {
            thead { tr {
                @for name in &labels { th { (name) } }
                @if has_rounds {
                    th { "figure" } th.number { "median" } th.number { "95 % or quartiles" }
                    th.number { "QCD" } th.number { "rounds" }
                }
                @for name in &figures { th.number[is_number(list, name)] { (name) } }
            } }
            tbody { @for row in &list.rows { tr {
                @for name in &labels { td { (row.text(name)) } }
                @if has_rounds { (summary(row)) }
                @for name in &figures { td.number[is_number(list, name)] { (row.text(name)) } }
            } } }
        } }
    }
}

/// Fields with one value in all rows.
fn common(list: &List) -> Option<String> {
    let mut text = String::new();
    for name in list.labels.iter().chain(&list.figures) {
        let is_null = list.rows.iter().all(|row| row.get(name).is_null());
        if let Some(value) = list.common(name).filter(|_| !is_null) {
            let gap = if text.is_empty() { "" } else { ", " };
            // Nothing else fails than memory.
            let _ = write!(text, "{gap}{name} {value}");
        }
    }
    (!text.is_empty()).then_some(text)
}

fn is_number(list: &List, name: &str) -> bool {
    !list
        .rows
        .iter()
        .any(|row| row.get(name).is_string() || row.get(name).is_object())
}

/// The cells of the rounds.
fn summary(row: &Row) -> Markup {
    let measure = |value| format::measure(&row.of, value);
    html! {
        td { (row.of) }
        @match &row.summary {
            Some(summary) => {
                @let (name, ends) = match summary.ci {
                    Some(ci) => ("", ci),
                    None => ("q ", summary.quartiles),
                };
                td.number { (measure(summary.median)) }
                td.number { (name) (measure(ends.low)) " .. " (measure(ends.high)) }
                td.number { (format::number(summary.qcd)) }
                td.number { (summary.rounds.len()) }
            }
            None => { td {} td {} td {} td.number { "0" } }
        }
    }
}

/// An object of the report.
fn conditions(name: &str, value: &Value) -> Markup {
    let fields = value.as_object().into_iter().flatten();
    html! {
        details {
            summary { (name) }
            dl { @for (name, value) in fields {
                dt { (name) }
                dd { (format::value(name, "", value)) }
            } }
        }
    }
}

/// Values of the report beside lists and objects.
fn single(run: &Run) -> Markup {
    let is_single = |value: &Value| match value {
        Value::Array(values) => !values.is_empty() && !values.iter().any(Value::is_object),
        value => !value.is_object(),
    };
    let mut values = run
        .report
        .iter()
        .filter(|(_, value)| is_single(value))
        .peekable();
    html! {
        @if values.peek().is_some() {
            dl { @for (name, value) in values {
                dt { (name) }
                dd { (format::value(name, "", value)) }
            } }
        }
    }
}
