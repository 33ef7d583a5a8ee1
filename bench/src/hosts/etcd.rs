//! Three servers of etcd, in a network of their own.
//!
//! Their data is in memory: etcd waits for the disk with each change.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::network::{self, Networks};
use super::rack::until;
use crate::cluster::{ClusterError, system};
use crate::tethered;

/// Number of servers.
pub const SERVERS: usize = 3;

/// Place of data and logs.
pub const MEMORY: &str = "/dev/shm";

/// Longest wait for an answer of a server.
const ANSWER: Duration = Duration::from_secs(1);

/// The last bytes of a server's log that an error shows.
const LOG_TAIL: usize = 2000;

/// Servers of one cluster. Dropping it ends them.
#[derive(Debug)]
pub struct Etcd {
    servers: Vec<Child>,
    /// Path of their network, and its number.
    network: (PathBuf, usize),
    data: PathBuf,
}

impl Etcd {
    /// Starts all servers in the network with this number, and waits until they decide. The caller
    /// is the main thread.
    pub fn start(networks: &Networks, number: usize, data: &Path) -> Result<Self, ClusterError> {
        let mut etcd = Etcd {
            servers: Vec::new(),
            network: (networks.path(number), number),
            data: data.into(),
        };
        for server in 0..SERVERS {
            let child = etcd.server(server).map_err(system("start etcd"))?;
            etcd.servers.push(child);
        }
        etcd.decides(networks)?;
        Ok(etcd)
    }

    fn server(&self, number: usize) -> io::Result<Child> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log(number))?;
        let (client, peer) = (url(client_port(number)), url(peer_port(number)));
        let all: Vec<String> = (0..SERVERS)
            .map(|its| format!("n{its}={}", url(peer_port(its))))
            .collect();
        let mut command = tethered::command(&self.network.0, "etcd");
        command
            .args(["--log-level", "error", "--name", &format!("n{number}")])
            .arg("--data-dir")
            .arg(self.data.join(number.to_string()))
            .arg("--listen-client-urls")
            .arg(format!("http://0.0.0.0:{}", client_port(number)))
            .args(["--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer])
            .args(["--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &all.join(",")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        command.spawn()
    }

    fn log(&self, number: usize) -> PathBuf {
        self.data.join(format!("{number}.log"))
    }

    /// URLs of all servers, seen from a host.
    pub fn endpoints(&self, host: usize) -> Vec<String> {
        let address = network::address(self.network.1, host);
        let url = |server| format!("http://{address}:{}", client_port(server));
        (0..SERVERS).map(url).collect()
    }

    /// Waits until all servers have the same leader, and returns its number.
    pub fn decides(&mut self, networks: &Networks) -> Result<usize, ClusterError> {
        let mut leader = None;
        until("the servers of etcd have a leader", || {
            for number in 0..self.servers.len() {
                let ended = self.servers[number].try_wait();
                if ended.map_err(system("look at etcd"))?.is_some() {
                    return Err(self.ended(number));
                }
            }
            let ask = || (0..SERVERS).map(status).collect();
            let all: Vec<Option<[String; 2]>> = networks.inside(self.network.1, ask)?;
            let all: Option<Vec<[String; 2]>> = all.into_iter().collect();
            leader = all.and_then(|all| of_all(&all));
            Ok(leader.is_some())
        })?;
        leader.ok_or(ClusterError::NoServer)
    }

    fn ended(&self, number: usize) -> ClusterError {
        let log = fs::read(self.log(number)).unwrap_or_default();
        let tail = &log[log.len().saturating_sub(LOG_TAIL)..];
        let log = String::from_utf8_lossy(tail);
        ClusterError::ours(format!(
            "etcd has ended; look whether {MEMORY} has 400 MB of space. Its log: {}",
            log.trim()
        ))
    }

    /// Kills a server.
    pub fn kill(&mut self, number: usize) -> Result<(), ClusterError> {
        self.servers[number].kill().map_err(system("kill etcd"))
    }

    /// Starts a killed server again.
    pub fn restart(&mut self, number: usize) -> Result<(), ClusterError> {
        let restarted = self.servers[number]
            .wait()
            .and_then(|_| self.server(number));
        self.servers[number] = restarted.map_err(system("start etcd"))?;
        Ok(())
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for server in &mut self.servers {
            // Both fail only if the process has ended.
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

fn client_port(server: usize) -> u16 {
    2379 + 10 * server as u16
}

fn peer_port(server: usize) -> u16 {
    2380 + 10 * server as u16
}

fn url(port: u16) -> String {
    format!("http://127.0.0.1:{port}")
}

/// The server that all of these name as leader: each tells its own identifier and the leader's.
fn of_all(told: &[[String; 2]]) -> Option<usize> {
    let [_, leader] = told.first()?;
    let agree = told.iter().all(|[_, its]| its == leader);
    let is_leader = |[own, _]: &[String; 2]| own == leader;
    told.iter().position(is_leader).filter(|_| agree)
}

/// Identifiers of a server and of its leader, by its JSON gateway.
fn status(server: usize) -> Option<[String; 2]> {
    let at = SocketAddr::from((Ipv4Addr::LOCALHOST, client_port(server)));
    let mut stream = TcpStream::connect_timeout(&at, ANSWER).ok()?;
    stream.set_read_timeout(Some(ANSWER)).ok()?;
    // HTTP/1.0: the answer comes whole, and ends with the connection.
    let request = "POST /v3/maintenance/status HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}";
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    identifiers(&answer)
}

fn identifiers(answer: &str) -> Option<[String; 2]> {
    let (_, body) = answer.split_once("\r\n\r\n")?;
    let body: Value = serde_json::from_str(body).ok()?;
    let [own, leader] = [&body["header"]["member_id"], &body["leader"]];
    Some([own.as_str()?.into(), leader.as_str()?.into()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_leader_is_the_one_that_all_servers_name() {
        let answer =
            "HTTP/1.0 200 OK\r\nA: b\r\n\r\n{\"header\":{\"member_id\":\"7\"},\"leader\":\"9\"}";
        let told = |own: &str, leader: &str| [own.to_owned(), leader.to_owned()];
        assert_eq!(identifiers(answer), Some(told("7", "9")));
        let without = answer.replace("\"leader\":\"9\"", "\"version\":\"3\"");
        assert_eq!(identifiers(&without), None);
        assert_eq!(of_all(&[told("7", "9"), told("9", "9")]), Some(1));
        assert_eq!(of_all(&[told("7", "9"), told("9", "7")]), None);
        assert_eq!(of_all(&[told("7", "9"), told("8", "9")]), None);
    }
}
