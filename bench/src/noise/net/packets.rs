//! Noise of packets: what the network adds to round trips, apart from what both hosts add.
//!
//! Both ends look for the next datagram without sleeping. A gap between two looks of more than nine
//! times the shortest one is a [detour](crate::noise::os::detour) of that host, and so is a call to
//! send that takes nine times the shortest. A detour that covers an arrival hides its time: such a
//! round trip has a time, but no latency of packets. Times are nanoseconds.

use crate::noise::os::detour::THRESHOLD;
use crate::samples::Samples;
use crate::stats::Summary;

/// Time that a host spent on one packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Handling {
    /// Time between the look that found the packet and the look before.
    pub gap_ns: u64,
    /// Time of the call that sent a packet; 0 if none was sent.
    pub send_ns: u64,
}

/// The shortest handling of a host.
#[derive(Clone, Copy, Debug)]
pub struct Shortest {
    /// Shortest gap between two looks.
    pub gap_ns: u64,
    /// Shortest call to send.
    pub send_ns: u64,
}

impl Shortest {
    /// The shortest of all handlings, with a calibrated gap.
    pub fn of(gap_ns: u64, all: &[Handling]) -> Self {
        let sends = all.iter().map(|handling| handling.send_ns);
        let send_ns = sends.filter(|send_ns| *send_ns > 0).min();
        Shortest {
            gap_ns,
            send_ns: send_ns.unwrap_or(u64::MAX / THRESHOLD),
        }
    }

    /// Whether a detour delayed the packet.
    pub fn is_detour(self, handling: Handling) -> bool {
        handling.gap_ns > THRESHOLD * self.gap_ns || handling.send_ns > THRESHOLD * self.send_ns
    }
}

/// A round trip of a packet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoundTrip {
    /// From the call to send to the answer.
    pub time_ns: f64,
    /// Whether a detour of either host delayed it.
    pub has_detour: bool,
}

/// Noise of the host and of the network, in one run.
#[derive(Clone, Debug, PartialEq)]
pub struct Noise {
    /// Times of all round trips: host and network.
    pub time: Summary,
    /// Latencies of packets: the times of round trips without detours. `None` if all have one.
    pub latency: Option<Summary>,
    /// Round trips with a detour, as a share of all.
    pub detours: f64,
    /// Round trips above the upper whisker of their times.
    pub outliers: usize,
    /// Those among them with a detour, as a share; `None` without outliers.
    pub outliers_in_detours: Option<f64>,
}

impl Noise {
    /// `None` without round trips.
    pub fn of(trips: &[RoundTrip]) -> Option<Self> {
        let times = |with: fn(&&RoundTrip) -> bool| -> Vec<f64> {
            trips.iter().filter(with).map(|trip| trip.time_ns).collect()
        };
        let time = Summary::of(&times(|_| true))?;
        let high = time.whiskers.high;
        let outliers = trips.iter().filter(|trip| trip.time_ns > high);
        let share = |part: usize, of: usize| part as f64 / of as f64;
        let count = outliers.clone().count();
        let in_detours = outliers.filter(|trip| trip.has_detour).count();
        let detours = trips.iter().filter(|trip| trip.has_detour).count();
        Some(Noise {
            latency: Summary::of(&times(|trip| !trip.has_detour)),
            time,
            detours: share(detours, trips.len()),
            outliers: count,
            outliers_in_detours: (count > 0).then(|| share(in_detours, count)),
        })
    }
}

/// The samples of a round of round trips, with its noise as figures.
pub fn samples(trips: &[RoundTrip]) -> Samples {
    let mut samples = Samples {
        batch: 1,
        ops: trips.len() as u64,
        samples_ns: trips.iter().map(|trip| trip.time_ns).collect(),
        elapsed_ns: trips.iter().map(|trip| trip.time_ns as u64).sum(),
        ..Samples::default()
    };
    if let Some(noise) = Noise::of(trips) {
        let latency = noise.latency.as_ref();
        samples = samples
            .with("time_qcd", noise.time.qcd)
            .with("latency_qcd", latency.map(|latency| latency.qcd))
            .with("latency_p50_ns", latency.map(|latency| latency.median))
            .with("detours", noise.detours)
            .with("outliers", noise.outliers as f64)
            .with("outliers_in_detours", noise.outliers_in_detours);
    }
    samples
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOK: u64 = 300;
    const WIRE: u64 = 20_000;

    /// Round trips over a wire, with times by which each end looks late.
    fn trips(count: u64, late: impl Fn(u64) -> u64, wire: impl Fn(u64) -> u64) -> Vec<RoundTrip> {
        let handling = |n| Handling {
            gap_ns: LOOK + late(n),
            send_ns: 1000,
        };
        let all: Vec<Handling> = (0..count).map(handling).collect();
        let shortest = Shortest::of(LOOK, &all);
        let trip = |(n, handling): (u64, &Handling)| RoundTrip {
            time_ns: (wire(n) + late(n) + handling.send_ns) as f64,
            has_detour: shortest.is_detour(*handling),
        };
        (0..).zip(&all).map(trip).collect()
    }

    /// A number that is the same in each run.
    fn shuffled(n: u64, below: u64) -> u64 {
        fastrand::Rng::with_seed(n).u64(..below)
    }

    #[test]
    fn jitter_of_the_host_alone_is_no_noise_of_the_network() {
        // Detours of 5 to 50 us in six of ten round trips, as on a machine full of other work.
        let late = |n| {
            if shuffled(n, 10) < 6 {
                5000 * (1 + shuffled(n + 1, 10))
            } else {
                0
            }
        };
        let noise = Noise::of(&trips(5000, late, |_| WIRE)).unwrap();
        let latency = noise.latency.unwrap();
        assert_eq!((latency.qcd, latency.median), (0.0, 21_000.0));
        assert!(noise.time.qcd > 0.2, "{}", noise.time.qcd);
        assert!((0.55..0.65).contains(&noise.detours), "{}", noise.detours);
    }

    #[test]
    fn jitter_of_the_network_is_noise_of_both() {
        let wire = |n| WIRE + shuffled(n, 30_000);
        let noise = Noise::of(&trips(5000, |_| 0, wire)).unwrap();
        let latency = noise.latency.unwrap();
        assert_eq!(latency.qcd, noise.time.qcd);
        assert!(latency.qcd > 0.1, "{}", latency.qcd);
        assert_eq!((noise.detours, noise.outliers_in_detours), (0.0, None));
    }

    #[test]
    fn outliers_are_the_hosts_or_the_networks() {
        let is_rare = |n: u64, rest| n % 100 == rest;
        let late = |n| if is_rare(n, 7) { 100_000 } else { 0 };
        let wire = |n| WIRE + if is_rare(n, 50) { 100_000 } else { n % 16 };
        let noise = Noise::of(&trips(10_000, late, wire)).unwrap();
        assert_eq!(noise.outliers, 200);
        assert_eq!(noise.outliers_in_detours, Some(0.5));
        let quiet = Noise::of(&trips(10_000, |_| 0, wire)).unwrap();
        assert_eq!(quiet.outliers_in_detours, Some(0.0));
    }

    #[test]
    fn a_slow_call_to_send_is_a_detour() {
        let all = [1000, 9000, 9001].map(|send_ns| Handling {
            gap_ns: LOOK,
            send_ns,
        });
        let shortest = Shortest::of(LOOK, &all);
        assert_eq!(all.map(|one| shortest.is_detour(one)), [false, false, true]);
        assert_eq!(Noise::of(&[]), None);
    }
}
