//! What comes to a core from outside its roles: posts, completions, timers.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use io_uring::opcode;

use crate::background::Mailbox as JobMailbox;
use crate::conn::{Framed, Gathered, frame};
use crate::disk::{Disk, Outcome};
use crate::files::JobDone;
use crate::hands::{Desk, Hands, Refused, Seat};
use crate::idle::{clock, earlier};
use crate::ids::{ListenerId, Micros, RoleId, Ticket};
use crate::listen::{Accepted, Acceptor, Handed, Loads, peer_of};
use crate::mesh::Doorbell;
use crate::ring::{Op, Ring, buffer_of, fd, goes_on};
use crate::role::{App, Input, Now, Role};
use crate::stop::{Mailbox, Post};
use crate::turn::{COMPLETIONS_PER_TURN, Core};

/// What all cores know of each other.
pub(crate) struct Mesh {
    pub doorbells: Vec<Arc<Doorbell>>,
    pub mailboxes: Vec<Mailbox>,
    pub loads: Loads,
    /// The core of each role, by role number.
    pub homes: Vec<Option<u8>>,
    /// The roles of each core, a bit per role.
    pub residents: Vec<u64>,
    /// The kinds of marks that wake each core, a bit per kind; all until its roles are built.
    pub woken_by: Vec<AtomicU64>,
    pub connections_max: u32,
}

impl Mesh {
    pub fn post(&self, core: usize, post: Post) -> bool {
        self.mailboxes[core].post(post);
        self.doorbells[core].ring()
    }

    pub fn home(&self, role: RoleId) -> usize {
        usize::from(self.homes[usize::from(role.0)].expect("the plan was checked"))
    }
}

/// One core's ways in from outside.
pub(crate) struct Incoming {
    pub core: usize,
    pub mesh: Arc<Mesh>,
    pub acceptors: Vec<Acceptor>,
    /// The seat of each role of this core, by role number.
    pub seats: Vec<Option<u8>>,
    /// Answers of the background executor.
    pub jobs: Option<JobMailbox>,
    posts: Vec<Post>,
    /// Since when the core is to end.
    exit_at: Option<Micros>,
}

/// Answers of the disk that one round tells, since a role may ask again with each.
const ANSWERS_PER_ROUND: usize = 256;
/// How long a core that ends goes on sending what is queued, and waits for its sockets to close.
const EXIT_MILLIS: u64 = 1000;

impl Incoming {
    pub fn new(
        core: usize,
        mesh: Arc<Mesh>,
        acceptors: Vec<Acceptor>,
        seats: Vec<Option<u8>>,
    ) -> Self {
        Incoming {
            core,
            mesh,
            acceptors,
            seats,
            jobs: None,
            posts: Vec::new(),
            exit_at: None,
        }
    }

    /// Waits for the doorbell once more. The poll is multishot and sees each ring, so that the
    /// eventfd is never read.
    pub fn watch_doorbell(&self, ring: &mut Ring) {
        let event = self.mesh.doorbells[self.core].event().as_raw_fd();
        let entry = opcode::PollAdd::new(fd(event), libc::POLLIN as u32)
            .multi(true)
            .build();
        // SAFETY: names no memory; the mesh outlives the ring.
        unsafe { ring.push(entry, Op::Bell) };
    }

    pub fn has_posts(&self) -> bool {
        self.mesh.mailboxes[self.core].is_full()
            || self.jobs.as_ref().is_some_and(|jobs| !jobs.is_empty())
    }

    pub fn fall_asleep(&self) {
        self.mesh.doorbells[self.core].fall_asleep();
    }

    pub fn wake_up(&self) {
        self.mesh.doorbells[self.core].wake_up();
    }

    /// Rings the doorbells of other cores with a role in `told`, or one that a kind of mark in
    /// `published` wakes. Returns how many slept.
    pub fn ring_others(&self, told: u64, published: u64) -> u64 {
        if told == 0 && published == 0 {
            return 0;
        }
        let mut rung = 0;
        for (core, doorbell) in self.mesh.doorbells.iter().enumerate() {
            let woken_by = self.mesh.woken_by[core].load(Ordering::Relaxed);
            let concerned = published & woken_by != 0 || told & self.mesh.residents[core] != 0;
            if core != self.core && concerned && doorbell.ring() {
                rung += 1;
            }
        }
        rung
    }
}

