//! All roles in one thread: a scheduler that takes its time from a seed.
//!
//! A role has its turns as on a core of its own: completions, its deadline, marks, letters, room,
//! then `Settled`. How much of what is waiting a turn hears is drawn anew each time.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use ringmq::boot::Opened;
use ringmq::broker::control::{
    Checkpoints, Control, ControlConfig, Identity, Register, SegmentSettings, Segments,
};
use ringmq::broker::shard::{Shard, ShardConfig};
use ringmq::role::{self, CONTROL, DISPATCH, Effect, INDEX, LOG, Letter, Mark, Ringmq};
use ringmq::store::dispatch::{Dispatch, DispatchConfig, DispatchCounters};
use ringmq::store::index::Index;
use ringmq::store::log::{Log, LogConfig};
use shards::chunk::{Tail, tail};
use shards::files::{self, Job, LogDir, SegmentTable};
use shards::mesh::{EdgeSize, Inlet, Marks, Outlets, edge};
use shards::role::{Body, ReadAt, ReadError, SyncTarget, WriteError};
use shards::{
    Conn, Effects, FileRef, Input, LastBlock, ListenerId, LogOffset, LogRange, Mark as _, Micros,
    Millis, Now, Role, RoleId, Ticket,
};

use crate::disk::{Canary, Disk};
use crate::net::{Net, Piece};
use crate::plan::Plan;
use crate::rng::{Rng, Trace};

/// The longest payload of an append in the simulation, with room to spare.
const APPEND_LANE: usize = 512 * 1024;
const ORDINARY_LANE: usize = 72 * 1024;
const READABLE_LANE: usize = 24 * 1024;
const TAIL_BYTES: u64 = 6 << 20;

struct Seat {
    id: RoleId,
    role: Box<dyn Role<Ringmq>>,
    outlets: Outlets<Letter>,
    inlets: Vec<(RoleId, Inlet<Letter>)>,
    seen: Vec<u64>,
    ready: VecDeque<Done>,
    heard: bool,
    stopped: bool,
}

/// What a role waits for.
enum Done {
    Read(Ticket, ReadAt, u32),
    Wrote(Ticket, Result<(), WriteError>),
    LogWrite(Ticket, Written),
    Sync(Ticket, PathBuf, std::collections::BTreeSet<usize>),
    Job(Ticket, Job),
    Stop,
}

struct Written {
    at: LogOffset,
    len: u32,
    last: Option<LastBlock>,
}

/// The roles of one life of the broker.
pub struct World {
    pub disk: Disk,
    pub net: Net,
    pub trace: Trace,
    pub mono: u64,
    wall_base: u64,
    rng: Rng,
    seats: Vec<Seat>,
    marks: Marks<Mark>,
    tail: Tail,
    log_dir: LogDir,
    due: BTreeMap<(u64, u64), (usize, Done)>,
    sequence: u64,
    canary: Option<Canary>,
    leftovers: Vec<(PathBuf, u64)>,
    pub turns: u64,
    /// Everything that roles hear is printed (`SIM_TELL`).
    is_told: bool,
    list: Vec<Effect>,
    bytes: Vec<u8>,
    ranges: Vec<LogRange>,
}

struct Opener;

impl SegmentTable for Opener {
    fn opened(&self, _start: LogOffset) -> io::Result<()> {
        Ok(())
    }
    fn withdrawn(&self, _start: LogOffset) {}
    fn files_removed(&self) {}
}

