//! Manual pages and completions, made from the definition of the command line.

use std::fs;
use std::path::Path;
use std::process::Command;

use tests::cluster::program;
use tests::process::{run, run_with};

const FAILED: i32 = 1;

fn toroid(words: &[&str]) -> Command {
    let mut command = Command::new(program("toroid"));
    command.args(words);
    command
}

#[test]
fn shells_get_completions() {
    for shell in ["bash", "zsh", "fish"] {
        let script = run(&mut toroid(&["completions", shell])).ok();
        for word in ["toroid", "shrink", "whoami"] {
            assert!(script.text().contains(word), "{word} for {shell}");
        }
    }
    let script = run(&mut toroid(&["completions", "bash"])).ok().stdout;
    run_with(Command::new("bash").arg("-n"), &script).ok();
}

#[test]
fn every_command_gets_a_man_page() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let pages = directory.path().join("man1");
    let name = pages.to_str().expect("UTF-8");
    run(&mut toroid(&["man", name])).ok();
    for page in ["toroid.1", "toroid-domain-create.1", "toroid-explain.1"] {
        let text = fs::read_to_string(pages.join(page)).expect(page);
        assert!(text.contains(".SH NAME"), "{page}");
    }
    let below_a_file = pages.join("toroid.1").join("man1");
    let name = below_a_file.to_str().expect("UTF-8");
    run(&mut toroid(&["man", name])).fails(FAILED, &[name, "another"]);
}

#[test]
fn a_doctor_needs_no_agent_and_says_what_to_do() {
    let report = run(&mut toroid(&["doctor", "--json"])).ok().json();
    let findings = report["findings"].as_array().expect("findings");
    for finding in findings {
        let is_ok = finding["state"] == "ok";
        assert_eq!(finding["remedy"].is_null(), is_ok, "{finding}");
    }
    let of = |check: &str| findings.iter().find(|finding| finding["check"] == check);
    assert_eq!(of("namespaces").expect("namespaces")["state"], "ok");
    let devices = Path::new("/sys/class/infiniband").read_dir();
    let has_rdma = devices.is_ok_and(|mut devices| devices.next().is_some());
    assert_eq!(of("rdma").is_none(), has_rdma);
    assert!(!report["works"].as_array().expect("works").is_empty());
    let text = run(&mut toroid(&["doctor"])).ok();
    assert!(text.text().contains("works"), "{}", text.text());
}
