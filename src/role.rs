//! The application of the runtime: ringmq's letters and marks, and who tells whom.
//!
//! Small facts travel as fields; names, frames and units travel as bytes beside the letter
//! ("payload"). Cold payloads are JSON ([`crate::broker::news`]), hot ones are drawn here.

use std::net::SocketAddr;

use shards::mesh::EdgeSize;

use crate::ids::{Conn, LogOffset, Millis, QueueKey, QueueOffset, RoleId};
use crate::limits;

/// The one application of `shards`.
#[derive(Debug)]
pub struct Ringmq;

impl shards::App for Ringmq {
    type Letter = Letter;
    type Mark = Mark;
}

pub type Input<'a> = shards::Input<'a, Ringmq>;
pub type Effect = shards::Effect<Ringmq>;
pub type Effects<'a> = shards::Effects<'a, Ringmq>;

/// Roles by number. Shards follow from [`SHARD_0`] on.
pub const CONTROL: RoleId = RoleId(0);
pub const LOG: RoleId = RoleId(1);
pub const DISPATCH: RoleId = RoleId(2);
pub const INDEX: RoleId = RoleId(3);
pub const NAMESRV: RoleId = RoleId(4);
pub const SHARD_0: RoleId = RoleId(8);
pub const SHARDS_MAX: usize = shards::mesh::ROLES_MAX - 8;

/// The role of shard number `number`.
#[must_use]
pub fn shard(number: usize) -> RoleId {
    assert!(
        number < SHARDS_MAX,
        "shard {number} of at most {SHARDS_MAX}"
    );
    RoleId(SHARD_0.0 + number as u8)
}

/// Which of `shards` shards owns a queue: its pull state, parked pulls and consumer offsets.
#[must_use]
pub fn owner(queue: QueueKey, shards: usize) -> RoleId {
    shard(queue.0 as usize % shards)
}

/// One number each, published by one role, read by all; they only grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// log: end of what is in the tail and written to the segment.
    Written(LogOffset),
    /// log: end of what is on stable storage.
    Durable(LogOffset),
    /// log: end of what consumers, index and replicas may see.
    Visible(LogOffset),
    /// control: start of the first segment that is still there.
    First(LogOffset),
    /// control: end of what the log may append to.
    Prepared(LogOffset),
    /// dispatch: end of what is in the consume queues.
    Dispatched(LogOffset),
    /// index: end of what is in the index.
    Indexed(LogOffset),
    /// log: 1 once a write or flush has failed.
    Poisoned(u64),
    /// dispatch: end of what is on stable storage in the consume queue files.
    QueuesDurable(LogOffset),
    /// control: 1 while the disk is too full for sends (store-behaviour 7.2).
    DiskFull(u64),
    /// control: 1 while the next segment cannot be prepared (no space, or the device fails).
    NoSegment(u64),
}

impl shards::Mark for Mark {
    const KINDS: usize = 11;

    fn new(kind: usize, value: u64) -> Self {
        let at = LogOffset(value);
        match kind {
            0 => Mark::Written(at),
            1 => Mark::Durable(at),
            2 => Mark::Visible(at),
            3 => Mark::First(at),
            4 => Mark::Prepared(at),
            5 => Mark::Dispatched(at),
            6 => Mark::Indexed(at),
            7 => Mark::Poisoned(value),
            8 => Mark::QueuesDurable(at),
            9 => Mark::DiskFull(value),
            10 => Mark::NoSegment(value),
            _ => unreachable!("{kind} is no kind of mark"),
        }
    }

    fn kind(self) -> usize {
        match self {
            Mark::Written(_) => 0,
            Mark::Durable(_) => 1,
            Mark::Visible(_) => 2,
            Mark::First(_) => 3,
            Mark::Prepared(_) => 4,
            Mark::Dispatched(_) => 5,
            Mark::Indexed(_) => 6,
            Mark::Poisoned(_) => 7,
            Mark::QueuesDurable(_) => 8,
            Mark::DiskFull(_) => 9,
            Mark::NoSegment(_) => 10,
        }
    }

    fn value(self) -> u64 {
        match self {
            Mark::Written(at)
            | Mark::Durable(at)
            | Mark::Visible(at)
            | Mark::First(at)
            | Mark::Prepared(at)
            | Mark::Dispatched(at)
            | Mark::Indexed(at)
            | Mark::QueuesDurable(at) => at.0,
            Mark::Poisoned(value) | Mark::DiskFull(value) | Mark::NoSegment(value) => value,
        }
    }
}

/// The kinds of these marks, for [`shards::Role::woken_by`]; their values do not matter.
#[must_use]
pub fn kinds(marks: &[Mark]) -> u64 {
    marks
        .iter()
        .fold(0, |kinds, mark| kinds | 1 << shards::Mark::kind(*mark))
}

