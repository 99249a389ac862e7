//! Reads of a [`Disk`].

use std::io::{self, IoSliceMut};
use std::os::fd::AsRawFd;

use io_uring::opcode;
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use super::{Asker, Disk, Held, Outcome, READ, READ_BYTES, ReadBytes, Work, errno_of};
use crate::chunk::Tail;
use crate::faults::{FaultAt, FaultKind};
use crate::ids::{LogOffset, LogRange};
use crate::ring::{Op, Ring, fd};
use crate::role::{ReadAt, ReadError};

impl Disk {
    pub(super) fn take_buffer(&mut self, len: usize) -> ReadBytes {
        let buffer = if len <= READ_BYTES {
            self.buffers
                .pop()
                .unwrap_or_else(|| vec![0; READ_BYTES].into_boxed_slice())
        } else {
            vec![0; len].into_boxed_slice()
        };
        ReadBytes { buffer, len }
    }

    pub(super) fn keep_buffer(&mut self, bytes: ReadBytes) {
        self.reads_left += 1;
        if bytes.buffer.len() == READ_BYTES {
            self.buffers.push(bytes.buffer);
        }
    }

    /// Fills the buffer without waiting for a device, or says where to read from.
    pub(super) fn read_here(
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

    pub(super) fn start_read(
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

    pub(super) fn end_read(&mut self, ring: &mut Ring, key: u32, result: i32) {
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
