//! A small file that is replaced as a whole whenever its table changed, one write at a time:
//! changes that come while one is under way share the next.

use std::path::PathBuf;

use shards::files::{Job, JobDone};

use crate::ids::{Micros, Ticket};
use crate::role::{Effect, Effects};

/// A failed save is tried again after this long.
const RETRY_MS: u64 = 1000;

#[derive(Debug)]
pub struct Saver {
    path: PathBuf,
    ticket: Ticket,
    /// Counts changes; `saved` of them are on stable storage.
    changes: u64,
    saved: u64,
    in_flight: Option<u64>,
    retry_at: Micros,
}

impl Saver {
    #[must_use]
    pub fn new(path: PathBuf, ticket: Ticket) -> Self {
        Saver {
            path,
            ticket,
            changes: 0,
            saved: 0,
            in_flight: None,
            retry_at: Micros(0),
        }
    }

    /// The table changed.
    pub fn changed(&mut self) {
        self.changes += 1;
    }

    /// The number of the newest change, with which [`Saver::is_saved`] tells when it is on stable
    /// storage.
    #[must_use]
    pub fn newest(&self) -> u64 {
        self.changes
    }

    #[must_use]
    pub fn is_saved(&self, change: u64) -> bool {
        self.saved >= change
    }

    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.saved == self.changes
    }

    /// Starts a save if there is something to save and none is under way.
    pub fn save(&mut self, now: Micros, fx: &mut Effects<'_>, content: impl FnOnce() -> Vec<u8>) {
        if self.is_clean() || self.in_flight.is_some() || now < self.retry_at {
            return;
        }
        self.in_flight = Some(self.changes);
        let job = Job::ReplaceFile {
            path: self.path.clone(),
            bytes: content(),
        };
        fx.push(Effect::Slow {
            ticket: self.ticket,
            job,
        });
    }

    pub fn done(&mut self, now: Micros, done: &JobDone) {
        let Some(change) = self.in_flight.take() else {
            return;
        };
        match done {
            JobDone::Failed(error) => {
                let path = self.path.display();
                log::error!("{path} cannot be saved ({error}); trying again");
                self.retry_at = now.plus_millis(RETRY_MS);
            }
            JobDone::Done | JobDone::Space(_) => self.saved = change,
        }
    }

    /// When to call [`Saver::save`] again.
    #[must_use]
    pub fn deadline(&self) -> Option<Micros> {
        let waits = !self.is_clean() && self.in_flight.is_none();
        waits.then_some(self.retry_at)
    }
}
