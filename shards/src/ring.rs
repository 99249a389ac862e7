//! One core's io_uring: how it is set up, what its operations are called, and how they are
//! submitted and reaped.
//!
//! The ring is made on its core's pinned thread, after pinning, and never leaves it. Completions
//! are posted only while that thread is inside `io_uring_enter` (DEFER_TASKRUN), so nothing
//! interrupts a turn; the word behind [`Ring::has_work`] says without a system call whether an
//! enter would post any. What an operation belongs to is packed into its user data: kind, part and
//! key.

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, cqueue, squeue};
use thiserror::Error;

/// What an operation in flight is, and whom it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// A multishot accept.
    Accept {
        listener: u8,
    },
    /// A multishot receive of a connection's slot.
    Receive {
        slot: u32,
    },
    Send {
        slot: u32,
    },
    /// The wait for a socket that takes bytes again.
    Writable {
        slot: u32,
    },
    /// The close of a connection's descriptor: its slot's last operation.
    Close {
        slot: u32,
    },
    /// An outbound connect.
    Connect {
        key: u32,
    },
    /// The wait for the core's doorbell.
    Bell,
    /// A cancellation or a linked timeout; only the operation it aims at matters.
    Cancel,
    Timer {
        key: u32,
    },
    /// A read of a log range into a pooled buffer.
    Cold {
        buffer: u32,
    },
    /// A step of a disk operation; key and part are the disk's own.
    Disk {
        key: u32,
        part: u8,
    },
}

impl Op {
    /// The user data of this operation: kind in the top byte, part below, key in the low word.
    #[must_use]
    pub fn pack(self) -> u64 {
        let (kind, part, key) = match self {
            Op::Accept { listener } => (1, 0, u32::from(listener)),
            Op::Receive { slot } => (2, 0, slot),
            Op::Send { slot } => (3, 0, slot),
            Op::Writable { slot } => (4, 0, slot),
            Op::Close { slot } => (5, 0, slot),
            Op::Connect { key } => (6, 0, key),
            Op::Bell => (7, 0, 0),
            Op::Cancel => (8, 0, 0),
            Op::Timer { key } => (9, 0, key),
            Op::Cold { buffer } => (10, 0, buffer),
            Op::Disk { key, part } => (11, part, key),
        };
        kind << 56 | u64::from(part) << 48 | u64::from(key)
    }

    /// The operation of a completion.
    #[must_use]
    pub fn unpack(user_data: u64) -> Op {
        let key = user_data as u32;
        match user_data >> 56 {
            1 => Op::Accept {
                listener: key as u8,
            },
            2 => Op::Receive { slot: key },
            3 => Op::Send { slot: key },
            4 => Op::Writable { slot: key },
            5 => Op::Close { slot: key },
            6 => Op::Connect { key },
            7 => Op::Bell,
            8 => Op::Cancel,
            9 => Op::Timer { key },
            10 => Op::Cold { buffer: key },
            11 => Op::Disk {
                key,
                part: (user_data >> 48) as u8,
            },
            kind => unreachable!("the kernel gives user data back as it was: {kind}"),
        }
    }
}

/// Why a core has no ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RingError {
    #[error("this kernel has no io_uring; ringmq needs Linux 6.1 or later")]
    Missing,
    #[error(
        "io_uring is forbidden here: set sysctl kernel.io_uring_disabled=0, and in a container \
         allow io_uring_setup, io_uring_enter and io_uring_register in its seccomp profile"
    )]
    Forbidden,
    #[error("this kernel's io_uring lacks what ringmq needs; use Linux 6.1 or later")]
    TooOld,
    #[error("no memory for the ring: raise the limit of locked memory (ulimit -l)")]
    NoMemory,
    #[error("io_uring cannot be set up: errno {0}")]
    Other(i32),
}

impl RingError {
    fn from_io(error: &io::Error) -> Self {
        match error.raw_os_error().unwrap_or(0) {
            libc::ENOSYS => RingError::Missing,
            libc::EPERM | libc::EACCES => RingError::Forbidden,
            libc::EINVAL => RingError::TooOld,
            libc::ENOMEM => RingError::NoMemory,
            errno => RingError::Other(errno),
        }
    }
}

/// One core's submission and completion queues.
pub struct Ring {
    uring: IoUring,
    /// `io_uring_enter` calls so far.
    enters: u64,
    /// Queued operations that complete while they are submitted.
    inline: u32,
}

