//! Answers on their way out: to a connection of this core, or to the shard that has it.
//!
//! ```text
//!  asker here   ------------------------------> Effect::Reply
//!  asker there  -> letter Reply -> edge   ----> its shard -> Effect::Reply
//!                       \-> backlog, if the edge is full, until Input::Room
//! ```

use std::collections::VecDeque;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use shards::role::Full;

use crate::ids::{Conn, LogOffset, LogRange, RoleId};
use crate::limits::{ASSEMBLED_BYTES_MAX, BACKLOG_BYTES_MAX, FORWARD_LANE_BYTES, FRAME_BYTES_MAX};
use crate::role::{Effects, Letter};
use crate::wire::{Encoding, ExtWriter, Header, ResponseCode, ResponseHead, encode_response};

/// A log range beside a `Letter::Reply`: offset and length in native order.
pub const RANGE_BYTES: usize = size_of::<u64>() + size_of::<u32>();

/// Who asked, and how the answer must look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asker {
    /// The shard that has the connection.
    pub shard: RoleId,
    pub conn: Conn,
    pub opaque: i32,
    pub encoding: Encoding,
    /// Nobody waits for an answer.
    pub oneway: bool,
}

impl Asker {
    #[must_use]
    pub fn of(shard: RoleId, conn: Conn, header: &Header<'_>) -> Asker {
        Asker {
            shard,
            conn,
            opaque: header.opaque,
            encoding: header.encoding,
            oneway: header.is_oneway(),
        }
    }

    /// Appends the answer's frame but for the log ranges that follow it.
    pub fn encode(
        &self,
        out: &mut Vec<u8>,
        code: ResponseCode,
        remark: Option<&str>,
        ranges: &[LogRange],
        ext: impl FnOnce(&mut ExtWriter<'_>),
    ) {
        let head = ResponseHead {
            code,
            opaque: self.opaque,
        };
        let body_bytes = ranges.iter().map(|range| range.len as usize).sum();
        encode_response(out, self.encoding, &head, remark, body_bytes, ext);
    }
}

/// Appends ranges as they travel beside a `Letter::Reply`.
pub fn push_ranges(out: &mut Vec<u8>, ranges: &[LogRange]) {
    for range in ranges {
        out.extend_from_slice(&range.at.0.to_ne_bytes());
        out.extend_from_slice(&range.len.to_ne_bytes());
    }
}

fn ranges_of(bytes: &[u8]) -> impl Iterator<Item = LogRange> {
    bytes.chunks_exact(RANGE_BYTES).map(|bytes| {
        let (at, len) = bytes.split_at(size_of::<u64>());
        LogRange {
            at: LogOffset(u64::from_ne_bytes(at.try_into().expect("cut to 8 bytes"))),
            len: u32::from_ne_bytes(len.try_into().expect("4 of 12 bytes are left")),
        }
    })
}

/// Letters that found their edge full, in the order in which they were to be told.
#[derive(Debug, Default)]
struct Backlog {
    letters: VecDeque<(Letter, Vec<u8>)>,
    bytes: usize,
}

/// This core's ways out.
#[derive(Debug)]
pub struct Replies {
    me: RoleId,
    scratch: Vec<u8>,
    backlogs: HashMap<RoleId, Backlog, FixedState>,
    assembling: HashMap<(RoleId, Conn), Vec<u8>, FixedState>,
    assembling_bytes: usize,
    /// Answers that a full edge with a full backlog has swallowed.
    pub lost: u64,
}

impl Replies {
    #[must_use]
    pub fn new(me: RoleId, hash_seed: u64) -> Replies {
        let hasher = FixedState::with_seed(hash_seed);
        Replies {
            me,
            scratch: Vec::new(),
            backlogs: HashMap::with_hasher(hasher.clone()),
            assembling: HashMap::with_hasher(hasher.clone()),
            assembling_bytes: 0,
            lost: 0,
        }
    }