impl<A: App, R: Role<A>> Core<A, R> {
    pub fn take_posts(&mut self) {
        if !self.incoming.mesh.mailboxes[self.incoming.core].is_full() {
            return;
        }
        let mut posts = std::mem::take(&mut self.incoming.posts);
        self.incoming.mesh.mailboxes[self.incoming.core].take(&mut posts);
        for post in posts.drain(..) {
            match post {
                Post::Handed(handed) => self.open(handed),
                Post::Open(id) => self.open_listener(id),
                Post::StopAccepting => {
                    for (index, acceptor) in self.incoming.acceptors.iter_mut().enumerate() {
                        acceptor.close(&mut self.hands.ring, index as u8);
                    }
                }
                Post::StopReading => self.hands.sockets.stop_reading(&mut self.hands.ring),
                Post::Stop(role) => self.tell(self.seat_of(role), Input::Stop),
                Post::Exit => self.incoming.exit_at = Some(self.now.mono),
            }
        }
        self.incoming.posts = posts;
    }

    fn seat_of(&self, role: RoleId) -> u8 {
        self.incoming.seats[usize::from(role.0)].expect("the role lives here")
    }

    fn tell(&mut self, seat: u8, input: Input<'_, A>) {
        let place = &mut self.seats[usize::from(seat)].place;
        self.desk.tell(place, &mut self.hands, self.now, input);
    }

    fn open_listener(&mut self, id: ListenerId) {
        for (index, acceptor) in self.incoming.acceptors.iter_mut().enumerate() {
            if acceptor.id == id {
                acceptor.open(&mut self.hands.ring, index as u8);
            }
        }
    }

    /// Takes a socket over that was accepted for a role of this core.
    fn open(&mut self, handed: Handed) {
        let seat = self.seat_of(handed.role);
        let sockets = &mut self.hands.sockets;
        let conn = sockets.adopt(&mut self.hands.ring, handed.socket, seat);
        self.hands.counters.accepted.add(1);
        let opened = Input::Opened {
            conn,
            listener: handed.listener,
            peer: handed.peer,
        };
        self.tell(seat, opened);
    }

    pub fn take_completions(&mut self) {
        let mut done = std::mem::take(&mut self.done);
        self.hands
            .ring
            .reap(COMPLETIONS_PER_TURN, &mut |op, result, flags| {
                done.push((op, result, flags));
            });
        for (op, result, flags) in done.drain(..) {
            self.completed(op, result, flags);
        }
        self.done = done;
    }

    fn completed(&mut self, op: Op, result: i32, flags: u32) {
        let (ring, sockets) = (&mut self.hands.ring, &mut self.hands.sockets);
        match op {
            Op::Receive { slot } => self.received(slot, result, flags),
            Op::Send { slot } => sockets.sent(ring, slot, result),
            Op::Writable { slot } => sockets.writable(ring, slot),
            Op::Close { slot } => sockets.closed(slot),
            Op::Accept { listener } => self.accepted(listener, result, flags),
            Op::Connect { key } => self.connected(key, result),
            Op::Bell => {
                self.hands.counters.wake_ups.add(1);
                if !goes_on(flags) {
                    self.incoming.watch_doorbell(ring);
                }
            }
            Op::Cancel | Op::Timer { .. } => {}
            Op::Cold { buffer } => sockets.cold_read(ring, buffer as u16, result),
            Op::Disk { key, part } => {
                let disk = self.hands.disk.as_mut();
                disk.expect("only a disk asks for this")
                    .completed(ring, key, part, result);
            }
        }
    }

    fn received(&mut self, slot: u32, result: i32, flags: u32) {
        let (ring, sockets) = (&mut self.hands.ring, &mut self.hands.sockets);
        let len = sockets.received(ring, slot, result, goes_on(flags));
        let Some(buffer) = buffer_of(flags) else {
            return;
        };
        if len > 0 {
            let bytes = self.buffers.bytes(buffer, len);
            let (seats, desk) = (&mut self.seats, &mut self.desk);
            feed(seats, desk, &mut self.hands, self.now, slot, bytes);
        }
        self.buffers.give_back(buffer);
    }

