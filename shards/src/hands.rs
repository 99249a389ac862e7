//! What carries effects out, and how a role is called.
//!
//! A role is called with one input; the effects it leaves are carried out right after, before
//! anything else is told. What they bring about (a connection that is gone, an answer that is there
//! at once) is told by the loop later in the same turn, so that a role is never re-entered.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::background::Jobs;
use crate::conn::{HELD_BY_ROLE, Sockets};
use crate::disk::{Asker, Disk, TailWrite};
use crate::files::JobError;
use crate::ids::{Conn, LogRange, Micros, RoleId, Ticket};
use crate::listen::Connects;
use crate::mesh::{Inlet, Marks, Outlets};
use crate::out::Gather;
use crate::range::Memory;
use crate::ring::Ring;
use crate::role::{
    App, Body, ConnectError, Effect, Effects, Input, Mark, Now, ReadError, Role, WriteError,
};
use crate::stall::{Counters, Kind, Watch};
use crate::stop::Stops;

/// One role and its ways in and out.
pub(crate) struct Seat<A: App, R> {
    pub place: Place<A, R>,
    pub inlets: Vec<(RoleId, Inlet<A::Letter>)>,
}

/// A role as it is called.
pub(crate) struct Place<A: App, R> {
    pub id: RoleId,
    /// Its number on this core.
    pub seat: u8,
    pub role: R,
    pub outlets: Outlets<A::Letter>,
    /// It has heard something in this turn.
    pub heard: bool,
}

/// Where roles leave their effects; empty between two calls.
pub(crate) struct Desk<A: App> {
    list: Vec<Effect<A>>,
    bytes: Vec<u8>,
    ranges: Vec<LogRange>,
    watch: Watch,
}

/// Memory that the desk keeps between two calls.
const DESK_BYTES_KEPT: usize = 1 << 20;

impl<A: App> Desk<A> {
    pub fn new(stall_threshold: Micros, now: Micros) -> Self {
        Desk {
            list: Vec::with_capacity(256),
            bytes: Vec::with_capacity(64 << 10),
            ranges: Vec::with_capacity(256),
            watch: Watch::new(stall_threshold, now),
        }
    }

    pub fn begin_turn(&mut self, now: Micros) {
        self.watch.begin(now);
    }

    /// Calls the role and carries out what it asks for.
    pub fn tell<R: Role<A>>(
        &mut self,
        place: &mut Place<A, R>,
        hands: &mut Hands<A>,
        now: Now,
        input: Input<'_, A>,
    ) {
        let kind = Kind::of(&input);
        place.heard |= kind != Kind::Settled;
        let mut effects = Effects {
            list: &mut self.list,
            bytes: &mut self.bytes,
            ranges: &mut self.ranges,
            outlets: &mut place.outlets,
        };
        place.role.handle(now, input, &mut effects);
        self.watch.end(place.id, kind, &hands.counters);
        for effect in self.list.drain(..) {
            hands.carry_out(place.id, place.seat, effect, &self.bytes, &self.ranges);
        }
        self.bytes.clear();
        self.ranges.clear();
        if self.bytes.capacity() > DESK_BYTES_KEPT {
            self.bytes = Vec::with_capacity(DESK_BYTES_KEPT);
        }
    }
}

/// An effect that failed at once.
pub(crate) enum Refused {
    Connect(ConnectError),
    Read(ReadError),
    Write(WriteError),
    Slow(JobError),
}

/// Everything of a core that effects reach.
pub(crate) struct Hands<A: App> {
    pub ring: Ring,
    pub sockets: Sockets,
    pub gather: Gather,
    pub memory: Memory,
    /// Absent on a node without a log.
    pub disk: Option<Disk>,
    /// Writes under way that end with a flush.
    pub flushing: Vec<Asker>,
    pub jobs: Option<Jobs>,
    pub connects: Connects,
    /// Refusals that are yet to be told, with seat and ticket.
    pub refused: VecDeque<(u8, Ticket, Refused)>,
    pub marks: Marks<A::Mark>,
    /// Which seat of this core publishes a kind of mark; it need not hear its own.
    pub publishers: Vec<Option<u8>>,
    /// Kinds of marks published in this turn, a bit each.
    pub published: u64,
    pub stops: Arc<Stops>,
    pub counters: Arc<Counters>,
}

