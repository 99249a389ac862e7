//! A queue of this shard: where it begins and ends, and the units of its newest messages.
//!
//! ```text
//!  first                     window                 next
//!    |   only in the file      |  in memory, too      |
//!    +-------------------------+----------------------+
//! ```
//!
//! A unit is 20 bytes, big-endian: log offset u64, size i32, tags code i64 (store-format 6).

use std::collections::VecDeque;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use shards::FileRef;
use shards::ids::FileDir;

use super::groups::TagFilter;
use crate::ids::{LogOffset, LogRange, QueueKey, QueueOffset, RoleId, UNIT_BYTES};
use crate::limits::{
    FRAME_BYTES_MAX, QUEUES_MAX, WINDOW_UNITS_FULL, WINDOW_UNITS_MAX, WINDOW_UNITS_MIN,
};
use crate::role;
use crate::wire::record::RECORD_BYTES_MIN;

/// One message of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    pub at: LogOffset,
    pub size: u32,
    pub tags_code: i64,
}

impl Unit {
    /// Reads a unit.
    ///
    /// # Panics
    /// If `bytes` are not [`UNIT_BYTES`] long: the caller cuts them.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Unit {
        let cut = "a unit is 20 bytes";
        Unit {
            at: LogOffset(u64::from_be_bytes(bytes[..8].try_into().expect(cut))),
            size: u32::from_be_bytes(bytes[8..12].try_into().expect(cut)),
            tags_code: i64::from_be_bytes(bytes[12..20].try_into().expect(cut)),
        }
    }

    /// Fills the places before a queue's first message; never a message (store-behaviour 6.1).
    #[must_use]
    pub fn is_filler(self) -> bool {
        self.at.0 == 0 && self.size == i32::MAX as u32 && self.tags_code == 0
    }

    /// A place in the file that was never written.
    #[must_use]
    pub fn is_blank(self) -> bool {
        self.size == 0
    }

    /// Whether it points at what can be a whole record and is still in the log.
    #[must_use]
    pub fn is_in_log(self, first: LogOffset) -> bool {
        let size = self.size as usize;
        (RECORD_BYTES_MIN..=SERVED_RECORD_BYTES_MAX).contains(&size) && self.at >= first
    }

    #[must_use]
    pub fn end(self) -> LogOffset {
        self.at.plus(u64::from(self.size))
    }
}

/// A longer record does not fit a frame; Java's stores can hold none either.
const SERVED_RECORD_BYTES_MAX: usize = FRAME_BYTES_MAX - 64 * 1024;

/// The units of a piece of a queue file.
pub fn units_of(bytes: &[u8]) -> impl Iterator<Item = Unit> + Clone {
    bytes.chunks_exact(UNIT_BYTES as usize).map(Unit::decode)
}

/// One queue of one topic, owned here.
#[derive(Debug)]
pub struct Queue {
    pub topic: Rc<str>,
    pub id: i32,
    /// Smallest offset whose record is in the log.
    pub first: u64,
    /// Everything below can be read.
    pub next: u64,
    /// The units of `next - window.len() .. next`.
    window: VecDeque<Unit>,
    dir: Option<Arc<FileDir>>,
}

/// Where a pull's offset stands in its queue (broker-requests 4.3, store-behaviour 8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Nothing was ever readable.
    Empty,
    TooSmall,
    AtEnd,
    Beyond,
    /// There are messages from here on.
    Inside(u64),
}

impl Queue {
    #[must_use]
    pub fn new(topic: Rc<str>, id: i32, first: u64, next: u64) -> Queue {
        Queue {
            topic,
            id,
            first: first.min(next),
            next,
            window: VecDeque::new(),
            dir: None,
        }
    }

    #[must_use]
    pub fn place(&self, offset: i64) -> Place {
        if self.next == 0 {
            return Place::Empty;
        }
        let Ok(offset) = u64::try_from(offset) else {
            return Place::TooSmall;
        };
        if offset < self.first {
            Place::TooSmall
        } else if offset == self.next {
            Place::AtEnd
        } else if offset > self.next {
            Place::Beyond
        } else {
            Place::Inside(offset)
        }
    }