impl World {
    /// Roles as the store starts them. The disk has been opened and the run has begun.
    pub fn new(plan: &Plan, opened: Opened, mut disk: Disk, mut rng: Rng, mono: u64) -> World {
        let (writer, tail) = tail(TAIL_BYTES, opened.recovered.end).expect("memory for a tail");
        let shards = plan.shards;
        let mut ids = vec![CONTROL, LOG, DISPATCH, INDEX];
        ids.extend((0..shards).map(role::shard));
        let mut parts = Parts::new(&ids, &mut rng);
        let mut roles = make_roles(plan, opened, writer, &tail);
        let seats = ids.iter().map(|id| {
            let at = roles.iter().position(|(role, _)| role == id);
            let (_, role) = roles.swap_remove(at.expect("each role was made"));
            let (outlets, inlets) = parts.take(*id);
            Seat {
                id: *id,
                role,
                outlets,
                inlets,
                seen: vec![0; Mark::KINDS],
                ready: VecDeque::new(),
                heard: false,
                stopped: false,
            }
        });
        let seats = seats.collect();
        let log_dir = LogDir {
            path: plan.store.log_dir.clone(),
            segment_bytes: plan.store.segment_bytes,
        };
        let leftovers = files::leftovers(&log_dir, &mut disk).unwrap_or_default();
        World {
            net: Net::new(rng.split(), shards, disk.canary == Some(Canary::SlotReused)),
            canary: disk.canary,
            disk,
            trace: Trace::default(),
            mono,
            wall_base: plan.wall_base,
            rng,
            seats,
            marks: Marks::new(),
            tail,
            log_dir,
            due: BTreeMap::new(),
            sequence: 0,
            leftovers,
            turns: 0,
            is_told: std::env::var_os("SIM_TELL").is_some(),
            list: Vec::new(),
            bytes: Vec::new(),
            ranges: Vec::new(),
        }
    }

    pub fn now(&self) -> Now {
        Now {
            mono: Micros(self.mono),
            wall: Millis(self.wall_base + self.mono / 1000),
        }
    }

    pub fn mark(&self, kind: Mark) -> u64 {
        self.marks.read(kind.kind())
    }

    pub fn has_stopped(&self, id: RoleId) -> bool {
        self.seats.iter().any(|seat| seat.id == id && seat.stopped)
    }

    pub fn stop(&mut self, id: RoleId) {
        if let Some(seat) = self.seats.iter_mut().find(|seat| seat.id == id) {
            seat.ready.push_back(Done::Stop);
        }
    }

    /// One turn of one role, or a piece of an answer on its way, or time passes. False when nothing
    /// will ever happen again before `until`.
    pub fn step(&mut self, until: u64) -> bool {
        self.turns += 1;
        self.mono += self.rng.below(15);
        self.collect_due();
        self.sweep();
        let waiting: Vec<usize> = (0..self.seats.len())
            .filter(|seat| self.has_inputs(*seat))
            .collect();
        let out = self.net.has_due(self.mono);
        if waiting.is_empty() && !out {
            return self.pass_time(until);
        }
        if out && (waiting.is_empty() || self.rng.once_in(3)) {
            self.send_out();
        } else {
            let seat = waiting[self.rng.below(waiting.len() as u64) as usize];
            self.turn(seat);
        }
        true
    }

    fn collect_due(&mut self) {
        while let Some(entry) = self.due.first_entry() {
            if entry.key().0 > self.mono {
                return;
            }
            let (seat, done) = entry.remove();
            self.seats[seat].ready.push_back(done);
        }
    }

    fn has_inputs(&mut self, seat: usize) -> bool {
        let now = Micros(self.mono);
        let place = &mut self.seats[seat];
        !place.ready.is_empty()
            || place.role.deadline().is_some_and(|at| at <= now)
            || place.inlets.iter().any(|(_, inlet)| inlet.depth() > 0)
            || (place.outlets.waits_for_room() && self.canary != Some(Canary::DroppedRoom))
            || (0..Mark::KINDS).any(|kind| {
                let wakes = place.role.woken_by() >> kind & 1 != 0;
                wakes && self.marks.read(kind) != place.seen[kind]
            })
            || self.net.has_input(place.id)
    }

    /// Jumps to the next thing that will happen.
    fn pass_time(&mut self, until: u64) -> bool {
        let due = self.due.keys().next().map(|key| key.0);
        let roles = self.seats.iter().filter(|seat| !seat.stopped);
        let deadline = roles.filter_map(|seat| seat.role.deadline().map(|at| at.0));
        let next = deadline.chain(due).chain(self.net.next_due()).min();
        let next = next.unwrap_or(u64::MAX).max(self.mono + 1);
        if next > until {
            self.mono = self.mono.max(until);
            return false;
        }
        self.mono = next;
        true
    }

