//! Numbers in memcached's notation, which is that of the C library.

/// Parses a number as `strtol`, truncated to 32 bits. It must be present, and end with white space
/// or the token.
pub(crate) fn int(token: &[u8]) -> Option<i32> {
    let (negative, magnitude) = parse(token)?;
    let wide = if negative {
        0i64.checked_sub_unsigned(magnitude)?
    } else {
        i64::try_from(magnitude).ok()?
    };
    Some(wide as i32)
}

/// Parses a number as [`unsigned`], truncated to 32 bits.
pub(crate) fn unsigned_int(token: &[u8]) -> Option<u32> {
    unsigned(token).map(|wide| wide as u32)
}

/// Parses a number as `strtoull`. A negative number is refused, unless it wraps around to one that
/// is positive as a signed number.
pub(crate) fn unsigned(token: &[u8]) -> Option<u64> {
    let (negative, magnitude) = parse(token)?;
    let value = if negative {
        magnitude.wrapping_neg()
    } else {
        magnitude
    };
    let refused = (value as i64) < 0 && until_nul(token).contains(&b'-');
    (!refused).then_some(value)
}

/// Parses a number as `strtod`, without infinity and hexadecimal digits.
pub(crate) fn real(token: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(token).ok()?.trim_ascii();
    text.parse().ok().filter(|value: &f64| value.is_finite())
}

fn parse(token: &[u8]) -> Option<(bool, u64)> {
    let is_space = |byte: &u8| matches!(byte, b'\t'..=b'\r' | b' ');
    let start = token.iter().position(|byte| !is_space(byte))?;
    let (negative, digits) = match &token[start..] {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    let count = digits
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    let ends = digits
        .get(count)
        .is_none_or(|byte| is_space(byte) || *byte == 0);
    if count == 0 || !ends {
        return None;
    }
    let mut value = 0u64;
    for digit in &digits[..count] {
        value = value
            .checked_mul(10)?
            .checked_add(u64::from(digit - b'0'))?;
    }
    Some((negative, value))
}

fn until_nul(token: &[u8]) -> &[u8] {
    token.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// Decimal digits of a number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Digits {
    digits: [u8; Self::MOST],
    first: usize,
}

impl Digits {
    /// Digits of the largest number.
    pub(crate) const MOST: usize = 20;

    pub(crate) fn of(mut number: u64) -> Self {
        let (mut digits, mut first) = ([0; Self::MOST], Self::MOST);
        loop {
            first -= 1;
            digits[first] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                return Digits { digits, first };
            }
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.digits[self.first..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_parse_as_in_the_c_library() {
        assert_eq!(int(b"-1"), Some(-1));
        assert_eq!(int(b"4294967297"), Some(1));
        assert_eq!(int(b"9223372036854775808"), None);
        assert_eq!(int(b""), None);
        assert_eq!(int(b"1x"), None);
        assert_eq!(int(b"+7\tx"), Some(7));
        assert_eq!(unsigned_int(b"4294967296"), Some(0));
        assert_eq!(unsigned(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(unsigned(b"18446744073709551616"), None);
        assert_eq!(unsigned(b"-1"), None);
        assert_eq!(unsigned(b"-18446744073709551615"), Some(1));
        assert_eq!(unsigned(b"18446744073709551615 -"), None);
        assert_eq!(unsigned(b"5\0x"), Some(5));
        assert_eq!(real(b"0.5"), Some(0.5));
        assert_eq!(real(b"x"), None);
    }

    #[test]
    fn digits_are_decimal() {
        for number in [0, 7, 10, 1234, u64::MAX] {
            assert_eq!(Digits::of(number).bytes(), number.to_string().as_bytes());
        }
    }
}
