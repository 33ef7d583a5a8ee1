//! Saved runs: `bench/results/NAME.json` in the repository, and files of all samples.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow, bail};
use serde::Serialize;

use crate::machine;
use crate::manifest;
use crate::memory;
use crate::report::{Fields, Report};

/// The folder of saved runs in the repository.
const FOLDER: &str = "bench/results";

/// Destinations of a run, opened before the run so that no measurement is lost.
#[derive(Debug, Default)]
pub struct Keep {
    saved: Option<Output>,
    raw: Option<Output>,
}

impl Keep {
    /// Checks the names. Announces on standard error that a result of the same name will be
    /// replaced.
    pub fn check(save: Option<&str>, raw: Option<&Path>) -> Result<Self> {
        let here = std::env::current_dir().unwrap_or_else(|_| ".".into());
        let saved = save.map(|name| path_of(&here, name)).transpose()?;
        if let Some(path) = saved.as_deref().filter(|path| path.exists()) {
            eprintln!("toroid-bench: {} will be replaced", path.display());
        }
        Ok(Keep {
            saved: saved.as_deref().map(Output::create).transpose()?,
            raw: raw.map(Output::create).transpose()?,
        })
    }

    /// Writes the report with machine and command line; and all samples as lines of JSON, of which
    /// the first is the manifest.
    pub fn write(self, manifest: &Fields, report: &Report) -> Result<()> {
        if let Some(raw) = self.raw {
            raw.write(|to| {
                line(to, &Fields::default().with("manifest", manifest))?;
                report.raw().try_for_each(|round| line(to, &round))
            })?;
        }
        let Some(saved) = self.saved else {
            return Ok(());
        };
        saved.write(|to| {
            serde_json::to_writer_pretty(&mut *to, &Saved::of(report))?;
            writeln!(to)
        })
    }
}

/// A file that appears under its name once it is whole: a part of it would look like a result. A
/// device or a pipe is written directly.
#[derive(Debug)]
pub struct Output {
    path: PathBuf,
    partial: Option<PathBuf>,
    file: File,
}

impl Output {
    /// Opens the file beside `path`.
    pub fn create(path: &Path) -> Result<Self> {
        let is_special = fs::metadata(path).is_ok_and(|known| !known.is_file());
        let mut name = path.as_os_str().to_owned();
        name.push(".partial");
        let partial = (!is_special).then(|| PathBuf::from(name));
        // A device is neither created nor cut.
        let file = match &partial {
            Some(partial) => File::create(partial),
            None => File::options().write(true).open(path),
        };
        Ok(Output {
            path: path.into(),
            partial,
            file: file.map_err(|source| failed(path, source))?,
        })
    }

    /// Writes everything, then gives the file its name.
    pub fn write(mut self, what: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
        let mut to = BufWriter::new(&self.file);
        let written = what(&mut to).and_then(|()| to.flush());
        drop(to);
        let named = written.and_then(|()| match &self.partial {
            Some(partial) => fs::rename(partial, &self.path),
            None => Ok(()),
        });
        named.map_err(|source| failed(&self.path, source))?;
        self.partial = None;
        Ok(())
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if let Some(partial) = &self.partial {
            // Nothing more can be done where this fails.
            let _ = fs::remove_file(partial);
        }
    }
}

/// Writes one line of JSON.
fn line(to: &mut dyn Write, what: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *to, what)?;
    writeln!(to)
}

#[derive(Serialize)]
struct Saved<'a> {
    command: Vec<String>,
    /// The commit of the repository; null if git does not tell.
    commit: Option<String>,
    unix_time_s: u64,
    machine: Fields,
    report: &'a Report,
}

impl<'a> Saved<'a> {
    fn of(report: &'a Report) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let machine = machine::fields();
        Saved {
            command: command(),
            commit: commit(),
            unix_time_s: now.map_or(0, |time| time.as_secs()),
            machine: machine
                .with("available_memory_bytes", memory::available())
                .with("huge_pages", memory::huge_pages()),
            report,
        }
    }
}

fn command() -> Vec<String> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments = manifest::without_secret(&arguments).into_iter();
    let words = std::iter::once("toroid-bench").chain(arguments);
    words.map(String::from).collect()
}

