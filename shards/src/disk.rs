//! One core's disk: the log's writes and reads, queue and index files.
//!
//! ```text
//!  Effect::Write  blocks of the tail + snapshot -> segment -> flush     ring or this thread
//!  Effect::Sync   flush of a segment, or of a file and its new names    ring
//!  Effect::Put    queue and index files, through the page cache         this thread
//!  Effect::Read   tail, else page cache, else the device                this thread, else ring
//! ```
//!
//! The core's loop calls the verbs, hands completions to [`Disk::completed`] and takes what is
//! ready with [`Disk::next_answer`]. Nothing is decided here: a write answers "every byte and the
//! flush" or an error, and what an error means is the log role's business.
//!
//! A durable write is a write linked to a flush, and both results count: a failed or short write
//! cancels its flush, a short one is a failure, and no other way of chaining is used, since those
//! lose the flush's answer or flush after a short write. Memory and descriptors of an operation
//! belong to its slot until its last completion.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::path::PathBuf;
use std::sync::Arc;

use io_uring::types::Timespec;
use rustix::fd::{AsFd, BorrowedFd};

use self::writes::write_error;

use crate::chunk::Tail;
use crate::descriptors::Descriptors;
use crate::faults::{FaultAt, FaultKind, Faults};
use crate::ids::{FileRef, LogOffset, RoleId, Ticket};
use crate::ring::Ring;
use crate::role::{BLOCK_BYTES, LastBlock, ReadAt, ReadError, SyncTarget, WriteError};
use crate::segments::{Segment, Segments, SegmentsView};

mod reads;
mod writes;

/// One buffer of the pool for reads; longer reads get a buffer of their own.
pub const READ_BYTES: usize = 256 * 1024;

/// Writes and flushes in the ring at once; more wait here.
const WRITES_MAX: usize = 64;

/// How a durable write is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// A write linked to a flush, through the ring.
    Ring,
    /// `pwritev2` with `RWF_DSYNC` on the core's own thread.
    Blocking,
}

/// What a core's disk is made of.
#[derive(Debug)]
pub struct DiskPlan {
    pub engine: Engine,
    /// Queue and index files kept open.
    pub files_max: usize,
    /// Buffers of [`READ_BYTES`]: so many reads can be under way or unanswered.
    pub reads_max: usize,
    pub faults: Option<Faults>,
}

/// Who gets an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asker {
    pub role: RoleId,
    pub ticket: Ticket,
}

/// The fields of `Effect::Write`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TailWrite {
    pub at: LogOffset,
    pub len: u32,
    pub last: Option<LastBlock>,
    pub sync: bool,
}

impl TailWrite {
    fn bytes(self) -> u32 {
        self.len + self.last.map_or(0, |_| BLOCK_BYTES as u32)
    }
}

/// Bytes that were read, in a buffer of the pool: give it back with [`Disk::give_back`].
#[derive(Debug)]
pub struct ReadBytes {
    buffer: Box<[u8]>,
    len: usize,
}

impl std::ops::Deref for ReadBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.buffer[..self.len]
    }
}

#[derive(Debug)]
pub enum Outcome {
    Wrote(Result<(), WriteError>),
    Read(Result<ReadBytes, ReadError>),
}

/// What became of one verb.
#[derive(Debug)]
pub struct Answer {
    pub asker: Asker,
    pub outcome: Outcome,
}

/// A descriptor that an operation keeps open.
enum Held {
    Segment(Arc<Segment>),
    File(Arc<File>),
    Dir(File),
}

impl Held {
    /// The descriptor that a flush goes to.
    fn flush_fd(&self) -> RawFd {
        match self {
            Held::Segment(segment) => segment.direct().as_raw_fd(),
            Held::File(file) => file.as_raw_fd(),
            Held::Dir(dir) => dir.as_raw_fd(),
        }
    }

    fn read_fd(&self) -> BorrowedFd<'_> {
        match self {
            Held::Segment(segment) => segment.buffered(),
            Held::File(file) => file.as_fd(),
            Held::Dir(dir) => dir.as_fd(),
        }
    }
}

/// What a slot is busy with.
enum Work {
    Nothing,
    Write {
        write: TailWrite,
        segment: Arc<Segment>,
        position: u64,
        /// A flush that will be said to have failed.
        bad_flush: Option<i32>,
        written: Option<i32>,
        flushed: Option<i32>,
    },
    Sync {
        held: Held,
        /// Directories that are flushed after the file.
        dirs: Vec<PathBuf>,
        done: Vec<PathBuf>,
    },
    Read {
        held: Held,
        position: u64,
        bytes: ReadBytes,
        filled: usize,
    },
}

struct Slot {
    asker: Asker,
    work: Work,
    vectors: [libc::iovec; 3],
    vector_count: u32,
    delay: Timespec,
}