impl Ring {
    /// `entries` submissions (a power of two) can wait for one submit, and four times as many
    /// completions to be reaped; more of either are kept by the kernel or submitted early.
    pub fn new(entries: u32) -> Result<Self, RingError> {
        let uring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_submit_all()
            .setup_clamp()
            .setup_cqsize(entries.saturating_mul(4))
            .build(entries)
            .map_err(|error| RingError::from_io(&error))?;
        let params = uring.params();
        if !params.is_feature_ext_arg() || !params.is_feature_nodrop() {
            return Err(RingError::TooOld);
        }
        Ok(Ring {
            uring,
            enters: 0,
            inline: 0,
        })
    }

    /// Queues one operation, submitting first what is queued when the queue is full.
    ///
    /// # Safety
    /// The descriptor and all memory that `entry` names stay as they are until the completion of
    /// `op` was reaped; or, for an operation that the kernel finishes while it is submitted (a send
    /// with MSG_DONTWAIT), until the next [`Ring::submit`] has returned.
    pub unsafe fn push(&mut self, entry: squeue::Entry, op: Op) {
        let entry = entry.user_data(op.pack());
        loop {
            // SAFETY: by the caller's promise.
            if unsafe { self.uring.submission().push(&entry) }.is_ok() {
                return;
            }
            self.submit();
        }
    }

    /// Queues an operation that the kernel finishes while it is submitted. A wait does not end
    /// because of its completion: one system call submits a turn's sends and waits for what comes
    /// next.
    ///
    /// # Safety
    /// As for [`Ring::push`].
    pub unsafe fn push_inline(&mut self, entry: squeue::Entry, op: Op) {
        // SAFETY: by the caller's promise.
        unsafe { self.push(entry, op) };
        self.inline += 1;
    }

    /// Queues two operations of one submission, the second of which starts only after the first has
    /// succeeded in full; otherwise it completes with ECANCELED.
    ///
    /// # Safety
    /// As for [`Ring::push`], for both.
    pub unsafe fn push_linked(
        &mut self,
        first: squeue::Entry,
        first_op: Op,
        second: squeue::Entry,
        second_op: Op,
    ) {
        let pair = [
            first
                .flags(squeue::Flags::IO_LINK)
                .user_data(first_op.pack()),
            second.user_data(second_op.pack()),
        ];
        loop {
            // SAFETY: by the caller's promise.
            if unsafe { self.uring.submission().push_multiple(&pair) }.is_ok() {
                return;
            }
            self.submit();
        }
    }

    /// Hands up to `budget` completions to `done` (operation, result, completion flags), oldest
    /// first, and returns how many. Enters nothing.
    pub fn reap(&mut self, budget: usize, done: &mut impl FnMut(Op, i32, u32)) -> usize {
        let mut count = 0;
        for entry in self.uring.completion().take(budget) {
            done(Op::unpack(entry.user_data()), entry.result(), entry.flags());
            count += 1;
        }
        count
    }

    /// Whether completions can be reaped now.
    #[must_use]
    pub fn has_completions(&mut self) -> bool {
        !self.uring.completion().is_empty()
    }

    /// Whether an enter would post completions that exist already.
    #[must_use]
    pub fn has_work(&mut self) -> bool {
        let queue = self.uring.submission();
        queue.taskrun() || queue.cq_overflow()
    }

    /// Operations queued and not submitted yet.
    #[must_use]
    pub fn queued(&mut self) -> usize {
        self.uring.submission().len()
    }

    /// Submits everything queued and lets the kernel post what has completed. Without anything of
    /// either it is no system call.
    pub fn submit(&mut self) {
        let mut first = true;
        loop {
            let queued = self.queued();
            if queued == 0 && (!first || !self.has_work()) {
                return;
            }
            // No memory for a request is the only failure known here; what is queued may point to
            // memory that is about to change, so that waiting is the only safe answer.
            if !first {
                std::thread::sleep(Duration::from_micros(50));
            }
            first = false;
            self.enter(queued, 0, None);
        }
    }

    /// Submits what is queued, if anything is; reaps nothing that no submission brings along.
    pub fn submit_queued(&mut self) {
        if self.queued() > 0 {
            self.submit();
        }
    }

    /// Submits everything queued, then waits up to `timeout` (without end for `None`) for at least
    /// one completion besides those of [`Ring::push_inline`].
    pub fn submit_and_wait(&mut self, timeout: Option<Duration>) {
        let queued = self.queued();
        self.enter(queued, 1 + self.inline, timeout);
        if self.queued() > 0 {
            self.submit();
        }
    }

