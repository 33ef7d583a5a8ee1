//! Limits of a node's resources: a control group for each node, below one of the torus.
//!
//! ```text
//!   cgroup2     PARENT/toroid.STATE/1-0-0      memory.max, pids.max
//!   version 1   PARENT/toroid.STATE/1-0-0      memory.limit_in_bytes or pids.max, a tree for each
//! ```
//!
//! PARENT is the group of the agent. With cgroup2 only a group without processes can pass
//! controllers on (cgroups(7)), so there PARENT is the nearest group above the agent that can. The
//! first process of a node enters the groups before it starts anything, and all others descend from
//! it. Processes of a node do not see the file systems of groups, so none can leave.
//!
//! A file in the state directory names the groups, for the successor of a killed agent.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use toroid_fabric::Place;
use toroid_model::addressing::host_name;
use toroid_model::info::Limits;

use crate::error::{AgentError, in_state};
use crate::random;
use crate::store::names::name_for;
use crate::store::ownership;

/// Most processes and threads of a node, unless [`crate::config::Config::limits`] sets another
/// limit.
pub const DEFAULT_PIDS: u32 = 4096;

/// The file.
const FILE: &str = "cgroups.json";

/// Time for the last processes of all groups to leave them.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Pause between two attempts to remove a group.
const PAUSE: Duration = Duration::from_millis(5);

/// Resource limited by a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Controller {
    Memory,
    Pids,
    /// Not a controller of the kernel's: each group of cgroup2 can be frozen.
    Freezer,
}

/// Groups of an agent, and the limits of each node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Cgroups {
    trees: Vec<Tree>,
    pub(crate) limits: Limits,
}

/// Group of the torus in one hierarchy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Tree {
    group: PathBuf,
    controllers: Vec<Controller>,
}

impl Cgroups {
    /// Makes the groups of the torus for new nodes. Also returns the reason if nodes lack default
    /// limits.
    ///
    /// # Errors
    /// [`AgentError::Limit`] where a limit that was asked for cannot be had.
    pub(crate) fn make(
        state: &Path,
        asked: Limits,
    ) -> Result<(Self, Option<AgentError>), AgentError> {
        let (mut made, mut missing) = (Cgroups::default(), None);
        let name = format!("toroid.{}", name_for(state));
        let wanted = [Controller::all_for(asked), vec![Controller::Freezer]].concat();
        for (controllers, group) in groups(&name, &wanted) {
            let asked_for = controllers.iter().find(|c| c.is_in(asked));
            let what = asked_for.unwrap_or(&Controller::Pids).what();
            match (group, asked_for) {
                (Ok(group), _) => made.trees.push(Tree { group, controllers }),
                // Then nodes that must stop are killed.
                (Err(_), None) if controllers == [Controller::Freezer] => {}
                (Err(reason), None) => missing = Some(AgentError::Limit { what, reason }),
                (Err(reason), Some(_)) => {
                    made.remove();
                    return Err(AgentError::Limit { what, reason });
                }
            }
        }
        made.limit(Limits {
            pids: asked.pids.or(Some(DEFAULT_PIDS)),
            ..asked
        });
        // Without the file no successor would remove the groups.
        made.keep(state).inspect_err(|_| {
            made.remove();
        })?;
        Ok((made, missing))
    }

    /// Takes over the predecessor's groups, with the requested limits, and otherwise unchanged
    /// ones. Also returns the reason if its nodes lack default limits.
    ///
    /// # Errors
    /// [`AgentError::Inherited`] where its nodes cannot have one of them.
    pub(crate) fn inherit(
        state: &Path,
        asked: Limits,
    ) -> Result<(Self, Option<AgentError>), AgentError> {
        let mut kept = Cgroups::read(state);
        let mut asked_for = Controller::all_for(asked)
            .into_iter()
            .filter(|c| c.is_in(asked));
        if let Some(cannot) = asked_for.find(|&controller| !kept.has(controller)) {
            return Err(AgentError::Inherited {
                state: state.into(),
                what: format!("an agent that does not limit {}", cannot.what()),
            });
        }
        kept.limit(Limits {
            memory: asked.memory.or(kept.limits.memory),
            pids: asked.pids.or(kept.limits.pids),
        });
        let missing = kept.limits.pids.is_none().then(|| AgentError::Limit {
            what: Controller::Pids.what(),
            reason: "they were made without a limit".into(),
        });
        Ok((kept, missing))
    }

