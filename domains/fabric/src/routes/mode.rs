//! Routing modes and their names.

use std::fmt;
use std::str::FromStr;

/// A routing mode of Aries: which candidates a packet has, and the bias against non-minimal ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// Minimal and non-minimal candidates without bias. "Adaptive" of the paper, and the default of
    /// all traffic except alltoall.
    Adaptive0,
    /// The bias grows as the packet nears its destination. The default of alltoall.
    Adaptive1,
    /// Low bias.
    Adaptive2,
    /// High bias. "Adaptive with high bias" of the paper.
    Adaptive3,
    /// Always minimal, by a hash of the packet's header.
    MinHash,
    /// Always non-minimal, by a hash of the packet's header.
    NminHash,
    /// Always minimal, by one path: packets arrive in order.
    InOrder,
}

/// No routing mode has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no routing mode: use adaptive0, adaptive1, adaptive2, adaptive3, min-hash, nmin-hash or in-order"
)]
pub struct ParseModeError(String);

impl Mode {
    /// All modes. A mode is at the place `mode as usize`.
    pub const ALL: [Mode; 7] = [
        Mode::Adaptive0,
        Mode::Adaptive1,
        Mode::Adaptive2,
        Mode::Adaptive3,
        Mode::MinHash,
        Mode::NminHash,
        Mode::InOrder,
    ];

    /// The mode's name in commands and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Adaptive0 => "adaptive0",
            Mode::Adaptive1 => "adaptive1",
            Mode::Adaptive2 => "adaptive2",
            Mode::Adaptive3 => "adaptive3",
            Mode::MinHash => "min-hash",
            Mode::NminHash => "nmin-hash",
            Mode::InOrder => "in-order",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Mode {
    type Err = ParseModeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mode = Mode::ALL.into_iter().find(|mode| mode.name() == text);
        mode.ok_or_else(|| ParseModeError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed_and_places_are_those_of_all() {
        for (place, mode) in Mode::ALL.into_iter().enumerate() {
            assert_eq!(mode.to_string().parse(), Ok(mode));
            assert_eq!(mode as usize, place);
        }
        let error = "adaptive4".parse::<Mode>().unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("\"adaptive4\" is no routing mode: use adaptive0")
        );
    }
}
