//! Links: authenticated sessions with other agents, with requests and responses both ways.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use serde_json::value::RawValue;
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_protocol::hosts::{HostMessage, HostRequest, HostResponse, Requester};
use toroid_protocol::wire::MAX_PAYLOAD;

use crate::channel::SessionError;
use crate::channel::secure::{Reader, Writer};
use crate::gate::Gate;
use crate::threads;

/// Interval of `Alive` messages: several fit into the time that a side may be silent.
const ALIVE: Duration = Duration::from_secs(1);

/// Requests of the other side that are served at a time. Each takes a thread.
const MAX_SERVED: usize = 64;

/// Places among them for administrators and for updates of the directory.
const RESERVED: usize = 16;

/// A link to another host.
#[derive(Debug)]
pub(crate) struct Link {
    /// Name of the other host.
    pub(crate) host: String,
    writer: Writer,
    /// Channels to waiting requests, by number; `None` after the end.
    waiting: Mutex<Option<HashMap<u64, SyncSender<HostResponse>>>>,
    next: AtomicU64,
    served: AtomicUsize,
    /// Requests of the other side whose answers are not sent yet.
    answers: Gate,
}

/// Reason of a missing response.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum NoAnswer {
    #[error("the session with it has ended")]
    Ended,
    #[error("it has not answered in time")]
    Late,
    /// It was not sent.
    #[error("the request is too long")]
    TooLong,
}

/// A [`HostMessage::HostRequest`] whose request is JSON already.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum WrittenMessage<'a> {
    HostRequest { number: u64, ask: &'a RawValue },
}

impl Link {
    pub(crate) fn new(host: String, writer: Writer) -> Arc<Self> {
        Arc::new(Link {
            host,
            writer,
            waiting: Mutex::new(Some(HashMap::new())),
            next: AtomicU64::new(1),
            served: AtomicUsize::new(0),
            answers: Gate::default(),
        })
    }

    /// Sends a request and waits for its response.
    pub(crate) fn ask(
        &self,
        ask: HostRequest,
        timeout: Duration,
    ) -> Result<HostResponse, NoAnswer> {
        self.begin(ask)?.wait(timeout)
    }

    /// Sends a request.
    pub(crate) fn begin(&self, ask: HostRequest) -> Result<Question<'_>, NoAnswer> {
        self.send_numbered(|number| HostMessage::HostRequest { number, ask })
    }

    /// Sends a request that is JSON already.
    pub(crate) fn begin_written(&self, ask: &RawValue) -> Result<Question<'_>, NoAnswer> {
        self.send_numbered(|number| WrittenMessage::HostRequest { number, ask })
    }

    fn send_numbered<T: Serialize>(
        &self,
        message: impl FnOnce(u64) -> T,
    ) -> Result<Question<'_>, NoAnswer> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (answers, answer) = sync_channel(1);
        match &mut *self.waiting.lock() {
            Some(waiting) => waiting.insert(number, answers),
            None => return Err(NoAnswer::Ended),
        };
        let question = Question {
            link: self,
            number,
            answer,
        };
        let sent = self.writer.send(&message(number));
        sent.map_err(|error| match error {
            SessionError::TooLong { .. } => NoAnswer::TooLong,
            _ => NoAnswer::Ended,
        })?;
        Ok(question)
    }

    /// Whether the session has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.waiting.lock().is_none()
    }

    /// Serves no more requests, and waits at most for `time` until answers under way are sent.
    pub(crate) fn settle(&self, time: Duration) {
        self.answers.close(time);
    }

    /// Ends the session.
    pub(crate) fn end(&self) {
        self.writer.shut_down();
        // Waiting requests get `NoAnswer::Ended`.
        *self.waiting.lock() = None;
    }

    /// Serves the session to its end, and returns the reason of the end.
    pub(crate) fn attend(
        self: &Arc<Self>,
        mut reader: Reader,
        serve: impl Fn(HostRequest) -> HostResponse + Clone + Send + 'static,
    ) -> SessionError {
        let end = loop {
            let heard = match reader.receive() {
                Ok(HostMessage::Alive) => Ok(()),
                Ok(HostMessage::HostResponse { number, answer }) => {
                    self.hear(number, answer);
                    Ok(())
                }
                Ok(HostMessage::HostRequest { number, ask }) => {
                    self.serve(number, ask, serve.clone())
                }
                Ok(other) => {
                    let message = format!("{} comes too late", other.kind());
                    Err(SessionError::Malformed(message))
                }
                Err(error) => Err(error),
            };
            if let Err(error) = heard {
                break error;
            }
        };
        self.end();
        end
    }

    fn hear(&self, number: u64, answer: HostResponse) {
        let waiting = self
            .waiting
            .lock()
            .as_mut()
            .and_then(|all| all.remove(&number));
        if let Some(waiting) = waiting {
            // The waiting request may have timed out.
            let _ = waiting.try_send(answer);
        }
    }

    fn serve(
        self: &Arc<Self>,
        number: u64,
        ask: HostRequest,
        serve: impl Fn(HostRequest) -> HostResponse + Send + 'static,
    ) -> Result<(), SessionError> {
        let limit = most_served(&ask);
        if self.served.fetch_add(1, Ordering::Relaxed) >= limit {
            self.served.fetch_sub(1, Ordering::Relaxed);
            let message = format!("{limit} requests of this host are under way");
            let refusal = Refusal::new(RefusalKind::Exhausted, message, "try again later");
            let answer = match ask {
                HostRequest::Change { .. } => HostResponse::Unsettled(refusal),
                _ => HostResponse::Refused(refusal),
            };
            return self
                .writer
                .send(&HostMessage::HostResponse { number, answer });
        }
        let link = Arc::clone(self);
        let is_change = matches!(ask, HostRequest::Change { .. });
        let answer = move || {
            let Some(_inside) = link.answers.enter() else {
                return;
            };
            let answer = serve(ask);
            link.served.fetch_sub(1, Ordering::Relaxed);
            let send = |answer| {
                let writer = &link.writer;
                writer.send(&HostMessage::HostResponse { number, answer })
            };
            // If the second fails, too, the session has ended.
            if let Err(SessionError::TooLong { .. }) = send(answer) {
                let remedy = if is_change {
                    "the change was made; look at it with `toroid domain show`"
                } else {
                    "use the same release on all hosts"
                };
                let _ = send(HostResponse::Refused(too_long("the reply", remedy)));
            }
        };
        threads::start(answer)?;
        Ok(())
    }
}

