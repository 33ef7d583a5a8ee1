//! Sees to it that a tunnel has a stream, as long as both hosts have an RDMA adapter that kernel_offloads.
//!
//! One thread for each tunnel, because to open an adapter and to connect by it take their time, for which
//! frames do not wait. It ends with the tunnel.
//!
//! ```text
//!   who asks                                   the other
//!   prepares its end ── Ask ──────────────────> prepares and connects its end
//!   connects its end <────────────── Answer ──
//!                    ══ Begin ════════════════> by the stream
//!                    ── Begin ────────────────> its packets go by the stream, too
//!                    <─────────────── Begin ──
//! ```
//!
//! Packets go by a stream only after something has arrived by it: adapters connect also when nothing gets from
//! the one to the other.
//!
//! An adapter is opened for each stream and closed with it: one that has been reset or taken out would hold
//! up its kernel as long as anybody has it open.

use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use toroid_client::rdma::RdmaError;
use toroid_fabric::RdmaStream;
use toroid_fabric::parameters::RdmaStreamParameters;
use toroid_fabric::rdma_stream::PreparedRdmaStream;
use tracing::debug;

use crate::switch::{LostStream, StreamEvent, SwitchHandle, TunnelId};
use crate::tunnel::signal::{Signal, SignalKind};

/// Pauses before another try grow from the first to the second.
const BACK_OFF: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(10)];

/// A stream that has lasted as long as this was a success.
const GOOD_LIFE: Duration = Duration::from_secs(10);

/// How long the other side may take to prepare its end. One that has no adapter may say nothing.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long the first bytes may take by a stream. Adapters give up sooner.
const PROOF: Duration = Duration::from_secs(10);

/// Events that may wait.
const EVENTS: usize = 64;

/// Prepares an end of a stream at this host's adapter.
pub(super) type Prepare =
    Arc<dyn Fn() -> Result<Box<dyn PreparedRdmaStream>, RdmaError> + Send + Sync>;

/// Lets somebody know why there is no stream.
pub(super) type ReportFailure = Box<dyn Fn(&str) + Send>;

/// Sees to the stream of one tunnel.
pub(super) struct StreamSupervisor {
    id: TunnelId,
    asks: bool,
    events: Receiver<StreamEvent>,
    prepare: Prepare,
    switch: Weak<SwitchHandle>,
    report_failure: ReportFailure,
    /// The number of the last stream that was asked for.
    number: u32,
    /// Whether something has failed since packets last went by a stream.
    has_reported: bool,
}

/// How far the side that asks is.
#[derive(Debug)]
enum Stage {
    /// To ask at this time.
    Pause(Instant),
    /// To be given up at this time.
    Asked(Box<dyn PreparedRdmaStream>, Instant),
    /// There is one, since then.
    Up(Instant),
}

impl StreamSupervisor {
    /// One who asks the other side for streams, or waits to be asked; and where it hears of events.
    pub(super) fn new(
        id: TunnelId,
        asks: bool,
        prepare: Prepare,
        switch: &Arc<SwitchHandle>,
        report_failure: ReportFailure,
    ) -> (Self, SyncSender<StreamEvent>) {
        let (sender, events) = mpsc::sync_channel(EVENTS);
        let supervisor = StreamSupervisor {
            id,
            asks,
            events,
            prepare,
            switch: Arc::downgrade(switch),
            report_failure,
            number: 0,
            has_reported: false,
        };
        (supervisor, sender)
    }

    /// Starts the thread, when there is the tunnel.
    pub(super) fn start(self) -> io::Result<()> {
        let keep = move || if self.asks { self.ask() } else { self.answer() };
        thread::Builder::new()
            .name("stream".into())
            .spawn(keep)
            .map(drop)
    }

    /// The side that asks.
    fn ask(mut self) {
        let mut pause = BACK_OFF[0];
        let mut stage = Stage::Pause(Instant::now());
        loop {
            let event = match stage {
                Stage::Pause(until) | Stage::Asked(_, until) => self
                    .events
                    .recv_timeout(until.saturating_duration_since(Instant::now())),
                Stage::Up(_) => self
                    .events
                    .recv()
                    .map_err(|_| RecvTimeoutError::Disconnected),
            };
            let next = match (event, stage) {
                (Err(RecvTimeoutError::Disconnected), _) => return,
                (Err(RecvTimeoutError::Timeout), Stage::Pause(_)) => self.begin(),
                (Err(RecvTimeoutError::Timeout), Stage::Asked(..)) => self.fails("no answer"),
                (Ok(StreamEvent::Signal(said)), Stage::Asked(stream, _))
                    if said.number == self.number =>
                {
                    match said.kind {
                        SignalKind::Answer(theirs) => self.connect(stream, &theirs),
                        _ => self.fails("the other host has no RDMA adapter that kernel_offloads"),
                    }
                }
                // It has ended there before it was of use here.
                (Ok(StreamEvent::Signal(said)), Stage::Up(since)) if said.number == self.number => {
                    self.drop_stream();
                    Some(Stage::Up(since))
                }
                (Ok(StreamEvent::Lost(lost)), Stage::Up(since)) if lost.number == self.number => {
                    if since.elapsed() > GOOD_LIFE {
                        pause = BACK_OFF[0];
                    }
                    self.loses(lost)
                }
                (_, unchanged) => Some(unchanged),
            };
            stage = next.unwrap_or_else(|| {
                let until = Instant::now() + pause;
                pause = BACK_OFF[1].min(pause * 2);
                Stage::Pause(until)
            });
        }
    }

