//! A log range on its way to a socket.
//!
//! | where its bytes are | how they go |
//! |---|---|
//! | in the tail | lent to the send, for the length of the submit |
//! | in the page cache, many in a row | sendfile, without a copy |
//! | in the page cache, few | copied into a pooled buffer at once |
//! | on the device | read into a pooled buffer by the ring |
//!
//! The pool is small and fixed: it bounds how much readers of old data can have under way, and so
//! how much they can disturb the log's writes.

use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use io_uring::opcode;
use rustix::io::{Errno, ReadWriteFlags, ioctl_fionbio, preadv2};

use crate::chunk::{Lease, Tail};
use crate::conn::{Sockets, State};
use crate::ids::LogRange;
use crate::out::{Piece, Sending};
use crate::ring::{Op, Ring, fd};
use crate::role::BLOCK_BYTES;
use crate::segments::{Segment, Segments, SegmentsView};

/// The part of the log that is in memory.
pub(crate) struct Memory {
    tail: Option<Tail>,
}

impl Memory {
    pub fn new(tail: Option<Tail>) -> Self {
        Memory { tail }
    }

    /// The range, if the tail still holds it.
    pub fn lease(&self, range: LogRange) -> Option<Lease<'_>> {
        self.tail.as_ref()?.lease(range)
    }
}

/// Bytes of the log in a pooled buffer: the first that a connection sends next, from one range or
/// from several that follow each other in its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cold {
    pub buffer: u16,
    pub at: u32,
    pub len: u32,
}

struct Buffer {
    bytes: Box<[u8]>,
    /// The read that fills it: its slot, and the segment that it keeps open.
    reads: Option<(u32, Arc<Segment>)>,
    /// The slot that sends from it, or did so last.
    holder: Option<u32>,
}

/// The part of the log that is on disk only.
pub(crate) struct Files {
    view: Option<SegmentsView>,
    buffers: Vec<Buffer>,
    free: Vec<u16>,
    /// Slots that wait for a buffer; some may have closed meanwhile.
    waiting: VecDeque<u32>,
    cachestat: bool,
}

impl Files {
    pub fn new(segments: Option<&Arc<Segments>>, buffers: u16, buffer_bytes: u32) -> Self {
        let count = if segments.is_some() {
            buffers.max(1)
        } else {
            0
        };
        let buffer = || Buffer {
            bytes: vec![0; buffer_bytes as usize].into(),
            reads: None,
            holder: None,
        };
        Files {
            view: segments.map(Segments::view),
            buffers: (0..count).map(|_| buffer()).collect(),
            free: (0..count).rev().collect(),
            waiting: VecDeque::new(),
            cachestat: true,
        }
    }

    /// To be called once per turn: lets go of segments that are gone.
    pub fn turn(&mut self) {
        if let Some(view) = &mut self.view {
            view.refresh();
        }
    }

    /// The segment that holds the range, and where in its file.
    pub fn find(&mut self, range: LogRange) -> Option<(Arc<Segment>, u64)> {
        let segment = self.view.as_mut()?.find(range.at)?;
        let position = segment.position(range.at, u64::from(range.len))?;
        Some((segment.clone(), position))
    }

    pub fn bytes(&self, cold: Cold) -> &[u8] {
        let bytes = &self.buffers[usize::from(cold.buffer)].bytes;
        &bytes[cold.at as usize..][..cold.len as usize]
    }

    pub fn take_buffer(&mut self) -> Option<u16> {
        self.free.pop()
    }

    pub fn give_back(&mut self, buffer: u16) {
        self.free.push(buffer);
    }

    /// The slot sends from the buffer.
    pub fn hold(&mut self, buffer: u16, slot: u32) {
        self.buffers[usize::from(buffer)].holder = Some(slot);
    }

    /// Each buffer and the slot that sends from it, or did so last.
    pub fn holders(&self) -> impl Iterator<Item = (u16, u32)> {
        let held = |(buffer, it): (usize, &Buffer)| Some((buffer as u16, it.holder?));
        self.buffers.iter().enumerate().filter_map(held)
    }

    /// The next slot that waits while there is a buffer for it.
    pub fn next_waiting(&mut self) -> Option<u32> {
        if self.free.is_empty() {
            return None;
        }
        self.waiting.pop_front()
    }

    pub fn wait(&mut self, slot: u32) {
        self.waiting.push_back(slot);
    }

    pub fn anyone_waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether the page cache holds all of it. Never asks the device.
    pub fn is_cached(&mut self, (segment, position): &(Arc<Segment>, u64), len: u32) -> bool {
        let position = *position;
        if !self.cachestat {
            return false;
        }
        match cachestat(segment.buffered(), position, u64::from(len)) {
            Ok(pages) => {
                let end = position + u64::from(len);
                pages >= end.div_ceil(BLOCK_BYTES) - position / BLOCK_BYTES
            }
            Err(_) => {
                // Linux 6.5 has it. Without it, sendfile might wait for the device.
                self.cachestat = false;
                false
            }
        }
    }

