//! The buffers into which the kernel receives.
//!
//! One ring of equally large buffers per core, provided to the kernel, which fills the next one for
//! whichever connection has something. A buffer is the core's until it is given back, which happens
//! as soon as its frames are delivered.

use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::BufRingEntry;

use crate::conn::SocketLimits;
use crate::ring::{Ring, RingError};

/// The buffers into which the kernel receives, and the ring by which it takes them.
pub(crate) struct Buffers {
    arena: memmap2::MmapMut,
    entries: u16,
    buffer_bytes: usize,
    /// The next place in the ring of entries; wraps.
    tail: u16,
}

/// The group under which a core's receive buffers are registered.
pub(crate) const BUFFER_GROUP: u16 = 0;

impl Buffers {
    pub fn new(ring: &Ring, limits: &SocketLimits) -> Result<Self, RingError> {
        let entries = limits.receive_buffers;
        assert!(entries.is_power_of_two(), "a ring of {entries} buffers");
        let buffer_bytes = limits.receive_buffer_bytes as usize;
        let len = usize::from(entries) * (size_of::<BufRingEntry>() + buffer_bytes);
        let arena = memmap2::MmapMut::map_anon(len).map_err(|_| RingError::NoMemory)?;
        // SAFETY: the arena begins on a page and holds the entries first; the core drops its ring
        // before its buffers.
        unsafe { ring.register_buffers(arena.as_ptr(), entries, BUFFER_GROUP)? };
        let mut buffers = Buffers {
            arena,
            entries,
            buffer_bytes,
            tail: 0,
        };
        for buffer in 0..entries {
            buffers.give_back(buffer);
        }
        Ok(buffers)
    }

    fn at(&self, buffer: u16) -> usize {
        usize::from(self.entries) * size_of::<BufRingEntry>()
            + usize::from(buffer) * self.buffer_bytes
    }

    /// The first `len` bytes of a buffer that the kernel has filled.
    pub fn bytes(&self, buffer: u16, len: usize) -> &[u8] {
        assert!(len <= self.buffer_bytes, "{len} bytes in one buffer");
        &self.arena[self.at(buffer)..][..len]
    }

    /// Lets the kernel fill the buffer again.
    pub fn give_back(&mut self, buffer: u16) {
        let address = self.arena.as_ptr() as u64 + self.at(buffer) as u64;
        let place = usize::from(self.tail & (self.entries - 1));
        let base = self.arena.as_mut_ptr().cast::<BufRingEntry>();
        // SAFETY: the place lies within the entries; the kernel reads it only after the tail moved.
        unsafe {
            let entry = &mut *base.add(place);
            entry.set_addr(address);
            entry.set_len(self.buffer_bytes as u32);
            entry.set_bid(buffer);
            self.tail = self.tail.wrapping_add(1);
            let tail = BufRingEntry::tail(base).cast_mut();
            AtomicU16::from_ptr(tail).store(self.tail, Ordering::Release);
        }
    }
}
