//! The log role: the one place where messages get their offsets and where "stored" becomes true.
//!
//! ```text
//!             durable        written in flight     end
//!                v    block     v                   v
//!   ... =========|====+---------+-------------+-----+
//!       answered      | running write         | next write: all gathered when the running one ends
//!                     ^ begins at a block's start: that prefix is written again, byte-identical
//! ```
//!
//! * One write is in flight. It is whole blocks of the tail and a snapshot of the partly filled
//!   last block; it never crosses segments and is at most [`limits::BATCH_BYTES_MAX`] long, unless
//!   it is a single append.
//! * What a completion allows is published as marks first; the answers follow when the turn has
//!   settled, so that no answer is ahead of its mark.
//! * An append that does not fit the segment waits: the blank record ends the last write of the
//!   segment, and the next segment is begun when that one is durable.
//! * A failed write or flush poisons the log: all who wait are told, and nothing more is
//!   acknowledged until the log was read back.

mod answer;
mod counters;
mod offsets;
mod place;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use shards::chunk::TailWriter;
use shards::role::{BLOCK_BYTES, LastBlock, SyncTarget, WriteError};
use shards::{Now, Role};

pub use counters::{Counter, LogCounters};

use self::answer::answer;
use self::offsets::NextOffsets;
use self::place::Waiting;
use crate::broker::news::{Boot, News};
use crate::ids::{LogOffset, Micros, Millis, Ticket};
use crate::limits;
use crate::role::{self, AppendRefused, CONTROL, Effect, Effects, Input, Letter, Mark, Ringmq};
use crate::store::FlushMode;
use crate::store::marks::{Advance, Watermarks};
use crate::store::parked::{Append, Parked};
use crate::store::recover::Recovered;
use crate::store::segment::Segments;

/// How often to look again when something holds the tail that tells nobody when it lets go.
const LOOK_AGAIN_US: u64 = 1000;

/// The settings of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// `mappedFileSizeCommitLog`, in whole blocks.
    pub segment_bytes: u64,
    /// `flushDiskType`.
    pub mode: FlushMode,
    /// `syncFlushTimeout`, milliseconds.
    pub flush_timeout_ms: u64,
    /// `flushIntervalCommitLog`, milliseconds; ASYNC only.
    pub flush_interval_ms: u64,
    /// `waitTimeMillsInSendQueue`: how long an append waits for room, milliseconds.
    pub park_ms: u64,
}

/// A write in flight.
struct Running {
    ticket: Ticket,
    bytes: u64,
    end: LogOffset,
}

/// A flush in flight (ASYNC).
struct Flushing {
    ticket: Ticket,
    end: LogOffset,
    mark: LogOffset,
    records: u64,
    timestamp: Millis,
}

/// See the module.
pub struct Log {
    config: LogConfig,
    segments: Segments,
    tail: TailWriter,
    marks: Watermarks,
    queues: NextOffsets,
    counters: Arc<LogCounters>,
    /// Store time of the last record; never goes back.
    timestamp: Millis,
    warned_of_clock: bool,

    /// Appends in the tail that are not written, and those written but not yet answered.
    waiting: VecDeque<Waiting>,
    /// So many of the front have an answer already or their deadline has passed.
    expired: usize,
    /// Appends up to here can be answered: marks that cover them are published.
    answerable: LogOffset,
    parked: Parked,

    running: Option<Running>,
    flushing: Option<Flushing>,
    flush_due: Option<Micros>,
    /// End of what is in the segment; may lie inside an append.
    write_end: LogOffset,
    /// The same for stable storage.
    flush_end: LogOffset,
    /// Records, and the last one's store time, below `marks.written`.
    written_records: u64,
    written_timestamp: Millis,
    /// Records below `marks.durable`.
    durable_records: u64,
    next_ticket: u64,
    copy: u8,

    /// The blank record is placed; where the next segment starts.
    roll: Option<LogOffset>,
    prepared: LogOffset,
    no_segment: bool,
    first_told: LogOffset,

    /// When this role was last called.
    now: Micros,
    wall: Millis,
    announced: bool,
    poisoned: bool,
    stopping: bool,
    stopped: bool,
    /// Version of news that control has not been told of as heard.
    heard: Option<u64>,
}