    fn begin(&mut self) -> Option<Stage> {
        match (self.prepare)() {
            Ok(stream) => {
                self.number = self.number.wrapping_add(1);
                self.tell(self.number, SignalKind::Offer(stream.parameters()));
                Some(Stage::Asked(stream, Instant::now() + PATIENCE))
            }
            Err(error) => self.fails(&error.to_string()),
        }
    }

    fn connect(
        &mut self,
        stream: Box<dyn PreparedRdmaStream>,
        theirs: &RdmaStreamParameters,
    ) -> Option<Stage> {
        let (number, kind) = (self.number, SignalKind::Begin);
        let signal = Signal { number, kind };
        let proven = stream
            .connect(theirs)
            .and_then(|stream| prove(stream, signal));
        match proven.and_then(|stream| self.hand_over(stream, signal)) {
            Ok(()) => Some(Stage::Up(Instant::now())),
            Err(error) => {
                self.tell(number, SignalKind::End);
                self.fails(&error.to_string())
            }
        }
    }

    fn loses(&mut self, lost: LostStream) -> Option<Stage> {
        self.has_reported &= !lost.was_up;
        self.fails(&lost.why)
    }

    /// Until packets have gone by a stream again it complains once.
    fn fails(&mut self, why: &str) -> Option<Stage> {
        debug!("no stream: {why}");
        if !std::mem::replace(&mut self.has_reported, true) {
            (self.report_failure)(why);
        }
        None
    }

    /// The side that is asked.
    fn answer(mut self) {
        while let Ok(event) = self.events.recv() {
            match event {
                StreamEvent::Signal(Signal {
                    number,
                    kind: SignalKind::Offer(theirs),
                }) => {
                    if let Err(why) = self.prepared_for(number, &theirs) {
                        self.tell(number, SignalKind::End);
                        self.fails(&why.to_string());
                    }
                }
                StreamEvent::Signal(_) => {}
                StreamEvent::Lost(lost) => drop(self.loses(lost)),
            }
        }
    }

    fn prepared_for(&self, number: u32, theirs: &RdmaStreamParameters) -> Result<(), RdmaError> {
        let stream = (self.prepare)()?;
        let kind = SignalKind::Answer(stream.parameters());
        let stream = stream.connect(theirs)?;
        Ok(self.hand_over(stream, Signal { number, kind })?)
    }

    /// Gives a stream to the tunnel.
    fn hand_over(&self, stream: Box<dyn RdmaStream>, signal: Signal) -> io::Result<()> {
        let id = self.id;
        let handle = self.switch.upgrade().ok_or(io::ErrorKind::NotConnected)?;
        let used = handle.call(move |switch| switch.connect_stream(id, stream, signal));
        match used {
            Ok(Ok(())) => Ok(()),
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    fn drop_stream(&self) {
        let (id, number) = (self.id, self.number);
        if let Some(handle) = self.switch.upgrade() {
            // As in `tell`.
            let _ = handle.call(move |switch| switch.drop_stream(id, number));
        }
    }

    fn tell(&self, number: u32, kind: SignalKind) {
        let (id, signal) = (self.id, Signal { number, kind });
        if let Some(handle) = self.switch.upgrade() {
            // It fails when the switch has ended, and then so does this.
            let _ = handle.call(move |switch| switch.tell_tunnel(id, signal));
        }
    }
}

/// Sends something by a stream and waits until it has arrived.
fn prove(mut stream: Box<dyn RdmaStream>, signal: Signal) -> io::Result<Box<dyn RdmaStream>> {
    stream.write_all(&signal.to_message())?;
    let until = Instant::now() + PROOF;
    loop {
        stream.process_events()?;
        let left = until.saturating_duration_since(Instant::now());
        if stream.is_confirmed() {
            return Ok(stream);
        }
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut fds = [PollFd::new(stream.wake_fd(), PollFlags::POLLIN)];
        // An interrupted sleep is an early wake-up.
        let _ = poll(
            &mut fds,
            PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX),
        );
    }
}

#[cfg(test)]
mod tests;
