//! All that a role can hear and ask: two enums, generic over the application's letters and marks.
//!
//! A role is a state machine that lives on exactly one core. It opens no file and no socket, reads
//! no clock, draws no random number: [`Role::handle`] gets the time and one [`Input`] and leaves
//! [`Effect`]s, which are plain values. Nothing has happened when it returns.

use std::fmt::Debug;
use std::net::SocketAddr;

use thiserror::Error;

use crate::files::{Job, JobDone};
use crate::ids::{Conn, FileRef, ListenerId, LogOffset, LogRange, Micros, Millis, RoleId, Ticket};
use crate::mesh::Outlets;

/// What the application brings to the runtime.
pub trait App: Sized + 'static {
    /// Small and plain; bytes travel beside it in the edge's lane.
    type Letter: Copy + Debug + Send + 'static;
    type Mark: Mark;
}

/// One number that only grows and of which only the latest value counts. Each kind has exactly one
/// publishing role.
pub trait Mark: Copy + Debug + Send + 'static {
    const KINDS: usize;
    fn new(kind: usize, value: u64) -> Self;
    fn kind(self) -> usize;
    fn value(self) -> u64;
}

/// The time of this turn, read once by the core.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    pub mono: Micros,
    pub wall: Millis,
}

/// What a role hears. Bytes are lent until `handle` returns (receive buffer, edge lane, read
/// buffer): to keep them, copy them.
#[derive(Debug)]
pub enum Input<'a, A: App> {
    /// A listener of this role accepted a connection; it is this role's until `Closed`.
    Opened {
        conn: Conn,
        listener: ListenerId,
        peer: SocketAddr,
    },
    /// The answer to `Effect::Connect`; on success the connection is this role's until `Closed`.
    Connected {
        ticket: Ticket,
        result: Result<Conn, ConnectError>,
    },
    /// One whole frame without its length word.
    Frame { conn: Conn, bytes: &'a [u8] },
    /// The peer closed, failed, was idle too long, or `Effect::Close` was carried out.
    Closed { conn: Conn },
    /// In the order in which `from` told them.
    Letter {
        from: RoleId,
        letter: A::Letter,
        payload: &'a [u8],
    },
    /// Only the latest value; told once per change, before the letters of the same turn.
    Mark(A::Mark),
    Read {
        ticket: Ticket,
        result: Result<&'a [u8], ReadError>,
    },
    /// Every byte (and the flush, where one was asked for), or an error.
    Wrote {
        ticket: Ticket,
        result: Result<(), WriteError>,
    },
    /// The background executor's answer to a [`Job`].
    Slow { ticket: Ticket, done: JobDone },
    /// An edge that had been full has place again: resend what is still dirty.
    Room { to: RoleId },
    /// The time of [`Role::deadline`] has come.
    Deadline,
    /// All that had arrived when the turn began has been handed over. Told once per turn to a role
    /// that heard anything: the place to act on everything gathered, such as one write for many
    /// appends.
    Settled,
    /// Finish what is acknowledged, take nothing new, then leave `Effect::Stopped`.
    Stop,
}

/// What a role asks for.
#[derive(Debug)]
pub enum Effect<A: App> {
    /// A whole frame: `head` holds the length word, the header and any body bytes in memory;
    /// `body` adds ranges of the log, resolved when they are sent.
    Reply {
        conn: Conn,
        head: Span,
        body: Body,
    },
    /// Sends what is queued, then closes.
    Close {
        conn: Conn,
    },
    /// Stops and resumes receiving from a connection.
    Pause {
        conn: Conn,
    },
    Resume {
        conn: Conn,
    },
    /// Published to all roles before any later doorbell.
    Mark(A::Mark),
    /// Reads exactly `len` bytes; answered by `Input::Read`.
    Read {
        ticket: Ticket,
        at: ReadAt,
        len: u32,
    },
    /// Writes `len` bytes of the tail at `at`, whole blocks of [`BLOCK_BYTES`] inside one segment,
    /// then the snapshot `last` as one more block; with `sync`, makes all of it durable. Answered
    /// once, by `Input::Wrote`.
    Write {
        ticket: Ticket,
        at: LogOffset,
        len: u32,
        last: Option<LastBlock>,
        sync: bool,
    },
    /// Writes into a queue or index file, through the page cache; the file is made when missing.
    /// Answered by `Input::Wrote`.
    Put {
        ticket: Ticket,
        file: FileRef,
        at: u64,
        bytes: Span,
    },
    /// A flush alone; answered by `Input::Wrote`.
    Sync {
        ticket: Ticket,
        target: SyncTarget,
    },
    /// Answered by `Input::Connected` within three seconds.
    Connect {
        ticket: Ticket,
        addr: SocketAddr,
    },
    /// Work for the background executor; answered by `Input::Slow`.
    Slow {
        ticket: Ticket,
        job: Job,
    },
    /// The answer to `Input::Stop`.
    Stopped,
}

