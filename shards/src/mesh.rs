//! Edges between roles. None of them can block.
//!
//! ```text
//!  sender's core                                  receiver's core
//!  Outlet --- letters (a ring of small values) ---> Inlet
//!         \-- lane (bytes beside the letters) ----/
//!  Marks: one word per kind, written by one role, read by all
//!  Doorbell: an eventfd, rung only when the receiver says that it sleeps
//! ```
//!
//! A letter's bytes are written once into the lane and read in place. A receiver gives them back by
//! releasing the letter, so a lane is a ring whose free space is known to the sender by one word.

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::ids::RoleId;
use crate::role::{Full, Mark};
use crate::sleep::SleepFlag;

/// How much one edge can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EdgeSize {
    pub letters: usize,
    pub lane_bytes: usize,
}

/// A value on a cache line of its own (two, since processors fetch lines in pairs).
#[repr(align(128))]
#[derive(Debug, Default)]
struct Padded<T>(T);

/// The bytes of one lane. The sender writes only into space that the receiver has released, the
/// receiver reads only what a letter has told it of: so no byte is ever touched from both sides.
struct Lane {
    bytes: Box<[UnsafeCell<u8>]>,
    /// Absolute position up to which the receiver is done.
    released: Padded<AtomicU64>,
}

// SAFETY: see `Lane`; the letter ring's release/acquire pair orders the sender's writes before the
// receiver's reads, and `released` orders the receiver's reads before the sender's next writes.
unsafe impl Send for Lane {}
// SAFETY: as above.
unsafe impl Sync for Lane {}

#[derive(Clone, Copy)]
struct Envelope<L> {
    letter: L,
    /// Absolute lane position of the bytes.
    start: u64,
    len: u32,
}

/// The sender's end of an edge.
pub struct Outlet<L> {
    letters: rtrb::Producer<Envelope<L>>,
    lane: Arc<Lane>,
    /// Absolute position of the next byte.
    head: u64,
    /// Positions below are not in use, whatever `released` says: the head skipped over them.
    floor: u64,
    refused: bool,
}

/// The receiver's end of an edge.
pub struct Inlet<L> {
    letters: rtrb::Consumer<Envelope<L>>,
    lane: Arc<Lane>,
}

/// Makes an edge. `lane_bytes` is also the longest payload.
#[must_use]
pub fn edge<L: Copy>(size: EdgeSize) -> (Outlet<L>, Inlet<L>) {
    assert!(size.letters > 0, "an edge holds at least one letter");
    let (producer, consumer) = rtrb::RingBuffer::new(size.letters);
    let lane = Arc::new(Lane {
        bytes: (0..size.lane_bytes).map(|_| UnsafeCell::new(0)).collect(),
        released: Padded::default(),
    });
    let outlet = Outlet {
        letters: producer,
        lane: lane.clone(),
        head: 0,
        floor: 0,
        refused: false,
    };
    (
        outlet,
        Inlet {
            letters: consumer,
            lane,
        },
    )
}

impl<L: Copy> Outlet<L> {
    /// Tells one letter with `len` bytes that `fill` writes in place.
    pub fn tell(&mut self, len: usize, fill: impl FnOnce(&mut [u8]) -> L) -> Result<(), Full> {
        let Some(start) = self.reserve(len) else {
            self.refused = true;
            return Err(Full);
        };
        let at = self.place(start);
        // SAFETY: `reserve` found `len` bytes from `start` that lie inside the lane and that the
        // receiver has released, and only this outlet writes.
        let bytes = unsafe {
            std::slice::from_raw_parts_mut(self.lane.bytes.as_ptr().add(at) as *mut u8, len)
        };
        let letter = fill(bytes);
        let envelope = Envelope {
            letter,
            start,
            len: len as u32,
        };
        self.letters
            .push(envelope)
            .expect("reserve saw a free slot and we alone push");
        self.head = start + len as u64;
        Ok(())
    }

