//! Openings of data connections, by tickets.
//!
//! A ticket comes over the session of the two agents. Its first bytes are an identifier, which
//! travels in the clear, and the rest is a secret: the pre-shared key of a handshake `NNpsk0`. Each
//! connection has keys of its own with forward secrecy, and an agent without the secret gets and
//! gives nothing. The connecting side chooses the cipher.
//!
//! With encryption off the ticket itself is presented, and the connection is clear.

use std::io::Write;
use std::net::TcpStream;
use std::time::Instant;

use snow::{Builder, HandshakeState};
use toroid_fabric::tcp::secure::{Cipher, Keys};

use super::SessionError;
use super::opening::{Kind, Opening, PREAMBLE, PROOF, TAG, Word};
use super::secret::KEY;
use super::secure::{HANDSHAKE, read_answer, refuse};

/// Bytes of an identifier.
pub(crate) const ID: usize = TAG - 1;

/// Code of no cipher.
const CLEAR: u8 = 0;

/// Identifier of a ticket.
pub(crate) type TicketId = [u8; ID];

/// A ticket.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticket(pub(crate) [u8; PROOF]);

impl Ticket {
    pub(crate) fn id(&self) -> TicketId {
        let mut id = [0; ID];
        id.copy_from_slice(&self.0[..ID]);
        id
    }

    fn secret(&self) -> [u8; KEY] {
        let mut secret = [0; KEY];
        secret.copy_from_slice(&self.0[PROOF - KEY..]);
        secret
    }
}

/// How a connection presents its ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presented {
    /// The ticket itself: the connection is clear.
    Clear,
    /// A handshake with the ticket's secret.
    Sealed(Cipher),
    /// This release knows no such cipher.
    Unknown,
}

impl Presented {
    /// The form of an opening, and the identifier of its ticket.
    pub(crate) fn of(opening: &Opening<Kind>) -> (Self, TicketId) {
        let [code, tagged @ ..] = opening.tag;
        match (code, Cipher::from_code(code)) {
            (CLEAR, _) => (Presented::Clear, Ticket(opening.proof).id()),
            (_, Some(cipher)) => (Presented::Sealed(cipher), tagged),
            (_, None) => (Presented::Unknown, tagged),
        }
    }
}

/// Presents a ticket. Afterwards the connection carries a provider's protocol, sealed with the
/// returned keys; without a cipher there are none.
///
/// # Errors
/// [`SessionError`].
pub(crate) fn present(
    stream: &TcpStream,
    ticket: Ticket,
    cipher: Option<Cipher>,
) -> Result<Option<Keys>, SessionError> {
    let deadline = Instant::now() + HANDSHAKE;
    let mut to = stream;
    let keys = match cipher {
        None => {
            to.write_all(&Opening::new(Kind::Data, ticket.0).bytes())?;
            read_answer(stream, deadline)?;
            None
        }
        Some(cipher) => {
            let mut tag = [cipher.code(); TAG];
            tag[1..].copy_from_slice(&ticket.id());
            let mut opening = Opening::tagged(Kind::Data, tag, [0; PROOF]);
            let (secret, begin) = (ticket.secret(), opening.preamble());
            let handshake = builder(&pattern(cipher), &secret, &begin)?.build_initiator();
            let mut handshake = handshake.map_err(|_| SessionError::Cipher)?;
            let written = handshake.write_message(&[], &mut opening.proof);
            written.map_err(|_| SessionError::Cipher)?;
            to.write_all(&opening.bytes())?;
            let answer = read_answer(stream, deadline)?;
            let understood = handshake.read_message(&answer.proof, &mut [0; PROOF]);
            understood.map_err(|_| SessionError::NotTheIssuer)?;
            Some(keys(handshake, cipher))
        }
    };
    // The provider sets its own time limits.
    stream.set_read_timeout(None)?;
    Ok(keys)
}

/// Answers an opening with the proof that this side has issued the ticket.
///
/// # Errors
/// [`SessionError`]; the other side has got the reason.
pub(crate) fn accept(
    stream: &TcpStream,
    opening: &Opening<Kind>,
    ticket: Ticket,
    cipher: Cipher,
) -> Result<Keys, SessionError> {
    let (secret, begin) = (ticket.secret(), opening.preamble());
    let handshake = builder(&pattern(cipher), &secret, &begin)?.build_responder();
    let mut handshake = handshake.map_err(|_| SessionError::Cipher)?;
    let understood = handshake.read_message(&opening.proof, &mut [0; PROOF]);
    if understood.is_err() {
        refuse(stream, Word::BadTicket);
        return Err(SessionError::BadTicket);
    }
    let mut proof = [0; PROOF];
    let written = handshake.write_message(&[], &mut proof);
    written.map_err(|_| SessionError::Cipher)?;
    let mut to = stream;
    to.write_all(&Opening::new(Word::Welcome, proof).bytes())?;
    Ok(keys(handshake, cipher).mirrored())
}

