//! The dispatch role: pulls records from the log as far as they are visible, writes their units
//! into the consume queues, and tells each queue's owner what became readable.
//!
//! ```text
//!  Mark Visible -> follow the log -> units gathered per queue -> Put, one per queue and file
//!       -> all written: Mark Dispatched, Readable to the owners (with the units, so that tail
//! pulls
//!          read no file) -> next
//!  in the background, one file at a time: Sync -> Mark QueuesDurable
//! ```
//!
//! A queue's news cannot be lost: a queue whose owner has no room stays in a list and is told again
//! at `Input::Room`, then without units.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use shards::chunk::Tail;
use shards::ids::FileDir;
use shards::role::{Role, SyncTarget, WriteError};
use shards::{FileRef, Now};

use crate::broker::news::{News, SharedBoot, Topic};
use crate::ids::{LogOffset, Micros, QueueKey, QueueOffset, RoleId, Ticket, UNIT_BYTES};
use crate::role::{self, CONTROL, Effect, Effects, Input, Letter, Mark, Ringmq};
use crate::store::follow::{Follow, Progress};
use crate::store::queues::{self, FILLER, Unit};
use crate::wire::record::Record;

/// What node.rs fills in.
#[derive(Clone, Debug)]
pub struct DispatchConfig {
    /// `store/consumequeue`.
    pub dir: PathBuf,
    /// `mappedFileSizeConsumeQueue`, whole units.
    pub file_bytes: u64,
    pub segment_bytes: u64,
    pub shards: usize,
    /// How often the files are made durable, one after the other.
    pub sync_interval_ms: u64,
    /// Records below are in the queues already.
    pub from: LogOffset,
    pub hash_seed: u64,
}

/// Shown to operators.
#[derive(Debug, Default)]
pub struct DispatchCounters {
    pub records: AtomicU64,
    /// Records of topics or queues that this broker does not have.
    pub records_without_queue: AtomicU64,
    /// Records whose queue offset left a hole that was filled.
    pub holes_filled: AtomicU64,
    /// Records whose queue offset lies more than a file ahead of their queue's end: damage.
    pub records_out_of_row: AtomicU64,
    /// Records that stood in their queue already.
    pub records_again: AtomicU64,
    pub writes_failed: AtomicU64,
}

const FOLLOW: Ticket = Ticket(u64::MAX);
const SYNC: Ticket = Ticket(u64::MAX - 1);
/// Units told beside the news; a busier queue's owner reads the file for the rest.
const TOLD_UNITS_MAX: usize = 1024;
/// A failed write is tried again after this long.
const RETRY_MS: u64 = 1000;

pub struct Dispatch {
    config: DispatchConfig,
    counters: Arc<DispatchCounters>,
    topics: HashMap<String, Vec<QueueKey>, FixedState>,
    /// By key.
    queues: Vec<Option<Queue>>,
    follow: Follow,
    visible: LogOffset,
    batch: Batch,
    /// Queues whose owners could not be told.
    untold: VecDeque<QueueKey>,
    sync: Syncing,
    /// Version of news that control has not been told of as heard.
    heard: Option<u64>,
    stopping: Stopping,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stopping {
    No,
    Asked,
    Done,
}

struct Queue {
    dir: Arc<FileDir>,
    owner: RoleId,
    /// Next unit to gather.
    next: QueueOffset,
    /// End of the last gathered record: what begins before is there already.
    end: LogOffset,
    /// Units gathered and not yet told, encoded; the last one is `next - 1`.
    pending: Vec<u8>,
    in_batch: bool,
    untold: bool,
    /// Files written since they were last made durable.
    dirty: Vec<u64>,
}

/// Units on their way into the files.
#[derive(Default)]
struct Batch {
    touched: Vec<QueueKey>,
    in_flight: usize,
    failed: Option<WriteError>,
    /// When to write the same units again.
    retry_at: Option<Micros>,
    more: bool,
}

/// Making files durable, one at a time.
#[derive(Default)]
struct Syncing {
    /// Keys with dirty files, as they were when the round began.
    round: Vec<(QueueKey, u64)>,
    /// Where dispatch was then.
    upto: LogOffset,
    in_flight: bool,
    next_round_at: Micros,
    /// A flush has failed since the start: what it lost, no later one brings back.
    failed: bool,
    dirty: Vec<QueueKey>,
}

impl Dispatch {
    #[must_use]
    pub fn new(
        config: DispatchConfig,
        boot: &SharedBoot,
        tail: Tail,
        counters: Arc<DispatchCounters>,
    ) -> Self {
        let follow = Follow::new(config.from, config.segment_bytes, tail, FOLLOW);
        let mut dispatch = Dispatch {
            topics: HashMap::with_hasher(FixedState::with_seed(config.hash_seed)),
            queues: Vec::new(),
            visible: config.from,
            follow,
            counters,
            config,
            batch: Batch::default(),
            untold: VecDeque::new(),
            sync: Syncing::default(),
            heard: None,
            stopping: Stopping::No,
        };
        for topic in &boot.topics {
            dispatch.learn(topic);
        }
        for state in &boot.queues {
            if let Some(queue) = dispatch.queue_mut(state.key) {
                queue.next = state.dispatched;
            }
        }
        dispatch
    }

