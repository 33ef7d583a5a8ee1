//! Memcached's protocol over messages.

use super::{Client, ClientError};
use crate::network::Network;
use crate::protocol::messages::{Awaiting, Reply, Request};

/// Session of the client itself.
const OWN_SESSION: u32 = u32::MAX;

impl<N: Network> Client<N> {
    /// Sends up to [`crate::protocol::messages::TEXT_LIMIT`] bytes of memcached's protocol in a
    /// session, and appends the replies. The first use of a number begins the session.
    ///
    /// # Errors
    /// [`ClientError`]; whether the commands took place is then not known.
    pub(crate) fn say(
        &mut self,
        session: u32,
        text: &[u8],
        replies: &mut Vec<u8>,
    ) -> Result<Awaiting, ClientError> {
        match self.call(&Request::Text { session, text })? {
            Reply::Said { awaiting, text } => {
                replies.extend_from_slice(text);
                Ok(awaiting)
            }
            Reply::Refused(refusal) => Err(ClientError::Refused(refusal)),
            _ => Err(ClientError::Protocol),
        }
    }

    /// The `limit` keys that are used most, by all clients, and their uses per second as far as
    /// clients have reported them. Bytes other than letters, digits and `-._~` are shown as `%`
    /// and two hexadecimal digits.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn most_used(&mut self, limit: u32) -> Result<Vec<(String, f64)>, ClientError> {
        let mut replies = Vec::new();
        let mut question = format!("stats hotkeys {limit}\r\n");
        while self.say(OWN_SESSION, question.as_bytes(), &mut replies)? == Awaiting::More {
            question.clear();
        }
        self.leave(OWN_SESSION);
        let told = String::from_utf8(replies).map_err(|_| ClientError::Protocol)?;
        let lines = told.lines().take_while(|line| *line != "END");
        lines
            .map(|line| hot_key(line).ok_or(ClientError::Protocol))
            .collect()
    }

    /// Ends a session. There is no reply.
    pub(crate) fn leave(&mut self, session: u32) {
        // Without room in the channel, the session lasts as long as this client.
        let _ = self.exchange.tell(&Request::Leave { session });
    }
}

/// Parses a line of `stats hotkeys`. Refuses control characters, as a terminal may show the key.
fn hot_key(line: &str) -> Option<(String, f64)> {
    let (key, rate) = line.strip_prefix("STAT ")?.split_once(' ')?;
    let is_plain = key.bytes().all(|byte| byte.is_ascii_graphic());
    let rate = rate.parse().ok()?;
    is_plain.then(|| (key.to_owned(), rate))
}