    /// Where the window begins.
    #[must_use]
    pub fn window_start(&self) -> u64 {
        self.next - self.window.len() as u64
    }

    /// The units from `offset` on; the window must hold it.
    pub fn units_from(&self, offset: u64) -> impl Iterator<Item = Unit> + '_ {
        assert!(
            self.window_start() <= offset && offset <= self.next,
            "{offset} is not in the window of {}..{}",
            self.window_start(),
            self.next
        );
        let skip = (offset - self.window_start()) as usize;
        self.window.range(skip..).copied()
    }

    /// The unit at `offset`, if the window holds it.
    #[must_use]
    pub fn unit(&self, offset: u64) -> Option<Unit> {
        let index = offset.checked_sub(self.window_start())?;
        self.window.get(usize::try_from(index).ok()?).copied()
    }

    /// Takes over that everything below `next` can be read; `units` are the last ones of it.
    /// `keep` is how many the window may hold.
    fn advance(&mut self, next: u64, units: &[u8], keep: usize) {
        if next <= self.next {
            return;
        }
        let told = units.len() as u64 / UNIT_BYTES;
        let new = next - self.next;
        if told < new {
            self.window.clear();
        }
        let known = told.saturating_sub(new) as usize;
        for unit in units_of(units).skip(known) {
            while self.window.len() >= keep {
                self.window.pop_front();
            }
            self.window.push_back(unit);
        }
        self.next = next;
    }

    /// The file that holds `offset`, the position in it, and how many units follow from there in
    /// that file.
    pub fn file(&mut self, offset: u64, files: &QueueFiles) -> (FileRef, u64, u64) {
        let dir = self.dir.get_or_insert_with(|| {
            let name = self.id.to_string();
            Arc::new(FileDir {
                path: files.dir.join(&*self.topic).join(name),
                digits: 20,
                file_bytes: files.file_bytes,
            })
        });
        let position = QueueOffset(offset).file_position_bytes();
        let at = position % files.file_bytes;
        let file = FileRef {
            dir: dir.clone(),
            number: position - at,
        };
        (file, at, (files.file_bytes - at) / UNIT_BYTES)
    }
}

/// Where the queue files are.
#[derive(Clone, Copy, Debug)]
pub struct QueueFiles<'a> {
    /// `store/consumequeue`.
    pub dir: &'a Path,
    /// `mappedFileSizeConsumeQueue`, whole units.
    pub file_bytes: u64,
}

/// All queues that this shard owns.
#[derive(Debug)]
pub struct Queues {
    number: usize,
    shards: usize,
    /// By `QueueKey / shards`.
    queues: Vec<Option<Box<Queue>>>,
    /// Ends of queues that dispatch told before control told their topic.
    early: HashMap<QueueKey, u64, FixedState>,
    window_units: usize,
}

impl Queues {
    #[must_use]
    pub fn new(number: usize, shards: usize, hash_seed: u64) -> Queues {
        Queues {
            number,
            shards,
            queues: Vec::new(),
            early: HashMap::with_hasher(FixedState::with_seed(hash_seed)),
            window_units: 0,
        }
    }

    /// The shard that owns a queue.
    #[must_use]
    pub fn owner(&self, key: QueueKey) -> RoleId {
        role::owner(key, self.shards)
    }

    #[must_use]
    pub fn owns(&self, key: QueueKey) -> bool {
        self.owner(key) == role::shard(self.number)
    }

    fn index(&self, key: QueueKey) -> usize {
        assert!(self.owns(key), "{key:?} is not of shard {}", self.number);
        key.0 as usize / self.shards
    }

    /// Adds a queue if it is not there yet.
    pub fn add(&mut self, key: QueueKey, make: impl FnOnce() -> Queue) {
        let index = self.index(key);
        if self.queues.len() <= index {
            self.queues.resize_with(index + 1, || None);
        }
        let early = self.early.remove(&key);
        self.queues[index].get_or_insert_with(|| {
            let mut queue = make();
            queue.next = early.unwrap_or(queue.next).max(queue.next);
            Box::new(queue)
        });
    }