    fn turn(&mut self, seat: usize) {
        for _ in 0..self.rng.within(1, 4) {
            let Some(done) = self.seats[seat].ready.pop_front() else {
                break;
            };
            self.done(seat, done);
        }
        let now = Micros(self.mono);
        if self.seats[seat].role.deadline().is_some_and(|at| at <= now) {
            self.tell(seat, Input::Deadline);
        }
        for _ in 0..self.rng.within(1, 2) {
            // A letter may come before a mark that was published earlier, on another core, but no
            // turn settles without the marks of its beginning.
            let late = self.rng.once_in(8);
            if !late {
                self.tell_marks(seat);
            }
            self.tell_frames(seat);
            self.tell_letters(seat);
            if late {
                self.tell_marks(seat);
            }
        }
        if self.canary != Some(Canary::DroppedRoom) {
            while let Some(to) = self.seats[seat].outlets.take_room() {
                self.tell(seat, Input::Room { to });
            }
        }
        if std::mem::take(&mut self.seats[seat].heard) {
            self.tell(seat, Input::Settled);
            self.seats[seat].heard = false;
        }
    }

    fn tell_marks(&mut self, seat: usize) {
        let mut changed = Vec::new();
        let marks = self.marks.clone();
        marks.changes(&mut self.seats[seat].seen, |mark| changed.push(mark));
        let id = self.seats[seat].id;
        for mark in changed {
            if publisher(mark) != id {
                self.tell(seat, Input::Mark(mark));
            }
        }
    }

    fn tell_frames(&mut self, seat: usize) {
        let id = self.seats[seat].id;
        for _ in 0..self.rng.within(1, 4) {
            let Some(piece) = self.net.next_input(id) else {
                return;
            };
            match piece {
                Piece::Opened(conn, peer) => {
                    let listener = ListenerId(0);
                    self.tell(
                        seat,
                        Input::Opened {
                            conn,
                            listener,
                            peer,
                        },
                    );
                }
                Piece::Frame(conn, bytes) => {
                    let bytes = &bytes;
                    self.tell(seat, Input::Frame { conn, bytes });
                }
                Piece::Closed(conn) => self.tell(seat, Input::Closed { conn }),
            }
        }
    }

    fn tell_letters(&mut self, seat: usize) {
        let count = self.seats[seat].inlets.len();
        let first = self.rng.below(count as u64) as usize;
        for place in 0..count {
            let place = (first + place) % count;
            let most = self.rng.within(0, 4);
            for _ in 0..most {
                let (from, inlet) = &mut self.seats[seat].inlets[place];
                let from = *from;
                let Some((letter, payload)) = inlet.peek() else {
                    break;
                };
                let payload = payload.to_vec();
                inlet.release();
                if self.drops(letter) {
                    continue;
                }
                let payload = &payload;
                self.tell(
                    seat,
                    Input::Letter {
                        from,
                        letter,
                        payload,
                    },
                );
            }
        }
    }

    /// The canary that loses letters.
    fn drops(&mut self, letter: Letter) -> bool {
        self.canary == Some(Canary::DroppedLetter)
            && matches!(letter, Letter::Appended { .. } | Letter::Readable { .. })
            && self.rng.once_in(40)
    }

    fn tell(&mut self, seat: usize, input: Input<'_, Ringmq>) {
        if self.disk.is_dead() {
            return;
        }
        let now = self.now();
        if self.is_told {
            let id = self.seats[seat].id.0;
            println!("{} role {id}: {}", self.mono, short(&input));
        }
        self.trace.add(seat as u64 | (self.mono << 8));
        self.trace.add(kind_of(&input));
        let place = &mut self.seats[seat];
        place.heard = true;
        let mut fx = Effects {
            list: &mut self.list,
            bytes: &mut self.bytes,
            ranges: &mut self.ranges,
            outlets: &mut place.outlets,
        };
        place.role.handle(now, input, &mut fx);
        let list = std::mem::take(&mut self.list);
        for effect in list {
            self.carry_out(seat, effect);
        }
        self.bytes.clear();
        self.ranges.clear();
    }