// SAFETY: the vectors are used only while `work` keeps what they point to; they are an argument in
// waiting, not shared memory.
unsafe impl Send for Slot {}

/// Parts of a slot's operation in the ring.
const WRITE: u8 = 0;
const FLUSH: u8 = 1;
const READ: u8 = 2;
const DELAY: u8 = 3;

enum Waiting {
    Write(TailWrite),
    Sync(SyncTarget),
}

/// See the module.
pub struct Disk {
    engine: Engine,
    view: SegmentsView,
    tail: Tail,
    descriptors: Descriptors,
    removals: u64,
    /// As many as can ever be busy; they never move, since the kernel reads their vectors.
    slots: Box<[Slot]>,
    free: Vec<u32>,
    /// Slots taken by writes and flushes.
    writes: usize,
    waiting: VecDeque<(Asker, Waiting)>,
    reads_left: usize,
    buffers: Vec<Box<[u8]>>,
    waiting_reads: VecDeque<(Asker, ReadAt, u32)>,
    answers: VecDeque<Answer>,
    /// Cleared when a file system does not know `RWF_NOWAIT`.
    nowait: bool,
    faults: Option<Faults>,
}

impl Disk {
    #[must_use]
    pub fn new(plan: DiskPlan, segments: &Arc<Segments>, tail: Tail) -> Self {
        let reads_max = plan.reads_max.max(1);
        let slots = WRITES_MAX + reads_max;
        Disk {
            engine: plan.engine,
            view: segments.view(),
            tail,
            descriptors: Descriptors::new(plan.files_max),
            removals: segments.removals(),
            slots: (0..slots).map(|_| Slot::empty()).collect(),
            free: (0..slots as u32).rev().collect(),
            writes: 0,
            waiting: VecDeque::with_capacity(WRITES_MAX),
            reads_left: reads_max,
            buffers: Vec::with_capacity(reads_max),
            waiting_reads: VecDeque::with_capacity(reads_max),
            answers: VecDeque::with_capacity(slots),
            nowait: true,
            faults: plan.faults,
        }
    }

    /// To be called once per turn: lets go of segments and files that are gone. Two loads when
    /// nothing has changed.
    pub fn turn(&mut self) {
        self.view.refresh();
        let removals = self.view.shared().removals();
        if removals != self.removals {
            self.removals = removals;
            self.descriptors.forget_removed();
        }
    }

    /// This core's view of the log's segments, for the sender of replies.
    pub fn segments(&mut self) -> &mut SegmentsView {
        &mut self.view
    }

    #[must_use]
    pub fn tail(&self) -> &Tail {
        &self.tail
    }

    /// Operations whose completions are still to come: the ring and this disk must live until
    /// there are none.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    #[must_use]
    pub fn has_answers(&self) -> bool {
        !self.answers.is_empty()
    }

    /// The oldest answer that is ready.
    pub fn next_answer(&mut self) -> Option<Answer> {
        self.answers.pop_front()
    }

    /// `Effect::Write`. Its blocks stay as they are until the answer was taken.
    pub fn write(&mut self, ring: &mut Ring, asker: Asker, write: TailWrite) {
        if self.engine == Engine::Ring && self.writes == WRITES_MAX {
            self.waiting.push_back((asker, Waiting::Write(write)));
            return;
        }
        let bytes = u64::from(write.bytes());
        let aligned =
            write.at.0.is_multiple_of(BLOCK_BYTES) && u64::from(write.len) % BLOCK_BYTES == 0;
        assert!(aligned && bytes > 0, "whole blocks only: {write:?}");
        let place = self.view.find(write.at).and_then(|segment| {
            let position = segment.position(write.at, bytes)?;
            Some((segment.clone(), position))
        });
        match (place, self.engine) {
            (None, _) => self.wrote(asker, Err(WriteError::Missing)),
            (Some((segment, position)), Engine::Ring) => {
                self.start_write(ring, asker, write, segment, position);
            }
            (Some((segment, position)), Engine::Blocking) => {
                let result = self.write_here(write, &segment, position);
                self.count(write, &result);
                self.wrote(asker, result);
            }
        }
    }

    /// `Effect::Put`: at once, on this thread.
    pub fn put(&mut self, asker: Asker, file: &FileRef, at: u64, bytes: &[u8]) {
        let result = self.put_here(file, at, bytes);
        self.wrote(asker, result);
    }

    /// `Effect::Read`: at once where it needs no device, else through the ring; it waits for a
    /// buffer while all are in use.
    pub fn read(&mut self, ring: &mut Ring, asker: Asker, at: ReadAt, len: u32) {
        if self.reads_left == 0 {
            self.waiting_reads.push_back((asker, at, len));
            return;
        }
        self.reads_left -= 1;
        let mut bytes = self.take_buffer(len as usize);
        match self.read_here(at, &mut bytes) {
            Ok(None) => self.answer(asker, Outcome::Read(Ok(bytes))),
            Ok(Some((held, position))) => self.start_read(ring, asker, held, position, bytes),
            Err(error) => {
                self.keep_buffer(bytes);
                self.answer(asker, Outcome::Read(Err(error)));
            }
        }
    }