    fn learn(&mut self, topic: &Topic) {
        for (queue_id, key) in topic.queues.iter().enumerate() {
            let slot = key.0 as usize;
            if slot >= self.queues.len() {
                self.queues.resize_with(slot + 1, || None);
            }
            let (root, bytes) = (&self.config.dir, self.config.file_bytes);
            self.queues[slot].get_or_insert_with(|| Queue {
                dir: queues::queue_dir(root, &topic.name, queue_id as i32, bytes),
                owner: role::owner(*key, self.config.shards),
                next: QueueOffset(0),
                end: LogOffset(0),
                pending: Vec::new(),
                in_batch: false,
                untold: false,
                dirty: Vec::new(),
            });
        }
        self.topics.insert(topic.name.clone(), topic.queues.clone());
    }

    fn forget(&mut self, topic: &str) {
        for key in self.topics.remove(topic).into_iter().flatten() {
            self.queues[key.0 as usize] = None;
        }
    }

    fn queue_mut(&mut self, key: QueueKey) -> Option<&mut Queue> {
        self.queues.get_mut(key.0 as usize)?.as_mut()
    }

    /// The heart: as far as this turn allows, from the log into the files.
    fn advance(&mut self, now: Now, fx: &mut Effects<'_>) {
        if let Some(at) = self.batch.retry_at {
            if now.mono < at {
                return;
            }
            self.batch.retry_at = None;
            self.write(fx);
        }
        if self.batch.in_flight > 0 {
            return;
        }
        let (topics, queues, batch) = (&self.topics, &mut self.queues, &mut self.batch);
        let counters = &*self.counters;
        let progress = self.follow.run(self.visible, fx, |record| {
            gather(record, topics, queues, batch, counters);
        });
        self.batch.more = progress == Progress::More;
        self.write(fx);
    }

    /// Writes what the batch has gathered. Nothing gathered is a batch that has ended.
    fn write(&mut self, fx: &mut Effects<'_>) {
        for key in &self.batch.touched {
            let Some(queue) = &mut self.queues[key.0 as usize] else {
                continue;
            };
            let units = queue.pending.len() as u64 / UNIT_BYTES;
            let mut from = QueueOffset(queue.next.0 - units);
            let mut bytes = &queue.pending[..];
            while !bytes.is_empty() {
                let (file, at) = queues::place(&queue.dir, from);
                let len = bytes.len().min((queue.dir.file_bytes - at) as usize);
                let (piece, rest) = bytes.split_at(len);
                if queue.dirty.is_empty() {
                    self.sync.dirty.push(*key);
                }
                if !queue.dirty.contains(&file.number) {
                    queue.dirty.push(file.number);
                }
                let span = fx.bytes(|arena| arena.extend_from_slice(piece));
                let ticket = Ticket(u64::from(key.0));
                fx.push(Effect::Put {
                    ticket,
                    file,
                    at,
                    bytes: span,
                });
                self.batch.in_flight += 1;
                from = from.plus(len as u64 / UNIT_BYTES);
                bytes = rest;
            }
        }
        if self.batch.in_flight == 0 {
            self.publish(fx);
        }
    }

    fn wrote(&mut self, now: Now, result: Result<(), WriteError>, fx: &mut Effects<'_>) {
        self.batch.in_flight -= 1;
        if let Err(error) = result {
            self.batch.failed = Some(error);
        }
        if self.batch.in_flight > 0 {
            return;
        }
        match self.batch.failed.take() {
            None => self.publish(fx),
            Some(error) => {
                self.counters.writes_failed.fetch_add(1, Ordering::Relaxed);
                log::error!("consume queue files cannot be written ({error}); trying again");
                self.batch.retry_at = Some(now.mono.plus_millis(RETRY_MS));
            }
        }
    }

    /// Everything gathered stands in the files.
    fn publish(&mut self, fx: &mut Effects<'_>) {
        fx.mark(Mark::Dispatched(self.follow.at()));
        for key in std::mem::take(&mut self.batch.touched) {
            let Some(queue) = &mut self.queues[key.0 as usize] else {
                continue;
            };
            queue.in_batch = false;
            if !queue.untold && !queue.tell(key, fx) {
                queue.untold = true;
                self.untold.push_back(key);
            }
            queue.pending.clear();
        }
    }

