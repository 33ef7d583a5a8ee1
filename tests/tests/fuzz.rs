//! The [targets](tests::fuzz) with a stable compiler: the corpus, and changes of it that are the
//! same each time.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use tests::cluster::is_nightly;
use tests::forged::Neighbours;
use tests::fuzz::{TARGETS, Target};
use tests::random::Random;

/// Changes of each file, but for targets that make a file of their own each time.
const CHANGES: u64 = 3000;
const SLOW_CHANGES: u64 = 150;

/// Packets of a node that has its kernel send anything.
const FORGED: u64 = 100_000;
const NIGHTLY_FORGED: u64 = 10_000_000;

fn corpus(name: &str) -> Vec<(String, Vec<u8>)> {
    let place: PathBuf = [env!("CARGO_MANIFEST_DIR"), "corpus", name]
        .iter()
        .collect();
    let mut files: Vec<_> = fs::read_dir(&place)
        .unwrap_or_else(|error| panic!("{}: {error}", place.display()))
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    let read = |path: PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        (name, fs::read(path).unwrap())
    };
    files.into_iter().map(read).collect()
}

/// Runs a target, and reports the input when it panics.
fn run(name: &str, target: Target, bytes: &[u8]) -> bool {
    catch_unwind(AssertUnwindSafe(|| target(bytes))).unwrap_or_else(|_| {
        let text = String::from_utf8_lossy(bytes);
        panic!("target {name} does not bear {bytes:?}, as text {text:?}")
    })
}

#[test]
fn what_is_valid_is_accepted_and_all_else_refused() {
    for (name, target) in TARGETS {
        let files = corpus(name);
        let valid = |(file, _): &&(String, Vec<u8>)| file.starts_with("valid");
        assert!(
            files.iter().any(|file| valid(&file)),
            "{name} has nothing valid"
        );
        for (file, bytes) in &files {
            let accepted = run(name, target, bytes);
            assert_eq!(accepted, file.starts_with("valid"), "{name}/{file}");
        }
    }
}

#[test]
fn no_change_of_the_corpus_breaks_anything() {
    for (name, target) in TARGETS {
        let files: Vec<Vec<u8>> = corpus(name).into_iter().map(|(_, bytes)| bytes).collect();
        let changes = match name {
            "directory_file" => SLOW_CHANGES,
            _ => CHANGES,
        };
        for seed in 0..changes {
            let mut random = Random(seed);
            run(name, target, &changed(&files, &mut random));
        }
    }
}

#[test]
fn forged_packets_reach_nobody_outside() {
    let files = ["frame", "segment"].map(corpus).concat();
    let files: Vec<Vec<u8>> = files.into_iter().map(|(_, bytes)| bytes).collect();
    let mut neighbours = Neighbours::default();
    let count = if is_nightly() { NIGHTLY_FORGED } else { FORGED };
    let mut reached = 0;
    for seed in 0..count {
        let mut random = Random(seed);
        let mut packet = changed(&files, &mut random);
        if random.below(8) > 0 {
            Neighbours::sign(&mut packet);
        }
        let send = || neighbours.send(&packet);
        let sent = catch_unwind(AssertUnwindSafe(send));
        reached += u64::from(sent.unwrap_or_else(|_| panic!("seed {seed}: {packet:?}")));
    }
    assert!(
        reached > count / 20,
        "only {reached} of {count} were good enough to try anything"
    );
}

/// Bytes that often mean something.
const LIKELY: [u8; 12] = *b"\x00\x01\x7f\x80\xff\"{}[],0";

/// A file of the corpus with a few changes.
fn changed(files: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut bytes = files[random.below(files.len())].clone();
    for _ in 0..=random.below(6) {
        let (at, len) = (random.below(bytes.len()), bytes.len());
        match random.below(7) {
            _ if bytes.is_empty() => bytes.push(random.number() as u8),
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = LIKELY[random.below(LIKELY.len())],
            2 => bytes.insert(at, random.number() as u8),
            3 => bytes.truncate(at),
            4 => drop(bytes.drain(random.range(len))),
            5 => {
                let copy = bytes[random.range(len)].to_vec();
                bytes.splice(at..at, copy);
            }
            _ => {
                let other = &files[random.below(files.len())];
                let part = other[random.range(other.len())].to_vec();
                bytes.splice(at..at, part);
            }
        }
    }
    bytes
}
