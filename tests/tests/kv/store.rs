//! A store in a domain, and clients of it.

use tests::actor::StoreClient;
use tests::cluster::Cluster;
use tests::process::{Running, eventually};

/// A server at 0,0,0 of the only domain of a row of three nodes.
pub struct Store {
    server: Running,
    options: &'static str,
    pub cluster: Cluster,
}

impl Store {
    /// It refuses sets beyond its memory, so that lost memory is noticed.
    pub fn up() -> Self {
        Self::over(Cluster::up("3x1x1"))
    }

    /// With these options.
    pub fn up_with(options: &'static str) -> Self {
        Self::serving(Cluster::up("3x1x1"), options)
    }

    /// As [`Store::up`], with the nodes of a cluster that is up.
    pub fn over(cluster: Cluster) -> Self {
        Self::serving(cluster, "-M -m 8 -I 128k")
    }

    fn serving(cluster: Cluster, options: &'static str) -> Self {
        let _blue = cluster.domain("blue", &["*,0,0"]);
        Store {
            server: serve(&cluster, options),
            options,
            cluster,
        }
    }

    pub fn client(&self, node: &str) -> StoreClient {
        StoreClient::connect(&self.cluster, node)
    }

    pub fn shrink(&self, node: &str) {
        self.cluster.existing("blue").shrink(&[node]);
    }

    pub fn grow(&self, node: &str) {
        self.cluster.existing("blue").grow(&[node]);
    }

    pub fn kill_server(&mut self) {
        let pid = self.cluster.exec("0,0,0", "pgrep -f ^toroid-kv.serve").ok();
        let kill = format!("kill -9 {}", pid.text());
        self.cluster.exec("0,0,0", &kill).ok();
        eventually("the server has ended", || self.server.has_ended());
    }

    pub fn serve_again(&mut self) {
        self.server = serve(&self.cluster, self.options);
    }

    /// Sends bytes to the server by memcached's protocol, and returns the reply.
    pub fn say(&self, input: &[u8]) -> String {
        let words = "actor tcp 0-0-0.blue 11211";
        let said = self.cluster.exec_with("2,0,0", words, input).ok();
        said.text().to_owned()
    }

    /// How many items fill an empty store, which is empty afterwards.
    pub fn room(&self) -> usize {
        let value = [b'v'; 4000];
        let mut input = b"flush_all\r\n".to_vec();
        for n in 0..3000 {
            input.extend_from_slice(format!("set full{n} 0 0 {}\r\n", value.len()).as_bytes());
            input.extend_from_slice(&value);
            input.extend_from_slice(b"\r\n");
        }
        input.extend_from_slice(b"flush_all\r\n");
        let said = self.say(&input);
        assert!(
            said.contains("SERVER_ERROR out of memory"),
            "it is not full"
        );
        said.matches("STORED").count()
    }
}

fn serve(cluster: &Cluster, options: &str) -> Running {
    cluster.store("0,0,0", options)
}