    // ---- effects

    fn carry_out(&mut self, seat: usize, effect: Effect) {
        match effect {
            Effect::Reply { conn, head, body } => {
                let head = head.of(&self.bytes).to_vec();
                let ranges = match body {
                    Body::None => Vec::new(),
                    Body::Log(span) => {
                        self.ranges[span.start as usize..][..span.len as usize].to_vec()
                    }
                };
                self.trace.add_bytes(&head);
                self.net.reply(self.mono, conn, head, ranges);
            }
            Effect::Close { conn } => self.net.close(self.mono, conn),
            Effect::Pause { conn } => self.net.pause(conn, true),
            Effect::Resume { conn } => self.net.pause(conn, false),
            Effect::Mark(mark) => self.publish(mark),
            Effect::Read { ticket, at, len } => {
                let delay = self.delay();
                self.later(seat, delay, Done::Read(ticket, at, len));
            }
            Effect::Write {
                ticket,
                at,
                len,
                last,
                sync,
            } => self.write(seat, ticket, Written { at, len, last }, sync),
            Effect::Put {
                ticket,
                file,
                at,
                bytes,
            } => {
                let bytes = bytes.of(&self.bytes).to_vec();
                let result = self.put(&file, at, &bytes);
                self.later(seat, 0, Done::Wrote(ticket, result));
            }
            Effect::Sync { ticket, target } => {
                let path = match target {
                    SyncTarget::Segment(at) => self.segment_of(at),
                    SyncTarget::File(file) => file.path(),
                };
                let dirty = self.disk.dirty(&path);
                let delay = self.delay();
                self.later(seat, delay, Done::Sync(ticket, path, dirty));
            }
            Effect::Slow { ticket, job } => {
                let delay = self.rng.skewed(20_000);
                self.later(seat, delay, Done::Job(ticket, job));
            }
            Effect::Stopped => self.seats[seat].stopped = true,
            Effect::Connect { .. } => unreachable!("no name server is configured"),
        }
    }

    fn publish(&mut self, mark: Mark) {
        self.trace.add(mark.value());
        self.marks.publish(mark);
        if self.canary == Some(Canary::EarlyVisible)
            && let Mark::Written(at) = mark
        {
            self.marks.publish(Mark::Visible(at));
        }
    }

    fn later(&mut self, seat: usize, delay: u64, done: Done) {
        self.sequence += 1;
        let key = (self.mono + delay, self.sequence);
        self.due.insert(key, (seat, done));
    }

    fn delay(&mut self) -> u64 {
        if self.disk.stalls() {
            return self.rng.within(100_000, 9_000_000);
        }
        10 + self.rng.skewed(2000)
    }

    fn segment_of(&self, at: LogOffset) -> PathBuf {
        let bytes = self.log_dir.segment_bytes;
        let start = LogOffset(at.0 / bytes * bytes);
        self.log_dir.segment_path(start)
    }

    fn content(&self, write: &Written) -> Vec<u8> {
        let pieces = self.tail.write_pieces(write.at, write.len);
        let last = write
            .last
            .map(|last| self.tail.snapshot(last.copy).as_slice());
        let pieces = pieces.into_iter().chain(last);
        pieces.flatten().copied().collect()
    }

    fn write(&mut self, seat: usize, ticket: Ticket, write: Written, sync: bool) {
        let path = self.segment_of(write.at);
        let within = write.at.0 % self.log_dir.segment_bytes;
        let bytes = self.content(&write);
        assert!(
            within + bytes.len() as u64 <= self.log_dir.segment_bytes,
            "a write of {} bytes at {within} crosses its segment's end",
            bytes.len()
        );
        self.trace.add_bytes(&bytes);
        match self.disk.begin_write(&path, within, bytes, sync) {
            Ok(()) => {
                let delay = self.delay();
                self.later(seat, delay, Done::LogWrite(ticket, write));
            }
            Err(_) => self.later(seat, 0, Done::Wrote(ticket, Err(WriteError::Missing))),
        }
    }

