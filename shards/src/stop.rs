//! Orders from outside the cores, and how the outside learns that a role has stopped.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use crate::ids::{ListenerId, RoleId};
use crate::listen::Handed;

/// What a core is told that no role tells it.
pub(crate) enum Post {
    Handed(Handed),
    /// The listener listens: accept from it.
    Open(ListenerId),
    StopAccepting,
    StopReading,
    Stop(RoleId),
    /// Send what is queued, close everything, end.
    Exit,
}

/// One core's mailbox for what is rare. Reading an empty one is one load.
#[derive(Default)]
pub(crate) struct Mailbox {
    full: AtomicBool,
    posts: Mutex<Vec<Post>>,
}

impl Mailbox {
    /// The core's doorbell must be rung after this.
    pub fn post(&self, post: Post) {
        lock(&self.posts).push(post);
        self.full.store(true, Ordering::Release);
    }

    pub fn is_full(&self) -> bool {
        self.full.load(Ordering::Acquire)
    }

    /// Moves all posts to `into`, unless someone is posting just now: then look again later.
    pub fn take(&self, into: &mut Vec<Post>) {
        let mut posts = match self.posts.try_lock() {
            Ok(posts) => posts,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        self.full.store(false, Ordering::Relaxed);
        into.append(&mut posts);
    }
}

/// Which roles have left `Effect::Stopped`, and which cores have ended.
#[derive(Default)]
pub(crate) struct Stops {
    state: Mutex<StopState>,
    changed: Condvar,
}

#[derive(Default)]
struct StopState {
    /// A bit per role.
    stopped: u64,
    cores_ended: usize,
}

impl Stops {
    pub fn stopped(&self, role: RoleId) {
        lock(&self.state).stopped |= 1 << role.0;
        self.changed.notify_all();
    }

    pub fn core_ended(&self) {
        lock(&self.state).cores_ended += 1;
        self.changed.notify_all();
    }

    /// Waits until all of `roles` have stopped. Gives back those that have not by `until`, or by
    /// the end of a core, a bit each.
    pub fn wait(&self, roles: u64, until: Instant) -> u64 {
        let mut state = lock(&self.state);
        loop {
            let missing = roles & !state.stopped;
            let left = until.saturating_duration_since(Instant::now());
            if missing == 0 || left == Duration::ZERO || state.cores_ended > 0 {
                return missing;
            }
            state = match self.changed.wait_timeout(state, left) {
                Ok((state, _)) => state,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }
}

/// The data behind these locks is whole between any two statements.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
