//! What a core counts about itself, readable from outside at any time.
//!
//! Each core writes its own counters alone, so that counting is a plain load and store. A stall is
//! one input that kept a role busy for longer than the threshold: while it lasted, nothing else on
//! that core went on. It is noted with the role and the kind of input.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::ids::{Micros, RoleId};
use crate::role::{App, Input};

/// A number with one writer and any number of readers.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    pub fn add(&self, more: u64) {
        let value = self.0.load(Ordering::Relaxed);
        self.0.store(value.wrapping_add(more), Ordering::Relaxed);
    }

    pub fn sub(&self, less: u64) {
        let value = self.0.load(Ordering::Relaxed);
        self.0.store(value.wrapping_sub(less), Ordering::Relaxed);
    }

    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub fn raise_to(&self, value: u64) {
        if self.0.load(Ordering::Relaxed) < value {
            self.0.store(value, Ordering::Relaxed);
        }
    }

    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// One core's counters. Numbers since start unless said otherwise.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Counters {
    pub turns: Count,
    /// Longest turn, in microseconds.
    pub longest_turn_us: Count,
    pub stalls: Count,
    pub sleeps: Count,
    /// Sleeps that another core's doorbell ended.
    pub wake_ups: Count,
    pub doorbells_rung: Count,
    /// System calls: `io_uring_enter`.
    pub enters: Count,
    /// System calls of other kinds: doorbells, accepted peers' addresses, files' page cache.
    pub other_calls: Count,
    /// Most letters ever seen waiting on one edge.
    pub edge_depth_max: Count,
    pub letters: Count,

    /// Connections open now.
    pub connections: Count,
    pub accepted: Count,
    pub connected: Count,
    pub frames: Count,
    pub bytes_in: Count,
    pub replies: Count,
    pub bytes_out: Count,
    /// Sends that found the socket full.
    pub sends_blocked: Count,
    /// Receives that found no provided buffer.
    pub receives_starved: Count,
    /// Times that a connection was not read because its out-queue was over the limit.
    pub held_by_out_queue: Count,
    pub refused: Refusals,

    /// Completed writes that asked for a flush.
    pub flushes: Count,
    /// Ranges sent from the tail, by sendfile, and through a pooled read.
    pub ranges_from_tail: Count,
    pub ranges_by_sendfile: Count,
    pub ranges_by_read: Count,

    /// The latest stalls, packed by [`Stall::pack`]; the next goes to `stalls % len`.
    recent: [AtomicU64; 16],
}

/// Connections and replies that were turned away, by cause.
#[derive(Debug, Default)]
pub struct Refusals {
    /// Accepted and closed: `maxConnections` are open.
    pub too_many_connections: Count,
    /// Not accepted: no descriptor or memory was left.
    pub no_descriptor: Count,
    /// Closed: a frame's length was below four or above the limit.
    pub bad_frame_length: Count,
    /// Closed: nothing was read or written for the idle time.
    pub idle: Count,
    /// Closed: the peer took nothing of its out-queue for the stall time.
    pub stalled_reader: Count,
    /// Closed: a log range could not be read after its header was on its way.
    pub range_failed: Count,
    /// Closed: the socket failed.
    pub socket_failed: Count,
    /// Replies to connections that are gone.
    pub reply_to_gone: Count,
}

/// One input that took longer than the threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    pub role: RoleId,
    pub kind: Kind,
    pub length: Micros,
}

/// The kinds of [`Input`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Opened,
    Connected,
    Frame,
    Closed,
    Letter,
    Mark,
    Read,
    Wrote,
    Slow,
    Room,
    Deadline,
    Settled,
    Stop,
}

const KINDS: [Kind; 13] = [
    Kind::Opened,
    Kind::Connected,
    Kind::Frame,
    Kind::Closed,
    Kind::Letter,
    Kind::Mark,
    Kind::Read,
    Kind::Wrote,
    Kind::Slow,
    Kind::Room,
    Kind::Deadline,
    Kind::Settled,
    Kind::Stop,
];

impl Kind {
    pub fn of<A: App>(input: &Input<'_, A>) -> Kind {
        match input {
            Input::Opened { .. } => Kind::Opened,
            Input::Connected { .. } => Kind::Connected,
            Input::Frame { .. } => Kind::Frame,
            Input::Closed { .. } => Kind::Closed,
            Input::Letter { .. } => Kind::Letter,
            Input::Mark(_) => Kind::Mark,
            Input::Read { .. } => Kind::Read,
            Input::Wrote { .. } => Kind::Wrote,
            Input::Slow { .. } => Kind::Slow,
            Input::Room { .. } => Kind::Room,
            Input::Deadline => Kind::Deadline,
            Input::Settled => Kind::Settled,
            Input::Stop => Kind::Stop,
        }
    }
}

impl Stall {
    fn pack(self) -> u64 {
        let length = self.length.0.min((1 << 48) - 1);
        u64::from(self.role.0) << 56 | (self.kind as u64) << 48 | length
    }

    fn unpack(word: u64) -> Option<Stall> {
        (word != 0).then(|| Stall {
            role: RoleId((word >> 56) as u8),
            kind: KINDS[(word >> 48) as usize & 0xff],
            length: Micros(word & ((1 << 48) - 1)),
        })
    }
}

