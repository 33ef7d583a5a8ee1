//! Protections that can be left out, for tests which show that others would notice.
//!
//! Only with the cargo feature `unprotected`, which no normal build has: without it every
//! protection holds, whatever the environment says. With it a variable in the environment of the
//! process that protects leaves one out: of an agent, which hands the variable to its Ethernet
//! driver, or of a member, which gives up its own protection.

#[cfg(feature = "unprotected")]
use std::sync::LazyLock;

/// What keeps leavers away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Regions that a leaver may have mapped move to fresh memory.
    FreshPages,
    /// Packets of before a member came are dropped, and frames of who is no longer one.
    EpochCheck,
    /// Packets and frames under another's name are dropped.
    SourceCheck,
    /// Who does not acknowledge in time is cut off without its help.
    Fence,
}

impl Protection {
    /// Never: this build has all protections.
    #[cfg(not(feature = "unprotected"))]
    pub const fn is_left_out(self) -> bool {
        false
    }

    /// Whether a test wants it so. Looked at where something is about to be refused, so that it
    /// costs those nothing who may pass.
    #[cfg(feature = "unprotected")]
    pub fn is_left_out(self) -> bool {
        const ALL: [(Protection, &str); 4] = [
            (Protection::FreshPages, "TOROID_TEST_WITHOUT_FRESH_PAGES"),
            (Protection::EpochCheck, "TOROID_TEST_WITHOUT_EPOCH_CHECK"),
            (Protection::SourceCheck, "TOROID_TEST_WITHOUT_SOURCE_CHECK"),
            (Protection::Fence, "TOROID_TEST_WITHOUT_FENCE"),
        ];
        static LEFT_OUT: LazyLock<Vec<Protection>> = LazyLock::new(|| {
            let is_set = |(_, name): &&(Protection, &str)| std::env::var_os(name).is_some();
            let left_out = ALL.iter().filter(is_set);
            left_out
                .inspect(|(_, name)| eprintln!("{name} is set: who has left is not kept away"))
                .map(|(protection, _)| *protection)
                .collect()
        });
        LEFT_OUT.contains(&self)
    }
}
