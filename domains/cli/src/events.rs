//! `toroid events`: what was changed and what was denied, and who asked.

mod words;

use toroid_client::admin::Control;
use toroid_model::audit::{Happening, Outcome};

use crate::args::Events;
use crate::failure::Failure;
use crate::names;
use crate::show::{Show, line};

pub(crate) fn run(agent: &mut Control, options: &Events, show: Show) -> Result<(), Failure> {
    let mut next = options.since;
    loop {
        let asked = next;
        let (events, after) = agent.events(next, false)?;
        for event in &events {
            print(event, show);
        }
        next = after.max(next);
        if !events.is_empty() || next > asked {
            continue;
        }
        if !options.follow {
            return Ok(());
        }
        // Returns when something has happened, or after a while.
        let (events, after) = agent.events(next, true)?;
        for event in &events {
            print(event, show);
        }
        next = after.max(next);
    }
}

fn print(event: &Happening, show: Show) {
    if show.json {
        return show.value(event);
    }
    let who = match (&event.node, event.uid) {
        (Some(node), _) => format!("node {node}"),
        (None, Some(uid)) => names::user(uid),
        (None, None) => "-".into(),
    };
    let process = event
        .pid
        .map_or_else(String::new, |pid| format!(", process {pid}"));
    let host = event
        .host
        .as_ref()
        .map_or_else(String::new, |host| format!(", host {host}"));
    let result = match event.result {
        Outcome::Done => "done",
        Outcome::Denied => "denied",
        Outcome::Exhausted => "exhausted",
        Outcome::Failed => "failed",
    };
    let reason = event.reason.as_deref();
    let reason = reason.map_or_else(String::new, |why| format!(": {}", names::with_names(why)));
    let unwritten = match event.unwritten {
        0 => String::new(),
        n => format!(" (and {n} before that were not written)"),
    };
    line!(
        "{}  {}  {who}{process}{host}  {}  {result}{reason}{unwritten}",
        event.seq,
        time(event.time_ms),
        words::of(event)
    );
}

/// As in RFC 3339, in UTC.
fn time(ms: u64) -> String {
    let (days, of_day) = (ms / 86_400_000, ms % 86_400_000);
    let (hour, minute) = (of_day / 3_600_000, of_day / 60_000 % 60);
    let (second, ms) = (of_day / 1000 % 60, of_day % 1000);
    let (year, month, day) = date(days);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

/// Year, month and day, so many days after 1970 began. Years are counted from March, so that the
/// leap day is their last.
fn date(days: u64) -> (u64, u64, u64) {
    const DAYS_OF_400_YEARS: u64 = 146_097;
    let days = days + 719_468;
    let (era, of_era) = (days / DAYS_OF_400_YEARS, days % DAYS_OF_400_YEARS);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_735_689_599_999, "2024-12-31T23:59:59.999Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(time(ms), text);
        }
    }
}
