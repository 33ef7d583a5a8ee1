//! Errors of etcd, with remedies.

use std::path::PathBuf;

use toroid_fabric::Torus;
use toroid_model::refusal::{Refusal, RefusalKind};

/// Failure to use etcd.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EtcdError {
    /// The program was built without the feature `etcd`.
    #[cfg_attr(feature = "etcd", allow(dead_code, reason = "of other builds"))]
    #[error("this build has no etcd")]
    NotBuilt,
    /// A file with a certificate or a key cannot be used.
    #[error("cannot use {} for etcd: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Its mistake.
        reason: String,
    },
    /// The URL of a server cannot be used.
    #[error("\"{endpoint}\" names no etcd server: {reason}")]
    Endpoint {
        /// The URL.
        endpoint: String,
        /// Its mistake.
        reason: String,
    },
    /// No encrypted connection comes about.
    #[error("etcd at {endpoint}: {fault}")]
    Tls {
        /// URL of the server.
        endpoint: String,
        /// The reason.
        fault: TlsFault,
    },
    /// The servers want a user or a right that this host has not.
    #[error("etcd denies access to {prefix}: {reason}")]
    Denied {
        /// Prefix of the keys.
        prefix: String,
        /// Reason of the server.
        reason: String,
    },
    /// No server answers.
    #[error("etcd cannot be reached: {0}")]
    Unreachable(String),
    /// Servers answer, but have no leader that most of them follow.
    #[error("etcd does not decide, as most of its servers are away: {0}")]
    NoMajority(String),
    /// The database has reached its quota, or the disk is full.
    #[error("etcd is out of space")]
    NoSpace,
    /// Two of the URLs are of different clusters.
    #[error("etcd at {first} and at {second} are two clusters")]
    OtherCluster {
        /// URL of one server.
        first: String,
        /// URL of the other one.
        second: String,
    },
    /// The directory is of another torus.
    #[error("the directory {prefix} in etcd is of a torus {kept}, not {asked}")]
    OtherTorus {
        /// Prefix of the keys.
        prefix: String,
        /// Torus of the directory.
        kept: String,
        /// Torus of this host.
        asked: Torus,
    },
    /// A newer release has written the keys.
    #[error("the directory {prefix} in etcd has format {found}, and this release knows {known}")]
    Newer {
        /// Prefix of the keys.
        prefix: String,
        /// Format of the keys.
        found: u32,
        /// Latest format of this release.
        known: u32,
    },
    /// Something else uses the keys.
    #[error("the key {key} in etcd is none of a Toroid directory")]
    Foreign {
        /// The key.
        key: String,
    },
    /// A record cannot be used.
    #[error("the directory {prefix} in etcd cannot be used: {reason}")]
    Damaged {
        /// Prefix of the keys.
        prefix: String,
        /// The record, and its mistake.
        reason: String,
    },
    /// A record is larger than a request may be.
    #[error("the record {record} has {bytes} bytes, and etcd takes {most}")]
    TooLarge {
        /// Key of the record.
        record: String,
        /// Bytes of the record.
        bytes: usize,
        /// The most bytes.
        most: usize,
    },
    /// This host has not renewed its lease in time, and leads no more.
    #[error("the lease of this host in etcd was not renewed in time, so that it leads no more")]
    Unrenewed,
    /// An earlier transaction of this host came late.
    #[error("an earlier change of this host has come in between")]
    Overtaken,
    /// Some other answer of a server.
    #[error("etcd refuses a request: {0}")]
    Refused(String),
}

/// Why no encrypted connection with a server comes about.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsFault {
    /// No authority of `ca` has signed the server's certificate.
    #[error("its certificate is of another authority")]
    OtherAuthority,
    /// The server's certificate has expired.
    #[error("its certificate has expired")]
    Expired,
    /// The server's certificate is of the future.
    #[error("its certificate is not valid yet")]
    NotYet,
    /// The server's certificate has other names.
    #[error("its certificate is for other names than its URL")]
    OtherName,
    /// The server refuses this host's certificate, or the lack of one.
    #[error("it refuses the certificate of this host ({0})")]
    Client(String),
    /// The server speaks no TLS.
    #[error("it does not speak TLS")]
    Clear,
}

