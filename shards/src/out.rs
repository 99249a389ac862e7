//! Replies on their way out.
//!
//! A connection's queue is bytes in memory and ranges of the log, in order. Once per turn
//! everything queued on a connection goes out as one send, all of them in one submission; one
//! operation per socket at a time. Sends carry MSG_DONTWAIT, so that the kernel finishes them while
//! they are submitted: memory is lent only that long. A full socket is polled and then sent to
//! again from exactly where it stopped; log ranges are looked up anew each time.

use std::collections::VecDeque;

use io_uring::opcode;
use smallvec::SmallVec;

use crate::chunk::Lease;
use crate::conn::{HELD_BY_OUT_QUEUE, Sockets, State};
use crate::ids::{Conn, LogRange};
use crate::range::{Cold, Memory};
use crate::ring::{Op, Ring, fd};

/// What the out-queue of a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sending {
    Nothing,
    /// A send of so many bytes was submitted.
    Sends(u32),
    /// The socket was full; it is polled.
    Waits,
    /// The ring reads the first log range into a pooled buffer.
    Reads,
    /// All pooled buffers are in use.
    WaitsForBuffer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Bytes(u32),
    Log(LogRange),
}

/// One connection's queue.
#[derive(Debug, Default)]
pub(crate) struct Out {
    /// Memory pieces back to back; those below `at` are sent.
    bytes: Vec<u8>,
    at: usize,
    /// What is queued, in order; left empty as long as it is memory alone.
    pub pieces: VecDeque<Piece>,
    /// The first bytes of the queue, ranges all of them, read into a pooled buffer.
    pub cold: Option<Cold>,
    len: u64,
}

/// Memory that an empty queue keeps.
const KEPT_BYTES: usize = 16 << 10;
/// A range up to this long is copied from the tail when it is queued, which costs less than lending
/// it, as long as the queue is short.
const COPIED_BYTES: u32 = 8 << 10;
const COPIED_INTO_BYTES: u64 = 64 << 10;
/// Sent bytes from which on the rest is moved to the front.
const COMPACTED_FROM_BYTES: usize = 64 << 10;

impl Out {
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that wait, in memory and in the log.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Forgets everything; a pooled buffer is to be given back.
    pub fn clear(&mut self) -> Option<Cold> {
        std::mem::take(self).cold
    }

    /// The range of the log that is to be sent next, if it is one and not read yet.
    pub fn first_range(&self) -> Option<LogRange> {
        match self.pieces.front() {
            Some(Piece::Log(range)) if self.cold.is_none() => Some(*range),
            _ => None,
        }
    }

    fn push_bytes(&mut self, bytes: &[u8]) {
        if self.at >= COMPACTED_FROM_BYTES && self.at * 2 >= self.bytes.len() {
            self.bytes.drain(..self.at);
            self.at = 0;
        }
        self.bytes.extend_from_slice(bytes);
        self.len += bytes.len() as u64;
        match self.pieces.back_mut() {
            None => {}
            Some(Piece::Bytes(len)) => *len += bytes.len() as u32,
            Some(Piece::Log(_)) => self.pieces.push_back(Piece::Bytes(bytes.len() as u32)),
        }
    }

    fn push_range(&mut self, range: LogRange) {
        if range.len == 0 {
            return;
        }
        if self.pieces.is_empty() && self.len > 0 {
            self.pieces.push_back(Piece::Bytes(self.len as u32));
        }
        self.pieces.push_back(Piece::Log(range));
        self.len += u64::from(range.len);
    }

    /// The first `sent` bytes are on their way. Gives back a pooled buffer that is sent.
    fn advance(&mut self, sent: u64) -> Option<Cold> {
        assert!(sent <= self.len, "{sent} sent of {}", self.len);
        self.len -= sent;
        let mut rest = sent;
        let mut emptied = None;
        if let Some(cold) = &mut self.cold {
            let step = u64::from(cold.len).min(sent) as u32;
            cold.at += step;
            cold.len -= step;
            if cold.len == 0 {
                emptied = self.cold.take();
            }
        }
        if self.pieces.is_empty() {
            self.at += rest as usize;
        }
        while rest > 0 {
            match self.pieces.front_mut() {
                None => break,
                Some(Piece::Bytes(len)) => {
                    let step = rest.min(u64::from(*len));
                    *len -= step as u32;
                    self.at += step as usize;
                    rest -= step;
                    if *len > 0 {
                        break;
                    }
                }
                Some(Piece::Log(range)) => {
                    let step = rest.min(u64::from(range.len));
                    range.at = range.at.plus(step);
                    range.len -= step as u32;
                    rest -= step;
                    if range.len > 0 {
                        break;
                    }
                }
            }
            self.pieces.pop_front();
        }
        if self.at == self.bytes.len() {
            self.at = 0;
            self.bytes.clear();
            if self.bytes.capacity() > KEPT_BYTES {
                self.bytes = Vec::new();
            }
        }
        emptied
    }
}

