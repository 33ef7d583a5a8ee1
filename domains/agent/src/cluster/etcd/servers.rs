//! Requests to the servers of a cluster, one after another until one answers.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::future::poll_fn;
use std::path::Path;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use etcd_client::{
    Certificate, Channel, Client, Compare, CompareOp, ConnectOptions, GetOptions, GetResponse,
    Identity, TlsOptions, Txn, TxnOp, TxnResponse,
};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tonic::Code;
use tonic::transport::Endpoint;
use toroid_model::hosts::etcd::EtcdConfig;

use super::error::{EtcdError, TlsFault};
use crate::channel::secret::read_private;

/// Time for a request. A change that needs longer fails, in less than ten seconds.
const PATIENCE: Duration = Duration::from_secs(9);

/// Time that one server has for the first attempts of a request. A server loses requests that it has
/// sent to a leader that is dead, as it finds out, in up to two seconds, so that short attempts end
/// sooner.
const FIRST_ANSWER: Duration = Duration::from_millis(500);

/// Attempts without an answer before the next ones get twice as long.
const SHORT_ATTEMPTS: u32 = 4;

/// Time for a connection.
const CONNECTION: Duration = Duration::from_secs(1);

/// Pause between attempts, while servers refuse at once.
const PAUSE: Duration = Duration::from_millis(50);

/// The servers, and the keys of one directory.
#[derive(Debug)]
pub(super) struct Servers {
    pub(super) prefix: String,
    /// Time for a request.
    pub(super) patience: Duration,
    servers: Vec<(String, Endpoint)>,
    present: Mutex<Present>,
    /// Present problem of the watch of the leader.
    pub(super) trouble: Mutex<Option<EtcdError>>,
    /// Whether requests end without an answer.
    given_up: watch::Sender<bool>,
}

/// The server whose turn it is.
#[derive(Debug, Default)]
struct Present {
    index: usize,
    client: Option<Connected>,
}

impl Present {
    fn client_of(&self, index: usize) -> Option<Client> {
        let Connected(client) = self.client.as_ref().filter(|_| self.index == index)?;
        Some(client.clone())
    }
}

#[derive(Clone)]
struct Connected(Client);

/// Answer to a request.
#[derive(Debug)]
pub(super) struct Answer<T> {
    pub(super) value: T,
    /// Whether a server may have carried the request out before, without an answer.
    pub(super) is_doubtful: bool,
}

/// Failure of a request.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) error: EtcdError,
    /// Whether a server may have carried the request out, or may yet do so.
    pub(super) is_doubtful: bool,
}

/// Outcome of one attempt that failed.
#[derive(Debug)]
enum Trouble {
    /// Another attempt cannot succeed.
    Final(EtcdError),
    /// Another server, or the same one later, may answer.
    Away { why: Why, is_doubtful: bool },
}

/// Why a server did not answer.
#[derive(Debug, thiserror::Error)]
enum Why {
    #[error("{0}")]
    Down(String),
    #[error("no answer in {} ms", .0.as_millis())]
    Late(Duration),
    /// The server has no leader, for example.
    #[error("{0}")]
    Undecided(String),
    #[error("{0}")]
    Mistake(EtcdError),
}

impl Servers {
    /// Reads certificates and checks URLs, without a connection.
    pub(super) fn new(config: &EtcdConfig) -> Result<Self, EtcdError> {
        let tls = tls(config)?;
        let server = |url: &String| {
            let failed = |reason: String| EtcdError::Endpoint {
                endpoint: url.clone(),
                reason,
            };
            let endpoint = Endpoint::from_shared(url.clone());
            let endpoint = endpoint.map_err(|error| failed(explain(&error)))?;
            let endpoint = endpoint.connect_timeout(CONNECTION).tcp_nodelay(true);
            let endpoint = match (url.split_once("://"), &tls) {
                (Some(("http", _)), _) => endpoint,
                (Some(("https", _)), Some(tls)) => endpoint
                    .tls_config(tls.clone())
                    .map_err(|error| failed(explain(&error)))?,
                (Some(("https", _)), None) => return Err(failed("`ca` is missing".into())),
                _ => return Err(failed("it begins with neither http:// nor https://".into())),
            };
            Ok((url.clone(), endpoint))
        };
        let servers: Vec<_> = config
            .endpoints
            .iter()
            .map(server)
            .collect::<Result<_, _>>()?;
        if servers.is_empty() {
            return Err(EtcdError::Unreachable("`endpoints` is empty".into()));
        }
        Ok(Servers {
            prefix: config.prefix.trim_end_matches('/').into(),
            patience: PATIENCE,
            servers,
            present: Mutex::default(),
            trouble: Mutex::default(),
            given_up: watch::Sender::new(false),
        })
    }

