//! Sending messages: 10, 310 and 320, batches under any of them (broker-requests 1).
//!
//! ```text
//!  frame -> checks -> record encoded into the edge to the log -> Appended -> answer
//!              |                 |
//!              |                 +- no room: a copy of the frame waits, in order, up to
//!              |                    waitTimeMillsInSendQueue; near the bound connections pause
//!              +- topic unknown: waits for control to make it, later sends to it behind
//! ```
//!
//! Nothing here allocates once the slots of the appends under way have grown.

use std::borrow::Cow;
use std::net::SocketAddr;

use shards::role::Full;
use smallvec::SmallVec;

use super::errors::{Feature, SendError, send_code, send_error_has_fields};
use super::parked::Slot;
use super::reply::{Asker, Replies};
use super::shard::{ShardConfig, State};
use super::topics::{self, DEAD_LETTER_PREFIX, RETRY_PREFIX, TopicEntry};
use super::unique::Random;
use crate::ids::QueueKey;
use crate::limits::{RECORD_BYTES_MAX, TOPIC_BYTES_MAX};
use crate::role::{AppendRefused, Effects, LOG, Letter, Stored};
use crate::wire::batch::{Batch, BatchError};
use crate::wire::headers::{SendRequest, SendResponse};
use crate::wire::message_id::encode_offset_id;
use crate::wire::properties::{Properties, append_without, names};
use crate::wire::record::{PropertiesSpec, RecordSpec, sys_flag};
use crate::wire::{ExtWriter, Frame, ResponseCode};

const PERM_WRITE: u32 = 2;
/// Clients from 3.4.9 on say how often a message may be retried (remoting 6).
const VERSION_WITH_MAX_RECONSUME: i32 = 121;
const TRUE: &[u8] = b"true";

type Pairs<'a> = SmallVec<[(&'a str, &'a [u8]); 5]>;

/// Why a send was not appended.
pub(super) enum Unsent<'f> {
    Refused(SendError<'f>),
    /// The edge to the log is full, or there is no credit, or others wait already.
    NoRoom,
    NoTopic(Cow<'f, str>),
}

impl<'f, E: Into<SendError<'f>>> From<E> for Unsent<'f> {
    fn from(error: E) -> Self {
        Unsent::Refused(error.into())
    }
}

/// Whether a send comes from its connection, or from where it waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    First,
    /// It is the oldest of those that wait.
    Again,
    /// As `Again`, and its topic was just made or refused.
    TopicAnswered,
}

/// What a send's properties say to the broker; of several with one name the last counts.
#[derive(Default)]
struct Seen<'f> {
    unique_key: Option<&'f [u8]>,
    delay: Option<&'f [u8]>,
    wait: Option<&'f [u8]>,
    transaction: Option<&'f [u8]>,
    keys: bool,
    timer: bool,
    inner: bool,
    pop_ck: bool,
}

impl<'f> Seen<'f> {
    fn read(properties: Properties<'f>) -> Seen<'f> {
        let mut seen = Seen::default();
        for (name, value) in properties.iter() {
            match std::str::from_utf8(name) {
                Ok(names::UNIQUE_KEY) => seen.unique_key = Some(value),
                Ok(names::DELAY) => seen.delay = Some(value),
                Ok(names::WAIT) => seen.wait = Some(value),
                Ok(names::TRANSACTION_PREPARED) => seen.transaction = Some(value),
                Ok(names::KEYS) => seen.keys = true,
                Ok(names::TIMER_DELAY_SEC | names::TIMER_DELAY_MS | names::TIMER_DELIVER_MS) => {
                    seen.timer = true;
                }
                Ok(names::INNER_NUM) => seen.inner = true,
                Ok(names::POP_CK) => seen.pop_ck = true,
                Ok(_) | Err(_) => {}
            }
        }
        seen
    }

    /// Whether the answer waits for the flush (1.6).
    fn waits(&self) -> bool {
        self.wait.is_none_or(|wait| wait.eq_ignore_ascii_case(TRUE))
    }

    /// Refuses what is not built, and what no broker takes.
    fn check(&self) -> Result<(), SendError<'f>> {
        let text = self.delay.map(std::str::from_utf8);
        let level = text.map(|text| text.ok().and_then(|text| text.parse::<i32>().ok()));
        match level {
            None | Some(Some(..=0)) => {}
            Some(Some(1..)) => return Err(SendError::NotBuilt(Feature::DelayLevels)),
            Some(None) => return Err(SendError::DelayLevel),
        }
        if self.timer {
            return Err(SendError::NotBuilt(Feature::Timer));
        }
        if self
            .transaction
            .is_some_and(|text| text.eq_ignore_ascii_case(TRUE))
        {
            return Err(SendError::NotBuilt(Feature::Transactions));
        }
        if self.inner {
            return Err(SendError::InnerBatch);
        }
        Ok(())
    }
}

