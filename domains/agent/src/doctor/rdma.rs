//! Checks of everything that only RDMA devices need.

use std::fs::OpenOptions;
use std::io;

use super::{Asker, Files, Finding};

const DEVICES: &str = "/sys/class/infiniband";

/// First part of remedies in a build that cannot use RDMA devices.
const BUILD: &str = if cfg!(feature = "verbs") {
    ""
} else {
    "nothing on one host; to use NICs between hosts build with `cargo build --release --features \
         toroid-cli/verbs`, then "
};

/// Directories of a distribution's linker, except `LD_LIBRARY_PATH`.
const LIBRARIES: [&str; 5] = ["/usr/lib64", "/lib64", "/usr/lib", "/lib", "/usr/local/lib"];

/// Bytes of lockable memory that a store needs, because registered memory is locked.
const MEMLOCK: u64 = 1 << 30;

pub(super) fn examine(files: &Files, asker: Asker) -> Vec<Finding> {
    let devices = files.names(DEVICES);
    let mut findings = vec![library(files)];
    if devices.is_empty() {
        findings.push(Finding::missing(
            "rdma",
            format!("no RDMA device: nothing is in {DEVICES}"),
            format!(
                "{BUILD}load the driver of the NIC, such as `sudo modprobe mlx5_ib`; without a NIC \
                 try `sudo modprobe rdma_rxe && sudo rdma link add rxe0 type rxe netdev eth0`"
            ),
        ));
    }
    for device in &devices {
        findings.push(access(files, device));
        for port in files.names(&format!("{DEVICES}/{device}/ports")) {
            findings.push(port_of(files, device, &port));
        }
    }
    findings.push(memlock(asker));
    findings
}

fn library(files: &Files) -> Finding {
    let name = "libibverbs.so.1";
    let directories = LIBRARIES.map(str::to_owned).into_iter();
    let of_architecture = files.names("/usr/lib").into_iter();
    let of_architecture = of_architecture
        .filter(|directory| directory.contains("-linux-"))
        .map(|directory| format!("/usr/lib/{directory}"));
    let mut paths = of_architecture
        .chain(directories)
        .map(|directory| format!("{directory}/{name}"));
    match paths.find(|path| files.at(path).exists()) {
        Some(path) => Finding::ok("libibverbs", path),
        None => Finding::missing(
            "libibverbs",
            format!("{name} is not installed, which RDMA NICs need and nothing else does"),
            format!("{BUILD}sudo apt-get install libibverbs1 ibverbs-providers"),
        ),
    }
}

/// Checks that user processes may use a device, by its node in `/dev`.
fn access(files: &Files, device: &str) -> Finding {
    let class = "/sys/class/infiniband_verbs";
    let nodes = files.names(class);
    let of_device = |node: &&String| {
        let path = format!("{class}/{node}/ibdev");
        files.text(&path).is_ok_and(|name| name == device)
    };
    let Some(node) = nodes.iter().find(of_device) else {
        return Finding::missing(
            "device",
            format!("{device} has no uverbs device"),
            "sudo modprobe ib_uverbs",
        );
    };
    let path = format!("/dev/infiniband/{node}");
    let mut options = OpenOptions::new();
    match options.read(true).write(true).open(files.at(&path)) {
        Ok(_) => {
            let attribute = |name: &str| files.text(&format!("{DEVICES}/{device}/{name}"));
            let firmware =
                attribute("fw_ver").map_or(String::new(), |of| format!(", firmware {of}"));
            Finding::ok("device", format!("{device} by {path}{firmware}"))
        }
        Err(error) => Finding::missing(
            "device",
            format!("{device}: {path}: {error}"),
            match error.kind() {
                io::ErrorKind::NotFound => "start the container with `--device /dev/infiniband`",
                _ => "sudo chmod 0666 the device, or join the group that owns it",
            },
        ),
    }
}

fn port_of(files: &Files, device: &str, port: &str) -> Finding {
    let at = format!("{DEVICES}/{device}/ports/{port}");
    let attribute = |name: &str| files.text(&format!("{at}/{name}")).unwrap_or_default();
    // "4: ACTIVE"
    let state = attribute("state");
    let state = state.split(": ").last().unwrap_or_default().to_owned();
    let layer = attribute("link_layer");
    let rate = attribute("rate");
    let message = format!(
        "{device} port {port}: {state}, {layer}, {rate}; GIDs {}; partition keys {}",
        or_none(&gids(files, &at)),
        or_none(&partition_keys(files, &at)),
    );
    if state == "ACTIVE" {
        return Finding::ok("port", message);
    }
    let remedy = match layer.as_str() {
        "InfiniBand" => "check the cable, and that a subnet manager runs in the fabric",
        _ => "check the cable, and bring the port's Ethernet interface up: `ip link set DEV up`",
    };
    Finding::limited("port", message, remedy)
}

/// GIDs that are set, with their index and type, such as `1 (RoCE v2)`.
fn gids(files: &Files, port: &str) -> Vec<String> {
    let indexes = files.names(&format!("{port}/gids"));
    let set = indexes.iter().filter(|index| {
        let gid = files.text(&format!("{port}/gids/{index}"));
        gid.is_ok_and(|gid| gid.contains(|digit| digit != '0' && digit != ':'))
    });
    set.map(|index| {
        let kind = files.text(&format!("{port}/gid_attrs/types/{index}"));
        kind.map_or_else(|_| index.clone(), |kind| format!("{index} ({kind})"))
    })
    .collect()
}

fn partition_keys(files: &Files, port: &str) -> Vec<String> {
    let indexes = files.names(&format!("{port}/pkeys"));
    let keys = indexes
        .iter()
        .filter_map(|index| files.text(&format!("{port}/pkeys/{index}")).ok());
    keys.filter(|key| key != "0x0000").collect()
}

fn or_none(list: &[String]) -> String {
    match list {
        [] => "none".into(),
        list => list.join(", "),
    }
}

fn memlock(asker: Asker) -> Finding {
    let check = "memlock";
    match asker.memlock {
        Some(limit) if !asker.is_root && limit < MEMLOCK => Finding::limited(
            check,
            format!(
                "{} KiB of memory can be locked; an RDMA NIC needs all that is registered",
                limit >> 10
            ),
            "ulimit -l unlimited, after `* - memlock unlimited` in /etc/security/limits.conf; in a \
             service LimitMEMLOCK=infinity",
        ),
        _ => Finding::ok(check, "enough memory can be locked for an RDMA NIC"),
    }
}
