//! Round trips of messages, and refusals of malformed ones.

use super::*;
use crate::protocol::change::Mode;
use crate::protocol::layout::{MAX_KEY, Slot, SlotWord};
use proptest::prelude::*;

fn location() -> Location {
    Location {
        slot: Slot(1),
        word: SlotWord(2 << 40),
        generation: 3 << 40,
        len: 4,
    }
}

fn requests() -> Vec<Request<'static>> {
    let key = &b"key"[..];
    let room = Piece {
        offset: 1 << 33,
        len: 9,
    };
    let store = |mode, value| Request::Store {
        change: Change {
            mode,
            flags: 7,
            exptime: -1,
            cas: 1 << 60,
            ..Change::set(key, false)
        },
        value,
    };
    vec![
        Request::Hello { version: 1 },
        Request::Stage {
            key: RemoteKey::from_bytes(&[9; 32]),
        },
        store(Mode::Set, SetValue::Staged(room)),
        store(Mode::Compare, SetValue::Staged(room)),
        Request::Delete { key },
        Request::Count {
            key,
            delta: Delta::Add(u64::MAX),
        },
        Request::Count {
            key,
            delta: Delta::Subtract(2),
        },
        Request::Touch { key, exptime: 1 },
        Request::Flush { delay: -3 },
        Request::Borrow {
            hazards: RemoteKey::from_bytes(&[8; 32]),
        },
        Request::Get {
            key: &[b'k'; MAX_KEY],
            touch: None,
            room,
        },
        Request::Get {
            key,
            touch: Some(-1),
            room: Piece::default(),
        },
        Request::Leave { session: 5 },
        Request::Text {
            session: 5,
            text: b"get a\r\n",
        },
        store(Mode::Prepend, SetValue::Inline(b"value")),
    ]
}

fn replies() -> Vec<Reply<'static>> {
    let geometry = Geometry {
        index: RemoteKey::from_bytes(&[1; 32]),
        items: RemoteKey::from_bytes(&[2; 32]),
        seed: 3,
        boot_id: 4,
        max_item: 5,
    };
    let (flags, cas, location) = (6, 1 << 50, location());
    let value = |value| Reply::Value {
        flags,
        cas,
        location,
        value,
    };
    vec![
        Reply::Welcome(geometry),
        Reply::Done,
        Reply::Stored(Stored::Stored { location, cas }),
        Reply::Stored(Stored::NotStored),
        Reply::Stored(Stored::Exists),
        Reply::Stored(Stored::NotFound),
        Reply::Missing,
        value(GetValue::Staged { len: 8 }),
        Reply::Counted {
            value: u64::MAX,
            location,
        },
        Reply::Refused(Refusal::Staging),
        Reply::Refused(Refusal::Forbidden),
        Reply::Said {
            awaiting: Awaiting::Bytes(1 << 33),
            text: b"END\r\n",
        },
        Reply::Said {
            awaiting: Awaiting::End,
            text: b"",
        },
        value(GetValue::Inline(b"")),
    ]
}

/// The only message of a packet.
fn only(packet: &[u8]) -> &[u8] {
    let mut rest = packet;
    let message = split_message(&mut rest).unwrap();
    assert_eq!(rest, b"");
    message
}

#[test]
fn messages_round_trip_and_truncated_ones_are_refused() {
    for request in requests() {
        let mut packet = Vec::new();
        encode_request(&mut packet, 77, &request);
        let message = only(&packet);
        assert_eq!(decode_request(message), Ok((77, request)));
        // A message that ends in a value does not reveal a missing tail.
        if !matches!(
            request,
            Request::Text { .. }
                | Request::Store {
                    value: SetValue::Inline(_),
                    ..
                }
        ) {
            assert!((0..message.len()).all(|len| decode_request(&message[..len]).is_err()));
            let longer = [message, &[0]].concat();
            assert_eq!(decode_request(&longer), Err(Malformed));
        }
    }
    for reply in replies() {
        let mut packet = Vec::new();
        encode_reply(&mut packet, 78, &reply);
        assert_eq!(decode_reply(only(&packet)), Ok((78, reply)));
    }
}

#[test]
fn a_packet_holds_several_messages() {
    let mut packet = Vec::new();
    let replies = replies();
    for (number, reply) in replies.iter().enumerate() {
        encode_reply(&mut packet, number as u32, reply);
    }
    let start = packet.len();
    encode_reply(&mut packet, 99, &replies[replies.len() - 1]);
    lengthen(&mut packet, start, 5).copy_from_slice(b"value");
    let mut rest = &packet[..];
    for (number, reply) in replies.into_iter().enumerate() {
        let message = split_message(&mut rest).unwrap();
        assert_eq!(decode_reply(message), Ok((number as u32, reply)));
    }
    let last = rest;
    let (99, Reply::Value { value, .. }) = decode_reply(only(last)).unwrap() else {
        panic!("another message");
    };
    assert_eq!(value, GetValue::Inline(b"value"));
    for len in 0..last.len() {
        assert_eq!(split_message(&mut &last[..len]), Err(Malformed));
    }
}

#[test]
fn invalid_key_lengths_are_refused() {
    for len in [0, MAX_KEY + 1, 255, 300] {
        let mut packet = Vec::new();
        encode_request(
            &mut packet,
            1,
            &Request::Delete {
                key: &vec![b'k'; len],
            },
        );
        assert_eq!(decode_request(only(&packet)), Err(Malformed));
    }
}

proptest! {
    #[test]
    fn decoding_any_bytes_does_not_panic(packet in prop::collection::vec(any::<u8>(), 0..80)) {
        let _ = decode_request(&packet);
        let _ = decode_reply(&packet);
        let mut rest = &packet[..];
        while split_message(&mut rest).is_ok() {}
    }
}
