//! What makes a get right.

/// The checks that make a get right. Tests leave one out, to see that it is needed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Checks {
    pub(crate) slot: bool,
    pub(crate) generation: bool,
    pub(crate) key: bool,
    pub(crate) slot_after_clock: bool,
    pub(crate) table_epoch: bool,
    pub(crate) flush_epoch: bool,
    pub(crate) hazard_first: bool,
    pub(crate) content: bool,
}

impl Checks {
    pub(crate) const ALL: Checks = Checks {
        slot: true,
        generation: true,
        key: true,
        slot_after_clock: true,
        table_epoch: true,
        flush_epoch: true,
        hazard_first: true,
        content: true,
    };

    /// All, unless this process is to leave one out.
    #[cfg(any(test, feature = "unsafe-variants"))]
    pub(crate) fn of_this_process() -> Self {
        #[cfg(feature = "unsafe-variants")]
        return crate::variants::checks();
        #[cfg(not(feature = "unsafe-variants"))]
        Checks::ALL
    }
}
