//! The control role: the one writer of topics, groups, members and settings; it also keeps the
//! log's next segment ready, registers with the name servers and saves what has to outlive the
//! process.
//!
//! ```text
//!  shard -- Forward (a frame) --> control: tables change
//!                                   |-- News --> every role; each answers Heard
//!                                   |-- Saver: file, sync, rename
//!  shard <-- Reply, TopicCreated -- once all have heard and the file is durable
//! ```
//!
//! So whoever gets an answer can rely on every core knowing, and on a restart remembering.

mod checkpoints;
mod outbox;
mod register;
mod requests;
mod saver;
mod segments;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use shards::Now;
use shards::files::{Job, JobDone};
use shards::role::Role;

pub use checkpoints::Checkpoints;
pub use outbox::Peer;
pub use register::{Identity, Register, Registered};
pub use segments::{SegmentSettings, Segments, ZEROED_AT_FIRST_BYTES};

use crate::broker::group_table::GroupTable;
use crate::broker::members::Members;
use crate::broker::news::{NewTopic, News, Offsets};
use crate::broker::offset_table::SavedOffsets;
use crate::broker::topic_table::{TopicTable, is_legal_topic};
use crate::ids::{Conn, LogOffset, Micros, RoleId, Ticket};
use crate::role::{
    self, CONTROL, DISPATCH, Effect, Effects, INDEX, Input, LOG, Letter, Mark, Ringmq,
};
use crate::store::log::LogCounters;
use crate::wire::codes::{RequestCode, ResponseCode};
use crate::wire::fastjson;
use crate::wire::frame::{Encoding, Frame, Scratch};
use crate::wire::frame::{RequestHead, ResponseHead, encode_request, encode_response};
use checkpoints::CHECKPOINT;
use outbox::Outbox;
use requests::Answer;
use saver::Saver;

const TOPICS: Ticket = Ticket(1);
const GROUPS: Ticket = Ticket(2);
const OFFSETS: Ticket = Ticket(3);
const DELETED: Ticket = Ticket(4);
const ABORT: Ticket = Ticket(5);
const TREE: Ticket = Ticket(6);

/// How often members that no longer send heartbeats are looked for.
const EXPIRY_SCAN_MS: u64 = 10_000;
/// How often to look how far the log has come: its next segment must be made in time.
const LOOK_MS: u64 = 100;
/// Answers that wait for news and files at once.
const WAITING_MAX: usize = 10_000;

/// Who hears news before the shards do.
const BEFORE_SHARDS: [RoleId; 3] = [LOG, DISPATCH, INDEX];

/// What node.rs fills in.
#[derive(Clone, Debug)]
pub struct ControlConfig {
    /// `storePathRootDir`.
    pub root: PathBuf,
    pub shards: usize,
    /// `flushConsumerOffsetInterval`.
    pub offsets_interval_ms: u64,
    /// `channelExpiredTimeout`.
    pub member_expires_ms: u64,
    /// `notifyConsumerIdsChangedEnable`.
    pub notify_changes: bool,
    /// What 26 shows.
    pub settings: Vec<(&'static str, String)>,
    pub boot_ms: u64,
    /// What the log counts, for 28.
    pub log: Arc<LogCounters>,
}

/// The tables that a start has loaded.
#[derive(Debug)]
pub struct Tables {
    pub topics: TopicTable,
    pub groups: GroupTable,
    pub offsets: SavedOffsets,
    /// Topic -> first log offset that counts, of topics that were deleted.
    pub deleted: BTreeMap<String, u64>,
}

/// Where the four tables are saved.
#[must_use]
pub fn table_paths(root: &std::path::Path) -> [PathBuf; 4] {
    let config = root.join("config");
    [
        config.join("topics.json"),
        config.join("subscriptionGroup.json"),
        config.join("consumerOffset.json"),
        root.join("ringmq").join("deleted.json"),
    ]
}

/// Whether the role goes on or finishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Desk {
    Open,
    Closing,
    Closed,
}