    /// Copies what the page cache holds from `position` on into the buffer, from `at` on; how much,
    /// 0 for none.
    pub fn read_cached(
        &mut self,
        buffer: u16,
        at: u32,
        (segment, position): &(Arc<Segment>, u64),
        len: u32,
    ) -> u32 {
        let bytes = &mut self.buffers[usize::from(buffer)].bytes[at as usize..];
        let len = bytes.len().min(len as usize);
        let mut vectors = [IoSliceMut::new(&mut bytes[..len])];
        let flags = ReadWriteFlags::NOWAIT;
        preadv2(segment.buffered(), &mut vectors, *position, flags).unwrap_or(0) as u32
    }

    /// Bytes that a buffer holds.
    pub fn buffer_bytes(&self, buffer: u16) -> u32 {
        self.buffers[usize::from(buffer)].bytes.len() as u32
    }

    /// Reads from the device into the buffer, for a slot.
    pub fn start_read(
        &mut self,
        ring: &mut Ring,
        buffer: u16,
        slot: u32,
        place: (Arc<Segment>, u64),
        len: u32,
    ) {
        let (segment, position) = place;
        let file = fd(segment.buffered().as_raw_fd());
        let target = &mut self.buffers[usize::from(buffer)];
        target.reads = Some((slot, segment));
        let len = (target.bytes.len() as u32).min(len);
        let entry = opcode::Read::new(file, target.bytes.as_mut_ptr(), len)
            .offset(position)
            .build();
        let op = Op::Cold {
            buffer: u32::from(buffer),
        };
        // SAFETY: the pool keeps the buffer and the descriptor until the read has completed.
        unsafe { ring.push(entry, op) };
    }

    /// A read completed: the slot that it was for.
    pub fn read_ended(&mut self, buffer: u16) -> u32 {
        let (slot, _) = self.buffers[usize::from(buffer)]
            .reads
            .take()
            .expect("a read completes once");
        slot
    }
}

/// How ranges that are on disk only get to a socket.
impl Sockets {
    /// The first piece is a log range that is on disk only. Sends it from the page cache, or gets
    /// it into a pooled buffer; whether the queue can be sent from again at once.
    pub fn take_from_file(&mut self, ring: &mut Ring, memory: &Memory, slot: u32) -> bool {
        let connection = &mut self.slots[slot as usize];
        let Some(range) = connection.out.first_range() else {
            unreachable!("slot {slot}: nothing but a range on disk is ever left over");
        };
        let Some(place) = self.files.find(range) else {
            self.range_failed(ring, slot);
            return false;
        };
        if range.len >= self.limits.sendfile_from_bytes && self.files.is_cached(&place, range.len) {
            return self.send_from_file(ring, slot, &place, range.len);
        }
        let Some(buffer) = self.files.take_buffer().or_else(|| self.steal_buffer()) else {
            self.slots[slot as usize].sending = Sending::WaitsForBuffer;
            self.files.wait(slot);
            return false;
        };
        self.counters.ranges_by_read.add(1);
        self.counters.other_calls.add(1);
        let cached = self.files.read_cached(buffer, 0, &place, range.len);
        if cached > 0 {
            self.add_cached(memory, slot, buffer, cached);
            return true;
        }
        let connection = &mut self.slots[slot as usize];
        connection.sending = Sending::Reads;
        connection.operations += 1;
        self.files.start_read(ring, buffer, slot, place, range.len);
        false
    }

    /// The first `len` bytes of the queue are in the buffer. Adds the ranges that follow, as long
    /// as the page cache has them too, so that many short ones are one send.
    fn add_cached(&mut self, memory: &Memory, slot: u32, buffer: u16, mut len: u32) {
        let out = &mut self.slots[slot as usize].out;
        let mut in_pieces = 0;
        for (count, piece) in out.pieces.iter().enumerate() {
            let Piece::Log(range) = piece else {
                break;
            };
            if count > 0 {
                let fits = len + range.len <= self.files.buffer_bytes(buffer);
                if in_pieces != len || !fits || memory.lease(*range).is_some() {
                    break;
                }
                let Some(place) = self.files.find(*range) else {
                    break;
                };
                self.counters.ranges_by_read.add(1);
                self.counters.other_calls.add(1);
                if self.files.read_cached(buffer, len, &place, range.len) < range.len {
                    break;
                }
                len += range.len;
            }
            in_pieces += range.len;
        }
        let at = 0;
        out.cold = Some(Cold { buffer, at, len });
        self.files.hold(buffer, slot);
    }

