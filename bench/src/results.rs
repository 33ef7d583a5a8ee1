//! Saved runs: `bench/results/NAME.json` in the repository, and files of all samples.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow, bail};
use serde::Serialize;

use crate::machine;
use crate::memory;
use crate::report::{Fields, Report};

/// The folder of saved runs in the repository.
const FOLDER: &str = "bench/results";

/// Destinations of a run, checked before the run so that no measurement is lost.
#[derive(Debug, Default)]
pub struct Keep {
    saved: Option<PathBuf>,
    raw: Option<(PathBuf, File)>,
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
        let open = |path: &Path| match File::create(path) {
            Ok(file) => Ok((path.to_owned(), file)),
            Err(source) => Err(failed(path, source)),
        };
        let raw = raw.map(open).transpose()?;
        Ok(Keep { saved, raw })
    }

    /// Writes the report with machine and command line, and all samples.
    pub fn write(self, report: &Report) -> Result<()> {
        if let Some((path, file)) = self.raw {
            write(file, &report.raw()).map_err(|source| failed(&path, source))?;
        }
        let Some(path) = self.saved else {
            return Ok(());
        };
        // A partial file under the final name would look like a result.
        let partial = path.with_extension("json.partial");
        File::create(&partial)
            .and_then(|file| write(file, &Saved::of(report)))
            .and_then(|()| fs::rename(&partial, &path))
            .map_err(|source| failed(&path, source))
    }
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
            command: std::iter::once("toroid-bench".into())
                .chain(std::env::args().skip(1))
                .collect(),
            commit: commit(),
            unix_time_s: now.map_or(0, |time| time.as_secs()),
            machine: machine
                .with("available_memory_bytes", memory::available())
                .with("huge_pages", memory::huge_pages()),
            report,
        }
    }
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

fn write(file: File, what: &impl Serialize) -> io::Result<()> {
    let mut file = BufWriter::new(file);
    serde_json::to_writer_pretty(&mut file, what)?;
    file.write_all(b"\n")?;
    file.flush()
}

fn failed(path: &Path, error: io::Error) -> anyhow::Error {
    anyhow!("cannot write {}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use serde_json::Value;

    use super::*;
    use crate::plan::Effort;

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
        let saved = Some(path.clone());
        let keep = Keep { saved, raw: None };
        let report = Report::new(Effort::Quick, Instant::now(), Fields::default());
        keep.write(&report).unwrap();
        let json: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        assert!(json["machine"]["kernel"].is_string() && json["command"].is_array());
        assert_eq!(json["report"]["config"]["effort"], "quick");
        assert_eq!(fs::read_dir(dir.path().join(FOLDER)).unwrap().count(), 1);
    }

    #[test]
    fn names_outside_the_results_folder_are_refused() {
        for name in ["", ".", "..", "a/b", "../a", ".hidden", "a b"] {
            let refused = path_of(Path::new("/"), name).unwrap_err();
            assert!(refused.to_string().contains("a name has"), "{name}");
        }
    }
}