pub struct Control {
    config: ControlConfig,
    topics: TopicTable,
    groups: GroupTable,
    offsets: SavedOffsets,
    deleted: BTreeMap<String, u64>,
    members: Members,
    topics_saver: Saver,
    groups_saver: Saver,
    offsets_saver: Saver,
    deleted_saver: Saver,
    register: Register,
    segments: Segments,
    checkpoints: Checkpoints,
    out: Outbox,
    /// News that the shards are told once the other roles know: see [`Control::broadcast`].
    held: VecDeque<Held>,
    /// Version of the newest news, and how far each role has heard.
    version: u64,
    heard: BTreeMap<RoleId, u64>,
    waiting: VecDeque<Waiting>,
    /// Deleted topics whose files are removed once every role has heard.
    deleting: Vec<String>,
    first: LogOffset,
    dispatched: LogOffset,
    fetch_at: Micros,
    scan_at: Micros,
    scratch: Scratch,
    opaque: i32,
    look_at: Micros,
    desk: Desk,
    abort_removed: bool,
}

/// A request as its function sees it.
pub(super) struct Request<'a> {
    now: Now,
    peer: Peer,
    address: SocketAddr,
    frame: &'a Frame<'a>,
}

/// News on their way to the shards.
struct Held {
    version: u64,
    topics: u64,
    groups: u64,
    payload: Vec<u8>,
}

/// An answer that waits for everybody to know.
struct Waiting {
    version: u64,
    topics: u64,
    groups: u64,
    then: Then,
}

enum Then {
    Frame(Peer, Vec<u8>),
    Created(RoleId, u64),
}

impl Control {
    #[must_use]
    pub fn new(
        config: ControlConfig,
        tables: Tables,
        register: Register,
        segments: Segments,
        checkpoints: Checkpoints,
    ) -> Self {
        let shards = (0..config.shards).map(role::shard);
        let heard = shards.chain(BEFORE_SHARDS).map(|role| (role, 0)).collect();
        let [topics, groups, offsets, deleted] = table_paths(&config.root);
        let mut topics_saver = Saver::new(topics, TOPICS);
        let mut groups_saver = Saver::new(groups, GROUPS);
        // The tables may hold what exists from the start and is in no file yet.
        topics_saver.changed();
        groups_saver.changed();
        Control {
            topics: tables.topics,
            groups: tables.groups,
            offsets: tables.offsets,
            deleted: tables.deleted,
            members: Members::default(),
            topics_saver,
            groups_saver,
            offsets_saver: Saver::new(offsets, OFFSETS),
            deleted_saver: Saver::new(deleted, DELETED),
            register,
            segments,
            checkpoints,
            out: Outbox::default(),
            held: VecDeque::new(),
            version: 0,
            heard,
            waiting: VecDeque::new(),
            deleting: Vec::new(),
            first: LogOffset(0),
            dispatched: LogOffset(0),
            fetch_at: Micros(0),
            scan_at: Micros(0),
            scratch: Scratch::new(),
            opaque: 0,
            look_at: Micros(0),
            desk: Desk::Open,
            abort_removed: false,
            config,
        }
    }

    /// Tells every role: first those that take what shards send, and only when they know, and the
    /// files too, the shards. Else a send could use a new topic whose messages dispatch does not
    /// know, and leaves aside for good, or that a power loss forgets.
    fn broadcast(&mut self, news: &News, fx: &mut Effects<'_>) {
        self.version += 1;
        let version = self.version;
        let payload = serde_json::to_vec(news).expect("news are JSON");
        for role in BEFORE_SHARDS {
            self.out.tell(role, Letter::News { version }, &payload, fx);
        }
        let (topics, groups) = self.unsaved();
        self.held.push_back(Held {
            version,
            topics,
            groups,
            payload,
        });
    }

    /// Tells the shards what the other roles and the files know by now.
    fn tell_shards(&mut self, fx: &mut Effects<'_>) {
        while let Some(held) = self.held.front() {
            let heard = BEFORE_SHARDS
                .iter()
                .all(|role| self.heard[role] >= held.version);
            if !heard || !self.is_saved(held.topics, held.groups) {
                return;
            }
            let version = held.version;
            for number in 0..self.config.shards {
                let shard = role::shard(number);
                self.out
                    .tell(shard, Letter::News { version }, &held.payload, fx);
            }
            self.held.pop_front();
        }
    }

    fn all_heard(&self, version: u64) -> bool {
        self.heard.values().all(|heard| *heard >= version)
    }

    /// A frame that a shard handed on.
    fn forwarded(
        &mut self,
        now: Now,
        peer: Peer,
        address: SocketAddr,
        bytes: &[u8],
        fx: &mut Effects<'_>,
    ) {
        let mut scratch = std::mem::take(&mut self.scratch);
        // The shard has decoded it before: a frame that cannot be decoded does not get here.
        if let Ok(frame) = Frame::decode(bytes, &mut scratch)
            && !frame.header.is_response()
        {
            self.answer_frame(now, peer, address, &frame, fx);
        }
        self.scratch = scratch;
    }

