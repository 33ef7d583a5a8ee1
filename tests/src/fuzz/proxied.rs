//! A proxy answers a client as the server itself does.

use std::sync::OnceLock;

use toroid_kv::internals;
use toroid_kv::internals::messages::Awaiting;
use toroid_kv::internals::reader::{ItemRef, Lookup};
use toroid_kv::internals::{Conversation, Next, Wants};
use toroid_kv::internals::{ProxyConversation, Upstream, UpstreamError};
use toroid_kv::server::Shared;

use super::{give, make_cache};

/// Says the same to a server at once and by a proxy, in pieces of a few bytes; returns whether all
/// was understood.
pub fn proxy(bytes: &[u8]) -> bool {
    static STORES: OnceLock<[Shared; 2]> = OnceLock::new();
    let stores = STORES.get_or_init(|| [make_cache(), make_cache()]);
    for store in stores {
        store.with(internals::Store::flush).expect("it is ours");
    }
    let mut direct = Server::new(&stores[0]);
    let mut expected = Vec::new();
    let ended = direct.hear(bytes, &mut expected) == Awaiting::End;
    let (said, closed) = by_proxy(Server::new(&stores[1]), bytes);
    // Each of the two counts for itself.
    if !bytes.windows(5).any(|word| word == b"stats") {
        let text = String::from_utf8_lossy;
        assert_eq!((text(&said), closed), (text(&expected), ended));
    }
    let mut lines = said.split(|&byte| byte == b'\n');
    !closed && !lines.any(|line| line.starts_with(b"ERROR") || line.starts_with(b"CLIENT_"))
}

/// The answer, and whether the connection is closed.
fn by_proxy(server: Server<'_>, bytes: &[u8]) -> (Vec<u8>, bool) {
    let (mut conversation, mut said) = (ProxyConversation::new(server), Vec::new());
    let mut rest = bytes;
    loop {
        let mut replies = Vec::new();
        let next = conversation.run(&mut replies);
        said.append(&mut replies);
        match next {
            Next::Close | Next::Watch => return (said, true),
            Next::Read if rest.is_empty() => return (said, false),
            Next::Read => {
                let count = give(conversation.room(), &mut rest);
                conversation.received(count);
            }
            Next::Continue => {}
        }
    }
}

/// A server without anything between it and its only client.
struct Server<'a> {
    store: &'a Shared,
    conversation: Conversation,
}

impl<'a> Server<'a> {
    fn new(store: &'a Shared) -> Self {
        Server {
            store,
            conversation: Conversation::default(),
        }
    }

    fn hear(&mut self, text: &[u8], replies: &mut Vec<u8>) -> Awaiting {
        let mut rest = text;
        loop {
            let mut batch = Vec::new();
            let next = self.conversation.run(self.store, &mut batch);
            replies.append(&mut batch);
            match next.expect("it is ours") {
                Next::Close | Next::Watch => return Awaiting::End,
                Next::Continue => {}
                Next::Read if rest.is_empty() => {
                    return match self.conversation.wants() {
                        Wants::Command => Awaiting::Command,
                        Wants::Line => Awaiting::Line,
                        Wants::Bytes(bytes) => Awaiting::Bytes(bytes as u64),
                    };
                }
                Next::Read => {
                    // In pieces here, too: whether a line without its end is too long depends on them.
                    let count = give(self.conversation.room(), &mut rest);
                    self.conversation.received(count);
                }
            }
        }
    }
}

impl Upstream for Server<'_> {
    fn look(
        &mut self,
        keys: &[&[u8]],
        each: &mut dyn FnMut(usize, Lookup<ItemRef<'_>>),
    ) -> Result<(), UpstreamError> {
        for (number, key) in keys.iter().enumerate() {
            let mut data = Vec::new();
            let found = self.store.get(key, |item, items| {
                data.resize(item.header.value_len as usize, 0);
                items.read(item.value_offset(), &mut data)?;
                Ok(item.header)
            });
            each(
                number,
                match found.expect("it is ours") {
                    Some(header) => Lookup::Found(ItemRef {
                        header,
                        data: &data,
                    }),
                    None => Lookup::Absent,
                },
            );
        }
        Ok(())
    }

    fn say(
        &mut self,
        _: bool,
        text: &[u8],
        replies: &mut Vec<u8>,
    ) -> Result<Awaiting, UpstreamError> {
        Ok(self.hear(text, replies))
    }

    fn report(&mut self) {}
}
