//! The handshake of a session, with the key pairs of both hosts.
//!
//! ```text
//!   connecting side                                  accepting side
//!      opening:      e                          ──>
//!                    e, ee, s, es, proof        <──   opening, and 80 bytes more
//!      96 bytes:     s, se, proof               ──>
//! ```
//!
//! The pattern is Noise `XX`: a host that joins does not know the leader's key yet, as `IK` would
//! need. Both sides learn the other's public key, and prove that they have its private key; each
//! session has keys of its own, which neither reveals later. A *proof* shows in addition that its
//! sender has the pre-shared key: a code (HMAC) of its public key and of the handshake before. A
//! proof is of use only with the private key of its sender, in this handshake. The caller decides
//! which keys and proofs are enough.
//!
//! A side that repeats, alters or cuts recorded bytes fails before its third message is complete,
//! which has a fixed length and a deadline.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use snow::{Builder, HandshakeState};
use toroid_model::host_key::PublicKey;

use super::SessionError;
use super::key_pair::KeyPair;
use super::opening::{Kind, Opening, PREAMBLE, PROOF, VERSIONS, Word};
use super::secret::{KEY, Secret, blake2s};
use super::secure::{HANDSHAKE, Session, read_answer, read_until, refuse};

const PATTERN: &str = "Noise_XX_25519_ChaChaPoly_BLAKE2s";

/// Bytes that encryption adds.
const TAG: usize = 16;

/// Bytes of a proof.
const MAC: usize = 32;

/// Bytes of the three messages.
const FIRST: usize = KEY;
const SECOND: usize = KEY + (KEY + TAG) + (MAC + TAG);
const THIRD: usize = (KEY + TAG) + (MAC + TAG);

/// The other side of a session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    /// Its public key. It has the private one.
    pub(crate) key: PublicKey,
    /// Whether it has the pre-shared key of this host.
    pub(crate) has_secret: bool,
}

/// Opens a session, as the connecting side, in at most `time`.
///
/// # Errors
/// [`SessionError`].
pub(crate) fn connect(
    stream: TcpStream,
    ours: &KeyPair,
    secret: &Secret,
    time: Duration,
) -> Result<Session, SessionError> {
    let mut opening = Opening::new(Kind::Session, [0; PROOF]);
    let begin = opening.preamble();
    let handshake = builder(&begin, ours)?.build_initiator();
    let mut handshake = handshake.map_err(|_| SessionError::Altered)?;
    let written = handshake.write_message(&[], &mut opening.proof);
    written.map_err(|_| SessionError::Altered)?;
    let deadline = Instant::now() + time;
    (&stream).write_all(&opening.bytes())?;
    let answer = read_answer(&stream, deadline)?;
    let version = answer.agreed().ok_or(SessionError::Version {
        ours: VERSIONS,
        theirs: answer.versions,
    })?;
    let mut second = [0; SECOND];
    second[..PROOF].copy_from_slice(&answer.proof);
    read_until(&stream, &mut second[PROOF..], deadline)?;
    let transcript = Transcript::of(&handshake);
    let peer = understand(&mut handshake, &second, &transcript, secret)?;
    let proof = Transcript::of(&handshake).proof(secret, &ours.public());
    let mut third = [0; THIRD];
    let written = handshake.write_message(&proof, &mut third);
    written.map_err(|_| SessionError::Altered)?;
    (&stream).write_all(&third)?;
    Session::new(Arc::new(stream), handshake, version, peer)
}

/// A session whose connecting side has not proven its key yet. The opening may be a repetition.
#[derive(Debug)]
pub(crate) struct Unproven {
    pub(crate) stream: Arc<TcpStream>,
    handshake: HandshakeState,
    version: u8,
    deadline: Instant,
}