/// Where a send goes.
struct Target<'f> {
    topic: Cow<'f, str>,
    key: QueueKey,
    queue_id: i32,
    multi_tag: bool,
    dead_letter: bool,
}

/// A send that passed its checks.
struct Accepted<'a, 'f> {
    request: &'a SendRequest<'f>,
    body: &'f [u8],
    seen: &'a Seen<'f>,
    target: &'a Target<'f>,
    asker: Asker,
    peer: SocketAddr,
}

impl State {
    /// Appends a send, or says why not. Nothing has happened then.
    pub(super) fn try_send<'f>(
        &mut self,
        fx: &mut Effects<'_>,
        asker: Asker,
        peer: SocketAddr,
        frame: &Frame<'f>,
        turn: Turn,
    ) -> Result<(), Unsent<'f>> {
        if self.stopping {
            return Err(SendError::Stopping.into());
        }
        let request = SendRequest::decode(&frame.header)?;
        let accept_from = self.config.accept_sends_from;
        if self.now.wall < accept_from {
            return Err(SendError::NotYetAccepting { until: accept_from }.into());
        }
        let seen = Seen::read(Properties(request.properties.as_bytes()));
        let target = self.target(&request, frame.header.version, &seen, turn)?;
        check_content(&self.config, &request, frame.body, &seen)?;
        if self.marks.poisoned {
            return Err(SendError::Refused(AppendRefused::Poisoned).into());
        }
        if self.marks.disk_full {
            return Err(SendError::DiskFull.into());
        }
        if (turn == Turn::First && self.sends.has_parked()) || !self.sends.has_credit() {
            return Err(Unsent::NoRoom);
        }
        let accepted = Accepted {
            request: &request,
            body: frame.body,
            seen: &seen,
            target: &target,
            asker,
            peer,
        };
        if request.batch {
            self.append_batch(fx, &accepted)
        } else {
            self.append_one(fx, &accepted)
        }
    }

    /// The topic and queue that a send goes to (1.3, 1.5).
    fn target<'f>(
        &mut self,
        request: &SendRequest<'f>,
        version: i32,
        seen: &Seen<'f>,
        turn: Turn,
    ) -> Result<Target<'f>, Unsent<'f>> {
        let topic = request.topic;
        let entry = self.topics.get(topic);
        let writable = self.config.broker_permission & PERM_WRITE != 0;
        if !writable && entry.is_some_and(|entry| entry.order) {
            return Err(SendError::BrokerNotWritable.into());
        }
        topics::check_name(topic).map_err(SendError::Name)?;
        if !topics::is_for_clients(topic) {
            return Err(SendError::SystemTopic { topic }.into());
        }
        let Some(entry) = entry.filter(|_| !self.is_awaited(topic, turn)) else {
            return Err(self.unknown_topic(request, turn));
        };
        let (key, queue_id) = pick_queue(entry, request.queue_id, &mut self.random)?;
        let multi_tag = entry.multi_tag;
        if entry.compaction && !seen.keys {
            return Err(SendError::NoKeys.into());
        }
        if entry.inner_batches {
            return Err(SendError::NotBuilt(Feature::InnerBatches).into());
        }
        let target = Target {
            topic: Cow::Borrowed(topic),
            key,
            queue_id,
            multi_tag,
            dead_letter: false,
        };
        match topic.strip_prefix(RETRY_PREFIX) {
            Some(_) if request.batch => Err(SendError::BatchToRetry { topic }.into()),
            Some(group) => self.retry_target(request, version, group, target, turn),
            None if topic.len() > TOPIC_BYTES_MAX => {
                let bytes = topic.len();
                Err(SendError::TopicTooLong { bytes }.into())
            }
            None => Ok(target),
        }
    }

    /// A send to a retry topic that was retried too often goes to the dead-letter topic (1.5).
    fn retry_target<'f>(
        &mut self,
        request: &SendRequest<'f>,
        version: i32,
        group: &'f str,
        target: Target<'f>,
        turn: Turn,
    ) -> Result<Target<'f>, Unsent<'f>> {
        let settings = self.groups.get_or_create(group);
        let settings = settings.ok_or(SendError::NoGroup { group })?;
        let own = request.max_reconsume_times;
        let own = own.filter(|_| version >= VERSION_WITH_MAX_RECONSUME);
        if request.reconsume_times <= own.unwrap_or(settings.retry_max_times) {
            return Ok(target);
        }
        let topic = format!("{DEAD_LETTER_PREFIX}{group}");
        match self.topics.get(&topic).and_then(|entry| entry.queue(0)) {
            Some(key) => Ok(Target {
                topic: Cow::Owned(topic),
                key,
                queue_id: 0,
                multi_tag: false,
                dead_letter: true,
            }),
            None if turn == Turn::TopicAnswered => Err(SendError::NoDeadLetters { group }.into()),
            None => Err(Unsent::NoTopic(Cow::Owned(topic))),
        }
    }

    /// Others wait for this topic, so that this send must wait behind them.
    fn is_awaited(&self, topic: &str, turn: Turn) -> bool {
        turn == Turn::First && self.sends.is_awaited(topic)
    }

    fn unknown_topic<'f>(&self, request: &SendRequest<'f>, turn: Turn) -> Unsent<'f> {
        let topic = request.topic;
        let template = self.topics.get(request.default_topic);
        let hopeless = template.is_some_and(|template| !template.is_template())
            && !topic.starts_with(RETRY_PREFIX);
        if turn == Turn::TopicAnswered || (hopeless && !self.is_awaited(topic, turn)) {
            return SendError::NoTopic { topic }.into();
        }
        Unsent::NoTopic(Cow::Borrowed(topic))
    }

    fn append_one<'f>(
        &mut self,
        fx: &mut Effects<'_>,
        send: &Accepted<'_, 'f>,
    ) -> Result<(), Unsent<'f>> {
        let config = self.config.clone();
        let made;
        let mut pairs = Pairs::new();
        let transaction = match send.seen.unique_key {
            Some(key) => key,
            None => {
                made = self.make_unique_key();
                pairs.push((names::UNIQUE_KEY, made.as_str().as_bytes()));
                made.as_str().as_bytes()
            }
        };
        push_pairs(&mut pairs, &config);
        if send.target.dead_letter {
            pairs.push((names::DELAY, b"-1"));
        }
        let letter = append_letter(self.sends.next_slot(), send, 1);
        let texts = [stored_text(&mut self.text, send)];
        let properties = PropertiesSpec {
            texts: &texts,
            pairs: &pairs,
        };
        let spec = record(&config, send, send.request.flag, send.body, properties);
        let len = spec.encoded_len().map_err(SendError::Encode)?;
        let told = fx.tell(LOG, len, |lane| {
            spec.encode(lane);
            letter
        });
        told.map_err(|Full| Unsent::NoRoom)?;
        self.sends
            .begin(send.asker, send.target.queue_id, transaction, &[len as u32]);
        Ok(())
    }

    /// Each item becomes a message of its own; the request's properties are added to all (1.8).
    fn append_batch<'f>(
        &mut self,
        fx: &mut Effects<'_>,
        send: &Accepted<'_, 'f>,
    ) -> Result<(), Unsent<'f>> {
        let config = self.config.clone();
        let batch = Batch::check(send.body).map_err(SendError::Batch)?;
        let mut pairs = Pairs::new();
        push_pairs(&mut pairs, &config);
        let letter = append_letter(self.sends.next_slot(), send, batch.count());
        let text = stored_text(&mut self.text, send);
        self.lens.clear();
        let mut whole = 0;
        for item in batch.iter() {
            if item.properties.has_nul() {
                return Err(SendError::Nul.into());
            }
            let texts = [item.properties.0, text];
            let properties = PropertiesSpec {
                texts: &texts,
                pairs: &pairs,
            };
            let spec = record(&config, send, item.flag, item.body, properties);
            let len = spec.encoded_len().map_err(SendError::Encode)?;
            whole += len;
            if whole > RECORD_BYTES_MAX {
                let max = RECORD_BYTES_MAX;
                return Err(SendError::BatchRecordsTooLong { max }.into());
            }
            self.lens.push(len as u32);
        }
        let lens = &self.lens;
        let told = fx.tell(LOG, whole, |mut lane| {
            for (item, len) in batch.iter().zip(lens) {
                let (place, rest) = lane.split_at_mut(*len as usize);
                let texts = [item.properties.0, text];
                let properties = PropertiesSpec {
                    texts: &texts,
                    pairs: &pairs,
                };
                record(&config, send, item.flag, item.body, properties).encode(place);
                lane = rest;
            }
            letter
        });
        told.map_err(|Full| Unsent::NoRoom)?;
        let transaction = send.seen.unique_key.unwrap_or_default();
        self.sends
            .begin(send.asker, send.target.queue_id, transaction, lens);
        Ok(())
    }

    /// The log's answer to an append.
    pub(super) fn on_appended(
        &mut self,
        fx: &mut Effects<'_>,
        ask: u64,
        result: Result<Stored, AppendRefused>,
    ) {
        let config = self.config.clone();
        let slot = self.sends.slot(ask);
        match result {
            Ok(stored) => {
                push_ids(&mut self.ids, &config, stored, &slot.lens);
                answer_stored(&config, &mut self.replies, fx, slot, stored, &self.ids);
            }
            Err(refused) => {
                let error = SendError::Refused(refused);
                refuse(&config, &mut self.replies, fx, &slot.asker, &error);
            }
        }
        self.sends.end(ask);
    }
}

