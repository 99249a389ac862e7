//! Requests that read in the middle of their decision: pulls from a queue's file, 29 and 32, the
//! "young queue" rule of 14, and the look-ups 12 and 33. Each is one flow.

use std::rc::Rc;

use shards::role::{ReadAt, ReadError};

use super::errors::{OffsetError, PullError, QueryError, offset_code, pull_code, query_code};
use super::news::KeyQuery;
use super::offsets::{answer_offset, encode_offset_error, refuse as refuse_offset};
use super::pull::{Pull, Pulled, Status, encode_pull_error};
use super::queue::{Unit, scan, units_of};
use super::reply::{Asker, push_ranges};
use super::shard::{ShardConfig, State};
use crate::flow::{Cx, TooMany};
use crate::ids::{LogOffset, LogRange, Millis, QueueKey, UNIT_BYTES};
use crate::limits::{
    FRAME_BYTES_MAX, PROPERTIES_BYTES_MAX, RECORD_BYTES_MAX, RETRY_TOPIC_BYTES_MAX,
};
use crate::role::{Effects, INDEX, Letter};
use crate::wire::headers::{
    OffsetResponse, QueryMessageRequest, QueryMessageResponse, QueueRequest, SearchOffsetRequest,
    TimestampResponse, ViewMessageRequest,
};
use crate::wire::record::{RECORD_BYTES_MIN, RecordHead};
use crate::wire::{ExtWriter, Frame, ResponseCode};

/// Room that an answer's head leaves for its body.
const BODY_BYTES_MAX: usize = FRAME_BYTES_MAX - 64 * 1024;

/// A flow to be started when the state is no longer borrowed.
#[derive(Debug)]
pub enum Start {
    ColdPull(Pull),
    YoungQueue {
        asker: Asker,
        key: QueueKey,
    },
    Search {
        asker: Asker,
        key: QueueKey,
        timestamp: i64,
        bound: Bound,
    },
    Earliest {
        asker: Asker,
        key: QueueKey,
    },
    View {
        asker: Asker,
        offset: i64,
    },
    Find {
        asker: Asker,
        query: KeyQuery,
    },
}

/// Which message of a time is meant (10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// The first that is not older.
    Lower,
    /// The last that is not newer.
    Upper,
}

pub async fn run(cx: Cx<State>, start: Start) {
    match start {
        Start::ColdPull(pull) => cold_pull(cx, pull).await,
        Start::YoungQueue { asker, key } => young_queue(cx, asker, key).await,
        Start::Search {
            asker,
            key,
            timestamp,
            bound,
        } => {
            let found = search(&cx, key, timestamp, bound).await;
            finish_offset(&cx, &asker, found.map_err(OffsetError::from));
        }
        Start::Earliest { asker, key } => {
            let found = earliest(&cx, key).await;
            finish_timestamp(&cx, &asker, found);
        }
        Start::View { asker, offset } => view(cx, asker, offset).await,
        Start::Find { asker, query } => find(cx, asker, query).await,
    }
}

/// Answers that no flow can be started now.
pub fn refuse_start(state: &mut State, fx: &mut Effects<'_>, start: &Start) {
    match start {
        Start::ColdPull(pull) => {
            let error = PullError::TooMany(TooMany);
            super::pull::refuse(&mut state.replies, fx, &pull.asker, &error);
        }
        Start::YoungQueue { asker, .. }
        | Start::Search { asker, .. }
        | Start::Earliest { asker, .. } => {
            let error = OffsetError::TooMany(TooMany);
            refuse_offset(&mut state.replies, fx, asker, &error);
        }
        Start::View { asker, .. } | Start::Find { asker, .. } => {
            let error = QueryError::TooMany(TooMany);
            let remark = error.to_string();
            let code = query_code(&error);
            state
                .replies
                .answer(fx, asker, code, Some(&remark), &[], |_| {});
        }
    }
}

