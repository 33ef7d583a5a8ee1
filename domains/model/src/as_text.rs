//! Serde: values as their text form, for `#[serde(with = "as_text")]`.

use serde::de::value::{Error as ValueError, StrDeserializer};
use serde::{Deserialize, Deserializer, Serializer, de::Error};

/// Writes a value as text.
///
/// # Errors
/// Those of the serializer.
pub fn serialize<T: ToString, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&value.to_string())
}

/// Parses a value from text.
///
/// # Errors
/// The text is none, or the value's parser refuses it.
pub fn deserialize<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: std::str::FromStr<Err: std::fmt::Display>,
    D: Deserializer<'de>,
{
    String::deserialize(deserializer)?
        .parse()
        .map_err(D::Error::custom)
}

/// Implements `Display` for an enum of unit variants by their serde names.
macro_rules! display_serde_name {
    ($type:ty) => {
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                serde::Serialize::serialize(self, f)
            }
        }
    };
}
pub(crate) use display_serde_name;

/// The variant of an enum with this serde name.
pub(crate) fn variant<'t, T: Deserialize<'t>>(name: &'t str) -> Option<T> {
    T::deserialize(StrDeserializer::<ValueError>::new(name)).ok()
}

/// The number that 32 hexadecimal digits stand for, and nothing else.
pub(crate) fn hex128(text: &str) -> Option<u128> {
    let is_one = text.len() == 32 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_one.then(|| u128::from_str_radix(text, 16).ok())?
}

/// Optional values as text.
pub mod optional {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    /// Writes a value as text, or null.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<T: ToString, S: Serializer>(
        value: &Option<T>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => serializer.serialize_some(&value.to_string()),
            None => serializer.serialize_none(),
        }
    }

    /// Parses a value from text, or null.
    ///
    /// # Errors
    /// The text is none, or the value's parser refuses it.
    pub fn deserialize<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
    where
        T: std::str::FromStr<Err: std::fmt::Display>,
        D: Deserializer<'de>,
    {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| text.parse().map_err(D::Error::custom))
            .transpose()
    }
}