    fn tell_untold(&mut self, fx: &mut Effects<'_>) {
        while let Some(key) = self.untold.front().copied() {
            let told = match &mut self.queues[key.0 as usize] {
                // Its units are in the batch: they are told when it ends.
                Some(queue) if !queue.in_batch => queue.tell(key, fx),
                Some(queue) => {
                    queue.untold = false;
                    true
                }
                None => true,
            };
            if !told {
                return;
            }
            self.untold.pop_front();
            if let Some(queue) = self.queue_mut(key) {
                queue.untold = false;
            }
        }
    }

    fn sync_next(&mut self, now: Now, fx: &mut Effects<'_>) {
        if self.sync.in_flight {
            return;
        }
        if self.sync.round.is_empty() && !self.begin_sync_round(now, fx) {
            return;
        }
        while let Some((key, number)) = self.sync.round.pop() {
            let Some(queue) = self.queues.get(key.0 as usize).and_then(Option::as_ref) else {
                continue;
            };
            let file = FileRef {
                dir: queue.dir.clone(),
                number,
            };
            fx.push(Effect::Sync {
                ticket: SYNC,
                target: SyncTarget::File(file),
            });
            self.sync.in_flight = true;
            return;
        }
        self.end_sync_round(fx);
    }

    fn begin_sync_round(&mut self, now: Now, fx: &mut Effects<'_>) -> bool {
        let due = now.mono >= self.sync.next_round_at || self.stopping == Stopping::Asked;
        let idle = self.batch.in_flight == 0 && self.batch.retry_at.is_none();
        if !due || !idle || self.sync.dirty.is_empty() {
            return false;
        }
        self.sync.upto = self.follow.at();
        self.sync.next_round_at = now.mono.plus_millis(self.config.sync_interval_ms);
        for key in std::mem::take(&mut self.sync.dirty) {
            let Some(queue) = &mut self.queues[key.0 as usize] else {
                continue;
            };
            self.sync
                .round
                .extend(queue.dirty.drain(..).map(|number| (key, number)));
        }
        if self.sync.round.is_empty() {
            self.end_sync_round(fx);
            return false;
        }
        true
    }

    fn end_sync_round(&mut self, fx: &mut Effects<'_>) {
        // A failed flush may have lost the pages: the mark stays behind for good, so that the next
        // start dispatches from there again.
        if !self.sync.failed {
            fx.mark(Mark::QueuesDurable(self.sync.upto));
        }
    }

    fn synced(&mut self, now: Now, result: Result<(), WriteError>, fx: &mut Effects<'_>) {
        self.sync.in_flight = false;
        if let Err(error) = result {
            if !self.sync.failed {
                log::error!("a consume queue file cannot be made durable: {error}");
            }
            self.sync.failed = true;
            self.counters.writes_failed.fetch_add(1, Ordering::Relaxed);
        }
        if self.sync.round.is_empty() {
            self.end_sync_round(fx);
        } else {
            self.sync_next(now, fx);
        }
    }

    fn stop_when_done(&mut self, now: Now, fx: &mut Effects<'_>) {
        if self.stopping != Stopping::Asked || self.sync.in_flight {
            return;
        }
        let stuck = self.batch.retry_at.is_some();
        let caught = self.follow.at() >= self.visible && self.batch.in_flight == 0;
        if caught && (!self.sync.dirty.is_empty() || !self.sync.round.is_empty()) {
            self.sync_next(now, fx);
        }
        if (caught || stuck) && !self.sync.in_flight {
            self.stopping = Stopping::Done;
            fx.push(Effect::Stopped);
        }
    }

    fn hear(&mut self, letter: Letter, payload: &[u8], fx: &mut Effects<'_>) {
        let Letter::News { version } = letter else {
            unreachable!("dispatch hears only news, not {letter:?}")
        };
        match serde_json::from_slice::<News>(payload).expect("our own control wrote it") {
            News::Topic(topic) => self.learn(&topic),
            News::TopicGone(topic) => self.forget(&topic),
            _ => {}
        }
        self.heard = Some(version);
        self.tell_heard(fx);
    }

