//! What the protocol relies on, to be left out: for tests which show that each part of it is needed. In
//! no program that anybody uses.

use std::sync::OnceLock;

use crate::client::reader::Checks;

/// The argument that says what this process leaves out; a name of [`NAMES`] follows.
pub const ARGUMENT: &str = "--without=";

/// What can be left out.
pub const NAMES: [&str; 7] = [
    "slot",
    "generation",
    "key",
    "slot-after-clock",
    "table-epoch",
    "flush-epoch",
    "publish-order",
];

/// The argument by which this process was told what to leave out, if it was.
pub fn argument() -> Option<&'static str> {
    static TOLD: OnceLock<Option<String>> = OnceLock::new();
    let told = TOLD.get_or_init(|| std::env::args().find(|told| told.starts_with(ARGUMENT)));
    told.as_deref()
}

/// Whether this process leaves out what has this name.
pub(crate) fn is_left_out(name: &str) -> bool {
    argument().is_some_and(|argument| argument.strip_prefix(ARGUMENT) == Some(name))
}

/// The checks that readers of this process make.
pub(crate) fn checks() -> Checks {
    let mut checks = Checks::ALL;
    let all = [
        ("slot", &mut checks.slot),
        ("generation", &mut checks.generation),
        ("key", &mut checks.key),
        ("slot-after-clock", &mut checks.slot_after_clock),
        ("table-epoch", &mut checks.table_epoch),
        ("flush-epoch", &mut checks.flush_epoch),
    ];
    for (name, check) in all {
        *check = !is_left_out(name);
    }
    checks
}
