//! Parts of the protocol that a test can leave out, to show that each of them is needed. Behind a feature
//! that no release has.

use std::sync::OnceLock;

/// Argument of a process that leaves a part out; a name of [`NAMES`] follows.
pub const ARGUMENT: &str = "--without=";

/// Parts that can be left out.
pub const NAMES: [&str; 7] = [
    "slot",
    "generation",
    "key",
    "slot-after-clock",
    "table-epoch",
    "flush-epoch",
    "publish-order",
];

/// The argument of this process that begins with [`ARGUMENT`], if any.
pub fn argument() -> Option<&'static str> {
    static TOLD: OnceLock<Option<String>> = OnceLock::new();
    let told = TOLD.get_or_init(|| std::env::args().find(|told| told.starts_with(ARGUMENT)));
    told.as_deref()
}

/// Whether this process leaves out the part of this name.
pub(crate) fn is_left_out(name: &str) -> bool {
    argument().is_some_and(|argument| argument.strip_prefix(ARGUMENT) == Some(name))
}
