//! Pulling messages: 11 and 361 (broker-requests 4).
//!
//! The check order is the table of 4.2. What a pull brings is a list of log ranges; their bytes are
//! never touched here. A pull that its queue's window cannot answer becomes a flow
//! ([`super::query`]) that reads the queue's file.

use super::errors::{PullError, forbidden_type, pull_code};
use super::groups::{Settings, TagFilter, is_tag_type};
use super::offsets::TooManyOffsets;
use super::query::Start;
use super::queue::{Place, ScanLimits, Scanned, scan};
use super::reply::{Asker, Replies};
use super::shard::{ShardConfig, State};
use crate::ids::{QueueKey, UNIT_BYTES};
use crate::limits::{SCAN_UNITS_MAX, WAKES_PER_CALL};
use crate::role::Effects;
use crate::wire::headers::{PullRequest, PullResponse};
use crate::wire::{ExtWriter, Frame, RequestCode, ResponseCode};

const PERM_READ: u32 = 4;

/// Bits of the request's sysFlag (4.1).
const COMMIT: i32 = 0x1;
const SUSPEND: i32 = 0x2;
const SUBSCRIPTION: i32 = 0x4;

/// A pull that passed its checks.
#[derive(Clone, Debug)]
pub struct Pull {
    pub asker: Asker,
    pub key: QueueKey,
    pub offset: i64,
    /// `maxMsgNums`; the first message comes whatever it says.
    pub wanted: i32,
    pub filter: TagFilter,
    topic_sys_flag: i32,
    group_sys_flag: i32,
}

impl Pull {
    /// How many units one look may cover (store-behaviour 8).
    #[must_use]
    pub fn scan_units(&self, config: &ShardConfig) -> usize {
        let by_filter = config.filter_bytes_max as usize / UNIT_BYTES as usize;
        let wanted = usize::try_from(self.wanted).unwrap_or(0);
        by_filter.max(wanted).clamp(1, SCAN_UNITS_MAX)
    }
}

/// How a look into the queue went; the name is the remark of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Found,
    NoMatchedMessage,
    MessageWasRemoving,
    NoMessageInQueue,
    OffsetFoundNull,
    OffsetOverflowOne,
    OffsetOverflowBadly,
    OffsetTooSmall,
}

impl Status {
    fn name(self) -> &'static str {
        match self {
            Status::Found => "FOUND",
            Status::NoMatchedMessage => "NO_MATCHED_MESSAGE",
            Status::MessageWasRemoving => "MESSAGE_WAS_REMOVING",
            Status::NoMessageInQueue => "NO_MESSAGE_IN_QUEUE",
            Status::OffsetFoundNull => "OFFSET_FOUND_NULL",
            Status::OffsetOverflowOne => "OFFSET_OVERFLOW_ONE",
            Status::OffsetOverflowBadly => "OFFSET_OVERFLOW_BADLY",
            Status::OffsetTooSmall => "OFFSET_TOO_SMALL",
        }
    }

    /// The table of 4.3.
    fn code(self, offset: i64) -> ResponseCode {
        match self {
            Status::Found => ResponseCode::SUCCESS,
            Status::NoMatchedMessage | Status::MessageWasRemoving => {
                ResponseCode::PULL_RETRY_IMMEDIATELY
            }
            Status::NoMessageInQueue if offset == 0 => ResponseCode::PULL_NOT_FOUND,
            Status::OffsetFoundNull | Status::OffsetOverflowOne => ResponseCode::PULL_NOT_FOUND,
            Status::NoMessageInQueue | Status::OffsetOverflowBadly | Status::OffsetTooSmall => {
                ResponseCode::PULL_OFFSET_MOVED
            }
        }
    }

    #[must_use]
    pub fn of(scanned: Scanned) -> Status {
        match scanned {
            Scanned { messages: 1.., .. } => Status::Found,
            Scanned { removed: true, .. } => Status::MessageWasRemoving,
            Scanned { .. } => Status::NoMatchedMessage,
        }
    }
}

/// What an answer says beside its body.
#[derive(Clone, Copy, Debug)]
pub struct Pulled {
    pub status: Status,
    /// Where to pull on.
    pub next: u64,
    /// Of the queue.
    pub first: u64,
    pub end: u64,
}

impl Pulled {
    #[must_use]
    pub fn code(&self, pull: &Pull) -> ResponseCode {
        self.status.code(pull.offset)
    }

