//! The index role: finds records by key. It follows the log as dispatch does, on a core of its own.
//!
//! ```text
//!  Mark Visible -> follow -> entries appended (Put) -> Mark Indexed
//!  every few seconds: Sync, then a note {file, next entry, log position} replaces the last one
//!  file full or stop: slots and header written (Put), Sync, note; then the next file
//! ```
//!
//! Entries are append-only; the slots of the file being written live in memory and are rebuilt from
//! the entries at start. So a key costs one sequential write and no read.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use shards::Now;
use shards::chunk::Tail;
use shards::files::{Files, Job};
use shards::ids::FileDir;
use shards::role::{ReadAt, Role, SyncTarget, WriteError};

use crate::broker::news::KeyQuery;
use crate::flow::{Answer, Cx, Flows};
use crate::ids::{LogOffset, Micros, Millis, RoleId, Ticket};
use crate::role::{CONTROL, Effect, Effects, Input, Letter, Mark, Ringmq};
use crate::store::follow::{Follow, Progress};
use crate::store::index_file::{self, ENTRY_BYTES, Entry, HEADER_BYTES, Header, Shape};
use crate::wire::properties::{index_key_hash, names::UNIQUE_KEY};
use crate::wire::record::Record;

/// What node.rs fills in.
#[derive(Clone, Debug)]
pub struct IndexConfig {
    /// `store`; the files stand in `index` below it.
    pub root: PathBuf,
    pub shape: Shape,
    pub segment_bytes: u64,
    /// `messageIndexEnable`: without it nothing is indexed and nothing found.
    pub enabled: bool,
    pub sync_interval_ms: u64,
    /// Local time ahead of UTC, for the files' names.
    pub utc_offset_ms: i64,
}

const FOLLOW: Ticket = Ticket(1);
const PUT: Ticket = Ticket(2);
const SYNC: Ticket = Ticket(3);
const NOTE: Ticket = Ticket(4);
const RETRY_MS: u64 = 1000;
/// How often to look how far the log has come.
const LOOK_MS: u64 = 20;
/// Slots written at once when a file is completed.
const SLOTS_STEP_BYTES: usize = 64 * 1024;
/// Queries at once; each walks chains of entries.
const QUERIES_MAX: usize = 64;
/// Entries looked at for one query: a crowded slot must not hold the role.
const CHAIN_MAX: u32 = 100_000;

/// What stands in `store/ringmq/index`: the files are whole up to here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// The file being written, 0 for none.
    pub file: u64,
    pub next_entry: u32,
    pub begin_ms: u64,
    pub end_ms: u64,
    pub begin_offset: u64,
    pub end_offset: u64,
    /// Records below are indexed.
    pub indexed: u64,
}

/// What a start finds.
#[derive(Debug, Default)]
pub struct IndexFound {
    /// Complete files, oldest first.
    sealed: Vec<(u64, Header)>,
    active: Option<Active>,
    /// Records from here on have to be indexed.
    pub from: LogOffset,
}

/// Opens the index files. What no note vouches for is removed and will be indexed again from the
/// log, which starts at `first` and ends at `end`.
pub fn open(
    files: &mut dyn Files,
    config: &IndexConfig,
    first: LogOffset,
    end: LogOffset,
) -> std::io::Result<IndexFound> {
    let dir = config.shape.dir(config.root.join("index"));
    let mut note = read_note(files, config).unwrap_or_default();
    if note.indexed > end.0 {
        note = Note::default();
    }
    let mut found = IndexFound {
        from: LogOffset(note.indexed).max(first),
        ..Default::default()
    };
    let entries = match files.list(&dir.path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => vec![],
        Err(error) => return Err(error),
    };
    for entry in entries.iter().filter(|entry| !entry.is_dir) {
        let Some(number) = index_file::number(&entry.name) else {
            continue;
        };
        let path = dir.path.join(&entry.name);
        let usable = entry.bytes == dir.file_bytes && number <= note.file;
        if !usable {
            files.remove(&path)?;
            continue;
        }
        let mut header = [0; HEADER_BYTES as usize];
        files.read_at(&path, 0, &mut header)?;
        if number < note.file {
            found.sealed.push((number, Header::decode(&header)));
        } else {
            found.active = Some(Active::rebuild(files, &dir, config.shape, &note)?);
        }
    }
    if note.file != 0 && note.next_entry > 1 && found.active.is_none() {
        // The note's file is gone: everything is indexed again, beginning with an empty directory.
        for (number, _) in found.sealed.drain(..) {
            files.remove(&index_file::file(&dir, number).path())?;
        }
        found.from = first;
    }
    Ok(found)
}

