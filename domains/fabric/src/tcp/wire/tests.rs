//! Every message has one form, and no other bytes are a message.

use proptest::prelude::*;

use super::*;

fn connections() -> impl Strategy<Value = ConnectionParameters> {
    let numbers = (0..1u32 << 24, 0..1u32 << 24, any::<u16>());
    (numbers, 1..=5u8, any::<u8>(), any::<[u8; 16]>()).prop_map(
        |((number, psn, lid), mtu, depth, gid)| ConnectionParameters {
            number,
            psn,
            lid,
            mtu,
            depth,
            gid,
        },
    )
}

fn requests() -> impl Strategy<Value = Request> {
    let (handles, rights) = (0..HANDLES, 0..8u8);
    let numbers = (handles.clone(), any::<u64>(), 0..=CHUNK as u32);
    let transfers =
        (numbers, any::<bool>()).prop_map(|((handle, offset, len), is_linked)| Transfer {
            handle,
            offset,
            len,
            is_linked,
        });
    let atomics = (handles.clone(), any::<[u64; 3]>());
    prop_oneof![
        (handles.clone(), rights, any::<[u8; 32]>()).prop_map(|(handle, rights, key)| {
            let (access, key) = (
                Access::from_bits_truncate(rights),
                RemoteKey::from_bytes(&key),
            );
            Request::Open {
                handle,
                access,
                key,
            }
        }),
        handles.prop_map(|handle| Request::Close { handle }),
        transfers.clone().prop_map(Request::Read),
        transfers.prop_map(Request::Write),
        atomics
            .clone()
            .prop_map(|(handle, [offset, expected, desired])| {
                Request::CompareAndSwap {
                    handle,
                    offset,
                    expected,
                    desired,
                }
            }),
        atomics.prop_map(|(handle, [offset, add, _])| Request::FetchAdd {
            handle,
            offset,
            add
        }),
        connections().prop_map(Request::Connect),
        (0..HANDLES).prop_map(|handle| Request::Register { handle }),
        Just(Request::Disconnect),
    ]
}

fn replies() -> impl Strategy<Value = Reply> {
    let done = (any::<u64>(), 0..=CHUNK as u32);
    prop_oneof![
        done.prop_map(|(value, len)| Reply::Done { value, len }),
        any::<u64>().prop_map(|limit| Reply::Failed(Failure::OutOfBounds { limit })),
        (0..8u8).prop_map(|rights| Reply::Failed(Failure::MissingRight {
            needed: Access::from_bits_truncate(rights)
        })),
        Just(Reply::Skipped),
        any::<i32>().prop_map(|errno| Reply::Failed(Failure::System { errno })),
        Just(Reply::Failed(Failure::Misaligned)),
        Just(Reply::Failed(Failure::WrongKey)),
        Just(Reply::Failed(Failure::Revoked)),
        Just(Reply::Failed(Failure::PeerDead)),
        Just(Reply::Failed(Failure::Unreachable)),
    ]
}

fn frames() -> impl Strategy<Value = Frame> {
    prop_oneof![
        Just(Frame::Packet),
        (1..=u32::MAX).prop_map(|bytes| Frame::Credit { bytes }),
        Just(Frame::End(End::Revoked)),
        Just(Frame::End(End::PeerDead)),
        Just(Frame::Offer),
        Just(Frame::Accept),
        any::<bool>().prop_map(|for_ever| Frame::Decline { for_ever }),
        Just(Frame::ByDevice),
        any::<u32>().prop_map(|arrived| Frame::Back { arrived }),
    ]
}

proptest! {
    #[test]
    fn messages_round_trip(request in requests(), reply in replies(), frame in frames()) {
        prop_assert_eq!(Request::from_bytes(&request.to_bytes()), Ok(request));
        prop_assert_eq!(Reply::from_bytes(&reply.to_bytes()), Ok(reply));
        prop_assert_eq!(Frame::from_bytes(&frame.to_bytes()), Ok(frame));
    }

    #[test]
    fn an_accepted_request_has_one_form(bytes: [u8; Request::LEN], kind in 0..11u8) {
        let mut bytes = bytes;
        bytes[0] = kind;
        if let Ok(request) = Request::from_bytes(&bytes) {
            prop_assert_eq!(request.to_bytes(), bytes);
        }
    }
}

#[test]
fn lengths_and_handles_out_of_range_are_malformed() {
    let read = Request::Read(Transfer {
        handle: 0,
        offset: 0,
        len: CHUNK as u32 + 1,
        is_linked: false,
    });
    assert_eq!(Request::from_bytes(&read.to_bytes()), Err(Malformed));
    let close = Request::Close { handle: HANDLES };
    assert_eq!(Request::from_bytes(&close.to_bytes()), Err(Malformed));
    let done = Reply::Done {
        value: 0,
        len: CHUNK as u32 + 1,
    };
    assert_eq!(Reply::from_bytes(&done.to_bytes()), Err(Malformed));
    let nothing = Frame::Credit { bytes: 0 };
    assert_eq!(Frame::from_bytes(&nothing.to_bytes()), Err(Malformed));
}