    /// Answers with a body from the log, possibly empty. One-way requests get none.
    pub fn answer(
        &mut self,
        fx: &mut Effects<'_>,
        asker: &Asker,
        code: ResponseCode,
        remark: Option<&str>,
        ranges: &[LogRange],
        ext: impl FnOnce(&mut ExtWriter<'_>),
    ) {
        if asker.oneway {
            return;
        }
        if asker.shard == self.me {
            let encode = |out: &mut Vec<u8>| asker.encode(out, code, remark, ranges, ext);
            if ranges.is_empty() {
                fx.reply(asker.conn, encode);
            } else {
                fx.reply_with_log(asker.conn, ranges.iter().copied(), encode);
            }
            return;
        }
        let mut bytes = std::mem::take(&mut self.scratch);
        bytes.clear();
        asker.encode(&mut bytes, code, remark, ranges, ext);
        let letter = Letter::Reply {
            conn: asker.conn,
            head: bytes.len() as u32,
            more: false,
        };
        push_ranges(&mut bytes, ranges);
        if self.tell(fx, asker.shard, letter, &bytes).is_err() {
            self.lost += 1;
        }
        self.scratch = bytes;
    }

    /// Tells a letter, behind those that wait already.
    ///
    /// # Errors
    /// The edge is full, and so is the place for letters that wait; or the letter is too long for
    /// any edge.
    pub fn tell(
        &mut self,
        fx: &mut Effects<'_>,
        to: RoleId,
        letter: Letter,
        payload: &[u8],
    ) -> Result<(), Full> {
        // It would block all that comes after.
        if payload.len() > FORWARD_LANE_BYTES {
            return Err(Full);
        }
        let waiting = self
            .backlogs
            .get(&to)
            .is_some_and(|b| !b.letters.is_empty());
        if !waiting && tell_now(fx, to, letter, payload).is_ok() {
            return Ok(());
        }
        let backlog = self.backlogs.entry(to).or_default();
        if backlog.bytes + payload.len() > BACKLOG_BYTES_MAX && !payload.is_empty() {
            return Err(Full);
        }
        backlog.bytes += payload.len();
        backlog.letters.push_back((letter, payload.to_vec()));
        Ok(())
    }

    /// Tells what waits for an edge that has room again.
    pub fn tell_waiting(&mut self, fx: &mut Effects<'_>, to: RoleId) {
        let Some(backlog) = self.backlogs.get_mut(&to) else {
            return;
        };
        while let Some((letter, payload)) = backlog.letters.front() {
            if tell_now(fx, to, *letter, payload).is_err() {
                return;
            }
            backlog.bytes -= payload.len();
            backlog.letters.pop_front();
        }
    }

    #[must_use]
    pub fn is_backed_up(&self, to: RoleId) -> bool {
        self.backlogs
            .get(&to)
            .is_some_and(|b| !b.letters.is_empty())
    }

    /// Takes a `Letter::Reply` for a connection of this core. `false` if an answer in pieces grew
    /// too long: then its connection can only be closed.
    pub fn take_reply(
        &mut self,
        fx: &mut Effects<'_>,
        from: RoleId,
        letter: (Conn, u32, bool),
        payload: &[u8],
    ) -> bool {
        let (conn, head, more) = letter;
        let (head, ranges) = payload.split_at((head as usize).min(payload.len()));
        let started = self.assembling.contains_key(&(from, conn));
        if !more && !started {
            send(fx, conn, head, ranges);
            return true;
        }
        let gathered = self.assembling.entry((from, conn)).or_default();
        self.assembling_bytes += head.len();
        gathered.extend_from_slice(head);
        if gathered.len() > FRAME_BYTES_MAX || self.assembling_bytes > ASSEMBLED_BYTES_MAX {
            self.drop_pieces(from, conn);
            return false;
        }
        if !more {
            send(fx, conn, gathered, ranges);
            self.drop_pieces(from, conn);
        }
        true
    }

    fn drop_pieces(&mut self, from: RoleId, conn: Conn) {
        if let Some(gathered) = self.assembling.remove(&(from, conn)) {
            self.assembling_bytes -= gathered.len();
        }
    }

    /// Forgets what was gathered for a connection that is gone.
    pub fn forget(&mut self, conn: Conn) {
        if self.assembling.is_empty() {
            return;
        }
        let bytes = &mut self.assembling_bytes;
        self.assembling.retain(|(_, of), gathered| {
            if *of == conn {
                *bytes -= gathered.len();
            }
            *of != conn
        });
    }
}

fn tell_now(fx: &mut Effects<'_>, to: RoleId, letter: Letter, payload: &[u8]) -> Result<(), Full> {
    fx.tell(to, payload.len(), |lane| {
        lane.copy_from_slice(payload);
        letter
    })
}

fn send(fx: &mut Effects<'_>, conn: Conn, head: &[u8], ranges: &[u8]) {
    if ranges.is_empty() {
        fx.reply(conn, |out| out.extend_from_slice(head));
    } else {
        fx.reply_with_log(conn, ranges_of(ranges), |out| out.extend_from_slice(head));
    }
}
