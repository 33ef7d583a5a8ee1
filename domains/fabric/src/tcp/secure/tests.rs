//! Records that are whole, and records that something on the way has touched.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn keys(cipher: Cipher) -> Keys {
    Keys {
        cipher,
        send: [1; KEY],
        receive: [2; KEY],
    }
}

/// Both ends of one direction.
fn ends(cipher: Cipher) -> (Sealing, Incoming) {
    let ours = keys(cipher);
    let theirs = ours.mirrored();
    (Sealing::new(&ours), Incoming::new(ROOM, Some(&theirs)))
}

const ROOM: usize = 1 << 20;

/// Records of these texts, one each.
fn records(sealing: &mut Sealing, texts: &[&[u8]]) -> Vec<Vec<u8>> {
    let seal = |text: &&[u8]| {
        let mut record = Vec::new();
        sealing.write(text);
        let all = sealing.flush(|bytes| {
            record.extend_from_slice(bytes);
            Ok(bytes.len())
        });
        assert!(all.unwrap());
        record
    };
    texts.iter().map(seal).collect()
}

fn receive(incoming: &mut Incoming, bytes: &[u8]) -> Result<usize, RecordError> {
    incoming.place()[..bytes.len()].copy_from_slice(bytes);
    incoming.received(bytes.len())
}

#[test]
fn texts_of_any_length_arrive_in_pieces_of_any_size() {
    for cipher in Cipher::ALL {
        for step in [1, 7, 4096, usize::MAX] {
            let (mut sealing, mut incoming) = ends(cipher);
            let text: Vec<u8> = (0..3 * MAX_TEXT + 5).map(|n| (n * 7) as u8).collect();
            let mut sent = Vec::new();
            for part in text.chunks(MAX_TEXT / 3 + 1) {
                sealing.write(part);
            }
            let take = |bytes: &[u8]| {
                let count = bytes.len().min(step);
                sent.extend_from_slice(&bytes[..count]);
                Ok(count)
            };
            assert!(sealing.flush(take).unwrap());
            assert!(!sent.windows(16).any(|window| text.starts_with(window)));
            let mut heard = Vec::new();
            for part in sent.chunks(step.min(sent.len())) {
                receive(&mut incoming, part).unwrap();
                let count = incoming.text().len() / 2;
                heard.extend_from_slice(incoming.take(count));
            }
            heard.extend_from_slice(incoming.text());
            assert!(heard == text, "{cipher}, by {step}");
            incoming.check_end().unwrap();
        }
    }
}

#[test]
fn a_record_that_was_altered_repeated_reordered_or_left_out_does_not_open() {
    for cipher in Cipher::ALL {
        let (mut sealing, _) = ends(cipher);
        let sent = records(&mut sealing, &[b"first", b"second", b"third"]);
        let [first, second, third] = &sent[..] else {
            panic!("there are three");
        };
        let bad = |parts: &[&[u8]]| {
            let mut incoming = ends(cipher).1;
            receive(&mut incoming, &parts.concat())
        };
        assert_eq!(bad(&[first, second, third]), Ok(16));
        for at in 2..first.len() {
            for bit in [1, 0x80] {
                let mut altered = first.clone();
                altered[at] ^= bit;
                assert_eq!(bad(&[&altered]), Err(RecordError::Altered), "byte {at}");
            }
        }
        assert_eq!(bad(&[first, first]), Err(RecordError::Altered));
        assert_eq!(bad(&[second, first]), Err(RecordError::Altered));
        assert_eq!(bad(&[first, third]), Err(RecordError::Altered));
        // No later record opens.
        let mut altered = first.clone();
        altered[first.len() - 1] ^= 1;
        let mut incoming = ends(cipher).1;
        for record in [&altered, second] {
            assert_eq!(receive(&mut incoming, record), Err(RecordError::Altered));
        }
        assert_eq!(incoming.text(), b"");
        // A record of the other direction comes back.
        let mut mirrored = Sealing::new(&keys(cipher).mirrored());
        let other = records(&mut mirrored, &[b"first"]);
        assert_eq!(bad(&[&other[0]]), Err(RecordError::Altered));
        // Without the check of the length, the texts before would be lost, too.
        let mut incoming = ends(cipher).1;
        receive(&mut incoming, &[&first[..], &[0, 0]].concat()).unwrap_err();
        assert_eq!(incoming.text(), b"first");
    }
}

#[test]
fn lengths_of_no_record_are_refused() {
    for length in [0, 1, 16, MAX_RECORD - 1, usize::from(u16::MAX)] {
        let (_, mut incoming) = ends(Cipher::AesGcm);
        let bytes = (length as u16).to_le_bytes();
        let error = receive(&mut incoming, &bytes).unwrap_err();
        assert_eq!(error, RecordError::Length(length));
    }
    let (_, mut incoming) = ends(Cipher::AesGcm);
    let longest = (MAX_RECORD - 2) as u16;
    assert_eq!(receive(&mut incoming, &longest.to_le_bytes()), Ok(0));
}

