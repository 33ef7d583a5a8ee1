use std::io::{Read as _, Write};
use std::os::fd::AsFd;

use super::*;

fn pair() -> (Writer, Reader, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let raw = ours.try_clone().unwrap();
    let (_, writer) = split(ours).unwrap();
    (writer, split(theirs).unwrap().0, raw)
}

#[test]
fn messages_keep_their_order_and_descriptors() {
    let (writer, mut reader, _raw) = pair();
    let file = tempfile::tempfile().unwrap();
    writer.send(&"first", &[]).unwrap();
    writer
        .send(&"second", &[file.as_fd(), file.as_fd()])
        .unwrap();
    writer.send(&"third", &[file.as_fd()]).unwrap();
    for (text, count) in [("first", 0), ("second", 2), ("third", 1)] {
        let (message, descriptors) = reader.receive::<String>().unwrap();
        assert_eq!((message.as_str(), descriptors.len()), (text, count));
    }
}

#[test]
fn a_reader_without_descriptors_gets_none() {
    let (writer, mut reader, _raw) = pair();
    reader.take_no_descriptors();
    let (ours, theirs) = UnixStream::pair().unwrap();
    writer.send(&"without", &[]).unwrap();
    assert_eq!(reader.receive::<String>().unwrap().0, "without");
    writer.send(&"with", &[theirs.as_fd()]).unwrap();
    let error = reader.receive::<String>().unwrap_err();
    assert!(matches!(error, WireError::Malformed(_)), "{error}");
    // The kernel has dropped it: that was the last one.
    drop(theirs);
    assert_eq!((&ours).read(&mut [0]).unwrap(), 0);
}

#[test]
fn a_message_larger_than_any_socket_buffer_arrives_whole() {
    let (writer, mut reader, _raw) = pair();
    let long = "x".repeat(5 << 20);
    std::thread::scope(|scope| {
        scope.spawn(|| writer.send(&long, &[]).unwrap());
        assert_eq!(reader.receive::<String>().unwrap().0, long);
    });
}

#[test]
fn only_a_reader_of_long_replies_takes_them() {
    let long = "x".repeat(MAX_PAYLOAD as usize + 1);
    for takes_long in [true, false] {
        let (mut writer, mut reader, _raw) = pair();
        let error = writer.send(&long, &[]).unwrap_err();
        assert!(matches!(error, WireError::Malformed(_)), "{error}");
        writer.send_long();
        if takes_long {
            reader.take_long();
        }
        std::thread::scope(|scope| {
            // The other side may end the connection.
            scope.spawn(|| writer.send(&long, &[]));
            let received = reader.receive::<String>();
            drop(reader);
            assert_eq!(received.is_ok(), takes_long);
        });
    }
}

#[test]
fn nonsense_and_broken_messages_are_errors() {
    let bad: [&[u8]; 4] = [
        &[0xff; 8],                            // over every limit
        &[2, 0, 0, 0, 0, 0, 0, 1, b'"', b'"'], // reserved bytes are not zero
        &[2, 0, 0, 0, 1, 0, 0, 0, b'"', b'"'], // a descriptor is missing
        &[2, 0, 0, 0, 0, 0, 0, 0, b'{', b'"'], // no JSON
    ];
    for bytes in bad {
        let (_, mut reader, mut raw) = pair();
        raw.write_all(bytes).unwrap();
        let error = reader.receive::<String>().unwrap_err();
        assert!(
            matches!(error, WireError::Malformed(_)),
            "{bytes:?}: {error}"
        );
    }
    let (writer, mut reader, mut raw) = pair();
    raw.write_all(&[9, 0, 0]).unwrap();
    writer.shut_down();
    assert!(matches!(reader.receive::<String>(), Err(WireError::Io(_))));
    assert!(matches!(writer.send(&1, &[]), Err(WireError::Closed)));
}

/// A few hundred bytes once overflowed the stack of the thread that read them.
#[test]
fn deeply_nested_messages_are_refused() {
    let frame = |json: &str| {
        let len = (json.len() as u32).to_le_bytes();
        [&len[..], &[0; 4], json.as_bytes()].concat()
    };
    let nested = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
    let flat = format!("[{}\"[[[[[[[[[[[[[[[[[[\\\"[\"]", "[[]],".repeat(100));
    for json in [nested(16), flat] {
        let (_, mut reader, mut raw) = pair();
        raw.write_all(&frame(&json)).unwrap();
        reader.receive::<serde_json::Value>().unwrap();
    }
    let (_, mut reader, mut raw) = pair();
    raw.write_all(&frame(&nested(17))).unwrap();
    let error = reader.receive::<serde_json::Value>().unwrap_err();
    assert!(error.to_string().contains("16 levels"), "{error}");
}

#[test]
fn an_unauthenticated_peer_has_a_size_limit_and_one_deadline() {
    let (writer, mut reader, _raw) = pair();
    writer.send(&"hello", &[]).unwrap();
    writer.send(&"x".repeat(2000), &[]).unwrap();
    let soon = || Instant::now() + Duration::from_millis(20);
    let later = Instant::now() + Duration::from_secs(60);
    let (hello, _) = reader.receive_first::<String>(100, later).unwrap();
    assert_eq!(hello, "hello");
    assert_eq!(reader.receive::<String>().unwrap().0.len(), 2000);
    writer.send(&"x".repeat(2000), &[]).unwrap();
    let error = reader.receive_first::<String>(100, later).unwrap_err();
    assert!(matches!(error, WireError::Malformed(_)), "{error}");

    let (_, mut reader, mut raw) = pair();
    raw.write_all(&[9, 0]).unwrap();
    let error = reader.receive_first::<String>(100, soon()).unwrap_err();
    assert!(matches!(error, WireError::Io(_)), "{error}");
}

#[test]
fn sending_to_a_slow_reader_times_out() {
    use std::io::Read;
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let (_, writer) = split(ours).unwrap();
    writer.give_up_after(Duration::from_millis(50)).unwrap();
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| writer.send(&"x".repeat(15 << 20), &[]));
        let mut drop = [0; 4096];
        while !sending.is_finished() && theirs.read(&mut drop).is_ok_and(|n| n > 0) {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(sending.join().unwrap().is_err());
    });
}

#[test]
fn sending_to_a_peer_that_does_not_read_times_out() {
    let (writer, _reader, _raw) = pair();
    writer.give_up_after(Duration::from_millis(20)).unwrap();
    assert!(writer.send(&"x".repeat(5 << 20), &[]).is_err());
    assert!(matches!(writer.send(&1, &[]), Err(WireError::Closed)));
}