    /// Whether a letter with `len` bytes would be taken now.
    #[must_use]
    pub fn has_room(&self, len: usize) -> bool {
        self.reserve_at(len).is_some()
    }

    /// Whether `tell` was refused since the last call and there is room again.
    pub fn take_room(&mut self) -> bool {
        let room = self.refused && !self.letters.is_full() && self.in_use() * 2 <= self.capacity();
        self.refused &= !room;
        room
    }

    fn capacity(&self) -> u64 {
        self.lane.bytes.len() as u64
    }

    fn in_use(&self) -> u64 {
        self.head - self.lane.released.0.load(Ordering::Acquire).max(self.floor)
    }

    fn place(&self, position: u64) -> usize {
        if self.capacity() == 0 {
            0
        } else {
            (position % self.capacity()) as usize
        }
    }

    fn reserve(&mut self, len: usize) -> Option<u64> {
        let (start, restarted) = self.reserve_at(len)?;
        if restarted {
            self.floor = start;
        }
        Some(start)
    }

    /// Where `len` bytes can go, and whether the lane starts over there. An empty lane always
    /// starts over at its first byte, so that a lightly used lane stays within a few cache lines
    /// and even the longest payload fits an empty one.
    fn reserve_at(&self, len: usize) -> Option<(u64, bool)> {
        if self.letters.is_full() || len as u64 > self.capacity() {
            return None;
        }
        if self.capacity() == 0 {
            return Some((self.head, false));
        }
        let in_use = self.in_use();
        let place = self.head % self.capacity();
        let over = self.head - place + if place == 0 { 0 } else { self.capacity() };
        if in_use == 0 {
            return Some((over, true));
        }
        let start = if place + len as u64 > self.capacity() {
            over
        } else {
            self.head
        };
        let free = self.capacity() - in_use.min(self.capacity());
        (start - self.head + len as u64 <= free).then_some((start, false))
    }
}

impl<L: Copy> Inlet<L> {
    /// The oldest letter and its bytes; it stays until [`Inlet::release`].
    #[must_use]
    pub fn peek(&mut self) -> Option<(L, &[u8])> {
        let envelope = *self.letters.peek().ok()?;
        if self.lane.bytes.is_empty() {
            return Some((envelope.letter, &[]));
        }
        let at = (envelope.start % self.lane.bytes.len() as u64) as usize;
        // SAFETY: the sender wrote these bytes before it pushed the envelope, and will not write
        // them again before `release`, which needs `self` after this borrow has ended.
        let bytes = unsafe {
            let first = self.lane.bytes.as_ptr().add(at) as *const u8;
            std::slice::from_raw_parts(first, envelope.len as usize)
        };
        Some((envelope.letter, bytes))
    }

    /// Gives the oldest letter's place back.
    pub fn release(&mut self) {
        if let Ok(envelope) = self.letters.pop() {
            let end = envelope.start + u64::from(envelope.len);
            self.lane.released.0.store(end, Ordering::Release);
        }
    }

    /// Letters waiting now.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.letters.slots()
    }
}

/// One role's ways out, by receiver.
pub struct Outlets<L> {
    to: Vec<Option<Outlet<L>>>,
    /// Receivers told since the last call of [`Outlets::take_told`], a bit per role.
    told: u64,
    /// Receivers to which `tell` was refused and not yet would succeed, a bit per role.
    refused: u64,
}

/// Roles are numbered below this.
pub const ROLES_MAX: usize = 64;

impl<L: Copy> Outlets<L> {
    #[must_use]
    pub fn new() -> Self {
        Outlets {
            to: (0..ROLES_MAX).map(|_| None).collect(),
            told: 0,
            refused: 0,
        }
    }

    pub fn connect(&mut self, to: RoleId, outlet: Outlet<L>) {
        self.to[usize::from(to.0)] = Some(outlet);
    }