impl State {
    /// 30 and 31: the end and the start of a queue; 0 for what is unknown.
    pub(super) fn on_queue_bound(
        &mut self,
        fx: &mut Effects<'_>,
        asker: Asker,
        frame: &Frame<'_>,
        bound: Bound,
    ) {
        let request = match QueueRequest::decode(&frame.header) {
            Ok(request) => request,
            Err(error) => {
                refuse_offset(&mut self.replies, fx, &asker, &OffsetError::Field(error));
                return;
            }
        };
        let key = self.owned(request.topic, request.queue_id);
        let queue = key.and_then(|key| self.queues.get(key));
        let offset = queue.map_or(0, |queue| match bound {
            Bound::Lower => queue.first,
            Bound::Upper => queue.next,
        });
        answer_offset(&mut self.replies, fx, &asker, offset as i64);
    }

    /// 29.
    pub(super) fn on_search(&mut self, fx: &mut Effects<'_>, asker: Asker, frame: &Frame<'_>) {
        let request = match SearchOffsetRequest::decode(&frame.header) {
            Ok(request) => request,
            Err(error) => {
                refuse_offset(&mut self.replies, fx, &asker, &OffsetError::Field(error));
                return;
            }
        };
        let upper = |text: &str| text.eq_ignore_ascii_case("upper");
        let bound = if request.boundary_type.is_some_and(upper) {
            Bound::Upper
        } else {
            Bound::Lower
        };
        match self.owned(request.topic, request.queue_id) {
            Some(key) => self.starts.push(Start::Search {
                asker,
                key,
                timestamp: request.timestamp,
                bound,
            }),
            None => answer_offset(&mut self.replies, fx, &asker, 0),
        }
    }

    /// 32.
    pub(super) fn on_earliest(&mut self, fx: &mut Effects<'_>, asker: Asker, frame: &Frame<'_>) {
        let request = match QueueRequest::decode(&frame.header) {
            Ok(request) => request,
            Err(error) => {
                refuse_offset(&mut self.replies, fx, &asker, &OffsetError::Field(error));
                return;
            }
        };
        match self.owned(request.topic, request.queue_id) {
            Some(key) => self.starts.push(Start::Earliest { asker, key }),
            None => {
                let response = TimestampResponse { timestamp: -1 };
                let code = ResponseCode::SUCCESS;
                let ext = |out: &mut ExtWriter<'_>| response.encode(out);
                self.replies.answer(fx, &asker, code, None, &[], ext);
            }
        }
    }

    /// 33 and 12.
    pub(super) fn on_look_up(
        &mut self,
        fx: &mut Effects<'_>,
        asker: Asker,
        frame: &Frame<'_>,
        look_up: LookUp,
    ) {
        let start = match look_up {
            LookUp::ByOffset => {
                ViewMessageRequest::decode(&frame.header).map(|request| Start::View {
                    asker,
                    offset: request.offset,
                })
            }
            LookUp::ByKey => {
                QueryMessageRequest::decode(&frame.header).map(|request| Start::Find {
                    asker,
                    query: key_query(&request, &self.config),
                })
            }
        };
        match start {
            Ok(Start::Find { query, .. }) if !can_be_found(&query) => {
                let error = QueryError::NothingFound;
                let (code, remark) = (query_code(&error), error.to_string());
                let ext =
                    |out: &mut ExtWriter<'_>| found_response(Millis(0), LogOffset(0)).encode(out);
                self.replies
                    .answer(fx, &asker, code, Some(&remark), &[], ext);
            }
            Ok(start) => self.starts.push(start),
            Err(error) => {
                let error = QueryError::Field(error);
                let (code, remark) = (query_code(&error), error.to_string());
                self.replies
                    .answer(fx, &asker, code, Some(&remark), &[], |_| {});
            }
        }
    }

    /// The queue with this number if it is there and owned here.
    fn owned(&self, topic: &str, queue_id: i32) -> Option<QueueKey> {
        let key = self.topics.get(topic)?.queue(queue_id)?;
        self.queues.owns(key).then_some(key)
    }

    fn files(&self) -> Rc<ShardConfig> {
        self.config.clone()
    }
}

/// The two look-ups of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookUp {
    ByOffset,
    ByKey,
}

fn key_query(request: &QueryMessageRequest<'_>, config: &ShardConfig) -> KeyQuery {
    let max = if request.is_unique_key {
        config.unique_query_max
    } else {
        let wanted = u32::try_from(request.max_num).unwrap_or(0);
        wanted.min(config.query_max)
    };
    KeyQuery {
        topic: request.topic.to_string(),
        key: request.key.to_string(),
        max,
        begin_ms: request.begin_timestamp,
        end_ms: request.end_timestamp,
    }
}

