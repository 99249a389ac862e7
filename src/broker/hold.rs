//! Pulls that wait for a message (broker-requests 4.6), found by queue, by connection, by time.
//!
//! A pull is held in the same call of `handle` that found nothing for it, and what wakes it comes
//! as a letter: no message can slip in between.
//!
//! ```text
//!  hold -> in its queue's list -> woken -> in `ready` -> taken, answered
//!                 |                            |
//!                 +-- its time comes ----------+-- its connection goes: dropped
//! ```

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use slab::Slab;

use super::pull::Pull;
use super::queue::{Unit, units_of};
use crate::ids::{Conn, Micros, QueueKey, UNIT_BYTES};
use crate::limits::{PARKED_PULLS_MAX, PARKED_PULLS_PER_CONNECTION_MAX};

const NOBODY: u32 = u32::MAX;

/// Neighbours in one of the two lists that a held pull is in.
#[derive(Clone, Copy, Debug)]
struct Link {
    before: u32,
    after: u32,
}

const UNLINKED: Link = Link {
    before: NOBODY,
    after: NOBODY,
};

#[derive(Clone, Copy, Debug)]
struct List {
    first: u32,
    last: u32,
    len: u32,
}

const EMPTY: List = List {
    first: NOBODY,
    last: NOBODY,
    len: 0,
};

/// Which of the two lists.
#[derive(Clone, Copy, Debug)]
enum By {
    Queue = 0,
    Connection = 1,
}

#[derive(Debug)]
struct Held {
    pull: Pull,
    /// Tells it from later ones in the same slot.
    serial: u64,
    links: [Link; 2],
    woken: bool,
}

/// Too many pulls are held: of all, or of this connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyHeld;

/// The held pulls of one shard.
#[derive(Debug)]
pub struct Holds {
    held: Slab<Held>,
    serial: u64,
    by_queue: HashMap<QueueKey, List, FixedState>,
    by_connection: HashMap<Conn, List, FixedState>,
    times: BinaryHeap<Reverse<(Micros, u32, u64)>>,
    ready: VecDeque<(u32, u64)>,
}

impl Holds {
    #[must_use]
    pub fn new(hash_seed: u64) -> Holds {
        let hasher = FixedState::with_seed(hash_seed);
        Holds {
            held: Slab::new(),
            serial: 0,
            by_queue: HashMap::with_hasher(hasher.clone()),
            by_connection: HashMap::with_hasher(hasher.clone()),
            times: BinaryHeap::new(),
            ready: VecDeque::new(),
        }
    }

    /// Whether one more pull of this connection can be held.
    ///
    /// # Errors
    /// [`TooManyHeld`].
    pub fn check_room(&self, conn: Conn) -> Result<(), TooManyHeld> {
        let list = self.by_connection.get(&conn);
        let of_connection = list.map_or(0, |list| list.len as usize);
        let fits =
            self.held.len() < PARKED_PULLS_MAX && of_connection < PARKED_PULLS_PER_CONNECTION_MAX;
        fits.then_some(()).ok_or(TooManyHeld)
    }

    /// Holds a pull until something arrives in its queue, or `until`.
    pub fn hold(&mut self, pull: Pull, until: Micros) {
        self.serial += 1;
        let (serial, key, conn) = (self.serial, pull.key, pull.asker.conn);
        let id = self.held.insert(Held {
            pull,
            serial,
            links: [UNLINKED; 2],
            woken: false,
        }) as u32;
        let list = self.by_queue.entry(key).or_insert(EMPTY);
        push(&mut self.held, list, By::Queue, id);
        let list = self.by_connection.entry(conn).or_insert(EMPTY);
        push(&mut self.held, list, By::Connection, id);
        self.times.push(Reverse((until, id, serial)));
    }

    /// A queue can be read up to `next`; `units` are the last ones of it as told. Wakes every pull
    /// that waits for one of them, or could wait for one that was not told.
    pub fn wake(&mut self, key: QueueKey, next: u64, units: &[u8]) {
        let Some(list) = self.by_queue.get(&key) else {
            return;
        };
        let told_from = next.saturating_sub(units.len() as u64 / UNIT_BYTES);
        let mut id = list.first;
        while id != NOBODY {
            let held = &self.held[id as usize];
            let (after, pull) = (held.links[By::Queue as usize].after, &held.pull);
            let from = pull.offset.max(0) as u64;
            let new = units_of(units).skip(from.saturating_sub(told_from) as usize);
            if from < next && (from < told_from || wants_any(pull, new)) {
                self.make_ready(id);
            }
            id = after;
        }
    }