    fn put(&mut self, file: &FileRef, at: u64, bytes: &[u8]) -> Result<(), WriteError> {
        assert!(
            at + bytes.len() as u64 <= file.dir.file_bytes,
            "beyond a file"
        );
        self.trace.add_bytes(bytes);
        let put = self.disk.put(&file.path(), file.dir.file_bytes, at, bytes);
        put.map_err(|error| WriteError::Io(error.raw_os_error().unwrap_or(libc::EIO)))
    }

    fn done(&mut self, seat: usize, done: Done) {
        if self.disk.is_dead() {
            return;
        }
        match done {
            Done::Wrote(ticket, result) => self.tell(seat, Input::Wrote { ticket, result }),
            Done::Read(ticket, at, len) => {
                let read = self.read(&at, len);
                let result = read.as_deref().map_err(|error| *error);
                self.tell(seat, Input::Read { ticket, result });
            }
            Done::LogWrite(ticket, write) => {
                let flying = self.disk.flying.as_ref().expect("it was begun");
                assert!(
                    flying.bytes == self.content(&write),
                    "the log touched what is being written at {:?}",
                    write.at
                );
                let wanted = flying.bytes.len() as u32;
                let result = match self.disk.end_write() {
                    Ok(written) if written as u32 == wanted => Ok(()),
                    Ok(written) => Err(WriteError::Short {
                        written: written as u32,
                        wanted,
                    }),
                    Err((true, errno)) => Err(WriteError::Flush(errno)),
                    Err((false, errno)) => Err(WriteError::Io(errno)),
                };
                self.tell(seat, Input::Wrote { ticket, result });
            }
            Done::Sync(ticket, path, dirty) => {
                let result = self.sync(&path, &dirty);
                self.tell(seat, Input::Wrote { ticket, result });
            }
            Done::Job(ticket, job) => {
                let done = files::carry_out(&job, &self.log_dir, &mut self.disk, &Opener);
                self.tell(seat, Input::Slow { ticket, done });
            }
            Done::Stop => self.tell(seat, Input::Stop),
        }
    }

    fn sync(
        &mut self,
        path: &std::path::Path,
        dirty: &std::collections::BTreeSet<usize>,
    ) -> Result<(), WriteError> {
        let flush = |error: io::Error| WriteError::Flush(error.raw_os_error().unwrap_or(libc::EIO));
        self.disk.sync_sectors(path, dirty).map_err(flush)?;
        let dirs = self.disk.take_unsynced(path);
        for dir in &dirs {
            if let Err(error) = files::Files::sync_dir(&mut self.disk, dir) {
                self.disk.not_synced(dirs);
                return Err(flush(error));
            }
        }
        Ok(())
    }

    fn read(&mut self, at: &ReadAt, len: u32) -> Result<Vec<u8>, ReadError> {
        let (path, within) = match at {
            ReadAt::Log(at) => {
                let range = LogRange { at: *at, len };
                if let Some(bytes) = self.tail_bytes(range) {
                    return Ok(bytes);
                }
                (self.segment_of(*at), at.0 % self.log_dir.segment_bytes)
            }
            ReadAt::File(file, at) => (file.path(), *at),
        };
        let mut bytes = vec![0; len as usize];
        match files::Files::read_at(&mut self.disk, &path, within, &mut bytes) {
            Ok(read) if read == bytes.len() => Ok(bytes),
            Ok(_) => Err(ReadError::Missing),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(ReadError::Missing),
            Err(error) => Err(ReadError::Io(error.raw_os_error().unwrap_or(libc::EIO))),
        }
    }

    fn tail_bytes(&self, range: LogRange) -> Option<Vec<u8>> {
        let lease = self.tail.lease(range)?;
        Some(lease.pieces().concat())
    }