    fn answer_frame(
        &mut self,
        now: Now,
        peer: Peer,
        address: SocketAddr,
        frame: &Frame<'_>,
        fx: &mut Effects<'_>,
    ) {
        let crowded = self.waiting.len() >= WAITING_MAX || self.out.is_crowded();
        let answer = if crowded {
            let remark = "too many changes are under way; try again";
            Answer::refuse(ResponseCode::SYSTEM_BUSY, remark)
        } else {
            self.answer(
                &Request {
                    now,
                    peer,
                    address,
                    frame,
                },
                fx,
            )
        };
        if frame.header.is_oneway() {
            return;
        }
        let encoded = encode(frame, &answer);
        if answer.waits {
            self.wait(Then::Frame(peer, encoded));
        } else {
            self.out.frame(peer, &encoded, fx);
        }
    }

    fn wait(&mut self, then: Then) {
        let (topics, groups) = self.unsaved();
        self.waiting.push_back(Waiting {
            version: self.version,
            topics,
            groups,
            then,
        });
    }

    /// The newest changes of topics and of groups that are not on stable storage, 0 if all are.
    fn unsaved(&self) -> (u64, u64) {
        let unsaved = |saver: &Saver| {
            if saver.is_clean() { 0 } else { saver.newest() }
        };
        (unsaved(&self.topics_saver), unsaved(&self.groups_saver))
    }

    fn is_saved(&self, topics: u64, groups: u64) -> bool {
        self.topics_saver.is_saved(topics) && self.groups_saver.is_saved(groups)
    }

    /// A request of our own to a client.
    fn send_request(
        &mut self,
        peer: Peer,
        code: RequestCode,
        fields: &[(&str, &str)],
        fx: &mut Effects<'_>,
    ) {
        self.opaque = self.opaque.wrapping_add(1);
        let head = RequestHead::new(code, self.opaque).oneway();
        let mut frame = Vec::new();
        encode_request(&mut frame, Encoding::Json, &head, None, 0, |ext| {
            fields
                .iter()
                .for_each(|(name, value)| ext.put_str(name, value));
        });
        self.out.frame(peer, &frame, fx);
    }

    /// A send to an unknown topic (broker-requests 1.4).
    fn create_topic(
        &mut self,
        now: Now,
        from: RoleId,
        ask: u64,
        new: &NewTopic,
        fx: &mut Effects<'_>,
    ) {
        if self.topics.get(&new.topic).is_none() {
            let config = self
                .topics
                .for_send(
                    &new.topic,
                    &new.default_topic,
                    new.default_queues,
                    new.unit_mode,
                )
                .filter(|_| is_legal_topic(&new.topic));
            let made = config.map(|config| self.put_topic(config, now.wall.0, fx));
            match made {
                Some(Ok(())) => log::info!("topic {} made by a send of {}", new.topic, new.peer),
                Some(Err(error)) => log::warn!("topic {} is not made: {error}", new.topic),
                None => {}
            }
            if !matches!(made, Some(Ok(()))) {
                return self
                    .out
                    .tell(from, Letter::TopicCreated { ask, ok: false }, &[], fx);
            }
        }
        self.wait(Then::Created(from, ask));
    }

    fn gone(&mut self, peer: Peer, fx: &mut Effects<'_>) {
        for (group, changed) in self.members.leave_all(peer) {
            self.membership_changed(&group, changed, fx);
        }
    }

    fn scan(&mut self, now: Now, fx: &mut Effects<'_>) {
        if now.mono < self.scan_at {
            return;
        }
        self.scan_at = now.mono.plus_millis(EXPIRY_SCAN_MS);
        let limit = now
            .mono
            .0
            .saturating_sub(self.config.member_expires_ms * 1000);
        for peer in self.members.expired(Micros(limit)) {
            log::info!(
                "a client sent no heartbeat in time: {:?} is forgotten",
                peer.conn
            );
            self.gone(peer, fx);
        }
    }

    fn fetch_offsets(&mut self, now: Now, fx: &mut Effects<'_>) {
        if now.mono < self.fetch_at || self.desk != Desk::Open {
            return;
        }
        self.fetch_at = now.mono.plus_millis(self.config.offsets_interval_ms);
        for number in 0..self.config.shards {
            self.out
                .tell(role::shard(number), Letter::FetchOffsets, &[], fx);
        }
    }

