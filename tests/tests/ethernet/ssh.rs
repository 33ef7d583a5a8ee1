//! ssh between nodes, with keys of its own.

use tests::cluster::Cluster;
use tests::process::Running;

use crate::files::write_file;

/// Options that a user would have in a file of its own.
pub const SSH_OPTIONS: &str = "-i /run/key -F none -o BatchMode=yes -o StrictHostKeyChecking=no \
    -o UserKnownHostsFile=/run/known_hosts";

const KEYGEN: &str = "ssh-keygen -q -t ed25519 -N ''";

/// Makes a key in a node, and returns a file with its public half.
pub fn make_key(cluster: &Cluster, node: &str) -> String {
    cluster.shell(node, &format!("{KEYGEN} -f /run/key")).ok();
    let key = cluster.exec(node, "cat /run/key.pub").ok();
    write_file(cluster, "authorized_keys", &key.stdout)
}

/// Starts Debian's server with its configuration and a new key, which lets its owner in as root.
pub fn sshd(cluster: &Cluster, node: &str, authorized: &str) -> Running {
    let prepare = format!(
        "mkdir -p /run/sshd && mkdir -m 700 -p /root/.ssh && {KEYGEN} -f /run/host_key && \
         cp {authorized} /root/.ssh/authorized_keys"
    );
    cluster.shell(node, &prepare).ok();
    let sshd = "/usr/sbin/sshd -D -e -h /run/host_key -o MaxStartups=100";
    let sshd = cluster.spawn(node, sshd);
    sshd.warns("Server listening on ::");
    sshd
}