/// Longer keys and topics are in no message, and would be in nobody's way but that of the edge.
fn can_be_found(query: &KeyQuery) -> bool {
    query.key.len() <= PROPERTIES_BYTES_MAX && query.topic.len() <= RETRY_TOPIC_BYTES_MAX
}

fn found_response(last_update: Millis, last_offset: LogOffset) -> QueryMessageResponse {
    QueryMessageResponse {
        index_last_update_timestamp: last_update.0 as i64,
        index_last_update_phyoffset: last_offset.0 as i64,
    }
}

/// Sends a flow's answer the way its asker came.
fn answer(
    cx: &Cx<State>,
    asker: &Asker,
    code: ResponseCode,
    remark: Option<&str>,
    ranges: Vec<LogRange>,
    ext: impl FnOnce(&mut ExtWriter<'_>),
) {
    if asker.oneway {
        return;
    }
    let mut bytes = Vec::with_capacity(512);
    asker.encode(&mut bytes, code, remark, &ranges, ext);
    let (mine, open) = cx.with(|state| {
        let mine = asker.shard == state.me;
        (mine, state.has_connection(asker.conn))
    });
    if !mine {
        let letter = Letter::Reply {
            conn: asker.conn,
            head: bytes.len() as u32,
            more: false,
        };
        push_ranges(&mut bytes, &ranges);
        cx.tell(asker.shard, letter, bytes);
    } else if open {
        cx.reply(asker.conn, bytes, ranges);
    }
}

fn finish_offset(cx: &Cx<State>, asker: &Asker, found: Result<i64, OffsetError<'_>>) {
    match found {
        Ok(offset) => {
            let response = OffsetResponse { offset };
            let ext = |out: &mut ExtWriter<'_>| response.encode(out);
            answer(cx, asker, ResponseCode::SUCCESS, None, vec![], ext);
        }
        Err(error) => refuse_offset_of_flow(cx, asker, &error),
    }
}

fn finish_timestamp(cx: &Cx<State>, asker: &Asker, found: Result<i64, ReadError>) {
    match found {
        Ok(timestamp) => {
            let response = TimestampResponse { timestamp };
            let ext = |out: &mut ExtWriter<'_>| response.encode(out);
            answer(cx, asker, ResponseCode::SUCCESS, None, vec![], ext);
        }
        Err(error) => refuse_offset_of_flow(cx, asker, &OffsetError::Read(error)),
    }
}

fn refuse_offset_of_flow(cx: &Cx<State>, asker: &Asker, error: &OffsetError<'_>) {
    let (code, remark) = (offset_code(error), error.to_string());
    answer(cx, asker, code, Some(&remark), vec![], |out| {
        encode_offset_error(error, out);
    });
}

// ---- pulls from a file

/// A pull whose offset lies before its queue's window: one read of the file, never held.
async fn cold_pull(cx: Cx<State>, pull: Pull) {
    let offset = pull.offset.max(0) as u64;
    let plan = cx.with(|state| {
        let config = state.files();
        let limit = pull.scan_units(&config) as u64;
        let queue = state.queues.get_mut(pull.key)?;
        let (file, at, units) = queue.file(offset, &config.queue_files());
        let readable = queue.next.saturating_sub(offset);
        Some((file, at, units, units.min(limit).min(readable)))
    });
    let Some((file, at, in_file, units)) = plan else {
        refuse_pull(&cx, &pull, &PullError::TopicGone);
        return;
    };
    let read = cx
        .read(ReadAt::File(file, at), (units * UNIT_BYTES) as u32)
        .await;
    let bounds = cx.with(|state| {
        let queue = state.queues.get(pull.key)?;
        Some((queue.first, queue.next, state.scan_limits()))
    });
    let Some((first, end, limits)) = bounds else {
        refuse_pull(&cx, &pull, &PullError::TopicGone);
        return;
    };
    let mut ranges = Vec::new();
    let (status, next) = match read {
        Ok(bytes) => {
            let scanned = scan(
                units_of(&bytes),
                pull.wanted,
                &pull.filter,
                &limits,
                &mut ranges,
            );
            (Status::of(scanned), offset + scanned.units)
        }
        // Java goes on with the next file.
        Err(ReadError::Missing) => (Status::OffsetFoundNull, (offset + in_file).min(end)),
        Err(error @ ReadError::Io(_)) => {
            refuse_pull(&cx, &pull, &PullError::Read(error));
            return;
        }
    };
    let pulled = Pulled {
        status,
        next,
        first,
        end,
    };
    let (code, remark) = (pulled.code(&pull), Some(pulled.remark()));
    answer(&cx, &pull.asker, code, remark, ranges, |out| {
        pulled.encode(&pull, out)
    });
}

fn refuse_pull(cx: &Cx<State>, pull: &Pull, error: &PullError<'_>) {
    let (code, remark) = (pull_code(error), error.to_string());
    answer(cx, &pull.asker, code, Some(&remark), vec![], |out| {
        encode_pull_error(error, out);
    });
}

// ---- questions about a queue

/// One unit, from the window or the file; `None` if the queue is gone.
async fn unit_at(cx: &Cx<State>, key: QueueKey, offset: u64) -> Result<Option<Unit>, ReadError> {
    let known = cx.with(|state| {
        let config = state.files();
        let queue = state.queues.get_mut(key)?;
        if let Some(unit) = queue.unit(offset) {
            return Some(Ok(unit));
        }
        let (file, at, _) = queue.file(offset, &config.queue_files());
        Some(Err(ReadAt::File(file, at)))
    });
    match known {
        None => Ok(None),
        Some(Ok(unit)) => Ok(Some(unit)),
        Some(Err(at)) => {
            let bytes = cx.read(at, UNIT_BYTES as u32).await?;
            Ok(units_of(&bytes).next())
        }
    }
}

/// When the record of a unit was stored; `None` if it is no longer in the log.
async fn stored_at(cx: &Cx<State>, unit: Unit) -> Result<Option<i64>, ReadError> {
    let limits = cx.with(|state| state.scan_limits());
    if !unit.is_in_log(limits.first) || unit.end() > limits.visible {
        return Ok(None);
    }
    let bytes = cx
        .read(ReadAt::Log(unit.at), RECORD_BYTES_MIN as u32)
        .await?;
    Ok(RecordHead::read(&bytes).map(|head| head.store_timestamp))
}

/// The rule of 14: a group that nobody knows starts at 0 if the queue's first message is still
/// near enough to the log's end to be in memory.
async fn young_queue(cx: Cx<State>, asker: Asker, key: QueueKey) {
    let unit = unit_at(&cx, key, 0).await;
    let limits = cx.with(|state| state.scan_limits());
    let young = |unit: Unit| {
        let behind = limits.visible.0.saturating_sub(unit.at.0);
        unit.is_in_log(limits.first) && behind <= limits.memory_bytes
    };
    let found = match unit {
        Ok(Some(unit)) if young(unit) => Ok(0),
        Ok(Some(_) | None) | Err(ReadError::Missing) => Err(OffsetError::NotFound),
        Err(error @ ReadError::Io(_)) => Err(OffsetError::Read(error)),
    };
    finish_offset(&cx, &asker, found);
}

/// 29: binary search in the queue by the records' store times.
async fn search(
    cx: &Cx<State>,
    key: QueueKey,
    timestamp: i64,
    bound: Bound,
) -> Result<i64, ReadError> {
    let ends = cx.with(|state| {
        let queue = state.queues.get(key)?;
        Some((queue.first, queue.next))
    });
    let Some((first, end)) = ends.filter(|(first, end)| first < end) else {
        return Ok(ends.map_or(0, |(first, _)| first as i64));
    };
    // Everything below `low` is before the point looked for, everything from `high` on is not.
    let (mut low, mut high) = (first, end);
    while low < high {
        let middle = low + (high - low) / 2;
        let time = match unit_at(cx, key, middle).await? {
            Some(unit) => stored_at(cx, unit).await?,
            None => return Ok(0),
        };
        // What is no longer in the log is older than all that is.
        let before = time.is_none_or(|time| match bound {
            Bound::Lower => time < timestamp,
            Bound::Upper => time <= timestamp,
        });
        if before {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    Ok(match bound {
        Bound::Lower => low as i64,
        Bound::Upper if low > first => low as i64 - 1,
        Bound::Upper => first as i64,
    })
}

/// 32: when the queue's oldest message was stored, -1 without one.
async fn earliest(cx: &Cx<State>, key: QueueKey) -> Result<i64, ReadError> {
    let first = cx.with(|state| {
        let queue = state.queues.get(key)?;
        (queue.first < queue.next).then_some(queue.first)
    });
    let Some(first) = first else {
        return Ok(-1);
    };
    match unit_at(cx, key, first).await? {
        Some(unit) => Ok(stored_at(cx, unit).await?.unwrap_or(-1)),
        None => Ok(-1),
    }
}

// ---- look-ups of messages

/// The record that begins at `at`, as a range; `None` if none does.
async fn record_at(cx: &Cx<State>, at: LogOffset) -> Result<Option<LogRange>, ReadError> {
    let limits = cx.with(|state| state.scan_limits());
    let head_end = at.0.saturating_add(RECORD_BYTES_MIN as u64);
    if at < limits.first || head_end > limits.visible.0 {
        return Ok(None);
    }
    let bytes = match cx.read(ReadAt::Log(at), RECORD_BYTES_MIN as u32).await {
        Ok(bytes) => bytes,
        Err(ReadError::Missing) => return Ok(None),
        Err(error) => return Err(error),
    };
    let head = RecordHead::read(&bytes).filter(|head| head.log_offset == at.0);
    let whole = head.map(|head| LogRange { at, len: head.size });
    let fits =
        |range: &LogRange| range.len as usize <= RECORD_BYTES_MAX && range.end() <= limits.visible;
    Ok(whole.filter(fits))
}

/// 33. An offset inside a record finds nothing: what stands there does not say that offset.
async fn view(cx: Cx<State>, asker: Asker, offset: i64) {
    let found = match u64::try_from(offset) {
        Ok(at) => record_at(&cx, LogOffset(at)).await,
        Err(_) => Ok(None),
    };
    let error = match found {
        Ok(Some(range)) => {
            answer(
                &cx,
                &asker,
                ResponseCode::SUCCESS,
                None,
                vec![range],
                |_| {},
            );
            return;
        }
        Ok(None) => QueryError::NoMessageAt { offset },
        Err(error) => QueryError::Read(error),
    };
    let (code, remark) = (query_code(&error), error.to_string());
    answer(&cx, &asker, code, Some(&remark), vec![], |_| {});
}

/// 12. The index may bring records of other keys and topics; clients look again.
async fn find(cx: Cx<State>, asker: Asker, query: KeyQuery) {
    let payload = serde_json::to_vec(&query).expect("texts and numbers are JSON");
    let question = cx.question(INDEX, payload, |ask| Letter::FindKey { ask });
    let (letter, offsets) = question.await;
    let Letter::FoundKey {
        last_update,
        last_offset,
        ..
    } = letter
    else {
        unreachable!("FindKey was answered by {letter:?}");
    };
    let response = found_response(last_update, last_offset);
    let (ranges, error) = match records_at(&cx, &offsets, query.max).await {
        Ok(ranges) if ranges.is_empty() => (ranges, Some(QueryError::NothingFound)),
        Ok(ranges) => (ranges, None),
        Err(error) => (vec![], Some(QueryError::Read(error))),
    };
    let code = error.as_ref().map_or(ResponseCode::SUCCESS, query_code);
    let remark = error.map(|error| error.to_string());
    answer(&cx, &asker, code, remark.as_deref(), ranges, |out| {
        response.encode(out);
    });
}

/// The records at these log offsets (8 bytes each, native order), oldest first.
async fn records_at(cx: &Cx<State>, offsets: &[u8], max: u32) -> Result<Vec<LogRange>, ReadError> {
    let words = offsets.chunks_exact(size_of::<u64>());
    let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("cut to 8 bytes"));
    let mut offsets: Vec<u64> = words.map(word).collect();
    offsets.truncate(max as usize);
    offsets.sort_unstable();
    offsets.dedup();
    let (mut ranges, mut bytes) = (Vec::with_capacity(offsets.len()), 0);
    for at in offsets {
        let Some(range) = record_at(cx, LogOffset(at)).await? else {
            continue;
        };
        bytes += range.len as usize;
        if bytes > BODY_BYTES_MAX {
            break;
        }
        ranges.push(range);
    }
    Ok(ranges)
}
