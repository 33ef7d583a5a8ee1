//! Values as text.

use jiff::Timestamp;
use serde_json::Value;

use crate::table;

/// Characters of a cell, at most.
const LONGEST: usize = 160;

/// Text for a missing value.
pub const NONE: &str = "-";

/// A value of the field `name`. Intervals have the unit of `of`, the figure of the rounds.
pub fn value(name: &str, of: &str, value: &Value) -> String {
    match value {
        Value::Null => NONE.into(),
        Value::String(text) => cut(text),
        Value::Number(number) => match number.as_f64() {
            Some(known) => measure(name, known),
            None => number.to_string(),
        },
        Value::Array(ends) if name == "ci" => {
            let end = |end: &Value| end.as_f64().map_or(NONE.into(), |end| measure(of, end));
            ends.iter().map(end).collect::<Vec<_>>().join(" .. ")
        }
        Value::Array(values) if values.iter().all(|value| !value.is_object()) => {
            let shown = values.iter().map(|each| self::value(name, of, each));
            cut(&shown.collect::<Vec<_>>().join(" "))
        }
        other => cut(&other.to_string()),
    }
}

/// A number in the unit that the end of the figure's name says.
pub fn measure(name: &str, value: f64) -> String {
    let sign = if value < 0.0 { "-" } else { "" };
    let size = Some(value.abs());
    match name {
        name if name.ends_with("_ns") => format!("{sign}{}", table::time(size)),
        name if name.ends_with("bytes_per_s") => format!("{sign}{}", table::rate(size)),
        name if name.ends_with("bits_per_s") => format!("{} Mbit/s", number(value / 1e6)),
        name if name.ends_with("_per_s") => format!("{} /s", number(value)),
        "unix_time_s" => time(value),
        "bytes" => bytes(value),
        name if name.ends_with("_bytes") => bytes(value),
        _ => number(value),
    }
}

/// Bytes in the largest binary unit that leaves an integer.
fn bytes(value: f64) -> String {
    let units = [(1u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let is_whole = |unit: u64| value >= unit as f64 && value % unit as f64 == 0.0;
    match units.into_iter().find(|(unit, _)| is_whole(*unit)) {
        Some((unit, name)) => format!("{} {name}", number(value / unit as f64)),
        None => format!("{} B", number(value)),
    }
}

/// Seconds since 1970 as a date.
fn time(seconds: f64) -> String {
    let known = Timestamp::from_second(seconds as i64);
    known.map_or_else(|_| number(seconds), |time| time.to_string())
}

/// A number with four significant digits; integers of up to ten digits are whole.
pub fn number(value: f64) -> String {
    let size = value.abs();
    if value.fract() == 0.0 && size < 1e10 {
        return format!("{value}");
    }
    if !(1e-4..1e10).contains(&size) {
        return format!("{value:.3e}");
    }
    let decimals = (3 - size.log10().floor() as i32).clamp(0, 7) as usize;
    let text = format!("{value:.decimals$}");
    if text.contains('.') {
        return text.trim_end_matches('0').trim_end_matches('.').into();
    }
    text
}

/// The start of a text, marked where it goes on.
pub fn cut(text: &str) -> String {
    cut_at(text, LONGEST)
}

/// The first `longest` characters of a text, marked where it goes on.
pub fn cut_at(text: &str, longest: usize) -> String {
    if text.chars().count() <= longest {
        return text.into();
    }
    text.chars().take(longest).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_tell_units() {
        let cases = [
            ("p50_ns", json!(1500.0), "1.50 us"),
            ("cost_ns", json!(-2.0e6), "-2.00 ms"),
            ("bytes_per_s", json!(2.5e9), "2.50 GB/s"),
            ("bits_per_s", json!(1.25e9), "1250 Mbit/s"),
            ("ops_per_s", json!(1234.56), "1235 /s"),
            ("bytes", json!(65536), "64 KiB"),
            ("hot_bytes", json!(1000), "1000 B"),
            ("unix_time_s", json!(0), "1970-01-01T00:00:00Z"),
            ("ratio", json!(0.123456), "0.1235"),
            ("tiny", json!(1.5e-9), "1.500e-9"),
            ("ci", json!([-1500, null]), "-1.50 us .. -"),
            ("met", json!(null), NONE),
            ("configuration", json!(["kv", "--quick"]), "kv --quick"),
            ("x", json!({"a": [1]}), "{\"a\":[1]}"),
        ];
        for (name, json, expected) in cases {
            assert_eq!(value(name, "p50_ns", &json), expected, "{name}");
        }
        assert_eq!(cut_at("äöü", 2), "äö…");
    }
}
