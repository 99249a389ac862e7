//! Connections: receiving, framing, and the life of a slot.
//!
//! ```text
//!  kernel --multishot receive--> provided buffers (one ring of them per core)
//!     frame inside one buffer:  lent to the role as it lies there
//!     frame across buffers:     gathered in the connection's own memory, then lent
//!
//!  slot:  Free -> Open -> Draining (sends what is queued) -> Closing (waits for its operations) ->
//! Free
//! ```
//!
//! A frame is a 4-byte big-endian length and as many bytes. A slot becomes free only when the
//! kernel has answered its last operation, the close itself; its generation then grows, so that
//! nothing meant for the old connection can reach the next one.

use std::collections::VecDeque;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use io_uring::opcode;

use crate::ids::{Conn, Micros};
use crate::out::{Out, Sending};
use crate::range::Files;
use crate::receive::BUFFER_GROUP;
use crate::ring::{Op, Ring, fd};
use crate::stall::Counters;

/// Bounds of a core's sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketLimits {
    /// Open connections of the whole process; one more is accepted and closed.
    pub connections_max: u32,
    /// Longest frame, its length word included. A longer one, and a length below
    /// [`FRAME_LENGTH_MIN`], closes the connection.
    pub frame_bytes_max: u32,
    /// Receive buffers of each core, a power of two up to 32768, and the size of each.
    pub receive_buffers: u16,
    pub receive_buffer_bytes: u32,
    /// A connection with more bytes queued to be sent is not read until half of it is sent.
    pub out_queue_bytes_max: u64,
    /// A connection without a read or write for this long is closed.
    pub idle_close: Micros,
    /// A connection that takes nothing of what is queued for this long is closed.
    pub stall_close: Micros,
    /// An outbound connect is given up after this long.
    pub connect_within: Micros,
    /// Contiguous log bytes from which on sendfile is used for what the page cache holds.
    pub sendfile_from_bytes: u32,
    /// Buffers of each core for log ranges that are read from the device, and the size of each.
    pub cold_buffers: u16,
    pub cold_buffer_bytes: u32,
}

/// The shortest length a frame can name: that of its header's own length word.
pub const FRAME_LENGTH_MIN: u32 = 4;

impl Default for SocketLimits {
    fn default() -> Self {
        SocketLimits {
            connections_max: 10_000,
            frame_bytes_max: 16 << 20,
            receive_buffers: 512,
            receive_buffer_bytes: 16 << 10,
            out_queue_bytes_max: 1 << 20,
            idle_close: Micros(120_000_000),
            stall_close: Micros(30_000_000),
            connect_within: Micros(3_000_000),
            sendfile_from_bytes: 64 << 10,
            cold_buffers: 16,
            cold_buffer_bytes: 256 << 10,
        }
    }
}

/// What the first bytes of a stream are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framed {
    /// A whole frame of so many bytes, length word included.
    Whole(usize),
    /// The begin of a frame; `missing` more bytes tell more, or complete it.
    Partial {
        missing: usize,
    },
    Bad,
}

/// Looks at the first frame of `bytes`, which is at most `max` bytes long, length word included.
#[must_use]
pub fn frame(bytes: &[u8], max: u32) -> Framed {
    let Some(word) = bytes.first_chunk::<4>() else {
        return Framed::Partial {
            missing: 4 - bytes.len(),
        };
    };
    let length = u32::from_be_bytes(*word);
    if !(FRAME_LENGTH_MIN..=max - 4).contains(&length) {
        return Framed::Bad;
    }
    let total = 4 + length as usize;
    if bytes.len() < total {
        return Framed::Partial {
            missing: total - bytes.len(),
        };
    }
    Framed::Whole(total)
}

/// Where a slot stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Free,
    Open,
    /// Sends what is queued, hears nothing.
    Draining,
    /// Waits for its operations to end, then for its close.
    Closing,
}

/// The multishot receive of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receiving {
    Off,
    On,
    Cancelled,
}

/// Reasons not to read a connection, a bit each.
pub(crate) const HELD_BY_ROLE: u8 = 1;
pub(crate) const HELD_BY_OUT_QUEUE: u8 = 2;
pub(crate) const HELD_BY_STOP: u8 = 4;