    /// What follows from whatever was heard: saves, answers, registrations.
    fn settle(&mut self, now: Now, fx: &mut Effects<'_>) {
        self.look_at = now.mono.plus_millis(LOOK_MS);
        self.scan(now, fx);
        self.fetch_offsets(now, fx);
        self.finish_deletes(fx);
        let (topics, groups) = (&self.topics, &self.groups);
        self.topics_saver
            .save(now.mono, fx, || fastjson::to_vec(&topics.saved()));
        self.groups_saver
            .save(now.mono, fx, || fastjson::to_vec(groups.wire()));
        let (offsets, deleted) = (&self.offsets, &self.deleted);
        self.offsets_saver
            .save(now.mono, fx, || fastjson::to_vec(offsets.wire()));
        self.deleted_saver
            .save(now.mono, fx, || fastjson::to_vec(deleted));
        self.tell_shards(fx);
        self.answer_waiting(fx);
        if self.desk == Desk::Open {
            self.register.run(now.mono, &self.topics, fx);
            self.segments.run(now.mono, fx);
        }
        self.checkpoints.run(now, self.desk, fx);
        self.stop_when_done(fx);
    }

    fn answer_waiting(&mut self, fx: &mut Effects<'_>) {
        while let Some(waiting) = self.waiting.front() {
            let known =
                self.all_heard(waiting.version) && self.is_saved(waiting.topics, waiting.groups);
            if !known {
                return;
            }
            match self.waiting.pop_front().expect("looked at above").then {
                Then::Frame(peer, frame) => self.out.frame(peer, &frame, fx),
                Then::Created(shard, ask) => {
                    self.out
                        .tell(shard, Letter::TopicCreated { ask, ok: true }, &[], fx);
                }
            }
        }
    }

    /// Once every role has heard, nothing of a deleted topic is on its way any more: what the log
    /// holds of it so far must not come back with a topic of the same name.
    fn finish_deletes(&mut self, fx: &mut Effects<'_>) {
        if self.deleting.is_empty() || !self.all_heard(self.version) {
            return;
        }
        for topic in std::mem::take(&mut self.deleting) {
            let path = self.config.root.join("consumequeue").join(&topic);
            fx.push(Effect::Slow {
                ticket: TREE,
                job: Job::RemoveTree { path },
            });
            self.deleted.insert(topic, self.segments.written_mark().0);
            self.deleted_saver.changed();
        }
    }

    fn stop_when_done(&mut self, fx: &mut Effects<'_>) {
        let savers = [
            &self.topics_saver,
            &self.groups_saver,
            &self.offsets_saver,
            &self.deleted_saver,
        ];
        let saved = savers.iter().all(|saver| saver.is_clean());
        if self.desk != Desk::Closing || !saved || !self.checkpoints.is_clean() {
            return;
        }
        if !self.abort_removed {
            self.abort_removed = true;
            let path = self.config.root.join("abort");
            fx.push(Effect::Slow {
                ticket: ABORT,
                job: Job::RemoveFile { path },
            });
        }
    }

    fn slow_done(&mut self, now: Now, ticket: Ticket, done: JobDone, fx: &mut Effects<'_>) {
        match ticket {
            TOPICS => self.topics_saver.done(now.mono, &done),
            GROUPS => self.groups_saver.done(now.mono, &done),
            OFFSETS => self.offsets_saver.done(now.mono, &done),
            DELETED => self.deleted_saver.done(now.mono, &done),
            CHECKPOINT => {
                if let JobDone::Failed(error) = &done {
                    log::error!("the checkpoint cannot be written: {error}");
                }
                self.checkpoints.done(matches!(done, JobDone::Failed(_)));
            }
            ABORT => {
                if let JobDone::Failed(error) = &done {
                    log::error!("abort cannot be removed ({error}): the next start recovers");
                }
                self.desk = Desk::Closed;
                fx.push(Effect::Stopped);
            }
            TREE => {
                if let JobDone::Failed(error) = &done {
                    log::warn!("files of a deleted topic stay: {error}");
                }
            }
            _ => self.segments.done(now.mono, ticket, done, fx),
        }
    }

