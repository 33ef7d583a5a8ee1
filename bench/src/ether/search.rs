//! The search for the highest rate at which little is lost.
//!
//! Sans-I/O: it names the rate to try, and gets the result. From its start it moves in large steps until it has seen a rate that goes and one that does not, then halves the way
//! between them.

/// The fraction of datagrams that may be lost.
const LOSS: f64 = 0.01;

/// A sender that reaches this share of the rate keeps its pace.
const ON_PACE: f64 = 0.95;

/// The first large step; each is larger than the one before, up to the last.
const FACTOR: f64 = 1.4;

/// See [`FACTOR`].
const LONGEST_STEP: f64 = 8.0;

/// Rates so close together are one.
const RESOLUTION: f64 = 1.04;

/// Below this nothing works.
const LOWEST: f64 = 100.0;

/// Enough to get from anywhere to anywhere.
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
    /// Begins at a rate.
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

    /// Takes the result of a trial: the lost fraction, and datagrams that the sender really sent in a
    /// second. Returns whether little was lost.
    pub fn tried(&mut self, loss: f64, sent_per_s: f64) -> bool {
        self.left = self.left.saturating_sub(1);
        let rate = self.next;
        let goes = loss <= LOSS;
        let on_pace = sent_per_s >= rate * ON_PACE;
        if !(self.failed_once || goes && on_pace) {
            // A single pause of the machine does as much as a rate that is too high.
            self.failed_once = true;
            return goes;
        }
        self.failed_once = false;
        match (goes, on_pace) {
            (true, true) => self.goes = Some(rate),
            (true, false) => {
                // It is the sender that cannot.
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

    /// Searches on a path that loses datagrams above a rate, with a sender that has a limit.
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
    fn it_finds_the_limit_from_anywhere() {
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
    fn a_sender_at_its_limit_ends_it() {
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
    fn where_everything_is_lost_it_ends() {
        assert_eq!(search(1e5, 0.0, f64::INFINITY).0, 0.0);
    }
}