    #[must_use]
    pub fn remark(&self) -> &'static str {
        self.status.name()
    }

    pub fn encode(&self, pull: &Pull, out: &mut ExtWriter<'_>) {
        let response = PullResponse {
            suggest_which_broker_id: 0,
            next_begin_offset: self.next as i64,
            min_offset: self.first as i64,
            max_offset: self.end as i64,
            offset_delta: None,
            topic_sys_flag: Some(pull.topic_sys_flag),
            group_sys_flag: Some(pull.group_sys_flag),
            forbidden_type: None,
        };
        response.encode(out);
    }
}

/// The fields of a refusal.
pub fn encode_pull_error(error: &PullError<'_>, out: &mut ExtWriter<'_>) {
    if let PullError::Field(_) | PullError::Read(_) = error {
        return;
    }
    out.present();
    if let Some(kind) = forbidden_type(error) {
        out.put_int("forbiddenType", kind);
    }
}

/// What the checks leave to be done.
struct Checked {
    pull: Pull,
    /// How long it may be held, if it may.
    hold_ms: Option<u64>,
}

impl State {
    pub(super) fn on_pull(&mut self, fx: &mut Effects<'_>, asker: Asker, frame: &Frame<'_>) {
        match self.check_pull(asker, frame) {
            Ok(Checked { pull, hold_ms }) => self.serve_pull(fx, pull, hold_ms),
            Err(error) => refuse(&mut self.replies, fx, &asker, &error),
        }
    }

