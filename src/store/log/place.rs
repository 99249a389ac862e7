//! Placing an append: whether it can go into the tail, its offsets and time, and the roll.

use shards::role::BLOCK_BYTES;

use super::Log;
use super::answer::answer;
use crate::ids::{LogOffset, Micros, Millis, QueueOffset};
use crate::limits;
use crate::role::{AppendRefused, Effects, Stored};
use crate::store::marks::Advance;
use crate::store::parked::Append;
use crate::wire::record::{BLANK_BYTES, LOG_OFFSET_AT, RECORD_BYTES_MIN, patch, sys_flag};

const SYS_FLAG_AT: usize = LOG_OFFSET_AT + size_of::<u64>();

/// A clock that is so far behind the log's last record deserves a word.
const CLOCK_BEHIND_MS_MAX: u64 = 24 * 3600 * 1000;

/// An append in the tail.
pub(super) struct Waiting {
    pub append: Append,
    pub stored: Stored,
    pub end: LogOffset,
    pub deadline: Micros,
    pub answered: bool,
}

/// Why an append cannot be placed at the moment, or never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    /// The segment is being closed.
    Roll,
    /// The next segment is not prepared yet.
    Segment,
    /// The tail's oldest chunk is not written, or a reader holds it.
    Tail,
    /// Too many appends are not written.
    Unwritten,
    NoSegment,
    TooLong,
    NoQueue,
}

impl Hold {
    /// Waiting does not help.
    pub fn is_final(self) -> bool {
        matches!(self, Hold::NoSegment | Hold::TooLong | Hold::NoQueue)
    }
}

impl Log {
    /// Puts an append into the tail, or says why not; then nothing has changed but that a roll may
    /// have begun.
    pub(super) fn try_place(
        &mut self,
        append: Append,
        payload: &[u8],
        fx: &mut Effects<'_>,
    ) -> Result<(), Hold> {
        if self.queues.get(append.queue).is_none() {
            return Err(Hold::NoQueue);
        }
        self.admit(payload.len() as u64)?;
        self.place(append, payload, fx);
        Ok(())
    }

    fn admit(&mut self, bytes: u64) -> Result<(), Hold> {
        if bytes > limits::RECORD_BYTES_MAX as u64 || !self.segments.can_hold(bytes) {
            return Err(Hold::TooLong);
        }
        if self.roll.is_some() {
            return Err(Hold::Roll);
        }
        if self.waiting.len() >= limits::LOG_UNWRITTEN_MAX {
            return Err(Hold::Unwritten);
        }
        let at = self.tail.end();
        let fits = self.segments.fits(at, bytes);
        // A segment is handed over piece by piece.
        let from = if fits { at } else { self.segments.end_of(at) };
        let needed = LogOffset((from.0 + bytes).next_multiple_of(BLOCK_BYTES));
        if self.prepared < needed {
            return Err(if self.no_segment {
                Hold::NoSegment
            } else {
                Hold::Segment
            });
        }
        if !fits {
            return Err(self.begin_roll());
        }
        if !self.tail.make_room(bytes, self.write_end) {
            return Err(Hold::Tail);
        }
        Ok(())
    }

    fn place(&mut self, append: Append, payload: &[u8], fx: &mut Effects<'_>) {
        let log_offset = self.tail.end();
        let timestamp = self.store_timestamp();
        let mut next = self.queues.get(append.queue).expect("asked before");
        let mut stored_at = None;
        let mut rest = payload;
        for _ in 0..append.count {
            let (record, behind) = split_record(rest);
            rest = behind;
            let mut head = [0; RECORD_BYTES_MIN];
            head.copy_from_slice(&record[..RECORD_BYTES_MIN]);
            let counts = has_queue_offset(&head);
            let offset = if counts { next } else { QueueOffset(0) };
            next = next.plus(u64::from(counts));
            stored_at.get_or_insert(offset);
            let at = self.tail.end();
            patch(&mut head, offset.0, at.0, timestamp.0 as i64);
            self.tail.append(&head);
            self.tail.append(&record[RECORD_BYTES_MIN..]);
        }
        assert!(rest.is_empty(), "{} bytes behind {append:?}", rest.len());
        self.queues.advance(append.queue, next);
        self.counters.appends.add(1);
        self.counters.records.add(u64::from(append.count));
        self.counters.bytes.add(payload.len() as u64);
        let stored = Stored {
            log_offset,
            queue_offset: stored_at.expect("an append holds a record"),
            store_timestamp: timestamp,
            flush_timed_out: false,
        };
        if !append.wait {
            answer(append, Ok(stored), fx);
        }
        self.waiting.push_back(Waiting {
            append,
            stored,
            end: self.tail.end(),
            deadline: self.now.plus_millis(self.config.flush_timeout_ms),
            answered: !append.wait,
        });
    }

