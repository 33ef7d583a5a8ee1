//! The power spectrum of the work in equal quanta of time: noise that comes regularly has a peak at its
//! frequency and at multiples of that (Sottile and Minnich, 2004), up to half the rate of the quanta.

use rustfft::FftPlanner;
use rustfft::num_complex::Complex;

use crate::stats::{mean, median};

/// Fewest quanta with a spectrum.
const FEWEST: usize = 16;

/// Probability that noise without any period has a peak.
const CHANCE: f64 = 0.01;

/// A frequency is compared with those up to this many bins away, but for those so near that the window
/// mixes them: noise that lasts for several quanta has more power at low frequencies, all of them.
const REACH: usize = 24;
const MIXED: usize = 2;

/// A multiple has at most this many times the power of the lowest frequency.
const STRONGER: f64 = 4.0;

/// Peaks nearer to a stronger one than this share of its frequency belong to it: noise without an
/// exact period has a broad peak.
const BROAD: f64 = 0.125;

/// Bins below this one have no multiples: the next multiple is too near.
const APART: usize = 20;

/// Power by frequency, relative to the median of all frequencies.
#[derive(Clone, Debug)]
pub struct Spectrum {
    /// Time of all quanta in nanoseconds.
    elapsed_ns: f64,
    /// Power of each bin. Bin n is of n periods in all quanta; bin 0 is absent.
    powers: Vec<f64>,
}

/// A frequency of regular noise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peak {
    pub hz: f64,
    /// Relative to the median of all frequencies.
    pub power: f64,
    /// Peaks at multiples of the frequency.
    pub multiples: usize,
}

impl Spectrum {
    /// The spectrum of the work in consecutive quanta, by one Fourier transform with a Hann window.
    /// `None` for fewer than 16 quanta, and if all have equal work.
    pub fn of(work: &[f64], quantum_ns: u64) -> Option<Self> {
        let count = work.len();
        if count < FEWEST {
            return None;
        }
        let mean = mean(work)?;
        let turn = std::f64::consts::TAU / count as f64;
        let window = |at: usize| (1.0 - (turn * at as f64).cos()) / 2.0;
        let windowed = work.iter().enumerate();
        let windowed = windowed.map(|(at, work)| Complex::from((work - mean) * window(at)));
        let mut bins: Vec<Complex<f64>> = windowed.collect();
        FftPlanner::new().plan_fft_forward(count).process(&mut bins);
        let powers: Vec<f64> = bins[1..=count / 2].iter().map(Complex::norm_sqr).collect();
        let strongest = powers.iter().copied().fold(0.0, f64::max);
        // Of an exact period all other powers are rounding errors.
        let middle = median(&powers)?.max(strongest * f64::EPSILON);
        (middle > 0.0).then(|| Spectrum {
            elapsed_ns: (count as u64 * quantum_ns) as f64,
            powers: powers.into_iter().map(|power| power / middle).collect(),
        })
    }

    /// The strongest peaks, at most `most`, of which each stands for its multiples as well.
    pub fn peaks(&self, most: usize) -> Vec<Peak> {
        let mut found: Vec<(Comb, Peak)> = Vec::new();
        for bin in (1..=self.powers.len()).filter(|bin| self.stands_out(*bin)) {
            let power = self.power(bin);
            let mut lower = found.iter_mut();
            let lowest = lower.find_map(|(comb, peak)| {
                let times = comb.times(bin)?;
                (power <= STRONGER * peak.power).then_some((comb, peak, times))
            });
            match lowest {
                Some((comb, peak, times)) => {
                    *comb = Comb::of(bin, times);
                    peak.multiples += 1;
                }
                None => found.push((
                    Comb::of(bin, 1.0),
                    Peak {
                        hz: self.hz(bin),
                        power,
                        multiples: 0,
                    },
                )),
            }
        }
        found.sort_by(|(_, a), (_, b)| b.power.total_cmp(&a.power));
        let mut peaks: Vec<Peak> = Vec::new();
        for (_, peak) in found {
            let is_near = |other: &Peak| (peak.hz - other.hz).abs() < BROAD * other.hz;
            if peaks.len() < most && !peaks.iter().any(is_near) {
                peaks.push(peak);
            }
        }
        peaks
    }

    /// The strongest frequency in each of at most `count` bands of equal ratio, and its power; and all
    /// of these peaks.
    pub fn bands(&self, count: usize, peaks: &[Peak]) -> Vec<(f64, f64)> {
        let step = (self.powers.len() as f64).powf(1.0 / count as f64);
        let (mut bands, mut begin) = (Vec::new(), 1);
        while begin <= self.powers.len() {
            let end = ((begin as f64 * step) as usize).clamp(begin, self.powers.len());
            let strongest = (begin..=end).max_by(|a, b| self.power(*a).total_cmp(&self.power(*b)));
            let strongest = strongest.unwrap_or(begin);
            bands.push((self.hz(strongest), self.power(strongest)));
            begin = end + 1;
        }
        bands.extend(peaks.iter().map(|peak| (peak.hz, peak.power)));
        bands.sort_by(|a, b| a.0.total_cmp(&b.0));
        bands.dedup();
        bands
    }