    fn accepted(&mut self, index: u8, result: i32, flags: u32) {
        let acceptor = &mut self.incoming.acceptors[usize::from(index)];
        let (ring, now) = (&mut self.hands.ring, self.now.mono);
        let refused = &self.hands.counters.refused;
        let socket = match acceptor.accepted(ring, index, result, goes_on(flags), now) {
            Accepted::Socket(socket) => socket,
            Accepted::Nothing => return,
            Accepted::Exhausted => return refused.no_descriptor.add(1),
        };
        let mesh = &self.incoming.mesh;
        if mesh.loads.total() >= mesh.connections_max {
            return refused.too_many_connections.add(1);
        }
        self.hands.counters.other_calls.add(1);
        // A peer that is gone already is noticed by the receive of whoever gets the next one.
        let Ok(peer) = peer_of(&socket) else {
            return;
        };
        let role = acceptor.choose(&mesh.loads);
        mesh.loads.add(role);
        let handed = Handed {
            socket,
            role,
            listener: acceptor.id,
            peer,
        };
        let home = mesh.home(role);
        if home == self.incoming.core {
            self.open(handed);
        } else if mesh.post(home, Post::Handed(handed)) {
            self.hands.counters.doorbells_rung.add(1);
        }
    }
}

impl<A: App, R: Role<A>> Core<A, R> {
    fn connected(&mut self, key: u32, result: i32) {
        let done = self.hands.connects.completed(key, result);
        let result = done.result.map(|socket| {
            let role = self.seats[usize::from(done.seat)].place.id;
            self.incoming.mesh.loads.add(role);
            self.hands.counters.connected.add(1);
            let (ring, sockets) = (&mut self.hands.ring, &mut self.hands.sockets);
            sockets.adopt(ring, socket, done.seat)
        });
        let ticket = done.ticket;
        self.tell(done.seat, Input::Connected { ticket, result });
    }

    /// Tells what effects have brought about.
    pub fn tell_what_ended(&mut self) {
        while let Some((seat, conn)) = self.hands.sockets.gone.pop_front() {
            self.tell(seat, Input::Closed { conn });
        }
        while let Some((seat, ticket, refused)) = self.hands.refused.pop_front() {
            self.tell(seat, refused_input(ticket, refused));
        }
        self.tell_answers();
        while let Some(slot) = self.hands.sockets.ready.pop() {
            self.feed_stashed(slot);
        }
        for seat in self.hands.sockets.freed.drain(..) {
            let role = self.seats[usize::from(seat)].place.id;
            self.incoming.mesh.loads.sub(role);
        }
    }

    /// Tells what the disk and the background executor have answered.
    fn tell_answers(&mut self) {
        for _ in 0..ANSWERS_PER_ROUND {
            let disk = self.hands.disk.as_mut();
            let Some(answer) = disk.and_then(Disk::next_answer) else {
                break;
            };
            let (seat, ticket) = (self.seat_of(answer.asker.role), answer.asker.ticket);
            match answer.outcome {
                Outcome::Wrote(result) => {
                    self.hands.count_wrote(answer.asker, result.is_ok());
                    self.tell(seat, Input::Wrote { ticket, result });
                }
                Outcome::Read(Err(error)) => {
                    let result = Err(error);
                    self.tell(seat, Input::Read { ticket, result });
                }
                Outcome::Read(Ok(bytes)) => {
                    let result = Ok(&bytes[..]);
                    self.tell(seat, Input::Read { ticket, result });
                    let disk = self.hands.disk.as_mut().expect("it has just answered");
                    disk.give_back(&mut self.hands.ring, bytes);
                }
            }
        }
        while let Some(answer) = self.incoming.jobs.as_mut().and_then(JobMailbox::next) {
            let (ticket, done) = (answer.asker.ticket, answer.done);
            self.tell(
                self.seat_of(answer.asker.role),
                Input::Slow { ticket, done },
            );
        }
    }

    /// Delivers what came while the connection was held.
    fn feed_stashed(&mut self, slot: u32) {
        let connection = &mut self.hands.sockets.slots[slot as usize];
        if !connection.listens() || !connection.stashed {
            return;
        }
        connection.stashed = false;
        let bytes = std::mem::take(&mut connection.gather);
        let conn = self.hands.sockets.conn(slot);
        let (seats, desk) = (&mut self.seats, &mut self.desk);
        feed(seats, desk, &mut self.hands, self.now, slot, &bytes);
        self.hands.sockets.recycle(conn, bytes);
    }