/// Checks of what is sent, not of where it goes.
fn check_content<'f>(
    config: &ShardConfig,
    request: &SendRequest<'f>,
    body: &[u8],
    seen: &Seen<'f>,
) -> Result<(), SendError<'f>> {
    let (bytes, max) = (body.len(), config.body_bytes_max);
    if request.batch {
        if body.is_empty() {
            return Err(SendError::Batch(BatchError::Empty));
        }
        if bytes > max {
            return Err(SendError::BatchTooLong { bytes, max });
        }
    } else {
        seen.check()?;
        if body.is_empty() {
            return Err(SendError::NoBody);
        }
        if bytes > max {
            return Err(SendError::BodyTooLong { bytes, max });
        }
    }
    if request.properties.contains('\0') {
        return Err(SendError::Nul);
    }
    if request.sys_flag & sys_flag::INNER_BATCH != 0 {
        return Err(SendError::InnerBatch);
    }
    // Such records are in no queue; only transactions make them.
    let kind = request.sys_flag & sys_flag::TRANSACTION;
    if kind == sys_flag::TRANSACTION_PREPARED || kind == sys_flag::TRANSACTION_ROLLBACK {
        return Err(SendError::NotBuilt(Feature::Transactions));
    }
    Ok(())
}

/// The queue that a send names, or any for a negative number.
fn pick_queue<'f>(
    entry: &TopicEntry,
    queue_id: i32,
    random: &mut Random,
) -> Result<(QueueKey, i32), SendError<'f>> {
    let (read, write) = (entry.read_queues, entry.write_queues);
    let picked = match u32::try_from(queue_id) {
        Ok(id) => (id < read.max(write)).then_some(queue_id),
        Err(_) => random.below(write).map(|id| id as i32),
    };
    let key = picked.and_then(|id| Some((entry.queue(id)?, id)));
    key.ok_or(SendError::QueueId {
        queue_id,
        read,
        write,
    })
}

