//! The audit log: an append-only file of every change and every denial, with its author.
//!
//! One line of JSON each, in `events.jsonl` of the data directory. At 4 MiB the file becomes
//! `events.jsonl.1`, and the one before that is removed: the log is bounded. A line is written
//! before the request is answered, and survives the agent; a power cut may take the last ones.
//!
//! With a full disk, changes go on as far as the directory has room: the log must not stop an
//! urgent shrink. The next line that can be written has the number of missing ones. Denials cannot
//! fill the log: of those to one user or node for one kind of request [`BURST`] are written in each
//! [`WINDOW`], and the next line has the number of the others.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use toroid_model::audit::{AuditEvent, Outcome};

use super::ownership;

/// Denials of one kind that are written in one [`WINDOW`].
pub const BURST: u64 = 8;

/// Period in which denials are counted together.
pub const WINDOW: Duration = Duration::from_secs(10);

const FILE: &str = "events.jsonl";
const OLD_FILE: &str = "events.jsonl.1";

/// Size at which a new file begins, in bytes.
const ROTATE_AT: u64 = 4 << 20;

/// Longest request that is kept whole, in bytes.
const MAX_REQUEST: usize = 1024;

/// Most counted kinds of denials; others are written as they come.
const MAX_COUNTED: usize = 4096;

/// A line: an event, and the users that may read it besides administrators.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Line {
    #[serde(flatten)]
    event: AuditEvent,
    concerns: BTreeSet<u32>,
}

/// The log, open for writing.
#[derive(Debug)]
pub struct Log {
    directory: PathBuf,
    file: File,
    len: u64,
    next: u64,
    /// Lines that could not be written.
    lost: u64,
    denials: BTreeMap<Kind, Series>,
}

/// Kind of denial: uid, node, host and name of the request.
type Kind = (Option<u32>, Option<String>, Option<String>, String);

/// Denials of one kind.
#[derive(Debug)]
struct Series {
    since_ms: u64,
    seen: u64,
}

impl Log {
    /// Opens the log of a data directory, or makes it. Removes a truncated last line.
    ///
    /// # Errors
    /// The system's.
    pub fn open(directory: &Path) -> io::Result<Self> {
        let path = directory.join(FILE);
        let mut options = OpenOptions::new();
        options.read(true).append(true).create(true).mode(0o600);
        let mut file = ownership::open(&mut options, &path)?;
        let len = cut_torn_line(&mut file)?;
        let lines = files(directory).into_iter().flat_map(read);
        let last = lines.map(|line| line.event.seq).max();
        let next = last.unwrap_or_default() + 1;
        Ok(Log {
            directory: directory.into(),
            file,
            len,
            next,
            lost: 0,
            denials: BTreeMap::new(),
        })
    }

    /// Number of the next line.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Appends a line, and fills in `seq`, `time_ms` and `unwritten`. Returns whether it was
    /// written.
    pub fn append(&mut self, mut event: AuditEvent, concerns: BTreeSet<u32>) -> bool {
        event.time_ms = now_ms();
        let Some(unwritten) = self.count(&event) else {
            return false;
        };
        event.unwritten = unwritten + self.lost;
        event.seq = self.next;
        if event.request.to_string().len() > MAX_REQUEST {
            event.request = Value::Null;
        }
        match self.write(&Line { event, concerns }) {
            Ok(()) => {
                self.next += 1;
                self.lost = 0;
                true
            }
            Err(error) => {
                tracing::warn!("cannot write the log of events: {error}");
                self.lost += 1;
                false
            }
        }
    }

    /// Number of unwritten denials of this kind before it; `None` if this one is not to be written
    /// either.
    fn count(&mut self, event: &AuditEvent) -> Option<u64> {
        if event.result != Outcome::Denied && event.result != Outcome::Exhausted {
            return Some(0);
        }
        let now = event.time_ms;
        let window = WINDOW.as_millis() as u64;
        let is_over = |series: &Series| now.saturating_sub(series.since_ms) > window;
        if self.denials.len() >= MAX_COUNTED {
            self.denials.retain(|_, series| !is_over(series));
        }
        let AuditEvent {
            uid,
            node,
            host,
            what,
            ..
        } = event;
        let key = (*uid, node.clone(), host.clone(), what.clone());
        let fresh = Series {
            since_ms: now,
            seen: 0,
        };
        let series = self.denials.entry(key).or_insert(fresh);
        let mut unwritten = 0;
        if is_over(series) {
            unwritten = series.seen.saturating_sub(BURST);
            *series = Series {
                since_ms: now,
                seen: 0,
            };
        }
        series.seen += 1;
        (series.seen <= BURST).then_some(unwritten)
    }

    fn write(&mut self, line: &Line) -> io::Result<()> {
        if self.len >= ROTATE_AT {
            self.rotate()?;
        }
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        if let Err(error) = self.file.write_all(&text) {
            // Part of the line may have been written.
            self.file.set_len(self.len)?;
            return Err(error);
        }
        self.len += text.len() as u64;
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        fs::rename(self.directory.join(FILE), self.directory.join(OLD_FILE))?;
        let mut options = OpenOptions::new();
        options.append(true).create(true).mode(0o600);
        self.file = ownership::open(&mut options, &self.directory.join(FILE))?;
        self.len = 0;
        Ok(())
    }
}