    /// See [`crate::role::Effects::tell`]. Without an edge to `to` this is our own mistake.
    pub fn tell(
        &mut self,
        to: RoleId,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> L,
    ) -> Result<(), Full> {
        let edge = self.to[usize::from(to.0)].as_mut();
        let told = edge
            .unwrap_or_else(|| panic!("no edge leads to {to:?}"))
            .tell(len, fill);
        if told.is_ok() {
            self.told |= 1 << to.0;
        } else {
            self.refused |= 1 << to.0;
        }
        told
    }

    #[must_use]
    pub fn has_room(&self, to: RoleId, len: usize) -> bool {
        self.to[usize::from(to.0)]
            .as_ref()
            .is_some_and(|edge| edge.has_room(len))
    }

    /// The receivers told since the last call, a bit per role: their cores' doorbells are due.
    pub fn take_told(&mut self) -> u64 {
        std::mem::take(&mut self.told)
    }

    /// A receiver to which `tell` was refused and would now succeed.
    pub fn take_room(&mut self) -> Option<RoleId> {
        let mut left = self.refused;
        while left != 0 {
            let to = left.trailing_zeros() as usize;
            left &= left - 1;
            if self.to[to].as_mut().is_some_and(Outlet::take_room) {
                self.refused &= !(1 << to);
                return Some(RoleId(to as u8));
            }
        }
        None
    }

    /// Whether a receiver is full to which `tell` was refused.
    #[must_use]
    pub fn waits_for_room(&self) -> bool {
        self.refused != 0
    }
}

impl<L: Copy> Default for Outlets<L> {
    fn default() -> Self {
        Self::new()
    }
}

/// All marks of the process: latest value wins, cannot overflow, no edge needed.
pub struct Marks<M> {
    values: Arc<[Padded<AtomicU64>]>,
    kind: std::marker::PhantomData<fn() -> M>,
}

impl<M> Clone for Marks<M> {
    fn clone(&self) -> Self {
        Marks {
            values: self.values.clone(),
            kind: std::marker::PhantomData,
        }
    }
}

impl<M: Mark> Marks<M> {
    #[must_use]
    pub fn new() -> Self {
        let values = (0..M::KINDS).map(|_| Padded::default()).collect();
        Marks {
            values,
            kind: std::marker::PhantomData,
        }
    }

    /// What was written before is visible to whoever reads the mark.
    pub fn publish(&self, mark: M) {
        self.values[mark.kind()]
            .0
            .store(mark.value(), Ordering::Release);
    }

    #[must_use]
    pub fn read(&self, kind: usize) -> u64 {
        self.values[kind].0.load(Ordering::Acquire)
    }

    /// Calls `told` for every mark whose value is not the one in `seen`, and remembers it there.
    pub fn changes(&self, seen: &mut [u64], mut told: impl FnMut(M)) {
        for (kind, seen) in seen.iter_mut().enumerate() {
            let value = self.read(kind);
            if value != *seen {
                *seen = value;
                told(M::new(kind, value));
            }
        }
    }

    /// Whether [`Marks::changes`] would tell anything.
    #[must_use]
    pub fn changed(&self, seen: &[u64]) -> bool {
        seen.iter()
            .enumerate()
            .any(|(kind, seen)| self.read(kind) != *seen)
    }
}

impl<M: Mark> Default for Marks<M> {
    fn default() -> Self {
        Self::new()
    }
}

/// Wakes a sleeping core. The sleeper says that it will sleep, then looks once more at everything
/// that could have reached it; the sender tells, then looks whether the receiver sleeps.
pub struct Doorbell {
    sleeps: Padded<SleepFlag>,
    event: OwnedFd,
}