/// Answers an opening, as the accepting side. [`Unproven::prove`] follows.
///
/// # Errors
/// [`SessionError`]; the other side has got the reason.
pub(crate) fn answer(
    stream: TcpStream,
    opening: &Opening<Kind>,
    ours: &KeyPair,
    secret: &Secret,
) -> Result<Unproven, SessionError> {
    let Some(version) = opening.agreed() else {
        refuse(&stream, Word::Version);
        return Err(SessionError::Version {
            ours: VERSIONS,
            theirs: opening.versions,
        });
    };
    let begin = opening.preamble();
    let handshake = builder(&begin, ours)?.build_responder();
    let mut handshake = handshake.map_err(|_| SessionError::Altered)?;
    let understood = handshake.read_message(&opening.proof[..FIRST], &mut [0; PROOF]);
    understood.map_err(|_| SessionError::Altered)?;
    let proof = Transcript::of(&handshake).proof(secret, &ours.public());
    let mut second = [0; SECOND];
    let written = handshake.write_message(&proof, &mut second);
    written.map_err(|_| SessionError::Altered)?;
    let mut begin = [0; PROOF];
    begin.copy_from_slice(&second[..PROOF]);
    let welcome = Opening::new(Word::Welcome, begin).bytes();
    (&stream).write_all(&[&welcome, &second[PROOF..]].concat())?;
    Ok(Unproven {
        stream: Arc::new(stream),
        handshake,
        version,
        deadline: Instant::now() + HANDSHAKE,
    })
}

impl Unproven {
    /// Waits for the third message.
    ///
    /// # Errors
    /// [`SessionError`].
    pub(crate) fn prove(mut self, secret: &Secret) -> Result<Session, SessionError> {
        let mut third = [0; THIRD];
        read_until(&self.stream, &mut third, self.deadline)?;
        let transcript = Transcript::of(&self.handshake);
        let peer = understand(&mut self.handshake, &third, &transcript, secret)?;
        Session::new(self.stream, self.handshake, self.version, peer)
    }
}

/// Reads the message with the other side's key.
fn understand(
    handshake: &mut HandshakeState,
    message: &[u8],
    before: &Transcript,
    secret: &Secret,
) -> Result<Peer, SessionError> {
    let mut proof = [0; SECOND];
    let understood = handshake.read_message(message, &mut proof);
    understood.map_err(|_| SessionError::Unproven)?;
    let mut key = [0; KEY];
    let theirs = handshake.get_remote_static().unwrap_or_default();
    key.copy_from_slice(theirs.get(..KEY).ok_or(SessionError::Unproven)?);
    let key = PublicKey(key);
    Ok(Peer {
        key,
        has_secret: is_equal(&before.proof(secret, &key), &proof[..MAC]),
    })
}

/// Digest of all messages so far.
struct Transcript([u8; MAC]);

impl Transcript {
    fn of(handshake: &HandshakeState) -> Self {
        let mut digest = [0; MAC];
        digest.copy_from_slice(&handshake.get_handshake_hash()[..MAC]);
        Transcript(digest)
    }

    /// Proof that the host with this key has the pre-shared key.
    fn proof(&self, secret: &Secret, key: &PublicKey) -> [u8; MAC] {
        let mut proof = [0; MAC];
        let text = [&b"toroid host"[..], &self.0, &key.0].concat();
        blake2s().hmac(secret.bytes(), &text, &mut proof);
        proof
    }
}

/// Compares in a time that does not depend on the bytes.
fn is_equal(ours: &[u8; MAC], theirs: &[u8]) -> bool {
    let differences = ours.iter().zip(theirs).map(|(a, b)| a ^ b);
    differences.fold(0, |all, one| all | one) == 0
}

