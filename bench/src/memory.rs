//! The memory that a run may use: free memory of the machine, limited by our control groups.

use std::fs;
use std::path::Path;

/// Where the hierarchies of control groups are mounted.
const GROUPS: &str = "/sys/fs/cgroup";

/// Bytes that we may use; `None` if neither the machine nor a control group says.
pub fn available() -> Option<u64> {
    let membership = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let groups = limit_of_groups(Path::new(GROUPS), &membership);
    machine().into_iter().chain(groups).min()
}

/// Bytes of shared memory and tmpfs that there are on this machine.
pub fn shared() -> Option<u64> {
    field("Shmem:")
}

/// The policy by which the kernel gives shared memory pages of 2 MiB instead of 4 KiB, in its own
/// words, such as `never` or `within_size`.
pub fn huge_pages() -> Option<String> {
    let policies = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled").ok()?;
    let (_, rest) = policies.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}

fn machine() -> Option<u64> {
    field("MemAvailable:")
}

fn field(name: &str) -> Option<u64> {
    kib_field("/proc/meminfo".as_ref(), name)
}

/// Bytes of a field that the kernel gives in KiB, such as `VmRSS:` in `/proc/PID/status`.
pub fn kib_field(file: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = rest.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

/// The least limit of the groups in `membership`, which has the format of `/proc/self/cgroup`,
/// and of the groups around them.
fn limit_of_groups(root: &Path, membership: &str) -> Option<u64> {
    let limits = membership.lines().flat_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let controllers = fields.next().unwrap_or_default();
        let group = fields.next().unwrap_or_default();
        match controllers {
            "" => limits_above(root, group, "memory.max"),
            _ if controllers.split(',').any(|name| name == "memory") => {
                limits_above(&root.join("memory"), group, "memory.limit_in_bytes")
            }
            _ => Vec::new(),
        }
    });
    limits.min()
}

/// The limits of `group` and of all above it, up to `root`. In a container the group may have a
/// name that is not visible, and then the mounted root is the container's.
fn limits_above(root: &Path, group: &str, file: &str) -> Vec<u64> {
    let group = root.join(group.trim_start_matches('/'));
    group
        .ancestors()
        .take_while(|path| path.starts_with(root))
        // A group without a limit says "max".
        .filter_map(|path| {
            fs::read_to_string(path.join(file))
                .ok()?
                .trim()
                .parse()
                .ok()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_limit_of_a_group_and_those_above_it_counts() {
        let dir = tempfile::tempdir().unwrap();
        let group = dir.path().join("a/b");
        fs::create_dir_all(&group).unwrap();
        let limit = || limit_of_groups(dir.path(), "0::/a/b\n");
        assert_eq!(limit(), None);
        fs::write(group.join("memory.max"), "max\n").unwrap();
        assert_eq!(limit(), None);
        fs::write(dir.path().join("a/memory.max"), "4096\n").unwrap();
        assert_eq!(limit(), Some(4096));
        fs::write(dir.path().join("memory.max"), "8192\n").unwrap();
        assert_eq!(limit(), Some(4096));
        assert_eq!(limit_of_groups(dir.path(), "0::/hidden\n"), Some(8192));
        assert_eq!(limit_of_groups(dir.path(), ""), None);
    }

    #[test]
    fn the_first_version_has_a_hierarchy_of_its_own_for_memory() {
        let dir = tempfile::tempdir().unwrap();
        let group = dir.path().join("memory/a");
        fs::create_dir_all(&group).unwrap();
        fs::write(group.join("memory.limit_in_bytes"), "4096\n").unwrap();
        let membership = "3:cpu,cpuacct:/a\n2:memory:/a\n";
        assert_eq!(limit_of_groups(dir.path(), membership), Some(4096));
        assert_eq!(limit_of_groups(dir.path(), "3:cpu,cpuacct:/a\n"), None);
    }
}
