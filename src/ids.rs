//! RocketMQ's numbers, one type each. The log's positions come from the runtime.

use std::fmt;

pub use shards::{Conn, LogOffset, LogRange, Micros, Millis, RoleId, Ticket};

/// Bytes of one consume queue unit (store-format 6).
pub const UNIT_BYTES: u64 = 20;

/// A message's number in one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct QueueOffset(pub u64);

impl QueueOffset {
    /// The only place that multiplies.
    #[must_use]
    pub fn file_position_bytes(self) -> u64 {
        self.0 * UNIT_BYTES
    }

    #[must_use]
    pub fn plus(self, messages: u64) -> QueueOffset {
        QueueOffset(self.0 + messages)
    }
}

impl fmt::Display for QueueOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// One queue of one topic on this broker: dense, given by control, the same on all cores, never
/// used again for another queue while the process lives.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub struct QueueKey(pub u32);

/// A queue's number within its topic, as clients send it (negative where they mean "any").
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId(pub i32);