    pub fn take_timers(&mut self) {
        let now = self.now.mono;
        let (ring, sockets) = (&mut self.hands.ring, &mut self.hands.sockets);
        if sockets.sweep_due().is_some_and(|at| at <= now) {
            sockets.sweep(ring);
        }
        for (index, acceptor) in self.incoming.acceptors.iter_mut().enumerate() {
            acceptor.retry(ring, index as u8, now);
        }
        for seat in 0..self.seats.len() {
            let due = self.seats[seat].place.role.deadline();
            if due.is_some_and(|at| at <= now) {
                self.tell(seat as u8, Input::Deadline);
            }
        }
    }

    /// When the core itself wants to look again.
    pub fn next_timer(&self) -> Option<Micros> {
        let retries = self.incoming.acceptors.iter().map(Acceptor::retry_at);
        let exit = self.incoming.exit_at.map(|at| at.plus_millis(EXIT_MILLIS));
        retries.fold(earlier(self.hands.sockets.sweep_due(), exit), earlier)
    }

    /// Whether the core was told to exit and has nothing open any more.
    pub fn has_ended(&mut self) -> bool {
        let Some(since) = self.incoming.exit_at else {
            return false;
        };
        let (ring, sockets) = (&mut self.hands.ring, &mut self.hands.sockets);
        let now = clock();
        if !sockets.has_unsent() || now >= since.plus_millis(EXIT_MILLIS) {
            sockets.abandon_all(ring);
        }
        self.is_quiet() || now >= since.plus_millis(2 * EXIT_MILLIS)
    }

    /// Whether the kernel has nothing of ours to write into.
    pub fn is_quiet(&self) -> bool {
        let disk = self.hands.disk.as_ref().map_or(0, Disk::in_flight);
        self.hands.sockets.in_use() + disk == 0
    }

    pub fn count_turn(&mut self) {
        let counters = &self.hands.counters;
        counters.turns.add(1);
        counters.enters.set(self.hands.ring.enters());
        let taken = clock().0.saturating_sub(self.now.mono.0);
        counters.longest_turn_us.raise_to(taken);
    }
}

fn refused_input<A: App>(ticket: Ticket, refused: Refused) -> Input<'static, A> {
    match refused {
        Refused::Connect(error) => Input::Connected {
            ticket,
            result: Err(error),
        },
        Refused::Read(error) => Input::Read {
            ticket,
            result: Err(error),
        },
        Refused::Write(error) => Input::Wrote {
            ticket,
            result: Err(error),
        },
        Refused::Slow(error) => Input::Slow {
            ticket,
            done: JobDone::Failed(error),
        },
    }
}

/// Takes bytes of a connection's stream: delivers whole frames, keeps the begin of one, and keeps
/// everything while the connection is held.
fn feed<A: App, R: Role<A>>(
    seats: &mut [Seat<A, R>],
    desk: &mut Desk<A>,
    hands: &mut Hands<A>,
    now: Now,
    slot: u32,
    mut bytes: &[u8],
) {
    let conn = hands.sockets.conn(slot);
    let seat = hands.sockets.slots[slot as usize].seat;
    let place = &mut seats[usize::from(seat)].place;
    if !hands.sockets.slots[slot as usize].gather.is_empty() {
        match hands.sockets.gather(slot, &mut bytes) {
            Gathered::Whole(gather) => {
                hands.counters.frames.add(1);
                let frame = Input::Frame {
                    conn,
                    bytes: &gather[4..],
                };
                desk.tell(place, hands, now, frame);
                hands.sockets.recycle(conn, gather);
            }
            Gathered::Bad => hands.sockets.refuse_frame(&mut hands.ring, slot),
            Gathered::Kept => return,
        }
    }
    let max = hands.sockets.limits.frame_bytes_max;
    while hands.sockets.listens(conn) {
        match frame(bytes, max) {
            Framed::Whole(total) => {
                hands.counters.frames.add(1);
                let frame = Input::Frame {
                    conn,
                    bytes: &bytes[4..total],
                };
                bytes = &bytes[total..];
                desk.tell(place, hands, now, frame);
            }
            Framed::Partial { .. } => break,
            Framed::Bad => hands.sockets.refuse_frame(&mut hands.ring, slot),
        }
    }
    hands.sockets.keep(conn, bytes);
}