/// The unit of direct writes, and the alignment of segments and chunks.
pub const BLOCK_BYTES: u64 = 4096;

/// A piece of this turn's byte arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Span {
    pub start: u32,
    pub len: u32,
}

impl Span {
    #[must_use]
    pub fn of(self, arena: &[u8]) -> &[u8] {
        &arena[self.start as usize..][..self.len as usize]
    }
}

/// What follows a reply's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    None,
    /// A piece of this turn's arena of log ranges.
    Log(Span),
}

/// Which of the two snapshots of the partly filled last block to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastBlock {
    pub copy: u8,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadAt {
    /// From the chunks if they still hold the range, else from the segment. The role has seen a
    /// mark that covers it.
    Log(LogOffset),
    File(FileRef, u64),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SyncTarget {
    /// The segment that holds this position.
    Segment(LogOffset),
    File(FileRef),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ReadError {
    /// No segment or file holds the range.
    #[error("no such place on disk")]
    Missing,
    #[error("the device failed to read: errno {0}")]
    Io(i32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WriteError {
    #[error("no such place on disk")]
    Missing,
    #[error("only {written} of {wanted} bytes were written")]
    Short { written: u32, wanted: u32 },
    #[error("the device failed to write: errno {0}")]
    Io(i32),
    #[error("the device failed to flush: errno {0}")]
    Flush(i32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ConnectError {
    #[error("no answer in time")]
    TimedOut,
    #[error("connect failed: errno {0}")]
    Io(i32),
}

/// The edge has no place for the letter or its bytes. An answer, not a wait: `Input::Room` follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the edge is full")]
pub struct Full;

/// Where a role leaves its effects. Owned by the core, lent per call and drained after it; the
/// capacities stay, so that the steady state allocates nothing.
pub struct Effects<'a, A: App> {
    pub list: &'a mut Vec<Effect<A>>,
    pub bytes: &'a mut Vec<u8>,
    pub ranges: &'a mut Vec<LogRange>,
    pub outlets: &'a mut Outlets<A::Letter>,
}

impl<A: App> Effects<'_, A> {
    pub fn push(&mut self, effect: Effect<A>) {
        self.list.push(effect);
    }

    /// Replies with bytes in memory: `fill` appends one whole frame, length word first.
    pub fn reply(&mut self, conn: Conn, fill: impl FnOnce(&mut Vec<u8>)) {
        let head = self.bytes(fill);
        self.list.push(Effect::Reply {
            conn,
            head,
            body: Body::None,
        });
    }

    /// Replies with a head in memory and a body from the log. The length word in the head counts
    /// the body.
    pub fn reply_with_log(
        &mut self,
        conn: Conn,
        ranges: impl IntoIterator<Item = LogRange>,
        fill: impl FnOnce(&mut Vec<u8>),
    ) {
        let head = self.bytes(fill);
        let start = self.ranges.len();
        self.ranges.extend(ranges);
        let span = Span {
            start: start as u32,
            len: (self.ranges.len() - start) as u32,
        };
        self.list.push(Effect::Reply {
            conn,
            head,
            body: Body::Log(span),
        });
    }

    /// Puts bytes into this turn's arena.
    pub fn bytes(&mut self, fill: impl FnOnce(&mut Vec<u8>)) -> Span {
        let start = self.bytes.len();
        fill(self.bytes);
        Span {
            start: start as u32,
            len: (self.bytes.len() - start) as u32,
        }
    }

    /// Tells another role a letter with `len` bytes beside it, encoded straight into the edge's
    /// lane. `Full` is an answer: nothing was told, and `Input::Room` will say when to try again.
    pub fn tell(
        &mut self,
        to: RoleId,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> A::Letter,
    ) -> Result<(), Full> {
        self.outlets.tell(to, len, fill)
    }

    pub fn mark(&mut self, mark: A::Mark) {
        self.list.push(Effect::Mark(mark));
    }
}

/// A state machine on one core.
pub trait Role<A: App> {
    /// Runs to its end and is never re-entered.
    fn handle(&mut self, now: Now, input: Input<'_, A>, fx: &mut Effects<'_, A>);

    /// When to be called with `Input::Deadline`, if nothing else happens before.
    fn deadline(&self) -> Option<Micros>;

    /// The kinds of marks, a bit each, that wake this role's core when it sleeps. Others are told
    /// when it wakes for something else: for roles that look by themselves now and then.
    fn woken_by(&self) -> u64 {
        u64::MAX
    }

    /// Whether `Input::Settled` comes only after this turn's writes and replies are on their way:
    /// for roles that nobody waits for, so that their work hides behind the device's.
    fn settles_late(&self) -> bool {
        false
    }

    /// For tables, counters and log lines.
    fn name(&self) -> &'static str;
}