fn read_note(files: &mut dyn Files, config: &IndexConfig) -> Option<Note> {
    let mut bytes = vec![0; 4096];
    let read = files
        .read_at(&index_file::note_path(&config.root), 0, &mut bytes)
        .ok()?;
    serde_json::from_slice(&bytes[..read]).ok()
}

/// The file being written.
#[derive(Debug)]
struct Active {
    number: u64,
    header: Header,
    /// Newest entry per slot.
    slots: Vec<u32>,
    /// Encoded entries not yet put; the last one is `header.next_entry - 1`.
    pending: Vec<u8>,
}

impl Active {
    fn new(number: u64, shape: Shape) -> Active {
        let slots = vec![0; shape.slots as usize];
        let header = Header {
            next_entry: 1,
            ..Header::default()
        };
        Active {
            number,
            header,
            slots,
            pending: Vec::new(),
        }
    }

    fn rebuild(
        files: &mut dyn Files,
        dir: &Arc<FileDir>,
        shape: Shape,
        note: &Note,
    ) -> std::io::Result<Active> {
        let mut active = Active::new(note.file, shape);
        let path = index_file::file(dir, note.file).path();
        let next = note.next_entry.clamp(1, shape.entries);
        let mut piece = vec![0; 1024 * 1024 / ENTRY_BYTES as usize * ENTRY_BYTES as usize];
        let mut entry = 1;
        while entry < next {
            let most = piece.len() / ENTRY_BYTES as usize;
            let count = (next - entry).min(most as u32);
            let bytes = &mut piece[..count as usize * ENTRY_BYTES as usize];
            files.read_at(&path, shape.entry_at(entry), bytes)?;
            for bytes in bytes.as_chunks::<{ ENTRY_BYTES as usize }>().0 {
                let slot = Entry::decode(bytes).key_hash % shape.slots;
                let slot = &mut active.slots[slot as usize];
                active.header.slots_used += u32::from(*slot == 0);
                *slot = entry;
                entry += 1;
            }
        }
        active.header.next_entry = next;
        active.header.begin = Millis(note.begin_ms);
        active.header.end = Millis(note.end_ms);
        active.header.begin_offset = LogOffset(note.begin_offset);
        active.header.end_offset = LogOffset(note.end_offset);
        Ok(active)
    }

    fn is_full(&self, shape: Shape) -> bool {
        self.header.next_entry >= shape.entries
    }

    fn insert(&mut self, shape: Shape, hash: u32, at: LogOffset, stored: Millis) {
        let header = &mut self.header;
        if header.next_entry <= 1 {
            header.begin = stored;
            header.begin_offset = at;
        }
        let slot = &mut self.slots[(hash % shape.slots) as usize];
        let seconds = stored.0.saturating_sub(header.begin.0) / 1000;
        let seconds = seconds.min(i32::MAX as u64) as u32;
        let entry = Entry {
            key_hash: hash,
            at,
            seconds,
            previous: *slot,
        };
        self.pending.extend_from_slice(&entry.encode());
        header.slots_used += u32::from(*slot == 0);
        *slot = header.next_entry;
        header.next_entry += 1;
        header.end = stored;
        header.end_offset = at;
    }
}

/// What queries see.
struct Library {
    dir: Arc<FileDir>,
    shape: Shape,
    sealed: Vec<(u64, Header)>,
    active: Option<Active>,
}

pub struct Index {
    config: IndexConfig,
    library: Rc<RefCell<Library>>,
    flows: Flows<Library>,
    follow: Follow,
    visible: LogOffset,
    now: Now,
    /// Key hashes of records that wait for the next file: hash, offset, store time.
    waiting: Vec<(u32, LogOffset, Millis)>,
    puts: usize,
    failed: Option<WriteError>,
    retry_at: Option<Micros>,
    more: bool,
    work: Work,
    next_note_at: Micros,
    noted: LogOffset,
    /// A flush has failed since the start: what it lost, no later one brings back, so nothing more
    /// is vouched for.
    flush_failed: bool,
    /// Version of news that control has not been told of as heard.
    heard: Option<u64>,
    stopping: bool,
    stopped: bool,
}