/// Memory that one turn's sends name: lent until they are submitted.
pub(crate) struct Gather {
    vectors: Vec<libc::iovec>,
    messages: Vec<libc::msghdr>,
}

const VECTORS: usize = 2048;
const MESSAGES: usize = 256;
/// Pieces of one send.
const VECTORS_PER_SEND: usize = 128;
const SEND_FLAGS: libc::c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
/// Longest single send, so that no result is ever too large for its type.
const SEND_BYTES_MAX: usize = 1 << 30;

impl Gather {
    pub fn new() -> Self {
        Gather {
            vectors: Vec::with_capacity(VECTORS),
            messages: Vec::with_capacity(MESSAGES),
        }
    }

    fn is_full(&self) -> bool {
        self.vectors.len() + VECTORS_PER_SEND > VECTORS || self.messages.len() == MESSAGES
    }

    fn clear(&mut self) {
        self.vectors.clear();
        self.messages.clear();
    }

    fn add(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.vectors.push(libc::iovec {
                iov_base: bytes.as_ptr().cast_mut().cast(),
                iov_len: bytes.len(),
            });
        }
    }
}

type Leases<'a> = SmallVec<[Lease<'a>; 64]>;

/// What one send consists of.
#[derive(Default)]
struct Gathered {
    bytes: usize,
    /// Something queued is left for the next send.
    more: bool,
}

impl Sockets {
    /// Queues a reply; one to a connection that is gone is dropped and counted.
    pub fn reply(
        &mut self,
        ring: &mut Ring,
        memory: &Memory,
        conn: Conn,
        head: &[u8],
        ranges: &[LogRange],
    ) {
        let Some(slot) = self.open_slot(conn) else {
            self.counters.refused.reply_to_gone.add(1);
            return;
        };
        let connection = &mut self.slots[slot as usize];
        let out = &mut connection.out;
        if out.is_empty() {
            connection.progress_at = self.now;
        }
        out.push_bytes(head);
        for range in ranges {
            let copied = range.len <= COPIED_BYTES && out.len() <= COPIED_INTO_BYTES;
            match memory.lease(*range).filter(|_| copied) {
                Some(lease) => {
                    self.counters.ranges_from_tail.add(1);
                    for part in lease.pieces() {
                        out.push_bytes(part);
                    }
                }
                None => out.push_range(*range),
            }
        }
        let over = out.len() > self.limits.out_queue_bytes_max;
        self.counters.replies.add(1);
        self.mark_dirty(slot);
        if over && self.slots[slot as usize].held & HELD_BY_OUT_QUEUE == 0 {
            self.counters.held_by_out_queue.add(1);
            self.hold(ring, slot, HELD_BY_OUT_QUEUE, true);
        }
    }

    pub fn mark_dirty(&mut self, slot: u32) {
        let connection = &mut self.slots[slot as usize];
        if !connection.dirty {
            connection.dirty = true;
            self.dirty.push(slot);
        }
    }

    /// Queues one send for each connection that has something to send and none under way. Whatever
    /// memory they name beyond the connections' own is submitted before this returns.
    pub fn flush(&mut self, ring: &mut Ring, gather: &mut Gather, memory: &Memory) {
        let mut leases = Leases::new();
        let mut next = 0;
        while let Some(&slot) = self.dirty.get(next) {
            next += 1;
            let connection = &mut self.slots[slot as usize];
            connection.dirty = false;
            let wants = matches!(connection.state, State::Open | State::Draining)
                && connection.sending == Sending::Nothing
                && !connection.out.is_empty();
            if !wants {
                continue;
            }
            if gather.is_full() {
                ring.submit();
                gather.clear();
                leases.clear();
            }
            if connection.out.pieces.is_empty() {
                self.send_bytes(ring, slot);
            } else {
                self.send_pieces(ring, gather, memory, &mut leases, slot);
            }
        }
        self.dirty.clear();
        if !leases.is_empty() {
            ring.submit();
        }
        gather.clear();
    }

