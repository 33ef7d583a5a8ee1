use std::os::unix::net::UnixListener;

use toroid_protocol::wire::MAX_PAYLOAD;

use super::*;

/// Serves connections one after another, each by `serve` after the greeting.
fn agent(listener: UnixListener, serve: Vec<fn(&mut Reader, &Writer)>) {
    for serve in serve {
        let (mut reader, writer) = wire::split(listener.accept().unwrap().0).unwrap();
        reader.receive::<Request>().unwrap();
        let (version, pid) = (VERSION, 1);
        let welcome = Message::Reply(Reply::Welcome { version, pid });
        writer.send(&welcome, &[]).unwrap();
        serve(&mut reader, &writer);
    }
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
        |reader, writer| answer(reader, writer, Reply::Again),
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
    assert!(
        matches!(error, ClientError::Wire(WireError::Closed)),
        "{error:?}"
    );
    agent.join().unwrap();
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
    };
    let error = control.alias(&"x".repeat(MAX_PAYLOAD as usize), "y");
    assert!(matches!(error, Err(ClientError::TooLong(_))), "{error:?}");
}
