//! The checks of a get.

/// The checks that make a get correct. Tests leave one out, to show that it is needed.
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
        use crate::variants::is_left_out;
        #[cfg(not(feature = "unsafe-variants"))]
        let is_left_out = |_: &str| false;
        Checks {
            slot: !is_left_out("slot"),
            generation: !is_left_out("generation"),
            key: !is_left_out("key"),
            slot_after_clock: !is_left_out("slot-after-clock"),
            table_epoch: !is_left_out("table-epoch"),
            flush_epoch: !is_left_out("flush-epoch"),
            ..Checks::ALL
        }
    }
}
