//! The role driven by hand: a disk that completes writes when told, and a decoder of its own.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::path::PathBuf;

use proptest::prelude::*;
use shards::chunk::{Tail, tail};
use shards::files::Files;
use shards::mesh::{EdgeSize, Inlet, Outlets, edge};
use shards::segments::segment_name;
use shards::{LogRange, Mark as _};

use super::*;
use crate::broker::news::{Boot, QueueState, Topic};
use crate::ids::{QueueKey, QueueOffset};
use crate::role::{Stored, shard};
use crate::store::recover::memory::MemoryFiles;
use crate::wire::record::{PropertiesSpec, RecordSpec};

pub(crate) const SEGMENT: u64 = 64 * 1024;
const OK: Result<(), WriteError> = Ok(());

/// A record as a shard encodes it.
pub(crate) fn record(topic: &str, sys_flag: i32, body: &[u8]) -> Vec<u8> {
    let host: SocketAddr = "10.0.0.1:1234".parse().expect("an address");
    let spec = RecordSpec {
        topic,
        queue_id: 0,
        flag: 0,
        sys_flag,
        born_timestamp: 1_700_000_000_000,
        born_host: host,
        store_host: host,
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body,
        properties: PropertiesSpec {
            texts: &[b"TAGS\x01TagA\x02"],
            pairs: &[],
        },
    };
    let mut bytes = vec![0; spec.encoded_len().expect("it fits")];
    spec.encode(&mut bytes);
    bytes
}

/// What a record on disk says, read by the offsets of store-format 3 (IPv4, version 1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OnDisk {
    pub at: u64,
    pub size: u64,
    pub queue_offset: u64,
    pub log_offset: u64,
    pub store_timestamp: u64,
    pub body: Vec<u8>,
    pub topic: String,
}

