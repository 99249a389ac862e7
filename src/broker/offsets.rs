//! Consumer offsets of the queues that this shard owns: 14 and 15 (broker-requests 10).
//!
//! They live with the queue's owner. Control gathers what changed (`FetchOffsets`) and keeps the
//! file; an offset counts as told once it is in the edge.

use std::collections::VecDeque;
use std::rc::Rc;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use thiserror::Error;

use super::errors::{OffsetError, offset_code};
use super::news;
use super::query::Start;
use super::reply::{Asker, Replies};
use super::shard::State;
use crate::ids::QueueKey;
use crate::limits::{ANSWER_PIECE_BYTES, OFFSETS_MAX};
use crate::role::{CONTROL, Effects, Letter};
use crate::wire::headers::{
    HeaderError, OffsetResponse, QueryConsumerOffsetRequest, UpdateConsumerOffsetRequest,
};
use crate::wire::{ExtWriter, Frame, ResponseCode};

/// What one entry takes in a piece at most beside its names: brackets, commas, quotes, two numbers.
const ENTRY_BYTES: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("this shard keeps no more consumer offsets")]
pub struct TooManyOffsets;

#[derive(Clone, Copy, Debug)]
struct Entry {
    queue_id: i32,
    offset: i64,
    changed: bool,
}

#[derive(Debug)]
struct OfTopic {
    name: Rc<str>,
    groups: HashMap<Rc<str>, OfGroup, FixedState>,
}

#[derive(Debug)]
struct OfGroup {
    name: Rc<str>,
    /// By queue id.
    entries: Vec<Entry>,
}

/// `topic -> group -> queue id -> offset`.
#[derive(Debug)]
pub struct Offsets {
    topics: HashMap<Rc<str>, OfTopic, FixedState>,
    hasher: FixedState,
    len: usize,
    /// Each entry that changed, once.
    changed: VecDeque<(Rc<str>, Rc<str>, i32)>,
    /// Rounds that control has asked for and that are not told to their end.
    rounds: u32,
}

impl Offsets {
    #[must_use]
    pub fn new(hash_seed: u64) -> Offsets {
        let hasher = FixedState::with_seed(hash_seed);
        Offsets {
            topics: HashMap::with_hasher(hasher.clone()),
            hasher,
            len: 0,
            changed: VecDeque::new(),
            rounds: 0,
        }
    }

    #[must_use]
    pub fn get(&self, topic: &str, group: &str, queue_id: i32) -> Option<i64> {
        let entries = &self.topics.get(topic)?.groups.get(group)?.entries;
        let at = find(entries, queue_id).ok()?;
        Some(entries[at].offset)
    }

    /// Takes over what the file held.
    pub fn load(&mut self, topic: &str, group: &str, queue_id: i32, offset: i64) {
        // Beyond the limit the oldest knowledge is dropped; clients commit again.
        let _ = self.set(topic, group, queue_id, offset, false);
    }

    /// Stores an offset, which may be lower than the one before, or negative. Allocates nothing if
    /// there was one.
    ///
    /// # Errors
    /// There are [`OFFSETS_MAX`] already.
    pub fn commit(
        &mut self,
        topic: &str,
        group: &str,
        queue_id: i32,
        offset: i64,
    ) -> Result<(), TooManyOffsets> {
        self.set(topic, group, queue_id, offset, true)
    }

    fn set(
        &mut self,
        topic: &str,
        group: &str,
        queue_id: i32,
        offset: i64,
        changed: bool,
    ) -> Result<(), TooManyOffsets> {
        if self.len >= OFFSETS_MAX && self.get(topic, group, queue_id).is_none() {
            return Err(TooManyOffsets);
        }
        if !self.topics.contains_key(topic) {
            self.add_topic(topic);
        }
        let of_topic = self.topics.get_mut(topic).expect("it was added if missing");
        if !of_topic.groups.contains_key(group) {
            of_topic.add_group(group);
        }
        let of_group = of_topic.groups.get_mut(group).expect("as above");
        let at = find(&of_group.entries, queue_id).unwrap_or_else(|at| {
            self.len += 1;
            let entry = Entry {
                queue_id,
                offset,
                changed: false,
            };
            of_group.entries.insert(at, entry);
            at
        });
        let entry = &mut of_group.entries[at];
        entry.offset = offset;
        if changed && !entry.changed {
            entry.changed = true;
            let names = (of_topic.name.clone(), of_group.name.clone());
            self.changed.push_back((names.0, names.1, queue_id));
        }
        Ok(())
    }

