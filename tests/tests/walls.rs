//! Walls between the packages of this workspace, and between the folders of a package.
//!
//! A package uses no others of the workspace than [`ALLOWED`] lists. The modules directly below
//! `src` of a package, files or folders with all below them, form no cycle in which a folder takes
//! part. Both are read off the source text: `use` lines, and paths outside of comments, texts and
//! unit tests.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Packages, by the names of their libraries, and those that each may use.
const ALLOWED: &[(&str, &[&str])] = &[
    ("toroid_fabric", &[]),
    ("toroid_model", &["toroid_fabric"]),
    ("toroid_protocol", &["toroid_model", "toroid_fabric"]),
    (
        "toroid_client",
        &["toroid_protocol", "toroid_model", "toroid_fabric"],
    ),
    ("toroid_netlink", &[]),
    (
        "toroid_agent",
        &[
            "toroid_client",
            "toroid_protocol",
            "toroid_model",
            "toroid_netlink",
            "toroid_fabric",
        ],
    ),
    (
        "toroid_cli",
        &[
            "toroid_agent",
            "toroid_client",
            "toroid_protocol",
            "toroid_model",
            "toroid_fabric",
        ],
    ),
    (
        "toroid_ethernet",
        &[
            "toroid_client",
            "toroid_protocol",
            "toroid_model",
            "toroid_netlink",
            "toroid_fabric",
        ],
    ),
    (
        "toroid_kv",
        &[
            "toroid_client",
            "toroid_protocol",
            "toroid_model",
            "toroid_fabric",
        ],
    ),
    (
        "bench",
        &[
            "toroid_ethernet",
            "toroid_kv",
            "toroid_agent",
            "toroid_client",
            "toroid_protocol",
            "toroid_model",
            "toroid_netlink",
            "toroid_fabric",
        ],
    ),
    (
        "tests",
        &[
            "bench",
            "toroid_ethernet",
            "toroid_kv",
            "toroid_agent",
            "toroid_client",
            "toroid_protocol",
            "toroid_model",
            "toroid_netlink",
            "toroid_fabric",
        ],
    ),
];

/// Paths from the root of the workspace, and contents: sources and manifests.
type Tree = BTreeMap<String, String>;

/// Modules by their path from the root of their target, each with the file that first uses the other.
type Arrows = BTreeMap<String, BTreeMap<String, String>>;

#[test]
fn packages_and_folders_keep_their_walls() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut tree = Tree::new();
    for folder in ["domains", "ethernet", "rdma-kv", "bench", "tests"] {
        read(&root, folder, &mut tree);
    }
    assert!(tree.len() > 300, "only {} files were found", tree.len());
    let wrong = examine(&tree);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_package_that_uses_another_without_leave_is_named() {
    let tree = made_up(&[
        (
            "client/src/lib.rs",
            "mod a;\n// use toroid_agent::Config;\nconst T: &str = \"toroid_agent::x\";",
        ),
        (
            "client/src/a.rs",
            "use toroid_agent::{Config, run};\nuse toroid_model::names;",
        ),
    ]);
    assert_eq!(
        examine(&tree),
        ["toroid_client uses toroid_agent (client/src/a.rs), which it may not"]
    );
}

#[test]
fn a_cycle_between_folders_is_named_by_its_arrows() {
    let cyclic = [
        ("agent/src/lib.rs", "mod a;\nmod b;\nmod c;\nuse a::X;"),
        ("agent/src/a/mod.rs", "mod deep;"),
        (
            "agent/src/a/deep.rs",
            "use super::super::b::{self, Y as Z};",
        ),
        ("agent/src/b.rs", "pub(crate) fn f() { crate::c::g() }"),
        (
            "agent/src/c/mod.rs",
            "use crate::{\n    a::X,\n};\n#[cfg(test)]\nmod tests { use crate::b::Y; }",
        ),
    ];
    let cycle = "toroid_agent: a -> b (agent/src/a/deep.rs) -> c (agent/src/b.rs) -> \
                 a (agent/src/c/mod.rs) is a cycle";
    assert_eq!(examine(&made_up(&cyclic)), [cycle]);
}

#[test]
fn files_of_one_folder_may_use_each_other() {
    let tree = made_up(&[
        ("agent/src/lib.rs", "mod a;\nmod b;"),
        ("agent/src/a.rs", "use crate::b::Y;"),
        ("agent/src/b.rs", "use super::a::X;"),
    ]);
    assert_eq!(examine(&tree), [""; 0]);
}

fn made_up(files: &[(&str, &str)]) -> Tree {
    let manifests = ["client", "agent"].map(|name| {
        (
            format!("{name}/Cargo.toml"),
            format!("name = \"toroid-{name}\""),
        )
    });
    let files = files
        .iter()
        .map(|(path, text)| (path.to_string(), text.to_string()));
    files.chain(manifests).collect()
}

