//! Test knobs: each leaves out one protection, for tests which show that others notice.
//!
//! Knobs exist only with the cargo feature `unprotected`, which no release build has. Without the
//! feature every protection holds, whatever the environment says. With it, a variable in the
//! environment of the protecting process sets the knob: of an agent, which hands the variable to
//! its Ethernet driver, or of a member, which gives up its own protection.

#[cfg(feature = "unprotected")]
use std::sync::LazyLock;

/// A protection against former members that a test may leave out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TestKnob {
    /// Regions that a former member may have mapped stay on their old pages.
    WithoutFreshPages,
    /// Packets and frames of former members are admitted.
    WithoutEpochCheck,
    /// Packets and frames with another node's source address are admitted.
    WithoutSourceCheck,
    /// Processes that do not acknowledge an epoch in time are not fenced.
    WithoutFence,
}

impl TestKnob {
    /// False: this build has all protections.
    #[cfg(not(feature = "unprotected"))]
    pub const fn is_set(self) -> bool {
        false
    }

    /// Whether a test leaves the protection out. Checked only where a refusal is due, so the
    /// knob costs nothing where access is granted.
    #[cfg(feature = "unprotected")]
    pub fn is_set(self) -> bool {
        const ALL: [(TestKnob, &str); 4] = [
            (
                TestKnob::WithoutFreshPages,
                "TOROID_TEST_WITHOUT_FRESH_PAGES",
            ),
            (
                TestKnob::WithoutEpochCheck,
                "TOROID_TEST_WITHOUT_EPOCH_CHECK",
            ),
            (
                TestKnob::WithoutSourceCheck,
                "TOROID_TEST_WITHOUT_SOURCE_CHECK",
            ),
            (TestKnob::WithoutFence, "TOROID_TEST_WITHOUT_FENCE"),
        ];
        static SET: LazyLock<Vec<TestKnob>> = LazyLock::new(|| {
            let is_set = |(_, name): &&(TestKnob, &str)| std::env::var_os(name).is_some();
            let set = ALL.iter().filter(is_set);
            set.inspect(|(_, name)| eprintln!("{name} is set: former members are not kept away"))
                .map(|(knob, _)| *knob)
                .collect()
        });
        SET.contains(&self)
    }
}
