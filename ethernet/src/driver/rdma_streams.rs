//! Sees to it that a tunnel has a line, as long as both hosts have an RDMA adapter that works.
//!
//! One thread for each tunnel, because to open an adapter and to connect by it take their time, for which
//! frames do not wait. It ends with the tunnel.
//!
//! ```text
//!   who asks                                   the other
//!   prepares its end ── Ask ──────────────────> prepares and connects its end
//!   connects its end <────────────── Answer ──
//!                    ══ Begin ════════════════> by the line
//!                    ── Begin ────────────────> its packets go by the line, too
//!                    <─────────────── Begin ──
//! ```
//!
//! Packets go by a line only after something has arrived by it: adapters connect also when nothing gets from
//! the one to the other.
//!
//! An adapter is opened for each line and closed with it: one that has been reset or taken out would hold
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

use crate::switch::{LineEvent, LostLine, SwitchHandle, TunnelId};
use crate::tunnel::signal::{Notice, Word};

/// Pauses before another try grow from the first to the second.
const BACK_OFF: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(10)];

/// A line that has lasted as long as this was a success.
const GOOD_LIFE: Duration = Duration::from_secs(10);

/// How long the other side may take to prepare its end. One that has no adapter may say nothing.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long the first bytes may take by a line. Adapters give up sooner.
const PROOF: Duration = Duration::from_secs(10);

/// Events that may wait.
const EVENTS: usize = 64;

/// Prepares an end of a line at this host's adapter.
pub(super) type Prepare =
    Arc<dyn Fn() -> Result<Box<dyn PreparedRdmaStream>, RdmaError> + Send + Sync>;

/// Lets somebody know why there is no line.
pub(super) type Complain = Box<dyn Fn(&str) + Send>;

/// Sees to the line of one tunnel.
pub(super) struct Keeper {
    id: TunnelId,
    asks: bool,
    events: Receiver<LineEvent>,
    prepare: Prepare,
    switch: Weak<SwitchHandle>,
    complain: Complain,
    /// The number of the last line that was asked for.
    number: u32,
    /// Whether something has failed since packets last went by a line.
    has_complained: bool,
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

impl Keeper {
    /// One who asks the other side for lines, or waits to be asked; and where it hears of events.
    pub(super) fn new(
        id: TunnelId,
        asks: bool,
        prepare: Prepare,
        switch: &Arc<SwitchHandle>,
        complain: Complain,
    ) -> (Self, SyncSender<LineEvent>) {
        let (sender, events) = mpsc::sync_channel(EVENTS);
        let keeper = Keeper {
            id,
            asks,
            events,
            prepare,
            switch: Arc::downgrade(switch),
            complain,
            number: 0,
            has_complained: false,
        };
        (keeper, sender)
    }

    /// Starts the thread, when there is the tunnel.
    pub(super) fn start(self) -> io::Result<()> {
        let keep = move || if self.asks { self.ask() } else { self.answer() };
        thread::Builder::new()
            .name("line".into())
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
                (Ok(LineEvent::Said(said)), Stage::Asked(line, _))
                    if said.number == self.number =>
                {
                    match said.word {
                        Word::Answer(theirs) => self.connect(line, &theirs),
                        _ => self.fails("the other host has no RDMA adapter that works"),
                    }
                }
                // It has ended there before it was of use here.
                (Ok(LineEvent::Said(said)), Stage::Up(since)) if said.number == self.number => {
                    self.drop_line();
                    Some(Stage::Up(since))
                }
                (Ok(LineEvent::Lost(lost)), Stage::Up(since)) if lost.number == self.number => {
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
            Ok(line) => {
                self.number = self.number.wrapping_add(1);
                self.tell(self.number, Word::Ask(line.parameters()));
                Some(Stage::Asked(line, Instant::now() + PATIENCE))
            }
            Err(error) => self.fails(&error.to_string()),
        }
    }

    fn connect(
        &mut self,
        line: Box<dyn PreparedRdmaStream>,
        theirs: &RdmaStreamParameters,
    ) -> Option<Stage> {
        let (number, word) = (self.number, Word::Begin);
        let notice = Notice { number, word };
        let proven = line.connect(theirs).and_then(|line| prove(line, notice));
        match proven.and_then(|line| self.hand_over(line, notice)) {
            Ok(()) => Some(Stage::Up(Instant::now())),
            Err(error) => {
                self.tell(number, Word::End);
                self.fails(&error.to_string())
            }
        }
    }

    fn loses(&mut self, lost: LostLine) -> Option<Stage> {
        self.has_complained &= !lost.was_up;
        self.fails(&lost.why)
    }

    /// Until packets have gone by a line again it complains once.
    fn fails(&mut self, why: &str) -> Option<Stage> {
        debug!("no line: {why}");
        if !std::mem::replace(&mut self.has_complained, true) {
            (self.complain)(why);
        }
        None
    }

    /// The side that is asked.
    fn answer(mut self) {
        while let Ok(event) = self.events.recv() {
            match event {
                LineEvent::Said(Notice {
                    number,
                    word: Word::Ask(theirs),
                }) => {
                    if let Err(why) = self.prepared_for(number, &theirs) {
                        self.tell(number, Word::End);
                        self.fails(&why.to_string());
                    }
                }
                LineEvent::Said(_) => {}
                LineEvent::Lost(lost) => drop(self.loses(lost)),
            }
        }
    }

    fn prepared_for(&self, number: u32, theirs: &RdmaStreamParameters) -> Result<(), RdmaError> {
        let line = (self.prepare)()?;
        let word = Word::Answer(line.parameters());
        let line = line.connect(theirs)?;
        Ok(self.hand_over(line, Notice { number, word })?)
    }

    /// Gives a line to the tunnel.
    fn hand_over(&self, line: Box<dyn RdmaStream>, notice: Notice) -> io::Result<()> {
        let id = self.id;
        let handle = self.switch.upgrade().ok_or(io::ErrorKind::NotConnected)?;
        let used = handle.call(move |switch| switch.connect_line(id, line, notice));
        match used {
            Ok(Ok(())) => Ok(()),
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    fn drop_line(&self) {
        let (id, number) = (self.id, self.number);
        if let Some(handle) = self.switch.upgrade() {
            // As in `tell`.
            let _ = handle.call(move |switch| switch.drop_line(id, number));
        }
    }

    fn tell(&self, number: u32, word: Word) {
        let (id, notice) = (self.id, Notice { number, word });
        if let Some(handle) = self.switch.upgrade() {
            // It fails when the switch has ended, and then so does this.
            let _ = handle.call(move |switch| switch.tell_tunnel(id, notice));
        }
    }
}

/// Sends something by a line and waits until it has arrived.
fn prove(mut line: Box<dyn RdmaStream>, notice: Notice) -> io::Result<Box<dyn RdmaStream>> {
    line.write_all(&notice.to_item())?;
    let until = Instant::now() + PROOF;
    loop {
        line.process_events()?;
        let left = until.saturating_duration_since(Instant::now());
        if line.is_confirmed() {
            return Ok(line);
        }
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut fds = [PollFd::new(line.wake_fd(), PollFlags::POLLIN)];
        // An interrupted sleep is an early wake-up.
        let _ = poll(
            &mut fds,
            PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX),
        );
    }
}

#[cfg(test)]
mod tests;
