//! Clock of a store, and times of expiry in its terms.

use toroid_fabric::OpError;

use super::Store;

/// Start of the clock: 0 means never, and 1 is before the start of the server.
pub(super) const CLOCK_START: u32 = 2;

/// Expiry times up to this many seconds (30 days) are relative; larger ones are Unix time.
const RELATIVE_LIMIT: i64 = 60 * 60 * 24 * 30;

impl Store {
    /// Sets and publishes the clock: seconds since the store was made.
    ///
    /// # Errors
    /// Only for a bug of the store.
    pub fn tick(&mut self, uptime_s: u64) -> Result<(), OpError> {
        let uptime = u32::try_from(uptime_s).unwrap_or(u32::MAX);
        self.clock = CLOCK_START.saturating_add(uptime);
        self.heavy_hitters.decay();
        self.index.set_clock(self.clock.into())?;
        self.flush_if_due()
    }

    /// The clock in seconds; times of items are in its terms.
    pub fn now(&self) -> u32 {
        self.clock
    }

    /// The clock time of an expiry in memcached's form: 0 never, negative at once, up to 30
    /// days (in seconds) from now, else Unix time.
    pub fn deadline(&self, exptime: i64) -> u32 {
        let now = i64::from(self.clock);
        let at = match exptime {
            0 => 0,
            ..0 => 1,
            1..=RELATIVE_LIMIT => now + exptime,
            _ => exptime.saturating_sub(self.epoch_s).max(1),
        };
        u32::try_from(at).unwrap_or(u32::MAX)
    }

    /// The Unix time in seconds at which the store's clock stood at 0.
    pub fn epoch_s(&self) -> i64 {
        self.epoch_s
    }
}