    fn mark(&mut self, mark: Mark) {
        match mark {
            Mark::Written(at) => {
                self.segments.written(at);
                self.checkpoints.written = at;
            }
            Mark::Durable(at) => self.checkpoints.durable = at,
            Mark::QueuesDurable(at) => self.checkpoints.queues = at,
            Mark::Indexed(at) => self.checkpoints.indexed = at,
            Mark::Dispatched(at) => self.dispatched = at,
            Mark::First(at) => self.first = at,
            _ => {}
        }
    }

    fn letter(
        &mut self,
        now: Now,
        from: RoleId,
        letter: Letter,
        payload: &[u8],
        fx: &mut Effects<'_>,
    ) {
        const OURS: &str = "our own role wrote it";
        match letter {
            Letter::Forward { conn, peer } => {
                self.forwarded(now, Peer { role: from, conn }, peer, payload, fx);
            }
            Letter::Gone { conn } => self.gone(Peer { role: from, conn }, fx),
            Letter::Heard { version } => {
                let heard = self.heard.entry(from).or_default();
                *heard = version.max(*heard);
            }
            Letter::CreateTopic { ask } => {
                let new: NewTopic = serde_json::from_slice(payload).expect(OURS);
                self.create_topic(now, from, ask, &new, fx);
            }
            Letter::Offsets { .. } => {
                if payload.is_empty() {
                    return;
                }
                let offsets: Offsets = serde_json::from_slice(payload).expect(OURS);
                if self.offsets.update(offsets) {
                    self.offsets.bump(now.wall.0);
                    self.offsets_saver.changed();
                }
            }
            other => unreachable!("nobody tells {CONTROL:?} {other:?}"),
        }
    }
}

fn encode(frame: &Frame<'_>, answer: &Answer) -> Vec<u8> {
    let mut out = Vec::with_capacity(256 + answer.body.len());
    let head = ResponseHead {
        code: ResponseCode(answer.code),
        opaque: frame.header.opaque,
    };
    let remark = answer.remark.as_deref();
    encode_response(
        &mut out,
        frame.header.encoding,
        &head,
        remark,
        answer.body.len(),
        |ext| {
            answer
                .ext
                .iter()
                .for_each(|(name, value)| ext.put_str(name, value));
        },
    );
    out.extend_from_slice(&answer.body);
    out
}

impl Role<Ringmq> for Control {
    fn handle(&mut self, now: Now, input: Input<'_>, fx: &mut Effects<'_>) {
        match input {
            Input::Mark(mark) => self.mark(mark),
            Input::Letter {
                from,
                letter,
                payload,
            } => {
                self.letter(now, from, letter, payload, fx);
            }
            Input::Slow { ticket, done } => self.slow_done(now, ticket, done, fx),
            Input::Connected { ticket, result } => {
                self.register.connected(now.mono, ticket, result);
            }
            Input::Frame { conn, bytes } => self.name_server_answered(now, conn, bytes),
            Input::Closed { conn } => self.register.closed(now.mono, conn),
            Input::Room { to } => self.out.room(to, fx),
            Input::Stop => {
                self.desk = Desk::Closing;
                self.register.leave(fx);
            }
            Input::Settled | Input::Deadline => self.settle(now, fx),
            _ => {}
        }
    }

    fn deadline(&self) -> Option<Micros> {
        if self.desk == Desk::Closed {
            return None;
        }
        let closing = self.desk == Desk::Closing;
        let open = [
            Some(self.scan_at),
            Some(self.fetch_at),
            self.register.deadline(),
            self.segments.deadline(),
        ];
        let always = [
            self.topics_saver.deadline(),
            self.groups_saver.deadline(),
            self.offsets_saver.deadline(),
            self.deleted_saver.deadline(),
            self.checkpoints.deadline(),
            Some(self.look_at),
        ];
        let open = open.into_iter().filter(|_| !closing);
        open.chain(always).flatten().min()
    }

    fn settles_late(&self) -> bool {
        true
    }

    fn woken_by(&self) -> u64 {
        role::kinds(&[Mark::Poisoned(0), Mark::First(LogOffset(0))])
    }

    fn name(&self) -> &'static str {
        "control"
    }
}

impl Control {
    fn name_server_answered(&mut self, now: Now, conn: Conn, bytes: &[u8]) {
        let mut scratch = std::mem::take(&mut self.scratch);
        if let Ok(frame) = Frame::decode(bytes, &mut scratch) {
            self.register.answered(now.mono, conn, &frame);
        }
        self.scratch = scratch;
    }
}
