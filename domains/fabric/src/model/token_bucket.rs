//! A limit of what one sender sends.
//!
//! The bucket is one time: when everything that was sent is paid. A sender without debt may send a
//! packet of any length, and then waits until that is paid. Unused time counts for up to
//! [`TokenBucket::BURST`], so that a sender that is woken late keeps its rate.
//!
//! In any time `t`, a sender thus sends at most `rate * (t + BURST)` bytes and one packet.

use super::Nanos;

/// The token bucket of a sender. Time is an argument, of a clock that never goes back.
#[derive(Clone, Copy, Debug)]
pub struct TokenBucket {
    /// Bytes per second, not 0.
    rate: u64,
    /// When everything that was sent is paid.
    paid_at: Nanos,
}

impl TokenBucket {
    /// Unused time that counts: longer than most wake-ups are late.
    pub const BURST: Nanos = 5_000_000;

    /// A bucket without debt, for so many bytes per second.
    pub fn new(rate: u64, now: Nanos) -> Self {
        TokenBucket {
            rate: rate.max(1),
            paid_at: now,
        }
    }

    /// Sets the rate. The bytes that are owed stay the same.
    pub fn set_rate(&mut self, rate: u64, now: Nanos) {
        let rate = rate.max(1);
        if rate == self.rate {
            return;
        }
        let owed = u128::from(self.paid_at.saturating_sub(now)) * u128::from(self.rate);
        let owed = Nanos::try_from(owed / u128::from(rate)).unwrap_or(Nanos::MAX);
        let unused = now.saturating_sub(self.paid_at);
        self.paid_at = now.saturating_sub(unused).saturating_add(owed);
        self.rate = rate;
    }

    /// When the sender may send; `None`: at once.
    pub fn held_until(&self, now: Nanos) -> Option<Nanos> {
        (self.paid_at > now).then_some(self.paid_at)
    }

    /// Charges sent bytes.
    pub fn charge(&mut self, bytes: u64, now: Nanos) {
        let takes = u128::from(bytes) * 1_000_000_000 / u128::from(self.rate);
        let takes = Nanos::try_from(takes).unwrap_or(Nanos::MAX);
        let from = self.paid_at.max(now.saturating_sub(Self::BURST));
        self.paid_at = from.saturating_add(takes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = 1_000_000_000;

    /// Sends packets whenever that is allowed, until `end`. Wake-ups are late by what `late` says.
    fn sent(
        rate: u64,
        packet: u64,
        begin: Nanos,
        end: Nanos,
        mut late: impl FnMut() -> Nanos,
    ) -> u64 {
        let mut bucket = TokenBucket::new(rate, begin);
        let (mut now, mut sent) = (begin, 0);
        while now < end {
            match bucket.held_until(now) {
                Some(time) => now = time + late(),
                None => {
                    bucket.charge(packet, now);
                    sent += packet;
                }
            }
        }
        sent
    }

    #[test]
    fn a_sender_keeps_to_its_rate_and_reaches_it() {
        let mut random = fastrand::Rng::with_seed(7);
        for (rate, packet) in [
            (8_000, 65_536),
            (12_500_000, 64),
            (12_500_000, 9_014),
            (1_250_000_000, 65_536),
        ] {
            let seconds = if rate < 1_000_000 { 100 } else { 1 };
            let end = SECOND + seconds * SECOND;
            let all = sent(rate, packet, SECOND, end, || {
                random.u64(0..TokenBucket::BURST / 2)
            });
            let fair = rate * seconds;
            let burst = rate * TokenBucket::BURST / SECOND;
            assert!(all <= fair + burst + packet, "{all} of {fair}");
            assert!(all >= fair - burst - packet, "{all} of {fair}");
        }
    }

    #[test]
    fn unused_time_counts_for_one_burst_only() {
        let mut bucket = TokenBucket::new(1_000_000, SECOND);
        let now = 100 * SECOND;
        let mut sent = 0;
        while bucket.held_until(now).is_none() {
            bucket.charge(1_000, now);
            sent += 1_000;
        }
        let burst = 1_000_000 * TokenBucket::BURST / SECOND;
        assert!((burst..=burst + 1_000).contains(&sent), "{sent}");
    }

    /// A raised rate must not leave a sender with the debt of the old one.
    #[test]
    fn a_change_of_the_rate_keeps_the_bytes_owed() {
        let mut bucket = TokenBucket::new(8_000, SECOND);
        bucket.charge(64_000, SECOND);
        assert_eq!(bucket.held_until(SECOND), Some(9 * SECOND));
        bucket.set_rate(64_000, SECOND);
        assert_eq!(bucket.held_until(SECOND), Some(2 * SECOND));
        bucket.set_rate(32_000, SECOND + SECOND / 2);
        assert_eq!(bucket.held_until(SECOND), Some(SECOND + 3 * SECOND / 2));
        bucket.set_rate(u64::MAX, SECOND);
        assert_eq!(bucket.held_until(SECOND), None);
        bucket.charge(u64::MAX, SECOND);
        bucket.set_rate(1, SECOND);
        assert!(bucket.held_until(100 * SECOND).is_some());
    }
}
