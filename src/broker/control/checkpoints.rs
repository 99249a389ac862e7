//! The file `checkpoint`, written while it changes: what is durable in the log and in the queues,
//! and up to which time, as Java's recovery reckons.
//!
//! Marks carry positions, not times. A time `t` is safe for a position when the log had not been
//! written beyond that position at `t`; so a short history of (time, written) turns one into the
//! other, always to the safe side.

use std::collections::VecDeque;

use shards::files::Job;

use crate::broker::control::Desk;
use crate::ids::{LogOffset, Micros, Millis, Ticket};
use crate::role::{Effect, Effects};
use crate::store::FlushMode;
use crate::store::checkpoint::{self, Checkpoint, JavaPart, OurPart};

pub const CHECKPOINT: Ticket = Ticket(23);

const INTERVAL_MS: u64 = 1000;
/// Times remembered: longer than a flush of the queues may take.
const HISTORY_MAX: usize = 600;

#[derive(Debug)]
pub struct Checkpoints {
    mode: FlushMode,
    path: std::path::PathBuf,
    java: JavaPart,
    history: VecDeque<(Millis, LogOffset)>,
    pub written: LogOffset,
    pub durable: LogOffset,
    pub queues: LogOffset,
    pub indexed: LogOffset,
    saved: Option<OurPart>,
    in_flight: Option<OurPart>,
    next_at: Micros,
}

impl Checkpoints {
    /// `found` is what stands in the file; positions are recovery's.
    #[must_use]
    pub fn new(
        root: &std::path::Path,
        mode: FlushMode,
        found: &Checkpoint,
        (durable, queues): (LogOffset, LogOffset),
    ) -> Self {
        Checkpoints {
            mode,
            path: checkpoint::path(root),
            java: found.java,
            history: VecDeque::new(),
            written: durable,
            durable,
            queues,
            indexed: LogOffset(0),
            saved: None,
            in_flight: None,
            next_at: Micros(0),
        }
    }

    pub fn run(&mut self, now: shards::Now, last: Desk, fx: &mut Effects<'_>) {
        let ours = OurPart {
            mode: self.mode,
            durable: self.durable,
            queues: self.queues.min(self.durable),
            indexed: self.indexed,
            index_entries: 0,
        };
        let due = now.mono >= self.next_at || last == Desk::Closing;
        if !due || self.in_flight.is_some() || self.saved == Some(ours) {
            return;
        }
        self.next_at = now.mono.plus_millis(INTERVAL_MS);
        if self.history.len() == HISTORY_MAX {
            self.history.pop_front();
        }
        self.history.push_back((now.wall, self.written));
        self.java.physic = self.java.physic.max(self.safe_time(ours.durable));
        self.java.logics = self.java.logics.max(self.safe_time(ours.queues));
        self.java.confirmed = self.java.confirmed.min(self.durable);
        let bytes = Checkpoint {
            java: self.java,
            ours: Some(ours),
        }
        .encode();
        let job = Job::ReplaceFile {
            path: self.path.clone(),
            bytes,
        };
        fx.push(Effect::Slow {
            ticket: CHECKPOINT,
            job,
        });
        self.in_flight = Some(ours);
    }

    /// Up to this time every record lies below `position`.
    fn safe_time(&self, position: LogOffset) -> Millis {
        let covered = self
            .history
            .iter()
            .rev()
            .find(|(_, written)| *written <= position);
        // A record may have got its time just before it was written.
        covered.map_or(Millis(0), |(time, _)| Millis(time.0.saturating_sub(1000)))
    }

    pub fn done(&mut self, failed: bool) {
        if let Some(ours) = self.in_flight.take().filter(|_| !failed) {
            self.saved = Some(ours);
        }
    }

    /// Whether the file says all there is to say.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        let behind = |saved: OurPart| {
            saved.durable == self.durable && saved.queues == self.queues.min(self.durable)
        };
        self.in_flight.is_none() && self.saved.is_some_and(behind)
    }

    #[must_use]
    pub fn deadline(&self) -> Option<Micros> {
        (self.in_flight.is_none() && !self.is_clean()).then_some(self.next_at)
    }
}