fn commit() -> Option<String> {
    let arguments = ["describe", "--always", "--dirty", "--abbrev=12"];
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim_end().into())
}

/// The file of result `name` in the repository that contains `here`.
fn path_of(here: &Path, name: &str) -> Result<PathBuf> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.starts_with('.') || !name.chars().all(is_allowed) {
        bail!(
            "cannot save a run as {name:?}: a name has letters, digits, '-', '_' and '.' and begins with \
             no '.'"
        );
    }
    let mut above = here.ancestors();
    let root = above.find(|root| root.join("bench/Cargo.toml").is_file());
    let root = root.with_context(|| {
        let here = here.display();
        format!(
            "cannot save a run: neither {here} nor a folder above it has a folder bench; run it in the \
             repository"
        )
    })?;
    let folder = root.join(FOLDER);
    fs::create_dir_all(&folder).map_err(|source| failed(&folder, source))?;
    Ok(folder.join(format!("{name}.json")))
}

fn failed(path: &Path, error: io::Error) -> anyhow::Error {
    anyhow!("cannot write {}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use serde_json::{Value, json};

    use super::*;
    use crate::plan::Effort;
    use crate::report::Row;
    use crate::samples::{Samples, Series};

    #[test]
    fn a_result_is_saved_with_its_machine_in_the_repository() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("docs/deep");
        fs::create_dir_all(&deep).unwrap();
        let missing = path_of(&deep, "a").unwrap_err().to_string();
        assert!(missing.contains("run it in the repository"), "{missing}");
        fs::create_dir(dir.path().join("bench")).unwrap();
        fs::write(dir.path().join("bench/Cargo.toml"), "").unwrap();
        let path = path_of(&deep, "a").unwrap();
        assert_eq!(path, dir.path().join("bench/results/a.json"));
        let saved = Some(Output::create(&path).unwrap());
        let keep = Keep { saved, raw: None };
        let report = Report::new(Effort::Quick, Instant::now(), Fields::default());
        keep.write(&Fields::default(), &report).unwrap();
        let json: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        assert!(json["machine"]["kernel"].is_string() && json["command"].is_array());
        assert_eq!(json["report"]["config"]["effort"], "quick");
        assert_eq!(fs::read_dir(dir.path().join(FOLDER)).unwrap().count(), 1);
    }

    #[test]
    fn all_samples_are_lines_after_the_manifest() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("raw");
        let keep = Keep::check(None, Some(&path)).unwrap();
        assert!(!path.exists(), "an unfinished file looks like a result");
        let mut report = Report::default();
        let mut series = Series::from(Samples::errors(1));
        series.add(Samples {
            samples_ns: vec![2.5, 4.0],
            ..Samples::default()
        });
        report.rows("rows", &[Row::of(&series).label("op", "get")]);
        let manifest = Fields::default().with("host", "a");
        keep.write(&manifest, &report).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| line.parse().unwrap()).collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[0], json!({"manifest": {"host": "a"}}));
        let labels = (&lines[2]["list"], &lines[2]["op"], &lines[2]["round"]);
        assert_eq!(labels, (&json!("rows"), &json!("get"), &json!(1)));
        assert_eq!(lines[2]["measured"]["samples_ns"], json!([2.5, 4.0]));
    }

    #[test]
    fn an_output_that_cannot_be_written_is_named_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("raw");
        let full = |_: &mut dyn Write| Err(io::Error::from(io::ErrorKind::StorageFull));
        let error = Output::create(&path).unwrap().write(full).unwrap_err();
        assert!(
            error.to_string().contains("raw: no storage space"),
            "{error}"
        );
        drop(Output::create(&path).unwrap());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        let device = Output::create("/dev/full".as_ref()).unwrap();
        let error = device.write(|to| line(to, &1)).unwrap_err();
        assert!(error.to_string().contains("/dev/full: No space"), "{error}");
        let missing = Output::create(&dir.path().join("no/raw")).unwrap_err();
        assert!(missing.to_string().contains("no/raw: No such"), "{missing}");
    }

    #[test]
    fn names_outside_the_results_folder_are_refused() {
        for name in ["", ".", "..", "a/b", "../a", ".hidden", "a b"] {
            let refused = path_of(Path::new("/"), name).unwrap_err();
            assert!(refused.to_string().contains("a name has"), "{name}");
        }
    }
}
