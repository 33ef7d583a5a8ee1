//! Quantities as users write them.

use std::fmt;
use std::str::FromStr;

use super::LinkError;

/// Serializes types as their texts.
macro_rules! serde_as_text {
    ($($type:ty),* $(,)?) => {$(
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                crate::as_text::serialize(self, to)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                crate::as_text::deserialize(from)
            }
        }
    )*};
}
pub(super) use serde_as_text;

/// A time in nanoseconds, written as `5us`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub u64);

/// A rate in bytes per second, written as `10Gbit` or `425MB/s`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(pub u64);

/// A rate to set, written as `10Gbit`, or as `40%` of the machine's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WantedRate {
    /// An absolute rate.
    Absolute(Rate),
    /// A share of the rate of RDMA on this machine.
    Share(Share),
}

/// A number of bytes, written as `1500` or `64KiB`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

/// A share in parts per billion, written as `0.1%`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share(pub u32);

/// A unit and the number of its smallest parts.
type Unit = (&'static str, u64);

/// Nanoseconds.
const TIMES: [Unit; 4] = [
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// Bits per second.
const BITS: [Unit; 4] = [
    ("Gbit", 1_000_000_000),
    ("Mbit", 1_000_000),
    ("Kbit", 1_000),
    ("bit", 1),
];

/// Bits per second, too.
const BYTES: [Unit; 4] = [
    ("GB/s", 8_000_000_000),
    ("MB/s", 8_000_000),
    ("KB/s", 8_000),
    ("B/s", 8),
];

/// Bytes.
const SIZES: [Unit; 3] = [("MiB", 1 << 20), ("KiB", 1 << 10), ("", 1)];

/// Bytes, too.
const OTHER_SIZES: [Unit; 3] = [("MB", 1_000_000), ("KB", 1_000), ("B", 1)];

/// Parts per billion.
const SHARES: [Unit; 1] = [("%", 10_000_000)];

impl Time {
    /// The longest time that a model may add.
    pub const MAX: Time = Time(10_000_000_000);
}

impl Rate {
    /// The lowest rate: a frame of 64 KiB takes 8 s.
    pub const MIN: Rate = Rate(8_000);
}

impl WantedRate {
    /// The rate, where `machine` is the machine's in bytes per second.
    ///
    /// # Errors
    /// [`LinkError::TooSlow`].
    pub fn of(self, machine: u64) -> Result<Rate, LinkError> {
        let rate = match self {
            WantedRate::Absolute(rate) => rate,
            WantedRate::Share(share) => Rate((share.of_one() * machine as f64) as u64),
        };
        if rate < Rate::MIN {
            return Err(LinkError::TooSlow(rate));
        }
        Ok(rate)
    }
}

impl Share {
    /// The share of 1.
    pub fn of_one(self) -> f64 {
        f64::from(self.0) / 1e9
    }
}

impl FromStr for Time {
    type Err = LinkError;

    fn from_str(text: &str) -> Result<Self, LinkError> {
        let nanos = read(text, &TIMES).and_then(|nanos| nanos.try_into().ok());
        let time = Time(nanos.ok_or_else(|| LinkError::NotATime(text.into()))?);
        if time > Time::MAX {
            return Err(LinkError::TooLong(time));
        }
        Ok(time)
    }
}

impl FromStr for Rate {
    type Err = LinkError;

    fn from_str(text: &str) -> Result<Self, LinkError> {
        let bits = read(text, &BITS).or_else(|| read(text, &BYTES));
        let bytes = bits.and_then(|bits| (bits / 8).try_into().ok());
        let rate = Rate(bytes.ok_or_else(|| LinkError::NotARate(text.into()))?);
        if rate < Rate::MIN {
            return Err(LinkError::TooSlow(rate));
        }
        Ok(rate)
    }
}

impl FromStr for WantedRate {
    type Err = LinkError;

    fn from_str(text: &str) -> Result<Self, LinkError> {
        if text.ends_with('%') {
            text.parse().map(WantedRate::Share)
        } else {
            text.parse().map(WantedRate::Absolute)
        }
    }
}

impl FromStr for Size {
    type Err = LinkError;

    fn from_str(text: &str) -> Result<Self, LinkError> {
        let bytes = read(text, &SIZES).or_else(|| read(text, &OTHER_SIZES));
        let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
        Ok(Size(bytes.ok_or_else(|| LinkError::NotASize(text.into()))?))
    }
}

impl FromStr for Share {
    type Err = LinkError;

    fn from_str(text: &str) -> Result<Self, LinkError> {
        let parts = read(text, &SHARES).ok_or_else(|| LinkError::NotAShare(text.into()))?;
        let share = u32::try_from(parts)
            .ok()
            .filter(|parts| *parts <= 1_000_000_000);
        share
            .map(Share)
            .ok_or_else(|| LinkError::OverAll(text.into()))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print(f, self.0.into(), &TIMES)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print(f, 8 * u128::from(self.0), &BITS)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print(f, self.0.into(), &SIZES)
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print(f, self.0.into(), &SHARES)
    }
}

serde_as_text!(Time, Rate, Size, Share);

/// Smallest parts of a decimal number with a unit; `None` unless they are a whole number.
fn read(text: &str, units: &[Unit]) -> Option<u128> {
    units
        .iter()
        .find_map(|(unit, parts)| decimal(text.strip_suffix(unit)?.trim_end(), *parts))
}

/// A decimal number times `factor`.
fn decimal(text: &str, factor: u64) -> Option<u128> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |text: &str| {
        let all = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        all.then(|| text.parse::<u128>().ok()).flatten()
    };
    let (whole, parts) = (digits(whole)?, digits(fraction)?);
    let scale = 10_u128.checked_pow(fraction.len().try_into().ok()?)?;
    let parts = parts.checked_mul(factor.into())?;
    let sum = whole
        .checked_mul(factor.into())?
        .checked_add(parts / scale)?;
    (parts % scale == 0).then_some(sum)
}

/// Prints parts in the largest unit in which they have at most three decimals, or in the smallest.
fn print(f: &mut fmt::Formatter<'_>, parts: u128, units: &[Unit]) -> fmt::Result {
    let suits = |(_, unit): &&Unit| {
        let unit = u128::from(*unit);
        parts >= unit && (parts % unit * 1000).is_multiple_of(unit)
    };
    let smallest = units.last();
    let Some((name, unit)) = units.iter().find(suits).or(smallest) else {
        return Ok(());
    };
    let (whole, mut rest, unit) = (parts / u128::from(*unit), parts % u128::from(*unit), *unit);
    write!(f, "{whole}")?;
    if rest > 0 {
        f.write_str(".")?;
    }
    while rest > 0 {
        rest *= 10;
        write!(f, "{}", rest / u128::from(unit))?;
        rest %= u128::from(unit);
    }
    f.write_str(name)
}
