//! Real input: regular files in blocks, stored under the hash of their content.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, anyhow, bail};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use walkdir::WalkDir;

use super::store::{Client, StoreOp};
use crate::samples::Samples;

/// The longest block in bytes.
pub const BLOCK: usize = 64 * 1024;

/// Marks a directory that is no input, by the Cache Directory Tagging Specification, which cargo
/// follows for `target`.
const CACHE_TAG: &str = "CACHEDIR.TAG";

/// Checks that `dir` is usable and has a file with content.
pub fn check(dir: &Path) -> Result<()> {
    if dir.to_str().is_none() {
        // JSON of orders and reports has no other paths.
        let remedy = "give it another name, or another directory with --dir";
        bail!(
            "cannot use {}: its path is not UTF-8; {remedy}",
            dir.display()
        );
    }
    let mut blocks = Blocks::under(dir, 1, None)?;
    match blocks.next() {
        Some(_) => Ok(()),
        None => Err(blocks.nothing()),
    }
}

/// Some blocks of real input over each path.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FileSamples {
    /// Samples per path and operation; empty at the end of the input.
    pub samples: Vec<(crate::plan::Path, StoreOp, Samples)>,
    pub tally: Tally,
}

/// Counts of a run's input.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Files read to their end, or to the limit.
    pub files: u64,
    /// Blocks cut.
    pub blocks: u64,
    /// Bytes in these blocks.
    pub bytes: u64,
    /// Files and directories that could not be read completely.
    pub unreadable: u64,
    /// Skipped directories with `CACHEDIR.TAG`.
    pub caches: u64,
    /// Whether bytes or time ended the reading.
    pub limited: bool,
}

/// A block and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The SHA-256 of the content in hexadecimal digits.
    pub name: Vec<u8>,
    /// 1 to [`BLOCK`] bytes.
    pub content: Vec<u8>,
}

impl Block {
    fn new(content: Vec<u8>) -> Self {
        let digest = Sha256::digest(&content);
        let name = digest
            .iter()
            .flat_map(|byte| format!("{byte:02x}").into_bytes());
        let name = name.collect();
        Block { name, content }
    }
}

/// The blocks of the regular files under a directory, in path order. Symbolic links are not
/// followed. Files of length 0 are not opened: kernel files have that length, and a read of some
/// waits for events.
#[derive(Debug)]
pub struct Blocks {
    dir: PathBuf,
    walk: walkdir::IntoIter,
    open: Option<File>,
    left: u64,
    end: Option<Instant>,
    tally: Tally,
}

impl Blocks {
    /// The blocks under `dir`, up to `limit` bytes and until `end`. The first block is exempt from
    /// `end`, so that there is a result.
    pub fn under(dir: &Path, limit: u64, end: Option<Instant>) -> Result<Self> {
        if let Err(error) = fs::read_dir(dir) {
            let remedy = "give a directory that can be read with --dir";
            bail!("cannot read {}: {error}; {remedy}", dir.display());
        }
        Ok(Blocks {
            dir: dir.into(),
            walk: WalkDir::new(dir).sort_by_file_name().into_iter(),
            open: None,
            left: limit,
            end,
            tally: Tally::default(),
        })
    }

    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Whether bytes or time are used up.
    fn is_over(&self) -> bool {
        let late = self.tally.blocks > 0 && self.end.is_some_and(|end| Instant::now() >= end);
        self.left == 0 || late
    }

    /// The error of an input without blocks.
    pub fn nothing(&self) -> anyhow::Error {
        let Tally {
            unreadable, caches, ..
        } = self.tally;
        anyhow!(
            "no file under {} has anything to read ({unreadable} could not be read, {caches} marked with \
             {CACHE_TAG}); give a directory with files with --dir",
            self.dir.display()
        )
    }

    fn next_block(&mut self) -> io::Result<Option<Block>> {
        let Some(file) = &mut self.open else {
            return Ok(None);
        };
        let mut content = Vec::new();
        let limit = self.left.min(BLOCK as u64);
        file.take(limit).read_to_end(&mut content)?;
        if content.is_empty() {
            return Ok(None);
        }
        self.left -= content.len() as u64;
        self.tally.blocks += 1;
        self.tally.bytes += content.len() as u64;
        Ok(Some(Block::new(content)))
    }

    /// Opens the next file. Returns whether there is one.
    fn open_next(&mut self) -> bool {
        while let Some(entry) = self.walk.next() {
            match entry
                .map_err(io::Error::from)
                .and_then(|entry| self.enter(&entry))
            {
                Ok(true) => return true,
                Ok(false) => {}
                Err(_) => self.tally.unreadable += 1,
            }
        }
        false
    }

