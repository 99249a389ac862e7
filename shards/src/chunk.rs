//! The log's tail in memory: write buffer and cache in one.
//!
//! ```text
//!        one arena, used as a ring: position = log offset modulo its length
//!  +---------+---------+---------+---------+
//!  | chunk 4 | chunk 5 | chunk 2 | chunk 3 |   chunk = log offset / CHUNK_BYTES
//!  +---------+---------+---------+---------+
//!        written ^      ^ next to be given up
//! ```
//!
//! One [`TailWriter`] (the log role) appends; full blocks are never touched again. The partly
//! filled last block is copied into one of two snapshots for its write, since appending goes on in
//! the block while the device reads it. Any number of [`Tail`] readers, on any core, read what a
//! mark has published. A reader leases the chunks it reads; the writer gives a chunk up by first
//! withdrawing its name and then looking for leases, a reader leases first and then looks at the
//! name: so one of them always sees the other.

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::ids::{LogOffset, LogRange};
use crate::role::BLOCK_BYTES;

/// The unit that is kept or given up as a whole.
pub const CHUNK_BYTES: u64 = 1 << 20;
const NOBODY: u64 = u64::MAX;

struct Shared {
    /// Aligned to a page, length a multiple of `CHUNK_BYTES`.
    arena: memmap2::MmapRaw,
    chunks: Box<[Chunk]>,
    snapshots: [Snapshot; 2],
    /// Below this position nothing was ever here, although its chunk may be. Fixed before sharing.
    valid_from: AtomicU64,
}

#[repr(align(64))]
struct Chunk {
    /// Number of the chunk that lives here, or `NOBODY`.
    number: AtomicU64,
    leases: AtomicU32,
}

#[repr(align(4096))]
struct Snapshot(UnsafeCell<[u8; BLOCK_BYTES as usize]>);

// SAFETY: a snapshot is written by the one writer while no write of it is in flight, and read only
// by the core that carries the writer's `Effect::Write` out, on the writer's own thread.
unsafe impl Sync for Snapshot {}

/// A reader of the tail; cheap to clone.
#[derive(Clone)]
pub struct Tail {
    shared: Arc<Shared>,
}

/// The one writer.
pub struct TailWriter {
    shared: Arc<Shared>,
    end: LogOffset,
}

/// Makes a tail of `bytes` (rounded up to whole chunks, at least two) whose first byte will be
/// appended at `end`. It holds nothing, not even zeros, until something is appended or loaded: so
/// what is read before a log is continued comes from the segments.
pub fn tail(bytes: u64, end: LogOffset) -> std::io::Result<(TailWriter, Tail)> {
    let chunks = bytes.div_ceil(CHUNK_BYTES).max(2);
    let arena = memmap2::MmapOptions::new()
        .len((chunks * CHUNK_BYTES) as usize)
        .map_anon()?;
    let shared = Arc::new(Shared {
        arena: memmap2::MmapRaw::from(arena),
        chunks: (0..chunks)
            .map(|_| Chunk {
                number: AtomicU64::new(NOBODY),
                leases: AtomicU32::new(0),
            })
            .collect(),
        snapshots: [
            Snapshot(UnsafeCell::new([0; BLOCK_BYTES as usize])),
            Snapshot(UnsafeCell::new([0; BLOCK_BYTES as usize])),
        ],
        valid_from: AtomicU64::new(end.0),
    });
    let writer = TailWriter {
        shared: shared.clone(),
        end,
    };
    Ok((writer, Tail { shared }))
}

impl Shared {
    fn len(&self) -> u64 {
        self.arena.len() as u64
    }

    fn chunk(&self, number: u64) -> &Chunk {
        &self.chunks[(number % self.chunks.len() as u64) as usize]
    }

    /// `at .. at + len` as one or two pieces of the arena.
    fn pieces(&self, at: LogOffset, len: usize) -> [(usize, usize); 2] {
        assert!(len as u64 <= self.len(), "{len} bytes do not fit the tail");
        let start = (at.0 % self.len()) as usize;
        let first = len.min(self.len() as usize - start);
        [(start, first), (0, len - first)]
    }
}

