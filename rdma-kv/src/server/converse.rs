//! Memcached's protocol over any stream of bytes.

use std::io::{self, ErrorKind, Read, Write};

use crate::store::shared::Shared;
use crate::text::{BINARY_REMEDY, BINARY_REQUEST, Conversation, Next};

/// Bytes of memory for replies that are kept.
const REPLIES_KEPT: usize = 512 * 1024;

/// Serves one client over a stream, such as a connection that this host's TCP did not accept, until
/// either side ends it.
///
/// # Errors
/// The stream's; `InvalidData` for a client that begins in the binary protocol.
pub fn converse(mut stream: impl Read + Write, store: &Shared) -> io::Result<()> {
    let mut conversation = Conversation::default();
    let (mut replies, mut is_new) = (Vec::new(), true);
    loop {
        let next = conversation
            .run(store, &mut replies)
            .map_err(io::Error::other)?;
        if !replies.is_empty() {
            stream.write_all(&replies)?;
            replies.clear();
            replies.shrink_to(REPLIES_KEPT);
        }
        match next {
            Next::Close | Next::Watch => return Ok(()),
            Next::Continue => continue,
            Next::Read => {}
        }
        let room = conversation.room();
        match stream.read(room) {
            Ok(0) => return Ok(()),
            Ok(_) if std::mem::take(&mut is_new) && room[0] == BINARY_REQUEST => {
                return Err(io::Error::new(ErrorKind::InvalidData, BINARY_REMEDY));
            }
            Ok(count) => conversation.received(count),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