/// What roles tell each other. `ask` numbers are the asker's own and come back in the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Letter {
    // ---- the way of a send
    /// shard -> log. Payload: `count` encoded records of one queue back to back, each complete but
    /// for queue offset, log offset and store time. They get consecutive offsets, one store time,
    /// one segment. The shard holds a credit: at most `APPENDS_IN_FLIGHT_MAX` are unanswered.
    Append {
        ask: u64,
        queue: QueueKey,
        count: u32,
        wait: bool,
    },
    /// log -> shard: each append is answered exactly once; at durable, or when assigned if it
    /// does not wait.
    Appended {
        ask: u64,
        result: Result<Stored, AppendRefused>,
    },

    // ---- the way of a pull
    /// dispatch -> owner: everything of `queue` below `next` can be read. Payload: the last units
    /// of it (20 bytes each as in the file, oldest first), possibly none: then read the file.
    /// `first_in_file` is the queue's smallest offset as far as dispatch knows.
    Readable { queue: QueueKey, next: QueueOffset },
    /// dispatch -> owner: smallest offset whose record is still in the log.
    QueueFirst { queue: QueueKey, first: QueueOffset },

    // ---- requests handed on to who owns what they ask for
    /// shard -> owner shard, control: a whole frame (without its length word) as payload. Answered
    /// by
    /// `Reply`, later or never.
    Forward { conn: Conn, peer: SocketAddr },
    /// any -> the connection's shard: `head` bytes of a whole frame (length word first), then log
    /// ranges of 12 bytes each (u64 offset, u32 length, native order). `more`: the frame's memory
    /// part goes on in the next `Reply` to the same connection from the same role.
    Reply { conn: Conn, head: u32, more: bool },
    /// shard -> whoever was handed something of it: the connection is gone.
    Gone { conn: Conn },

    // ---- topics, groups, settings: control writes, everybody has a copy
    /// shard -> control: make a topic for a send (broker-requests 1.4). Payload: JSON
    /// `news::NewTopic`.
    CreateTopic { ask: u64 },
    /// control -> shard. On success the shard has heard the topic's news before.
    TopicCreated { ask: u64, ok: bool },
    /// control -> shard, log, dispatch, index: JSON `news::News` as payload. Answered by `Heard`.
    News { version: u64 },
    /// The receiver has taken over all news up to `version`.
    Heard { version: u64 },
    /// shard -> control: JSON `news::Offsets`, the group offsets that changed; `last` ends a round.
    /// control -> shard, at `Fetch`.
    Offsets { last: bool },
    /// control -> shard: send all changed offsets now; answered by `Offsets` with `last`.
    FetchOffsets,

    // ---- look-ups
    /// shard -> index: payload: JSON `news::KeyQuery`.
    FindKey { ask: u64 },
    /// index -> shard: payload: log offsets, 8 bytes each, native order, newest first.
    FoundKey {
        ask: u64,
        last_update: Millis,
        last_offset: LogOffset,
    },
}

/// Where an append went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Of the first record; the others follow without a gap.
    pub log_offset: LogOffset,
    pub queue_offset: QueueOffset,
    pub store_timestamp: Millis,
    /// The flush had not ended by `syncFlushTimeout`: stored, outcome of the flush open (code 10).
    pub flush_timed_out: bool,
}

/// Why nothing was acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppendRefused {
    /// Nothing was stored: the log waits for a segment or for room; try again or answer busy.
    #[error("the log has no room at the moment")]
    Busy,
    /// Nothing was stored: no segment can be made.
    #[error("no segment could be prepared: no space, or the device fails")]
    NoSegment,
    /// A write or flush failed: the outcome is unknown, and nothing is acknowledged until restart.
    #[error("a write or flush of the log failed; restart the broker to recover")]
    Poisoned,
    /// The queue does not exist (its topic was deleted meanwhile).
    #[error("no such queue")]
    NoQueue,
    /// The broker is stopping.
    #[error("the broker is stopping")]
    Stopping,
}

/// The size of the edge from one role to another, `None` where no letter ever goes.
#[must_use]
pub fn edge(from: RoleId, to: RoleId) -> Option<EdgeSize> {
    let is_shard = |role: RoleId| role >= SHARD_0;
    match (from, to) {
        (from, to) if from == to => None,
        (NAMESRV, _) | (_, NAMESRV) => None,
        (from, LOG) if is_shard(from) => Some(limits::APPEND_EDGE),
        (LOG, to) if is_shard(to) => Some(limits::APPENDED_EDGE),
        (DISPATCH, to) if is_shard(to) => Some(limits::READABLE_EDGE),
        _ => Some(limits::ORDINARY_EDGE),
    }
}