/// What the role is doing beside following.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Follow,
    /// Writing slots and then the header, from this slot on.
    Complete {
        slot: u32,
    },
    Sync {
        complete: bool,
        upto: LogOffset,
    },
    Note {
        upto: LogOffset,
    },
}

impl Index {
    #[must_use]
    pub fn new(config: IndexConfig, found: IndexFound, tail: Tail) -> Self {
        let dir = config.shape.dir(config.root.join("index"));
        let library = Rc::new(RefCell::new(Library {
            dir,
            shape: config.shape,
            sealed: found.sealed,
            active: found.active,
        }));
        Index {
            flows: Flows::new(library.clone(), QUERIES_MAX),
            library,
            follow: Follow::new(found.from, config.segment_bytes, tail, FOLLOW),
            visible: found.from,
            noted: found.from,
            now: Now {
                mono: Micros(0),
                wall: Millis(0),
            },
            waiting: Vec::new(),
            puts: 0,
            failed: None,
            retry_at: None,
            more: false,
            work: Work::Follow,
            next_note_at: Micros(0),
            flush_failed: false,
            heard: None,
            stopping: false,
            stopped: false,
            config,
        }
    }

    fn advance(&mut self, fx: &mut Effects<'_>) {
        if self.retry_at.is_some_and(|at| self.now.mono < at) || self.puts > 0 {
            return;
        }
        self.retry_at = None;
        if self.work == Work::Follow && self.waiting.is_empty() {
            self.follow_on(fx);
        }
        self.insert_waiting(fx);
        self.end_step(fx);
    }

    fn follow_on(&mut self, fx: &mut Effects<'_>) {
        if !self.config.enabled {
            return;
        }
        let waiting = &mut self.waiting;
        let progress = self
            .follow
            .run(self.visible, fx, |record| gather(record, waiting));
        self.more = progress == Progress::More;
    }

    fn insert_waiting(&mut self, fx: &mut Effects<'_>) {
        if self.work != Work::Follow {
            return;
        }
        let library = &mut *self.library.borrow_mut();
        let shape = library.shape;
        let mut inserted = 0;
        for (hash, at, stored) in &self.waiting {
            let name = index_file::name_at(self.now.wall, self.config.utc_offset_ms);
            let newest = library.sealed.last().map_or(0, |(number, _)| *number);
            let active = library
                .active
                .get_or_insert_with(|| Active::new(name.max(newest + 1), shape));
            if active.is_full(shape) {
                self.work = Work::Complete { slot: 0 };
                break;
            }
            active.insert(shape, *hash, *at, *stored);
            inserted += 1;
        }
        self.waiting.drain(..inserted);
        self.puts += put_pending(library, fx);
    }

    /// After everything asked for was written.
    fn end_step(&mut self, fx: &mut Effects<'_>) {
        if self.puts > 0 {
            return;
        }
        match self.work {
            Work::Follow => {
                if self.waiting.is_empty() && !self.follow.is_reading() {
                    fx.mark(Mark::Indexed(self.follow.at()));
                    self.begin_note(fx);
                }
            }
            Work::Complete { slot } => self.complete_on(slot, fx),
            Work::Sync { .. } | Work::Note { .. } => {}
        }
    }

    fn begin_note(&mut self, fx: &mut Effects<'_>) {
        let caught = self.follow.at() >= self.visible;
        if self.stopping && caught && !self.stopped {
            if self.noted < self.follow.at() {
                self.work = Work::Complete { slot: 0 };
                return self.complete_on(0, fx);
            }
            self.stopped = true;
            return fx.push(Effect::Stopped);
        }
        if self.now.mono >= self.next_note_at && self.noted < self.follow.at() {
            self.sync(false, fx);
        }
    }