    fn enter(&mut self, queued: usize, want: u32, timeout: Option<Duration>) {
        self.enters += 1;
        self.inline = 0;
        let timespec = timeout.map(Timespec::from).unwrap_or_default();
        let args = if timeout.is_some() {
            SubmitArgs::new().timespec(&timespec)
        } else {
            SubmitArgs::new()
        };
        let flags = EnterFlags::GETEVENTS | EnterFlags::EXT_ARG;
        // SAFETY: EXT_ARG announces that the argument is a `SubmitArgs`, which outlives the call.
        // ETIME and EINTR end a wait as a completion would; other failures leave entries queued,
        // which the callers see.
        let _ = unsafe {
            self.uring
                .submitter()
                .enter(queued as u32, want, flags.bits(), Some(&args))
        };
    }

    /// `io_uring_enter` calls so far.
    #[must_use]
    pub fn enters(&self) -> u64 {
        self.enters
    }

    /// Registers a ring of provided buffers under `group`.
    ///
    /// # Safety
    /// `entries` (a power of two) buffer entries lie at `address`, page aligned, and stay until
    /// this ring is dropped.
    pub unsafe fn register_buffers(
        &self,
        address: *const u8,
        entries: u16,
        group: u16,
    ) -> Result<(), RingError> {
        // SAFETY: by the caller's promise.
        unsafe {
            self.uring
                .submitter()
                .register_buf_ring_with_flags(address as u64, entries, group, 0)
        }
        .map_err(|error| RingError::from_io(&error))
    }
}

/// The provided buffer that a completion filled.
#[must_use]
pub fn buffer_of(flags: u32) -> Option<u16> {
    cqueue::buffer_select(flags)
}

/// Whether a multishot operation goes on.
#[must_use]
pub fn goes_on(flags: u32) -> bool {
    cqueue::more(flags)
}

/// A descriptor for an entry.
#[must_use]
pub fn fd(raw: RawFd) -> io_uring::types::Fd {
    io_uring::types::Fd(raw)
}

#[cfg(test)]
mod tests {
    use super::*;
    use io_uring::opcode;

    #[test]
    fn every_operation_comes_back_as_it_was_packed() {
        for op in [
            Op::Accept { listener: 255 },
            Op::Receive { slot: u32::MAX },
            Op::Send { slot: 1 },
            Op::Writable { slot: 2 },
            Op::Close { slot: 3 },
            Op::Connect { key: 4 },
            Op::Bell,
            Op::Cancel,
            Op::Timer { key: 5 },
            Op::Cold { buffer: 6 },
            Op::Disk {
                key: u32::MAX,
                part: 255,
            },
        ] {
            assert_eq!(Op::unpack(op.pack()), op);
        }
    }

    #[test]
    fn a_full_queue_is_submitted_and_every_completion_is_reaped_within_its_budget() {
        let mut ring = Ring::new(4).expect("io_uring is allowed here");
        for key in 0..19 {
            // SAFETY: a no-op names no memory.
            unsafe { ring.push(opcode::Nop::new().build(), Op::Timer { key }) };
        }
        ring.submit();
        let mut seen = Vec::new();
        while seen.len() < 19 {
            let before = seen.len();
            let count = ring.reap(5, &mut |op, result, _| seen.push((op, result)));
            assert!(count <= 5 && seen.len() == before + count);
            ring.submit();
        }
        let expected: Vec<_> = (0..19).map(|key| (Op::Timer { key }, 0)).collect();
        assert_eq!(seen, expected);
    }

    #[test]
    fn the_second_of_a_linked_pair_does_not_start_when_the_first_fails() {
        let mut ring = Ring::new(4).expect("io_uring is allowed here");
        let bad = opcode::Fsync::new(fd(-1)).build();
        for _ in 0..3 {
            // SAFETY: no-ops name no memory.
            unsafe { ring.push(opcode::Nop::new().build(), Op::Bell) };
        }
        let (first, second) = (Op::Disk { key: 1, part: 0 }, Op::Disk { key: 1, part: 1 });
        // SAFETY: neither names memory.
        unsafe { ring.push_linked(bad, first, opcode::Nop::new().build(), second) };
        let mut seen = Vec::new();
        while seen.len() < 2 {
            ring.submit_and_wait(Some(Duration::from_secs(2)));
            ring.reap(100, &mut |op, result, _| {
                if op != Op::Bell {
                    seen.push((op, result));
                }
            });
        }
        assert_eq!(seen, [(first, -libc::EBADF), (second, -libc::ECANCELED)]);
    }

    #[test]
    fn a_wait_without_completions_ends_at_its_timeout() {
        let mut ring = Ring::new(4).expect("io_uring is allowed here");
        let begin = std::time::Instant::now();
        ring.submit_and_wait(Some(Duration::from_millis(20)));
        assert!(begin.elapsed() >= Duration::from_millis(20));
        assert!(begin.elapsed() < Duration::from_secs(2));
        assert!(!ring.has_completions());
    }
}
