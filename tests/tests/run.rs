//! `tests/run` fails where a part of it would run no test, or too many, or never end.

use std::fs;
use std::process::Command;

use tests::process::{Outcome, run};

/// Instead of cargo and of a program with stories. Not as root: in namespaces of the caller.
const STANDS_IN: &str = r#"
source <(sed '/^install_packages$/,$d' tests/run)
place="$target"
id() { echo 1000; }
cargo() {
    case "$*" in
        *--message-format*) echo '"/tests/tests/system/main.rs" "executable":"'"$place/stories"'"' ;;
        *--list*) printf '%s: test\n' $known ;;
        build*) mkdir "$place/debug" && touch "$place/debug/toroid" ;;
        test*) echo "tests $*" ;;
    esac
}
export -f id
mkdir "$place/quick"
export failures="$place/failed"
cat >"$place/stories" <<'EOF'
#!/bin/bash
case "$*" in
    --list*) printf '%b' "$stories"; exit "${status:-0}" ;;
    *) echo "runs $*"; eval "$story" ;;
esac
EOF
chmod +x "$place/stories"
"#;

/// Runs functions of `tests/run`.
fn functions(script: &str) -> Outcome {
    let target = tempfile::tempdir().expect("a directory");
    let mut bash = Command::new("bash");
    // The name of the script leads it to the directory in which it works.
    bash.args(["-c", &format!("{STANDS_IN}\n{script}"), "tests/run"])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .env("CARGO_TARGET_DIR", target.path())
        .env_remove("TOROID_TEST_NIGHTLY");
    let outcome = run(&mut bash);
    let left = fs::read_dir(target.path().join("debug")).map_or(0, Iterator::count);
    assert_eq!(left, 0, "programs without protections stay: {outcome}");
    outcome
}

#[test]
fn a_filter_that_selects_no_test_fails() {
    let found = functions("known=ring::loom_tests::a loom").ok();
    assert!(found.text().contains("== cargo test"), "{found}");
    functions("known=ring::loom::a loom").fails(1, &["no test is selected by loom_tests"]);
    functions("known=key::a miri").fails(1, &["no test is selected by ring::"]);
    let kv = "step() { :; }; known='store::a one_sided::a kills::a views::a_borrower_that_a'";
    functions(&format!("{kv} emulated")).fails(1, &["no test is selected by limit::members"]);
}

#[test]
fn stories_that_cannot_be_listed_fail() {
    let all = functions(r"export stories='ether::a: test\nnoise::a: test\n'; stories system").ok();
    assert!(
        all.text()
            .contains("runs --test-threads=1 --exact ether::a"),
        "{all}"
    );
    functions("stories system").fails(1, &["has no stories"]);
    let none = functions("export status=1; chapter alone $place/stories ether");
    let none = none.fails(1, &["module ether has no stories"]);
    assert!(!none.text().contains("runs"), "{none}");
}

#[test]
fn a_module_that_hangs_fails() {
    let hangs = r"patience=1; export stories='ether::a: test\n' story='exec sleep 3600'";
    let hung = functions(&format!("{hangs}; stories system"));
    hung.fails(
        1,
        &[
            "module ether was killed, or took over 1 s",
            "failed modules: ether",
        ],
    );
}

#[test]
fn programs_without_protections_go_when_their_stories_fail() {
    let part =
        "trap summarize EXIT; alone() { return 1; }; known=unprotected::a; part=system; system";
    functions(part).fails(1, &["failed in system"]);
}
