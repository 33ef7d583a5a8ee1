//! Files for nodes to read, and whether they have arrived whole.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use tests::cluster::Cluster;

/// So many bytes that their checksum can be compared, none like its neighbours.
pub fn some_bytes(count: usize) -> Vec<u8> {
    let mut state = 1u64;
    let mut next = || {
        // Knuth's constants (MMIX).
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()[0]
    };
    (0..count).map(|_| next()).collect()
}

/// A file of these bytes that nodes can read.
pub fn write_file(cluster: &Cluster, name: &str, bytes: &[u8]) -> String {
    let file = cluster.files().join(name);
    fs::write(&file, bytes).expect("there is room");
    fs::set_permissions(&file, Permissions::from_mode(0o644)).expect("it is ours");
    file.to_str().expect("UTF-8").to_owned()
}

/// The checksum that a node reads of a file.
#[track_caller]
pub fn checksum(cluster: &Cluster, node: &str, file: &str) -> String {
    let told = cluster.exec(node, &format!("sha256sum {file}")).ok();
    told.text().split(' ').next().unwrap_or_default().to_owned()
}