    /// Groups of a node with its limits, made if missing.
    pub(crate) fn of(&self, place: Place) -> io::Result<Vec<PathBuf>> {
        let make = |tree: &Tree| {
            let group = tree.group.join(host_name(place));
            directory(&group)?;
            for controller in &tree.controllers {
                match controller {
                    Controller::Pids => limit_pids(&group, self.limits.pids)?,
                    Controller::Memory => limit_memory(&group, self.limits.memory)?,
                    Controller::Freezer => {}
                }
            }
            Ok(group)
        };
        self.trees.iter().map(make).collect()
    }

    fn has(&self, controller: Controller) -> bool {
        self.trees
            .iter()
            .any(|tree| tree.controllers.contains(&controller))
    }

    /// Sets limits, as far as there are groups for them.
    fn limit(&mut self, limits: Limits) {
        self.limits = Limits {
            memory: limits.memory.filter(|_| self.has(Controller::Memory)),
            pids: limits.pids.filter(|_| self.has(Controller::Pids)),
        };
    }

    /// Reads the file. Another format, as of another release, counts as no groups.
    fn read(state: &Path) -> Self {
        let kept = fs::read(state.join(FILE)).ok();
        let kept = kept.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        kept.unwrap_or_default()
    }

    /// Writes the file.
    pub(crate) fn keep(&self, state: &Path) -> Result<(), AgentError> {
        if self.trees.is_empty() {
            return Ok(());
        }
        let text = serde_json::to_vec(self).map_err(io::Error::from);
        let written = text.and_then(|text| ownership::replace(&state.join(FILE), &text));
        written.map_err(in_state(state))
    }

    fn remove(&self) -> bool {
        let deadline = Instant::now() + TIMEOUT;
        let removed = self.trees.iter().map(|tree| remove(&tree.group, deadline));
        let failed = removed.filter_map(Result::err).inspect(|error| {
            tracing::warn!("cannot remove a control group: {error}");
        });
        failed.count() == 0
    }
}

/// Makes groups for these controllers: one for all controllers of cgroup2.
fn groups(name: &str, wanted: &[Controller]) -> Vec<(Vec<Controller>, Result<PathBuf, String>)> {
    let make = |(controllers, hierarchy): (Vec<Controller>, Result<Hierarchy, String>)| {
        let group = hierarchy.and_then(|hierarchy| hierarchy.make(name, &controllers));
        (controllers, group)
    };
    let hierarchies = Hierarchy::of(wanted);
    hierarchies.into_iter().map(make).collect()
}

/// Checks that nodes could have all limits.
pub(super) fn try_out() -> Result<(), AgentError> {
    let all = Limits {
        memory: Some(u64::MAX),
        pids: Some(DEFAULT_PIDS),
    };
    let made = groups(&trial_name()?, &Controller::all_for(all))
        .into_iter()
        .map(|(controllers, group)| {
            let what = controllers.first().map_or("nodes", |first| first.what());
            let gone = |group: PathBuf| fs::remove_dir(group).map_err(|error| error.to_string());
            let done = group.and_then(gone);
            done.map_err(|reason| AgentError::Limit { what, reason })
        });
    // All trial groups are removed before a failure is returned.
    made.collect::<Vec<_>>().into_iter().collect()
}

/// Name of a trial group. Two agents in different namespaces may have the same process number.
fn trial_name() -> Result<String, AgentError> {
    let number = random::bytes::<8>().map_err(|refusal| AgentError::Limit {
        what: Controller::Pids.what(),
        reason: refusal.to_string(),
    })?;
    Ok(format!("toroid.trial-{}", random::to_hex(&number)))
}

/// Removes the groups of nodes that have ended. Groups that still have processes stay, and the file
/// with them. Returns whether all are gone.
///
/// # Errors
/// The system's, when the file stays without a reason.
pub fn clear(state: &Path) -> io::Result<bool> {
    let path = state.join(FILE);
    if !path.exists() {
        return Ok(true);
    }
    let gone = Cgroups::read(state).remove();
    if gone {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(gone)
}

/// Removes a group and those below. A group that stays keeps no other one.
fn remove(group: &Path, deadline: Instant) -> io::Result<()> {
    let groups = match fs::read_dir(group) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        groups => groups?,
    };
    let mut all = Ok(());
    for below in groups {
        let below = below?;
        if below.file_type()?.is_dir() {
            all = all.and(remove(&below.path(), deadline));
        }
    }
    all?;
    loop {
        match fs::remove_dir(group) {
            // Killed processes have not left yet.
            Err(error)
                if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < deadline =>
            {
                thread::sleep(PAUSE);
            }
            // By another process.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            result => return result,
        }
    }
}

/// Moves a process, which has started no other yet, into a group.
pub(crate) fn enter(group: &Path, process: u32) -> io::Result<()> {
    fs::write(group.join("cgroup.procs"), process.to_string())
}

