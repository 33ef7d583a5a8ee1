//! Time that the machine itself takes for a transfer.

use crate::model::Nanos;

/// Bytes from which on the time depends on the length.
const LONG: u64 = 4096;

/// The shortest times of recent transfers: longer ones were interrupted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OwnTime {
    /// Nanoseconds of a short transfer.
    short: Option<Nanos>,
    /// Nanoseconds per MiB of a long one.
    per_mib: Option<Nanos>,
}

impl OwnTime {
    pub(super) fn learn(&mut self, bytes: u64, took: Nanos) {
        if bytes < LONG {
            self.short = Some(shorter(self.short, took));
        } else {
            let per_mib = took.saturating_mul(1 << 20) / bytes;
            self.per_mib = Some(shorter(self.per_mib, per_mib));
        }
    }

    /// The time that a transfer of `bytes` takes at least, 0 before the first.
    pub(super) fn of(&self, bytes: u64) -> Nanos {
        if bytes < LONG {
            return self.short.unwrap_or_default();
        }
        let per_mib = u128::from(self.per_mib.unwrap_or_default());
        ((per_mib * u128::from(bytes)) >> 20) as Nanos
    }
}

/// The shorter of two times. The known one grows slowly, so that it follows a change.
fn shorter(known: Option<Nanos>, took: Nanos) -> Nanos {
    known.map_or(took, |known| took.min(known + known / 64 + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupted_transfers_do_not_count_and_changes_do() {
        let mut time = OwnTime::default();
        assert_eq!((time.of(64), time.of(1 << 20)), (0, 0));
        for took in [70, 60, 4_000, 61] {
            time.learn(64, took);
        }
        assert!((60..70).contains(&time.of(8)));
        time.learn(2 << 20, 100_000);
        time.learn(4096, 1_000_000);
        assert!((25_000..26_000).contains(&time.of(1 << 19)));
        for _ in 0..200 {
            time.learn(64, 300);
        }
        assert_eq!(time.of(64), 300);
    }
}