    /// Opens a regular file, or skips a tagged directory. Returns whether a file is open.
    fn enter(&mut self, entry: &walkdir::DirEntry) -> io::Result<bool> {
        let kind = entry.file_type();
        if kind.is_dir() && entry.depth() > 0 && entry.path().join(CACHE_TAG).is_file() {
            self.tally.caches += 1;
            self.walk.skip_current_dir();
        }
        if !kind.is_file() || entry.metadata()?.len() == 0 {
            return Ok(false);
        }
        self.open = Some(File::open(entry.path())?);
        self.tally.files += 1;
        Ok(true)
    }
}

impl Iterator for Blocks {
    type Item = Block;

    fn next(&mut self) -> Option<Block> {
        loop {
            if self.is_over() {
                self.tally.limited = true;
                return None;
            }
            match self.next_block() {
                Ok(Some(block)) => return Some(block),
                Ok(None) => {}
                Err(_) => self.tally.unreadable += 1,
            }
            self.open = None;
            if !self.open_next() {
                return None;
            }
        }
    }
}

/// Stores `blocks`, with a sample for each.
pub fn store<C: Client>(client: &mut C, blocks: &[Block]) -> Result<Samples> {
    let mut samples = Samples::default();
    for block in blocks {
        let start = Instant::now();
        client.set(&block.name, &block.content)?;
        samples.record(start.elapsed(), block.content.len(), true);
    }
    Ok(samples)
}

/// Reads `blocks` back; missing and wrong blocks are errors.
pub fn read_back<C: Client>(client: &mut C, blocks: &[Block]) -> Result<Samples> {
    let mut samples = Samples::default();
    for block in blocks {
        let start = Instant::now();
        let found = client.get(&block.name)?;
        samples.record(start.elapsed(), block.content.len(), true);
        samples.errors += u64::from(!(found && client.value() == block.content));
    }
    Ok(samples)
}

/// Removes `blocks`, so that later reads see later sets.
pub fn forget<C: Client>(client: &mut C, blocks: &[Block]) -> Result<()> {
    for block in blocks {
        // Equal blocks share a key, so the second is absent.
        client.delete(&block.name)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn input_is_ordered_and_skips_links_and_caches() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::create_dir_all(path("b/target")).unwrap();
        fs::write(path("a"), b"abc").unwrap();
        fs::write(path("b/long"), vec![7; BLOCK + 1]).unwrap();
        fs::write(path("b/target").join(CACHE_TAG), b"tag").unwrap();
        fs::write(path("empty"), b"").unwrap();
        symlink(path("a"), path("link")).unwrap();
        symlink(dir.path(), path("loop")).unwrap();

        let mut blocks = Blocks::under(dir.path(), u64::MAX, None).unwrap();
        let all: Vec<Block> = blocks.by_ref().collect();
        let lens: Vec<usize> = all.iter().map(|block| block.content.len()).collect();
        assert_eq!(lens, [3, BLOCK, 1]);
        assert_eq!(
            all[0].name,
            b"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        let expected = Tally {
            files: 2,
            blocks: 3,
            bytes: BLOCK as u64 + 4,
            caches: 1,
            ..Tally::default()
        };
        assert_eq!(*blocks.tally(), expected);
    }

    #[test]
    fn the_limit_may_end_within_a_file() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("long"), vec![7; 3 * BLOCK]).unwrap();
        let mut blocks = Blocks::under(dir.path(), BLOCK as u64 + 10, None).unwrap();
        assert_eq!(blocks.by_ref().count(), 2);
        assert_eq!(blocks.tally().bytes, BLOCK as u64 + 10);
        assert!(blocks.tally().limited);
    }

    #[test]
    fn the_first_block_is_exempt_from_the_deadline() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a", "b", "c"] {
            fs::write(dir.path().join(name), name).unwrap();
        }
        let past = Some(Instant::now());
        let mut blocks = Blocks::under(dir.path(), u64::MAX, past).unwrap();
        assert_eq!(blocks.by_ref().count(), 1);
        assert!(blocks.tally().limited);
    }

    fn refusal(dir: &Path) -> String {
        check(dir).unwrap_err().to_string()
    }

    #[test]
    fn the_error_names_a_missing_directory() {
        let text = refusal(Path::new("/nonexistent"));
        assert!(text.contains("/nonexistent: No such file"), "{text}");
        assert!(text.contains("--dir"), "{text}");
    }

    #[test]
    fn a_path_that_is_not_utf8_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join(OsStr::from_bytes(b"latin-\xe4"));
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("file"), b"1").unwrap();
        let text = refusal(&dir);
        assert!(text.contains("not UTF-8"), "{text}");
    }

    #[test]
    fn the_input_needs_at_least_one_byte() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("deep/er")).unwrap();
        fs::write(dir.path().join("empty"), b"").unwrap();
        let text = refusal(dir.path());
        assert!(text.contains(&dir.path().display().to_string()), "{text}");
        assert!(text.contains("--dir"), "{text}");

        fs::write(dir.path().join("deep/er/one"), b"1").unwrap();
        assert!(check(dir.path()).is_ok());
    }
}