impl TailWriter {
    /// Where the next byte goes.
    #[must_use]
    pub fn end(&self) -> LogOffset {
        self.end
    }

    /// Another reader of the same tail.
    #[must_use]
    pub fn reader(&self) -> Tail {
        Tail {
            shared: self.shared.clone(),
        }
    }

    /// Longest piece that can be appended at once: all but the chunk where it begins.
    #[must_use]
    pub fn append_bytes_max(&self) -> u64 {
        self.shared.len() - CHUNK_BYTES
    }

    /// Makes the next `len` bytes writable by giving up the oldest chunks; everything in them must
    /// already be on disk, below `written`. False if they are not, or a reader still leases one:
    /// try again later.
    #[must_use]
    pub fn make_room(&mut self, len: u64, written: LogOffset) -> bool {
        if len > self.append_bytes_max() {
            return false;
        }
        let last = (self.end.0 + len.max(1) - 1) / CHUNK_BYTES;
        let kept = self.shared.chunks.len() as u64;
        (self.end.0 / CHUNK_BYTES..=last).all(|number| {
            let given_up_end = (number + 1).saturating_sub(kept) * CHUNK_BYTES;
            given_up_end <= written.0 && self.take_chunk(number)
        })
    }

    /// Gives chunk `number` its place, unless a reader still leases what is there.
    fn take_chunk(&mut self, number: u64) -> bool {
        let chunk = self.shared.chunk(number);
        if chunk.number.load(Ordering::Relaxed) == number {
            return true;
        }
        chunk.number.store(NOBODY, Ordering::SeqCst);
        if chunk.leases.load(Ordering::SeqCst) != 0 {
            return false;
        }
        chunk.number.store(number, Ordering::SeqCst);
        true
    }

    /// Appends bytes for which [`TailWriter::make_room`] has made room.
    pub fn append(&mut self, bytes: &[u8]) {
        self.write(self.end, bytes);
        self.end = self.end.plus(bytes.len() as u64);
    }

    /// Appends zeros, as the rest of a segment after its blank record; `len` may be longer than the
    /// tail, since only the chunk where they end is kept. Nothing below the new end may be
    /// unwritten but what `write_from` will still be asked for.
    pub fn skip_to(&mut self, end: LogOffset) -> bool {
        assert!(end >= self.end, "the tail does not go back");
        // Also when the chunk is that of the old end: an append that filled the one before has
        // not taken it.
        if !self.take_chunk(end.0 / CHUNK_BYTES) {
            return false;
        }
        self.end = end;
        true
    }

    /// Loads bytes that are already on disk, when a log is continued: the part of the last block
    /// before its end.
    pub fn load(&mut self, at: LogOffset, bytes: &[u8]) {
        assert!(
            at.plus(bytes.len() as u64) == self.end,
            "only what ends at the tail's end"
        );
        assert!(at.0 / CHUNK_BYTES == self.end.0 / CHUNK_BYTES || bytes.is_empty());
        let taken = self.take_chunk(self.end.0 / CHUNK_BYTES);
        assert!(
            taken,
            "nobody leases from a tail before its log is continued"
        );
        self.write(at, bytes);
        self.shared.valid_from.store(at.0, Ordering::Release);
    }

    fn write(&mut self, at: LogOffset, bytes: &[u8]) {
        let mut done = 0;
        for (start, len) in self.shared.pieces(at, bytes.len()) {
            // SAFETY: inside the arena by `pieces`; only this writer writes, and readers do not
            // read at or beyond `end`, since no mark has published it.
            unsafe {
                let to = self.shared.arena.as_mut_ptr().add(start);
                std::ptr::copy_nonoverlapping(bytes[done..].as_ptr(), to, len);
            }
            done += len;
        }
    }