fn limit_pids(group: &Path, pids: Option<u32>) -> io::Result<()> {
    match pids {
        Some(pids) => fs::write(group.join("pids.max"), pids.to_string()),
        None => Ok(()),
    }
}

/// Memory and swap together.
fn limit_memory(group: &Path, bytes: Option<u64>) -> io::Result<()> {
    let Some(bytes) = bytes.map(|bytes| bytes.to_string()) else {
        return Ok(());
    };
    let max = group.join("memory.max");
    if max.exists() {
        fs::write(max, bytes)?;
        return optional(fs::write(group.join("memory.swap.max"), "0"));
    }
    let both = group.join("memory.memsw.limit_in_bytes");
    // It must not be less than the limit of memory alone: a higher one has to be set first, a
    // lower one last.
    let _ = fs::write(&both, &bytes);
    fs::write(group.join("memory.limit_in_bytes"), &bytes)?;
    optional(fs::write(both, bytes))
}

/// Kernels without accounting of swap lack the file.
fn optional(written: io::Result<()>) -> io::Result<()> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // The directory takes no new files.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        result => result,
    }
}

/// A file system of groups, and this process's group in it.
#[derive(Clone, Debug, PartialEq)]
struct Hierarchy {
    mount: PathBuf,
    own: PathBuf,
    is_unified: bool,
}

impl Hierarchy {
    /// Hierarchies of controllers: one for all those of cgroup2.
    fn of(controllers: &[Controller]) -> Vec<(Vec<Controller>, Result<Self, String>)> {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let (mounts, groups) = (text("/proc/self/mountinfo"), text("/proc/self/cgroup"));
        let mut found: Vec<(Vec<Controller>, Result<Self, String>)> = Vec::new();
        for controller in controllers {
            let hierarchy = find(*controller, &mounts, &groups);
            match found.iter_mut().find(|(_, other)| *other == hierarchy) {
                Some((others, Ok(_))) => others.push(*controller),
                _ => found.push((vec![*controller], hierarchy)),
            }
        }
        found
    }

    /// Makes a group that passes controllers on, in this process's own group or the nearest
    /// possible one above.
    fn make(&self, name: &str, controllers: &[Controller]) -> Result<PathBuf, String> {
        let mut parent = self.own.as_path();
        loop {
            let group = parent.join(name);
            let made = if self.is_unified {
                let passed = pass_on(parent, controllers)
                    .and_then(|()| directory(&group))
                    .and_then(|()| pass_on(&group, controllers));
                passed.inspect_err(|_| {
                    // Fails for a group with nodes of a predecessor, which stays.
                    let _ = fs::remove_dir(&group);
                })
            } else {
                directory(&group)
            };
            match (made, parent.parent()) {
                (Ok(()), _) => return Ok(group),
                (Err(_), Some(above)) if self.is_unified && parent != self.mount => parent = above,
                (Err(error), _) => return Err(format!("{}: {error}", parent.display())),
            }
        }
    }
}

/// Finds the hierarchy of a controller in `/proc/self/mountinfo` and `/proc/self/cgroup`.
fn find(controller: Controller, mounts: &str, groups: &str) -> Result<Hierarchy, String> {
    let name = controller.to_string();
    let has = |list: &str| list.split([',', ' ', '\n']).any(|word| word == name);
    let group_of = |is_its: &dyn Fn(&str, &str) -> bool| {
        groups.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (number, list) = (fields.next()?, fields.next()?);
            fields.next().filter(|_| is_its(number, list))
        })
    };
    let is_freezer = controller == Controller::Freezer;
    let version_1 = group_of(&|_, list| has(list) && !is_freezer);
    let is_unified = version_1.is_none();
    let group = version_1.or_else(|| group_of(&|number, list| number == "0" && list.is_empty()));
    let hierarchies = mounts.lines().filter_map(|line| {
        let (fields, of_system) = line.split_once(" - ")?;
        let (root, mount) = (fields.split(' ').nth(3)?, fields.split(' ').nth(4)?);
        let mut of_system = of_system.split(' ');
        let (kind, options) = (of_system.next()?, of_system.nth(1)?);
        let mount = PathBuf::from(mount);
        let is_it = if is_unified {
            let all = fs::read_to_string(mount.join("cgroup.controllers"));
            kind == "cgroup2" && all.is_ok_and(|all| has(&all) || is_freezer)
        } else {
            kind == "cgroup" && has(options)
        };
        let below = Path::new(group?).strip_prefix(root).ok()?;
        // A group outside of the namespace of groups begins with `..`.
        let is_inside = below.components().all(|c| c.as_os_str() != "..");
        (is_it && is_inside).then(|| Hierarchy {
            own: mount.join(below),
            mount,
            is_unified,
        })
    });
    let mut hierarchies = hierarchies;
    let none = || format!("no file system of control groups here has the controller {name}");
    hierarchies.next().ok_or_else(none)
}