pub(crate) struct Connection {
    pub generation: u32,
    pub fd: RawFd,
    pub state: State,
    pub receiving: Receiving,
    pub held: u8,
    /// Place of its role on the core.
    pub seat: u8,
    /// Operations that the kernel has not answered for the last time.
    pub operations: u8,
    /// `gather` holds whole frames that were not delivered because the connection was held.
    pub stashed: bool,
    /// The role has yet to hear that it is closed.
    pub untold: bool,
    /// In the list of connections with something to send.
    pub dirty: bool,
    pub sending: Sending,
    /// Last read or write.
    pub active_at: Micros,
    /// Last time that the peer took something, or that the out-queue stopped being empty.
    pub progress_at: Micros,
    /// The begin of an unfinished frame, from its length word on.
    pub gather: Vec<u8>,
    pub out: Out,
}

/// Capacity that a connection keeps for gathering once a frame is delivered.
const GATHER_KEPT_BYTES: usize = 64 << 10;

impl Connection {
    fn free(generation: u32) -> Self {
        Connection {
            generation,
            fd: -1,
            state: State::Free,
            receiving: Receiving::Off,
            held: 0,
            seat: 0,
            operations: 0,
            stashed: false,
            untold: false,
            dirty: false,
            sending: Sending::Nothing,
            active_at: Micros(0),
            progress_at: Micros(0),
            gather: Vec::new(),
            out: Out::default(),
        }
    }

    /// Whether frames may be delivered.
    pub fn listens(&self) -> bool {
        self.state == State::Open && self.held == 0
    }
}

/// What came of a frame that lies across receive buffers.
pub(crate) enum Gathered {
    /// The frame, with its length word.
    Whole(Vec<u8>),
    /// Everything was kept.
    Kept,
    Bad,
}

/// All sockets of one core.
pub(crate) struct Sockets {
    pub core: u8,
    pub limits: SocketLimits,
    pub files: Files,
    pub counters: Arc<Counters>,
    pub now: Micros,
    pub slots: Vec<Connection>,
    free: Vec<u32>,
    /// Slots with something to send.
    pub dirty: Vec<u32>,
    /// Slots whose stashed frames can be delivered.
    pub ready: Vec<u32>,
    /// Connections whose role is to be told that they are closed, with its seat.
    pub gone: VecDeque<(u8, Conn)>,
    /// Slots that became free, with their seats, for the count of connections per role.
    pub freed: Vec<u8>,
    stopping: bool,
    sweep_at: Micros,
    sweep_from: usize,
}

impl Sockets {
    pub fn new(core: u8, limits: SocketLimits, files: Files, counters: Arc<Counters>) -> Self {
        Sockets {
            core,
            limits,
            files,
            counters,
            now: Micros(0),
            slots: Vec::new(),
            free: Vec::new(),
            dirty: Vec::new(),
            ready: Vec::new(),
            gone: VecDeque::new(),
            freed: Vec::new(),
            stopping: false,
            sweep_at: Micros(0),
            sweep_from: 0,
        }
    }

