//! Division of small numbers by a fixed one, by multiplication.

/// A divisor below 2^16, for numbers below 2^24 (Granlund and Montgomery, 1994).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Divisor {
    divisor: u32,
    /// 2^40 / divisor, rounded up beyond.
    inverse: u64,
}

impl Divisor {
    pub(super) fn new(divisor: u32) -> Self {
        debug_assert!((1..=1 << 16).contains(&divisor));
        Divisor {
            divisor,
            inverse: (1 << 40) / u64::from(divisor) + 1,
        }
    }

    /// Quotient and remainder.
    #[inline]
    pub(super) fn divide(self, number: u32) -> (u32, u32) {
        debug_assert!(number < 1 << 24);
        let quotient = ((u64::from(number) * self.inverse) >> 40) as u32;
        (quotient, number - quotient * self.divisor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotients_are_exact() {
        for divisor in [1, 2, 3, 5, 7, 96, 100, 641, 4095, 65_535, 65_536] {
            let edges = (0..1 << 24).step_by(divisor as usize).take(2_000);
            let last = (1 << 24) - 1;
            for number in edges
                .flat_map(|n| [n, (n + divisor - 1).min(last)])
                .chain([last])
            {
                let exact = (number / divisor, number % divisor);
                assert_eq!(Divisor::new(divisor).divide(number), exact);
            }
        }
    }
}
