//! Valid names of domains, nodes, hosts and uplinks.

/// The longest name of an interface in bytes.
pub(crate) const MAX_NAME: usize = 15;

/// The longest host name label in bytes.
pub(crate) const MAX_LABEL: usize = 63;

/// Names that mean something else as an interface or as the end of a host name.
pub(crate) const RESERVED_NAMES: [&str; 4] = ["lo", "all", "default", "localhost"];

/// Whether `name` can name interfaces and end host names. Upper case is excluded because host names
/// are case-insensitive.
pub fn is_domain_name(name: &str) -> bool {
    let inner = |c: u8| matches!(c, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_');
    (1..=MAX_NAME).contains(&name.len())
        && name.bytes().all(inner)
        && !name.starts_with(['-', '_'])
        && !name.ends_with(['-', '_'])
        && !RESERVED_NAMES.contains(&name)
}

/// Whether `alias` can be a host name. An alias begins with a letter, so it is never a place.
pub fn is_alias(alias: &str) -> bool {
    let inner = |c: u8| matches!(c, b'a'..=b'z' | b'0'..=b'9' | b'-');
    (1..=MAX_LABEL).contains(&alias.len())
        && alias.bytes().all(inner)
        && alias.starts_with(|c: char| c.is_ascii_lowercase())
        && !alias.ends_with('-')
        && alias != "localhost"
}

/// Whether `name` can name a host.
pub fn is_host_name(name: &str) -> bool {
    // As aliases are, so that it could be a host name.
    is_alias(name)
}

/// Whether an interface of the host that is called so can be an uplink. Names that would mean
/// something else in a rule of nftables or in a path cannot.
pub fn is_uplink_name(name: &str) -> bool {
    let plain = |c: u8| c.is_ascii_alphanumeric() || b"-_.:@~+".contains(&c);
    (1..=MAX_NAME).contains(&name.len())
        && name.bytes().all(plain)
        && !["lo", ".", "..", "all", "default"].contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_mean_more_are_no_uplinks() {
        for name in ["eth0", "enp3s0f1", "br-lan", "eth0.7", "veth@1"] {
            assert!(is_uplink_name(name), "{name}");
        }
        for name in [
            "",
            "lo",
            "..",
            "eth*",
            "a b",
            "a\"b",
            "a/b",
            "a\\b",
            "sixteen-letters-",
        ] {
            assert!(!is_uplink_name(name), "{name}");
        }
    }
}
