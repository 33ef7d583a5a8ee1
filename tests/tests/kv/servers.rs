//! The two servers, each for one story, and ours behind a proxy.

use std::fs::{self, Permissions};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tests::cluster::{Cluster, program};
use tests::process::{FOR_EVER, Running, eventually};

/// Either of them.
pub trait Server {
    fn connect(&self) -> Connection;
}

/// A connection to one of them.
pub struct Connection(Box<dyn Stream>);

trait Stream: Read + Write + Send {
    fn limit(&self, limit: Duration) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn limit(&self, limit: Duration) -> io::Result<()> {
        self.set_nodelay(true)?;
        self.set_write_timeout(Some(limit))?;
        self.set_read_timeout(Some(limit))
    }
}

impl Stream for UnixStream {
    fn limit(&self, limit: Duration) -> io::Result<()> {
        self.set_write_timeout(Some(limit))?;
        self.set_read_timeout(Some(limit))
    }
}

impl Connection {
    fn new(stream: impl Stream + 'static) -> Self {
        stream.limit(FOR_EVER).expect("a socket has time limits");
        Connection(Box::new(stream))
    }

    /// To an address, with its port.
    pub fn tcp(address: &str) -> Self {
        Connection::new(TcpStream::connect(address).expect("it listens"))
    }

    /// To a unix socket.
    pub fn unix(path: &str) -> Self {
        Connection::new(UnixStream::connect(path).expect("it listens"))
    }

    /// Sends these bytes as one piece.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }

    /// The reply to a request, which ends with `end`.
    pub fn ask(&mut self, request: &str, end: &str) -> String {
        self.send(request.as_bytes()).expect("it reads");
        String::from_utf8_lossy(&self.receive(Some(end.as_bytes()))).into_owned()
    }

    /// The bytes up to `end`, or up to the close of the connection.
    pub fn receive(&mut self, end: Option<&[u8]>) -> Vec<u8> {
        let (mut said, mut buffer) = (Vec::new(), vec![0; 64 * 1024]);
        loop {
            match self.0.read(&mut buffer) {
                Ok(0) => return said,
                Ok(count) => said.extend_from_slice(&buffer[..count]),
                // Closed before it had read all that was sent.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return said,
                Err(error) => panic!("{error} after {:?}", String::from_utf8_lossy(&said)),
            }
            if end.is_some_and(|end| said.ends_with(end)) {
                return said;
            }
        }
    }
}

/// The replies of memcached and of ours to a request, which end with `end`.
pub fn ask_both(connections: &mut [Connection; 2], request: &str, end: &str) -> [String; 2] {
    connections
        .each_mut()
        .map(|connection| connection.ask(request, end))
}

/// The number of this name in a reply with statistics.
#[track_caller]
pub fn number(told: &str, name: &str) -> u64 {
    let prefix = format!("STAT {name} ");
    let value = told.lines().find_map(|line| line.strip_prefix(&prefix));
    let value = value.and_then(|value| value.parse().ok());
    value.unwrap_or_else(|| panic!("no number {name} in {told}"))
}

/// Debian's.
pub struct Memcached {
    _server: Running,
    socket: PathBuf,
    _place: TempDir,
}

impl Memcached {
    /// With one thread, and none that cares for its lists: that holds items for moments, and then a number
    /// that gets shorter is not filled up with blanks.
    pub fn start() -> Self {
        Self::start_with(&["-t", "1", "-o", "no_lru_maintainer,no_lru_crawler"])
    }

    /// With these options.
    pub fn start_with(options: &[&str]) -> Self {
        let place = tempfile::tempdir().expect("a place for its socket");
        let socket = place.path().join("socket");
        let mut command = Command::new("memcached");
        command.args(["-u", "root"]).args(options);
        command.arg("-s").arg(&socket);
        let server = Running::start(&mut command);
        eventually("memcached listens", || UnixStream::connect(&socket).is_ok());
        Memcached {
            _server: server,
            socket,
            _place: place,
        }
    }
}

impl Server for Memcached {
    fn connect(&self) -> Connection {
        Connection::new(UnixStream::connect(&self.socket).expect("it listens"))
    }
}

/// Ours.
pub struct Toroid {
    /// The process.
    pub server: Running,
    /// Where it listens.
    pub port: u16,
}

impl Toroid {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// With these options, too.
    pub fn start_with(options: &[&str]) -> Self {
        let mut command = Command::new(program("toroid-kv"));
        command.args(["serve", "--no-rdma", "-l", "127.0.0.1", "-p", "-1"]);
        command.args(options);
        let mut server = Running::start(command.stdin(Stdio::null()));
        let ready = server.line();
        let port = ready.rsplit(':').next().and_then(|port| port.parse().ok());
        Toroid {
            server,
            port: port.unwrap_or_else(|| panic!("no port in {ready:?}")),
        }
    }
}

impl Server for Toroid {
    fn connect(&self) -> Connection {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("it listens");
        Connection::new(stream)
    }
}

/// Ours in one node, and a proxy to it in another.
pub struct Proxied {
    _proxy: Running,
    _server: Running,
    socket: PathBuf,
    _cluster: Cluster,
}

impl Proxied {
    pub fn start() -> Self {
        let cluster = Cluster::up("2x1x1");
        let _blue = cluster.domain("blue", &["*,0,0"]);
        let server = cluster.store("0,0,0", "");
        // A directory for sockets of a node that this test can reach.
        let place = cluster.files().join("sockets");
        fs::create_dir(&place).expect("it is new");
        fs::set_permissions(&place, Permissions::from_mode(0o777)).expect("it is ours");
        let socket = place.join("proxy");
        let words = format!("toroid-kv proxy -s {}", socket.display());
        let proxy = cluster.spawn("1,0,0", &words);
        proxy.says("rdma blue 0,0,0\n");
        Proxied {
            _proxy: proxy,
            _server: server,
            socket,
            _cluster: cluster,
        }
    }
}

impl Server for Proxied {
    fn connect(&self) -> Connection {
        Connection::new(UnixStream::connect(&self.socket).expect("it listens"))
    }
}