    /// `Effect::Sync`: a flush of what was written before. A file's flush includes the names that
    /// this core has made on the way to it.
    pub fn sync(&mut self, ring: &mut Ring, asker: Asker, target: SyncTarget) {
        if self.writes == WRITES_MAX {
            self.waiting.push_back((asker, Waiting::Sync(target)));
            return;
        }
        if let Some(FaultKind::Error(errno)) = self.fault(FaultAt::Flush) {
            self.wrote(asker, Err(WriteError::Flush(errno)));
            return;
        }
        let (held, dirs) = match target {
            SyncTarget::Segment(at) => match self.view.find(at) {
                Some(segment) => (Held::Segment(segment.clone()), Vec::new()),
                None => return self.wrote(asker, Err(WriteError::Missing)),
            },
            SyncTarget::File(file) => match self.descriptors.get(&file, false) {
                Ok(found) => {
                    let held = Held::File(found.clone());
                    (held, self.descriptors.take_unsynced(&file.path()))
                }
                Err(error) => return self.wrote(asker, Err(write_error(&error))),
            },
        };
        let done = Vec::new();
        let key = self.take_slot(asker, Work::Sync { held, dirs, done });
        self.writes += 1;
        self.push_flush(ring, key);
    }

    /// One completion of an [`Op::Disk`](crate::ring::Op::Disk) of this core's ring.
    pub fn completed(&mut self, ring: &mut Ring, key: u32, part: u8, result: i32) {
        match (part, &mut self.slots[key as usize].work) {
            (DELAY, Work::Write { .. }) => self.push_write(ring, key),
            (WRITE, Work::Write { written, .. }) => {
                *written = Some(result);
                self.end_write(ring, key);
            }
            (
                FLUSH,
                Work::Write {
                    written, flushed, ..
                },
            ) => {
                // A flush that has ended before its write was not linked to it after all.
                let linked = written.is_some();
                *flushed = Some(if linked { result } else { -libc::EIO });
                self.end_write(ring, key);
            }
            (FLUSH, Work::Sync { .. }) => self.flushed(ring, key, result),
            (READ, Work::Read { .. }) => self.end_read(ring, key, result),
            (part, _) => unreachable!("slot {key} has no part {part} under way"),
        }
    }

    /// Takes the buffer of a read back; a waiting read may begin.
    pub fn give_back(&mut self, ring: &mut Ring, bytes: ReadBytes) {
        self.keep_buffer(bytes);
        while self.reads_left > 0 {
            let Some((asker, at, len)) = self.waiting_reads.pop_front() else {
                return;
            };
            self.read(ring, asker, at, len);
        }
    }

    fn answer(&mut self, asker: Asker, outcome: Outcome) {
        self.answers.push_back(Answer { asker, outcome });
    }

    fn wrote(&mut self, asker: Asker, result: Result<(), WriteError>) {
        self.answer(asker, Outcome::Wrote(result));
    }

    fn fault(&mut self, at: FaultAt) -> Option<FaultKind> {
        self.faults.as_mut()?.next(at)
    }

    fn take_slot(&mut self, asker: Asker, work: Work) -> u32 {
        let key = self
            .free
            .pop()
            .expect("there is a slot for every write, flush and buffer");
        let slot = &mut self.slots[key as usize];
        slot.asker = asker;
        slot.work = work;
        key
    }

    fn free_slot(&mut self, key: u32) -> (Asker, Work) {
        let slot = &mut self.slots[key as usize];
        let work = std::mem::replace(&mut slot.work, Work::Nothing);
        self.free.push(key);
        (slot.asker, work)
    }

    /// After a write or flush: its place goes to one that waits.
    fn end_of_write(&mut self, ring: &mut Ring) {
        self.writes -= 1;
        while self.writes < WRITES_MAX {
            match self.waiting.pop_front() {
                Some((asker, Waiting::Write(write))) => self.write(ring, asker, write),
                Some((asker, Waiting::Sync(target))) => self.sync(ring, asker, target),
                None => return,
            }
        }
    }
}

const NO_BYTES: libc::iovec = libc::iovec {
    iov_base: std::ptr::null_mut(),
    iov_len: 0,
};

impl Slot {
    fn empty() -> Slot {
        Slot {
            asker: Asker {
                role: RoleId(0),
                ticket: Ticket(0),
            },
            work: Work::Nothing,
            vectors: [NO_BYTES; 3],
            vector_count: 0,
            delay: Timespec::new(),
        }
    }
}

fn errno_of(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}
