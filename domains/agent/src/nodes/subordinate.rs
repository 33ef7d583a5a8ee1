//! Subordinate uids: a user with many of them (`/etc/subuid`) counts as one.

use std::fs;

use nix::unistd::User;

const TABLE: &str = "/etc/subuid";

/// User to which a uid is charged: itself, or the user it is subordinate to.
pub(crate) fn account(uid: u32) -> u32 {
    // A host without the table has no such uids.
    let table = fs::read_to_string(TABLE).unwrap_or_default();
    let owner = superior(&table, uid).and_then(|owner| uid_of(&owner));
    owner.unwrap_or(uid)
}

/// Name in the range `NAME:FIRST:COUNT` that has a uid.
fn superior(table: &str, uid: u32) -> Option<String> {
    let has = |line: &&str| {
        let mut fields = line.split(':').skip(1).map(str::parse::<u32>);
        let (Some(Ok(first)), Some(Ok(count))) = (fields.next(), fields.next()) else {
            return false;
        };
        uid.checked_sub(first).is_some_and(|offset| offset < count)
    };
    let line = table.lines().find(has)?;
    line.split(':').next().map(str::to_owned)
}

/// Uid of a user in the table, by name or number.
fn uid_of(owner: &str) -> Option<u32> {
    owner.parse().ok().or_else(|| {
        let user = User::from_name(owner).ok()??;
        Some(user.uid.as_raw())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uid_is_charged_to_the_user_that_has_its_range() {
        let table = "alice:100000:65536\nbroken\n1001:165536:65536\nhuge:4294967295:10\n";
        let owner = |uid| superior(table, uid);
        assert_eq!(owner(99_999), None);
        assert_eq!(owner(100_000).as_deref(), Some("alice"));
        assert_eq!(owner(165_535).as_deref(), Some("alice"));
        assert_eq!(owner(165_536).as_deref(), Some("1001"));
        assert_eq!(owner(231_072), None);
        assert_eq!(owner(u32::MAX).as_deref(), Some("huge"));
        assert_eq!(uid_of("1001"), Some(1001));
        assert_eq!(uid_of("root"), Some(0));
        assert_eq!(uid_of("no such user"), None);
    }
}
