//! One core's disk: the log's writes and reads, queue and index files.
//!
//! ```text
//!  Effect::Write  blocks of the tail + snapshot -> segment -> flush     ring or this thread
//!  Effect::Sync   flush of a segment, or of a file and its new names    ring
//!  Effect::Put    queue and index files, through the page cache         this thread
//!  Effect::Read   tail, else page cache, else the device                this thread, else ring
//! ```
//!
//! The core's loop calls the verbs, hands completions to [`Disk::completed`] and takes what is ready
//! with [`Disk::next_answer`]. Nothing is decided here: a write answers "every byte and the flush" or
//! an error, and what an error means is the log role's business.
//!
//! A durable write is a write linked to a flush, and both results count: a failed or short write
//! cancels its flush, a short one is a failure, and no other way of chaining is used, since those
//! lose the flush's answer or flush after a short write. Memory and descriptors of an operation
//! belong to its slot until its last completion.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use io_uring::opcode;
use io_uring::types::{FsyncFlags, Timespec};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::{Errno, ReadWriteFlags, preadv2, pwritev2};

use crate::chunk::Tail;
use crate::descriptors::Descriptors;
use crate::faults::{FaultAt, FaultKind, Faults};
use crate::ids::{FileRef, LogOffset, LogRange, RoleId, Ticket};
use crate::ring::{Op, Ring, fd};
use crate::role::{BLOCK_BYTES, LastBlock, ReadAt, ReadError, SyncTarget, WriteError};
use crate::segments::{Segment, Segments, SegmentsView};

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
        let aligned = write.at.0 % BLOCK_BYTES == 0 && u64::from(write.len) % BLOCK_BYTES == 0;
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

    /// One completion of an [`Op::Disk`] of this core's ring.
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
        while self.reads_left > 0
            && let Some((asker, at, len)) = self.waiting_reads.pop_front()
        {
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
        while self.writes < WRITES_MAX
            && let Some((asker, waiting)) = self.waiting.pop_front()
        {
            match waiting {
                Waiting::Write(write) => self.write(ring, asker, write),
                Waiting::Sync(target) => self.sync(ring, asker, target),
            }
        }
    }
}

/// Writes.
impl Disk {
    fn start_write(
        &mut self,
        ring: &mut Ring,
        asker: Asker,
        write: TailWrite,
        segment: Arc<Segment>,
        position: u64,
    ) {
        let fault = self.fault(FaultAt::Write);
        if let Some(FaultKind::Error(errno)) = fault {
            return self.wrote(asker, Err(WriteError::Io(errno)));
        }
        let flush_fault = if write.sync {
            self.fault(FaultAt::Flush)
        } else {
            None
        };
        let bad_flush = match (fault, flush_fault) {
            (_, Some(FaultKind::Error(errno))) => Some(errno),
            // As the kernel does: the flush behind a short write is cancelled.
            (Some(FaultKind::Short(_)), _) => Some(libc::ECANCELED),
            _ => None,
        };
        let work = Work::Write {
            write,
            segment,
            position,
            bad_flush,
            written: None,
            flushed: None,
        };
        let key = self.take_slot(asker, work);
        self.writes += 1;
        self.set_vectors(key, write);
        if let Some(FaultKind::Short(bytes)) = fault {
            self.shorten_vectors(key, bytes as usize);
        }
        match (fault, flush_fault) {
            (Some(FaultKind::Delay(time)), _) | (_, Some(FaultKind::Delay(time))) => {
                let slot = &mut self.slots[key as usize];
                slot.delay = Timespec::from(time);
                let entry = opcode::Timeout::new(&slot.delay).build();
                // SAFETY: the slot keeps the time until the completion.
                unsafe { ring.push(entry, Op::Disk { key, part: DELAY }) };
            }
            _ => self.push_write(ring, key),
        }
    }

    fn set_vectors(&mut self, key: u32, write: TailWrite) {
        let slot = &mut self.slots[key as usize];
        slot.vector_count = 0;
        for piece in pieces(&self.tail, write) {
            if !piece.is_empty() {
                slot.vectors[slot.vector_count as usize] = libc::iovec {
                    iov_base: piece.as_ptr().cast_mut().cast(),
                    iov_len: piece.len(),
                };
                slot.vector_count += 1;
            }
        }
    }