    /// Resolves one answer's ranges and hands it to its client.
    fn send_out(&mut self) {
        let Some((conn, mut frame, ranges)) = self.net.take_due(self.mono) else {
            return;
        };
        for range in ranges {
            match self.read(&ReadAt::Log(range.at), range.len) {
                Ok(bytes) => frame.extend_from_slice(&bytes),
                Err(_) => return self.net.close(self.mono, conn),
            }
        }
        self.trace.add_bytes(&frame);
        self.net.deliver(conn, frame);
    }

    /// The background executor removes what a death has left half made, some time after the start.
    fn sweep(&mut self) {
        if self.leftovers.is_empty() || !self.rng.once_in(200) {
            return;
        }
        let (path, bytes) = self.leftovers.remove(0);
        let shrunk = match bytes {
            0 => Ok(()),
            _ => files::shrink(&path, 0, &mut self.disk),
        };
        let removed = shrunk.and_then(|()| files::remove_retired(&path, &mut self.disk));
        if removed.is_err() && !self.disk.is_dead() {
            self.trace.add(7);
        }
    }
}

fn short(input: &Input<'_, Ringmq>) -> String {
    match input {
        Input::Letter {
            from,
            letter,
            payload,
        } => format!("{letter:?} of {} with {} bytes", from.0, payload.len()),
        Input::Frame { conn, bytes } => format!("frame of {} bytes of {conn:?}", bytes.len()),
        Input::Read { ticket, result } => format!("{ticket:?} read {:?}", result.map(<[u8]>::len)),
        other => format!("{other:?}"),
    }
}

fn publisher(mark: Mark) -> RoleId {
    match mark {
        Mark::Written(_) | Mark::Durable(_) | Mark::Visible(_) | Mark::Poisoned(_) => LOG,
        Mark::First(_) | Mark::Prepared(_) | Mark::DiskFull(_) | Mark::NoSegment(_) => CONTROL,
        Mark::Dispatched(_) | Mark::QueuesDurable(_) => DISPATCH,
        Mark::Indexed(_) => INDEX,
    }
}

fn kind_of(input: &Input<'_, Ringmq>) -> u64 {
    match input {
        Input::Opened { .. } => 1,
        Input::Connected { .. } => 2,
        Input::Frame { .. } => 3,
        Input::Closed { .. } => 4,
        Input::Letter { from, .. } => 100 + u64::from(from.0),
        Input::Mark(mark) => 200 + mark.kind() as u64,
        Input::Read { .. } => 5,
        Input::Wrote { .. } => 6,
        Input::Slow { .. } => 7,
        Input::Room { .. } => 8,
        Input::Deadline => 9,
        Input::Settled => 10,
        Input::Stop => 11,
    }
}

/// Edges between all roles, small ones.
struct Parts {
    outlets: BTreeMap<RoleId, Outlets<Letter>>,
    inlets: BTreeMap<RoleId, Vec<(RoleId, Inlet<Letter>)>>,
}

impl Parts {
    fn new(ids: &[RoleId], rng: &mut Rng) -> Parts {
        let mut parts = Parts {
            outlets: BTreeMap::new(),
            inlets: BTreeMap::new(),
        };
        let tight = rng.once_in(3);
        for from in ids {
            for to in ids {
                let Some(usual) = role::edge(*from, *to) else {
                    continue;
                };
                let letters = if tight { 1 } else { rng.within(1, 8) as usize };
                let is_shard = |role: RoleId| role >= role::SHARD_0;
                let size = match (*from, *to) {
                    // The asker's credits are its bound.
                    (LOG, to) if is_shard(to) => usual,
                    (from, LOG) if is_shard(from) => EdgeSize {
                        letters,
                        lane_bytes: APPEND_LANE,
                    },
                    (DISPATCH, to) if is_shard(to) => EdgeSize {
                        letters,
                        lane_bytes: READABLE_LANE,
                    },
                    _ => EdgeSize {
                        letters,
                        lane_bytes: ORDINARY_LANE,
                    },
                };
                let (outlet, inlet) = edge(size);
                parts.outlets.entry(*from).or_default().connect(*to, outlet);
                parts.inlets.entry(*to).or_default().push((*from, inlet));
            }
        }
        parts
    }