fn builder<'a>(begin: &'a [u8; PREAMBLE], ours: &'a KeyPair) -> Result<Builder<'a>, SessionError> {
    let impossible = |_| SessionError::Altered;
    let builder = Builder::new(PATTERN.parse().map_err(impossible)?);
    builder
        .local_private_key(ours.private())
        .and_then(|builder| builder.prologue(begin))
        .map_err(impossible)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::Read;
    use std::net::{Shutdown, TcpListener};
    use std::thread;

    use super::*;
    use crate::channel::opening::OPENING;

    pub(crate) fn sockets() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (ours, listener.accept().unwrap().0)
    }

    fn pairs() -> [KeyPair; 2] {
        [KeyPair::of([1; KEY]), KeyPair::of([2; KEY])]
    }

    fn read<const N: usize>(stream: &TcpStream) -> [u8; N] {
        let mut bytes = [0; N];
        (&mut &*stream).read_exact(&mut bytes).unwrap();
        bytes
    }

    fn accept(stream: TcpStream, opening: &[u8; OPENING]) -> Result<Session, SessionError> {
        let opening = Opening::parse(opening).ok_or(SessionError::NoAgent)?;
        let [_, ours] = pairs();
        answer(stream, &opening, &ours, &Secret::of(1))?.prove(&Secret::of(1))
    }

    /// Results of both sides of a session with these pre-shared keys.
    pub(crate) fn meet(ours: u8, theirs: u8) -> [Result<Session, SessionError>; 2] {
        let (stream, other) = sockets();
        let [pair, other_pair] = pairs();
        thread::scope(|scope| {
            let connecting =
                scope.spawn(move || connect(stream, &pair, &Secret::of(ours), HANDSHAKE));
            let opening = Opening::parse(&read(&other)).unwrap();
            let secret = Secret::of(theirs);
            let accepted = answer(other, &opening, &other_pair, &secret);
            let accepted = accepted.and_then(|unproven| unproven.prove(&secret));
            [connecting.join().unwrap(), accepted]
        })
    }

    pub(crate) fn secret() -> Secret {
        Secret::of(1)
    }

    /// A session whose connecting side stops after its opening, or goes on.
    pub(crate) fn half_open(is_honest: bool) -> (thread::JoinHandle<()>, Unproven) {
        let (ours, theirs) = sockets();
        let connecting = thread::spawn(move || {
            let [pair, _] = pairs();
            if is_honest {
                drop(connect(ours, &pair, &secret(), HANDSHAKE));
                return;
            }
            let begin = Opening::new(Kind::Session, [7; PROOF]).bytes();
            (&ours).write_all(&begin).unwrap();
            // Until the other side ends.
            let _ = (&ours).read_to_end(&mut Vec::new());
        });
        let opening = Opening::parse(&read(&theirs)).unwrap();
        let unproven = answer(theirs, &opening, &pairs()[1], &secret()).unwrap();
        (connecting, unproven)
    }

    #[test]
    fn both_sides_learn_the_others_key_and_whether_it_has_the_pre_shared_key() {
        for (theirs, has_secret) in [(1, true), (2, false)] {
            let [a, b] = meet(1, theirs).map(Result::unwrap);
            let [ours, others] = pairs();
            assert_eq!(a.peer.key, others.public());
            assert_eq!(b.peer.key, ours.public());
            assert_eq!(
                [a.peer, b.peer].map(|peer| peer.has_secret),
                [has_secret; 2]
            );
        }
    }

    /// A side that sends a byte now and then has no more time.
    #[test]
    fn the_proof_of_a_key_has_a_deadline() {
        let (thief, mut unproven) = half_open(false);
        unproven.deadline = Instant::now();
        let late = unproven.prove(&secret()).unwrap_err();
        assert!(
            matches!(&late, SessionError::Io(e) if e.kind() == std::io::ErrorKind::TimedOut),
            "{late}"
        );
        thief.join().unwrap();
    }

    #[test]
    fn another_version_is_refused_with_the_reason_on_both_sides() {
        let (ours, other) = sockets();
        let other_version = Opening {
            versions: (200, 201),
            ..Opening::new(Kind::Session, [0; PROOF])
        };
        let [pair, _] = pairs();
        let error = answer(other, &other_version, &pair, &Secret::of(1)).unwrap_err();
        assert!(error.to_string().contains("200 to 201"), "{error}");
        let answer = read_answer(&ours, Instant::now() + HANDSHAKE).unwrap_err();
        assert!(matches!(answer, SessionError::Version { .. }), "{answer}");
    }

    #[test]
    fn another_protocol_is_reported_as_no_agent() {
        let (ours, mut other) = sockets();
        other.write_all(&[b'H'; OPENING]).unwrap();
        let error = connect(ours, &pairs()[0], &Secret::of(1), HANDSHAKE).unwrap_err();
        assert!(matches!(error, SessionError::NoAgent), "{error}");
    }

    /// Bytes of a whole handshake: opening, answer, third message.
    fn record() -> ([u8; OPENING], Vec<u8>, [u8; THIRD]) {
        let (ours, relay) = sockets();
        let (other, theirs) = sockets();
        thread::scope(|scope| {
            let connecting =
                scope.spawn(move || connect(ours, &pairs()[0], &Secret::of(1), HANDSHAKE));
            let opening: [u8; OPENING] = read(&relay);
            let accepting = scope.spawn(move || accept(theirs, &opening));
            let answer: [u8; OPENING + SECOND - PROOF] = read(&other);
            (&relay).write_all(&answer).unwrap();
            let third: [u8; THIRD] = read(&relay);
            (&other).write_all(&third).unwrap();
            connecting.join().unwrap().unwrap();
            accepting.join().unwrap().unwrap();
            (opening, answer.to_vec(), third)
        })
    }

    /// Result of an accepting side that gets these bytes, and then the end.
    fn offer(opening: [u8; OPENING], third: &[u8]) -> Result<Session, SessionError> {
        let (ours, theirs) = sockets();
        (&ours).write_all(third).unwrap();
        ours.shutdown(Shutdown::Write).unwrap();
        accept(theirs, &opening)
    }

    #[test]
    fn repeated_and_cut_messages_give_no_session() {
        let (opening, answer, third) = record();
        let repeated = offer(opening, &third).unwrap_err();
        assert!(matches!(repeated, SessionError::Unproven), "{repeated}");
        for length in [0, 1, KEY, THIRD - 1] {
            let cut = offer(opening, &third[..length]).unwrap_err();
            assert!(matches!(cut, SessionError::Closed), "{length}: {cut}");
        }
        // A recorded answer is none to a fresh opening.
        for length in [answer.len(), answer.len() - 1, OPENING] {
            let (ours, relay) = sockets();
            (&relay).write_all(&answer[..length]).unwrap();
            relay.shutdown(Shutdown::Write).unwrap();
            let error = connect(ours, &pairs()[0], &Secret::of(1), HANDSHAKE).unwrap_err();
            let is_cut = matches!(error, SessionError::Closed);
            assert_eq!(is_cut, length < answer.len(), "{error}");
            assert!(is_cut || matches!(error, SessionError::Unproven), "{error}");
        }
    }

    /// Each side of a handshake in which one bit of one message is altered fails.
    #[test]
    fn an_altered_bit_of_any_message_gives_no_session() {
        let bits = |length: usize| (0..length).map(|at| (at, 1_u8 << (at % 8)));
        // The rest of the opening is no part of the message.
        for (at, bit) in bits(OPENING - PROOF + FIRST) {
            through(|message, bytes| {
                if message == 0 {
                    bytes[at] ^= bit;
                }
            });
        }
        for (message, length) in [(1, OPENING + SECOND - PROOF), (2, THIRD)] {
            // Bytes of the answer before its proof are the version, which `Hello` repeats.
            let first = if message == 1 { OPENING - PROOF } else { 0 };
            for (at, bit) in bits(length).skip(first) {
                through(|which, bytes| {
                    if which == message {
                        bytes[at] ^= bit;
                    }
                });
            }
        }
    }

    /// Relays a handshake in which `alter` changes a message, and checks that the accepting side
    /// has no session.
    fn through(alter: impl Fn(usize, &mut [u8])) {
        let (ours, relay) = sockets();
        let (other, theirs) = sockets();
        thread::scope(|scope| {
            let connecting =
                scope.spawn(move || connect(ours, &pairs()[0], &Secret::of(1), HANDSHAKE));
            let mut opening: [u8; OPENING] = read(&relay);
            alter(0, &mut opening);
            let accepting = scope.spawn(move || accept(theirs, &opening));
            let mut answer = [0; OPENING + SECOND - PROOF];
            if (&other).read_exact(&mut answer).is_ok() {
                alter(1, &mut answer);
                (&relay).write_all(&answer).unwrap();
                let mut third = [0; THIRD];
                if (&relay).read_exact(&mut third).is_ok() {
                    alter(2, &mut third);
                    // The other side may have ended already.
                    let _ = (&other).write_all(&third);
                }
            }
            drop((other, relay));
            // The connecting side cannot know whether its last message arrived.
            let _ = connecting.join().unwrap();
            accepting.join().unwrap().unwrap_err();
        });
    }
}