    fn shorten_vectors(&mut self, key: u32, bytes: usize) {
        let mut left = bytes;
        let slot = &mut self.slots[key as usize];
        for vector in &mut slot.vectors[..slot.vector_count as usize] {
            vector.iov_len = vector.iov_len.min(left);
            left -= vector.iov_len;
        }
    }

    fn push_write(&mut self, ring: &mut Ring, key: u32) {
        let slot = &self.slots[key as usize];
        let Work::Write {
            write,
            segment,
            position,
            bad_flush,
            ..
        } = &slot.work
        else {
            unreachable!("slot {key} holds a write");
        };
        let file = fd(segment.direct().as_raw_fd());
        let entry = opcode::Writev::new(file, slot.vectors.as_ptr(), slot.vector_count)
            .offset(*position)
            .build();
        let op = Op::Disk { key, part: WRITE };
        if !write.sync || bad_flush.is_some() {
            // SAFETY: the slot keeps the descriptor and the vectors, the asker the blocks.
            return unsafe { ring.push(entry, op) };
        }
        let flush = opcode::Fsync::new(file).flags(FsyncFlags::DATASYNC).build();
        // SAFETY: as above.
        unsafe { ring.push_linked(entry, op, flush, Op::Disk { key, part: FLUSH }) };
    }

    /// Answers once every part has completed.
    fn end_write(&mut self, ring: &mut Ring, key: u32) {
        let Work::Write {
            write,
            bad_flush,
            written,
            flushed,
            ..
        } = &self.slots[key as usize].work
        else {
            unreachable!("slot {key} holds a write");
        };
        let write = *write;
        let flushed = bad_flush.map(|errno| -errno).or(*flushed);
        let (Some(written), true) = (*written, flushed.is_some() || !write.sync) else {
            return;
        };
        let result = judge(write.bytes(), written, flushed.filter(|_| write.sync));
        self.count(write, &result);
        let (asker, _) = self.free_slot(key);
        self.wrote(asker, result);
        self.end_of_write(ring);
    }