/// What the broker adds to every message (1.6).
fn push_pairs<'a>(pairs: &mut Pairs<'a>, config: &'a ShardConfig) {
    let trace_on: &[u8] = if config.trace_on { b"true" } else { b"false" };
    pairs.push((names::MSG_REGION, config.region.as_bytes()));
    pairs.push((names::TRACE_ON, trace_on));
    pairs.push((names::CLUSTER, config.cluster.as_bytes()));
}

/// The request's properties as they are stored: without POP_CK.
fn stored_text<'a>(text: &'a mut Vec<u8>, send: &'a Accepted<'_, '_>) -> &'a [u8] {
    let came = send.request.properties.as_bytes();
    if !send.seen.pop_ck {
        return came;
    }
    text.clear();
    append_without(text, came, names::POP_CK);
    text
}

fn append_letter(slot: u32, send: &Accepted<'_, '_>, count: u32) -> Letter {
    Letter::Append {
        ask: u64::from(slot),
        queue: send.target.key,
        count,
        wait: send.seen.waits(),
    }
}

fn record<'a>(
    config: &ShardConfig,
    send: &'a Accepted<'_, '_>,
    flag: i32,
    body: &'a [u8],
    properties: PropertiesSpec<'a>,
) -> RecordSpec<'a> {
    let mut flags = send.request.sys_flag;
    if send.target.multi_tag {
        flags |= sys_flag::MULTI_TAGS;
    }
    RecordSpec {
        topic: &send.target.topic,
        queue_id: send.target.queue_id,
        flag,
        sys_flag: flags,
        born_timestamp: send.request.born_timestamp,
        born_host: send.peer,
        store_host: config.store_host,
        reconsume_times: send.request.reconsume_times,
        prepared_transaction_offset: 0,
        body,
        properties,
    }
}

