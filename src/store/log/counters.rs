//! What the log counts, readable on every core.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of the log, each written by the log role alone. They only grow, but for the
        /// last one.
        #[derive(Debug, Default)]
        pub struct LogCounters {
            $($(#[$doc])* pub $name: Counter,)*
        }

        impl LogCounters {
            /// Names and values, in the order of the fields.
            #[must_use]
            pub fn list(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.get()),)*]
            }
        }
    };
}

counters! {
    /// Appends that got offsets (a client batch counts once).
    appends,
    /// Records in them.
    records,
    /// Bytes of these records.
    bytes,
    /// Device writes, done.
    writes,
    /// Bytes of them, whole blocks.
    write_bytes,
    /// Flushes, done: in SYNC one with each write. `flushed_records / flushes` is how many
    /// messages share one.
    flushes,
    /// Records that they made durable.
    flushed_records,
    /// Most records that one flush made durable.
    flushed_records_max,
    /// Segments that were closed with a blank record.
    rolls,
    /// Appends kept aside for a while: no segment, no room in the tail, or a roll.
    parked,
    /// Answered "flush timed out": the device stalls.
    flush_timeouts,
    /// Refused as busy: the next segment was not prepared in time.
    busy_segment,
    /// Refused as busy: readers or the device held the tail.
    busy_tail,
    /// Refused as busy: too many appends were not yet written.
    busy_unwritten,
    /// Refused as busy: a roll took too long.
    busy_roll,
    /// Refused as busy: no room to keep them aside.
    busy_parked,
    /// Refused: no segment can be prepared.
    refused_no_segment,
    /// Refused: longer than a segment or than a record may be.
    refused_too_long,
    /// Refused: the queue is gone.
    refused_no_queue,
    /// Refused: the broker is stopping.
    refused_stopping,
    /// Refused: the log is poisoned. Outcome unknown for those that were stored.
    refused_poisoned,
    /// Failed writes and flushes: after one nothing is acknowledged until restart.
    poisonings,
    /// Not a counter: store time of the last durable record, in milliseconds.
    durable_timestamp_ms,
}

/// One number with one writer.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// The value at some recent moment.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Only for the one writer.
    pub(super) fn add(&self, more: u64) {
        self.set(self.get() + more);
    }

    /// Only for the one writer.
    pub(super) fn raise(&self, to: u64) {
        self.set(self.get().max(to));
    }

    fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}
