//! The search for the highest rate with little loss.
//!
//! Sans-I/O: the search names the next rate and takes the result. From the start rate large steps
//! lead to one passing and one failing rate, then bisection narrows the interval between them.

/// Highest passing fraction of lost datagrams.
const LOSS: f64 = 0.01;

/// A sender keeps its pace if it reaches this share of the rate.
const ON_PACE: f64 = 0.95;

/// The first large step; steps grow up to [`LONGEST_STEP`].
const FACTOR: f64 = 1.4;

const LONGEST_STEP: f64 = 8.0;

/// The search ends when failing and passing rate are within this factor.
const RESOLUTION: f64 = 1.04;

/// The search fails below this rate, in datagrams per second.
const LOWEST: f64 = 100.0;

/// The most trials of a search, enough from any start rate.
const TRIALS: u32 = 40;

/// A search under way.
#[derive(Clone, Debug)]
pub struct Search {
    next: f64,
    factor: f64,
    goes: Option<f64>,
    fails: Option<f64>,
    failed_once: bool,
    left: u32,
}

impl Search {
    /// A search that begins at `rate`.
    pub fn from(rate: f64) -> Self {
        Search {
            next: rate.max(LOWEST),
            factor: FACTOR,
            goes: None,
            fails: None,
            failed_once: false,
            left: TRIALS,
        }
    }

    /// The rate to try next; `None` at the end.
    pub fn next(&self) -> Option<f64> {
        let found = match (self.goes, self.fails) {
            (Some(goes), Some(fails)) => fails <= goes * RESOLUTION,
            _ => self.next < LOWEST,
        };
        (!found && self.left > 0).then_some(self.next)
    }

    /// Takes the result of a trial: the lost fraction, and the datagrams per second really sent.
    /// Returns whether the rate passes.
    pub fn tried(&mut self, loss: f64, sent_per_s: f64) -> bool {
        self.left = self.left.saturating_sub(1);
        let rate = self.next;
        let goes = loss <= LOSS;
        let on_pace = sent_per_s >= rate * ON_PACE;
        if !(self.failed_once || goes && on_pace) {
            // A single pause of the machine looks like a rate that is too high: try again.
            self.failed_once = true;
            return goes;
        }
        self.failed_once = false;
        match (goes, on_pace) {
            (true, true) => self.goes = Some(rate),
            (true, false) => {
                // The sender is the limit, not the path.
                self.goes = Some(self.goes.unwrap_or(0.0).max(sent_per_s));
                self.fails = self.goes;
            }
            (false, _) => self.fails = Some(rate),
        }
        self.next = match (self.goes, self.fails) {
            (Some(goes), Some(fails)) => (goes * fails).sqrt(),
            (Some(_), None) => rate * self.factor,
            (None, _) => rate / self.factor,
        };
        self.factor = (self.factor * self.factor.sqrt()).min(LONGEST_STEP);
        goes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches a path that loses datagrams above `limit`, with a sender of the rate `sender`.
    fn search(start: f64, limit: f64, sender: f64) -> (f64, u32) {
        let (mut search, mut best, mut trials) = (Search::from(start), 0.0, 0);
        while let Some(rate) = search.next() {
            let sent_per_s = rate.min(sender);
            let loss = (1.0 - limit / sent_per_s).max(0.0);
            if search.tried(loss, sent_per_s) {
                best = f64::max(best, sent_per_s);
            }
            trials += 1;
        }
        (best, trials)
    }

    #[test]
    fn the_limit_is_found_from_any_start() {
        for limit in [2000.0, 100_000.0, 3e6] {
            for start in [1000.0, 80_000.0, 1e7] {
                let (found, trials) = search(start, limit, f64::INFINITY);
                assert!(
                    (found / limit - 1.0).abs() < 0.06,
                    "{start} {limit} {found}"
                );
                assert!(trials <= TRIALS, "{start} {limit} {trials}");
            }
        }
        let (_, trials) = search(95_000.0, 100_000.0, f64::INFINITY);
        assert!(trials <= 10, "{trials}");
    }

    #[test]
    fn a_sender_at_its_limit_ends_the_search() {
        let (found, trials) = search(50_000.0, 1e6, 200_000.0);
        assert!((found / 200_000.0 - 1.0).abs() < 0.01, "{found}");
        assert!(trials < 10, "{trials}");
    }

    #[test]
    fn one_pause_is_not_a_limit() {
        let mut search = Search::from(1000.0);
        assert!(!search.tried(0.5, 1000.0));
        assert_eq!(search.next(), Some(1000.0));
        assert!(!search.tried(0.5, 1000.0));
        assert!(search.next().is_some_and(|rate| rate < 1000.0));
    }

    #[test]
    fn the_search_ends_if_everything_is_lost() {
        assert_eq!(search(1e5, 0.0, f64::INFINITY).0, 0.0);
    }
}