    /// The table of 4.2, from top to bottom; then the commit of 4.7.
    fn check_pull<'f>(
        &mut self,
        asker: Asker,
        frame: &Frame<'f>,
    ) -> Result<Checked, PullError<'f>> {
        let request = PullRequest::decode(&frame.header)?;
        let (group, topic) = (request.consumer_group, request.topic);
        if self.config.broker_permission & PERM_READ == 0 {
            return Err(PullError::BrokerNotReadable);
        }
        let lite = frame.header.request_code() == RequestCode::LITE_PULL_MESSAGE;
        if lite && !self.config.lite_pull {
            return Err(PullError::LiteDisabled);
        }
        let settings = self.groups.get_or_create(group);
        let settings = settings.ok_or(PullError::NoGroup { group })?;
        if !settings.consume_enable {
            return Err(PullError::GroupDisabled { group });
        }
        let entry = self.topics.get(topic).ok_or(PullError::NoTopic { topic })?;
        if !entry.is_readable() {
            return Err(PullError::TopicNotReadable { topic });
        }
        let read = entry.read_queues;
        let queue_id = request.queue_id;
        let within = u32::try_from(queue_id).is_ok_and(|id| id < read);
        let key = entry
            .queue(queue_id)
            .filter(|key| within && self.queues.owns(*key));
        let key = key.ok_or(PullError::QueueId {
            queue_id,
            topic,
            read,
        })?;
        let topic_sys_flag = entry.sys_flag as i32;
        let filter = self.filter_of(&request, settings)?;
        if request.sys_flag & COMMIT != 0 {
            let offset = request.commit_offset;
            let committed = self.offsets.commit(topic, group, queue_id, offset);
            committed.map_err(|TooManyOffsets| PullError::TooManyOffsets)?;
        }
        let pull = Pull {
            asker,
            key,
            offset: request.queue_offset,
            wanted: request.max_msg_nums,
            filter,
            topic_sys_flag,
            group_sys_flag: settings.sys_flag,
        };
        let holds = request.sys_flag & SUSPEND != 0;
        let hold_ms = holds.then(|| self.config.hold_ms(request.suspend_timeout_millis));
        Ok(Checked { pull, hold_ms })
    }

    /// Checks 8 and 9.
    fn filter_of<'f>(
        &self,
        request: &PullRequest<'f>,
        settings: Settings,
    ) -> Result<TagFilter, PullError<'f>> {
        if request.sys_flag & SUBSCRIPTION != 0 {
            let kind = request.expression_type.unwrap_or("");
            if !is_tag_type(kind) {
                return Err(PullError::ExpressionType { kind });
            }
            let expression = request.subscription.unwrap_or("");
            return TagFilter::parse(expression).ok_or(PullError::Expression);
        }
        let group = request.consumer_group;
        let online = self.groups.online(group).ok_or(PullError::GroupOffline)?;
        if online.broadcasting && !settings.broadcast_enable {
            return Err(PullError::BroadcastForbidden { group });
        }
        let subscribed = online.subscription(request.topic);
        let subscribed = subscribed.ok_or(PullError::NotSubscribed)?;
        if subscribed.version < request.sub_version {
            return Err(PullError::SubscriptionOld);
        }
        if !is_tag_type(&subscribed.expression_type) {
            return Err(PullError::ExpressionType { kind: "SQL92" });
        }
        Ok(subscribed.filter.clone())
    }

    /// Answers a pull, or holds it if it may be held for `hold_ms` and there is nothing yet.
    pub(super) fn serve_pull(&mut self, fx: &mut Effects<'_>, pull: Pull, hold_ms: Option<u64>) {
        let Some(queue) = self.queues.get(pull.key) else {
            refuse(&mut self.replies, fx, &pull.asker, &PullError::TopicGone);
            return;
        };
        let (first, end) = (queue.first, queue.next);
        let (status, next) = match queue.place(pull.offset) {
            Place::Empty => (Status::NoMessageInQueue, 0),
            Place::TooSmall => (Status::OffsetTooSmall, first),
            Place::AtEnd => (Status::OffsetOverflowOne, end),
            Place::Beyond => (Status::OffsetOverflowBadly, end),
            Place::Inside(offset) if offset < queue.window_start() => {
                self.starts.push(Start::ColdPull(pull));
                return;
            }
            Place::Inside(offset) => {
                let units = queue.units_from(offset).take(pull.scan_units(&self.config));
                let limits = self.scan_limits();
                self.ranges.clear();
                let filter = &pull.filter;
                let scanned = scan(units, pull.wanted, filter, &limits, &mut self.ranges);
                (Status::of(scanned), offset + scanned.units)
            }
        };
        let pulled = Pulled {
            status,
            next,
            first,
            end,
        };
        if let Some(hold_ms) = hold_ms
            && pulled.code(&pull) == ResponseCode::PULL_NOT_FOUND
        {
            self.hold(fx, pull, hold_ms);
            return;
        }
        if status != Status::Found {
            self.ranges.clear();
        }
        let (code, remark) = (pulled.code(&pull), Some(pulled.remark()));
        let (asker, ranges) = (&pull.asker, &self.ranges[..]);
        let ext = |out: &mut ExtWriter<'_>| pulled.encode(&pull, out);
        self.replies.answer(fx, asker, code, remark, ranges, ext);
    }

    fn hold(&mut self, fx: &mut Effects<'_>, pull: Pull, hold_ms: u64) {
        if self.holds.check_room(pull.asker.conn).is_err() {
            refuse(&mut self.replies, fx, &pull.asker, &PullError::TooManyHeld);
            return;
        }
        let until = self.now.mono.plus_millis(hold_ms);
        self.holds.hold(pull, until);
    }

    /// Answers woken pulls and those whose time has come, as many as one call may.
    pub(super) fn serve_held(&mut self, fx: &mut Effects<'_>) {
        if self
            .held_wait_for
            .is_some_and(|shard| self.replies.is_backed_up(shard))
        {
            return;
        }
        self.held_wait_for = None;
        for _ in 0..WAKES_PER_CALL {
            let pull = match self.holds.take_ready() {
                Some(pull) => pull,
                None => match self.holds.take_expired(self.now.mono) {
                    Some(pull) => pull,
                    None => return,
                },
            };
            let shard = pull.asker.shard;
            self.serve_pull(fx, pull, None);
            if self.replies.is_backed_up(shard) {
                self.held_wait_for = Some(shard);
                return;
            }
        }
    }

    #[must_use]
    pub(super) fn scan_limits(&self) -> ScanLimits {
        ScanLimits {
            first: self.marks.first,
            visible: self.marks.visible,
            memory_bytes: self.config.memory_bytes(),
            hot: self.config.hot,
            cold: self.config.cold,
        }
    }
}

/// Answers a pull with why it brings nothing.
pub fn refuse(replies: &mut Replies, fx: &mut Effects<'_>, asker: &Asker, error: &PullError<'_>) {
    let remark = error.to_string();
    replies.answer(fx, asker, pull_code(error), Some(&remark), &[], |out| {
        encode_pull_error(error, out);
    });
}
