//! Memory available to a run: free memory of the machine, limited by control groups and by the
//! address space of the process.

use std::fs;
use std::path::Path;

/// Mount point of the control group hierarchies.
const GROUPS: &str = "/sys/fs/cgroup";

/// Bytes available to this process; `None` if neither the machine nor a limit tells.
pub fn available() -> Option<u64> {
    let membership = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let groups = limit_of_groups(Path::new(GROUPS), &membership);
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let used = kib_field("/proc/self/status".as_ref(), "VmSize:").unwrap_or_default();
    let addresses = limit_of_addresses(&limits).map(|limit| limit.saturating_sub(used));
    let all = field("MemAvailable:").into_iter().chain(groups);
    all.chain(addresses).min()
}

/// Bytes of this machine.
pub fn total() -> Option<u64> {
    field("MemTotal:")
}

/// Bytes of shared memory and tmpfs of this machine.
pub fn shared() -> Option<u64> {
    field("Shmem:")
}

/// Kernel policy of 2 MiB pages for shared memory, such as `never` or `within_size`.
pub fn huge_pages() -> Option<String> {
    let policies = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled").ok()?;
    let (_, rest) = policies.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}

fn field(name: &str) -> Option<u64> {
    kib_field("/proc/meminfo".as_ref(), name)
}

/// Bytes of a field in KiB, such as `VmRSS:` in `/proc/PID/status`.
pub fn kib_field(file: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = rest.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

/// Bytes of address space that the process may have (`ulimit -v`), if limited. `limits` has the format
/// of `/proc/self/limits`.
fn limit_of_addresses(limits: &str) -> Option<u64> {
    const NAME: &str = "Max address space";
    let rest = limits.lines().find_map(|line| line.strip_prefix(NAME))?;
    // "unlimited" does not parse.
    rest.split_whitespace().next()?.parse().ok()
}

/// Smallest limit of the groups in `membership` (format of `/proc/self/cgroup`) and their parents.
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

/// Limits of `group` and its parents up to `root`. A group of a container may be invisible there;
/// the mounted root is then the container's.
fn limits_above(root: &Path, group: &str, file: &str) -> Vec<u64> {
    let group = root.join(group.trim_start_matches('/'));
    group
        .ancestors()
        .take_while(|path| path.starts_with(root))
        // "max" means no limit and does not parse.
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
    fn the_smallest_limit_of_a_group_and_its_parents_holds() {
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
    fn the_soft_limit_of_addresses_holds() {
        let limits = |soft: &str| {
            format!(
                "Limit                     Soft Limit           Hard Limit           Units     \n\
                 Max address space         {soft:20} unlimited            bytes     \n"
            )
        };
        assert_eq!(limit_of_addresses(&limits("1073741824")), Some(1 << 30));
        assert_eq!(limit_of_addresses(&limits("unlimited")), None);
        assert_eq!(limit_of_addresses(""), None);
    }

    #[test]
    fn version_1_has_a_separate_memory_hierarchy() {
        let dir = tempfile::tempdir().unwrap();
        let group = dir.path().join("memory/a");
        fs::create_dir_all(&group).unwrap();
        fs::write(group.join("memory.limit_in_bytes"), "4096\n").unwrap();
        let membership = "3:cpu,cpuacct:/a\n2:memory:/a\n";
        assert_eq!(limit_of_groups(dir.path(), membership), Some(4096));
        assert_eq!(limit_of_groups(dir.path(), "3:cpu,cpuacct:/a\n"), None);
    }
}