/// Makes the refusal for a message that does not fit between agents.
pub(crate) fn too_long(what: &str, remedy: &str) -> Refusal {
    let limit = MAX_PAYLOAD >> 20;
    let message = format!("{what} has over {limit} MiB, which do not fit between two hosts");
    Refusal::new(RefusalKind::Exhausted, message, remedy)
}

/// A request without a response yet. Dropping it discards the response.
#[derive(Debug)]
pub(crate) struct Question<'a> {
    link: &'a Link,
    number: u64,
    answer: Receiver<HostResponse>,
}

impl Question<'_> {
    /// Waits for the response. After `NoAnswer::Late` the caller may wait again.
    pub(crate) fn wait(&self, timeout: Duration) -> Result<HostResponse, NoAnswer> {
        self.answer
            .recv_timeout(timeout)
            .map_err(|error| match error {
                RecvTimeoutError::Timeout => NoAnswer::Late,
                RecvTimeoutError::Disconnected => NoAnswer::Ended,
            })
    }
}

impl Drop for Question<'_> {
    fn drop(&mut self) {
        if let Some(waiting) = &mut *self.link.waiting.lock() {
            waiting.remove(&self.number);
        }
    }
}

/// Number of requests that may be under way when this one comes. Users and nodes cannot take all
/// places, and queries of users none that changes and data connections need.
fn most_served(ask: &HostRequest) -> usize {
    match ask {
        HostRequest::Page(_)
        | HostRequest::Adopt(_)
        | HostRequest::Offer(_)
        | HostRequest::Renew
        | HostRequest::Change {
            who: Requester::Administrator(_),
            ..
        }
        | HostRequest::Query {
            who: Requester::Administrator(_),
            ..
        } => MAX_SERVED,
        HostRequest::Change { .. }
        | HostRequest::Ticket { .. }
        | HostRequest::Listeners(_)
        | HostRequest::Gateway { .. }
        | HostRequest::GatewayProblems(_) => MAX_SERVED - RESERVED,
        HostRequest::Query { .. } => RESERVED,
    }
}