/// Opens the files of a log, the older one first. Lines appended later may be read, too; a file
/// renamed meanwhile stays the same.
pub fn files(directory: &Path) -> Vec<File> {
    let names = [OLD_FILE, FILE].into_iter();
    let opened = names.map(|name| File::open(directory.join(name)));
    opened.filter_map(Result::ok).collect()
}

/// Up to `limit` lines from number `since` on that `reader` may read: a user, or, when absent,
/// an administrator.
pub fn since(files: Vec<File>, since: u64, reader: Option<u32>, limit: usize) -> Vec<AuditEvent> {
    let may_read = |line: &Line| reader.is_none_or(|uid| line.concerns.contains(&uid));
    files
        .into_iter()
        .flat_map(read)
        .filter(|line| line.event.seq >= since && may_read(line))
        .take(limit)
        .map(|line| line.event)
        .collect()
}

/// Lines of a file; malformed ones are skipped.
fn read(file: File) -> impl Iterator<Item = Line> {
    let lines = BufReader::new(file).split(b'\n').map_while(Result::ok);
    lines.filter_map(|line| serde_json::from_slice(&line).ok())
}

/// Removes bytes after the last line end; returns the remaining length in bytes.
fn cut_torn_line(file: &mut File) -> io::Result<u64> {
    let (mut whole, mut line) = (0, Vec::new());
    file.seek(SeekFrom::Start(0))?;
    let mut lines = BufReader::new(&*file);
    while lines.read_until(b'\n', &mut line)? > 0 {
        if line.ends_with(b"\n") {
            whole += line.len() as u64;
        }
        line.clear();
    }
    file.set_len(whole)?;
    Ok(whole)
}

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(what: &str, result: Outcome) -> AuditEvent {
        AuditEvent {
            seq: 0,
            time_ms: 0,
            uid: Some(1000),
            pid: Some(1),
            node: None,
            host: None,
            what: what.into(),
            domain: Some("blue".into()),
            request: Value::Null,
            result,
            reason: None,
            unwritten: 0,
        }
    }

    fn numbers(directory: &Path, from: u64, reader: Option<u32>) -> Vec<u64> {
        let lines = since(files(directory), from, reader, 1000);
        lines.iter().map(|event| event.seq).collect()
    }

    #[test]
    fn lines_are_read_by_concerned_users() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let mut log = Log::open(path).unwrap();
        for uid in [1000, 1001, 1000] {
            assert!(log.append(event("domain_grow", Outcome::Done), [uid].into()));
        }
        assert_eq!(numbers(path, 1, None), [1, 2, 3]);
        assert_eq!(numbers(path, 2, None), [2, 3]);
        assert_eq!(numbers(path, 0, Some(1000)), [1, 3]);
        assert_eq!(numbers(path, 0, Some(7)), [0_u64; 0]);
        assert_eq!(since(files(path), 0, None, 2).len(), 2);
    }

    #[test]
    fn a_truncated_line_is_removed_and_numbers_continue() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let mut log = Log::open(path).unwrap();
        log.append(event("a", Outcome::Done), BTreeSet::new());
        log.append(event("b", Outcome::Done), BTreeSet::new());
        drop(log);
        let file = path.join(FILE);
        let bytes = fs::read(&file).unwrap();
        for cut in 1..40 {
            fs::write(&file, &bytes[..bytes.len() - cut]).unwrap();
            let mut log = Log::open(path).unwrap();
            assert_eq!(log.next(), 2, "cut off {cut}");
            log.append(event("c", Outcome::Done), BTreeSet::new());
            assert_eq!(numbers(path, 0, None), [1, 2]);
        }
    }

    #[test]
    fn denials_are_counted_and_changes_are_not() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = Log::open(directory.path()).unwrap();
        for _ in 0..100 {
            log.append(event("domain_rm", Outcome::Denied), BTreeSet::new());
        }
        assert_eq!(log.next(), BURST + 1);
        assert!(log.append(event("down", Outcome::Denied), BTreeSet::new()));
        let elsewhere = AuditEvent {
            host: Some("b".into()),
            ..event("domain_rm", Outcome::Denied)
        };
        assert!(log.append(elsewhere, BTreeSet::new()));
        for series in log.denials.values_mut() {
            series.since_ms -= 2 * WINDOW.as_millis() as u64;
        }
        log.append(event("domain_rm", Outcome::Denied), BTreeSet::new());
        let last = since(files(directory.path()), log.next() - 1, None, 1);
        assert_eq!(last[0].unwritten, 100 - BURST);
        for _ in 0..100 {
            assert!(log.append(event("domain_rm", Outcome::Done), BTreeSet::new()));
        }
    }

    #[test]
    fn the_log_is_bounded() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let mut log = Log::open(path).unwrap();
        let mut long = event("a", Outcome::Done);
        long.reason = Some("x".repeat(100_000));
        for _ in 0..130 {
            log.append(long.clone(), BTreeSet::new());
        }
        let sizes: u64 = [FILE, OLD_FILE]
            .iter()
            .map(|name| fs::metadata(path.join(name)).unwrap().len())
            .sum();
        assert!(sizes < 2 * ROTATE_AT + 200_000, "{sizes}");
        let kept = numbers(path, 0, None);
        assert_eq!(kept.last(), Some(&130));
        assert!(kept.windows(2).all(|pair| pair[1] == pair[0] + 1));
        assert_eq!(Log::open(path).unwrap().next(), 131);
    }
}
