//! Servers of etcd, which end with the test.

use std::env;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use toroid_model::hosts::etcd::EtcdConfig;

/// Lets a single server start in a tenth of the time.
const QUICK: [&str; 4] = ["--heartbeat-interval", "10", "--election-timeout", "100"];

/// Servers of one cluster, on loopback ports.
pub(super) struct Cluster {
    pub(super) servers: Vec<Server>,
    pub(super) certificates: Option<Certificates>,
    _data: TempDir,
}

/// One server.
pub(super) struct Server {
    process: Child,
    port: u16,
}

/// Files of an authority and a certificate for servers.
#[derive(Clone)]
pub(super) struct Certificates {
    pub(super) ca: PathBuf,
    pub(super) cert: PathBuf,
    pub(super) key: PathBuf,
}

impl Cluster {
    /// Starts a server; `None`, with a line that says so, where there is no etcd.
    pub(super) fn single(options: &[&str]) -> Option<Self> {
        Self::start(1, None, &[&QUICK, options].concat())
    }

    /// Starts servers with default times.
    pub(super) fn of(count: usize) -> Option<Self> {
        Self::start(count, None, &[])
    }

    /// Starts a server with a certificate, which may want one of others, too.
    pub(super) fn with_tls(certificates: Certificates, is_strict: bool) -> Option<Self> {
        let ca = certificates.ca.to_string_lossy().into_owned();
        let strict = ["--client-cert-auth", "--trusted-ca-file", &ca];
        let options = if is_strict { &strict[..] } else { &[] };
        Self::start(1, Some(certificates), &[&QUICK, options].concat())
    }

    fn start(count: usize, certificates: Option<Certificates>, options: &[&str]) -> Option<Self> {
        if !has("etcd") {
            return None;
        }
        // In memory where possible, because etcd waits for the disk.
        let memory = Path::new("/dev/shm");
        let data = if memory.is_dir() {
            tempfile::tempdir_in(memory)
        } else {
            tempfile::tempdir()
        };
        let data = data.unwrap();
        let ports = free_ports(2 * count);
        let (clients, peers) = ports.split_at(count);
        let peer = |index: usize| format!("http://127.0.0.1:{}", peers[index]);
        let all: Vec<String> = (0..count).map(|n| format!("n{n}={}", peer(n))).collect();
        let scheme = certificates.as_ref().map_or("http", |_| "https");
        let start = |index: usize| {
            let url = format!("{scheme}://127.0.0.1:{}", clients[index]);
            // Ends the server also when the tests are killed.
            let mut etcd = Command::new("setpriv");
            etcd.args(["--pdeathsig", "KILL", "etcd", "--log-level", "error"]);
            etcd.args(["--name", &format!("n{index}"), "--data-dir"])
                .arg(data.path().join(index.to_string()))
                .args([
                    "--listen-client-urls",
                    &url,
                    "--advertise-client-urls",
                    &url,
                ])
                .args(["--listen-peer-urls", &peer(index)])
                .args(["--initial-advertise-peer-urls", &peer(index)])
                .args(["--initial-cluster", &all.join(",")])
                .args(options);
            if let Some(Certificates { cert, key, .. }) = &certificates {
                etcd.arg("--cert-file").arg(cert).arg("--key-file").arg(key);
            }
            Server {
                process: etcd
                    .stdout(Stdio::null())
                    .stderr(Stdio::null())
                    .spawn()
                    .unwrap(),
                port: clients[index],
            }
        };
        let servers: Vec<Server> = (0..count).map(start).collect();
        servers.iter().for_each(Server::await_start);
        Some(Cluster {
            servers,
            certificates,
            _data: data,
        })
    }

    /// Configuration of a candidate.
    pub(super) fn config(&self) -> EtcdConfig {
        let scheme = self.certificates.as_ref().map_or("http", |_| "https");
        let url = |server: &Server| format!("{scheme}://127.0.0.1:{}", server.port);
        EtcdConfig {
            endpoints: self.servers.iter().map(url).collect(),
            prefix: "/toroid/test".into(),
            ca: self.certificates.as_ref().map(|its| its.ca.clone()),
            cert: None,
            key: None,
        }
    }
}

