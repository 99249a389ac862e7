//! The shard role: connections of one core, the queues that it owns, and every request of theirs.
//!
//! ```text
//!                       +-> Send:    checks, append to the log, answer at Appended
//!  frame -> code -> way +-> Owner:   here, or handed on to the shard that owns the queue
//!                       +-> Here:    a look-up by log offset or key
//!                       +-> Control: handed on; its answer comes back as Reply
//!                       +-> NotYet:  refused by name
//! ```
//!
//! Sends and pulls of new messages are straight code without allocation; what must read in the
//! middle is a flow (`query.rs`).

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use shards::Now;
use shards::role::Role;

use super::errors::{RouteError, route_code};
use super::groups::Groups;
use super::hold::Holds;
use super::news::{self, News, SharedBoot, Topic};
use super::offsets::Offsets;
use super::parked::Sends;
use super::query::{self, Bound, LookUp, Start};
use super::queue::{Queue, Queues};
use super::reply::{Asker, Replies};
use super::topics::Topics;
use super::unique::Random;
use super::ways::{Way, way};

pub use super::shard_config::ShardConfig;
use crate::flow::{Answer, Flows};
use crate::ids::{Conn, LogOffset, LogRange, Micros, Millis, QueueKey, RoleId};
use crate::limits::{FORWARD_BYTES_MAX, SHARD_FLOWS_MAX};
use crate::role::{self, CONTROL, Effect, Effects, Input, LOG, Letter, Mark, Ringmq};
use crate::wire::{Frame, RequestCode, Scratch};

/// The latest of each mark that a shard looks at.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Marks {
    pub visible: LogOffset,
    pub first: LogOffset,
    pub poisoned: bool,
    pub disk_full: bool,
}

/// A connection of this core.
#[derive(Debug)]
struct Connection {
    peer: SocketAddr,
    /// Roles that were handed something of it, a bit each: they hear when it goes.
    told: u64,
}

/// All that a shard knows. Flows reach it, too, but never across an await.
#[derive(Debug)]
pub struct State {
    pub(super) me: RoleId,
    pub(super) config: Rc<ShardConfig>,
    pub(super) now: Now,
    pub(super) marks: Marks,
    pub(super) topics: Topics,
    pub(super) groups: Groups,
    pub(super) queues: Queues,
    pub(super) offsets: Offsets,
    pub(super) holds: Holds,
    pub(super) sends: Sends,
    pub(super) replies: Replies,
    connections: HashMap<Conn, Connection, FixedState>,
    pub(super) random: Random,
    pub(super) keys_made: u16,
    pub(super) stopping: bool,
    /// The last offsets are on their way to control.
    last_round: bool,
    stopped: bool,
    /// Held pulls wait until the edge to this shard has room.
    pub(super) held_wait_for: Option<RoleId>,
    /// Flows to be started once the state is free.
    pub(super) starts: Vec<Start>,
    /// Reused from call to call: ranges of one pull, texts and lengths of one send.
    pub(super) ranges: Vec<LogRange>,
    pub(super) text: Vec<u8>,
    pub(super) ids: String,
    pub(super) lens: Vec<u32>,
}

/// The role.
pub struct Shard {
    state: Rc<RefCell<State>>,
    flows: Flows<State>,
    scratch: Scratch,
    name: &'static str,
}

impl Shard {
    #[must_use]
    pub fn new(config: ShardConfig, boot: &SharedBoot) -> Shard {
        let state = Rc::new(RefCell::new(State::new(config.check(), boot)));
        Shard {
            flows: Flows::new(state.clone(), SHARD_FLOWS_MAX),
            state,
            scratch: Scratch::new(),
            name: "shard",
        }
    }