    /// Writes slots and header, a step at a time, so that Java finds the file as it writes them.
    fn complete_on(&mut self, slot: u32, fx: &mut Effects<'_>) {
        let library = self.library.borrow();
        let Some(active) = &library.active else {
            drop(library);
            return self.sync(true, fx);
        };
        let shape = library.shape;
        let file = index_file::file(&library.dir, active.number);
        let count = shape
            .slots
            .saturating_sub(slot)
            .min(SLOTS_STEP_BYTES as u32 / 4);
        if count > 0 {
            let slots = &active.slots[slot as usize..][..count as usize];
            let bytes = fx.bytes(|arena| slots.iter().for_each(|s| arena.extend(s.to_be_bytes())));
            fx.push(Effect::Put {
                ticket: PUT,
                file,
                at: shape.slot_at(slot),
                bytes,
            });
            self.puts += 1;
            self.work = Work::Complete { slot: slot + count };
            return;
        }
        if slot == shape.slots {
            let header = active.header.encode();
            let bytes = fx.bytes(|arena| arena.extend_from_slice(&header));
            fx.push(Effect::Put {
                ticket: PUT,
                file,
                at: 0,
                bytes,
            });
            self.puts += 1;
            self.work = Work::Complete { slot: slot + 1 };
            return;
        }
        drop(library);
        self.sync(true, fx);
    }

    fn sync(&mut self, complete: bool, fx: &mut Effects<'_>) {
        // What waits for the next file is not in this one.
        let upto = self
            .waiting
            .first()
            .map_or(self.follow.at(), |(_, at, _)| *at);
        self.work = Work::Sync { complete, upto };
        let library = self.library.clone();
        let library = &*library.borrow();
        match &library.active {
            Some(active) => {
                let target = SyncTarget::File(index_file::file(&library.dir, active.number));
                fx.push(Effect::Sync {
                    ticket: SYNC,
                    target,
                });
            }
            None => self.note(library, upto, fx),
        }
    }

    fn synced(&mut self, result: Result<(), WriteError>, fx: &mut Effects<'_>) {
        let Work::Sync { complete, upto } = self.work else {
            return;
        };
        if let Err(error) = result {
            // The note stays where it is: the next start indexes again from there.
            log::error!("the index file cannot be made durable: {error}");
            self.flush_failed = true;
            self.noted = upto;
            self.work = Work::Follow;
            return;
        }
        let library = self.library.clone();
        let library = &mut *library.borrow_mut();
        let shape = library.shape;
        let full = library
            .active
            .take_if(|active| complete && active.is_full(shape));
        if let Some(active) = full {
            library.sealed.push((active.number, active.header));
            let number = index_file::name_at(self.now.wall, self.config.utc_offset_ms);
            library.active = Some(Active::new(number.max(active.number + 1), shape));
        }
        if self.flush_failed {
            self.noted(self.now, upto);
            return;
        }
        self.note(library, upto, fx);
    }

    fn note(&mut self, library: &Library, upto: LogOffset, fx: &mut Effects<'_>) {
        let mut note = Note {
            indexed: upto.0,
            ..Note::default()
        };
        if let Some(active) = &library.active {
            note.file = active.number;
            note.next_entry = active.header.next_entry;
            note.begin_ms = active.header.begin.0;
            note.end_ms = active.header.end.0;
            note.begin_offset = active.header.begin_offset.0;
            note.end_offset = active.header.end_offset.0;
        }
        let path = index_file::note_path(&self.config.root);
        let bytes = serde_json::to_vec(&note).expect("numbers are JSON");
        fx.push(Effect::Slow {
            ticket: NOTE,
            job: Job::ReplaceFile { path, bytes },
        });
        self.work = Work::Note { upto };
    }

    fn noted(&mut self, now: Now, upto: LogOffset) {
        self.noted = upto;
        self.next_note_at = now.mono.plus_millis(self.config.sync_interval_ms);
        self.work = Work::Follow;
    }

    fn put_done(&mut self, now: Now, result: Result<(), WriteError>, fx: &mut Effects<'_>) {
        self.puts -= 1;
        if let Err(error) = result {
            self.failed = Some(error);
        }
        if self.puts > 0 {
            return;
        }
        match self.failed.take() {
            None => {
                if let Some(active) = &mut self.library.borrow_mut().active {
                    active.pending.clear();
                }
                self.end_step(fx);
            }
            Some(error) => {
                log::error!("the index file cannot be written ({error}); trying again");
                self.retry_at = Some(now.mono.plus_millis(RETRY_MS));
                if let Work::Complete { slot } = &mut self.work {
                    *slot = 0;
                }
            }
        }
    }