    fn count(&mut self, write: TailWrite, result: &Result<(), WriteError>) {
        if result.is_ok() {
            let bytes = u64::from(write.bytes());
            let traffic = self.view.shared().traffic();
            traffic.last_write_bytes.store(bytes, Ordering::Relaxed);
            traffic.written_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// The blocking engine.
    fn write_here(
        &mut self,
        write: TailWrite,
        segment: &Segment,
        position: u64,
    ) -> Result<(), WriteError> {
        let wanted = write.bytes();
        let mut left = usize::MAX;
        match self.fault(FaultAt::Write) {
            Some(FaultKind::Error(errno)) => return Err(WriteError::Io(errno)),
            Some(FaultKind::Short(bytes)) => left = bytes as usize,
            Some(FaultKind::Delay(time)) => std::thread::sleep(time),
            None => {}
        }
        let flush_fault = if write.sync {
            self.fault(FaultAt::Flush)
        } else {
            None
        };
        let vectors = pieces(&self.tail, write).map(|piece| {
            let piece = &piece[..piece.len().min(left)];
            left -= piece.len();
            IoSlice::new(piece)
        });
        let flags = match flush_fault {
            Some(FaultKind::Error(_)) => ReadWriteFlags::empty(),
            _ if write.sync => ReadWriteFlags::DSYNC,
            _ => ReadWriteFlags::empty(),
        };
        if let Some(FaultKind::Delay(time)) = flush_fault {
            std::thread::sleep(time);
        }
        let written = match pwritev2(segment.direct(), &vectors, position, flags) {
            Ok(written) => written as i32,
            Err(errno) => -errno.raw_os_error(),
        };
        let flushed = match flush_fault {
            Some(FaultKind::Error(errno)) => Some(-errno),
            _ => None,
        };
        judge(wanted, written, flushed)
    }

    fn put_here(&mut self, file: &FileRef, at: u64, bytes: &[u8]) -> Result<(), WriteError> {
        let end = at.checked_add(bytes.len() as u64);
        if end.is_none_or(|end| end > file.dir.file_bytes) {
            return Err(WriteError::Missing);
        }
        let fault = self.fault(FaultAt::Put);
        let found = self
            .descriptors
            .get(file, true)
            .map_err(|error| write_error(&error))?;
        let mut now = bytes;
        match fault {
            Some(FaultKind::Error(errno)) => return Err(WriteError::Io(errno)),
            Some(FaultKind::Short(len)) => now = &bytes[..bytes.len().min(len as usize)],
            Some(FaultKind::Delay(time)) => std::thread::sleep(time),
            None => {}
        }
        found
            .write_all_at(now, at)
            .map_err(|error| write_error(&error))?;
        judge(bytes.len() as u32, now.len() as i32, None)
    }

    fn push_flush(&mut self, ring: &mut Ring, key: u32) {
        let Work::Sync { held, .. } = &self.slots[key as usize].work else {
            unreachable!("slot {key} holds a flush");
        };
        let flush = opcode::Fsync::new(fd(held.flush_fd()));
        // A directory's names are metadata.
        let flush = match held {
            Held::Dir(_) => flush,
            Held::Segment(_) | Held::File(_) => flush.flags(FsyncFlags::DATASYNC),
        };
        // SAFETY: the slot keeps the descriptor.
        unsafe { ring.push(flush.build(), Op::Disk { key, part: FLUSH }) };
    }

    /// A flush has ended: on to the next directory, or to the answer.
    fn flushed(&mut self, ring: &mut Ring, key: u32, result: i32) {
        let Work::Sync { held, dirs, done } = &mut self.slots[key as usize].work else {
            unreachable!("slot {key} holds a flush");
        };
        let mut outcome = if result == 0 {
            Ok(())
        } else {
            Err(WriteError::Flush(-result))
        };
        if outcome.is_ok()
            && let Some(dir) = dirs.pop()
        {
            let opened = File::open(&dir);
            done.push(dir);
            match opened {
                Ok(opened) => {
                    *held = Held::Dir(opened);
                    return self.push_flush(ring, key);
                }
                // Removed with all its files: there is no name left to keep.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => outcome = Err(WriteError::Flush(errno_of(&error))),
            }
        }
        let (asker, work) = self.free_slot(key);
        if let (Err(_), Work::Sync { dirs, done, .. }) = (outcome, work) {
            self.descriptors.not_synced(dirs);
            self.descriptors.not_synced(done);
        }
        self.wrote(asker, outcome);
        self.end_of_write(ring);
    }
}

/// Reads.
impl Disk {
    fn take_buffer(&mut self, len: usize) -> ReadBytes {
        let buffer = if len <= READ_BYTES {
            self.buffers
                .pop()
                .unwrap_or_else(|| vec![0; READ_BYTES].into_boxed_slice())
        } else {
            vec![0; len].into_boxed_slice()
        };
        ReadBytes { buffer, len }
    }

    fn keep_buffer(&mut self, bytes: ReadBytes) {
        self.reads_left += 1;
        if bytes.buffer.len() == READ_BYTES {
            self.buffers.push(bytes.buffer);
        }
    }

    /// Fills the buffer without waiting for a device, or says where to read from.
    fn read_here(
        &mut self,
        at: ReadAt,
        bytes: &mut ReadBytes,
    ) -> Result<Option<(Held, u64)>, ReadError> {
        match self.fault(FaultAt::Read) {
            Some(FaultKind::Error(errno)) => return Err(ReadError::Io(errno)),
            Some(FaultKind::Short(_)) => return Err(ReadError::Missing),
            Some(FaultKind::Delay(time)) => std::thread::sleep(time),
            None => {}
        }
        let into = &mut bytes.buffer[..bytes.len];
        let (held, position) = match at {
            ReadAt::Log(at) => {
                if copy_tail(&self.tail, at, into) {
                    return Ok(None);
                }
                let segment = self.view.find(at).ok_or(ReadError::Missing)?;
                let position = segment.position(at, into.len() as u64);
                let position = position.ok_or(ReadError::Missing)?;
                (Held::Segment(segment.clone()), position)
            }
            ReadAt::File(file, position) => match self.descriptors.get(&file, false) {
                Ok(found) => (Held::File(found.clone()), position),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Err(ReadError::Missing);
                }
                Err(error) => return Err(ReadError::Io(errno_of(&error))),
            },
        };
        if into.is_empty() {
            return Ok(None);
        }
        if self.nowait {
            let vector = &mut [IoSliceMut::new(into)];
            match preadv2(held.read_fd(), vector, position, ReadWriteFlags::NOWAIT) {
                Ok(0) => return Err(ReadError::Missing),
                Ok(len) if len == bytes.len => return Ok(None),
                Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.nowait = false,
                Err(errno) => return Err(ReadError::Io(errno.raw_os_error())),
            }
        }
        Ok(Some((held, position)))
    }

    fn start_read(
        &mut self,
        ring: &mut Ring,
        asker: Asker,
        held: Held,
        position: u64,
        bytes: ReadBytes,
    ) {
        let work = Work::Read {
            held,
            position,
            bytes,
            filled: 0,
        };
        let key = self.take_slot(asker, work);
        self.push_read(ring, key);
    }

    fn push_read(&mut self, ring: &mut Ring, key: u32) {
        let Work::Read {
            held,
            position,
            bytes,
            filled,
        } = &mut self.slots[key as usize].work
        else {
            unreachable!("slot {key} holds a read");
        };
        let into = &mut bytes.buffer[*filled..bytes.len];
        let file = fd(held.read_fd().as_raw_fd());
        let entry = opcode::Read::new(file, into.as_mut_ptr(), into.len() as u32)
            .offset(*position + *filled as u64)
            .build();
        // SAFETY: the slot keeps the descriptor and the buffer until the completion.
        unsafe { ring.push(entry, Op::Disk { key, part: READ }) };
    }

    fn end_read(&mut self, ring: &mut Ring, key: u32, result: i32) {
        let Work::Read { bytes, filled, .. } = &mut self.slots[key as usize].work else {
            unreachable!("slot {key} holds a read");
        };
        if result > 0 {
            *filled += result as usize;
        }
        let error = match result {
            _ if *filled == bytes.len => None,
            0 => Some(ReadError::Missing),
            1.. => return self.push_read(ring, key),
            errno if errno == -libc::EINTR || errno == -libc::EAGAIN => {
                return self.push_read(ring, key);
            }
            errno => Some(ReadError::Io(-errno)),
        };
        let (asker, work) = self.free_slot(key);
        let Work::Read { bytes, .. } = work else {
            unreachable!("slot {key} holds a read");
        };
        match error {
            None => self.answer(asker, Outcome::Read(Ok(bytes))),
            Some(error) => {
                self.answer(asker, Outcome::Read(Err(error)));
                self.give_back(ring, bytes);
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

/// The memory of a write, in order: whole blocks, wrapped or not, then the last block's snapshot.
fn pieces(tail: &Tail, write: TailWrite) -> [&[u8]; 3] {
    let [first, second] = tail.write_pieces(write.at, write.len);
    let last: &[u8] = match write.last {
        Some(last) => tail.snapshot(last.copy),
        None => &[],
    };
    [first, second, last]
}

fn copy_tail(tail: &Tail, at: LogOffset, into: &mut [u8]) -> bool {
    let len = into.len() as u32;
    let Some(lease) = tail.lease(LogRange { at, len }) else {
        return false;
    };
    let [first, second] = lease.pieces();
    into[..first.len()].copy_from_slice(first);
    into[first.len()..].copy_from_slice(second);
    true
}

/// All of it and the flush, or an error: `written` and `flushed` as the kernel says them. The
/// write's own failure goes before that of the flush, which it has cancelled.
fn judge(wanted: u32, written: i32, flushed: Option<i32>) -> Result<(), WriteError> {
    match u32::try_from(written) {
        Err(_) => Err(WriteError::Io(-written)),
        Ok(written) if written != wanted => Err(WriteError::Short { written, wanted }),
        Ok(_) => match flushed {
            None | Some(0) => Ok(()),
            Some(result) => Err(WriteError::Flush(-result)),
        },
    }
}

fn write_error(error: &io::Error) -> WriteError {
    match error.kind() {
        io::ErrorKind::NotFound => WriteError::Missing,
        _ => WriteError::Io(errno_of(error)),
    }
}

fn errno_of(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}