impl Log {
    /// A log that goes on where recovery ended.
    ///
    /// # Panics
    /// If the tail does not end where the log ends, or is too short for the longest write.
    #[must_use]
    pub fn new(
        config: LogConfig,
        recovered: &Recovered,
        boot: &Boot,
        mut tail: TailWriter,
        counters: Arc<LogCounters>,
    ) -> Self {
        let end = recovered.end;
        assert!(tail.end() == end, "{:?} is not {end:?}", tail.end());
        assert!(tail.append_bytes_max() >= limits::WRITE_BYTES_MAX);
        let block = LogOffset(end.0 - recovered.last_block.len() as u64);
        tail.load(block, &recovered.last_block);
        Log {
            config,
            segments: Segments::new(config.segment_bytes),
            tail,
            marks: Watermarks::new(config.mode, recovered.first, end),
            queues: NextOffsets::new(boot),
            counters,
            timestamp: recovered.last_store_timestamp,
            warned_of_clock: false,
            waiting: VecDeque::with_capacity(limits::LOG_UNWRITTEN_MAX),
            expired: 0,
            answerable: end,
            parked: Parked::new(limits::LOG_PARKED_MAX, limits::LOG_PARKED_BYTES_MAX),
            running: None,
            flushing: None,
            flush_due: None,
            write_end: end,
            flush_end: end,
            written_records: 0,
            written_timestamp: recovered.last_store_timestamp,
            durable_records: 0,
            next_ticket: 0,
            copy: 0,
            roll: None,
            prepared: recovered.prepared,
            no_segment: false,
            first_told: recovered.first,
            now: Micros(0),
            wall: Millis(0),
            announced: false,
            poisoned: false,
            stopping: false,
            stopped: false,
            heard: None,
        }
    }

    /// Positions, for tables and tests.
    #[must_use]
    pub fn marks(&self) -> &Watermarks {
        &self.marks
    }

    fn append(&mut self, append: Append, payload: &[u8], fx: &mut Effects<'_>) {
        if self.stopping || self.poisoned {
            let why = if self.poisoned {
                AppendRefused::Poisoned
            } else {
                AppendRefused::Stopping
            };
            return self.refuse(append, why, fx);
        }
        if self.parked.is_empty() {
            match self.try_place(append, payload, fx) {
                Ok(()) => return self.submit_if_full(fx),
                Err(hold) if hold.is_final() => return self.refuse_held(append, hold, fx),
                Err(_) => {}
            }
        }
        let deadline = self.now.plus_millis(self.config.park_ms);
        if self.parked.push(append, payload, deadline) {
            self.counters.parked.add(1);
        } else {
            self.counters.busy_parked.add(1);
            answer(append, Err(AppendRefused::Busy), fx);
        }
    }

    fn hear(&mut self, mark: Mark) {
        match mark {
            Mark::Prepared(end) => self.prepared = self.prepared.max(end),
            Mark::NoSegment(value) => self.no_segment = value != 0,
            Mark::First(first) => self.first_told = self.first_told.max(first),
            Mark::Dispatched(end) if end > self.marks.dispatched() => {
                self.marks.advance(Advance::Dispatched(end));
            }
            _ => return,
        }
        // Marks of two roles are not read at one moment: the first segment may be told of before
        // the dispatch that allowed it.
        let first = self.first_told.min(self.marks.dispatched());
        self.marks.advance(Advance::First(first));
    }

    fn news(&mut self, version: u64, payload: &[u8], fx: &mut Effects<'_>) {
        let news =
            serde_json::from_slice(payload).expect("control encodes news with the same type");
        match news {
            News::Topic(topic) => self.queues.learn(&topic),
            News::TopicGone(name) => self.queues.forget(&name),
            _ => {}
        }
        self.heard = Some(version);
        self.tell_heard(fx);
    }

    fn tell_heard(&mut self, fx: &mut Effects<'_>) {
        if let Some(version) = self.heard
            && fx.tell(CONTROL, 0, |_| Letter::Heard { version }).is_ok()
        {
            self.heard = None;
        }
    }

    /// Once, before anything else is told.
    fn announce(&mut self, fx: &mut Effects<'_>) {
        if !self.announced {
            self.announced = true;
            self.publish(fx);
        }
    }

    fn publish(&self, fx: &mut Effects<'_>) {
        fx.mark(Mark::Written(self.marks.written()));
        fx.mark(Mark::Durable(self.marks.durable()));
        fx.mark(Mark::Visible(self.marks.visible()));
    }

    // ---- writing