    /// Store times never fall: index and search by time need that.
    fn store_timestamp(&mut self) -> Millis {
        let (last, wall) = (self.timestamp.0, self.wall.0);
        if last > wall.saturating_add(CLOCK_BEHIND_MS_MAX) && !self.warned_of_clock {
            self.warned_of_clock = true;
            log::warn!(
                "the clock ({wall} ms) is more than a day behind the log's last message ({last} \
                 ms): messages get that message's time until the clock has caught up; check it"
            );
        }
        self.timestamp = self.timestamp.max(self.wall);
        self.timestamp
    }

    /// Refuses an append that cannot be placed and has waited long enough.
    pub(super) fn refuse_held(&mut self, append: Append, hold: Hold, fx: &mut Effects<'_>) {
        let counters = &self.counters;
        let (counter, why) = match hold {
            Hold::Roll => (&counters.busy_roll, AppendRefused::Busy),
            Hold::Segment => (&counters.busy_segment, AppendRefused::Busy),
            Hold::Tail => (&counters.busy_tail, AppendRefused::Busy),
            Hold::Unwritten => (&counters.busy_unwritten, AppendRefused::Busy),
            Hold::NoSegment => (&counters.refused_no_segment, AppendRefused::NoSegment),
            Hold::TooLong => (&counters.refused_too_long, AppendRefused::NoSegment),
            Hold::NoQueue => (&counters.refused_no_queue, AppendRefused::NoQueue),
        };
        counter.add(1);
        answer(append, Err(why), fx);
    }

    // ---- the roll

    /// Closes the segment: the blank record is the last that is written there.
    fn begin_roll(&mut self) -> Hold {
        let at = self.tail.end();
        if !self.tail.make_room(BLANK_BYTES as u64, self.write_end) {
            return Hold::Tail;
        }
        self.tail.append(&self.segments.blank(at));
        self.roll = Some(self.segments.end_of(at));
        self.counters.rolls.add(1);
        Hold::Roll
    }

    /// Whether the closed segment is durable as a whole.
    pub(super) fn can_finish_roll(&self) -> bool {
        self.roll.is_some() && self.flush_end == self.tail.end()
    }

    /// Goes on in the next segment, once the closed one is durable.
    pub(super) fn finish_roll(&mut self, fx: &mut Effects<'_>) {
        let Some(start) = self.roll.filter(|_| self.can_finish_roll()) else {
            return;
        };
        if !self.tail.skip_to(start) {
            return;
        }
        self.roll = None;
        self.write_end = start;
        self.flush_end = start;
        self.answerable = start;
        self.flush_due = None;
        self.marks.advance(Advance::Written(start));
        self.marks.advance(Advance::Durable(start));
        assert!(self.waiting.is_empty(), "what is durable was answered");
        self.publish(fx);
    }
}

/// The first of the records back to back, which the shard has encoded.
fn split_record(records: &[u8]) -> (&[u8], &[u8]) {
    let size = records
        .first_chunk()
        .map_or(0, |size| u32::from_be_bytes(*size)) as usize;
    assert!(
        (RECORD_BYTES_MIN..=records.len()).contains(&size),
        "a record of {size} bytes in {}",
        records.len()
    );
    records.split_at(size)
}

/// Whether the record takes a number in its queue: half and rolled back messages keep 0
/// (store-behaviour 2.2).
fn has_queue_offset(head: &[u8; RECORD_BYTES_MIN]) -> bool {
    let flag = head[SYS_FLAG_AT..].first_chunk().expect("inside the head");
    let transaction = i32::from_be_bytes(*flag) & sys_flag::TRANSACTION;
    transaction == 0 || transaction == sys_flag::TRANSACTION_COMMIT
}