    fn add_topic(&mut self, topic: &str) {
        let name: Rc<str> = topic.into();
        let groups = HashMap::with_hasher(self.hasher.clone());
        let of_topic = OfTopic {
            name: name.clone(),
            groups,
        };
        self.topics.insert(name, of_topic);
    }

    /// Forgets the offsets of a topic, of a group, or of one group in one topic.
    pub fn remove(&mut self, topic: Option<&str>, group: Option<&str>) {
        let is = |wanted: Option<&str>, name: &str| wanted.is_none_or(|wanted| wanted == name);
        for (name, of_topic) in &mut self.topics {
            if is(topic, name) {
                of_topic.groups.retain(|name, _| !is(group, name));
            }
        }
        self.topics
            .retain(|_, of_topic| !of_topic.groups.is_empty());
        let groups = self.topics.values().flat_map(|t| t.groups.values());
        self.len = groups.map(|group| group.entries.len()).sum();
    }

    /// Control asks for what changed.
    pub fn begin_round(&mut self) {
        self.rounds += 1;
    }

    #[must_use]
    pub fn is_told(&self) -> bool {
        self.rounds == 0
    }

    /// Tells control what changed, piece by piece, until the edge is full or all rounds are told.
    pub fn tell(&mut self, fx: &mut Effects<'_>) {
        while self.rounds > 0 {
            let (piece, entries) = self.piece();
            let last = entries == self.changed.len();
            let json = serde_json::to_vec(&piece).expect("names and numbers are JSON");
            let told = fx.tell(CONTROL, json.len(), |lane| {
                lane.copy_from_slice(&json);
                Letter::Offsets { last }
            });
            if told.is_err() {
                return;
            }
            for (topic, group, queue_id) in self.changed.drain(..entries) {
                if let Some(entry) = entry_mut(&mut self.topics, &topic, &group, queue_id) {
                    entry.changed = false;
                }
            }
            self.rounds -= u32::from(last);
        }
    }

    /// The next piece, and how many changed entries it covers.
    fn piece(&self) -> (news::Offsets, usize) {
        let (mut piece, mut bytes, mut entries) = (news::Offsets::default(), 0, 0);
        for (topic, group, queue_id) in &self.changed {
            bytes += topic.len() + group.len() + ENTRY_BYTES;
            if bytes > ANSWER_PIECE_BYTES {
                break;
            }
            entries += 1;
            // What was removed since has nothing to tell.
            if let Some(offset) = self.get(topic, group, *queue_id) {
                let names = (topic.to_string(), group.to_string());
                piece.0.push((names.0, names.1, *queue_id, offset));
            }
        }
        (piece, entries)
    }
}

impl OfTopic {
    fn add_group(&mut self, group: &str) {
        let name: Rc<str> = group.into();
        let of_group = OfGroup {
            name: name.clone(),
            entries: Vec::new(),
        };
        self.groups.insert(name, of_group);
    }
}

fn find(entries: &[Entry], queue_id: i32) -> Result<usize, usize> {
    entries.binary_search_by_key(&queue_id, |entry| entry.queue_id)
}

fn entry_mut<'a>(
    topics: &'a mut HashMap<Rc<str>, OfTopic, FixedState>,
    topic: &str,
    group: &str,
    queue_id: i32,
) -> Option<&'a mut Entry> {
    let entries = &mut topics.get_mut(topic)?.groups.get_mut(group)?.entries;
    let at = find(entries, queue_id).ok()?;
    entries.get_mut(at)
}

impl State {
    /// 14.
    pub(super) fn on_query_offset(
        &mut self,
        fx: &mut Effects<'_>,
        asker: Asker,
        frame: &Frame<'_>,
    ) {
        match self.query_offset(asker, frame) {
            Ok(Some(offset)) => answer_offset(&mut self.replies, fx, &asker, offset),
            Ok(None) => {}
            Err(error) => refuse(&mut self.replies, fx, &asker, &error),
        }
    }