    /// Copies the partly filled last block, up to `end` and with zeros behind, into a snapshot for
    /// its write. No write of that copy may be in flight.
    pub fn snapshot(&mut self, copy: u8) {
        let block = LogOffset(self.end.0 / BLOCK_BYTES * BLOCK_BYTES);
        let len = self.end.since(block) as usize;
        let start = (block.0 % self.shared.len()) as usize;
        // SAFETY: a block never wraps; the snapshot is ours by the caller's promise.
        unsafe {
            let from = self.shared.arena.as_ptr().add(start);
            let to = self.shared.snapshots[usize::from(copy)]
                .0
                .get()
                .cast::<u8>();
            std::ptr::copy_nonoverlapping(from, to, len);
            std::ptr::write_bytes(to.add(len), 0, BLOCK_BYTES as usize - len);
        }
    }
}

/// Bytes of the tail, kept from being given up until dropped. One or two pieces, since the arena
/// is a ring.
pub struct Lease<'a> {
    tail: &'a Tail,
    range: LogRange,
}

impl Tail {
    /// `None` if the tail no longer (or never) holds the whole range: read it from the segment.
    /// The caller has seen a mark that covers the range.
    #[must_use]
    pub fn lease(&self, range: LogRange) -> Option<Lease<'_>> {
        if u64::from(range.len) > self.shared.len() - CHUNK_BYTES
            || range.at.0 < self.shared.valid_from.load(Ordering::Acquire)
        {
            return None;
        }
        let (first, last) = chunk_numbers(range);
        for number in first..=last {
            let chunk = self.shared.chunk(number);
            chunk.leases.fetch_add(1, Ordering::SeqCst);
            if chunk.number.load(Ordering::SeqCst) != number {
                for leased in first..=number {
                    self.shared
                        .chunk(leased)
                        .leases
                        .fetch_sub(1, Ordering::Release);
                }
                return None;
            }
        }
        Some(Lease { tail: self, range })
    }

    /// The memory of `Effect::Write`'s whole blocks, for the device to read: one or two pieces.
    /// Only for the thread of the writer, which keeps the chunks until the write has ended.
    #[must_use]
    pub fn write_pieces(&self, at: LogOffset, len: u32) -> [&[u8]; 2] {
        // SAFETY: inside the arena; full blocks are never touched again.
        self.shared
            .pieces(at, len as usize)
            .map(|(start, len)| unsafe {
                std::slice::from_raw_parts(self.shared.arena.as_ptr().add(start), len)
            })
    }

    /// The memory of one snapshot of the last block; as for [`Tail::write_pieces`].
    #[must_use]
    pub fn snapshot(&self, copy: u8) -> &[u8; BLOCK_BYTES as usize] {
        // SAFETY: written only while no write of it is in flight.
        unsafe { &*self.shared.snapshots[usize::from(copy)].0.get() }
    }
}

impl Lease<'_> {
    #[must_use]
    pub fn pieces(&self) -> [&[u8]; 2] {
        let pieces = self
            .tail
            .shared
            .pieces(self.range.at, self.range.len as usize);
        // SAFETY: inside the arena; the lease keeps the chunks, and published bytes do not change.
        pieces.map(|(start, len)| unsafe {
            std::slice::from_raw_parts(self.tail.shared.arena.as_ptr().add(start), len)
        })
    }

    /// The bytes in one piece: in place, or gathered in `scratch` where they wrap.
    #[must_use]
    pub fn whole<'s>(&'s self, scratch: &'s mut Vec<u8>) -> &'s [u8] {
        let [first, second] = self.pieces();
        if second.is_empty() {
            return first;
        }
        scratch.clear();
        scratch.extend_from_slice(first);
        scratch.extend_from_slice(second);
        scratch
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        let (first, last) = chunk_numbers(self.range);
        for number in first..=last {
            self.tail
                .shared
                .chunk(number)
                .leases
                .fetch_sub(1, Ordering::Release);
        }
    }
}

fn chunk_numbers(range: LogRange) -> (u64, u64) {
    let last = range.end().0.max(range.at.0 + 1) - 1;
    (range.at.0 / CHUNK_BYTES, last / CHUNK_BYTES)
}