    pub fn remove(&mut self, key: QueueKey) {
        let index = self.index(key);
        if let Some(queue) = self.queues.get_mut(index).and_then(Option::take) {
            self.window_units -= queue.window.len();
        }
    }

    #[must_use]
    pub fn get(&self, key: QueueKey) -> Option<&Queue> {
        self.queues.get(self.index(key))?.as_deref()
    }

    pub fn get_mut(&mut self, key: QueueKey) -> Option<&mut Queue> {
        let index = self.index(key);
        self.queues.get_mut(index)?.as_deref_mut()
    }

    /// See `Letter::Readable`. Of a queue that is not known yet (or no longer) the end is kept.
    pub fn readable(&mut self, key: QueueKey, next: QueueOffset, units: &[u8]) {
        let keep = if self.window_units < WINDOW_UNITS_FULL {
            WINDOW_UNITS_MAX
        } else {
            WINDOW_UNITS_MIN
        };
        let index = self.index(key);
        let Some(queue) = self.queues.get_mut(index).and_then(Option::as_mut) else {
            if self.early.len() < QUEUES_MAX {
                self.early.insert(key, next.0);
            }
            return;
        };
        self.window_units -= queue.window.len();
        queue.advance(next.0, units, keep);
        self.window_units += queue.window.len();
    }
}

/// How much one pull may bring of memory or of disk (4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    pub bytes: u32,
    pub messages: u32,
}

/// What bounds one pull's look through a queue.
#[derive(Clone, Copy, Debug)]
pub struct ScanLimits {
    /// Start of the log.
    pub first: LogOffset,
    /// End of what may be seen of it.
    pub visible: LogOffset,
    /// What lies less than this behind `visible` counts as in memory.
    pub memory_bytes: u64,
    pub hot: Transfer,
    pub cold: Transfer,
}

/// What a look through a queue has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scanned {
    /// Units looked at.
    pub units: u64,
    pub messages: u32,
    /// A unit whose record is no longer in the log came first.
    pub removed: bool,
}

/// Looks through units for what a pull wants (store-behaviour 8); leaves the records' ranges,
/// neighbours merged, in `ranges`.
pub fn scan(
    units: impl Iterator<Item = Unit>,
    wanted: i32,
    filter: &TagFilter,
    limits: &ScanLimits,
    ranges: &mut Vec<LogRange>,
) -> Scanned {
    let mut scanned = Scanned::default();
    let mut bytes = 0;
    for unit in units {
        if unit.is_blank() || (unit.is_in_log(limits.first) && unit.end() > limits.visible) {
            break;
        }
        if scanned.messages > 0 && is_full(unit, scanned.messages, bytes, wanted, limits) {
            break;
        }
        scanned.units += 1;
        if !filter.matches(unit.tags_code) && !unit.is_filler() {
            continue;
        }
        if !unit.is_in_log(limits.first) {
            scanned.removed |= scanned.messages == 0;
            continue;
        }
        bytes += u64::from(unit.size);
        scanned.messages += 1;
        push_range(ranges, unit);
    }
    scanned
}

/// Whether one more message would be too much. Asked only once there is one.
fn is_full(unit: Unit, messages: u32, bytes: u64, wanted: i32, limits: &ScanLimits) -> bool {
    if i64::from(messages) + 1 > i64::from(wanted) {
        return true;
    }
    let behind = limits.visible.0.saturating_sub(unit.at.0);
    let most = if behind <= limits.memory_bytes {
        limits.hot
    } else {
        limits.cold
    };
    bytes + u64::from(unit.size) > u64::from(most.bytes) || messages >= most.messages
}

/// Neighbours are always of one segment: between segments there is a blank record.
fn push_range(ranges: &mut Vec<LogRange>, unit: Unit) {
    if let Some(last) = ranges.last_mut()
        && last.end() == unit.at
    {
        last.len += unit.size;
        return;
    }
    ranges.push(LogRange {
        at: unit.at,
        len: unit.size,
    });
}
