use std::os::unix::net::UnixListener;

use toroid_model::directory::requests::RequestId;
use toroid_protocol::agent::{Event, Message, Reply};
use toroid_protocol::wire::MAX_PAYLOAD;

use super::*;

/// Serves connections one after another, each by `serve` after the greeting.
fn agent(listener: UnixListener, serve: Vec<fn(&mut Reader, &Writer)>) {
    for serve in serve {
        let (mut reader, writer) = greeted(&listener);
        serve(&mut reader, &writer);
    }
}

fn greeted(listener: &UnixListener) -> (Reader, Writer) {
    let (mut reader, writer) = wire::split(listener.accept().unwrap().0).unwrap();
    reader.receive::<Request>().unwrap();
    let (version, pid) = (VERSION, 1);
    let welcome = Message::Reply(Reply::Welcome { version, pid });
    writer.send(&welcome, &[]).unwrap();
    (reader, writer)
}

fn answer(reader: &mut Reader, writer: &Writer, reply: Reply) {
    reader.receive::<Request>().unwrap();
    writer.send(&Message::Reply(reply), &[]).unwrap();
}

#[test]
fn a_request_that_was_not_begun_is_repeated_at_the_agents_next_life() {
    let state = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(state.path().join(CONTROL_SOCKET)).unwrap();
    let lives: Vec<fn(&mut Reader, &Writer)> = vec![
        |reader, writer| answer(reader, writer, Reply::Again { begun: false }),
        // Ends with the request in the socket.
        |reader, _| _ = reader.announced().unwrap(),
        |reader, writer| answer(reader, writer, Reply::Done),
        // May have begun it.
        |reader, _| _ = reader.receive::<Request>().unwrap(),
    ];
    let agent = thread::spawn(move || agent(listener, lives));
    let mut control = Control::connect(state.path()).unwrap();
    // Longer than a reader takes from the socket at once.
    let nodes = vec!["0,0,0".to_owned(); 10_000];
    control.chown(&nodes, None).unwrap();
    drop(control);
    let mut control = Control::connect(state.path()).unwrap();
    let error = control.unalias("db").unwrap_err();
    let ClientError::Unknown(cause) = &error else {
        panic!("{error:?}")
    };
    assert!(matches!(**cause, ClientError::Wire(WireError::Closed)));
    assert!(error.to_string().contains("is unknown"), "{error}");
    agent.join().unwrap();
}

/// Identifier of the next request.
fn id(reader: &mut Reader) -> (RequestId, bool) {
    match reader.receive().unwrap().0 {
        Request::Once { id, again, .. } => (id, again),
        other => panic!("{other:?}"),
    }
}

/// Life of an agent, which gets one request.
type Life<'a> = &'a dyn Fn(&mut Reader, &Writer) -> (RequestId, bool);

#[test]
fn a_change_that_may_have_been_made_is_repeated_with_its_identifier() {
    let state = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(state.path().join(CONTROL_SOCKET)).unwrap();
    let exhausted = |reader: &mut Reader, writer: &Writer| {
        let first = id(reader);
        let refusal = Refusal::new(RefusalKind::Exhausted, "too many", "");
        let refused = Message::Reply(Reply::Error(refusal));
        writer.send(&refused, &[]).unwrap();
        first
    };
    let agent = thread::spawn(move || {
        let mut ids = Vec::new();
        let lives: [Life<'_>; 4] = [
            &|reader, _| id(reader),
            &|reader, writer| {
                let id = id(reader);
                for message in [
                    Message::Event(Event::Waiting),
                    Message::Reply(Reply::Again { begun: true }),
                ] {
                    writer.send(&message, &[]).unwrap();
                }
                id
            },
            &exhausted,
            &exhausted,
        ];
        for life in lives {
            let (mut reader, writer) = greeted(&listener);
            ids.push(life(&mut reader, &writer));
        }
        ids
    });
    let mut control = Control::connect(state.path()).unwrap();
    let error = control.unalias("db").unwrap_err();
    assert!(matches!(error, ClientError::Refused(_)), "{error:?}");
    let mut control = Control::connect(state.path()).unwrap();
    let error = control.unalias("db").unwrap_err();
    assert!(matches!(error, ClientError::Refused(_)), "{error:?}");
    let asked = agent.join().unwrap();
    let again: Vec<bool> = asked.iter().map(|(_, again)| *again).collect();
    assert_eq!(again, [false, true, true, false]);
    let is_first: Vec<bool> = asked.iter().map(|(id, _)| *id == asked[0].0).collect();
    assert_eq!(is_first, [true, true, true, false]);
}

/// An agent that was killed takes a connection as long as not all of its threads have ended.
#[test]
fn a_connection_to_an_ending_agent_fails_with_no_agent() {
    let state = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(state.path().join(CONTROL_SOCKET)).unwrap();
    let ending = thread::spawn(move || drop(listener.accept().unwrap()));
    let error = Control::connect(state.path()).unwrap_err();
    assert!(matches!(error, ClientError::NoAgent { .. }), "{error:?}");
    ending.join().unwrap();
}

#[test]
fn a_request_over_the_limit_fails_without_waiting_for_an_answer() {
    let (ours, _agent) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    let (reader, writer) = wire::split(ours).unwrap();
    let mut control = Control {
        address: Address::Node,
        pid: 0,
        reader,
        writer,
        waits: None,
    };
    let error = control.alias(&"x".repeat(MAX_PAYLOAD as usize), "y");
    assert!(matches!(error, Err(ClientError::TooLong(_))), "{error:?}");
}