fn read(root: &Path, folder: &str, tree: &mut Tree) {
    for entry in fs::read_dir(root.join(folder)).unwrap() {
        let entry = entry.unwrap();
        let path = format!("{folder}/{}", entry.file_name().to_str().unwrap());
        if entry.file_type().unwrap().is_dir() {
            let is_left_out = ["target", "fuzz", "corpus"]
                .iter()
                .any(|name| path.ends_with(name));
            if !is_left_out || path.contains("/src/") {
                read(root, &path, tree);
            }
        } else if path.ends_with(".rs") || path.ends_with("/Cargo.toml") {
            tree.insert(path.clone(), fs::read_to_string(root.join(&path)).unwrap());
        }
    }
}

/// Sentences about what breaks the rules.
fn examine(tree: &Tree) -> Vec<String> {
    let mut wrong = Vec::new();
    for (manifest, text) in tree {
        let Some(folder) = manifest.strip_suffix("/Cargo.toml") else {
            continue;
        };
        let name = text.lines().find_map(|line| line.strip_prefix("name = "));
        let name = name.unwrap().trim_matches('"').replace('-', "_");
        let inside = format!("{folder}/");
        let nested = |path: &str| {
            tree.keys().any(|other| {
                let inner = other.strip_suffix("Cargo.toml");
                inner.is_some_and(|inner| inner.len() > inside.len() && path.starts_with(inner))
            })
        };
        let files: Tree = tree
            .range(inside.clone()..)
            .take_while(|(path, _)| path.starts_with(&inside))
            .filter(|(path, _)| path.ends_with(".rs") && !nested(path))
            .map(|(path, text)| (path.clone(), text.clone()))
            .collect();
        wrong.extend(uses_without_leave(&name, &files));
        let mut arrows = Arrows::new();
        for (path, text) in &files {
            if let Some(inner) = path.strip_prefix(&format!("{inside}src/")) {
                collect_arrows(path, inner, text, &files, &mut arrows);
            }
        }
        let is_folder = |module: &str| {
            let below = format!("{inside}src/{module}/");
            files.keys().any(|path| path.starts_with(&below))
        };
        wrong.extend(cycles(&name, &arrows, is_folder));
    }
    wrong
}

fn uses_without_leave(package: &str, files: &Tree) -> Vec<String> {
    let rule = ALLOWED.iter().find(|(name, _)| *name == package);
    let Some((_, allowed)) = rule else {
        return vec![format!("{package} is not in ALLOWED")];
    };
    let mut seen = BTreeSet::new();
    let mut wrong = Vec::new();
    for (path, text) in files {
        for used in paths(text) {
            let other = used[0].as_str();
            let is_ours = ALLOWED.iter().any(|(name, _)| *name == other) && used.len() > 1;
            if is_ours
                && other.starts_with("toroid_")
                && other != package
                && !allowed.contains(&other)
                && seen.insert(other.to_owned())
            {
                wrong.push(format!("{package} uses {other} ({path}), which it may not"));
            }
        }
    }
    wrong
}

/// Adds the arrows from the module directly below `src` that the file belongs to.
fn collect_arrows(path: &str, inner: &str, text: &str, files: &Tree, arrows: &mut Arrows) {
    let mut module: Vec<&str> = inner.trim_end_matches(".rs").split('/').collect();
    // A program is a target of its own.
    if module[0] == "bin" || module.contains(&"tests") {
        return;
    }
    if ["mod", "lib", "main"].contains(module.last().unwrap()) {
        module.pop();
    }
    let Some(&from) = module.first() else {
        return;
    };
    let root = &path[..path.len() - inner.len()];
    let is_module = |name: &str| {
        let file = files.contains_key(&format!("{root}{name}.rs"));
        file || files.contains_key(&format!("{root}{name}/mod.rs"))
    };
    if is_for_tests(from, root, files) {
        return;
    }
    for used in paths(text) {
        let supers = used.iter().take_while(|part| *part == "super").count();
        let to = match used[0].as_str() {
            "crate" => used.get(1),
            "super" if supers == module.len() => used.get(supers),
            _ => None,
        };
        if let Some(to) = to
            && to != from
            && is_module(to)
        {
            let known = arrows.entry(from.into()).or_default();
            known.entry(to.clone()).or_insert_with(|| path.into());
        }
    }
}

/// Whether the root of the target has the module for unit tests only.
fn is_for_tests(module: &str, root: &str, files: &Tree) -> bool {
    let declared = |text: &String| {
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        ["", "pub(crate) "]
            .iter()
            .any(|seen| text.contains(&format!("#[cfg(test)] {seen}mod {module};")))
    };
    let roots = [format!("{root}lib.rs"), format!("{root}main.rs")];
    roots
        .iter()
        .filter_map(|root| files.get(root))
        .any(declared)
}

