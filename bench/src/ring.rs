//! The ring that generator and responder share: set-up and receive buffers that the kernel picks.

use std::io;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::{IoUring, types::BufRingEntry};
use memmap2::MmapMut;

/// A ring for one thread that waits for its own completions.
pub fn ring(entries: u32) -> io::Result<IoUring> {
    IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_cqsize(entries.saturating_mul(4))
        .build(entries)
}

/// Stops everything that runs on the ring and waits until it has stopped, so that no buffer is
/// written any more. An error means that nothing was left to stop.
pub fn quiesce(ring: &IoUring) {
    let all = io_uring::types::CancelBuilder::any();
    let _nothing_left = ring.submitter().register_sync_cancel(None, all);
}

/// Receive buffers of one size; the kernel takes one for each receive and says which.
///
/// ```text
/// entries: | addr len bid tail | addr len bid - | ...   16 bytes each, a power of two of them
/// bytes:   | buffer 0 | buffer 1 | ...
/// ```
pub struct BufferRing {
    entries: MmapMut,
    bytes: MmapMut,
    buffer_bytes: usize,
    count: u16,
    tail: u16,
}

impl BufferRing {
    /// Registers `count` buffers (a power of two, up to 32,768) under `group` and lends them all.
    /// The ring must be dropped, or quiesced, before the result is.
    pub fn new(ring: &IoUring, group: u16, count: u16, buffer_bytes: usize) -> io::Result<Self> {
        assert!(count.is_power_of_two(), "{count} receive buffers");
        let entry_bytes = size_of::<BufRingEntry>();
        let entries = MmapMut::map_anon(usize::from(count) * entry_bytes)?;
        let bytes = MmapMut::map_anon(usize::from(count) * buffer_bytes)?;
        let mut buffers = BufferRing {
            entries,
            bytes,
            buffer_bytes,
            count,
            tail: 0,
        };
        let address = buffers.entries.as_ptr() as u64;
        // SAFETY: the mapping is page aligned, holds `count` entries and outlives the ring's use
        // of it, which the caller promises.
        unsafe {
            ring.submitter()
                .register_buf_ring_with_flags(address, count, group, 0)?
        };
        for id in 0..count {
            buffers.give_back(id);
        }
        buffers.publish();
        Ok(buffers)
    }

    /// What was received into a buffer that a completion named.
    pub fn filled(&self, id: u16, length: usize) -> &[u8] {
        let at = usize::from(id) * self.buffer_bytes;
        &self.bytes[at..at + length]
    }

    /// Lends a buffer to the kernel again, from the next `publish` on.
    pub fn give_back(&mut self, id: u16) {
        let slot = usize::from(self.tail & (self.count - 1));
        let at = usize::from(id) * self.buffer_bytes;
        let address = self.bytes[at..].as_ptr() as u64;
        let entries = self.entries.as_mut_ptr().cast::<BufRingEntry>();
        // SAFETY: `slot` is below `count`, the mapping holds that many entries, and the kernel
        // reads an entry only once the tail has passed it.
        let entry = unsafe { &mut *entries.add(slot) };
        entry.set_addr(address);
        entry.set_len(u32::try_from(self.buffer_bytes).expect("buffers are a few KiB"));
        entry.set_bid(id);
        self.tail = self.tail.wrapping_add(1);
    }

    /// Makes the buffers given back visible to the kernel.
    pub fn publish(&mut self) {
        let entries = self.entries.as_ptr().cast::<BufRingEntry>();
        // SAFETY: the first entry's spare field is the ring's tail; it is aligned and inside the
        // mapping, and only this thread writes it.
        unsafe {
            let tail = BufRingEntry::tail(entries).cast::<AtomicU16>();
            (*tail).store(self.tail, Ordering::Release);
        }
    }
}