    /// Writes what was gathered, if nothing is in flight.
    fn submit(&mut self, fx: &mut Effects<'_>) {
        let end = self.tail.end();
        if self.running.is_some() || self.poisoned || self.write_end == end {
            return;
        }
        let at = block_of(self.write_end);
        let end = self.batch_end(at);
        let whole = block_of(end).since(at);
        let last = (block_of(end) != end).then(|| {
            assert!(end == self.tail.end(), "a snapshot is of the tail's end");
            self.copy ^= 1;
            self.tail.snapshot(self.copy);
            LastBlock { copy: self.copy }
        });
        let bytes = whole + if last.is_some() { BLOCK_BYTES } else { 0 };
        assert!(bytes <= limits::WRITE_BYTES_MAX, "a write of {bytes} bytes");
        assert!(
            self.segments.start_of(at) == self.segments.start_of(LogOffset(end.0 - 1)),
            "a write from {at:?} to {end:?} crosses segments"
        );
        let ticket = self.ticket();
        self.running = Some(Running { ticket, bytes, end });
        fx.push(Effect::Write {
            ticket,
            at,
            len: whole as u32,
            last,
            sync: self.config.mode == FlushMode::Sync,
        });
    }

    /// Where a write from `at` ends: behind the last append that the batch may hold (at least one),
    /// rounded up to its block if that block is full.
    fn batch_end(&self, at: LogOffset) -> LogOffset {
        let end = self.tail.end();
        if end.since(at) <= limits::BATCH_BYTES_MAX {
            return end;
        }
        let limit = at.plus(limits::BATCH_BYTES_MAX);
        let unwritten = self.written_waiting();
        let fitting = self.waiting.partition_point(|append| append.end <= limit);
        let last = fitting.max(unwritten + 1) - 1;
        let Some(append) = self.waiting.get(last) else {
            return end;
        };
        let full = LogOffset(append.end.0.next_multiple_of(BLOCK_BYTES));
        if full <= block_of(end) { full } else { end }
    }

    /// So many of `waiting`'s front are written as a whole.
    fn written_waiting(&self) -> usize {
        let written = self.write_end;
        self.waiting.partition_point(|append| append.end <= written)
    }

    /// A batch that is as long as it may be gains nothing from waiting for the turn to settle.
    fn submit_if_full(&mut self, fx: &mut Effects<'_>) {
        if self.tail.end().since(self.write_end) >= limits::BATCH_BYTES_MAX {
            self.submit(fx);
        }
    }

    fn wrote(&mut self, ticket: Ticket, result: Result<(), WriteError>, fx: &mut Effects<'_>) {
        if let Some(running) = self.running.take_if(|running| running.ticket == ticket) {
            match result {
                Ok(()) => self.write_done(&running, fx),
                Err(error) => self.poison(error, fx),
            }
        } else if let Some(flushing) = self.flushing.take_if(|flush| flush.ticket == ticket) {
            match result {
                Ok(()) => self.flush_done(&flushing, fx),
                Err(error) => self.poison(error, fx),
            }
        } else {
            panic!("{ticket:?} is no write or flush of the log");
        }
    }

    fn write_done(&mut self, running: &Running, fx: &mut Effects<'_>) {
        if self.poisoned {
            return;
        }
        self.counters.writes.add(1);
        self.counters.write_bytes.add(running.bytes);
        self.write_end = running.end;
        let before = self.marks.written();
        for append in &self.waiting {
            if append.end > running.end {
                break;
            }
            if append.end > before {
                self.written_records += u64::from(append.append.count);
                self.written_timestamp = append.stored.store_timestamp;
                self.answerable = append.end;
            }
        }
        if self.answerable > before {
            self.marks.advance(Advance::Written(self.answerable));
        }
        match self.config.mode {
            FlushMode::Sync => {
                self.flush_end = running.end;
                self.made_durable(
                    self.answerable,
                    self.written_records,
                    self.written_timestamp,
                );
            }
            FlushMode::Async if self.flushing.is_none() && self.flush_due.is_none() => {
                self.flush_due = Some(self.now.plus_millis(self.config.flush_interval_ms));
            }
            FlushMode::Async => {}
        }
        self.publish(fx);
    }

    fn made_durable(&mut self, mark: LogOffset, records: u64, timestamp: Millis) {
        let counters = &self.counters;
        let flushed = records - self.durable_records;
        counters.flushes.add(1);
        counters.flushed_records.add(flushed);
        counters.flushed_records_max.raise(flushed);
        counters.durable_timestamp_ms.raise(timestamp.0);
        self.durable_records = records;
        self.marks.advance(Advance::Durable(mark));
    }