impl Server {
    fn await_start(&self) {
        let end = Instant::now() + Duration::from_secs(60);
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(Instant::now() < end, "etcd does not start");
            thread::sleep(Duration::from_millis(10));
        }
    }

    pub(super) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.process.id().try_into().unwrap());
        kill(pid, signal).unwrap();
    }

    pub(super) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have been killed already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Time in which a certificate is valid.
#[derive(Clone, Copy)]
pub(super) enum Valid {
    /// For so many days from now on.
    Days(u32),
    /// In an hour, as for a host whose clock is an hour behind.
    Soon,
}

impl Certificates {
    /// Makes an authority, and a certificate for this machine; `None` where there is no openssl.
    pub(super) fn make(directory: &Path, valid: Valid) -> Option<Self> {
        if !has("openssl") {
            return None;
        }
        let path = |name: &str| directory.join(name);
        let (ca, cert, key) = (path("ca.pem"), path("cert.pem"), path("key.pem"));
        let names = path("names");
        fs::write(&names, "subjectAltName=IP:127.0.0.1\n").unwrap();
        let run = |words: &str, paths: &[(&str, &Path)]| {
            let mut openssl = Command::new("openssl");
            openssl.args(words.split(' '));
            paths
                .iter()
                .for_each(|(option, path)| _ = openssl.arg(option).arg(path));
            let done = openssl.output().unwrap();
            assert!(
                done.status.success(),
                "{}",
                String::from_utf8_lossy(&done.stderr)
            );
        };
        let (ca_key, request) = (path("ca-key.pem"), path("request.pem"));
        let new_key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
        run(
            &format!("req -x509 {new_key} -subj /CN=authority"),
            &[("-out", &ca), ("-keyout", &ca_key)],
        );
        run(
            &format!("req {new_key} -subj /CN=server"),
            &[("-out", &request), ("-keyout", &key)],
        );
        let files = [("-in", &*request), ("-extfile", &names), ("-out", &cert)];
        match valid {
            Valid::Days(days) => {
                let authority = [("-CA", &*ca), ("-CAkey", &ca_key)];
                run(
                    &format!("x509 -req -days {days} -CAcreateserial"),
                    &[&files[..], &authority].concat(),
                );
            }
            Valid::Soon => {
                let (config, place) = (path("ca.conf"), directory.display());
                let text = format!(
                    "[ca]\ndefault_ca = it\n[it]\ndatabase = {place}/index\nserial = \
                     {place}/serial\nnew_certs_dir = {place}\ndefault_md = sha256\npolicy = any\n\
                     [any]\ncommonName = supplied\n"
                );
                fs::write(&config, text).unwrap();
                fs::write(path("index"), "").unwrap();
                let in_hours = |hours: &str| {
                    let mut date = Command::new("date");
                    date.args(["-u", "-d", &format!("{hours} hours"), "+%Y%m%d%H%M%SZ"]);
                    String::from_utf8(date.output().unwrap().stdout).unwrap()
                };
                let (start, end) = (in_hours("1"), in_hours("2"));
                let (start, end) = (start.trim(), end.trim());
                let authority = [("-cert", &*ca), ("-keyfile", &ca_key), ("-config", &config)];
                run(
                    &format!("ca -batch -notext -create_serial -startdate {start} -enddate {end}"),
                    &[&files[..], &authority].concat(),
                );
            }
        }
        Some(Certificates { ca, cert, key })
    }
}

/// Whether a program is there. CI has all.
fn has(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    let is_there = env::split_paths(&path).any(|folder| folder.join(program).is_file());
    let is_ci = env::var("CI").is_ok_and(|value| value == "true");
    assert!(is_there || !is_ci, "{program} is missing");
    if !is_there {
        println!("skipped: {program} is missing");
    }
    is_there
}

/// Ports that were free a moment ago.
fn free_ports(count: usize) -> Vec<u16> {
    let listeners = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    let listeners: Vec<TcpListener> = listeners.collect();
    let ports = listeners
        .iter()
        .map(|listener| listener.local_addr().unwrap().port());
    ports.collect()
}