impl EtcdError {
    /// The error as a refusal, with its kind and a remedy.
    pub fn refusal(&self) -> Refusal {
        use EtcdError as E;
        use RefusalKind::{Denied, Exhausted, Failed, Invalid, Version};
        let (kind, remedy) = match self {
            E::NotBuilt => (Failed, "build with `--features etcd`"),
            E::File { .. } => (Failed, "see to `ca`, `cert` and `key` of `[etcd]`"),
            E::Endpoint { .. } => (Invalid, "see to `endpoints` of `[etcd]`"),
            E::Tls { fault, .. } => (Denied, fault.remedy()),
            E::Denied { .. } => (
                Denied,
                "let `cert` of `[etcd]` name a user of etcd that reads and writes this prefix",
            ),
            E::Unreachable(_) | E::Unrenewed => (
                Failed,
                "see to the servers, the network, and `endpoints` of `[etcd]`",
            ),
            E::NoMajority(_) => (
                Failed,
                "start more of its servers, and see `etcdctl endpoint status --cluster`; until \
                 then data goes on, and nothing can be changed",
            ),
            E::NoSpace => (
                Exhausted,
                "make room with `etcdctl compact` and `etcdctl defrag`, or raise \
                 `--quota-backend-bytes`, and then run `etcdctl alarm disarm`; until then members \
                 can leave, and nothing else can be changed",
            ),
            E::OtherCluster { .. } => (
                Invalid,
                "let `endpoints` of `[etcd]` name servers of one cluster",
            ),
            E::OtherTorus { .. } => (
                Invalid,
                "set `torus` to that of the directory, or choose another `prefix` in `[etcd]`",
            ),
            E::Newer { .. } => (
                Version,
                "use the release that wrote it, or choose another `prefix` in `[etcd]`",
            ),
            E::Foreign { .. } => (
                Invalid,
                "choose a `prefix` in `[etcd]` below which nothing else writes",
            ),
            E::Damaged { .. } => (
                Failed,
                "restore etcd from a snapshot, or choose another `prefix` in `[etcd]`",
            ),
            E::TooLarge { .. } => (Exhausted, "use several domains in place of a large one"),
            E::Overtaken => (Failed, "make the change again"),
            E::Refused(_) => (Failed, "see the log of etcd"),
        };
        Refusal::new(kind, self.to_string(), remedy)
    }
}

impl TlsFault {
    fn remedy(&self) -> &'static str {
        match self {
            TlsFault::OtherAuthority => {
                "let `ca` of `[etcd]` be the authority of the servers' certificates"
            }
            TlsFault::Expired => "renew the certificate of that server, or set this host's clock",
            TlsFault::NotYet => "set the clock of this host",
            TlsFault::OtherName => {
                "use a name of the certificate in `endpoints`, or issue one with this name"
            }
            TlsFault::Client(_) => {
                "let `cert` and `key` of `[etcd]` be of the authority that the servers trust"
            }
            TlsFault::Clear => "write http:// in `endpoints`, or give the servers certificates",
        }
    }

    /// The fault that errors of the TLS library describe.
    #[cfg(feature = "etcd")]
    pub(super) fn of(text: &str) -> Option<Self> {
        let has = |words: &[&str]| words.iter().any(|words| text.contains(words));
        if has(&["UnknownIssuer", "BadSignature", "CaUsedAsEndEntity"]) {
            Some(TlsFault::OtherAuthority)
        } else if has(&["certificate expired", "certificate: Expired"]) {
            Some(TlsFault::Expired)
        } else if has(&["not valid yet", "NotValidYet"]) {
            Some(TlsFault::NotYet)
        } else if has(&["not valid for", "NotValidForName"]) {
            Some(TlsFault::OtherName)
        } else if has(&["InvalidContentType"]) {
            Some(TlsFault::Clear)
        } else if let Some((_, alert)) = text.split_once("received fatal alert: ") {
            let is_of_alert = |c: &char| c.is_ascii_alphanumeric();
            Some(TlsFault::Client(
                alert.chars().take_while(is_of_alert).collect(),
            ))
        } else {
            None
        }
    }
}
