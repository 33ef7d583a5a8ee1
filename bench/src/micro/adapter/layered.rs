//! An adapter below the message layer.

use anyhow::{Result, bail};

use super::{ACTIVE, Adapter};
use crate::worker::micro::exchange::Host;
use crate::worker::micro::message_layer::MessageLayer;
use crate::worker::micro::script::{Layer, Message, Nanos, Script, Wait};

/// A host whose messages go through the message layer.
pub struct Layered<'a> {
    adapter: Adapter<'a>,
    layer: MessageLayer,
    /// The peer from which messages are received, or any.
    from: Option<usize>,
    memory: Vec<u8>,
    received: Vec<u8>,
    sent: u32,
}

impl<'a> Layered<'a> {
    /// A host with a connection to each peer. The leader opens them.
    pub fn new(mut adapter: Adapter<'a>, script: &Script, leads: bool) -> Result<Self> {
        let Layer::Message { eager, any_source } = script.layer else {
            bail!("{script} is not over the message layer");
        };
        let mut layer = MessageLayer::new(eager, script.wait);
        layer.greet(&mut adapter, 1..1 + script.idle as usize, leads)?;
        Ok(Layered {
            adapter,
            layer,
            from: (!any_source).then_some(ACTIVE),
            memory: vec![0; script.message.memory()],
            received: Vec::new(),
            sent: 0,
        })
    }
}

impl Host for Layered<'_> {
    fn now(&self) -> Nanos {
        self.adapter.now()
    }

    fn compute(&mut self, time: Nanos) {
        self.adapter.compute(time);
    }

    fn send(&mut self, message: &Message) -> Result<()> {
        let places = message.places(self.sent);
        self.sent += 1;
        self.layer
            .send(&mut self.adapter, ACTIVE, &self.memory, places)
    }

    fn receive(&mut self, message: &Message, _: Wait) -> Result<()> {
        let places = message.places(0);
        let (adapter, into) = (&mut self.adapter, &mut self.received);
        self.layer.receive(adapter, self.from, into, places)?;
        Ok(())
    }

    fn poll(&mut self, _: &Message, _: bool) -> Result<bool> {
        bail!("no looks through the message layer")
    }
}
