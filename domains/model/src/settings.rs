//! Files in TOML that people write. Everything that is wrong is reported, each with its line.

use std::ops::RangeInclusive;

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

/// A mistake in a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct Problem {
    /// Line number, from 1.
    pub line: usize,
    /// Mistake and remedy.
    pub message: String,
}

pub(crate) type Key<'t> = Spanned<DeString<'t>>;
pub(crate) type Value<'t> = Spanned<DeValue<'t>>;

/// The lines of a file, and the mistakes found in them.
#[derive(Debug)]
pub(crate) struct Lines {
    /// In bytes from the start.
    ends: Vec<usize>,
    problems: Vec<Problem>,
}

impl Lines {
    /// Reads a file; without a table when it is no TOML, which is a problem by then.
    pub(crate) fn read(text: &str) -> (Self, Option<Spanned<DeTable<'_>>>) {
        let ends = text.match_indices('\n').map(|(at, _)| at);
        let mut lines = Lines {
            ends: ends.collect(),
            problems: Vec::new(),
        };
        let file = DeTable::parse(text).map_err(|error| {
            let span = error.span().unwrap_or_default();
            let message = error.message().replace('\n', ", ");
            let what = text.get(span.clone()).unwrap_or_default().trim();
            let message = if what.is_empty() || what.contains('\n') {
                message
            } else {
                format!("{message}: {what}")
            };
            lines.problem(span.start, message);
        });
        (lines, file.ok())
    }

    /// Returns `read` if there is no mistake.
    ///
    /// # Errors
    /// All problems, in order of their lines.
    pub(crate) fn end<T>(mut self, read: T) -> Result<T, Vec<Problem>> {
        self.problems.sort();
        if self.problems.is_empty() {
            Ok(read)
        } else {
            Err(self.problems)
        }
    }

    /// Number of mistakes so far.
    pub(crate) fn problems(&self) -> usize {
        self.problems.len()
    }

    /// Records a mistake at a byte offset.
    pub(crate) fn problem(&mut self, at: usize, message: impl ToString) {
        self.problems.push(Problem {
            line: self.line(at),
            message: message.to_string(),
        });
    }

    /// The line of a byte, from 1.
    pub(crate) fn line(&self, at: usize) -> usize {
        1 + self.ends.partition_point(|end| *end < at)
    }

    pub(crate) fn integer(&mut self, value: &Value<'_>, range: RangeInclusive<u64>) -> Option<u64> {
        let Some(number) = value.get_ref().as_integer() else {
            self.mistyped(value, "a number");
            return None;
        };
        let parsed = u64::from_str_radix(number.as_str(), number.radix());
        let parsed = parsed.ok().filter(|number| range.contains(number));
        if parsed.is_none() {
            let (least, most) = range.into_inner();
            let message = format!("{number} is not from {least} to {most}");
            self.problem(value.span().start, message);
        }
        parsed
    }

    pub(crate) fn number(&mut self, value: &Value<'_>, range: RangeInclusive<u32>) -> Option<u32> {
        let (least, most) = range.into_inner();
        let number = self.integer(value, least.into()..=most.into())?;
        u32::try_from(number).ok()
    }

    pub(crate) fn boolean(&mut self, value: &Value<'_>) -> Option<bool> {
        let boolean = value.get_ref().as_bool();
        if boolean.is_none() {
            self.mistyped(value, "true or false");
        }
        boolean
    }

    pub(crate) fn string<'t>(&mut self, value: &'t Value<'_>) -> Option<&'t str> {
        let string = value.get_ref().as_str();
        if string.is_none() {
            self.mistyped(value, "a text in quotes");
        }
        string
    }

    pub(crate) fn table<'t, 'i>(&mut self, value: &'t Value<'i>) -> Option<&'t DeTable<'i>> {
        let table = value.get_ref().as_table();
        if table.is_none() {
            self.mistyped(value, "a table");
        }
        table
    }

    pub(crate) fn entries<'t, 'i>(
        &mut self,
        file: &'t DeTable<'i>,
        key: &str,
    ) -> impl Iterator<Item = (&'t Key<'i>, &'t Value<'i>)> + use<'t, 'i> {
        let table = file.get(key).and_then(|value| self.table(value));
        table.into_iter().flat_map(DeTable::iter)
    }

    /// Objects to keys that are none.
    pub(crate) fn check_keys(&mut self, table: &DeTable<'_>, what: &str, known: &[&str]) {
        for key in table
            .keys()
            .filter(|key| !known.contains(&&**key.get_ref()))
        {
            let name = key.get_ref();
            let meant = match nearest(name, known) {
                Some(meant) => format!("did you mean \"{meant}\"?"),
                None => format!("there are {}", known.join(", ")),
            };
            let message = format!("unknown key \"{name}\" in {what}; {meant}");
            self.problem(key.span().start, message);
        }
    }

    pub(crate) fn mistyped(&mut self, value: &Value<'_>, wanted: &str) {
        let found = value.get_ref().type_str();
        self.problem(
            value.span().start,
            format!("write {wanted}, not a value of type {found}"),
        );
    }
}

/// The known word most similar to `word`, if any is similar enough.
fn nearest<'k>(word: &str, known: &[&'k str]) -> Option<&'k str> {
    let like = |other: &&str| strsim::jaro_winkler(word, other);
    let close = known.iter().copied().filter(|other| like(other) > 0.75);
    close.max_by(|a, b| like(a).total_cmp(&like(b)))
}