#[test]
fn an_end_within_a_record_is_noticed() {
    let (mut sealing, _) = ends(Cipher::ChaChaPoly);
    let record = records(&mut sealing, &[b"text"]).concat();
    for len in 0..=record.len() {
        let (_, mut incoming) = ends(Cipher::ChaChaPoly);
        receive(&mut incoming, &record[..len]).unwrap();
        let is_whole = [0, record.len()].contains(&len);
        let expected = if is_whole {
            Ok(())
        } else {
            Err(RecordError::Cut)
        };
        assert_eq!(incoming.check_end(), expected, "{len} bytes");
    }
}

#[test]
fn other_keys_and_ciphers_open_nothing() {
    let mut sealing = Sealing::new(&keys(Cipher::AesGcm));
    let record = records(&mut sealing, &[b"text"]).concat();
    let other_key = Keys {
        receive: [3; KEY],
        ..keys(Cipher::AesGcm)
    };
    for keys in [other_key, keys(Cipher::ChaChaPoly).mirrored()] {
        let mut incoming = Incoming::new(ROOM, Some(&keys));
        let error = receive(&mut incoming, &record).unwrap_err();
        assert_eq!(error, RecordError::Altered, "{keys:?}");
    }
    assert_eq!(Cipher::from_code(0), None);
    assert_eq!(Cipher::from_code(b'x'), None);
    for cipher in Cipher::ALL {
        assert_eq!(Cipher::from_code(cipher.code()), Some(cipher));
    }
}

#[test]
fn both_sides_change_the_key_at_the_same_record() {
    for cipher in Cipher::ALL {
        let (mut sealing, mut incoming) = ends(cipher);
        let last = RECORDS_PER_KEY - 1;
        sealing.sealer().skip_to(last);
        incoming.opener().skip_to(last);
        let sent = records(&mut sealing, &[b"old", b"new", b"newer"]);
        for (record, text) in sent.iter().zip([b"old".as_slice(), b"new", b"newer"]) {
            receive(&mut incoming, record).unwrap();
            assert_eq!(incoming.take(text.len()), text);
        }
        // The record behind the change does not open with the key before it.
        let mut lagging = ends(cipher).1;
        lagging.opener().skip_to(RECORDS_PER_KEY + 1);
        let error = receive(&mut lagging, &sent[2]).unwrap_err();
        assert_eq!(error, RecordError::Altered);
    }
}

#[test]
fn keys_are_not_shown() {
    let shown = format!("{:?} {:?}", keys(Cipher::AesGcm), ends(Cipher::AesGcm));
    assert!(!shown.contains("[1,") && !shown.contains("1, 1"), "{shown}");
}

/// What something on the way does to a stream of records.
#[derive(Clone, Debug)]
enum Harm {
    Flip { at: usize, bits: u8 },
    Insert { at: usize, bytes: Vec<u8> },
    Remove { at: usize, count: usize },
}

fn harm() -> impl Strategy<Value = Harm> {
    let at = || any::<prop::sample::Index>().prop_map(|index| index.index(1 << 20));
    prop_oneof![
        (at(), 1u8..).prop_map(|(at, bits)| Harm::Flip { at, bits }),
        (at(), vec(any::<u8>(), 1..60)).prop_map(|(at, bytes)| Harm::Insert { at, bytes }),
        (at(), 1usize..60).prop_map(|(at, count)| Harm::Remove { at, count }),
    ]
}

proptest! {
    /// Texts arrive up to the first byte that was touched, and nothing else ever does.
    #[test]
    fn a_reader_gets_a_prefix_of_what_was_sent(
        texts in vec(vec(any::<u8>(), 1..400), 1..8),
        harms in vec(harm(), 0..3),
        step in 1usize..700,
        is_aes: bool,
    ) {
        let (mut sealing, mut incoming) = ends(Cipher::ALL[usize::from(is_aes)]);
        let all: Vec<&[u8]> = texts.iter().map(Vec::as_slice).collect();
        let sent = records(&mut sealing, &all).concat();
        let mut bytes = sent.clone();
        for harm in harms {
            let len = bytes.len().max(1);
            match harm {
                Harm::Flip { at, bits } if !bytes.is_empty() => bytes[at % len] ^= bits,
                Harm::Flip { .. } => {}
                Harm::Insert { at, bytes: more } => {
                    let at = at % len;
                    bytes.splice(at..at, more);
                }
                Harm::Remove { at, count } => {
                    let at = at % len;
                    let end = bytes.len().min(at + count);
                    bytes.drain(at..end);
                }
            }
        }
        let mut failed = false;
        for part in bytes.chunks(step) {
            if receive(&mut incoming, part).is_err() {
                failed = true;
                break;
            }
        }
        let sound = texts.concat();
        prop_assert!(sound.starts_with(incoming.text()));
        let is_complete = incoming.text() == sound && incoming.check_end().is_ok() && !failed;
        prop_assert_eq!(is_complete, bytes == sent);
    }

    /// A reader of any bytes neither panics nor gets any text.
    #[test]
    fn any_bytes_give_no_text(bytes in vec(any::<u8>(), 0..2000), step in 1usize..300) {
        let (_, mut incoming) = ends(Cipher::AesGcm);
        for part in bytes.chunks(step) {
            if receive(&mut incoming, part).is_err() {
                break;
            }
        }
        prop_assert!(incoming.text().is_empty());
    }
}