    /// The newest version stands for all before. Without room it is told at `Input::Room`.
    fn tell_heard(&mut self, fx: &mut Effects<'_>) {
        if let Some(version) = self.heard
            && fx.tell(CONTROL, 0, |_| Letter::Heard { version }).is_ok()
        {
            self.heard = None;
        }
    }

    fn find(&mut self, from: RoleId, ask: u64, payload: &[u8], fx: &mut Effects<'_>) {
        let query: KeyQuery = serde_json::from_slice(payload).expect("our own shard wrote it");
        let started = self.flows.start(|cx| find(cx, from, ask, query));
        if started.is_err() {
            let (last_update, last_offset) = newest(&self.library.borrow());
            let letter = Letter::FoundKey {
                ask,
                last_update,
                last_offset,
            };
            // Without room the asker's own deadline answers.
            let _ = fx.tell(from, 0, |_| letter);
        }
        self.flows.drain(fx);
    }
}

/// Adds a record's key hashes.
fn gather(record: &Record<'_>, waiting: &mut Vec<(u32, LogOffset, Millis)>) {
    if !record.needs_index() {
        return;
    }
    let (at, stored) = (LogOffset(record.log_offset()), record.store_timestamp());
    let stored = Millis(stored.max(0) as u64);
    let unique = record.properties().get(UNIQUE_KEY);
    let keys = unique
        .into_iter()
        .filter(|key| !key.is_empty())
        .chain(record.keys());
    let hash = |key| index_key_hash(record.topic(), key) as u32;
    waiting.extend(keys.map(|key| (hash(key), at, stored)));
}

/// Puts the entries gathered; how many writes that took.
fn put_pending(library: &mut Library, fx: &mut Effects<'_>) -> usize {
    let Some(active) = library
        .active
        .as_mut()
        .filter(|active| !active.pending.is_empty())
    else {
        return 0;
    };
    let count = (active.pending.len() / ENTRY_BYTES as usize) as u32;
    let at = library.shape.entry_at(active.header.next_entry - count);
    let file = index_file::file(&library.dir, active.number);
    let bytes = fx.bytes(|arena| arena.extend_from_slice(&active.pending));
    fx.push(Effect::Put {
        ticket: PUT,
        file,
        at,
        bytes,
    });
    1
}

fn newest(library: &Library) -> (Millis, LogOffset) {
    let active = library.active.as_ref().map(|active| active.header);
    let header = active.or_else(|| library.sealed.last().map(|(_, header)| *header));
    header.map_or_else(Default::default, |header| (header.end, header.end_offset))
}

/// One query: files newest first, in each the chain of the key's slot (store-behaviour 9).
async fn find(cx: Cx<Library>, from: RoleId, ask: u64, query: KeyQuery) {
    let hash = index_key_hash(&query.topic, query.key.as_bytes()) as u32;
    let mut found: Vec<LogOffset> = Vec::new();
    let count = cx.with(|library| library.sealed.len() + usize::from(library.active.is_some()));
    let (begin, end) = (query.begin_ms.max(0) as u64, query.end_ms.max(0) as u64);
    for place in (0..count).rev() {
        let Some((number, header)) = cx.with(|library| library.file_at(place)) else {
            continue;
        };
        if header.begin.0 <= end && header.end.0 >= begin {
            walk(
                &cx,
                number,
                header,
                hash,
                (begin, end),
                query.max as usize,
                &mut found,
            )
            .await;
        }
        if header.begin.0 < begin || found.len() >= query.max as usize {
            break;
        }
    }
    let (last_update, last_offset) = cx.with(|library| newest(library));
    let payload = found.iter().flat_map(|at| at.0.to_ne_bytes()).collect();
    cx.tell(
        from,
        Letter::FoundKey {
            ask,
            last_update,
            last_offset,
        },
        payload,
    );
}