/// Sends `Alive` at once, and then at intervals until the session ends.
pub(crate) fn stay_alive(writer: &Writer) -> Result<(), SessionError> {
    let writer = writer.clone();
    writer.send(&HostMessage::Alive)?;
    let say = move || {
        loop {
            thread::sleep(ALIVE);
            if writer.send(&HostMessage::Alive).is_err() {
                return;
            }
        }
    };
    threads::start(say)?;
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::mpsc;

    use toroid_model::directory::requests::RequestId;
    use toroid_protocol::hosts::{NodePair, TicketPurpose};

    use super::*;
    use crate::channel::handshake::tests::meet;
    use crate::channel::secure::Session;

    pub(crate) fn sessions() -> [Session; 2] {
        meet(1, 1).map(Result::unwrap)
    }

    const LONG: Duration = Duration::from_secs(60);

    fn links([ours, theirs]: [&Session; 2]) -> (Arc<Link>, Arc<Link>) {
        (
            Link::new("b".into(), ours.writer.clone()),
            Link::new("a".into(), theirs.writer.clone()),
        )
    }

    fn ask(from: u32) -> HostRequest {
        let (to, partition, protocol) = (0, 0, None);
        let pair = NodePair {
            from,
            to,
            partition,
            protocol,
        };
        HostRequest::Ticket {
            wanted: TicketPurpose::Node(pair),
            revision: None,
        }
    }

    fn says(answer: Result<HostResponse, NoAnswer>) -> String {
        match answer {
            Ok(HostResponse::Ticket(text)) => text,
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn answers_come_in_any_order_and_end_with_the_session() {
        let [ours, theirs] = sessions();
        let (go, gate) = mpsc::channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        let serve = move |ask| {
            let HostRequest::Ticket {
                wanted: TicketPurpose::Node(between),
                ..
            } = ask
            else {
                return HostResponse::Done;
            };
            if between.from == 1 {
                gate.lock().recv().ok();
            }
            HostResponse::Ticket(between.from.to_string())
        };
        let (a, b) = links([&ours, &theirs]);
        thread::scope(|scope| {
            scope.spawn(|| a.attend(ours.reader, |_| HostResponse::Done));
            scope.spawn(|| b.attend(theirs.reader, serve));
            let slow = scope.spawn(|| says(a.ask(ask(1), LONG)));
            assert_eq!(says(a.ask(ask(2), LONG)), "2");
            assert!(matches!(b.ask(ask(3), LONG), Ok(HostResponse::Done)));
            go.send(()).unwrap();
            assert_eq!(slow.join().unwrap(), "1");
            let late = a.begin(ask(1)).unwrap();
            let nothing = late.wait(Duration::from_millis(10));
            assert!(matches!(nothing, Err(NoAnswer::Late)));
            go.send(()).unwrap();
            assert_eq!(says(late.wait(LONG)), "1");
            let cut = scope.spawn(|| a.ask(ask(1), LONG));
            b.end();
            assert!(matches!(cut.join().unwrap(), Err(NoAnswer::Ended)));
            drop(go);
        });
        assert!(a.has_ended() && b.has_ended());
        assert!(matches!(a.ask(ask(1), LONG), Err(NoAnswer::Ended)));
    }

    #[test]
    fn a_request_that_is_written_already_is_the_same_message() {
        let (number, ask) = (7, ask(1));
        let text = serde_json::value::to_raw_value(&ask).unwrap();
        let written = WrittenMessage::HostRequest { number, ask: &text };
        assert_eq!(
            serde_json::to_string(&written).unwrap(),
            serde_json::to_string(&HostMessage::HostRequest { number, ask }).unwrap(),
        );
    }

    /// A change of a very large domain was once made, and never answered.
    #[test]
    fn an_answer_that_is_too_long_is_named() {
        let [ours, theirs] = sessions();
        let long = "x".repeat(MAX_PAYLOAD as usize);
        let serve = move |_| HostResponse::Ticket(long.clone());
        let change = HostRequest::Change {
            who: Requester::Administrator(0),
            pid: None,
            id: RequestId(0),
            request: toroid_protocol::agent::Request::Status,
        };
        let (a, b) = links([&ours, &theirs]);
        thread::scope(|scope| {
            scope.spawn(|| a.attend(ours.reader, |_| HostResponse::Done));
            scope.spawn(|| b.attend(theirs.reader, serve));
            for (ask, remedy) in [
                (change, "the change was made"),
                (ask(1), "the same release"),
            ] {
                let Ok(HostResponse::Refused(refusal)) = a.ask(ask, LONG) else {
                    panic!("no refusal");
                };
                assert!(refusal.message.contains("over 16 MiB"), "{refusal}");
                assert!(refusal.remedy.contains(remedy), "{refusal}");
            }
            a.end();
        });
    }

    /// Users of a host could once keep its administrators waiting.
    #[test]
    fn some_places_are_reserved_for_administrators() {
        let [ours, theirs] = sessions();
        let (go, gate) = mpsc::channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        let serve = move |ask| {
            if let HostRequest::Ticket { .. } = ask {
                gate.lock().recv().ok();
            }
            HostResponse::Done
        };
        let change = |who| HostRequest::Change {
            who,
            pid: None,
            id: RequestId(0),
            request: toroid_protocol::agent::Request::Status,
        };
        let (a, b) = links([&ours, &theirs]);
        thread::scope(|scope| {
            scope.spawn(|| a.attend(ours.reader, |_| HostResponse::Done));
            scope.spawn(|| b.attend(theirs.reader, serve));
            let slow: Vec<_> = (0..MAX_SERVED - RESERVED)
                .map(|_| a.begin(ask(1)).unwrap())
                .collect();
            let user = a.ask(change(Requester::User(1)), LONG).unwrap();
            assert!(matches!(user, HostResponse::Unsettled(_)), "{user:?}");
            let root = a.ask(change(Requester::Administrator(0)), LONG).unwrap();
            assert!(matches!(root, HostResponse::Done), "{root:?}");
            drop((go, slow));
            a.end();
        });
    }
}
