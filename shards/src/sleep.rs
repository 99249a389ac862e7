//! How a core that goes to sleep and one that has something for it never miss each other.
//!
//! The sleeper says that it will sleep, then looks once more at everything that could have reached
//! it, and only then sleeps. The sender tells, then looks whether the receiver sleeps. With a full
//! fence between the two steps on both sides, at least one of them sees the other.

use crate::sync::{AtomicBool, Ordering, fence};

/// Set while its core sleeps or is about to.
#[derive(Debug, Default)]
pub(crate) struct SleepFlag(AtomicBool);

impl SleepFlag {
    /// The sleeper: after this, look at every inlet and mark again, and only then sleep.
    pub fn fall_asleep(&self) {
        self.0.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    pub fn wake_up(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// The sender, after it told something: whether it is the one to wake the sleeper.
    pub fn must_wake(&self) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::Relaxed)
    }
}
