//! Writes and flushes of a [`Disk`].

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use io_uring::opcode;
use io_uring::types::{FsyncFlags, Timespec};
use rustix::io::{ReadWriteFlags, pwritev2};

use super::{Asker, DELAY, Disk, FLUSH, Held, TailWrite, WRITE, Work, errno_of};
use crate::chunk::Tail;
use crate::faults::{FaultAt, FaultKind};
use crate::ids::FileRef;
use crate::ring::{Op, Ring, fd};
use crate::role::WriteError;
use crate::segments::Segment;

impl Disk {
    pub(super) fn start_write(
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

    pub(super) fn push_write(&mut self, ring: &mut Ring, key: u32) {
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
    pub(super) fn end_write(&mut self, ring: &mut Ring, key: u32) {
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

    pub(super) fn count(&mut self, write: TailWrite, result: &Result<(), WriteError>) {
        if result.is_ok() {
            let bytes = u64::from(write.bytes());
            let traffic = self.view.shared().traffic();
            traffic.last_write_bytes.store(bytes, Ordering::Relaxed);
            traffic.written_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// The blocking engine.
    pub(super) fn write_here(
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

    pub(super) fn put_here(
        &mut self,
        file: &FileRef,
        at: u64,
        bytes: &[u8],
    ) -> Result<(), WriteError> {
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

    pub(super) fn push_flush(&mut self, ring: &mut Ring, key: u32) {
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
    pub(super) fn flushed(&mut self, ring: &mut Ring, key: u32, result: i32) {
        let Work::Sync { held, dirs, done } = &mut self.slots[key as usize].work else {
            unreachable!("slot {key} holds a flush");
        };
        let mut outcome = if result == 0 {
            Ok(())
        } else {
            Err(WriteError::Flush(-result))
        };
        while outcome.is_ok() {
            let Some(dir) = dirs.pop() else { break };
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

/// The memory of a write, in order: whole blocks, wrapped or not, then the last block's snapshot.
fn pieces(tail: &Tail, write: TailWrite) -> [&[u8]; 3] {
    let [first, second] = tail.write_pieces(write.at, write.len);
    let last: &[u8] = match write.last {
        Some(last) => tail.snapshot(last.copy),
        None => &[],
    };
    [first, second, last]
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

pub(super) fn write_error(error: &io::Error) -> WriteError {
    match error.kind() {
        io::ErrorKind::NotFound => WriteError::Missing,
        _ => WriteError::Io(errno_of(error)),
    }
}