/// A handshake with this secret, whose messages depend on `begin`.
fn builder<'a>(
    pattern: &str,
    secret: &'a [u8; KEY],
    begin: &'a [u8; PREAMBLE],
) -> Result<Builder<'a>, SessionError> {
    let impossible = |_| SessionError::Cipher;
    let builder = Builder::new(pattern.parse().map_err(impossible)?);
    builder
        .psk(0, secret)
        .and_then(|builder| builder.prologue(begin))
        .map_err(impossible)
}

fn pattern(cipher: Cipher) -> String {
    format!("Noise_NNpsk0_25519_{}_BLAKE2s", cipher.noise_name())
}

/// The keys of the connecting side, after the handshake.
fn keys(mut handshake: HandshakeState, cipher: Cipher) -> Keys {
    let (send, receive) = handshake.dangerously_get_raw_split();
    Keys {
        cipher,
        send,
        receive,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;
    use std::thread;

    use super::*;
    use crate::channel::opening::OPENING;

    type Alter = fn(&mut [u8; OPENING]);

    const TICKET: Ticket = Ticket([7; PROOF]);

    fn sockets() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (ours, listener.accept().unwrap().0)
    }

    /// Results of a handshake in which the opening is altered by `alter`.
    fn meet(theirs: Ticket, cipher: Cipher, alter: Alter) -> [Result<Keys, SessionError>; 2] {
        let (ours, other) = sockets();
        thread::scope(|scope| {
            let presenting = scope.spawn(|| present(&ours, TICKET, Some(cipher)));
            let mut bytes = [0; OPENING];
            (&mut &other).read_exact(&mut bytes).unwrap();
            // The secret does not travel.
            let secret = TICKET.secret();
            assert!(!bytes.windows(8).any(|window| secret.starts_with(window)));
            alter(&mut bytes);
            let opening = Opening::parse(&bytes).unwrap();
            let accepted = match Presented::of(&opening) {
                (Presented::Sealed(cipher), _) => accept(&other, &opening, theirs, cipher),
                other => panic!("{other:?}"),
            };
            let presented = presenting.join().unwrap();
            [presented.map(|keys| keys.unwrap()), accepted]
        })
    }

    #[test]
    fn both_sides_get_matching_keys_that_no_other_connection_has() {
        for cipher in [Cipher::AesGcm, Cipher::ChaChaPoly] {
            let [ours, theirs] = meet(TICKET, cipher, |_| {}).map(Result::unwrap);
            assert!(ours == theirs.mirrored() && ours.send != ours.receive);
            assert_eq!(ours.cipher, cipher);
            let [again, _] = meet(TICKET, cipher, |_| {}).map(Result::unwrap);
            assert!(again.send != ours.send && again.receive != ours.receive);
        }
    }

    #[test]
    fn another_secret_or_an_altered_opening_is_refused_on_both_sides() {
        let mut other = TICKET;
        other.0[PROOF - 1] ^= 1;
        let altered: [(Ticket, Alter); 3] = [
            (other, |_| {}),
            (TICKET, |bytes| bytes[OPENING - 1] ^= 1),
            // The other cipher.
            (TICKET, |bytes| bytes[9] = Cipher::ChaChaPoly.code()),
        ];
        for (theirs, alter) in altered {
            for side in meet(theirs, Cipher::AesGcm, alter) {
                let error = side.unwrap_err();
                assert!(matches!(error, SessionError::BadTicket), "{error}");
            }
        }
    }

    #[test]
    fn a_welcome_without_the_secret_is_not_believed() {
        let (ours, other) = sockets();
        thread::scope(|scope| {
            let presenting = scope.spawn(|| present(&ours, TICKET, Some(Cipher::AesGcm)));
            let mut from = &other;
            from.read_exact(&mut [0; OPENING]).unwrap();
            from.write_all(&Opening::new(Word::Welcome, [0; PROOF]).bytes())
                .unwrap();
            let error = presenting.join().unwrap().unwrap_err();
            assert!(matches!(error, SessionError::NotTheIssuer), "{error}");
        });
    }
}
