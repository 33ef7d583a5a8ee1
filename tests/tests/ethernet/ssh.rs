//! ssh between nodes, with keys of its own.

use std::process::Stdio;

use tests::cluster::Cluster;
use tests::process::Running;

use crate::files::write_file;

/// As the client's user would have it in a file of its own, which here is nobody's.
pub const SSH_OPTIONS: &str = "-i /run/key -F none -o BatchMode=yes -o StrictHostKeyChecking=no \
    -o UserKnownHostsFile=/run/known_hosts";

const KEYGEN: &str = "ssh-keygen -q -t ed25519 -N ''";

/// What sshd is to find as /etc/passwd and /etc/shadow: the host's root may be locked out, and its
/// home is closed to a node.
const PASSWD: &str = "root:x:0:0::/run:/bin/sh\nsshd:x:65533:65534::/run/sshd:/bin/false\n";
const SHADOW: &str = "root:*:1::::::\n";

/// Makes a key in a node, and returns a file with its public half.
pub fn make_key(cluster: &Cluster, node: &str) -> String {
    cluster.shell(node, &format!("{KEYGEN} -f /run/key")).ok();
    let key = cluster.exec(node, "cat /run/key.pub").ok();
    write_file(cluster, "authorized_keys", &key.stdout)
}

/// Starts a server with a key of its own, which lets in as root who has the key.
pub fn sshd(cluster: &Cluster, node: &str, authorized: &str) -> Running {
    cluster
        .shell(
            node,
            &format!("mkdir -p /run/sshd && {KEYGEN} -f /run/host_key"),
        )
        .ok();
    let configuration = format!(
        "HostKey /run/host_key\nPidFile none\nUsePAM no\nStrictModes no\nUseDNS no\n\
         PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin yes\n\
         AuthorizedKeysFile {authorized}\nSubsystem sftp internal-sftp\nMaxStartups 100\n"
    );
    let configuration = write_file(cluster, "sshd_config", configuration.as_bytes());
    let passwd = write_file(cluster, "passwd", PASSWD.as_bytes());
    let shadow = write_file(cluster, "shadow", SHADOW.as_bytes());
    let script = format!(
        "mount --bind {passwd} /etc/passwd && mount --bind {shadow} /etc/shadow && \
         exec /usr/sbin/sshd -D -e -f {configuration}"
    );
    let mut sshd = cluster.in_node(node, &["unshare", "--mount", "sh", "-c", &script]);
    let sshd = Running::start(sshd.stdin(Stdio::null()));
    sshd.warns("Server listening on ::");
    sshd
}