impl Doorbell {
    pub fn new() -> std::io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Doorbell {
            sleeps: Padded::default(),
            event,
        })
    }

    /// For the sleeper's ring to read from.
    #[must_use]
    pub fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// The sleeper: after this, look at every inlet and mark again, and only then sleep.
    pub fn fall_asleep(&self) {
        self.sleeps.0.fall_asleep();
    }

    pub fn wake_up(&self) {
        self.sleeps.0.wake_up();
    }

    /// The sender, after it told something. Returns whether a system call was needed.
    pub fn ring(&self) -> bool {
        let asleep = self.sleeps.0.must_wake();
        if asleep {
            // The counter cannot overflow: one ring per sleep. A failure could only be EAGAIN,
            // and then the sleeper has a wake-up waiting anyway.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
        asleep
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    fn tell(outlet: &mut Outlet<u32>, letter: u32, bytes: &[u8]) -> Result<(), Full> {
        outlet.tell(bytes.len(), |lane| {
            lane.copy_from_slice(bytes);
            letter
        })
    }

    #[test]
    fn the_longest_payload_fits_an_empty_lane_wherever_its_head_stands() {
        let (mut outlet, mut inlet) = edge::<u32>(EdgeSize {
            letters: 4,
            lane_bytes: 5,
        });
        for (letter, len) in [2, 5, 3, 5, 4, 1, 5].into_iter().enumerate() {
            tell(&mut outlet, letter as u32, &vec![7; len]).expect("the lane is empty");
            assert_eq!(
                inlet.peek().map(|(l, b)| (l, b.len())),
                Some((letter as u32, len))
            );
            inlet.release();
        }
        assert_eq!(tell(&mut outlet, 9, &[0; 6]), Err(Full));
    }

    #[test]
    fn a_refused_sender_hears_of_room_once() {
        let (mut outlet, mut inlet) = edge::<u32>(EdgeSize {
            letters: 1,
            lane_bytes: 8,
        });
        assert_eq!(tell(&mut outlet, 1, &[1; 8]), Ok(()));
        assert_eq!(tell(&mut outlet, 2, &[]), Err(Full));
        assert!(!outlet.take_room());
        inlet.release();
        assert!(outlet.take_room());
        assert!(!outlet.take_room());
    }

    proptest! {
        #[test]
        fn an_edge_keeps_order_and_bytes(
            lane in 1usize..40, letters in 1usize..5,
            steps in prop::collection::vec((any::<bool>(), 0usize..40), 1..400),
        ) {
            let (mut outlet, mut inlet) = edge::<u32>(EdgeSize { letters, lane_bytes: lane });
            let mut model: VecDeque<(u32, Vec<u8>)> = VecDeque::new();
            for (number, (send, len)) in steps.into_iter().enumerate() {
                let letter = number as u32;
                if send {
                    let bytes: Vec<u8> = (0..len).map(|i| (i + number) as u8).collect();
                    let room = outlet.has_room(len);
                    let told = tell(&mut outlet, letter, &bytes);
                    prop_assert_eq!(told.is_ok(), room);
                    if told.is_ok() { model.push_back((letter, bytes)); }
                    if model.is_empty() { prop_assert!(len > lane); }
                } else {
                    let told = inlet.peek().map(|(l, b)| (l, b.to_vec()));
                    prop_assert_eq!(told, model.pop_front());
                    inlet.release();
                }
                let used: usize = model.iter().map(|(_, bytes)| bytes.len()).sum();
                prop_assert!(used <= lane);
            }
        }
    }

    #[test]
    fn bytes_arrive_whole_from_another_thread() {
        let (mut outlet, mut inlet) = edge::<u32>(EdgeSize {
            letters: 8,
            lane_bytes: 1000,
        });
        let sender = std::thread::spawn(move || {
            for letter in 0..20_000u32 {
                let bytes = vec![letter as u8; (letter % 300) as usize];
                while tell(&mut outlet, letter, &bytes).is_err() {
                    std::thread::yield_now();
                }
            }
        });
        let mut expected = 0;
        while expected < 20_000u32 {
            let Some((letter, bytes)) = inlet.peek() else {
                std::thread::yield_now();
                continue;
            };
            assert_eq!(letter, expected);
            assert_eq!(bytes.len(), (letter % 300) as usize);
            assert!(bytes.iter().all(|&byte| byte == letter as u8));
            inlet.release();
            expected += 1;
        }
        sender.join().expect("the sender ends");
    }
}
