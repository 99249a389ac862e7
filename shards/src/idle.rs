//! Clocks, and what a core does when nothing is left to do.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::ids::{Micros, Millis};
use crate::role::Now;

/// What a core does when nothing is left to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// Looks again and again: fastest, and takes its whole CPU. Refused where two cores share one.
    Spin,
    /// Looks again for this long, then sleeps in the kernel. Treated as `Park` where two cores
    /// share a CPU.
    Adaptive { spin: Micros },
    /// Sleeps in the kernel at once.
    Park,
}

impl Idle {
    /// Until when to look again rather than sleep, for a core that became idle at `now`.
    #[must_use]
    pub fn spins_until(self, now: Micros) -> Micros {
        match self {
            Idle::Spin => Micros(u64::MAX),
            Idle::Adaptive { spin } => Micros(now.0.saturating_add(spin.0)),
            Idle::Park => now,
        }
    }
}

/// The monotonic clock.
#[must_use]
pub fn clock() -> Micros {
    let time = clock_gettime(ClockId::Monotonic);
    Micros(time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000)
}

/// Both clocks, for a turn.
#[must_use]
pub fn now() -> Now {
    let wall = clock_gettime(ClockId::Realtime);
    Now {
        mono: clock(),
        wall: Millis(wall.tv_sec.max(0) as u64 * 1000 + wall.tv_nsec as u64 / 1_000_000),
    }
}

/// The time from `now` until `deadline`, `None` without one.
#[must_use]
pub fn until(deadline: Option<Micros>, now: Micros) -> Option<Duration> {
    deadline.map(|at| Duration::from_micros(at.0.saturating_sub(now.0)))
}

/// The earlier of two deadlines.
#[must_use]
pub fn earlier(one: Option<Micros>, other: Option<Micros>) -> Option<Micros> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spinning_has_its_time() {
        let now = Micros(100);
        assert_eq!(Idle::Park.spins_until(now), now);
        let adaptive = Idle::Adaptive { spin: Micros(50) };
        assert_eq!(adaptive.spins_until(now), Micros(150));
        assert_eq!(Idle::Spin.spins_until(now), Micros(u64::MAX));
    }

    #[test]
    fn a_past_deadline_is_due_at_once_and_the_earlier_one_counts() {
        assert_eq!(until(Some(Micros(5)), Micros(9)), Some(Duration::ZERO));
        assert_eq!(until(None, Micros(9)), None);
        assert_eq!(earlier(Some(Micros(5)), Some(Micros(4))), Some(Micros(4)));
        assert_eq!(earlier(None, Some(Micros(4))), Some(Micros(4)));
        assert_eq!(earlier(Some(Micros(4)), None), Some(Micros(4)));
    }
}