    fn take(&mut self, id: RoleId) -> (Outlets<Letter>, Vec<(RoleId, Inlet<Letter>)>) {
        let outlets = self.outlets.remove(&id).unwrap_or_default();
        (outlets, self.inlets.remove(&id).unwrap_or_default())
    }
}

type Roles = Vec<(RoleId, Box<dyn Role<Ringmq>>)>;

fn make_roles(
    plan: &Plan,
    opened: Opened,
    writer: shards::chunk::TailWriter,
    tail: &Tail,
) -> Roles {
    let recovered = &opened.recovered;
    let (boot, store) = (&opened.boot, &plan.store);
    let log = LogConfig {
        segment_bytes: store.segment_bytes,
        mode: store.mode,
        flush_timeout_ms: 5000,
        flush_interval_ms: 500,
        park_ms: 200,
    };
    let dispatch = DispatchConfig {
        dir: store.root.join("consumequeue"),
        file_bytes: store.queue_file_bytes,
        segment_bytes: store.segment_bytes,
        shards: plan.shards,
        sync_interval_ms: plan.queue_sync_ms,
        from: opened.dispatch_from,
        hash_seed: store.hash_seed,
    };
    let log_role = Log::new(log, recovered, boot, writer, Arc::default());
    let counters = Arc::new(DispatchCounters::default());
    let dispatch_role = Dispatch::new(dispatch, boot, tail.clone(), counters);
    let mut roles: Roles = vec![
        (LOG, Box::new(log_role)),
        (DISPATCH, Box::new(dispatch_role)),
    ];
    for number in 0..plan.shards {
        let config = shard_config(plan, number);
        roles.push((role::shard(number), Box::new(Shard::new(config, boot))));
    }
    let control = make_control(plan, opened.tables, recovered, opened.dispatch_from);
    roles.push((CONTROL, Box::new(control)));
    let index = Index::new(store.index.clone(), opened.index, tail.clone());
    roles.push((INDEX, Box::new(index)));
    roles
}

fn shard_config(plan: &Plan, number: usize) -> ShardConfig {
    let host: SocketAddr = "10.0.0.1:10911".parse().expect("an address");
    ShardConfig {
        queue_dir: plan.store.root.join("consumequeue"),
        queue_file_bytes: plan.store.queue_file_bytes,
        hash_seed: plan.store.hash_seed,
        random_seed: plan.store.hash_seed.wrapping_add(number as u64),
        ..ShardConfig::new(number, plan.shards, host)
    }
}

fn make_control(
    plan: &Plan,
    tables: ringmq::broker::control::Tables,
    recovered: &ringmq::store::recover::Recovered,
    dispatch_from: LogOffset,
) -> Control {
    let store = &plan.store;
    let config = ControlConfig {
        root: store.root.clone(),
        shards: plan.shards,
        offsets_interval_ms: 5000,
        member_expires_ms: 120_000,
        notify_changes: true,
        settings: Vec::new(),
        boot_ms: 0,
        log: Arc::default(),
    };
    let identity = Identity {
        cluster: "DefaultCluster".to_string(),
        broker: "broker-a".to_string(),
        broker_id: 0,
        address: "10.0.0.1:10911".to_string(),
        ha_address: "10.0.0.1:10912".to_string(),
    };
    let register = Register::new(identity, &[], (30_000, 6000), 6, Arc::default());
    let settings = SegmentSettings {
        segment_bytes: store.segment_bytes,
        store: store.root.clone(),
        warn_percent: 75,
        full_percent: 90,
        space_interval_ms: 10_000,
    };
    let segments = Segments::new(
        settings,
        recovered.end,
        recovered.prepared,
        recovered.prepared,
    );
    let checkpoints = Checkpoints::new(
        &store.root,
        store.mode,
        &recovered.checkpoint,
        (recovered.end, dispatch_from),
    );
    Control::new(config, tables, register, segments, checkpoints)
}

/// A connection's name for the net.
pub fn conn(core: usize, slot: u32, generation: u32) -> Conn {
    Conn {
        core: core as u8,
        slot,
        generation,
    }
}
