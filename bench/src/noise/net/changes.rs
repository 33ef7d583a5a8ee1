//! Change points of a series, by circular binary segmentation (Olshen et al., 2004): the
//! part that differs most from all else is tested against shuffled series, and so on within each
//! part.

use crate::stats;

/// The shortest part.
const SHORTEST: usize = 3;

/// Shuffled series of a test. A change is found if none of them differs as much: p <= 1/200.
const SHUFFLES: usize = 199;

/// The indices at which a series changes, rising.
pub fn changes(values: &[f64], seed: u64) -> Vec<usize> {
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut found, mut open) = (Vec::new(), vec![(0, values.len())]);
    while let Some((from, to)) = open.pop() {
        let Some((first, last)) = part(&values[from..to], &mut random) else {
            continue;
        };
        let [first, last] = [from + first, from + last];
        found.extend(
            [first, last]
                .into_iter()
                .filter(|at| *at > from && *at < to),
        );
        open.extend([(from, first), (first, last), (last, to)]);
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// The part of a series that differs from the rest, if any does.
fn part(values: &[f64], random: &mut fastrand::Rng) -> Option<(usize, usize)> {
    if values.len() < 2 * SHORTEST {
        return None;
    }
    let mut values = around_mean(values);
    let (most, part) = extreme(&values);
    for _ in 0..SHUFFLES {
        random.shuffle(&mut values);
        if extreme(&values).0 >= most {
            return None;
        }
    }
    Some(part)
}

/// Differences to the mean.
fn around_mean(values: &[f64]) -> Vec<f64> {
    let mean = stats::mean(values).unwrap_or_default();
    values.iter().map(|value| value - mean).collect()
}

/// The largest difference between a part and the rest, and the part. Each has at least
/// [`SHORTEST`] values.
fn extreme(values: &[f64]) -> (f64, (usize, usize)) {
    let mut sums = vec![0.0];
    sums.extend(values.iter().scan(0.0, |sum, value| {
        *sum += value;
        Some(*sum)
    }));
    let mut most = (0.0, (0, 0));
    for from in 0..values.len() {
        for to in from + SHORTEST..=values.len() {
            let (inside, outside) = (to - from, values.len() - (to - from));
            let is_short = outside < SHORTEST || (from > 0 && from < SHORTEST);
            if is_short || (to < values.len() && values.len() - to < SHORTEST) {
                continue;
            }
            let difference: f64 = sums[to] - sums[from];
            let scaled = difference.powi(2) / (inside * outside) as f64;
            if scaled > most.0 {
                most = (scaled, (from, to));
            }
        }
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(seed: u64, level: impl Fn(usize) -> f64, count: usize) -> Vec<f64> {
        let mut random = fastrand::Rng::with_seed(seed);
        let noisy = |at| level(at) * (0.95 + 0.1 * random.f64());
        (0..count).map(noisy).collect()
    }

    #[test]
    fn a_planted_degradation_is_found_at_its_time() {
        for seed in 0..5 {
            let slow = |at| if (40..45).contains(&at) { 0.7e9 } else { 1e9 };
            assert_eq!(changes(&series(seed, slow, 120), seed), [40, 45], "{seed}");
            let step = |at| if at < 30 { 1e9 } else { 0.8e9 };
            assert_eq!(changes(&series(seed, step, 60), seed), [30], "{seed}");
        }
    }

    #[test]
    fn a_steady_series_has_no_changes() {
        let steady = |seed| series(seed, |_| 1e9, 60);
        let found = (0..30).filter(|seed| !changes(&steady(*seed), *seed).is_empty());
        assert!(found.count() <= 1);
        assert!(changes(&[5.0; 40], 0).is_empty());
        assert!(changes(&[], 0).is_empty());
        // An outlier is no change.
        let mut one = steady(3);
        one[20] = 1e6;
        assert!(changes(&one, 0).is_empty());
    }
}
