//! Users by their names, for people. JSON has numbers.

use std::fmt;

use nix::unistd::{Uid, User};

/// The name of a user, if the system knows it.
pub(crate) fn name(uid: u32) -> Option<String> {
    // A user that cannot be looked up has no name.
    let user = User::from_uid(Uid::from_raw(uid)).ok()??;
    Some(user.name)
}

/// A user by name, or else by number.
pub(crate) fn user(uid: u32) -> String {
    name(uid).unwrap_or_else(|| uid.to_string())
}

/// Text with a name behind each number of a user: `uid 1000` becomes `uid 1000 (alice)`.
pub(crate) fn with_names(text: &str) -> String {
    with(text, name)
}

fn with(text: &str, name: impl Fn(u32) -> Option<String>) -> String {
    const MARK: &str = "uid ";
    let mut named = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(MARK) {
        let (before, number) = rest.split_at(at + MARK.len());
        let len = number.find(|c: char| !c.is_ascii_digit());
        let (digits, after) = number.split_at(len.unwrap_or(number.len()));
        named += before;
        named += digits;
        if let Some(name) = digits.parse().ok().and_then(&name) {
            // Writing to a string does not fail.
            let _ = fmt::write(&mut named, format_args!(" ({name})"));
        }
        rest = after;
    }
    named + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_users_get_names() {
        let name = |uid| (uid == 1000).then(|| "alice".to_owned());
        let cases = [
            (
                "domain blue belongs to uid 1000, not to uid 1001",
                "domain blue belongs to uid 1000 (alice), not to uid 1001",
            ),
            ("not uid 1000's", "not uid 1000 (alice)'s"),
            ("uid 1000", "uid 1000 (alice)"),
            ("uid 99999999999", "uid 99999999999"),
            ("a liquid uid ", "a liquid uid "),
            ("", ""),
        ];
        for (text, named) in cases {
            assert_eq!(with(text, name), named);
        }
        assert_eq!(user(0), "root");
    }
}