    fn power(&self, bin: usize) -> f64 {
        self.powers[bin - 1]
    }

    fn hz(&self, bin: usize) -> f64 {
        bin as f64 * 1e9 / self.elapsed_ns
    }

    /// Whether a bin has more power than its neighbours, and far more than those around them.
    fn stands_out(&self, bin: usize) -> bool {
        let near = |away: usize| [bin.checked_sub(away), Some(bin + away)];
        let around = (MIXED + 1..=REACH).flat_map(near).flatten();
        let powers = around.filter_map(|bin| self.powers.get(bin.checked_sub(1)?));
        let mut powers: Vec<f64> = powers.copied().collect();
        powers.sort_by(f64::total_cmp);
        let Some(middle) = powers.get(powers.len().div_ceil(2).wrapping_sub(1)) else {
            return false;
        };
        let chance = CHANCE / self.powers.len() as f64;
        // Among exact periods all other powers are rounding errors.
        let least = -chance.ln() / std::f64::consts::LN_2;
        let least = least.max(middle * factor(powers.len(), chance));
        self.is_highest(bin) && self.power(bin) > least
    }

    /// Whether both neighbours of a bin have less power.
    fn is_highest(&self, bin: usize) -> bool {
        let power = |bin: usize| self.powers.get(bin.wrapping_sub(1)).copied();
        let own = self.power(bin);
        let is_lower = |other: Option<f64>| other.is_none_or(|other| other < own);
        is_lower(power(bin - 1)) && is_lower(power(bin + 1))
    }
}

/// Multiples of a frequency.
#[derive(Clone, Copy, Debug)]
struct Comb {
    /// The frequency in bins, as the last multiple tells.
    base: f64,
    last: f64,
}

impl Comb {
    /// A frequency whose multiple by `times` is at a bin.
    fn of(bin: usize, times: f64) -> Self {
        let base = bin as f64 / times;
        Comb { base, last: times }
    }

    /// The factor of a higher bin that is a multiple. A multiple is known to half a bin, and later ones
    /// to as many halves as they are times the last one.
    fn times(&self, bin: usize) -> Option<f64> {
        let times = (bin as f64 / self.base).round();
        let off = (bin as f64 - times * self.base).abs();
        let known = (times / self.last / 2.0).max(1.0);
        let is_next = times > self.last && off <= known.min(self.base / APART as f64);
        (self.base >= APART as f64 && is_next).then_some(times)
    }
}