impl<A: App> Hands<A> {
    fn carry_out(
        &mut self,
        role: RoleId,
        seat: u8,
        effect: Effect<A>,
        bytes: &[u8],
        ranges: &[LogRange],
    ) {
        match effect {
            Effect::Reply { conn, head, body } => {
                let ranges = match body {
                    Body::None => &[],
                    Body::Log(span) => &ranges[span.start as usize..][..span.len as usize],
                };
                let (ring, memory) = (&mut self.ring, &self.memory);
                self.sockets
                    .reply(ring, memory, conn, head.of(bytes), ranges);
            }
            Effect::Close { conn } => self.sockets.close(&mut self.ring, conn),
            Effect::Pause { conn } => self.hold(conn, true),
            Effect::Resume { conn } => self.hold(conn, false),
            Effect::Mark(mark) => {
                self.marks.publish(mark);
                self.publishers[mark.kind()] = Some(seat);
                self.published |= 1 << mark.kind();
            }
            Effect::Connect { ticket, addr } => {
                let within = self.sockets.limits.connect_within;
                let begun = self
                    .connects
                    .begin(&mut self.ring, seat, ticket, addr, within);
                if let Err(error) = begun {
                    self.refuse(seat, ticket, Refused::Connect(error));
                }
            }
            Effect::Slow { ticket, job } => {
                let asker = Asker { role, ticket };
                let asked = match &self.jobs {
                    Some(jobs) => jobs.ask(asker, job),
                    None => Err(JobError::Busy),
                };
                if let Err(error) = asked {
                    self.refuse(seat, ticket, Refused::Slow(error));
                }
            }
            Effect::Stopped => self.stops.stopped(role),
            Effect::Read { ticket, at, len } => match &mut self.disk {
                Some(disk) => disk.read(&mut self.ring, Asker { role, ticket }, at, len),
                None => self.refuse(seat, ticket, Refused::Read(ReadError::Missing)),
            },
            Effect::Write {
                ticket,
                at,
                len,
                last,
                sync,
            } => match &mut self.disk {
                Some(disk) => {
                    let (asker, write) = (
                        Asker { role, ticket },
                        TailWrite {
                            at,
                            len,
                            last,
                            sync,
                        },
                    );
                    if sync {
                        self.flushing.push(asker);
                    }
                    disk.write(&mut self.ring, asker, write);
                }
                None => self.refuse(seat, ticket, Refused::Write(WriteError::Missing)),
            },
            Effect::Put {
                ticket,
                file,
                at,
                bytes: span,
            } => match &mut self.disk {
                Some(disk) => disk.put(Asker { role, ticket }, &file, at, span.of(bytes)),
                None => self.refuse(seat, ticket, Refused::Write(WriteError::Missing)),
            },
            Effect::Sync { ticket, target } => match &mut self.disk {
                Some(disk) => disk.sync(&mut self.ring, Asker { role, ticket }, target),
                None => self.refuse(seat, ticket, Refused::Write(WriteError::Missing)),
            },
        }
    }

    fn refuse(&mut self, seat: u8, ticket: Ticket, refused: Refused) {
        self.refused.push_back((seat, ticket, refused));
    }

    fn hold(&mut self, conn: Conn, on: bool) {
        if let Some(slot) = self.sockets.open_slot(conn) {
            self.sockets.hold(&mut self.ring, slot, HELD_BY_ROLE, on);
        }
    }

    /// Lets go of what is gone, before a turn.
    pub fn begin_turn(&mut self, now: Micros) {
        self.sockets.now = now;
        self.sockets.files.turn();
        if let Some(disk) = &mut self.disk {
            disk.turn();
        }
    }

    /// Counts what a write or flush came to.
    pub fn count_wrote(&mut self, asker: Asker, ok: bool) {
        if let Some(place) = self.flushing.iter().position(|other| *other == asker) {
            self.flushing.swap_remove(place);
            self.counters.flushes.add(u64::from(ok));
        }
    }

    /// Whether something is to be told that no ring and no edge holds.
    pub fn has_news(&self) -> bool {
        self.sockets.has_news()
            || !self.refused.is_empty()
            || self.disk.as_ref().is_some_and(Disk::has_answers)
    }

    /// Submits what this turn's replies have queued on connections.
    pub fn flush(&mut self) {
        self.sockets
            .flush(&mut self.ring, &mut self.gather, &self.memory);
    }
}
