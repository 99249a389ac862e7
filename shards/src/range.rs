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
use crate::ids::LogRange;
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

/// Bytes of the log in a pooled buffer: the first of what a connection sends next.
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
    pub fn is_cached(&mut self, segment: &Segment, position: u64, len: u32) -> bool {
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

    /// Copies what the page cache holds from `position` on into the buffer; how much, 0 for none.
    pub fn read_cached(&mut self, buffer: u16, segment: &Segment, position: u64, len: u32) -> u32 {
        let bytes = &mut self.buffers[usize::from(buffer)].bytes;
        let len = bytes.len().min(len as usize);
        let mut vectors = [IoSliceMut::new(&mut bytes[..len])];
        let flags = ReadWriteFlags::NOWAIT;
        preadv2(segment.buffered(), &mut vectors, position, flags).unwrap_or(0) as u32
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

/// Sends file bytes to a socket as far as it takes them now, without a copy.
pub(crate) fn send_file(
    socket: BorrowedFd<'_>,
    segment: &Segment,
    position: u64,
    len: u32,
) -> Result<u64, Errno> {
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