impl Counters {
    /// The latest stalls, in no order.
    #[must_use]
    pub fn recent_stalls(&self) -> Vec<Stall> {
        self.recent
            .iter()
            .filter_map(|word| Stall::unpack(word.load(Ordering::Relaxed)))
            .collect()
    }

    fn note(&self, stall: Stall) {
        let place = self.stalls.get() as usize % self.recent.len();
        self.recent[place].store(stall.pack(), Ordering::Relaxed);
        self.stalls.add(1);
    }

    /// Counters by name, for tables and metrics; refusals begin with "refused: ".
    pub fn each(&self, mut tell: impl FnMut(&'static str, u64)) {
        for (name, count) in [
            ("turns", &self.turns),
            ("longest turn us", &self.longest_turn_us),
            ("stalls", &self.stalls),
            ("sleeps", &self.sleeps),
            ("wake-ups", &self.wake_ups),
            ("doorbells rung", &self.doorbells_rung),
            ("enters", &self.enters),
            ("other calls", &self.other_calls),
            ("edge depth max", &self.edge_depth_max),
            ("letters", &self.letters),
            ("connections", &self.connections),
            ("accepted", &self.accepted),
            ("connected", &self.connected),
            ("frames", &self.frames),
            ("bytes in", &self.bytes_in),
            ("replies", &self.replies),
            ("bytes out", &self.bytes_out),
            ("sends blocked", &self.sends_blocked),
            ("receives starved", &self.receives_starved),
            ("held by out-queue", &self.held_by_out_queue),
            ("flushes", &self.flushes),
            ("ranges from tail", &self.ranges_from_tail),
            ("ranges by sendfile", &self.ranges_by_sendfile),
            ("ranges by read", &self.ranges_by_read),
            (
                "refused: too many connections",
                &self.refused.too_many_connections,
            ),
            ("refused: no descriptor", &self.refused.no_descriptor),
            ("refused: bad frame length", &self.refused.bad_frame_length),
            ("refused: idle", &self.refused.idle),
            ("refused: stalled reader", &self.refused.stalled_reader),
            ("refused: range failed", &self.refused.range_failed),
            ("refused: socket failed", &self.refused.socket_failed),
            ("refused: reply to gone", &self.refused.reply_to_gone),
        ] {
            tell(name, count.get());
        }
    }
}

/// Measures inputs with the processor's own tick, since a clock call for each would be felt.
#[derive(Debug)]
pub(crate) struct Watch {
    last: u64,
    begin: (u64, Micros),
    /// Ticks from which on an input is a stall; unreachable until ticks are understood.
    threshold_ticks: u64,
    threshold: Micros,
    ticks_per_us: u64,
}

/// How long ticks are compared with the clock before stalls are noted.
const LEARNING_US: u64 = 50_000;

impl Watch {
    pub fn new(threshold: Micros, now: Micros) -> Self {
        let ticks = ticks();
        Watch {
            last: ticks,
            begin: (ticks, now),
            threshold_ticks: u64::MAX,
            threshold,
            ticks_per_us: 0,
        }
    }

    /// At the begin of a turn.
    pub fn begin(&mut self, now: Micros) {
        self.last = ticks();
        let elapsed = now.0.saturating_sub(self.begin.1.0);
        if self.ticks_per_us == 0 && elapsed > LEARNING_US {
            self.ticks_per_us = (self.last.wrapping_sub(self.begin.0) / elapsed).max(1);
            self.threshold_ticks = self.threshold.0.saturating_mul(self.ticks_per_us);
        }
    }

    /// After an input was handled, everything since the one before being its share.
    pub fn end(&mut self, role: RoleId, kind: Kind, counters: &Counters) {
        let now = ticks();
        let taken = now.wrapping_sub(self.last);
        self.last = now;
        if taken > self.threshold_ticks {
            counters.note(Stall {
                role,
                kind,
                length: Micros(taken / self.ticks_per_us),
            });
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has the instruction.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> u64 {
    crate::idle::clock().0 * 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_is_noted_with_its_role_and_kind_and_the_oldest_goes_first() {
        let counters = Counters::default();
        for length in 1..=20 {
            counters.note(Stall {
                role: RoleId(63),
                kind: Kind::Stop,
                length: Micros(length),
            });
        }
        let recent = counters.recent_stalls();
        assert_eq!(counters.stalls.get(), 20);
        assert_eq!(recent.len(), 16);
        assert!(
            recent
                .iter()
                .all(|s| s.length.0 > 4 && s.kind == Kind::Stop)
        );
        assert!(recent.iter().all(|s| s.role == RoleId(63)));
    }

    #[test]
    fn only_an_input_over_the_threshold_is_a_stall() {
        let counters = Counters::default();
        let start = crate::idle::clock();
        let mut watch = Watch::new(Micros(2_000), start);
        std::thread::sleep(std::time::Duration::from_micros(LEARNING_US + 10_000));
        watch.begin(crate::idle::clock());
        watch.end(RoleId(1), Kind::Frame, &counters);
        std::thread::sleep(std::time::Duration::from_millis(10));
        watch.end(RoleId(2), Kind::Letter, &counters);
        let recent = counters.recent_stalls();
        assert_eq!(recent.len(), 1);
        assert_eq!((recent[0].role, recent[0].kind), (RoleId(2), Kind::Letter));
        assert!((9_000..1_000_000).contains(&recent[0].length.0));
    }
}