    /// Runs what the call has asked for, and turns what flows ask into effects.
    fn run_flows(&mut self, fx: &mut Effects<'_>) {
        loop {
            let start = self.state.borrow_mut().starts.pop();
            let Some(start) = start else { break };
            if self.flows.running() >= SHARD_FLOWS_MAX {
                query::refuse_start(&mut self.state.borrow_mut(), fx, &start);
                continue;
            }
            let started = self.flows.start(|cx| query::run(cx, start));
            started.expect("the limit was just looked at");
        }
        self.flows.drain(fx);
    }
}

impl Role<Ringmq> for Shard {
    fn handle(&mut self, now: Now, input: Input<'_>, fx: &mut Effects<'_>) {
        self.state.borrow_mut().now = now;
        match input {
            Input::Read { ticket, result } => {
                let result = result.map(<[u8]>::to_vec);
                self.flows.answer(ticket.0, Answer::Read(result));
            }
            Input::Letter {
                letter: letter @ Letter::FoundKey { ask, .. },
                payload,
                ..
            } => {
                let answer = Answer::Letter(letter, payload.to_vec());
                self.flows.answer(ask, answer);
            }
            other => {
                let mut state = self.state.borrow_mut();
                state.hear(other, &mut self.scratch, fx);
                state.stop_when_done(fx);
            }
        }
        self.run_flows(fx);
    }

    fn deadline(&self) -> Option<Micros> {
        let state = self.state.borrow();
        if state.holds.has_ready() && state.held_wait_for.is_none() {
            return Some(Micros(0));
        }
        let held = state
            .holds
            .deadline()
            .filter(|_| state.held_wait_for.is_none());
        let sends = state.sends.deadline(state.config.send_wait_ms);
        [held, sends, self.flows.deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    /// What can be read is told by dispatch; of the log's end an old value does no harm.
    fn woken_by(&self) -> u64 {
        role::kinds(&[
            Mark::Poisoned(0),
            Mark::DiskFull(0),
            Mark::First(LogOffset(0)),
        ])
    }

    fn name(&self) -> &'static str {
        self.name
    }
}

impl State {
    fn new(config: ShardConfig, boot: &SharedBoot) -> State {
        let (seed, me) = (config.hash_seed, role::shard(config.number));
        let mut state = State {
            me,
            now: Now {
                mono: Micros(0),
                wall: Millis(0),
            },
            marks: Marks::default(),
            topics: Topics::new(&boot.topics, seed),
            groups: Groups::new(&boot.groups, config.auto_create_groups, seed),
            queues: Queues::new(config.number, config.shards, seed),
            offsets: Offsets::new(seed),
            holds: Holds::new(seed),
            sends: Sends::default(),
            replies: Replies::new(me, seed),
            connections: HashMap::with_hasher(FixedState::with_seed(seed)),
            random: Random(config.random_seed),
            config: Rc::new(config),
            keys_made: 0,
            stopping: false,
            last_round: false,
            stopped: false,
            held_wait_for: None,
            starts: Vec::new(),
            ranges: Vec::new(),
            text: Vec::new(),
            ids: String::new(),
            lens: Vec::new(),
        };
        state.load(boot);
        state
    }

    fn load(&mut self, boot: &SharedBoot) {
        for topic in &boot.topics {
            self.add_queues(topic);
        }
        for found in &boot.queues {
            if self.queues.owns(found.key)
                && let Some(queue) = self.queues.get_mut(found.key)
            {
                queue.first = found.first.0.min(found.dispatched.0);
                queue.next = found.dispatched.0;
            }
        }
        for (topic, group, queue_id, offset) in &boot.offsets {
            if self.offset_owner(topic, *queue_id) == self.me {
                self.offsets.load(topic, group, *queue_id, *offset);
            }
        }
    }

    fn add_queues(&mut self, topic: &Topic) {
        let name: Rc<str> = topic.name.as_str().into();
        for (id, key) in topic.queues.iter().enumerate() {
            if self.queues.owns(*key) {
                let queue = || Queue::new(name.clone(), id as i32, 0, 0);
                self.queues.add(*key, queue);
            }
        }
    }