    /// A key of the directory.
    pub(super) fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.prefix)
    }

    /// All keys of the directory: from the first to before the second.
    pub(super) fn range(&self) -> (String, String) {
        // The character after the slash.
        (self.key(""), format!("{}0", self.prefix))
    }

    /// Number of servers.
    pub(super) fn count(&self) -> usize {
        self.servers.len()
    }

    /// The URL of a server.
    pub(super) fn url(&self, index: usize) -> &str {
        &self.servers[index].0
    }

    /// Connects with one server.
    pub(super) async fn connect(&self, index: usize) -> Result<Client, EtcdError> {
        let connected = async {
            self.dial(index)
                .await
                .map_err(|why| self.explain(index, &why))
        };
        let late = || self.explain(index, &Why::Late(CONNECTION));
        let connected = timeout(CONNECTION, connected).await;
        connected.unwrap_or_else(|_| Err(late()))
    }

    /// Asks servers in turn until one answers. A request may reach several.
    pub(super) async fn ask<T, F>(
        &self,
        patience: Duration,
        request: impl Fn(Client) -> F,
    ) -> Result<T, EtcdError>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        match self.insist(patience, request).await {
            Ok(Answer { value, .. }) => Ok(value),
            Err(Failure { error, .. }) => Err(error),
        }
    }

    async fn insist<T, F>(
        &self,
        patience: Duration,
        request: impl Fn(Client) -> F,
    ) -> Result<Answer<T>, Failure>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        let end = Instant::now() + patience;
        let mut whys = BTreeMap::new();
        let mut is_doubtful = false;
        let mut late = 0;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            if *self.given_up.borrow() {
                let error = EtcdError::Unrenewed;
                return Err(Failure { error, is_doubtful });
            }
            let limit = left.min(FIRST_ANSWER * 2_u32.pow((late / SHORT_ATTEMPTS).min(2)));
            let index = self.present.lock().index;
            let attempt = self.attempt(index, limit, &request);
            let Some(outcome) = self.unless_given_up(attempt).await else {
                return Err(Failure {
                    error: EtcdError::Unrenewed,
                    is_doubtful: true,
                });
            };
            match outcome {
                Ok(value) => return Ok(Answer { value, is_doubtful }),
                Err(Trouble::Final(error)) => return Err(Failure { error, is_doubtful }),
                Err(Trouble::Away {
                    why,
                    is_doubtful: is_it,
                }) => {
                    tracing::debug!("etcd at {}: {why}", self.url(index));
                    is_doubtful |= is_it;
                    late += u32::from(matches!(why, Why::Late(_)));
                    whys.insert(index, why);
                }
            }
            self.leave(index);
            let is_mistake = |why: &Why| matches!(why, Why::Mistake(_));
            if whys.len() == self.count() && whys.values().all(is_mistake) {
                break;
            }
            sleep(PAUSE).await;
        }
        Err(Failure {
            error: self.sum_up(whys),
            is_doubtful,
        })
    }

    /// Ends all requests, also later ones. A server may carry out those that it has.
    pub(super) fn give_up(&self) {
        self.given_up.send_replace(true);
    }

    /// Waits for an attempt, but no longer than until requests are given up.
    async fn unless_given_up<T>(&self, attempt: impl Future<Output = T>) -> Option<T> {
        let mut given_up = self.given_up.subscribe();
        let mut attempt = pin!(attempt);
        let mut given_up = pin!(given_up.wait_for(|is_it| *is_it));
        let first = poll_fn(|context| match attempt.as_mut().poll(context) {
            Poll::Ready(outcome) => Poll::Ready(Some(outcome)),
            Poll::Pending => given_up.as_mut().poll(context).map(|_| None),
        });
        first.await
    }

    async fn attempt<T, F>(
        &self,
        index: usize,
        limit: Duration,
        request: impl Fn(Client) -> F,
    ) -> Result<T, Trouble>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        let away = |why, is_doubtful| Trouble::Away { why, is_doubtful };
        let silent = |_| Why::Late(limit);
        let client = timeout(limit, self.client(index)).await;
        let client = client.unwrap_or_else(|late| Err(silent(late)));
        let client = client.map_err(|why| away(why, false))?;
        let answer = timeout(limit, request(client)).await;
        let answer = answer.map_err(|late| away(silent(late), true))?;
        answer.map_err(|error| self.judge(index, error))
    }

    /// The connection with a server, which others may use, too.
    async fn client(&self, index: usize) -> Result<Client, Why> {
        if let Some(client) = self.present.lock().client_of(index) {
            return Ok(client);
        }
        let client = self.dial(index).await?;
        let mut present = self.present.lock();
        if present.index == index {
            present.client = Some(Connected(client.clone()));
        }
        Ok(client)
    }

    async fn dial(&self, index: usize) -> Result<Client, Why> {
        let (_, endpoint) = &self.servers[index];
        let channel = endpoint.connect().await;
        let channel = channel.map_err(|error| self.why_down(index, &explain(&error)))?;
        // A server without a leader shall say so, and end watches, in place of being silent.
        let options = ConnectOptions::new().with_require_leader(true);
        let client = Client::from_channel(Channel::Tonic(channel), Some(options)).await;
        client.map_err(|error| Why::Down(error.to_string()))
    }

    /// Goes on to the next server, unless another request has done so.
    pub(super) fn leave(&self, index: usize) {
        let mut present = self.present.lock();
        if present.index == index {
            *present = Present {
                index: (index + 1) % self.count(),
                client: None,
            };
        }
    }

    /// The connection in use, and its server.
    pub(super) async fn present(&self) -> Result<(usize, Client), EtcdError> {
        let index = self.present.lock().index;
        let client = timeout(CONNECTION, self.client(index)).await;
        let client = client.unwrap_or_else(|_| Err(Why::Late(CONNECTION)));
        match client {
            Ok(client) => Ok((index, client)),
            Err(why) => {
                self.leave(index);
                Err(self.explain(index, &why))
            }
        }
    }

    fn judge(&self, index: usize, error: etcd_client::Error) -> Trouble {
        let etcd_client::Error::GRpcStatus(status) = &error else {
            let why = self.why_down(index, &explain(&error));
            return Trouble::Away {
                why,
                is_doubtful: true,
            };
        };
        let text = status.message();
        match status.code() {
            Code::ResourceExhausted if text.contains("space exceeded") => {
                Trouble::Final(EtcdError::NoSpace)
            }
            Code::PermissionDenied | Code::Unauthenticated => Trouble::Final(self.denied(text)),
            Code::InvalidArgument if text.contains("user name is empty") => {
                Trouble::Final(self.denied(text))
            }
            Code::InvalidArgument
            | Code::NotFound
            | Code::OutOfRange
            | Code::FailedPrecondition
            | Code::Unimplemented => Trouble::Final(EtcdError::Refused(text.into())),
            // Refused before anything else is done.
            Code::Unavailable if text == "etcdserver: no leader" => Trouble::Away {
                why: Why::Undecided("no leader".into()),
                is_doubtful: false,
            },
            Code::Unavailable if text.starts_with("etcdserver: ") => Trouble::Away {
                why: Why::Undecided(text.into()),
                is_doubtful: true,
            },
            _ => Trouble::Away {
                why: self.why_down(index, &explain(status)),
                is_doubtful: true,
            },
        }
    }

    fn denied(&self, reason: &str) -> EtcdError {
        EtcdError::Denied {
            prefix: self.prefix.clone(),
            reason: reason.into(),
        }
    }

    fn why_down(&self, index: usize, text: &str) -> Why {
        match TlsFault::of(text) {
            Some(fault) => Why::Mistake(EtcdError::Tls {
                endpoint: self.url(index).into(),
                fault,
            }),
            None => Why::Down(text.into()),
        }
    }

    fn explain(&self, index: usize, why: &Why) -> EtcdError {
        match why {
            Why::Mistake(error) => error.clone(),
            why => EtcdError::Unreachable(format!("{}: {why}", self.url(index))),
        }
    }

    fn sum_up(&self, whys: BTreeMap<usize, Why>) -> EtcdError {
        let is_there = |why: &Why| matches!(why, Why::Late(_) | Why::Undecided(_));
        let text = |(index, why): (&usize, &Why)| format!("{}: {why}", self.url(*index));
        let texts: Vec<String> = whys.iter().map(text).collect();
        let texts = texts.join("; ");
        if whys.is_empty() || whys.values().any(is_there) {
            return EtcdError::NoMajority(texts);
        }
        let mut mistakes = whys.into_values().filter_map(|why| match why {
            Why::Mistake(error) => Some(error),
            _ => None,
        });
        mistakes.next().unwrap_or(EtcdError::Unreachable(texts))
    }

    /// Reads keys. Not from the server's memory: etcd asks most of its servers first.
    pub(super) async fn get(
        &self,
        key: &str,
        options: GetOptions,
    ) -> Result<GetResponse, EtcdError> {
        let request = |client: Client| {
            let mut kv = client.kv_client().max_decoding_message_size(MAX_ANSWER);
            let (key, options) = (key.to_owned(), options.clone());
            async move { kv.get(key, Some(options)).await }
        };
        self.ask(self.patience, request).await
    }

    /// Runs a transaction, maybe more than once: it must have the same effect then.
    pub(super) async fn transact(
        &self,
        patience: Duration,
        txn: Txn,
    ) -> Result<Answer<TxnResponse>, Failure> {
        let request = |client: Client| {
            let txn = txn.clone();
            async move { client.kv_client().txn(txn).await }
        };
        self.insist(patience, request).await
    }

    /// A transaction that puts a key unless the key is there, and gets the key then.
    pub(super) fn put_new(&self, name: &str, value: String) -> Txn {
        let key = self.key(name);
        Txn::new()
            .when([Compare::create_revision(key.clone(), CompareOp::Equal, 0)])
            .and_then([TxnOp::put(key.clone(), value, None)])
            .or_else([TxnOp::get(key, None)])
    }
}