    /// The newest version stands for all before. Without room it is told at `Input::Room`.
    fn tell_heard(&mut self, fx: &mut Effects<'_>) {
        if let Some(version) = self.heard
            && fx.tell(CONTROL, 0, |_| Letter::Heard { version }).is_ok()
        {
            self.heard = None;
        }
    }
}

/// Adds a record's unit to its queue.
fn gather(
    record: &Record<'_>,
    topics: &HashMap<String, Vec<QueueKey>, FixedState>,
    queues: &mut [Option<Queue>],
    batch: &mut Batch,
    counters: &DispatchCounters,
) {
    let count = |counter: &AtomicU64| counter.fetch_add(1, Ordering::Relaxed);
    count(&counters.records);
    if !record.needs_dispatch() {
        return;
    }
    let keys = topics.get(record.topic());
    let key = keys.and_then(|keys| keys.get(usize::try_from(record.queue_id()).ok()?));
    let queue = key.and_then(|key| queues[key.0 as usize].as_mut());
    let (Some(key), Some(queue)) = (key, queue) else {
        count(&counters.records_without_queue);
        return;
    };
    let at = LogOffset(record.log_offset());
    let offset = QueueOffset(record.queue_offset());
    if at < queue.end || offset < queue.next {
        count(&counters.records_again);
        return;
    }
    let file_units = queue.dir.file_bytes / UNIT_BYTES;
    if queue.next.0 == 0 && queue.pending.is_empty() {
        // The queue may begin late, its earlier records deleted: then only its first file is
        // filled.
        queue.next = QueueOffset(offset.0 / file_units * file_units);
    }
    if offset.0 - queue.next.0 > file_units {
        count(&counters.records_out_of_row);
        return;
    }
    while queue.next < offset {
        queue.pending.extend_from_slice(&FILLER.encode());
        queue.next = queue.next.plus(1);
        count(&counters.holes_filled);
    }
    let unit = Unit {
        at,
        size: record.size(),
        tags_code: record.tags_code(),
    };
    queue.pending.extend_from_slice(&unit.encode());
    queue.next = offset.plus(1);
    queue.end = unit.end();
    if !queue.in_batch {
        queue.in_batch = true;
        batch.touched.push(*key);
    }
}

impl Queue {
    /// Tells the owner everything below `next`, with the newest pending units.
    fn tell(&mut self, queue: QueueKey, fx: &mut Effects<'_>) -> bool {
        let most = TOLD_UNITS_MAX * UNIT_BYTES as usize;
        let units = &self.pending[self.pending.len().saturating_sub(most)..];
        let letter = Letter::Readable {
            queue,
            next: self.next,
        };
        let told = fx.tell(self.owner, units.len(), |lane| {
            lane.copy_from_slice(units);
            letter
        });
        told.is_ok()
    }
}

impl Role<Ringmq> for Dispatch {
    fn handle(&mut self, now: Now, input: Input<'_>, fx: &mut Effects<'_>) {
        match input {
            Input::Mark(Mark::Visible(visible)) => self.visible = self.visible.max(visible),
            Input::Letter {
                letter, payload, ..
            } => self.hear(letter, payload, fx),
            Input::Read {
                result: Ok(bytes), ..
            } => {
                let (topics, queues, batch) = (&self.topics, &mut self.queues, &mut self.batch);
                let counters = &*self.counters;
                self.follow.take_read(bytes, |record| {
                    gather(record, topics, queues, batch, counters);
                });
            }
            Input::Read {
                result: Err(error), ..
            } => {
                log::error!("the log cannot be read at {}: {error}", self.follow.at());
                self.follow.read_failed();
                self.batch.retry_at = Some(now.mono.plus_millis(RETRY_MS));
            }
            Input::Wrote {
                ticket: SYNC,
                result,
            } => self.synced(now, result, fx),
            Input::Wrote { result, .. } => self.wrote(now, result, fx),
            Input::Room { .. } => {
                self.tell_heard(fx);
                self.tell_untold(fx);
            }
            Input::Stop => self.stopping = Stopping::Asked,
            Input::Deadline => {
                self.advance(now, fx);
                self.sync_next(now, fx);
            }
            // Only now every mark is known that was there when the turn began.
            Input::Settled => {
                self.advance(now, fx);
                self.sync_next(now, fx);
                self.stop_when_done(now, fx);
            }
            _ => {}
        }
    }

    fn deadline(&self) -> Option<Micros> {
        if self.batch.more && self.batch.in_flight == 0 && self.batch.retry_at.is_none() {
            return Some(Micros(0));
        }
        let round = !self.sync.dirty.is_empty() && !self.sync.in_flight;
        let sync = round.then_some(self.sync.next_round_at);
        [self.batch.retry_at, sync].into_iter().flatten().min()
    }

    fn settles_late(&self) -> bool {
        true
    }

    fn woken_by(&self) -> u64 {
        role::kinds(&[Mark::Visible(LogOffset(0))])
    }

    fn name(&self) -> &'static str {
        "dispatch"
    }
}
