//! The Internet checksum (RFC 1071): the complement of the ones' complement sum of 16-bit words.

/// A ones' complement sum of 16-bit words, not yet folded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum(u64);

impl Sum {
    /// The sum of data, as if a zero followed where their number of bytes is odd.
    pub fn of(data: &[u8]) -> Self {
        let (words, rest) = data.as_chunks::<4>();
        // The sum of larger words is that of the smaller ones when it is folded, and in the
        // machine's byte order it is the same with its bytes swapped: RFC 1071, section 2. 2^32
        // words would be needed to overflow.
        let sum: u64 = words
            .iter()
            .map(|word| u64::from(u32::from_ne_bytes(*word)))
            .sum();
        let mut last = [0; 4];
        last[..rest.len()].copy_from_slice(rest);
        Sum(sum + u64::from(u32::from_ne_bytes(last)))
    }

    /// The sum of one word in network byte order.
    pub fn of_word(word: [u8; 2]) -> Self {
        Sum(u16::from_ne_bytes(word).into())
    }

    /// The sum of both.
    #[must_use]
    pub fn plus(self, other: Sum) -> Self {
        Sum(self.0 + other.0)
    }

    /// This sum after a number that was part of it has become another.
    #[must_use]
    pub fn with_changed(self, from: u16, to: u16) -> Self {
        self.plus(Sum::of_word((!from).to_be_bytes()))
            .plus(Sum::of_word(to.to_be_bytes()))
    }

    /// The checksum, in network byte order.
    pub fn checksum(self) -> [u8; 2] {
        let mut sum = self.0;
        while sum > u16::MAX.into() {
            sum = (sum >> 16) + (sum & 0xffff);
        }
        // It fits now.
        (!(sum as u16)).to_ne_bytes()
    }

    /// The checksum where 0 means that there is none, as in UDP: the other zero instead.
    pub fn nonzero_checksum(self) -> [u8; 2] {
        match self.checksum() {
            [0, 0] => [0xff, 0xff],
            checksum => checksum,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// As RFC 1071 has it, word by word.
    fn slow(data: &[u8]) -> u16 {
        let mut sum = 0u16;
        for word in data.chunks(2) {
            let word = u16::from_be_bytes([word[0], *word.get(1).unwrap_or(&0)]);
            let (next, carry) = sum.overflowing_add(word);
            sum = next + u16::from(carry);
        }
        !sum
    }

    #[test]
    fn the_example_of_the_rfc() {
        let sum = Sum::of(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
        assert_eq!(sum.checksum(), (!0xddf2u16).to_be_bytes());
    }

    #[test]
    fn there_are_two_zeros() {
        let sum = Sum::of(&[0xff, 0xff]);
        assert_eq!(
            (sum.checksum(), sum.nonzero_checksum()),
            ([0; 2], [0xff; 2])
        );
    }

    proptest! {
        #[test]
        fn it_is_what_the_rfc_says(data: Vec<u8>, cut: usize, number: u16) {
            prop_assert_eq!(Sum::of(&data).checksum(), slow(&data).to_be_bytes());
            // Only behind an even number of bytes is a sum to be continued.
            let (a, b) = data.split_at((cut % (data.len() + 1)) & !1);
            prop_assert_eq!(Sum::of(a).plus(Sum::of(b)).checksum(), slow(&data).to_be_bytes());

            let mut changed = data.clone();
            if let Some(word) = changed.first_chunk_mut::<2>() {
                let before = u16::from_be_bytes(*word);
                *word = number.to_be_bytes();
                let sum = Sum::of(&data).with_changed(before, number);
                // Which of the zeros it is may differ.
                let zeros = |sum: u16| if sum == 0xffff { 0 } else { sum };
                prop_assert_eq!(zeros(u16::from_be_bytes(sum.checksum())), zeros(slow(&changed)));
            }
        }
    }
}