    /// Wakes every pull of a queue, whatever it waits for.
    pub fn wake_all(&mut self, key: QueueKey) {
        while let Some(list) = self.by_queue.get(&key)
            && list.first != NOBODY
        {
            self.make_ready(list.first);
        }
    }

    fn make_ready(&mut self, id: u32) {
        let held = &mut self.held[id as usize];
        held.woken = true;
        self.ready.push_back((id, held.serial));
        self.unlink(id, By::Queue);
    }

    /// The next woken pull; it is held no longer.
    pub fn take_ready(&mut self) -> Option<Pull> {
        while let Some((id, serial)) = self.ready.pop_front() {
            if self.is(id, serial) {
                return Some(self.take(id));
            }
        }
        None
    }

    #[must_use]
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// The next pull whose time has come; it is held no longer.
    pub fn take_expired(&mut self, now: Micros) -> Option<Pull> {
        self.drop_stale_times();
        let Reverse((until, id, _)) = *self.times.peek()?;
        if until > now {
            return None;
        }
        self.times.pop();
        Some(self.take(id))
    }

    /// When the next pull's time comes.
    #[must_use]
    pub fn deadline(&self) -> Option<Micros> {
        self.times.peek().map(|Reverse((until, ..))| *until)
    }

    /// Drops all pulls of a connection.
    pub fn drop_connection(&mut self, conn: Conn) {
        while let Some(list) = self.by_connection.get(&conn) {
            let id = list.first;
            drop(self.take(id));
        }
    }

    fn is(&self, id: u32, serial: u64) -> bool {
        let held = self.held.get(id as usize);
        held.is_some_and(|held| held.serial == serial)
    }

    fn take(&mut self, id: u32) -> Pull {
        if !self.held[id as usize].woken {
            self.unlink(id, By::Queue);
        }
        self.unlink(id, By::Connection);
        let held = self.held.remove(id as usize);
        self.drop_stale_times();
        held.pull
    }

    fn unlink(&mut self, id: u32, by: By) {
        let held = &self.held[id as usize];
        let (key, conn) = (held.pull.key, held.pull.asker.conn);
        let linked = "a held pull is in the lists of its queue and its connection";
        let list = match by {
            By::Queue => self.by_queue.get_mut(&key).expect(linked),
            By::Connection => self.by_connection.get_mut(&conn).expect(linked),
        };
        unlink(&mut self.held, list, by, id);
        if list.len == 0 {
            match by {
                By::Queue => drop(self.by_queue.remove(&key)),
                By::Connection => drop(self.by_connection.remove(&conn)),
            }
        }
    }

    /// Times of pulls that are gone are dropped when they come to the top, and all at once when
    /// they are the larger part: so the heap stays as small as what is held.
    fn drop_stale_times(&mut self) {
        while let Some(Reverse((_, id, serial))) = self.times.peek()
            && !self.is(*id, *serial)
        {
            self.times.pop();
        }
        if self.times.len() > 2 * self.held.len() + 64 {
            let held = &self.held;
            self.times.retain(|Reverse((_, id, serial))| {
                held.get(*id as usize)
                    .is_some_and(|held| held.serial == *serial)
            });
        }
    }
}

fn wants_any(pull: &Pull, mut units: impl Iterator<Item = Unit>) -> bool {
    units.any(|unit| pull.filter.matches(unit.tags_code))
}

fn push(held: &mut Slab<Held>, list: &mut List, by: By, id: u32) {
    held[id as usize].links[by as usize] = Link {
        before: list.last,
        after: NOBODY,
    };
    match held.get_mut(list.last as usize) {
        Some(last) => last.links[by as usize].after = id,
        None => list.first = id,
    }
    list.last = id;
    list.len += 1;
}

fn unlink(held: &mut Slab<Held>, list: &mut List, by: By, id: u32) {
    let Link { before, after } = held[id as usize].links[by as usize];
    match held.get_mut(before as usize) {
        Some(neighbour) => neighbour.links[by as usize].after = after,
        None => list.first = after,
    }
    match held.get_mut(after as usize) {
        Some(neighbour) => neighbour.links[by as usize].before = before,
        None => list.last = before,
    }
    held[id as usize].links[by as usize] = UNLINKED;
    list.len -= 1;
}