/// Most bytes of an answer.
const MAX_ANSWER: usize = 64 << 20;

fn tls(config: &EtcdConfig) -> Result<Option<TlsOptions>, EtcdError> {
    let failed = |path: &Path, reason: String| EtcdError::File {
        path: path.into(),
        reason,
    };
    let check = |path: &Path, text: String, kind: &str| {
        if text.contains(&format!("{kind}-----")) {
            Ok(text)
        } else {
            let reason = format!("it has no {} in PEM", kind.to_lowercase());
            Err(failed(path, reason))
        }
    };
    let certificates = |path: &Path| {
        let text = fs::read_to_string(path).map_err(|error| failed(path, error.to_string()))?;
        check(path, text, "CERTIFICATE")
    };
    let private = |path: &Path| {
        let text = read_private(path).map_err(|error| failed(path, error.to_string()))?;
        check(path, text, "PRIVATE KEY")
    };
    let Some(ca) = &config.ca else {
        return Ok(None);
    };
    let mut tls = TlsOptions::new().ca_certificate(Certificate::from_pem(certificates(ca)?));
    tls = match (&config.cert, &config.key) {
        (Some(cert), Some(key)) => {
            tls.identity(Identity::from_pem(certificates(cert)?, private(key)?))
        }
        (None, None) => tls,
        (Some(lone), None) | (None, Some(lone)) => {
            return Err(failed(lone, "`cert` and `key` go together".into()));
        }
    };
    Ok(Some(tls))
}

/// An error with its causes.
fn explain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

impl std::fmt::Debug for Connected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Connected")
    }
}
