//! Stock software, run in nodes so that it needs nothing of the host's but its files.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::cluster::Cluster;
use crate::process::{Running, eventually};

/// The filter of tshark for segments with a wrong checksum. For a sum of zero the kernel writes the form
/// that RFC 1624 avoids (`CSUM_MANGLED_0` in its `skb_checksum_help`), in one segment of 65,536. Any
/// receiver takes it, but tshark does not.
pub const WRONG_TCP: &str = "(tcp.checksum.status == 0 && tcp.checksum != 0xffff)";

/// Runs iperf3 between two nodes, with options for its client, and returns the client's report.
#[track_caller]
pub fn iperf3(cluster: &Cluster, from: &str, to: &str, name: &str, options: &str) -> Value {
    let server = iperf3_server(cluster, to);
    let report = cluster
        .exec(from, &format!("iperf3 -J -c {name} {options}"))
        .ok()
        .json();
    server.wait().ok();
    report
}

/// Starts an [iperf3 server](IPERF3_SERVER); it listens when this returns.
#[track_caller]
pub fn iperf3_server(cluster: &Cluster, node: &str) -> Running {
    let server = cluster.spawn(node, IPERF3_SERVER);
    server.says("listening");
    server
}

/// The command of an iperf3 server that reports every 0.1 s, and ends with its first client.
pub const IPERF3_SERVER: &str = "iperf3 -s -1 -i 0.1 --forceflush";

/// Waits until more bytes have arrived at such a server.
#[track_caller]
pub fn goes_on(server: &Running) {
    let before = received_in_intervals(server).len();
    eventually("the stream goes on", || {
        let intervals = received_in_intervals(server);
        intervals.iter().skip(before + 1).any(|bytes| *bytes > 0.0)
    });
}

/// Amounts received in the intervals reported so far, in units that differ.
fn received_in_intervals(server: &Running) -> Vec<f64> {
    let text = server.so_far();
    let amount = |line: &str| {
        // [  5]   0.10-0.20   sec   123 MBytes  10.3 Gbits/sec
        let (_, amount) = line.split_once(" sec ")?;
        amount.split_whitespace().next()?.parse().ok()
    };
    text.lines().filter_map(amount).collect()
}

/// The bytes that a report of [`iperf3`] has under this sum, such as `sum_received`.
///
/// # Panics
/// When there are none.
#[track_caller]
pub fn bytes(report: &Value, sum: &str) -> u64 {
    let bytes = &report["end"][sum]["bytes"];
    bytes
        .as_u64()
        .unwrap_or_else(|| panic!("no {sum}: {report}"))
}

/// Starts nginx, which serves the files in `pages` on port 80.
pub fn nginx(cluster: &Cluster, node: &str, pages: &Path) -> Running {
    let configuration = cluster.files().join("nginx.conf");
    let text = format!(
        "daemon off; user www-data; pid /run/nginx.pid; error_log stderr; worker_processes 1;\n\
         events {{}}\n\
         http {{\n\
           access_log off;\n\
           client_body_temp_path /run/body; proxy_temp_path /run/proxy;\n\
           fastcgi_temp_path /run/fastcgi; uwsgi_temp_path /run/uwsgi; scgi_temp_path /run/scgi;\n\
           server {{ listen 80; listen [::]:80; root {}; }}\n\
         }}\n",
        pages.display()
    );
    fs::write(&configuration, text).expect("there is room");
    cluster.spawn(node, &format!("nginx -c {}", configuration.display()))
}

/// Prints each datagram for port 9000.
const HEAR: &str = "
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind((\"\", 9000))
print(\"listening\", flush=True)
while True:
    print(s.recv(2000).decode(), flush=True)
";

/// Sends one datagram to port 9000 of an address.
const SEND: &str = "
import socket, sys
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(sys.argv[2].encode(), (sys.argv[1], 9000))
";

/// The command that prints `listening`, and then each datagram in a line. Its program is in `files`.
pub fn hear_datagrams(files: &Path) -> String {
    python(files, "hear.py", HEAR)
}

/// The command that sends a datagram to such a listener.
pub fn send_datagram(files: &Path, to: &str, text: &str) -> String {
    format!("{} {to} {text}", python(files, "send.py", SEND))
}

fn python(files: &Path, name: &str, program: &str) -> String {
    let path = files.join(name);
    fs::write(&path, program).expect("there is room");
    format!("/usr/bin/python3 {}", path.display())
}