    /// Connections that are not free yet.
    pub fn in_use(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub fn conn(&self, slot: u32) -> Conn {
        Conn {
            core: self.core,
            slot,
            generation: self.slots[slot as usize].generation,
        }
    }

    /// The slot of an open connection.
    pub fn open_slot(&self, conn: Conn) -> Option<u32> {
        let slot = self.slots.get(conn.slot as usize)?;
        (conn.core == self.core && slot.generation == conn.generation && slot.state == State::Open)
            .then_some(conn.slot)
    }

    /// Takes a connected socket over for the role at `seat` and begins to receive.
    pub fn adopt(&mut self, ring: &mut Ring, socket: OwnedFd, seat: u8) -> Conn {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Connection::free(0));
            (self.slots.len() - 1) as u32
        });
        let connection = &mut self.slots[slot as usize];
        assert_eq!(connection.state, State::Free, "slot {slot} is in use");
        connection.fd = socket.into_raw_fd();
        connection.state = State::Open;
        connection.seat = seat;
        connection.untold = true;
        connection.active_at = self.now;
        connection.held = if self.stopping { HELD_BY_STOP } else { 0 };
        self.counters.connections.add(1);
        self.settle_receiving(ring, slot);
        self.conn(slot)
    }

    /// Starts or cancels the receive, so that it fits the connection's state.
    pub fn settle_receiving(&mut self, ring: &mut Ring, slot: u32) {
        let connection = &mut self.slots[slot as usize];
        match (connection.listens(), connection.receiving) {
            (true, Receiving::Off) => {
                let entry = opcode::RecvMulti::new(fd(connection.fd), BUFFER_GROUP).build();
                connection.receiving = Receiving::On;
                connection.operations += 1;
                // SAFETY: receives into registered buffers; the descriptor is closed after the
                // operation has ended.
                unsafe { ring.push(entry, Op::Receive { slot }) };
            }
            (false, Receiving::On) => {
                connection.receiving = Receiving::Cancelled;
                let target = Op::Receive { slot }.pack();
                // SAFETY: names no memory.
                unsafe { ring.push(opcode::AsyncCancel::new(target).build(), Op::Cancel) };
            }
            _ => {}
        }
    }

    /// Adds or removes a reason not to read.
    pub fn hold(&mut self, ring: &mut Ring, slot: u32, reason: u8, on: bool) {
        let connection = &mut self.slots[slot as usize];
        let before = connection.held;
        connection.held = if on {
            before | reason
        } else {
            before & !reason
        };
        if connection.held == before {
            return;
        }
        if connection.held == 0 && connection.stashed {
            self.ready.push(slot);
        }
        self.settle_receiving(ring, slot);
    }

    /// Reads no connection any more.
    pub fn stop_reading(&mut self, ring: &mut Ring) {
        self.stopping = true;
        for slot in 0..self.slots.len() as u32 {
            if self.slots[slot as usize].state == State::Open {
                self.hold(ring, slot, HELD_BY_STOP, true);
            }
        }
    }

    /// A receive completed. Returns how many bytes it brought.
    pub fn received(&mut self, ring: &mut Ring, slot: u32, result: i32, goes_on: bool) -> usize {
        let connection = &mut self.slots[slot as usize];
        if !goes_on {
            connection.receiving = Receiving::Off;
            self.operation_ended(ring, slot);
        }
        if result > 0 {
            let connection = &mut self.slots[slot as usize];
            connection.active_at = self.now;
            self.counters.bytes_in.add(result as u64);
            if !goes_on {
                self.settle_receiving(ring, slot);
            }
            return result as usize;
        }
        match -result {
            0 => self.finish(ring, slot),
            libc::ECANCELED | libc::EINTR | libc::EAGAIN => self.settle_receiving(ring, slot),
            libc::ENOBUFS => {
                self.counters.receives_starved.add(1);
                self.settle_receiving(ring, slot);
            }
            _ => self.lose(ring, slot),
        }
        0
    }

    /// Whether frames of this connection may be delivered.
    pub fn listens(&self, conn: Conn) -> bool {
        let slot = &self.slots[conn.slot as usize];
        slot.generation == conn.generation && slot.listens()
    }

    /// Continues the frame that was begun with `bytes`, taking from them what belongs to it.
    pub fn gather(&mut self, slot: u32, bytes: &mut &[u8]) -> Gathered {
        let connection = &mut self.slots[slot as usize];
        if connection.stashed {
            connection.gather.extend_from_slice(bytes);
            return Gathered::Kept;
        }
        loop {
            match frame(&connection.gather, self.limits.frame_bytes_max) {
                Framed::Bad => return Gathered::Bad,
                Framed::Whole(_) => break,
                Framed::Partial { .. } if bytes.is_empty() => return Gathered::Kept,
                Framed::Partial { missing } => {
                    let (taken, rest) = bytes.split_at(missing.min(bytes.len()));
                    connection.gather.extend_from_slice(taken);
                    *bytes = rest;
                }
            }
        }
        if connection.listens() {
            return Gathered::Whole(std::mem::take(&mut connection.gather));
        }
        connection.gather.extend_from_slice(bytes);
        connection.stashed = true;
        Gathered::Kept
    }

    /// Keeps the rest of what was received: the begin of a frame, or whatever comes while held.
    pub fn keep(&mut self, conn: Conn, bytes: &[u8]) {
        let Some(slot) = self.open_slot(conn) else {
            return;
        };
        if !bytes.is_empty() {
            let connection = &mut self.slots[slot as usize];
            connection.gather.extend_from_slice(bytes);
            connection.stashed |= connection.held != 0;
        }
    }

    /// Takes emptied memory back for the next unfinished frame.
    pub fn recycle(&mut self, conn: Conn, mut gather: Vec<u8>) {
        if let Some(slot) = self.open_slot(conn) {
            let connection = &mut self.slots[slot as usize];
            if gather.capacity() <= GATHER_KEPT_BYTES && connection.gather.capacity() == 0 {
                gather.clear();
                connection.gather = gather;
            }
        }
    }

    /// The peer broke the protocol.
    pub fn refuse_frame(&mut self, ring: &mut Ring, slot: u32) {
        self.counters.refused.bad_frame_length.add(1);
        self.finish(ring, slot);
    }

    /// The peer will send nothing more that we want: what is queued still goes out.
    pub fn finish(&mut self, ring: &mut Ring, slot: u32) {
        if self.slots[slot as usize].state == State::Open {
            self.tell_gone(slot);
            self.drain(ring, slot);
        }
    }

    /// `Effect::Close`: sends what is queued, then closes; the role hears of it then.
    pub fn close(&mut self, ring: &mut Ring, conn: Conn) {
        if let Some(slot) = self.open_slot(conn) {
            self.drain(ring, slot);
        }
    }

    /// The socket is of no use any more.
    pub fn lose(&mut self, ring: &mut Ring, slot: u32) {
        let state = self.slots[slot as usize].state;
        if state == State::Open || state == State::Draining {
            self.counters.refused.socket_failed.add(1);
            self.abandon(ring, slot);
        }
    }

    fn drain(&mut self, ring: &mut Ring, slot: u32) {
        let connection = &mut self.slots[slot as usize];
        connection.state = State::Draining;
        connection.gather = Vec::new();
        connection.stashed = false;
        if connection.out.is_empty() {
            self.abandon(ring, slot);
        } else {
            connection.progress_at = self.now;
            self.settle_receiving(ring, slot);
        }
    }

    /// Drops what is queued and closes once nothing of the slot is in flight.
    pub fn abandon(&mut self, ring: &mut Ring, slot: u32) {
        self.tell_gone(slot);
        let connection = &mut self.slots[slot as usize];
        if matches!(connection.state, State::Free | State::Closing) {
            return;
        }
        connection.state = State::Closing;
        let cold = connection.out.clear();
        connection.gather = Vec::new();
        connection.stashed = false;
        let sending = connection.sending;
        if let Some(cold) = cold {
            self.free_buffer(cold.buffer);
        }
        if sending == Sending::Waits {
            let target = Op::Writable { slot }.pack();
            // SAFETY: names no memory.
            unsafe { ring.push(opcode::AsyncCancel::new(target).build(), Op::Cancel) };
        }
        self.settle_receiving(ring, slot);
        self.close_if_quiet(ring, slot);
    }

    fn tell_gone(&mut self, slot: u32) {
        let conn = self.conn(slot);
        let connection = &mut self.slots[slot as usize];
        if std::mem::take(&mut connection.untold) {
            self.gone.push_back((connection.seat, conn));
        }
    }

    /// The kernel answered an operation of the slot for the last time.
    pub fn operation_ended(&mut self, ring: &mut Ring, slot: u32) {
        let connection = &mut self.slots[slot as usize];
        assert!(connection.operations > 0, "slot {slot} has no operation");
        connection.operations -= 1;
        self.close_if_quiet(ring, slot);
    }

    fn close_if_quiet(&mut self, ring: &mut Ring, slot: u32) {
        let connection = &mut self.slots[slot as usize];
        if connection.state == State::Closing && connection.operations == 0 {
            connection.operations = 1;
            // SAFETY: no other operation uses the descriptor, and it is forgotten here.
            unsafe {
                ring.push(
                    opcode::Close::new(fd(connection.fd)).build(),
                    Op::Close { slot },
                );
            }
            connection.fd = -1;
        }
    }

    /// The descriptor is closed: the slot is free.
    pub fn closed(&mut self, slot: u32) {
        let connection = &mut self.slots[slot as usize];
        assert_eq!(connection.state, State::Closing, "slot {slot}");
        assert_eq!(connection.operations, 1, "slot {slot} is in use");
        self.freed.push(connection.seat);
        *connection = Connection {
            dirty: connection.dirty,
            ..Connection::free(connection.generation.wrapping_add(1))
        };
        self.free.push(slot);
        self.counters.connections.sub(1);
    }

    /// Closes everything at once.
    pub fn abandon_all(&mut self, ring: &mut Ring) {
        for slot in 0..self.slots.len() as u32 {
            if self.slots[slot as usize].state != State::Free {
                self.abandon(ring, slot);
            }
        }
    }

    /// Whether something is to be told or delivered.
    pub fn has_news(&self) -> bool {
        !self.gone.is_empty() || !self.ready.is_empty()
    }

    /// Whether anything is still queued or under way to a peer.
    pub fn has_unsent(&self) -> bool {
        self.slots
            .iter()
            .any(|c| matches!(c.state, State::Open | State::Draining) && !c.out.is_empty())
    }
}