    /// Flushes what is written (ASYNC): when it is due, before a roll and before the end.
    fn flush(&mut self, fx: &mut Effects<'_>) {
        let all_written = self.write_end == self.tail.end();
        let ends = all_written && (self.roll.is_some() || self.stopping);
        let is_due = ends || self.flush_due.is_some_and(|due| due <= self.now);
        if !is_due || self.poisoned || self.flushing.is_some() || self.flush_end == self.write_end {
            return;
        }
        self.flush_due = None;
        let ticket = self.ticket();
        self.flushing = Some(Flushing {
            ticket,
            end: self.write_end,
            mark: self.marks.written(),
            records: self.written_records,
            timestamp: self.written_timestamp,
        });
        let target = SyncTarget::Segment(block_of(self.flush_end));
        fx.push(Effect::Sync { ticket, target });
    }

    fn flush_done(&mut self, flushing: &Flushing, fx: &mut Effects<'_>) {
        if self.poisoned {
            return;
        }
        self.flush_end = flushing.end;
        self.made_durable(flushing.mark, flushing.records, flushing.timestamp);
        if self.flush_end < self.write_end {
            self.flush_due = Some(self.now.plus_millis(self.config.flush_interval_ms));
        }
        self.publish(fx);
    }

    fn ticket(&mut self) -> Ticket {
        self.next_ticket += 1;
        Ticket(self.next_ticket)
    }

    fn poison(&mut self, error: WriteError, fx: &mut Effects<'_>) {
        if self.poisoned {
            return;
        }
        log::error!(
            "the log failed at {}: {error}; no message is accepted until the broker is restarted \
             and has read the log back",
            self.write_end
        );
        self.poisoned = true;
        self.counters.poisonings.add(1);
        self.flush_due = None;
        fx.mark(Mark::Poisoned(1));
    }

    // ---- the end of a turn

    fn settle(&mut self, fx: &mut Effects<'_>) {
        if self.poisoned {
            self.answer_poisoned(fx);
            return self.end_if_done(fx);
        }
        self.answer_written(fx);
        self.answer_expired(fx);
        self.finish_roll(fx);
        if self.stopping {
            self.refuse_parked(AppendRefused::Stopping, fx);
        }
        self.serve_parked(fx);
        self.submit(fx);
        self.flush(fx);
        self.end_if_done(fx);
    }

    fn end_if_done(&mut self, fx: &mut Effects<'_>) {
        let is_flushed = self.flush_end == self.tail.end() && self.roll.is_none();
        let is_done = self.poisoned || (is_flushed && self.waiting.is_empty());
        if self.stopping && is_done && !self.stopped {
            self.stopped = true;
            fx.push(Effect::Stopped);
        }
    }
}

impl Role<Ringmq> for Log {
    fn handle(&mut self, now: Now, input: Input<'_>, fx: &mut Effects<'_>) {
        self.now = now.mono;
        self.wall = now.wall;
        self.announce(fx);
        match input {
            Input::Letter {
                from,
                letter:
                    Letter::Append {
                        ask,
                        queue,
                        count,
                        wait,
                    },
                payload,
            } => {
                let append = Append {
                    from,
                    ask,
                    queue,
                    count,
                    wait,
                };
                self.append(append, payload, fx);
            }
            Input::Letter {
                letter: Letter::News { version },
                payload,
                ..
            } => self.news(version, payload, fx),
            Input::Letter { from, letter, .. } => panic!("{from:?} told the log {letter:?}"),
            Input::Mark(mark) => self.hear(mark),
            Input::Wrote { ticket, result } => self.wrote(ticket, result, fx),
            Input::Room { .. } => self.tell_heard(fx),
            Input::Stop => self.stopping = true,
            Input::Deadline | Input::Settled => self.settle(fx),
            // Nothing else is ever asked for.
            _ => {}
        }
    }

    fn deadline(&self) -> Option<Micros> {
        if !self.announced {
            return Some(Micros(0));
        }
        if self.poisoned {
            return None;
        }
        let flush = self.waiting.get(self.expired).map(|append| append.deadline);
        let is_held = !self.parked.is_empty() || self.can_finish_roll();
        let look = is_held.then(|| Micros(self.now.0 + LOOK_AGAIN_US));
        [flush, look, self.flush_due].into_iter().flatten().min()
    }

    fn woken_by(&self) -> u64 {
        let at = LogOffset(0);
        role::kinds(&[Mark::Prepared(at), Mark::NoSegment(0), Mark::First(at)])
    }

    fn name(&self) -> &'static str {
        "log"
    }
}

fn block_of(at: LogOffset) -> LogOffset {
    LogOffset(at.0 / BLOCK_BYTES * BLOCK_BYTES)
}