    /// `None`: a flow looks whether the queue is young.
    fn query_offset<'f>(
        &mut self,
        asker: Asker,
        frame: &Frame<'f>,
    ) -> Result<Option<i64>, OffsetError<'f>> {
        let request = QueryConsumerOffsetRequest::decode(&frame.header)?;
        let (topic, queue_id) = (request.topic, request.queue_id);
        let stored = self.offsets.get(topic, request.consumer_group, queue_id);
        // A negative one counts as none, as in Java.
        if let Some(offset) = stored.filter(|offset| *offset >= 0) {
            return Ok(Some(offset));
        }
        if request.set_zero_if_not_found == Some(false) {
            return Err(OffsetError::NotFoundNotZero);
        }
        let key = self
            .topics
            .get(topic)
            .and_then(|entry| entry.queue(queue_id));
        let key = key.filter(|key| self.queues.owns(*key));
        match key.and_then(|key| self.queues.get(key)) {
            Some(queue) if queue.first == 0 && queue.next > 0 => {
                let key: QueueKey = key.expect("its queue was found");
                self.starts.push(Start::YoungQueue { asker, key });
                Ok(None)
            }
            Some(_) | None => Err(OffsetError::NotFound),
        }
    }

    /// 15.
    pub(super) fn on_update_offset(
        &mut self,
        fx: &mut Effects<'_>,
        asker: Asker,
        frame: &Frame<'_>,
    ) {
        match self.update_offset(frame) {
            Ok(()) => {
                let code = ResponseCode::SUCCESS;
                self.replies
                    .answer(fx, &asker, code, None, &[], |out| out.present());
            }
            Err(error) => refuse(&mut self.replies, fx, &asker, &error),
        }
    }

    fn update_offset<'f>(&mut self, frame: &Frame<'f>) -> Result<(), OffsetError<'f>> {
        let header = &frame.header;
        let decoded = UpdateConsumerOffsetRequest::decode(header);
        // Group and topic are judged before a missing offset is.
        let text = |field| header.ext(field).ok_or(HeaderError::Missing { field });
        let (group, topic) = (text("consumerGroup")?, text("topic")?);
        self.groups
            .get(group)
            .ok_or(OffsetError::NoGroup { group })?;
        self.topics
            .get(topic)
            .ok_or(OffsetError::NoTopic { topic })?;
        let request = decoded.map_err(|error| match error.field() {
            "commitOffset" => OffsetError::NoOffset { topic },
            _ => OffsetError::Field(error),
        })?;
        let (queue_id, offset) = (request.queue_id, request.commit_offset);
        let committed = self.offsets.commit(topic, group, queue_id, offset);
        committed.map_err(|TooManyOffsets| OffsetError::TooManyOffsets)
    }
}

/// Answers 14, 29, 30 and 31.
pub fn answer_offset(replies: &mut Replies, fx: &mut Effects<'_>, asker: &Asker, offset: i64) {
    let response = OffsetResponse { offset };
    let code = ResponseCode::SUCCESS;
    replies.answer(fx, asker, code, None, &[], |out| response.encode(out));
}

/// Answers a question about offsets with why there is no number.
pub fn refuse(replies: &mut Replies, fx: &mut Effects<'_>, asker: &Asker, error: &OffsetError<'_>) {
    let remark = error.to_string();
    replies.answer(fx, asker, offset_code(error), Some(&remark), &[], |out| {
        encode_offset_error(error, out);
    });
}

/// The fields of such a refusal.
pub fn encode_offset_error(error: &OffsetError<'_>, out: &mut ExtWriter<'_>) {
    match error {
        OffsetError::Field(_) | OffsetError::Read(_) => {}
        OffsetError::NoGroup { .. }
        | OffsetError::NoTopic { .. }
        | OffsetError::NoOffset { .. }
        | OffsetError::NotFoundNotZero
        | OffsetError::NotFound
        | OffsetError::TooManyOffsets
        | OffsetError::TooMany(_) => out.present(),
    }
}
