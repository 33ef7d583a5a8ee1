//! Division of a batch of reads into windows that fit into a buffer.

/// Position in a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Position {
    /// Index of the read.
    pub(super) read: usize,
    /// The next byte of the read.
    pub(super) byte: u64,
}

/// A part of one read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// First byte within the read.
    pub(super) byte: u64,
    pub(super) len: u64,
    /// First byte within the buffer.
    pub(super) bounce: u64,
}

/// The part of a batch that fits into the buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    /// Start of the next piece.
    pub(super) at: Position,
    used: u64,
    size: u64,
    longest: u64,
}

impl Window {
    /// The window from `at`, in a buffer of `size` bytes, of pieces of at most `longest` bytes.
    pub(super) fn new(at: Position, size: u64, longest: u64) -> Self {
        Window {
            at,
            used: 0,
            size,
            longest,
        }
    }

    /// The next piece of read `self.at.read`, which has `whole` bytes, if it fits. A read that fits
    /// into the buffer stays whole.
    pub(super) fn next(&mut self, whole: u64) -> Option<Piece> {
        let left = whole.saturating_sub(self.at.byte);
        let len = left.min(self.size).min(self.longest);
        if self.used + len > self.size {
            return None;
        }
        let piece = Piece {
            byte: self.at.byte,
            len,
            bounce: self.used,
        };
        // Words are not divided.
        self.used = (self.used + len).next_multiple_of(64);
        self.at = if len == left {
            Position {
                read: self.at.read + 1,
                byte: 0,
            }
        } else {
            Position {
                byte: self.at.byte + len,
                ..self.at
            }
        };
        Some(piece)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SIZE: u64 = 256;

    proptest! {
        /// Each byte passes the buffer once, in order; pieces do not overlap.
        #[test]
        fn all_bytes_pass_once(lengths in prop::collection::vec(0u64..1000, 0..20), longest in 64u64..512) {
            let mut passed = vec![0; lengths.len()];
            let mut at = Position::default();
            while at.read < lengths.len() {
                let mut window = Window::new(at, SIZE, longest);
                let mut end = 0;
                while let Some(whole) = lengths.get(window.at.read) {
                    let read = window.at.read;
                    let Some(piece) = window.next(*whole) else { break };
                    prop_assert_eq!(piece.byte, passed[read]);
                    prop_assert!(piece.bounce >= end && piece.bounce + piece.len <= SIZE);
                    prop_assert!(piece.bounce.is_multiple_of(64) && piece.len <= longest);
                    prop_assert!(*whole > SIZE.min(longest) || piece.len == *whole);
                    passed[read] += piece.len;
                    end = piece.bounce + piece.len;
                }
                prop_assert!(window.at != at, "it goes on");
                at = window.at;
            }
            prop_assert_eq!(passed, lengths);
        }
    }
}