    /// The shard that keeps the offsets of a queue, also of one that is not there (10).
    fn offset_owner(&self, topic: &str, queue_id: i32) -> RoleId {
        let entry = self.topics.get(topic);
        let key = entry.and_then(|entry| entry.queue(queue_id).or_else(|| entry.queue(0)));
        key.map_or(role::shard(0), |key| self.queues.owner(key))
    }

    pub(super) fn has_connection(&self, conn: Conn) -> bool {
        self.connections.contains_key(&conn)
    }

    fn hear(&mut self, input: Input<'_>, scratch: &mut Scratch, fx: &mut Effects<'_>) {
        match input {
            Input::Opened { conn, peer, .. } => self.on_opened(conn, peer),
            Input::Frame { conn, bytes } => self.on_frame(fx, conn, bytes, scratch),
            Input::Closed { conn } => self.on_closed(fx, conn),
            Input::Letter {
                from,
                letter,
                payload,
            } => self.on_letter(fx, (from, letter, payload), scratch),
            Input::Mark(mark) => self.on_mark(mark),
            Input::Room { to } => self.on_room(fx, to, scratch),
            Input::Deadline => {
                self.expire_sends(fx);
                self.serve_held(fx);
            }
            Input::Stop => {
                self.stopping = true;
                self.refuse_waiting_sends(fx);
            }
            // Nothing of these is asked for, or was answered before.
            Input::Connected { .. }
            | Input::Read { .. }
            | Input::Wrote { .. }
            | Input::Slow { .. }
            | Input::Settled => {}
        }
    }

    fn on_opened(&mut self, conn: Conn, peer: SocketAddr) {
        // An IPv4 peer of an IPv6 listener is stored as what it is.
        let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        self.connections.insert(conn, Connection { peer, told: 0 });
    }

    fn on_closed(&mut self, fx: &mut Effects<'_>, conn: Conn) {
        let Some(connection) = self.connections.remove(&conn) else {
            return;
        };
        self.holds.drop_connection(conn);
        self.sends.forget(conn);
        self.replies.forget(conn);
        for to in (0..64).filter(|to| connection.told >> to & 1 != 0) {
            let letter = Letter::Gone { conn };
            let told = self.replies.tell(fx, RoleId(to), letter, &[]);
            told.expect("a letter without bytes can always wait");
        }
    }

    fn on_mark(&mut self, mark: Mark) {
        match mark {
            Mark::Visible(at) => self.marks.visible = at,
            Mark::First(at) => self.marks.first = at,
            Mark::Poisoned(value) => self.marks.poisoned = value != 0,
            Mark::DiskFull(value) => self.marks.disk_full = value != 0,
            // A shard looks at no other.
            _ => {}
        }
    }

    fn on_room(&mut self, fx: &mut Effects<'_>, to: RoleId, scratch: &mut Scratch) {
        self.replies.tell_waiting(fx, to);
        if to == LOG {
            self.try_waiting_sends(fx, scratch);
        }
        if to == CONTROL {
            self.offsets.tell(fx);
        }
        if self.held_wait_for == Some(to) {
            self.serve_held(fx);
        }
    }

    fn on_frame(&mut self, fx: &mut Effects<'_>, conn: Conn, bytes: &[u8], scratch: &mut Scratch) {
        let Some(peer) = self
            .connections
            .get(&conn)
            .map(|connection| connection.peer)
        else {
            return;
        };
        let Ok(frame) = Frame::decode(bytes, scratch) else {
            fx.push(Effect::Close { conn });
            return;
        };
        // Answers of clients belong to requests that are not made yet.
        if frame.header.is_response() {
            return;
        }
        let asker = Asker::of(self.me, conn, &frame.header);
        let code = frame.header.request_code();
        match way(code) {
            Way::Send => self.on_send(fx, asker, peer, &frame, bytes),
            Way::Owner => match self.owner_of(&frame) {
                owner if owner == self.me => self.on_queue_request(fx, asker, &frame),
                owner => self.forward(fx, owner, &asker, peer, bytes),
            },
            Way::Here => {
                let look_up = if code == RequestCode::VIEW_MESSAGE_BY_ID {
                    LookUp::ByOffset
                } else {
                    LookUp::ByKey
                };
                self.on_look_up(fx, asker, &frame, look_up);
            }
            Way::Control => self.forward(fx, CONTROL, &asker, peer, bytes),
            Way::NotYet(feature) => {
                let code = code.0;
                self.refuse_route(fx, &asker, &RouteError::NotBuilt { code, feature });
            }
            Way::Unknown => {
                self.refuse_route(fx, &asker, &RouteError::UnknownCode { code: code.0 });
            }
        }
    }

