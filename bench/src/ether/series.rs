//! What was measured in each round, and what is compared.

use super::plan::Key;
use crate::stats::median;

/// What one measurement gave in one round.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// Payload that arrived.
    pub bits_per_s: Option<f64>,
    /// The median time of a request with its response, in nanoseconds.
    pub p50_ns: Option<f64>,
    /// Datagrams that arrived, at all receivers together.
    pub pps: Option<f64>,
    /// The fraction of the datagrams of a flood that was lost.
    pub lost: Option<f64>,
    /// Copies of a message that the sender's interface sent.
    pub copies_sent: Option<f64>,
    /// Time of all processors for a byte of a stream, in nanoseconds.
    pub cpu_ns_per_byte: Option<f64>,
    /// Messages that were wrong.
    pub errors: u64,
}

/// A number of a sample.
pub type Figure = fn(&Sample) -> Option<f64>;

/// All rounds of all measurements.
#[derive(Clone, Debug, Default)]
pub struct Rounds(Vec<(Key, Vec<Sample>)>);

impl Rounds {
    /// Adds a round of one measurement.
    pub fn add(&mut self, key: Key, sample: Sample) {
        match self.0.iter_mut().find(|(known, _)| *known == key) {
            Some((_, samples)) => samples.push(sample),
            None => self.0.push((key, vec![sample])),
        }
    }

    /// In the order in which they were first measured.
    pub fn all(&self) -> impl Iterator<Item = &(Key, Vec<Sample>)> {
        self.0.iter()
    }

    /// The median of a figure over the rounds.
    pub fn median(&self, key: &Key, figure: Figure) -> Option<f64> {
        let values: Vec<f64> = self.of(key).iter().filter_map(figure).collect();
        median(&values)
    }

    /// The median over rounds of the quotient of two measurements in the same round.
    pub fn ratio(&self, over: &Key, under: &Key, figure: Figure) -> Option<f64> {
        let quotients: Vec<f64> = self
            .of(over)
            .iter()
            .zip(self.of(under))
            .filter_map(|(over, under)| Some(figure(over)? / figure(under)?))
            .collect();
        median(&quotients)
    }

    fn of(&self, key: &Key) -> &[Sample] {
        let found = self.0.iter().find(|(known, _)| known == key);
        found.map_or(&[], |(_, samples)| samples)
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::{Path, Test, USUAL};
    use super::*;

    #[test]
    fn a_ratio_is_that_of_the_rounds_not_of_the_medians() {
        let key = |path| Key::new(Test::TcpStream, path, USUAL);
        let mut rounds = Rounds::default();
        // The machine was slower in some rounds, for both.
        for (toroid, relay) in [(8.0, 10.0), (1.0, 2.0), (40.0, 50.0)] {
            for (path, bits) in [(Path::Toroid, toroid), (Path::Relay, relay)] {
                let bits_per_s = Some(bits);
                let sample = Sample {
                    bits_per_s,
                    ..Sample::default()
                };
                rounds.add(key(path), sample);
            }
        }
        let (toroid, relay) = (key(Path::Toroid), key(Path::Relay));
        assert_eq!(rounds.ratio(&toroid, &relay, |s| s.bits_per_s), Some(0.8));
        assert_eq!(rounds.median(&toroid, |s| s.bits_per_s), Some(8.0));
        assert_eq!(
            rounds.ratio(&toroid, &key(Path::Veth), |s| s.bits_per_s),
            None
        );
        assert_eq!(rounds.median(&toroid, |s| s.pps), None);
    }
}
