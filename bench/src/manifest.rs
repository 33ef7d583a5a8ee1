//! The manifest of a run: the machine, its load, and the configuration.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::machine::{self, Ticks};
use crate::memory;
use crate::report::Fields;

/// Fields in which two runs must agree to be compared.
pub const ALIKE: [&str; 10] = [
    "host",
    "kernel",
    "cpu",
    "cpus",
    "cpus_allowed",
    "memory_bytes",
    "root",
    "tun",
    "busy",
    "configuration",
];

/// An option, and whether a value follows.
type Named = (&'static str, bool);

/// Options that change neither measurements nor figures.
const OUTPUT: [Named; 4] = [("--json", false), ("--raw", true), ("--save", true), SECRET];

/// The option with a secret, which no result keeps.
const SECRET: Named = ("--key", true);

/// The state of the machine at the start of a run.
#[derive(Debug)]
pub struct Manifest {
    began: SystemTime,
    load: Vec<f64>,
    ticks: Option<Ticks>,
}

impl Manifest {
    pub fn begin() -> Self {
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load = load.split(' ').take(3).map_while(|text| text.parse().ok());
        Manifest {
            began: SystemTime::now(),
            load: load.collect(),
            ticks: machine::ticks(),
        }
    }

    /// All fields, at the end of the run. `steal` is the share of processor time that the
    /// hypervisor gave to others during the run, `load` that of loadavg(5) before the run.
    pub fn end(&self) -> Fields {
        let since = self.ticks.zip(machine::ticks());
        let steal = since.map(|(from, to)| to.since(from).steal_share());
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let unix_time = self.began.duration_since(UNIX_EPOCH);
        Fields::default()
            .with("unix_time_s", unix_time.map_or(0, |time| time.as_secs()))
            .with("host", machine::host())
            .and(machine::fields())
            .with("cpus_allowed", machine::cpus_allowed())
            .with("memory_bytes", memory::total())
            .with("huge_pages", memory::huge_pages())
            .with("root", nix::unistd::geteuid().is_root())
            .with("tun", fs::exists("/dev/net/tun").unwrap_or(false))
            .with("load", &self.load)
            .with("steal", steal)
            .with("configuration", configuration(&arguments))
    }
}

/// The arguments without those that only choose the output.
fn configuration(arguments: &[String]) -> Vec<&str> {
    without(arguments, &OUTPUT)
}

/// The arguments without a secret.
pub fn without_secret(arguments: &[String]) -> Vec<&str> {
    without(arguments, &[SECRET])
}

fn without<'a>(arguments: &'a [String], options: &[Named]) -> Vec<&'a str> {
    let mut left = arguments.iter().map(String::as_str);
    let mut kept = Vec::new();
    while let Some(argument) = left.next() {
        if argument == "--" {
            // The rest are no options.
            kept.push(argument);
            kept.extend(left);
            break;
        }
        let name = argument.split('=').next().unwrap_or_default();
        match options.iter().find(|(option, _)| *option == name) {
            None => kept.push(argument),
            Some((_, true)) if name == argument => _ = left.next(),
            Some(_) => {}
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_configuration_has_no_options_of_output() {
        let line = "kv --json --rows a --raw=x --save y --rounds=3 --raw z --key k --busy";
        let arguments: Vec<String> = line.split(' ').map(Into::into).collect();
        let kept = ["kv", "--rows", "a", "--rounds=3", "--busy"];
        assert_eq!(configuration(&arguments), kept);
        let public = without_secret(&arguments).join(" ");
        assert_eq!(public, line.replace(" --key k", ""));
        let program = ["--", "program", "--key", "k"].map(String::from);
        assert_eq!(without_secret(&program), program);
    }

    #[test]
    fn a_manifest_has_all_that_is_compared() {
        let manifest = json!(Manifest::begin().end());
        for name in ALIKE {
            assert!(!manifest[name].is_null(), "{name}: {manifest}");
        }
        assert_eq!(manifest["load"].as_array().map(Vec::len), Some(3));
        let steal = manifest["steal"].as_f64();
        assert!(steal.is_some_and(|steal| (0.0..=1.0).contains(&steal)));
    }
}