    /// Who answers a request about a queue; this shard also for what nobody knows.
    fn owner_of(&self, frame: &Frame<'_>) -> RoleId {
        let header = &frame.header;
        let queue_id = header.ext("queueId").and_then(|id| id.parse::<i32>().ok());
        let (Some(topic), Some(queue_id)) = (header.ext("topic"), queue_id) else {
            return self.me;
        };
        let Some(entry) = self.topics.get(topic) else {
            return self.me;
        };
        match (entry.queue(queue_id), header.request_code()) {
            (Some(key), _) => self.queues.owner(key),
            (None, RequestCode::QUERY_CONSUMER_OFFSET | RequestCode::UPDATE_CONSUMER_OFFSET) => {
                self.offset_owner(topic, queue_id)
            }
            (None, _) => self.me,
        }
    }

    /// A request about a queue of this shard, or about none that exists.
    fn on_queue_request(&mut self, fx: &mut Effects<'_>, asker: Asker, frame: &Frame<'_>) {
        match frame.header.request_code() {
            RequestCode::PULL_MESSAGE | RequestCode::LITE_PULL_MESSAGE => {
                self.on_pull(fx, asker, frame);
            }
            RequestCode::QUERY_CONSUMER_OFFSET => self.on_query_offset(fx, asker, frame),
            RequestCode::UPDATE_CONSUMER_OFFSET => self.on_update_offset(fx, asker, frame),
            RequestCode::SEARCH_OFFSET_BY_TIMESTAMP => self.on_search(fx, asker, frame),
            RequestCode::GET_MAX_OFFSET => self.on_queue_bound(fx, asker, frame, Bound::Upper),
            RequestCode::GET_MIN_OFFSET => self.on_queue_bound(fx, asker, frame, Bound::Lower),
            RequestCode::GET_EARLIEST_MSG_STORETIME => self.on_earliest(fx, asker, frame),
            RequestCode(code) => {
                self.refuse_route(fx, &asker, &RouteError::UnknownCode { code });
            }
        }
    }

    /// Hands a whole frame on to the role that answers it.
    fn forward(
        &mut self,
        fx: &mut Effects<'_>,
        to: RoleId,
        asker: &Asker,
        peer: SocketAddr,
        bytes: &[u8],
    ) {
        let (conn, max) = (asker.conn, FORWARD_BYTES_MAX);
        if bytes.len() > max {
            let bytes = bytes.len();
            return self.refuse_route(fx, asker, &RouteError::TooLong { bytes, max });
        }
        let letter = Letter::Forward { conn, peer };
        if self.replies.tell(fx, to, letter, bytes).is_err() {
            return self.refuse_route(fx, asker, &RouteError::Busy);
        }
        if let Some(connection) = self.connections.get_mut(&conn) {
            connection.told |= 1 << to.0;
        }
    }

    fn refuse_route(&mut self, fx: &mut Effects<'_>, asker: &Asker, error: &RouteError) {
        let remark = error.to_string();
        let code = route_code(error);
        self.replies
            .answer(fx, asker, code, Some(&remark), &[], |_| {});
    }