    /// Sends memory alone.
    fn send_bytes(&mut self, ring: &mut Ring, slot: u32) {
        let connection = &mut self.slots[slot as usize];
        let bytes = &connection.out.bytes[connection.out.at..];
        let len = bytes.len().min(SEND_BYTES_MAX);
        let entry = opcode::Send::new(fd(connection.fd), bytes.as_ptr(), len as u32)
            .flags(SEND_FLAGS)
            .build();
        connection.sending = Sending::Sends(len as u32);
        connection.operations += 1;
        // SAFETY: the queue is not touched before the send was submitted, which finishes it.
        unsafe { ring.push_inline(entry, Op::Send { slot }) };
    }

    /// Sends memory and log ranges, as far as those are in memory; takes the first of the others
    /// from its file.
    fn send_pieces<'a>(
        &mut self,
        ring: &mut Ring,
        gather: &mut Gather,
        memory: &'a Memory,
        leases: &mut Leases<'a>,
        slot: u32,
    ) {
        loop {
            let from = gather.vectors.len();
            let gathered = self.gather_pieces(gather, memory, leases, slot);
            if gathered.bytes > 0 {
                self.send_message(ring, gather, from, &gathered, slot);
                return;
            }
            if !self.take_from_file(ring, memory, slot) || self.slots[slot as usize].out.is_empty()
            {
                return;
            }
        }
    }

    fn gather_pieces<'a>(
        &self,
        gather: &mut Gather,
        memory: &'a Memory,
        leases: &mut Leases<'a>,
        slot: u32,
    ) -> Gathered {
        let out = &self.slots[slot as usize].out;
        let from = gather.vectors.len();
        let mut gathered = Gathered::default();
        let mut at = out.at;
        let mut cold = 0;
        if let Some(first) = out.cold {
            gather.add(self.files.bytes(first));
            gathered.bytes += first.len as usize;
            cold = first.len;
        }
        for piece in &out.pieces {
            let vectors = gather.vectors.len() - from;
            if vectors + 3 > VECTORS_PER_SEND || gathered.bytes > SEND_BYTES_MAX {
                gathered.more = true;
                break;
            }
            match piece {
                Piece::Bytes(len) => {
                    let len = *len as usize;
                    gather.add(&out.bytes[at..at + len]);
                    at += len;
                    gathered.bytes += len;
                }
                Piece::Log(range) if cold > 0 => {
                    gathered.more = cold < range.len;
                    cold = cold.saturating_sub(range.len);
                }
                Piece::Log(range) => match memory.lease(*range) {
                    Some(lease) => {
                        for part in lease.pieces() {
                            gather.add(part);
                        }
                        leases.push(lease);
                        self.counters.ranges_from_tail.add(1);
                        gathered.bytes += range.len as usize;
                    }
                    None => gathered.more = true,
                },
            }
            if gathered.more {
                break;
            }
        }
        gathered
    }

    fn send_message(
        &mut self,
        ring: &mut Ring,
        gather: &mut Gather,
        from: usize,
        gathered: &Gathered,
        slot: u32,
    ) {
        // SAFETY: a message header is plain numbers and pointers, for which zero is a value.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = gather.vectors[from..].as_mut_ptr();
        message.msg_iovlen = gather.vectors.len() - from;
        gather.messages.push(message);
        let message = gather.messages.last().expect("just pushed");
        let connection = &mut self.slots[slot as usize];
        connection.sending = Sending::Sends(gathered.bytes as u32);
        connection.operations += 1;
        let more = if gathered.more { libc::MSG_MORE } else { 0 };
        let entry = opcode::SendMsg::new(fd(connection.fd), message)
            .flags((SEND_FLAGS | more) as u32)
            .build();
        // SAFETY: neither vectors nor messages grow beyond their capacity, so both stay in place;
        // leases and pooled buffers are held until the send was submitted, which finishes it.
        unsafe { ring.push_inline(entry, Op::Send { slot }) };
    }

    /// A send completed.
    pub fn sent(&mut self, ring: &mut Ring, slot: u32, result: i32) {
        let connection = &mut self.slots[slot as usize];
        let Sending::Sends(wanted) = connection.sending else {
            unreachable!("slot {slot} has no send under way");
        };
        connection.sending = Sending::Nothing;
        self.operation_ended(ring, slot);
        let state = self.slots[slot as usize].state;
        if !matches!(state, State::Open | State::Draining) {
            return;
        }
        match result {
            sent if sent >= 0 => {
                self.took(ring, slot, sent as u64);
                let waits = !self.slots[slot as usize].out.is_empty();
                if waits && (sent as u32) < wanted {
                    self.wait_writable(ring, slot);
                } else if waits {
                    self.mark_dirty(slot);
                }
            }
            error if error == -libc::EAGAIN => self.wait_writable(ring, slot),
            error if error == -libc::EINTR => self.mark_dirty(slot),
            _ => self.lose(ring, slot),
        }
    }

    /// The peer's socket took `sent` more bytes.
    pub fn took(&mut self, ring: &mut Ring, slot: u32, sent: u64) {
        let connection = &mut self.slots[slot as usize];
        let emptied = connection.out.advance(sent);
        connection.active_at = self.now;
        if sent > 0 {
            connection.progress_at = self.now;
        }
        let (state, left) = (connection.state, connection.out.len());
        let held = connection.held & HELD_BY_OUT_QUEUE != 0;
        self.counters.bytes_out.add(sent);
        if let Some(cold) = emptied {
            self.free_buffer(cold.buffer);
        }
        if state == State::Draining && left == 0 {
            self.abandon(ring, slot);
        } else if held && left <= self.limits.out_queue_bytes_max / 2 {
            self.hold(ring, slot, HELD_BY_OUT_QUEUE, false);
        }
    }

    pub fn wait_writable(&mut self, ring: &mut Ring, slot: u32) {
        self.counters.sends_blocked.add(1);
        let connection = &mut self.slots[slot as usize];
        // A slow peer does not keep others from the pool: what it has yet to get is read again.
        if self.files.anyone_waits()
            && let Some(cold) = connection.out.cold.take()
        {
            self.free_buffer(cold.buffer);
        }
        let connection = &mut self.slots[slot as usize];
        connection.sending = Sending::Waits;
        connection.operations += 1;
        let entry = opcode::PollAdd::new(fd(connection.fd), libc::POLLOUT as u32).build();
        // SAFETY: names no memory; the descriptor is closed after the poll has ended.
        unsafe { ring.push(entry, Op::Writable { slot }) };
    }

    /// The poll of a full socket ended.
    pub fn writable(&mut self, ring: &mut Ring, slot: u32) {
        let connection = &mut self.slots[slot as usize];
        connection.sending = Sending::Nothing;
        self.operation_ended(ring, slot);
        let connection = &self.slots[slot as usize];
        if matches!(connection.state, State::Open | State::Draining) {
            self.mark_dirty(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::LogOffset;
    use proptest::prelude::*;

    /// What is queued, a byte each: memory as it is, a log position by its low byte.
    fn contents(out: &Out) -> Vec<u8> {
        if out.pieces.is_empty() {
            return out.bytes[out.at..].to_vec();
        }
        let mut at = out.at;
        let mut all = Vec::new();
        for piece in &out.pieces {
            match piece {
                Piece::Bytes(len) => {
                    all.extend_from_slice(&out.bytes[at..at + *len as usize]);
                    at += *len as usize;
                }
                Piece::Log(range) => {
                    all.extend((range.at.0..range.end().0).map(|position| position as u8));
                }
            }
        }
        all
    }

    proptest! {
        #[test]
        fn a_queue_goes_on_exactly_where_it_stopped(
            steps in prop::collection::vec((0u8..3, 0usize..100_000), 1..60),
        ) {
            let mut out = Out::default();
            let mut model: Vec<u8> = Vec::new();
            let mut at = 0u64;
            for (kind, size) in steps {
                match kind {
                    0 => {
                        let bytes: Vec<u8> = (0..size).map(|i| (i * 7 + size) as u8).collect();
                        out.push_bytes(&bytes);
                        model.extend(bytes);
                    }
                    1 => {
                        let range = LogRange { at: LogOffset(at), len: (size % 1000) as u32 };
                        at += 12_345;
                        out.push_range(range);
                        model.extend((range.at.0..range.end().0).map(|p| p as u8));
                    }
                    _ => {
                        let sent = size.min(model.len());
                        out.advance(sent as u64);
                        model.drain(..sent);
                    }
                }
                prop_assert_eq!(out.len(), model.len() as u64);
                prop_assert_eq!(out.is_empty(), model.is_empty());
                prop_assert_eq!(contents(&out), model.clone());
            }
        }
    }
}