/// Slots that one sweep looks at.
const SWEEP_SLOTS: usize = 512;

impl Sockets {
    /// When to sweep next; `None` while there is nothing to sweep.
    pub fn sweep_due(&self) -> Option<Micros> {
        (self.in_use() > 0).then_some(self.sweep_at)
    }

    /// Closes connections that were idle or took nothing for too long, some of the slots at a time.
    pub fn sweep(&mut self, ring: &mut Ring) {
        let shortest = self.limits.idle_close.0.min(self.limits.stall_close.0);
        self.sweep_at = Micros(self.now.0 + (shortest / 8).clamp(10_000, 500_000));
        if self.sweep_from >= self.slots.len() {
            self.sweep_from = 0;
        }
        let to = self.slots.len().min(self.sweep_from + SWEEP_SLOTS);
        for slot in self.sweep_from..to {
            let connection = &self.slots[slot];
            if !matches!(connection.state, State::Open | State::Draining) {
                continue;
            }
            let since = |then: Micros| self.now.0.saturating_sub(then.0);
            let waits = !connection.out.is_empty();
            if waits && since(connection.progress_at) >= self.limits.stall_close.0 {
                self.counters.refused.stalled_reader.add(1);
                self.abandon(ring, slot as u32);
            } else if !waits && since(connection.active_at) >= self.limits.idle_close.0 {
                self.counters.refused.idle.add(1);
                self.abandon(ring, slot as u32);
            }
        }
        self.sweep_from = to;
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        for connection in &self.slots {
            if connection.fd >= 0 {
                // SAFETY: ours, and not used after this.
                drop(unsafe { OwnedFd::from_raw_fd(connection.fd) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lengths_are_checked_at_their_bounds() {
        let of = |length: i32| frame(&length.to_be_bytes(), 100);
        for length in [-1, i32::MIN, 0, 3, 97, i32::MAX] {
            assert_eq!(of(length), Framed::Bad, "{length}");
        }
        assert_eq!(of(4), Framed::Partial { missing: 4 });
        assert_eq!(of(96), Framed::Partial { missing: 96 });
        assert_eq!(frame(&[0, 0], 100), Framed::Partial { missing: 2 });
        assert_eq!(frame(&[0, 0, 0, 4, 1, 2, 3, 4, 9], 100), Framed::Whole(8));
    }

    proptest! {
        #[test]
        fn what_is_missing_never_leads_beyond_the_frame(
            length in 4usize..200, have in 0usize..204,
        ) {
            let mut bytes = (length as u32).to_be_bytes().to_vec();
            bytes.resize(4 + length, 7);
            let have = have.min(bytes.len());
            match frame(&bytes[..have], 1000) {
                Framed::Whole(total) => prop_assert_eq!((total, have), (4 + length, 4 + length)),
                Framed::Partial { missing } => {
                    prop_assert!(missing > 0 && have + missing <= 4 + length);
                    prop_assert!(have + missing == 4 || have + missing == 4 + length);
                }
                Framed::Bad => prop_assert!(false),
            }
        }
    }
}