/// How many times the median of `count` bins a power must be to be `chance` at most: the powers of noise
/// without a period are distributed exponentially around a mean that changes slowly by frequency. The
/// test of radar with a constant rate of false alarms from order statistics (Rohling, 1983).
fn factor(count: usize, chance: f64) -> f64 {
    let exceeds = |factor: f64| -> f64 {
        let smaller = 0..count.div_ceil(2);
        let terms = smaller.map(|at| (count - at) as f64);
        terms.map(|left| left / (left + factor)).product()
    };
    let (mut low, mut high) = (0.0, 1.0);
    while exceeds(high) > chance {
        high *= 2.0;
    }
    for _ in 0..40 {
        let middle = (low + high) / 2.0;
        if exceeds(middle) > chance {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::super::work::Quanta;
    use super::*;

    const QUANTUM_NS: u64 = 1_000_000;

    /// Work in units of some 5 us, from which detours take time: (period, length).
    fn work(count: usize, planted: &[(u64, u64)], seed: u64) -> Vec<f64> {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut quanta = Quanta::new(QUANTUM_NS, count);
        let mut next: Vec<u64> = planted.iter().map(|(period, _)| period / 3).collect();
        let mut now = 0;
        while quanta.observe(now) {
            now += random.u64(4500..5500);
            for ((period, len), next) in planted.iter().zip(&mut next) {
                if now >= *next {
                    now += len;
                    *next += period;
                }
            }
        }
        quanta.counts().to_vec()
    }

    #[test]
    fn planted_frequencies_are_the_peaks_at_their_exact_places() {
        let planted = [(100_000_000, 300_000), (4_000_000, 200_000)];
        for count in [2000, 10_000] {
            for seed in 0..5 {
                let work = work(count, &planted, seed);
                let spectrum = Spectrum::of(&work, QUANTUM_NS).unwrap();
                let peaks = spectrum.peaks(8);
                let found: Vec<f64> = peaks.iter().map(|peak| peak.hz).collect();
                assert_eq!(found, [250.0, 10.0], "{count} quanta, {peaks:?}");
                // All up to 500 Hz, of which 250 and 500 Hz belong to the stronger one.
                assert_eq!([peaks[0].multiples, peaks[1].multiples], [1, 47]);
                assert!(peaks[0].power > STRONGER * peaks[1].power);
            }
        }
    }

    #[test]
    fn a_sine_has_one_peak_without_multiples() {
        let of = |hz: f64| {
            let at = |n: usize| (std::f64::consts::TAU * hz * n as f64 / 1000.0).sin();
            let work: Vec<f64> = (0..4000).map(|n| 200.0 + 9.0 * at(n)).collect();
            Spectrum::of(&work, QUANTUM_NS).unwrap().peaks(8)
        };
        for hz in [10.0, 62.5, 250.0] {
            let found = of(hz);
            let [peak] = found[..] else {
                panic!("{found:?}");
            };
            assert_eq!((peak.hz, peak.multiples), (hz, 0));
        }
        // Between two bins of a quarter of a hertz.
        let near = of(33.1)[0].hz;
        assert!((near - 33.1).abs() <= 0.125, "{near}");
    }

    #[test]
    fn a_broad_peak_is_one() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut phase = 0.0;
        let mut step = || {
            // From 115 to 125 Hz.
            phase += std::f64::consts::TAU * (0.115 + 0.01 * random.f64());
            200.0 + 9.0 * phase.sin() + 10.0 * random.f64()
        };
        let work: Vec<f64> = (0..4000).map(|_| step()).collect();
        let peaks = Spectrum::of(&work, QUANTUM_NS).unwrap().peaks(8);
        let [peak] = peaks[..] else {
            panic!("{peaks:?}");
        };
        assert!((115.0..125.0).contains(&peak.hz), "{peak:?}");
    }

    /// One in a hundred may have a peak.
    #[test]
    fn noise_without_a_period_has_no_peaks() {
        let has_peaks = |seed: &u64| {
            let work = work(2000, &[], *seed);
            !Spectrum::of(&work, QUANTUM_NS).unwrap().peaks(1).is_empty()
        };
        let wrong = (0..200).filter(has_peaks).count();
        assert!(wrong <= 8, "{wrong} of 200");
    }

    /// Such as those of a hypervisor: most of their power is at low frequencies.
    #[test]
    fn long_stalls_at_random_times_have_no_peaks() {
        for (per_s, ms) in [(2.0, 2..8), (10.0, 2..8), (5.0, 10..30)] {
            let has_peaks = |seed: &u64| {
                let mut random = fastrand::Rng::with_seed(*seed);
                let mut quanta = Quanta::new(QUANTUM_NS, 5000);
                let (mut now, mut next) = (0, 0.0);
                while quanta.observe(now) {
                    now += random.u64(45_000..55_000);
                    if now as f64 >= next {
                        now += random.u64(1_000_000 * ms.start..1_000_000 * ms.end);
                        next = now as f64 - 1e9 / per_s * random.f64().max(1e-9).ln();
                    }
                }
                let spectrum = Spectrum::of(quanta.counts(), QUANTUM_NS).unwrap();
                !spectrum.peaks(1).is_empty()
            };
            let wrong = (0..50).filter(has_peaks).count();
            assert!(wrong <= 2, "{wrong} of 50 with {per_s} stalls of {ms:?} ms");
        }
    }

    #[test]
    fn bands_keep_every_peak_and_cover_all_frequencies() {
        let work = work(10_000, &[(100_000_000, 300_000)], 1);
        let spectrum = Spectrum::of(&work, QUANTUM_NS).unwrap();
        let quiet = Peak {
            hz: 77.7,
            power: 0.5,
            multiples: 0,
        };
        let bands = spectrum.bands(100, &[quiet]);
        assert!(bands.len() <= 101 && bands.is_sorted_by(|a, b| a.0 < b.0));
        assert!(bands.contains(&(77.7, 0.5)));
        assert!(bands[0].0 >= 0.1 && bands[bands.len() - 1].0 <= 500.0);
        let [peak] = spectrum.peaks(1)[..] else {
            panic!("no peak");
        };
        let at_peak = bands.iter().find(|(hz, _)| *hz == 10.0);
        assert!(at_peak.is_some_and(|(_, power)| *power > 0.9 * peak.power));
    }

    #[test]
    fn without_noise_or_quanta_there_is_no_spectrum() {
        assert!(Spectrum::of(&[7.0; 100], QUANTUM_NS).is_none());
        assert!(Spectrum::of(&[1.0, 2.0], QUANTUM_NS).is_none());
    }
}