async fn walk(
    cx: &Cx<Library>,
    number: u64,
    header: Header,
    hash: u32,
    (begin, end): (u64, u64),
    max: usize,
    found: &mut Vec<LogOffset>,
) {
    let (file, shape) = cx.with(|library| (index_file::file(&library.dir, number), library.shape));
    let slot = hash % shape.slots;
    let in_memory = cx.with(|library| library.slot(number, slot));
    let mut entry = match in_memory {
        Some(entry) => entry,
        None => {
            let at = ReadAt::File(file.clone(), shape.slot_at(slot));
            let Ok(bytes) = cx.read(at, 4).await else {
                return;
            };
            u32::from_be_bytes(*bytes.first_chunk().expect("exactly 4 bytes were read"))
        }
    };
    for _ in 0..CHAIN_MAX {
        if entry == 0 || entry >= header.next_entry || found.len() >= max {
            return;
        }
        let at = ReadAt::File(file.clone(), shape.entry_at(entry));
        let Ok(bytes) = cx.read(at, ENTRY_BYTES as u32).await else {
            return;
        };
        let read = Entry::decode(bytes.first_chunk().expect("exactly 20 bytes were read"));
        let time = header.begin.0 + u64::from(read.seconds) * 1000;
        // Times are kept in whole seconds: a record of the range's first second may look older.
        if time + 1000 <= begin {
            return;
        }
        if read.key_hash == hash && time <= end && !found.contains(&read.at) {
            found.push(read.at);
        }
        if read.previous >= entry {
            return;
        }
        entry = read.previous;
    }
}

impl Library {
    /// Files by age, the one being written last.
    fn file_at(&self, place: usize) -> Option<(u64, Header)> {
        let active = || {
            self.active
                .as_ref()
                .map(|active| (active.number, active.header))
        };
        self.sealed.get(place).copied().or_else(active)
    }

    fn slot(&self, number: u64, slot: u32) -> Option<u32> {
        let active = self
            .active
            .as_ref()
            .filter(|active| active.number == number)?;
        Some(active.slots[slot as usize])
    }
}

impl Role<Ringmq> for Index {
    fn handle(&mut self, now: Now, input: Input<'_>, fx: &mut Effects<'_>) {
        self.now = now;
        match input {
            Input::Mark(Mark::Visible(visible)) => self.visible = self.visible.max(visible),
            Input::Letter {
                from,
                letter: Letter::FindKey { ask },
                payload,
            } => {
                self.advance(fx);
                self.find(from, ask, payload, fx);
            }
            Input::Letter {
                letter: Letter::News { version },
                ..
            } => {
                self.heard = Some(version);
                self.tell_heard(fx);
            }
            Input::Read { ticket, result } if Flows::<Library>::is_mine(ticket.0) => {
                self.flows
                    .answer(ticket.0, Answer::Read(result.map(<[u8]>::to_vec)));
                self.flows.drain(fx);
            }
            Input::Read {
                result: Ok(bytes), ..
            } => {
                let waiting = &mut self.waiting;
                self.follow
                    .take_read(bytes, |record| gather(record, waiting));
            }
            Input::Read {
                result: Err(error), ..
            } => {
                log::error!("the log cannot be read at {}: {error}", self.follow.at());
                self.follow.read_failed();
                self.retry_at = Some(now.mono.plus_millis(RETRY_MS));
            }
            Input::Wrote {
                ticket: SYNC,
                result,
            } => self.synced(result, fx),
            Input::Wrote { result, .. } => self.put_done(now, result, fx),
            Input::Slow { ticket: NOTE, .. } => {
                if let Work::Note { upto } = self.work {
                    self.noted(now, upto);
                }
            }
            Input::Room { .. } => {
                self.tell_heard(fx);
                self.flows.drain(fx);
            }
            Input::Stop => self.stopping = true,
            Input::Settled | Input::Deadline => self.advance(fx),
            _ => {}
        }
    }

    fn deadline(&self) -> Option<Micros> {
        let look = (!self.stopped).then_some(self.now.mono.plus_millis(LOOK_MS));
        if self.puts > 0 || self.work != Work::Follow {
            return look;
        }
        if self.retry_at.is_some() {
            return self.retry_at;
        }
        let behind = self.more || !self.waiting.is_empty();
        let note = self.noted < self.follow.at();
        behind
            .then_some(Micros(0))
            .or(note.then_some(self.next_note_at))
    }

    fn settles_late(&self) -> bool {
        true
    }

    /// It looks by itself: nobody waits for it, and waking its core for each flush would take the
    /// CPU from who does.
    fn woken_by(&self) -> u64 {
        0
    }

    fn name(&self) -> &'static str {
        "index"
    }
}
