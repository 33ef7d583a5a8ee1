//! Names of files and directories.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Name of the log in the state directory.
pub(crate) const LOG: &str = "agent.log";

/// Longest name of a file, less room for an ending, in bytes.
const MAX_NAME: usize = 240;

/// Unique and recognizable name for a state directory: `/run/toroid` is `run-toroid`.
pub(crate) fn name_for(state: &Path) -> String {
    let mut name = String::new();
    for byte in state.as_os_str().as_bytes() {
        match byte {
            b'/' if name.is_empty() => {}
            b'/' => name.push('-'),
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' => name.push(char::from(*byte)),
            _ => name.push_str(&format!("%{byte:02x}")),
        }
    }
    if name.len() > MAX_NAME {
        // Sockets have shorter paths, so such a state directory is unusable, but has its own name.
        let tail = name.split_off(MAX_NAME - 17);
        name.push_str(&format!("-{:016x}", fnv(tail.as_bytes())));
    }
    name
}

fn fnv(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_directory_has_its_own_name() {
        let name = |path: &str| name_for(Path::new(path));
        assert_eq!(name("/run/toroid"), "run-toroid");
        assert_eq!(name("/run/user/1000/toroid"), "run-user-1000-toroid");
        assert_eq!(name("/a-b/c"), "a%2db-c");
        assert_ne!(name("/a/b"), name("/a-b"));
        let long = format!("/{}", "x".repeat(300));
        assert!(name(&long).len() <= MAX_NAME);
        assert_ne!(name(&long), name(&format!("{long}x")));
    }
}
