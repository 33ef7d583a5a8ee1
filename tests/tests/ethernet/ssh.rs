//! ssh between nodes, with keys of its own.

use tests::cluster::Cluster;
use tests::process::Running;

use crate::files::write_file;

/// As the client's user would have it in a file of its own, which here is nobody's.
pub const SSH_OPTIONS: &str = "-i /run/key -F none -o BatchMode=yes -o StrictHostKeyChecking=no \
    -o UserKnownHostsFile=/run/known_hosts";

const KEYGEN: &str = "ssh-keygen -q -t ed25519 -N ''";

/// Makes a key in a node, and returns a file with its public half.
pub fn make_key(cluster: &Cluster, node: &str) -> String {
    cluster.shell(node, &format!("{KEYGEN} -f /run/key")).ok();
    let key = cluster.exec(node, "cat /run/key.pub").ok();
    write_file(cluster, "authorized_keys", &key.stdout)
}

/// Starts the server as Debian has packaged and configured it, with a key of its own, which lets in as
/// root a user who has the key.
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