    fn on_letter(
        &mut self,
        fx: &mut Effects<'_>,
        (from, letter, payload): (RoleId, Letter, &[u8]),
        scratch: &mut Scratch,
    ) {
        match letter {
            Letter::Appended { ask, result } => {
                self.on_appended(fx, ask, result);
                self.try_waiting_sends(fx, scratch);
            }
            Letter::Readable { queue, next } => {
                self.queues.readable(queue, next, payload);
                self.holds.wake(queue, next.0, payload);
                self.serve_held(fx);
            }
            Letter::QueueFirst { queue, first } => {
                if let Some(queue) = self.queues.get_mut(queue) {
                    queue.first = queue.first.max(first.0.min(queue.next));
                }
            }
            Letter::Forward { conn, .. } => {
                // Its connection's shard has decoded it before.
                if let Ok(frame) = Frame::decode(payload, scratch) {
                    let asker = Asker::of(from, conn, &frame.header);
                    self.on_queue_request(fx, asker, &frame);
                }
            }
            Letter::Reply { conn, head, more } => {
                let open = self.has_connection(conn);
                let reply = (conn, head, more);
                if open && !self.replies.take_reply(fx, from, reply, payload) {
                    fx.push(Effect::Close { conn });
                }
            }
            Letter::Gone { conn } => self.holds.drop_connection(conn),
            Letter::TopicCreated { ask, .. } => self.on_topic_created(fx, ask, scratch),
            Letter::News { version } => {
                self.on_news(fx, payload);
                let told = self.replies.tell(fx, from, Letter::Heard { version }, &[]);
                told.expect("a letter without bytes can always wait");
            }
            Letter::FetchOffsets => {
                self.offsets.begin_round();
                self.offsets.tell(fx);
            }
            Letter::Offsets { .. } => self.on_offsets(payload),
            other => log::error!("a shard was told {other:?} by {from:?}"),
        }
    }

    /// Control sets offsets, as when an operator resets a group.
    fn on_offsets(&mut self, payload: &[u8]) {
        let offsets: news::Offsets =
            serde_json::from_slice(payload).expect("control writes offsets");
        for (topic, group, queue_id, offset) in &offsets.0 {
            if self.offset_owner(topic, *queue_id) == self.me
                && let Err(error) = self.offsets.commit(topic, group, *queue_id, *offset)
            {
                log::error!("{topic}@{group}/{queue_id} is not set to {offset}: {error}");
            }
        }
    }

    fn on_news(&mut self, fx: &mut Effects<'_>, payload: &[u8]) {
        let news = serde_json::from_slice(payload).expect("control writes news as they are read");
        match news {
            News::Topic(topic) => {
                self.topics.set(&topic);
                self.add_queues(&topic);
            }
            News::TopicGone(topic) => self.on_topic_gone(fx, &topic),
            News::Group(group) => self.groups.set(&group),
            News::GroupGone(group) => self.groups.remove(&group),
            News::Online(online) => self.groups.set_online(&online),
            News::Offline(group) => self.groups.set_offline(&group),
            News::OffsetsGone { topic, group } => {
                self.offsets.remove(topic.as_deref(), group.as_deref());
            }
        }
    }

    fn on_topic_gone(&mut self, fx: &mut Effects<'_>, topic: &str) {
        let Some(entry) = self.topics.remove(topic) else {
            return;
        };
        let owned = |key: &&QueueKey| self.queues.owns(**key);
        let owned: Vec<QueueKey> = entry.queues().iter().filter(owned).copied().collect();
        for key in owned {
            self.queues.remove(key);
            self.holds.wake_all(key);
        }
        self.serve_held(fx);
    }

    /// Once asked to stop: when the log has answered everything, the last offsets go to control.
    fn stop_when_done(&mut self, fx: &mut Effects<'_>) {
        if !self.stopping || self.stopped || self.sends.in_flight() > 0 {
            return;
        }
        if !self.last_round {
            self.last_round = true;
            self.offsets.begin_round();
            self.offsets.tell(fx);
        }
        if self.offsets.is_told() {
            self.stopped = true;
            fx.push(Effect::Stopped);
        }
    }
}
