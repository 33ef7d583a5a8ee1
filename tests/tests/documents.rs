//! README.md and `docs/` as a reader meets them: each relative link leads somewhere, prose has no
//! long lines, and the declared file can be applied.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use toroid_model::declare::{self, Surroundings};

/// Characters of a line of prose, at most.
const WIDTH: usize = 100;

fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    root.canonicalize()
        .expect("the package is in the workspace")
}

/// The documents by their paths below the root.
fn documents() -> BTreeMap<PathBuf, String> {
    let docs = fs::read_dir(root().join("docs")).expect("there is docs/");
    let docs = docs.map(|entry| entry.expect("docs/ can be read").path());
    let pages = docs.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("a document is UTF-8");
        let name = path.strip_prefix(root()).expect("it is below the root");
        (name.to_owned(), text)
    };
    pages.chain([root().join("README.md")]).map(read).collect()
}

/// Lines outside of code blocks, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_fence && !is_code
    })
}

/// A line without its code spans.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect()
}

/// The relative targets of the links of a line.
fn targets(line: &str) -> Vec<String> {
    let plain = without_code(line);
    let links = plain.split("](").skip(1);
    let links = links.filter_map(|rest| Some(rest.split_once(')')?.0.to_owned()));
    links.filter(|target| !target.contains(':')).collect()
}

/// The anchors of a page: GitHub's form of its headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for (_, line) in prose(text).filter(|(_, line)| line.starts_with('#')) {
        let heading = line.trim_start_matches('#').trim().to_lowercase();
        // The target of a link is not part of its text.
        let heading = heading
            .split("](")
            .map(|part| part.split_once(')').unwrap_or(("", part)).1);
        let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
        let anchor: String = heading.collect::<String>().chars().filter(kept).collect();
        let anchor = anchor.replace(' ', "-");
        let numbered = (0..).map(|n| match n {
            0 => anchor.clone(),
            n => format!("{anchor}-{n}"),
        });
        let mut new = numbered.skip_while(|anchor| anchors.contains(anchor));
        anchors.extend(new.next());
    }
    anchors
}

/// The problem of a link in a document, if it has one.
fn problem(documents: &BTreeMap<PathBuf, String>, from: &Path, target: &str) -> Option<String> {
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let directory = from.parent().unwrap_or(Path::new(""));
    let place = match path {
        "" => root().join(from),
        path => root().join(directory).join(path),
    };
    let Ok(place) = place.canonicalize() else {
        return Some(format!("there is no {path}"));
    };
    let name = place.strip_prefix(root()).ok()?;
    let page = documents.get(name).filter(|_| !anchor.is_empty())?;
    let is_there = anchors(page).contains(anchor);
    (!is_there).then(|| format!("{} has no heading #{anchor}", name.display()))
}

#[test]
fn relative_links_lead_somewhere() {
    let (documents, mut wrong) = (documents(), Vec::new());
    for (path, text) in &documents {
        for (number, line) in prose(text) {
            let problems = targets(line).into_iter();
            let problems = problems.filter_map(|target| problem(&documents, path, &target));
            wrong.extend(problems.map(|problem| format!("{}:{number}: {problem}", path.display())));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Tables, headings and lines that consist of one link cannot be broken.
#[test]
fn prose_has_no_long_lines() {
    let mut wrong = Vec::new();
    for (path, text) in documents() {
        for (number, line) in prose(&text) {
            let start = line.trim_start();
            let is_link = start.starts_with('[') && !start.contains(' ');
            let can_break = !start.starts_with(['|', '#']) && !is_link;
            if can_break && line.chars().count() > WIDTH {
                let len = line.chars().count();
                wrong.push(format!("{}:{number}: {len} characters", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn anchors_are_those_of_github() {
    let text = "# A `b` c: d\n## [Two](x.md#y) words\n```\n# no\n```\n# A `b` c: d\n";
    let expected = ["a-b-c-d", "two-words", "a-b-c-d-1"].map(String::from);
    assert_eq!(anchors(text), BTreeSet::from(expected));
    assert_eq!(
        targets("see [it](a.md#b), `[no](c)`, [far](https://d)"),
        ["a.md#b"]
    );
}

#[test]
fn the_documented_file_is_a_good_one() {
    let around = Surroundings {
        hosts: BTreeMap::new(),
        torus: "4x4x4".parse().expect("a torus"),
        aliases: BTreeMap::new(),
        user: &|name| (name == "alice").then_some(1000),
    };
    let documents = documents();
    let handbook = &documents[Path::new("docs/operating.md")];
    let file = handbook.split("```toml\n").nth(1).expect("a file");
    let file = file.split("```").next().expect("its end");
    let file = declare::parse(file, &around).unwrap_or_else(|problems| panic!("{problems:?}"));
    assert_eq!(file.domains["blue"].members.len(), 5);
    assert_eq!(file.owners.len(), 4);
}
