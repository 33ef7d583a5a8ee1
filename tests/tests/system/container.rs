//! With the capabilities of a container, which README's command for one names.

use std::fs;
use std::path::Path;
use std::process::Command;

use tests::cluster::{Cluster, is_nightly};
use tests::process::{Outcome, run};

const FAILED: i32 = 1;

/// Capabilities that Docker and podman leave to root in a container.
const DEFAULT: &str = "chown,dac_override,fsetid,fowner,mknod,net_raw,setgid,setuid,setfcap,setpcap,\
                       net_bind_service,sys_chroot,kill,audit_write";

/// The capabilities that README's command adds.
fn added() -> Vec<String> {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let readme = fs::read_to_string(readme).expect("it is beside us");
    let words: Vec<&str> = readme.split_whitespace().collect();
    let pairs = words.windows(2).filter(|pair| pair[0] == "--cap-add");
    let added = pairs.map(|pair| pair[1].trim_matches(['`', '\\']).to_lowercase());
    added.collect()
}

/// `toroid` by root with the default capabilities and these.
fn toroid(cluster: &Cluster, more: &[String], words: &str) -> Outcome {
    let toroid = cluster.command("toroid");
    let defaults = DEFAULT.split(',').map(|name| format!("+{name}"));
    let more = more.iter().map(|name| format!("+{name}"));
    let kept: Vec<String> = defaults.chain(more).collect();
    let mut command = Command::new("setpriv");
    let bounding = format!("-all,{}", kept.join(","));
    command.args(["--bounding-set", &bounding]);
    // Where nodes find it, too: `ping` runs it there.
    let program = cluster.files().join("bin").join("toroid");
    command.arg(program).args(words.split(' '));
    for (name, value) in toroid.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    run(&mut command)
}

/// README once named too few capabilities, and `toroid doctor` said that all was well.
#[test]
fn readme_names_the_capabilities_that_nodes_need() {
    let added = added();
    assert!(added.contains(&"sys_admin".to_owned()), "{added:?}");
    let cluster = Cluster::down_yet();
    let in_container = |words: &str| toroid(&cluster, &added, words);
    let doctor = in_container("doctor").ok();
    assert!(doctor.text().contains("nodes can be made"), "{doctor}");
    in_container("up --torus 2x1x1").ok();
    in_container("domain create blue *,0,0").ok();
    in_container("exec 0,0,0 -- ping -c 1 -W 10 1-0-0.blue").ok();
    in_container("ping 0,0,0 1,0,0 -d blue").ok();
    in_container("domain shrink blue 1,0,0").ok();
    in_container("down").ok();
}

#[test]
fn without_them_doctor_and_up_say_what_to_add() {
    let cluster = Cluster::down_yet();
    let remedy = "--cap-add SYS_ADMIN";
    let doctor = toroid(&cluster, &["net_admin".into()], "doctor");
    let text = doctor.text();
    assert_eq!(doctor.status, FAILED, "{doctor}");
    assert!(text.contains("missing namespaces"), "{doctor}");
    assert!(text.contains(remedy), "{doctor}");
    toroid(&cluster, &["net_admin".into()], "up --torus 2x1x1").fails(FAILED, &[remedy]);
}

/// A container whose network is that of a node, as `docs/operating.md` starts it.
#[test]
fn a_container_joins_the_network_of_a_node() {
    if !is_nightly() {
        return;
    }
    let cluster = Cluster::up("2x1x1");
    cluster.domain("blue", &["0,0,0", "1,0,0"]);
    let files = cluster.files();
    let root = files.join("root");
    fs::create_dir_all(root.join("bin")).expect("the directory is ours");
    fs::copy("/bin/busybox", root.join("bin/busybox")).expect("busybox-static is installed");
    let network = format!("ns:{}", cluster.state().join("netns/1-0-0").display());
    // Otherwise podman keeps its locks in shared memory, for ever.
    let settings = files.join("containers.conf");
    fs::write(&settings, "[engine]\nlock_type = \"file\"\n").expect("the directory is ours");
    let mut podman = Command::new("podman");
    podman
        .env("CONTAINERS_CONF", settings)
        .arg("--root")
        .arg(files.join("storage"))
        .arg("--runroot")
        .arg(files.join("run"))
        .arg("--tmpdir")
        .arg(files.join("libpod"))
        .args("--storage-driver vfs --runtime runc --cgroup-manager cgroupfs run --rm".split(' '))
        .args("--ulimit nofile=1024:1024 --ulimit nproc=1024:1024 --network".split(' '))
        .arg(network)
        .arg("--rootfs")
        .arg(root)
        .args("/bin/busybox ping -c 1 -W 10 10.64.0.1".split(' '));
    let pinged = run(&mut podman).ok();
    assert!(pinged.text().contains("1 packets received"), "{pinged}");
}