fn cycles(package: &str, arrows: &Arrows, is_folder: impl Fn(&str) -> bool) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut told = BTreeSet::new();
    for (from, known) in arrows {
        for to in known.keys() {
            let Some(back) = way(arrows, to, from) else {
                continue;
            };
            let around: BTreeSet<&str> = back.iter().map(String::as_str).collect();
            if around.iter().any(|module| is_folder(module)) && told.insert(format!("{around:?}")) {
                let mut line = format!("{package}: {from}");
                let mut at = from;
                for next in &back {
                    line += &format!(" -> {next} ({})", arrows[at][next]);
                    at = next;
                }
                wrong.push(format!("{line} is a cycle"));
            }
        }
    }
    wrong
}

/// The shortest way along arrows, both ends included.
fn way(arrows: &Arrows, from: &str, to: &str) -> Option<Vec<String>> {
    let mut ways = vec![vec![from.to_owned()]];
    let mut seen = BTreeSet::from([from.to_owned()]);
    while !ways.is_empty() {
        let mut longer = Vec::new();
        for way in ways {
            let end = way.last().unwrap();
            if end == to {
                return Some(way);
            }
            for next in arrows.get(end).into_iter().flat_map(BTreeMap::keys) {
                if seen.insert(next.clone()) {
                    longer.push([&way[..], std::slice::from_ref(next)].concat());
                }
            }
        }
        ways = longer;
    }
    None
}

/// Paths in a source file: those of `use` lines in full, and others of more than one part.
fn paths(text: &str) -> Vec<Vec<String>> {
    let tokens = tokens(text);
    let mut paths = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if tokens[at..].starts_with(&UNIT_TESTS.map(String::from)) && has_body(&tokens[at..]) {
            break;
        }
        // Not the captures of an opaque type, as in `impl Fn() + use<'a>`.
        if tokens[at] == "use" && tokens.get(at + 1).is_some_and(|token| token != "<") {
            at = use_tree(&tokens, at + 1, &[], &mut paths);
        } else if is_word(&tokens[at]) {
            let mut path = vec![tokens[at].clone()];
            while tokens.get(at + 1).is_some_and(|token| token == "::")
                && tokens.get(at + 2).is_some_and(|token| is_word(token))
            {
                path.push(tokens[at + 2].clone());
                at += 2;
            }
            if path.len() > 1 {
                paths.push(path);
            }
        }
        at += 1;
    }
    paths
}

const UNIT_TESTS: [&str; 8] = ["#", "[", "cfg", "(", "test", ")", "]", "mod"];

/// Whether a module begins here, and not only its declaration.
fn has_body(tokens: &[String]) -> bool {
    tokens
        .get(UNIT_TESTS.len() + 1)
        .is_some_and(|token| token == "{")
}

/// Reads a tree of `use` from `at` on; returns where it ends.
fn use_tree(
    tokens: &[String],
    mut at: usize,
    prefix: &[String],
    paths: &mut Vec<Vec<String>>,
) -> usize {
    let mut path = prefix.to_vec();
    while let Some(token) = tokens.get(at) {
        match token.as_str() {
            "{" => {
                at += 1;
                while tokens
                    .get(at)
                    .is_some_and(|token| !["}", ";"].contains(&token.as_str()))
                {
                    at = use_tree(tokens, at, &path, paths);
                    at += usize::from(tokens.get(at).is_some_and(|token| token == ","));
                }
                return at + 1;
            }
            "," | ";" | "}" => break,
            "as" => at += 1,
            "::" => {}
            word => path.push(word.to_owned()),
        }
        at += 1;
    }
    paths.push(path);
    at
}

fn is_word(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Words and signs, without comments and literals.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let len = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(hashes) = raw_text(rest) {
            let end = format!("\"{}", "#".repeat(hashes));
            let start = hashes + 2;
            rest[start..]
                .find(&end)
                .map_or(rest.len(), |at| start + at + end.len())
        } else if first == '"' {
            text_len(rest)
        } else if first == '\'' {
            char_len(rest)
        } else if is_word(rest) {
            let len = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
            tokens.push(rest[..len.unwrap_or(rest.len())].to_owned());
            len.unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            tokens.push("::".into());
            2
        } else {
            if !first.is_whitespace() {
                tokens.push(first.to_string());
            }
            first.len_utf8()
        };
        rest = &rest[len..];
    }
    tokens
}

/// The number of hashes, if a raw text begins here.
fn raw_text(rest: &str) -> Option<usize> {
    let inner = rest.strip_prefix('r')?;
    let hashes = inner.len() - inner.trim_start_matches('#').len();
    inner[hashes..].starts_with('"').then_some(hashes)
}

fn text_len(rest: &str) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// Of a character; a lifetime is passed over by its quote.
fn char_len(rest: &str) -> usize {
    let mut chars = rest.char_indices().skip(1);
    match chars.next() {
        Some((_, '\\')) => rest[3..].find('\'').map_or(rest.len(), |end| end + 4),
        Some((at, c)) if rest[at + c.len_utf8()..].starts_with('\'') => at + c.len_utf8() + 1,
        _ => 1,
    }
}