fn be(bytes: &[u8], at: usize, len: usize) -> u64 {
    bytes[at..at + len]
        .iter()
        .fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// Reads records from `at` on until something is none; follows blank records.
pub(crate) fn decode(
    mut segment: impl FnMut(u64) -> Option<Vec<u8>>,
    bytes: u64,
    mut at: u64,
) -> (Vec<OnDisk>, u64) {
    let mut records = Vec::new();
    loop {
        let start = at / bytes * bytes;
        let Some(file) = segment(start) else {
            return (records, at);
        };
        let mut place = (at - start) as usize;
        loop {
            let left = file.len() - place;
            if left < 8 {
                return (records, start + place as u64);
            }
            let size = be(&file, place, 4) as usize;
            match be(&file, place + 4, 4) {
                0xCBD4_3194 if size == left => break,
                0xDAA3_20A7 if size <= left => {
                    let one = &file[place..place + size];
                    let body = be(one, 84, 4) as usize;
                    let topic = usize::from(one[88 + body]);
                    records.push(OnDisk {
                        at: start + place as u64,
                        size: size as u64,
                        queue_offset: be(one, 20, 8),
                        log_offset: be(one, 28, 8),
                        store_timestamp: be(one, 56, 8),
                        body: one[88..88 + body].to_vec(),
                        topic: String::from_utf8(one[89 + body..89 + body + topic].to_vec())
                            .expect("text"),
                    });
                    place += size;
                }
                _ => return (records, start + place as u64),
            }
        }
        at = start + bytes;
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Write {
        at: u64,
        bytes: Vec<u8>,
        len: u32,
        last: Option<LastBlock>,
        sync: bool,
    },
    Sync {
        at: u64,
    },
}

/// An answer as a shard got it.
pub(crate) type Answer = (u64, Result<Stored, AppendRefused>);

pub(crate) struct Desk {
    pub log: Log,
    pub tail: Tail,
    pub now: Now,
    pub files: MemoryFiles,
    pub dir: PathBuf,
    pub asked: VecDeque<(Ticket, Asked)>,
    /// Everything ever written, in order of submission.
    pub writes: Vec<(u64, u64)>,
    pub marks: BTreeMap<usize, u64>,
    pub stopped: u32,
    pub segment_bytes: u64,
    list: Vec<Effect>,
    bytes: Vec<u8>,
    ranges: Vec<LogRange>,
    outlets: Outlets<Letter>,
    inlets: Vec<Inlet<Letter>>,
    control: Inlet<Letter>,
    pub answers: Vec<Answer>,
}

pub(crate) fn config(mode: FlushMode, segment_bytes: u64) -> LogConfig {
    LogConfig {
        segment_bytes,
        mode,
        flush_timeout_ms: 5000,
        flush_interval_ms: 500,
        park_ms: 200,
    }
}

pub(crate) fn boot(queues: u32, next: u64) -> Boot {
    let topic = Topic {
        name: "Topic".to_owned(),
        read_queues: queues,
        write_queues: queues,
        perm: 6,
        sys_flag: 0,
        multi_tag: false,
        order: false,
        attributes: BTreeMap::new(),
        queues: (0..queues).map(QueueKey).collect(),
    };
    let state = |key| QueueState {
        key: QueueKey(key),
        first: QueueOffset(0),
        next: QueueOffset(next),
        dispatched: QueueOffset(0),
    };
    Boot {
        topics: vec![topic],
        groups: Vec::new(),
        queues: (0..queues).map(state).collect(),
        offsets: Vec::new(),
    }
}

pub(crate) fn empty_log(segments: u64, segment_bytes: u64) -> Recovered {
    Recovered {
        first: LogOffset(0),
        end: LogOffset(0),
        prepared: LogOffset(segments * segment_bytes),
        segments: (0..segments)
            .map(|number| LogOffset(number * segment_bytes))
            .collect(),
        durable: None,
        clean: true,
        last_store_timestamp: Millis(0),
        records: 0,
        handed: 0,
        cut: Default::default(),
        last_block: Vec::new(),
        checkpoint: Default::default(),
    }
}

impl Desk {
    /// An empty log with so many segments prepared.
    pub fn new(mode: FlushMode, segments: u64) -> Desk {
        Desk::on(
            MemoryFiles::default(),
            mode,
            SEGMENT,
            &empty_log(segments, SEGMENT),
            &boot(4, 0),
        )
    }

    pub fn on(
        mut files: MemoryFiles,
        mode: FlushMode,
        segment_bytes: u64,
        recovered: &Recovered,
        boot: &Boot,
    ) -> Desk {
        let dir = PathBuf::from("/store/commitlog");
        for start in &recovered.segments {
            let path = dir.join(segment_name(*start));
            if files.len(&path).is_err() {
                files.put(&path, vec![0; segment_bytes as usize]);
            }
        }
        let (writer, tail) = tail(limits::TAIL_BYTES_MIN, recovered.end).expect("memory");
        let mut outlets = Outlets::new();
        let mut inlets = Vec::new();
        for number in 0..2 {
            let (outlet, inlet) = edge(EdgeSize {
                letters: 4096,
                lane_bytes: 0,
            });
            outlets.connect(shard(number), outlet);
            inlets.push(inlet);
        }
        let (outlet, control) = edge(EdgeSize {
            letters: 1,
            lane_bytes: 0,
        });
        outlets.connect(CONTROL, outlet);
        Desk {
            log: Log::new(
                config(mode, segment_bytes),
                recovered,
                boot,
                writer,
                Arc::default(),
            ),
            tail,
            now: Now {
                mono: Micros(1_000_000),
                wall: Millis(1_800_000_000_000),
            },
            files,
            dir,
            asked: VecDeque::new(),
            writes: Vec::new(),
            marks: BTreeMap::new(),
            stopped: 0,
            segment_bytes,
            list: Vec::new(),
            bytes: Vec::new(),
            ranges: Vec::new(),
            outlets,
            inlets,
            control,
            answers: Vec::new(),
        }
    }

    /// One call of the role. Letters arrive before the effects of the same call are carried out:
    /// that is what a fast receiver on another core sees.
    pub fn tell(&mut self, input: Input<'_>) {
        let mut fx = Effects {
            list: &mut self.list,
            bytes: &mut self.bytes,
            ranges: &mut self.ranges,
            outlets: &mut self.outlets,
        };
        self.log.handle(self.now, input, &mut fx);
        self.collect_answers();
        for effect in std::mem::take(&mut self.list) {
            self.carry_out(effect);
        }
    }

    fn collect_answers(&mut self) {
        for inlet in &mut self.inlets {
            while let Some((letter, _)) = inlet.peek() {
                let Letter::Appended { ask, result } = letter else {
                    panic!("{letter:?}");
                };
                inlet.release();
                self.answers.push((ask, result));
            }
        }
    }

    fn image(&self, at: LogOffset, len: u32, last: Option<LastBlock>) -> Vec<u8> {
        let mut bytes = self.tail.write_pieces(at, len).concat();
        if let Some(LastBlock { copy }) = last {
            bytes.extend_from_slice(self.tail.snapshot(copy));
        }
        bytes
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Mark(mark) => {
                let before = self.marks.insert(mark.kind(), mark.value()).unwrap_or(0);
                assert!(before <= mark.value(), "{mark:?} goes back from {before}");
            }
            Effect::Write {
                ticket,
                at,
                len,
                last,
                sync,
            } => {
                assert!(
                    !self
                        .asked
                        .iter()
                        .any(|(_, asked)| matches!(asked, Asked::Write { .. })),
                    "two writes in flight"
                );
                let bytes = self.image(at, len, last);
                assert_eq!((at.0 % 4096, len % 4096), (0, 0));
                assert!(!bytes.is_empty());
                assert_eq!(
                    at.0 / self.segment_bytes,
                    (at.0 + bytes.len() as u64 - 1) / self.segment_bytes
                );
                self.writes.push((at.0, bytes.len() as u64));
                self.asked.push_back((
                    ticket,
                    Asked::Write {
                        at: at.0,
                        bytes,
                        len,
                        last,
                        sync,
                    },
                ));
            }
            Effect::Sync {
                ticket,
                target: SyncTarget::Segment(at),
            } => {
                self.asked.push_back((ticket, Asked::Sync { at: at.0 }));
            }
            Effect::Stopped => self.stopped += 1,
            other => panic!("{other:?}"),
        }
    }

    pub fn path(&self, at: u64) -> PathBuf {
        self.dir.join(segment_name(LogOffset(
            at / self.segment_bytes * self.segment_bytes,
        )))
    }

    /// Carries the oldest asked thing out and tells the role, without settling.
    pub fn complete(&mut self) {
        let (ticket, asked) = self.asked.pop_front().expect("something was asked");
        self.do_on_disk(&asked);
        self.tell(Input::Wrote { ticket, result: OK });
    }

    /// As the device does it; bytes that were acknowledged must not change.
    pub fn do_on_disk(&mut self, asked: &Asked) {
        match asked {
            Asked::Write {
                at,
                bytes,
                len,
                last,
                sync,
            } => {
                assert_eq!(
                    &self.image(LogOffset(*at), *len, *last),
                    bytes,
                    "changed while in flight"
                );
                let path = self.path(*at);
                let within = at % self.segment_bytes;
                let durable = self
                    .marks
                    .get(&Mark::Durable(LogOffset(0)).kind())
                    .copied()
                    .unwrap_or(0);
                if durable > *at {
                    let old =
                        &self.files.bytes(&path)[within as usize..][..(durable - at) as usize];
                    assert_eq!(old, &bytes[..old.len()], "an acknowledged prefix changed");
                }
                self.files.write_at(&path, within, bytes).expect("memory");
                if *sync {
                    self.files.sync(&path).expect("memory");
                }
            }
            Asked::Sync { at } => self.files.sync(&self.path(*at)).expect("memory"),
        }
    }

    pub fn fail(&mut self, error: WriteError) {
        let (ticket, _) = self.asked.pop_front().expect("something was asked");
        self.tell(Input::Wrote {
            ticket,
            result: Err(error),
        });
    }

    pub fn settle(&mut self) {
        self.tell(Input::Settled);
    }

    /// Completes and settles until nothing is asked.
    pub fn run(&mut self) {
        while !self.asked.is_empty() {
            self.complete();
            self.settle();
        }
    }

    pub fn send(&mut self, ask: u64, queue: u32, count: u32, wait: bool, payload: &[u8]) {
        let letter = Letter::Append {
            ask,
            queue: QueueKey(queue),
            count,
            wait,
        };
        let from = shard(ask as usize % 2);
        self.tell(Input::Letter {
            from,
            letter,
            payload,
        });
    }

    pub fn append(&mut self, ask: u64, queue: u32, body: &[u8]) {
        self.send(ask, queue, 1, true, &record("Topic", 0, body));
    }

    pub fn later(&mut self, millis: u64) {
        self.now.mono = self.now.mono.plus_millis(millis);
        self.now.wall = Millis(self.now.wall.0 + millis);
        if self
            .log
            .deadline()
            .is_some_and(|deadline| deadline <= self.now.mono)
        {
            self.tell(Input::Deadline);
            self.settle();
        }
    }

    pub fn take_answers(&mut self) -> Vec<Answer> {
        std::mem::take(&mut self.answers)
    }

    pub fn mark(&self, mark: Mark) -> u64 {
        self.marks.get(&mark.kind()).copied().unwrap_or(0)
    }

    pub fn visible(&self) -> u64 {
        self.mark(Mark::Visible(LogOffset(0)))
    }

    pub fn durable(&self) -> u64 {
        self.mark(Mark::Durable(LogOffset(0)))
    }

    pub fn on_disk(&self, at: u64) -> (Vec<OnDisk>, u64) {
        let segment = |start| {
            let path = self.path(start);
            self.files
                .paths()
                .contains(&path)
                .then(|| self.files.bytes(&path).to_vec())
        };
        decode(segment, self.segment_bytes, at)
    }

    fn news(&mut self, version: u64, news: &News) {
        let payload = serde_json::to_vec(news).expect("plain data");
        self.tell(Input::Letter {
            from: CONTROL,
            letter: Letter::News { version },
            payload: &payload,
        });
    }
}

fn stored(answer: &Answer) -> Stored {
    answer.1.expect("it was stored")
}

#[test]
fn appends_of_one_turn_share_one_write() {
    let mut desk = Desk::new(FlushMode::Sync, 2);
    for ask in 0..64 {
        desk.append(ask, ask as u32 % 4, b"hello");
    }
    assert!(
        desk.asked.is_empty(),
        "nothing goes out before the turn has settled"
    );
    desk.settle();
    assert_eq!(desk.asked.len(), 1);
    assert!(desk.take_answers().is_empty());
    desk.complete();
    desk.settle();
    assert_eq!(desk.take_answers().len(), 64);
    assert!(desk.asked.is_empty());
    let counters = &desk.log.counters;
    assert_eq!(
        (
            counters.appends.get(),
            counters.flushes.get(),
            counters.flushed_records_max.get()
        ),
        (64, 1, 64)
    );
}

#[test]
fn the_batch_grows_while_a_write_runs_and_goes_out_when_it_ends() {
    let mut desk = Desk::new(FlushMode::Sync, 2);
    desk.append(0, 0, b"first");
    desk.settle();
    for ask in 1..10 {
        desk.append(ask, 0, b"behind");
        desk.settle();
    }
    assert_eq!(desk.writes.len(), 1);
    desk.complete();
    desk.settle();
    assert_eq!(
        desk.take_answers()
            .iter()
            .map(|answer| answer.0)
            .collect::<Vec<_>>(),
        [0]
    );
    assert_eq!(desk.writes.len(), 2);
    desk.complete();
    desk.settle();
    let mut rest: Vec<u64> = desk.take_answers().iter().map(|answer| answer.0).collect();
    rest.sort_unstable();
    assert_eq!(rest, (1..10).collect::<Vec<_>>());
}

#[test]
fn a_sync_append_is_answered_after_its_flush_and_after_the_marks() {
    let mut desk = Desk::new(FlushMode::Sync, 2);
    desk.append(7, 0, b"hello");
    desk.settle();
    assert!(matches!(desk.asked[0].1, Asked::Write { sync: true, .. }));
    assert_eq!(desk.visible(), 0);
    desk.complete();
    let size = record("Topic", 0, b"hello").len() as u64;
    assert!(desk.take_answers().is_empty(), "marks first");
    assert_eq!((desk.visible(), desk.durable()), (size, size));
    desk.settle();
    let answer = desk.take_answers();
    let expected = Stored {
        log_offset: LogOffset(0),
        queue_offset: QueueOffset(0),
        store_timestamp: Millis(1_800_000_000_000),
        flush_timed_out: false,
    };
    assert_eq!(answer, [(7, Ok(expected))]);
}

#[test]
fn a_record_is_patched_with_its_place_and_time() {
    let mut desk = Desk::new(FlushMode::Sync, 2);
    desk.append(0, 3, b"one");
    desk.now.wall = Millis(1_799_999_999_000);
    desk.append(1, 3, b"two");
    desk.settle();
    desk.run();
    let (records, end) = desk.on_disk(0);
    let size = record("Topic", 0, b"one").len() as u64;
    assert_eq!(end, 2 * size);
    let places: Vec<_> = records
        .iter()
        .map(|one| (one.queue_offset, one.log_offset, one.store_timestamp))
        .collect();
    assert_eq!(
        places,
        [(0, 0, 1_800_000_000_000), (1, size, 1_800_000_000_000)],
        "time never falls"
    );
    assert_eq!(
        (records[1].body.as_slice(), records[1].topic.as_str()),
        (&b"two"[..], "Topic")
    );
}

#[test]
fn a_client_batch_gets_consecutive_offsets_and_one_time() {
    let mut desk = Desk::on(
        MemoryFiles::default(),
        FlushMode::Sync,
        SEGMENT,
        &empty_log(2, SEGMENT),
        &boot(4, 40),
    );
    let batch: Vec<u8> = (0..3u8)
        .flat_map(|body| record("Topic", 0, &[body; 9]))
        .collect();
    desk.send(0, 1, 3, true, &batch);
    desk.append(1, 1, b"behind");
    desk.append(2, 0, b"other");
    desk.settle();
    desk.run();
    let mut answers = desk.take_answers();
    answers.sort_by_key(|answer| answer.0);
    let offsets: Vec<_> = answers
        .iter()
        .map(|answer| stored(answer).queue_offset.0)
        .collect();
    assert_eq!(offsets, [40, 43, 40]);
    let (records, _) = desk.on_disk(0);
    assert_eq!(
        records
            .iter()
            .map(|one| one.queue_offset)
            .collect::<Vec<_>>(),
        [40, 41, 42, 43, 40]
    );
}

#[test]
fn half_and_rolled_back_messages_take_no_queue_offset() {
    let mut desk = Desk::new(FlushMode::Sync, 2);
    for (ask, flag) in [(0, 0), (1, 0x4), (2, 0xC), (3, 0x8)] {
        desk.send(ask, 0, 1, true, &record("Topic", flag, b"x"));
    }
    desk.append(4, 0, b"y");
    desk.settle();
    desk.run();
    let (records, _) = desk.on_disk(0);
    assert_eq!(
        records
            .iter()
            .map(|one| one.queue_offset)
            .collect::<Vec<_>>(),
        [0, 0, 0, 1, 2]
    );
}

#[test]
fn the_prefix_of_the_last_block_is_written_again_unchanged() {
    let mut desk = Desk::new(FlushMode::Sync, 2);
    for ask in 0..100 {
        // `do_on_disk` compares what was acknowledged in that block.
        desk.append(ask, 0, &[ask as u8; 700]);
        desk.settle();
        let rewritten = desk.writes.last().expect("a write").0;
        assert_eq!(rewritten, desk.durable() / 4096 * 4096);
        desk.run();
    }
    let (records, _) = desk.on_disk(0);
    assert_eq!(records.len(), 100);
    assert!(
        records
            .iter()
            .enumerate()
            .all(|(ask, one)| one.body == [ask as u8; 700])
    );
    // Behind the end all is zero.
    let (path, end) = (desk.path(desk.durable()), desk.durable() % SEGMENT);
    assert!(
        desk.files.bytes(&path)[end as usize..]
            .iter()
            .all(|byte| *byte == 0)
    );
}

#[test]
fn an_append_that_does_not_fit_begins_the_next_segment_after_a_blank_record() {
    let mut desk = Desk::new(FlushMode::Sync, 2);
    let overhead = record("Topic", 0, b"").len();
    // 8 bytes too few are left behind the second one.
    desk.append(0, 0, &vec![1; 40_000]);
    let left = SEGMENT as usize - 40_000 - overhead;
    desk.append(1, 0, &vec![2; left - overhead - 7]);
    desk.append(2, 1, b"behind it");
    desk.settle();
    assert_eq!(
        desk.writes,
        [(0, 10 * 4096)],
        "up to the blank record, in whole blocks"
    );
    desk.complete();
    assert_eq!(
        desk.visible(),
        40_000 + overhead as u64,
        "the blank record alone is not told"
    );
    desk.settle();
    assert_eq!(desk.take_answers().len(), 1);
    assert_eq!(
        desk.writes[1].0, SEGMENT,
        "the next segment after the flush of the last one"
    );
    desk.run();
    assert_eq!(desk.take_answers().len(), 2);
    let first = desk.files.bytes(&desk.path(0)).to_vec();
    let blank = 40_000 + overhead;
    assert_eq!(be(&first, blank, 4), left as u64);
    assert_eq!(be(&first, blank + 4, 4), 0xCBD4_3194);
    assert!(first[blank + 8..].iter().all(|byte| *byte == 0));
    let (records, _) = desk.on_disk(0);
    assert_eq!(
        records.iter().map(|one| one.at).collect::<Vec<_>>()[..2],
        [0, SEGMENT]
    );
    assert_eq!(desk.log.counters.rolls.get(), 1);
}

#[test]
fn an_append_that_just_fits_leaves_eight_bytes_for_the_blank_record() {
    let mut desk = Desk::new(FlushMode::Sync, 2);
    let overhead = record("Topic", 0, b"").len();
    desk.append(0, 0, &vec![1; SEGMENT as usize - overhead - 8]);
    desk.append(1, 0, b"next");
    desk.settle();
    desk.run();
    let first = desk.files.bytes(&desk.path(0));
    assert_eq!(be(first, SEGMENT as usize - 8, 4), 8);
    let (records, _) = desk.on_disk(0);
    assert_eq!(records.len(), 2);
    // One byte more fits no segment at all: refused at once, and nothing is in its way.
    desk.append(2, 0, &vec![1; SEGMENT as usize - overhead - 7]);
    assert_eq!(
        desk.take_answers().last(),
        Some(&(2, Err(AppendRefused::NoSegment)))
    );
}

#[test]
fn without_a_next_segment_an_append_waits_and_then_hears_busy() {
    let mut desk = Desk::new(FlushMode::Sync, 1);
    desk.append(0, 0, &vec![1; 60_000]);
    desk.settle();
    desk.run();
    desk.take_answers();
    desk.append(1, 0, &vec![2; 10_000]);
    desk.append(2, 0, b"small, but behind it");
    desk.settle();
    desk.later(199);
    assert!(desk.take_answers().is_empty());
    desk.later(1);
    let mut answers = desk.take_answers();
    answers.sort_by_key(|answer| answer.0);
    assert_eq!(answers[0], (1, Err(AppendRefused::Busy)));
    assert_eq!(desk.log.counters.busy_segment.get(), 1);
    // The small one fits what is left of the segment as soon as the long one is gone.
    desk.run();
    assert_eq!(
        stored(&desk.take_answers()[0]).queue_offset,
        QueueOffset(1),
        "no gap"
    );
}

#[test]
fn a_segment_in_time_lets_the_waiting_appends_in_by_their_order() {
    let mut desk = Desk::new(FlushMode::Sync, 1);
    desk.append(0, 0, &vec![1; 60_000]);
    desk.append(1, 0, &vec![2; 10_000]);
    desk.append(2, 0, b"three");
    desk.settle();
    desk.run();
    desk.take_answers();
    desk.later(100);
    desk.files
        .put(&desk.path(SEGMENT).clone(), vec![0; SEGMENT as usize]);
    desk.tell(Input::Mark(Mark::Prepared(LogOffset(2 * SEGMENT))));
    desk.settle();
    desk.run();
    let mut answers = desk.take_answers();
    answers.sort_by_key(|answer| answer.0);
    let places: Vec<_> = answers
        .iter()
        .map(|answer| (stored(answer).log_offset.0, stored(answer).queue_offset.0))
        .collect();
    let size = record("Topic", 0, &vec![2; 10_000]).len() as u64;
    assert_eq!(places, [(SEGMENT, 1), (SEGMENT + size, 2)]);
}

#[test]
fn when_no_segment_can_be_made_appends_are_refused_at_once() {
    let mut desk = Desk::new(FlushMode::Sync, 1);
    desk.append(0, 0, &vec![1; 60_000]);
    desk.append(1, 0, &vec![2; 10_000]);
    desk.settle();
    desk.run();
    desk.take_answers();
    desk.tell(Input::Mark(Mark::NoSegment(1)));
    desk.settle();
    assert_eq!(desk.take_answers(), [(1, Err(AppendRefused::NoSegment))]);
    desk.append(2, 0, &vec![2; 10_000]);
    assert_eq!(desk.take_answers(), [(2, Err(AppendRefused::NoSegment))]);
    // What fits is still stored.
    desk.append(3, 0, b"small");
    desk.settle();
    desk.run();
    assert_eq!(stored(&desk.take_answers()[0]).queue_offset, QueueOffset(1));
}

#[test]
fn a_failed_write_or_flush_tells_everybody_once_and_acknowledges_nothing_more() {
    for error in [
        WriteError::Io(5),
        WriteError::Short {
            written: 512,
            wanted: 4096,
        },
        WriteError::Flush(5),
        WriteError::Missing,
    ] {
        let mut desk = Desk::new(FlushMode::Sync, 1);
        desk.append(0, 0, b"written");
        desk.settle();
        desk.append(1, 0, b"gathered");
        desk.append(2, 0, &vec![2; 65_300]); // parked
        desk.fail(error);
        assert_eq!(desk.mark(Mark::Poisoned(0)), 1, "{error:?}");
        desk.settle();
        let mut answers = desk.take_answers();
        answers.sort_by_key(|answer| answer.0);
        let poisoned = Err(AppendRefused::Poisoned);
        assert_eq!(answers, [(0, poisoned), (1, poisoned), (2, poisoned)]);
        assert!(desk.asked.is_empty());
        desk.append(3, 0, b"later");
        assert_eq!(desk.take_answers(), [(3, poisoned)]);
        desk.later(10_000);
        desk.settle();
        assert!(desk.asked.is_empty() && desk.take_answers().is_empty());
        assert_eq!((desk.visible(), desk.durable()), (0, 0));
        desk.tell(Input::Stop);
        desk.settle();
        assert_eq!(desk.stopped, 1);
    }
}

#[test]
fn an_async_append_is_answered_when_written_and_flushed_later() {
    let mut desk = Desk::new(FlushMode::Async, 2);
    desk.append(0, 0, b"hello");
    desk.settle();
    assert!(matches!(desk.asked[0].1, Asked::Write { sync: false, .. }));
    desk.complete();
    let size = record("Topic", 0, b"hello").len() as u64;
    assert_eq!((desk.visible(), desk.durable()), (size, 0));
    desk.settle();
    assert_eq!(desk.take_answers().len(), 1);
    desk.later(499);
    assert!(desk.asked.is_empty());
    desk.later(1);
    assert_eq!(desk.asked[0].1, Asked::Sync { at: 0 });
    // Writes go on meanwhile; they are not covered by this flush.
    desk.append(1, 0, b"hello");
    desk.settle();
    let sync = desk.asked.pop_front().expect("the flush");
    desk.complete();
    desk.settle();
    assert_eq!((desk.visible(), desk.durable()), (2 * size, 0));
    desk.tell(Input::Wrote {
        ticket: sync.0,
        result: OK,
    });
    assert_eq!((desk.visible(), desk.durable()), (2 * size, size));
    desk.settle();
    desk.later(500);
    assert_eq!(desk.asked.len(), 1, "the rest is dirty");
    desk.run();
    assert_eq!(desk.durable(), 2 * size);
    desk.later(5000);
    assert!(desk.asked.is_empty(), "nothing is dirty");
}

#[test]
fn an_async_segment_is_flushed_before_the_next_one_begins() {
    let mut desk = Desk::new(FlushMode::Async, 2);
    desk.append(0, 0, &vec![1; 60_000]);
    desk.append(1, 0, &vec![2; 10_000]);
    desk.settle();
    desk.complete();
    desk.settle();
    assert!(
        matches!(desk.asked[0].1, Asked::Sync { at } if at < SEGMENT),
        "{:?}",
        desk.asked
    );
    assert_eq!(desk.take_answers().len(), 1);
    desk.complete();
    desk.settle();
    assert_eq!((desk.visible(), desk.durable()), (SEGMENT, SEGMENT));
    assert_eq!(desk.writes[1].0, SEGMENT);
    desk.run();
    assert_eq!(desk.take_answers().len(), 1);
}

#[test]
fn a_failed_async_flush_poisons_too() {
    let mut desk = Desk::new(FlushMode::Async, 2);
    desk.append(0, 0, b"hello");
    desk.settle();
    desk.run();
    assert_eq!(desk.take_answers().len(), 1);
    desk.later(500);
    desk.append(1, 0, b"under way");
    desk.settle();
    desk.fail(WriteError::Flush(5));
    desk.settle();
    assert_eq!(desk.take_answers(), [(1, Err(AppendRefused::Poisoned))]);
    desk.complete(); // the write succeeds, but nobody is told
    desk.settle();
    assert!(desk.take_answers().is_empty());
}

#[test]
fn a_stalling_device_is_answered_at_the_deadline_and_only_once() {
    let mut desk = Desk::new(FlushMode::Sync, 2);
    desk.append(0, 0, b"hello");
    desk.settle();
    desk.later(3000);
    desk.append(1, 0, b"hello");
    desk.later(1999);
    assert!(desk.take_answers().is_empty());
    assert_eq!(desk.log.deadline(), Some(Micros(1_000_000 + 5_000_000)));
    desk.later(1);
    let answers = desk.take_answers();
    assert_eq!(
        (
            answers.len(),
            answers[0].0,
            stored(&answers[0]).flush_timed_out
        ),
        (1, 0, true)
    );
    desk.complete();
    desk.settle();
    assert!(desk.take_answers().is_empty());
    desk.run();
    let answers = desk.take_answers();
    assert_eq!(
        (
            answers.len(),
            answers[0].0,
            stored(&answers[0]).flush_timed_out
        ),
        (1, 1, false)
    );
    assert_eq!(desk.log.counters.flush_timeouts.get(), 1);
    assert_eq!(desk.log.deadline(), None);
}

#[test]
fn an_append_that_does_not_wait_is_answered_when_assigned() {
    let mut desk = Desk::new(FlushMode::Sync, 2);
    desk.send(0, 0, 1, false, &record("Topic", 0, b"x"));
    assert_eq!(stored(&desk.take_answers()[0]).queue_offset, QueueOffset(0));
    desk.settle();
    desk.later(6000);
    desk.run();
    assert!(desk.take_answers().is_empty(), "exactly once");
    assert_eq!(desk.on_disk(0).0.len(), 1);
}

#[test]
fn a_batch_is_bounded_and_a_single_long_append_is_not() {
    let segment = 16 << 20;
    let mut desk = Desk::on(
        MemoryFiles::default(),
        FlushMode::Sync,
        segment,
        &empty_log(1, segment),
        &boot(4, 0),
    );
    desk.append(0, 0, b"first");
    desk.settle();
    for ask in 1..20 {
        desk.append(ask, 0, &vec![ask as u8; 100_000]);
    }
    desk.append(20, 0, &vec![20; 4 << 20]);
    desk.append(21, 0, b"last");
    desk.settle();
    let mut all = Vec::new();
    while !desk.asked.is_empty() {
        desk.complete();
        desk.settle();
        for answer in desk.take_answers() {
            let end = stored(&answer).log_offset.0;
            assert!(end < desk.durable());
            all.push(answer.0);
        }
    }
    all.sort_unstable();
    assert_eq!(all, (0..22).collect::<Vec<_>>());
    assert_eq!(desk.on_disk(0).0.len(), 22);
    let long = desk
        .writes
        .iter()
        .filter(|(_, bytes)| *bytes > 512 * 1024 + 4096)
        .count();
    assert_eq!(long, 1, "{:?}", desk.writes);
    assert!(
        desk.writes
            .iter()
            .all(|(_, bytes)| *bytes <= limits::WRITE_BYTES_MAX)
    );
}

#[test]
fn a_full_batch_goes_out_without_waiting_for_the_turn_to_settle() {
    let segment = 4 << 20;
    let mut desk = Desk::on(
        MemoryFiles::default(),
        FlushMode::Sync,
        segment,
        &empty_log(1, segment),
        &boot(4, 0),
    );
    for ask in 0..6 {
        desk.append(ask, 0, &vec![1; 100_000]);
    }
    assert_eq!(desk.writes.len(), 1);
}

#[test]
fn a_tail_held_by_a_reader_makes_appends_wait_until_it_lets_go() {
    let segment = 32 << 20;
    let mut desk = Desk::on(
        MemoryFiles::default(),
        FlushMode::Sync,
        segment,
        &empty_log(1, segment),
        &boot(4, 0),
    );
    let mut ask = 0;
    desk.append(ask, 0, b"leased");
    desk.settle();
    desk.run();
    let reader = desk.tail.clone();
    let lease = reader
        .lease(LogRange {
            at: LogOffset(0),
            len: 50,
        })
        .expect("it is there");
    while desk.log.counters.parked.get() == 0 {
        ask += 1;
        assert!(ask < 100, "the tail is 8 MiB");
        desk.append(ask, 0, &vec![1; 500_000]);
        desk.settle();
        desk.run();
    }
    desk.take_answers();
    desk.later(100);
    assert!(desk.take_answers().is_empty());
    drop(lease);
    desk.later(1);
    desk.run();
    let answers = desk.take_answers();
    assert_eq!(
        (answers[0].0, stored(&answers[0]).queue_offset.0),
        (ask, ask)
    );
}

#[test]
fn stop_flushes_and_answers_everything_and_takes_nothing_new() {
    for mode in [FlushMode::Sync, FlushMode::Async] {
        let mut desk = Desk::new(mode, 1);
        desk.append(0, 0, b"under way");
        desk.settle();
        desk.append(1, 0, b"gathered");
        desk.append(2, 0, &vec![0; 65_300]); // parked
        desk.tell(Input::Stop);
        desk.settle();
        assert_eq!(
            (desk.take_answers(), desk.stopped),
            (vec![(2, Err(AppendRefused::Stopping))], 0)
        );
        desk.append(3, 0, b"late");
        assert_eq!(desk.take_answers(), [(3, Err(AppendRefused::Stopping))]);
        desk.run();
        assert_eq!(desk.take_answers().len(), 2, "{mode:?}");
        assert_eq!(desk.stopped, 1);
        assert_eq!(desk.durable(), desk.visible());
        assert!(desk.files.is_durable(&desk.path(0)));
        assert_eq!(desk.on_disk(0).0.len(), 2);
        desk.settle();
        assert_eq!(desk.stopped, 1, "once");
    }
}

#[test]
fn queues_come_and_go_with_the_news_of_topics() {
    let mut desk = Desk::new(FlushMode::Sync, 2);
    desk.append(0, 9, b"x");
    assert_eq!(desk.take_answers(), [(0, Err(AppendRefused::NoQueue))]);
    let mut topic = boot(0, 0).topics.remove(0);
    topic.name = "Other".to_owned();
    topic.queues = vec![QueueKey(9)];
    desk.news(1, &News::Topic(topic.clone()));
    assert_eq!(
        desk.control.peek().map(|told| told.0),
        Some(Letter::Heard { version: 1 })
    );
    desk.append(1, 9, b"x");
    // A change does not reset offsets.
    desk.news(2, &News::Topic(topic));
    desk.append(2, 9, b"x");
    desk.settle();
    desk.run();
    let mut answers = desk.take_answers();
    answers.sort_by_key(|answer| answer.0);
    assert_eq!(
        answers
            .iter()
            .map(|answer| stored(answer).queue_offset.0)
            .collect::<Vec<_>>(),
        [0, 1]
    );
    // The edge to control held one letter: the second answer goes out when there is room.
    desk.control.release();
    desk.tell(Input::Room { to: CONTROL });
    assert_eq!(
        desk.control.peek().map(|told| told.0),
        Some(Letter::Heard { version: 2 })
    );
    desk.news(3, &News::TopicGone("Other".to_owned()));
    desk.append(3, 9, b"x");
    assert_eq!(desk.take_answers(), [(3, Err(AppendRefused::NoQueue))]);
}

#[test]
fn a_log_that_was_read_back_goes_on_in_its_last_block() {
    let mut desk = Desk::new(FlushMode::Sync, 2);
    desk.append(0, 0, b"before");
    desk.settle();
    desk.run();
    let end = desk.durable();
    let recovered = Recovered {
        end: LogOffset(end),
        last_block: desk.files.bytes(&desk.path(0))[..end as usize].to_vec(),
        last_store_timestamp: Millis(1_900_000_000_000),
        ..empty_log(2, SEGMENT)
    };
    let mut desk = Desk::on(
        desk.files,
        FlushMode::Sync,
        SEGMENT,
        &recovered,
        &boot(4, 1),
    );
    assert_eq!(
        desk.log.deadline(),
        Some(Micros(0)),
        "it wants to announce itself"
    );
    desk.later(0);
    assert_eq!((desk.visible(), desk.durable()), (end, end));
    desk.append(1, 0, b"after");
    desk.settle();
    desk.run();
    let (records, _) = desk.on_disk(0);
    let told: Vec<_> = records
        .iter()
        .map(|one| (one.queue_offset, one.body.as_slice()))
        .collect();
    assert_eq!(told, [(0, &b"before"[..]), (1, &b"after"[..])]);
    assert_eq!(
        records[1].store_timestamp, 1_900_000_000_000,
        "the clock was ahead then"
    );
}

#[derive(Clone, Debug)]
enum Step {
    Append {
        queue: u32,
        bytes: usize,
        count: u32,
        wait: bool,
    },
    Settle,
    Complete,
    Later(u64),
    Prepare,
    Fail,
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..5u32, prop_oneof![0..200usize, 0..30_000usize], 1..4u32, any::<bool>())
            .prop_map(|(queue, bytes, count, wait)| Step::Append { queue, bytes, count, wait }),
        4 => Just(Step::Settle),
        4 => Just(Step::Complete),
        1 => (0..300u64).prop_map(Step::Later),
        1 => Just(Step::Prepare),
        1 => Just(Step::Fail),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// Whatever happens, each append has one answer in the end; what was answered as stored is in
    /// the log where the answer says; queues have no gap; an answer that waited is never ahead of
    /// its marks.
    #[test]
    fn every_append_is_answered_once_and_truly(
        sync in any::<bool>(),
        fail in any::<bool>(),
        steps in prop::collection::vec(any_step(), 1..120),
    ) {
        let mode = if sync { FlushMode::Sync } else { FlushMode::Async };
        let mut desk = Desk::new(mode, 1);
        let mut prepared = 1;
        let mut asked = BTreeMap::new();
        let mut poisoned = false;
        let mut answers = BTreeMap::new();
        let mut ask = 0;
        for step in steps {
            match step {
                Step::Append { queue, bytes, count, wait } => {
                    let one = record("Topic", 0, &vec![ask as u8; bytes]);
                    let payload = one.repeat(count as usize);
                    asked.insert(ask, (queue, payload.len(), wait, count));
                    desk.send(ask, queue, count, wait, &payload);
                    ask += 1;
                }
                Step::Settle => desk.settle(),
                Step::Complete if !desk.asked.is_empty() => { desk.complete(); desk.settle(); }
                Step::Complete => {}
                Step::Later(millis) => desk.later(millis),
                Step::Prepare => {
                    let path = desk.path(prepared * SEGMENT);
                    desk.files.put(&path, vec![0; SEGMENT as usize]);
                    prepared += 1;
                    desk.tell(Input::Mark(Mark::Prepared(LogOffset(prepared * SEGMENT))));
                    desk.settle();
                }
                Step::Fail if fail && !desk.asked.is_empty() => {
                    desk.fail(WriteError::Flush(5));
                    desk.settle();
                    poisoned = true;
                }
                Step::Fail => {}
            }
            for (ask, result) in desk.take_answers() {
                let (_, bytes, wait, _) = asked[&ask];
                if let Ok(stored) = result {
                    let end = stored.log_offset.0 + bytes as u64;
                    let is_told = !wait || stored.flush_timed_out || desk.visible() >= end;
                    prop_assert!(is_told, "{ask} is ahead of its mark");
                    prop_assert!(!poisoned);
                }
                prop_assert!(answers.insert(ask, result).is_none(), "{ask} twice");
            }
        }
        desk.tell(Input::Stop);
        desk.settle();
        desk.run();
        desk.later(6000);
        for (ask, result) in desk.take_answers() {
            prop_assert!(answers.insert(ask, result).is_none(), "{ask} twice");
        }
        prop_assert_eq!(answers.len(), asked.len());
        prop_assert_eq!(desk.stopped, 1);
        let (records, end) = desk.on_disk(0);
        let mut next = [0u64; 5];
        for one in &records {
            prop_assert_eq!(one.at, one.log_offset);
        }
        for (ask, result) in &answers {
            let (queue, bytes, wait, count) = asked[ask];
            let Ok(stored) = result else { continue };
            if queue == 4 { prop_assert!(false, "no such queue"); }
            let last = stored.log_offset.0 + bytes as u64;
            if poisoned && (!wait || last > desk.durable()) { continue; }
            prop_assert!(last <= end);
            let place = stored.log_offset.0..last;
            let mine: Vec<_> = records.iter().filter(|one| place.contains(&one.at)).collect();
            prop_assert_eq!(mine.len(), count as usize);
            prop_assert!(mine.iter().all(|one| one.body.iter().all(|byte| *byte == *ask as u8)));
            prop_assert_eq!(mine[0].queue_offset, stored.queue_offset.0);
            if !poisoned {
                prop_assert_eq!(next[queue as usize], stored.queue_offset.0, "a gap");
                next[queue as usize] += u64::from(count);
            }
        }
    }
}