/// The ids of all records of an append, joined with commas.
fn push_ids(ids: &mut String, config: &ShardConfig, stored: Stored, lens: &[u32]) {
    ids.clear();
    let mut at = stored.log_offset.0;
    for len in lens {
        if !ids.is_empty() {
            ids.push(',');
        }
        ids.push_str(encode_offset_id(config.store_host, at).as_str());
        at += u64::from(*len);
    }
}

fn answer_stored(
    config: &ShardConfig,
    replies: &mut Replies,
    fx: &mut Effects<'_>,
    slot: &Slot,
    stored: Stored,
    ids: &str,
) {
    let transaction = std::str::from_utf8(&slot.transaction).ok();
    let response = SendResponse {
        msg_id: ids,
        queue_id: slot.queue_id,
        queue_offset: stored.queue_offset.0 as i64,
        transaction_id: transaction.filter(|text| !text.is_empty()),
        batch_uniq_id: None,
        recall_handle: None,
        msg_region: Some(&config.region),
        trace_on: Some(config.trace_on),
    };
    let (code, remark) = if stored.flush_timed_out {
        let remark = "stored, but its flush to disk has not ended in time (syncFlushTimeout)";
        (ResponseCode::FLUSH_DISK_TIMEOUT, Some(remark))
    } else {
        (ResponseCode::SUCCESS, None)
    };
    let ext = |out: &mut ExtWriter<'_>| response.encode(out);
    replies.answer(fx, &slot.asker, code, remark, &[], ext);
}

/// Answers a send with why nothing was stored.
pub fn refuse(
    config: &ShardConfig,
    replies: &mut Replies,
    fx: &mut Effects<'_>,
    asker: &Asker,
    error: &SendError<'_>,
) {
    if asker.oneway {
        return;
    }
    let remark = error.to_string();
    replies.answer(fx, asker, send_code(error), Some(&remark), &[], |out| {
        if send_error_has_fields(error) {
            out.put_bool(names::TRACE_ON, config.trace_on);
            out.put_str(names::MSG_REGION, &config.region);
        }
    });
}