    /// Takes a buffer from a connection whose peer is slow, which will read again.
    fn steal_buffer(&mut self) -> Option<u16> {
        let slots = &mut self.slots;
        self.files.holders().find_map(|(buffer, slot)| {
            let connection = &mut slots[slot as usize];
            let holds = connection
                .out
                .cold
                .is_some_and(|cold| cold.buffer == buffer);
            if !holds || connection.sending != Sending::Waits {
                return None;
            }
            connection.out.cold = None;
            Some(buffer)
        })
    }

    fn send_from_file(
        &mut self,
        ring: &mut Ring,
        slot: u32,
        place: &(Arc<Segment>, u64),
        len: u32,
    ) -> bool {
        let connection = &mut self.slots[slot as usize];
        // SAFETY: the connection is open, and closes its descriptor only as its last operation.
        let socket = unsafe { BorrowedFd::borrow_raw(connection.fd) };
        self.counters.ranges_by_sendfile.add(1);
        self.counters.other_calls.add(4);
        match send_file(socket, place, len) {
            Ok(sent) => {
                self.took(ring, slot, sent);
                let done = sent == u64::from(len);
                if !done {
                    self.wait_writable(ring, slot);
                }
                done
            }
            Err(_) => {
                self.lose(ring, slot);
                false
            }
        }
    }

    /// A read into a pooled buffer completed.
    pub fn cold_read(&mut self, ring: &mut Ring, buffer: u16, result: i32) {
        let slot = self.files.read_ended(buffer);
        let connection = &mut self.slots[slot as usize];
        connection.sending = Sending::Nothing;
        let wanted = matches!(connection.state, State::Open | State::Draining);
        let again = matches!(-result, libc::EAGAIN | libc::EINTR);
        if wanted && result > 0 {
            connection.out.cold = Some(Cold {
                buffer,
                at: 0,
                len: result as u32,
            });
            self.files.hold(buffer, slot);
        } else {
            self.free_buffer(buffer);
        }
        if wanted && (result > 0 || again) {
            self.mark_dirty(slot);
        } else if wanted {
            self.range_failed(ring, slot);
        }
        self.operation_ended(ring, slot);
    }

    /// Part of a frame is sent and the rest cannot be: nothing but closing tells the peer.
    fn range_failed(&mut self, ring: &mut Ring, slot: u32) {
        self.counters.refused.range_failed.add(1);
        self.abandon(ring, slot);
    }

    /// Gives a pooled buffer to whoever waits for one.
    pub fn free_buffer(&mut self, buffer: u16) {
        self.files.give_back(buffer);
        while let Some(slot) = self.files.next_waiting() {
            let connection = &mut self.slots[slot as usize];
            if connection.sending == Sending::WaitsForBuffer {
                connection.sending = Sending::Nothing;
                self.mark_dirty(slot);
                break;
            }
        }
    }
}

/// Sends file bytes to a socket as far as it takes them now, without a copy.
pub(crate) fn send_file(
    socket: BorrowedFd<'_>,
    (segment, position): &(Arc<Segment>, u64),
    len: u32,
) -> Result<u64, Errno> {
    let position = *position;
    // The ring's own operations want a blocking socket, since they give up at once on others.
    ioctl_fionbio(socket, true)?;
    let mut at = position;
    let mut result = Ok(0);
    while at < position + u64::from(len) {
        let left = (position + u64::from(len) - at) as usize;
        match rustix::fs::sendfile(socket, segment.buffered(), Some(&mut at), left) {
            Ok(0) => break,
            Ok(_) => {}
            Err(Errno::AGAIN) => break,
            Err(error) => {
                result = Err(error);
                break;
            }
        }
    }
    ioctl_fionbio(socket, false)?;
    result.map(|_: u64| at - position)
}

#[repr(C)]
struct CachestatRange {
    off: u64,
    len: u64,
}

#[repr(C)]
#[derive(Default)]
struct Cachestat {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Pages of a file's range that the page cache holds.
fn cachestat(file: BorrowedFd<'_>, off: u64, len: u64) -> Result<u64, Errno> {
    const SYS_CACHESTAT: libc::c_long = 451;
    let range = CachestatRange { off, len };
    let mut stat = Cachestat::default();
    // SAFETY: both structures are as the kernel declares them and outlive the call.
    let result = unsafe {
        libc::syscall(
            SYS_CACHESTAT,
            file.as_raw_fd(),
            &raw const range,
            &raw mut stat,
            0,
        )
    };
    if result == 0 {
        Ok(stat.cached)
    } else {
        Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::NOSYS))
    }
}