/// Enables controllers for the groups below one.
fn pass_on(group: &Path, controllers: &[Controller]) -> io::Result<()> {
    let path = group.join("cgroup.subtree_control");
    let passed = fs::read_to_string(&path)?;
    let of_kernel = controllers
        .iter()
        .filter(|its| **its != Controller::Freezer);
    for controller in of_kernel.map(Controller::to_string) {
        if !passed.split_whitespace().any(|word| word == controller) {
            fs::write(&path, format!("+{controller}"))?;
        }
    }
    Ok(())
}

fn directory(group: &Path) -> io::Result<()> {
    match fs::create_dir(group) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        result => result,
    }
}

impl Controller {
    /// Controllers that `limits` need.
    fn all_for(limits: Limits) -> Vec<Controller> {
        match limits.memory {
            Some(_) => vec![Controller::Memory, Controller::Pids],
            None => vec![Controller::Pids],
        }
    }

    /// Whether `limits` have a limit for it.
    fn is_in(self, limits: Limits) -> bool {
        match self {
            Controller::Memory => limits.memory.is_some(),
            Controller::Pids => limits.pids.is_some(),
            Controller::Freezer => false,
        }
    }

    /// Its limited resource.
    fn what(self) -> &'static str {
        match self {
            Controller::Memory => "the memory of nodes",
            Controller::Pids => "the processes of nodes",
            Controller::Freezer => "when nodes stop",
        }
    }
}

/// Name in the kernel.
impl fmt::Display for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Controller::Memory => "memory",
            Controller::Pids => "pids",
            Controller::Freezer => "freezer",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPLIT: &str = "\
36 25 0:31 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
37 36 0:32 /docker/a /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory
38 36 0:33 / /sys/fs/cgroup/pids rw,relatime shared:7 - cgroup cgroup rw,pids
";

    #[test]
    fn each_controller_of_version_1_has_a_tree() {
        let groups = "9:pids:/\n4:cpu,memory:/docker/a/b\n0::/\n";
        let own = |controller| find(controller, SPLIT, groups).unwrap().own;
        let memory = own(Controller::Memory);
        assert_eq!(memory, Path::new("/sys/fs/cgroup/memory/b"));
        assert_eq!(own(Controller::Pids), Path::new("/sys/fs/cgroup/pids"));
        // A group outside of the mount cannot be reached.
        for outside in [
            "4:memory:/docker\n",
            "4:memory:/docker/a/../b\n",
            "0::/\n",
            "",
        ] {
            let error = find(Controller::Memory, SPLIT, outside).unwrap_err();
            assert!(error.contains("the controller memory"), "{error}");
        }
    }

    #[test]
    fn trial_groups_of_two_agents_with_one_process_number_differ() {
        assert_ne!(trial_name().unwrap(), trial_name().unwrap());
    }

    #[test]
    fn a_group_that_cannot_pass_controllers_on_is_removed() {
        let mount = tempfile::tempdir().unwrap();
        let own = mount.path().join("own");
        fs::create_dir(&own).unwrap();
        // A group below gets no such file here.
        for group in [mount.path(), &own] {
            fs::write(group.join("cgroup.subtree_control"), "pids\n").unwrap();
        }
        let hierarchy = Hierarchy {
            mount: mount.path().into(),
            own: own.clone(),
            is_unified: true,
        };
        let made = hierarchy.make("toroid.trial", &[Controller::Pids]);
        assert!(made.is_err(), "{made:?}");
        for parent in [mount.path(), &own] {
            assert!(!parent.join("toroid.trial").exists(), "{parent:?}");
        }
    }

    #[test]
    fn controllers_of_cgroup2_share_one() {
        let mount = tempfile::tempdir().unwrap();
        let path = mount.path().display();
        let mounts = format!("30 25 0:31 / {path} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n");
        let groups = "0::/user.slice/session-1.scope\n";
        let list = mount.path().join("cgroup.controllers");
        fs::write(&list, "cpuset cpu io memory hugetlb pids\n").unwrap();
        let memory = find(Controller::Memory, &mounts, groups).unwrap();
        assert_eq!(memory.own, mount.path().join("user.slice/session-1.scope"));
        assert!(memory.is_unified);
        assert_eq!(find(Controller::Pids, &mounts, groups), Ok(memory));
        fs::write(&list, "hugetlb\n").unwrap();
        find(Controller::Pids, &mounts, groups).unwrap_err();
    }
}
