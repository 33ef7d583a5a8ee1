//! `toroid events`: the audit log of changes and denials.

mod words;

use clap::Args;
use jiff::Timestamp;
use toroid_client::admin::Control;
use toroid_model::audit::{AuditEvent, Outcome};

use super::{DONE, Run, Session};
use crate::failure::Failure;
use crate::names;
use crate::output::{Show, line};

#[derive(Debug, Args)]
pub(crate) struct Events {
    /// Wait for new events until interrupted
    #[arg(short, long)]
    follow: bool,
    /// Start at this sequence number
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    since: u64,
}

impl Run for Events {
    fn run(self, session: &Session) -> Result<u8, Failure> {
        list(&mut session.connect()?, &self, session.show)?;
        Ok(DONE)
    }
}

fn list(agent: &mut Control, options: &Events, show: Show) -> Result<(), Failure> {
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

fn print(event: &AuditEvent, show: Show) {
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

/// A time in the form of RFC 3339, in UTC.
fn time(ms: u64) -> String {
    let time = i64::try_from(ms)
        .ok()
        .and_then(|ms| Timestamp::from_millisecond(ms).ok());
    time.unwrap_or(Timestamp::MAX)
        .strftime("%Y-%m-%dT%H:%M:%S%.3fZ")
        .to_string()
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
