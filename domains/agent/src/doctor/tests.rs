use std::fs;
use std::path::Path;

use toroid_model::refusal::RefusalKind;

use super::*;

const ROOT: Asker = Asker {
    is_root: true,
    memlock: None,
};
const USER: Asker = Asker {
    is_root: false,
    memlock: Some(8 << 20),
};

/// A machine with these files.
fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = root.path().join(path.trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    root
}

fn found<'a>(diagnosis: &'a Diagnosis, check: &str) -> &'a Finding {
    let mut findings = diagnosis.findings.iter();
    findings.find(|finding| finding.check == check).unwrap()
}

const SHMEM: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";

const PLAIN: [(&str, &str); 5] = [
    ("/proc/sys/user/max_user_namespaces", "95000\n"),
    ("/proc/self/uid_map", "         0          0 4294967295\n"),
    ("/proc/sys/kernel/osrelease", "6.12.0\n"),
    ("/dev/net/tun", ""),
    (SHMEM, "always within_size advise [never] deny force\n"),
];

#[test]
fn a_machine_without_rdma_lists_missing_parts_and_working_features() {
    let root = machine(&PLAIN);
    let diagnosis = examine(root.path(), ROOT, Ok(()));
    for check in [
        "version",
        "namespaces",
        "users",
        "tun",
        "huge pages",
        "memlock",
    ] {
        assert_eq!(found(&diagnosis, check).state, State::Ok, "{check}");
    }
    for check in ["libibverbs", "rdma"] {
        let finding = found(&diagnosis, check);
        assert_eq!(finding.state, State::Missing);
        assert!(finding.remedy.is_some());
    }
    assert_eq!(diagnosis.works.len(), 3);
}

#[test]
fn an_rdma_device_is_described_with_its_ports() {
    let port = "/sys/class/infiniband/rxe0/ports/1";
    let at = |name: &str| format!("{port}/{name}");
    let zero = "0000:0000:0000:0000:0000:0000:0000:0000\n";
    let gid = "0000:0000:0000:0000:0000:ffff:0a09:0001\n";
    let (state, layer, rate) = (at("state"), at("link_layer"), at("rate"));
    let (first, second, tenth) = (at("gids/0"), at("gids/1"), at("gids/10"));
    let (kind, key, none) = (at("gid_attrs/types/1"), at("pkeys/0"), at("pkeys/1"));
    let mut files = PLAIN.to_vec();
    files.extend([
        ("/usr/lib/x86_64-linux-gnu/libibverbs.so.1", ""),
        ("/sys/class/infiniband_verbs/uverbs0/ibdev", "rxe0\n"),
        ("/dev/infiniband/uverbs0", ""),
        (&state, "4: ACTIVE\n"),
        (&layer, "Ethernet\n"),
        (&rate, "2.5 Gb/sec (1X SDR)\n"),
        (&first, zero),
        (&second, gid),
        (&tenth, gid),
        (&kind, "RoCE v2\n"),
        (&key, "0xffff\n"),
        (&none, "0x0000\n"),
    ]);
    let root = machine(&files);
    let diagnosis = examine(root.path(), ROOT, Ok(()));
    assert_eq!(found(&diagnosis, "libibverbs").state, State::Ok);
    assert_eq!(found(&diagnosis, "device").state, State::Ok);
    let port = found(&diagnosis, "port");
    assert_eq!(port.state, State::Ok);
    assert_eq!(
        port.message,
        "rxe0 port 1: ACTIVE, Ethernet, 2.5 Gb/sec (1X SDR); GIDs 1 (RoCE v2), 10; partition keys \
         0xffff"
    );
    fs::write(root.path().join(state.trim_start_matches('/')), "1: DOWN\n").unwrap();
    fs::remove_file(root.path().join("dev/infiniband/uverbs0")).unwrap();
    let diagnosis = examine(root.path(), ROOT, Ok(()));
    assert_eq!(found(&diagnosis, "port").state, State::Limited);
    assert_eq!(found(&diagnosis, "device").state, State::Missing);
}

#[test]
fn missing_namespaces_have_a_remedy() {
    let refusal = || Refusal::new(RefusalKind::Failed, "no namespace", "add a capability");
    let with = |switch: &str, value: &str, asker, trial| {
        let mut files = PLAIN.to_vec();
        files.push((switch, value));
        let root = machine(&files);
        found(&examine(root.path(), asker, trial), "namespaces").clone()
    };
    let denied = |switch: &str, value: &str, asker| {
        let finding = with(switch, value, asker, Err(refusal()));
        assert_eq!(finding.state, State::Missing);
        finding.remedy.unwrap()
    };
    let switch = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns";
    let remedy = denied(switch, "1\n", USER);
    assert!(remedy.contains("sysctl kernel.apparmor"), "{remedy}");
    assert_eq!(denied(switch, "1\n", ROOT), "add a capability");
    assert_eq!(denied(switch, "0\n", USER), "add a capability");
    let none = "/proc/sys/user/max_user_namespaces";
    assert!(denied(none, "0\n", ROOT).contains("sysctl user.max_user_namespaces"));
    // A working feature is not missing, although a switch says so: that is of another namespace.
    assert_eq!(with(none, "0\n", ROOT, Ok(())).state, State::Ok);
    let root = machine(&PLAIN);
    let diagnosis = examine(root.path(), USER, Ok(()));
    assert_eq!(found(&diagnosis, "users").state, State::Limited);
    assert_eq!(found(&diagnosis, "memlock").state, State::Limited);
}

#[test]
fn missing_huge_pages_have_a_remedy() {
    let kernel = "/proc/sys/kernel/osrelease";
    let with = |path: &str, text: &str| {
        let mut files = PLAIN.to_vec();
        files.push((path, text));
        let root = machine(&files);
        found(&examine(root.path(), ROOT, Ok(())), "huge pages").clone()
    };
    let denied = with(SHMEM, "always within_size advise never [deny] force\n");
    assert_eq!(denied.state, State::Limited);
    assert!(denied.message.contains("denies them"), "{denied:?}");
    assert!(denied.remedy.unwrap().contains("echo never"));
    assert_eq!(with(kernel, "5.15.0-91-generic\n").state, State::Limited);
    assert_eq!(with(kernel, "6.0.19\n").state, State::Limited);
    assert_eq!(with(kernel, "6.1.0\n").state, State::Ok);
    let nothing = examine(Path::new("/nonexistent"), ROOT, Ok(()));
    assert_eq!(found(&nothing, "huge pages").state, State::Limited);
}

#[test]
fn a_machine_without_any_files_is_examined() {
    let diagnosis = examine(Path::new("/nonexistent"), ROOT, Ok(()));
    assert_eq!(found(&diagnosis, "tun").state, State::Missing);
    assert_eq!(found(&diagnosis, "users").state, State::Limited);
    assert!(
        diagnosis
            .works
            .iter()
            .any(|works| works.contains("own TCP stack"))
    );
}
