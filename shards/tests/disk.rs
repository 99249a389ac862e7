//! A core's disk on the real kernel: both engines, faults, queue files, reads.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use shards::chunk::{CHUNK_BYTES, TailWriter, tail};
use shards::disk::{Answer, Asker, Disk, DiskPlan, Engine, Outcome, READ_BYTES, TailWrite};
use shards::faults::{Fault, FaultAt, FaultKind, Faults};
use shards::files::{Job, JobDone, LogDir, carry_out};
use shards::real_files::RealFiles;
use shards::ring::{Op, Ring};
use shards::role::{BLOCK_BYTES, LastBlock, ReadAt, ReadError, SyncTarget, WriteError};
use shards::segments::Segments;
use shards::{FileDir, FileRef, LogOffset, RoleId, Ticket};

/// Counts this thread's allocations.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: everything is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: by the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: by the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const SEGMENT: u64 = 4 << 20;

struct Setup {
    ring: Ring,
    disk: Disk,
    writer: TailWriter,
    segments: Arc<Segments>,
    tickets: u64,
    dir: tempfile::TempDir,
}

fn setup_with(engine: Engine, count: u64, reads_max: usize, faults: Option<Faults>) -> Setup {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a scratch directory");
    let log = LogDir {
        path: dir.path().join("commitlog"),
        segment_bytes: SEGMENT,
    };
    let segments = Segments::open(log.clone()).expect("an empty log opens");
    for number in 0..count {
        let job = Job::PrepareSegment {
            start: LogOffset(number * SEGMENT),
            zeroed_bytes: SEGMENT,
        };
        let done = carry_out(&job, &log, &mut RealFiles::new(), &*segments);
        assert_eq!(done, JobDone::Done);
    }
    let (writer, reader) = tail(2 * CHUNK_BYTES, LogOffset(0)).expect("anonymous memory");
    let plan = DiskPlan {
        engine,
        files_max: 2,
        reads_max,
        faults,
    };
    Setup {
        ring: Ring::new(64).expect("io_uring is allowed here"),
        disk: Disk::new(plan, &segments, reader),
        writer,
        segments,
        tickets: 0,
        dir,
    }
}

fn setup(engine: Engine) -> Setup {
    setup_with(engine, 2, 4, None)
}

impl Setup {
    fn asker(&mut self) -> Asker {
        self.tickets += 1;
        Asker {
            role: RoleId(3),
            ticket: Ticket(self.tickets),
        }
    }

    /// Drives the ring until the next answer, as a core's loop does.
    fn answer(&mut self) -> Answer {
        let mut done = [(0u32, 0u8, 0i32); 16];
        loop {
            if let Some(answer) = self.disk.next_answer() {
                return answer;
            }
            self.ring.submit_and_wait(Some(Duration::from_secs(10)));
            let mut count = 0;
            self.ring.reap(16, &mut |op, result, _| {
                let Op::Disk { key, part } = op else {
                    panic!("only the disk uses this ring: {op:?}");
                };
                done[count] = (key, part, result);
                count += 1;
            });
            assert!(count > 0, "an operation has not ended within ten seconds");
            for &(key, part, result) in &done[..count] {
                self.disk.completed(&mut self.ring, key, part, result);
            }
        }
    }

    fn wrote(&mut self) -> Result<(), WriteError> {
        match self.answer() {
            Answer {
                asker,
                outcome: Outcome::Wrote(result),
            } => {
                assert_eq!(
                    (asker.role, asker.ticket),
                    (RoleId(3), Ticket(self.tickets))
                );
                result
            }
            other => panic!("not the answer to a write: {other:?}"),
        }
    }

    fn write(&mut self, write: TailWrite) -> Result<(), WriteError> {
        let asker = self.asker();
        self.disk.write(&mut self.ring, asker, write);
        self.wrote()
    }

    fn put(&mut self, file: &FileRef, at: u64, bytes: &[u8]) -> Result<(), WriteError> {
        let asker = self.asker();
        self.disk.put(asker, file, at, bytes);
        self.wrote()
    }

    fn sync(&mut self, target: SyncTarget) -> Result<(), WriteError> {
        let asker = self.asker();
        self.disk.sync(&mut self.ring, asker, target);
        self.wrote()
    }

    fn read(&mut self, at: ReadAt, len: u32) -> Result<Vec<u8>, ReadError> {
        let asker = self.asker();
        self.disk.read(&mut self.ring, asker, at, len);
        match self.answer().outcome {
            Outcome::Read(Ok(bytes)) => {
                let copy = bytes.to_vec();
                self.disk.give_back(&mut self.ring, bytes);
                Ok(copy)
            }
            Outcome::Read(Err(error)) => Err(error),
            other => panic!("not the answer to a read: {other:?}"),
        }
    }

    fn append(&mut self, len: u64) -> bool {
        let end = self.writer.end();
        let room = self.writer.make_room(len, end);
        if room {
            let bytes: Vec<u8> = (end.0..end.0 + len).map(byte_at).collect();
            self.writer.append(&bytes);
        }
        room
    }

    /// The write of everything from `from`'s block to the tail's end.
    fn whole_write(&mut self, from: u64, copy: u8, sync: bool) -> TailWrite {
        let at = LogOffset(from / BLOCK_BYTES * BLOCK_BYTES);
        let end = self.writer.end().0;
        let last = (end % BLOCK_BYTES > 0).then(|| {
            self.writer.snapshot(copy);
            LastBlock { copy }
        });
        let len = (end / BLOCK_BYTES * BLOCK_BYTES - at.0) as u32;
        TailWrite {
            at,
            len,
            last,
            sync,
        }
    }

    fn log_bytes(&self) -> Vec<u8> {
        let bounds = self.segments.bounds().expect("there are segments");
        let mut all = Vec::new();
        for start in (bounds.0.0..bounds.1.0).step_by(SEGMENT as usize) {
            let path = self.segments.log().segment_path(LogOffset(start));
            all.extend(std::fs::read(path).expect("the segment is there"));
        }
        all
    }

    fn file(&self, number: u64) -> FileRef {
        FileRef {
            dir: Arc::new(FileDir {
                path: self.dir.path().join("consumequeue/t/0"),
                digits: 20,
                file_bytes: 6000,
            }),
            number,
        }
    }
}

fn byte_at(position: u64) -> u8 {
    (position.wrapping_mul(0x9E37_79B9) >> 24) as u8 | 1
}

fn next(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed
}

/// Appends and writes through a segment's end and several turns of the tail's arena.
fn writes_exactly_the_tail(engine: Engine) {
    let mut s = setup(engine);
    let (mut seed, mut from, mut copy) = (99, 0u64, 0u8);
    while from < 2 * SEGMENT {
        let in_segment = SEGMENT - from % SEGMENT;
        let len = (1 + next(&mut seed) % 300_000).min(in_segment);
        assert!(s.append(len), "all is written");
        copy ^= 1;
        let sync = next(&mut seed) % 4 > 0;
        let write = s.whole_write(from, copy, sync);
        assert_eq!(s.write(write), Ok(()));
        from += len;
        if next(&mut seed) % 8 == 0 || from % SEGMENT == 0 {
            let bytes = s.log_bytes();
            let wrong = bytes.iter().enumerate().find(|(position, byte)| {
                let position = *position as u64;
                **byte
                    != if position < from {
                        byte_at(position)
                    } else {
                        0
                    }
            });
            assert_eq!(wrong, None, "after {from} bytes");
        }
    }
    assert_eq!(s.disk.in_flight(), 0);
    let traffic = s.segments.traffic();
    assert!(traffic.written_bytes.load(Ordering::Relaxed) >= 2 * SEGMENT);
}

#[test]
fn the_ring_engine_writes_exactly_the_tails_bytes() {
    writes_exactly_the_tail(Engine::Ring);
}

#[test]
fn the_blocking_engine_writes_exactly_the_tails_bytes() {
    writes_exactly_the_tail(Engine::Blocking);
}

#[test]
fn a_write_outside_of_all_segments_is_missing() {
    for engine in [Engine::Ring, Engine::Blocking] {
        let mut s = setup_with(engine, 1, 4, None);
        assert!(s.append(2 * BLOCK_BYTES));
        let write = |at, len| TailWrite {
            at: LogOffset(at),
            len,
            last: None,
            sync: true,
        };
        let block = BLOCK_BYTES as u32;
        assert_eq!(s.write(write(SEGMENT, block)), Err(WriteError::Missing));
        // Into the next segment, which would be the end of this file growing.
        let last = SEGMENT - BLOCK_BYTES;
        assert_eq!(s.write(write(last, 2 * block)), Err(WriteError::Missing));
        assert_eq!(s.write(write(last, block)), Ok(()));
    }
}

fn faulty(engine: Engine, at: FaultAt, kind: FaultKind) -> Setup {
    let second = Fault { at, nth: 2, kind };
    setup_with(engine, 1, 4, Some(Faults::new([second])))
}

#[test]
fn every_fault_of_a_write_is_an_error_and_only_there() {
    let wanted = 2 * BLOCK_BYTES as u32;
    let short = BLOCK_BYTES as u32;
    let cases = [
        (FaultAt::Write, FaultKind::Error(5), WriteError::Io(5)),
        (FaultAt::Flush, FaultKind::Error(28), WriteError::Flush(28)),
        (
            FaultAt::Write,
            FaultKind::Short(short),
            WriteError::Short {
                written: short,
                wanted,
            },
        ),
    ];
    for engine in [Engine::Ring, Engine::Blocking] {
        for (at, kind, error) in cases {
            let mut s = faulty(engine, at, kind);
            assert!(s.append(BLOCK_BYTES + 10));
            let write = s.whole_write(0, 0, true);
            assert_eq!(s.write(write), Ok(()), "the first");
            assert_eq!(s.write(write), Err(error), "the second, {engine:?}");
            assert_eq!(s.write(write), Ok(()), "the third");
            assert_eq!(s.disk.in_flight(), 0);
        }
    }
}

#[test]
fn a_delayed_write_comes_late_and_whole() {
    let time = Duration::from_millis(80);
    for engine in [Engine::Ring, Engine::Blocking] {
        let mut s = faulty(engine, FaultAt::Write, FaultKind::Delay(time));
        assert!(s.append(10));
        let write = s.whole_write(0, 0, true);
        assert_eq!(s.write(write), Ok(()));
        let begin = Instant::now();
        assert_eq!(s.write(write), Ok(()));
        assert!(begin.elapsed() >= time);
        assert_eq!(
            s.log_bytes()[..10],
            (0..10).map(byte_at).collect::<Vec<_>>()
        );
    }
}

#[test]
fn faults_of_files_and_reads_are_errors() {
    let mut s = faulty(Engine::Ring, FaultAt::Put, FaultKind::Error(28));
    let file = s.file(0);
    assert_eq!(s.put(&file, 0, b"one"), Ok(()));
    assert_eq!(s.put(&file, 0, b"two"), Err(WriteError::Io(28)));
    assert_eq!(s.read(ReadAt::File(file, 0), 3), Ok(b"one".to_vec()));
    let mut s = faulty(Engine::Ring, FaultAt::Put, FaultKind::Short(1));
    let file = s.file(0);
    assert_eq!(s.put(&file, 0, b"one"), Ok(()));
    let (written, wanted) = (1, 3);
    let short = WriteError::Short { written, wanted };
    assert_eq!(s.put(&file, 0, b"two"), Err(short));
    let mut s = faulty(Engine::Ring, FaultAt::Read, FaultKind::Error(5));
    let file = s.file(0);
    assert_eq!(s.put(&file, 0, b"one"), Ok(()));
    assert!(s.read(ReadAt::File(file.clone(), 0), 3).is_ok());
    let failed = s.read(ReadAt::File(file.clone(), 0), 3);
    assert_eq!(failed, Err(ReadError::Io(5)));
    let mut s = faulty(Engine::Ring, FaultAt::Flush, FaultKind::Error(5));
    let file = s.file(0);
    assert_eq!(s.put(&file, 0, b"one"), Ok(()));
    assert_eq!(s.sync(SyncTarget::File(file.clone())), Ok(()));
    let failed = s.sync(SyncTarget::File(file));
    assert_eq!(failed, Err(WriteError::Flush(5)));
}

#[test]
fn a_put_makes_its_file_sparse_at_full_length_with_its_directories() {
    let mut s = setup(Engine::Ring);
    let file = s.file(6000);
    assert_eq!(s.put(&file, 4000, b"unit"), Ok(()));
    let path = s.dir.path().join("consumequeue/t/0/00000000000000006000");
    let meta = std::fs::metadata(&path).expect("it was made");
    assert_eq!(meta.len(), 6000);
    assert!(meta.blocks() * 512 < 6000, "it is sparse");
    let mut expected = vec![0; 6000];
    expected[4000..4004].copy_from_slice(b"unit");
    assert_eq!(std::fs::read(&path).expect("readable"), expected);
    assert_eq!(s.put(&file, 5996, b"last"), Ok(()));
    assert_eq!(s.put(&file, 5997, b"over"), Err(WriteError::Missing));
    assert_eq!(s.put(&file, u64::MAX, b"over"), Err(WriteError::Missing));
    assert_eq!(std::fs::metadata(&path).expect("there").len(), 6000);
    assert_eq!(s.sync(SyncTarget::File(file)), Ok(()));
    let unknown = s.file(12_000);
    let missing = s.sync(SyncTarget::File(unknown));
    assert_eq!(missing, Err(WriteError::Missing));
}

#[test]
fn a_turn_lets_go_of_a_segment_that_is_to_be_retired() {
    let mut s = setup(Engine::Ring);
    // Now the disk has a list of its own.
    assert!(s.read(ReadAt::Log(LogOffset(0)), 1).is_ok());
    let taken = s.segments.take(LogOffset(0)).expect("it is open");
    assert!(!Segments::is_unused(&taken));
    s.disk.turn();
    assert!(Segments::is_unused(&taken));
}

#[test]
fn a_file_that_a_death_left_short_gets_its_length() {
    let mut s = setup(Engine::Ring);
    let file = s.file(0);
    std::fs::create_dir_all(&file.dir.path).expect("makeable");
    std::fs::write(file.path(), b"").expect("makeable");
    assert_eq!(s.put(&file, 10, b"x"), Ok(()));
    assert_eq!(std::fs::metadata(file.path()).expect("there").len(), 6000);
}

#[test]
fn more_files_than_descriptors_keep_their_own_bytes() {
    let mut s = setup(Engine::Ring);
    let files: Vec<FileRef> = (0..7).map(|number| s.file(number * 6000)).collect();
    for round in 0..5u8 {
        for (number, file) in files.iter().enumerate() {
            let byte = [round * 10 + number as u8];
            assert_eq!(s.put(file, u64::from(round), &byte), Ok(()));
        }
    }
    for (number, file) in files.iter().enumerate() {
        let expected: Vec<u8> = (0..5).map(|round| round * 10 + number as u8).collect();
        assert_eq!(s.read(ReadAt::File(file.clone(), 0), 5), Ok(expected));
    }
    let open = std::fs::read_dir("/proc/self/fd")
        .expect("readable")
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter(|path| path.starts_with(s.dir.path().join("consumequeue")))
        .count();
    assert_eq!(open, 2);
}

#[test]
fn a_removed_file_is_made_anew() {
    let mut s = setup(Engine::Ring);
    let file = s.file(0);
    assert_eq!(s.put(&file, 0, b"old"), Ok(()));
    let log = s.segments.log().clone();
    let job = Job::RemoveTree {
        path: s.dir.path().join("consumequeue/t"),
    };
    let done = carry_out(&job, &log, &mut RealFiles::new(), &*s.segments);
    assert_eq!(done, JobDone::Done);
    s.disk.turn();
    let missing = s.read(ReadAt::File(file.clone(), 0), 3);
    assert_eq!(missing, Err(ReadError::Missing));
    assert_eq!(s.put(&file, 3, b"new"), Ok(()));
    assert_eq!(
        std::fs::read(file.path()).expect("there")[..6],
        *b"\0\0\0new"
    );
    // Its directories have gone with it and are there again.
    assert_eq!(s.sync(SyncTarget::File(file)), Ok(()));
}

/// Empties the page cache of one file.
fn forget_pages(path: &Path) {
    let file = std::fs::File::open(path).expect("it is there");
    file.sync_all().expect("it can be flushed");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("it is a file");
}

#[test]
fn a_read_is_whole_or_an_error() {
    let mut s = setup(Engine::Ring);
    let file = s.file(0);
    let bytes: Vec<u8> = (0..6000u64).map(byte_at).collect();
    assert_eq!(s.put(&file, 0, &bytes), Ok(()));
    for cached in [true, false] {
        if !cached {
            forget_pages(&file.path());
        }
        let at = |position| ReadAt::File(file.clone(), position);
        assert_eq!(s.read(at(0), 6000).as_deref(), Ok(&bytes[..]));
        assert_eq!(s.read(at(5990), 10).as_deref(), Ok(&bytes[5990..]));
        assert_eq!(s.read(at(5990), 11), Err(ReadError::Missing));
        assert_eq!(s.read(at(6000), 1), Err(ReadError::Missing));
        assert_eq!(s.read(at(9), 0), Ok(Vec::new()));
    }
    let missing = ReadAt::File(s.file(6000), 0);
    assert_eq!(s.read(missing, 1), Err(ReadError::Missing));
    assert_eq!(s.disk.in_flight(), 0);
}

#[test]
fn the_log_is_read_from_the_tail_and_else_from_its_segment() {
    let mut s = setup(Engine::Ring);
    // A log that is about to be continued: the tail holds nothing of it.
    let path = s.segments.log().segment_path(LogOffset(0));
    let segment = std::fs::OpenOptions::new().write(true).open(path);
    let segment = segment.expect("it was prepared");
    segment.write_all_at(b"recorded", 0).expect("writable");
    let log = ReadAt::Log(LogOffset(0));
    assert_eq!(s.read(log, 8), Ok(b"recorded".to_vec()));
    for _ in 0..24 {
        let from = s.writer.end().0;
        assert!(s.append(100_000));
        let write = s.whole_write(from, 0, true);
        assert_eq!(s.write(write), Ok(()));
    }
    let end = s.writer.end().0;
    for at in [0, 4095, CHUNK_BYTES, 1_500_000, end - 5000, end - 100_000] {
        let expected: Vec<u8> = (at..at + 5000).map(byte_at).collect();
        assert_eq!(
            s.read(ReadAt::Log(LogOffset(at)), 5000),
            Ok(expected),
            "{at}"
        );
    }
    // Longer than a pooled buffer, and from the device.
    forget_pages(&s.segments.log().segment_path(LogOffset(0)));
    let long = READ_BYTES as u64 * 4;
    let expected: Vec<u8> = (0..long).map(byte_at).collect();
    assert_eq!(s.read(ReadAt::Log(LogOffset(0)), long as u32), Ok(expected));
    let over_the_end = s.read(ReadAt::Log(LogOffset(SEGMENT - 10)), 11);
    assert_eq!(over_the_end, Err(ReadError::Missing));
    let nowhere = s.read(ReadAt::Log(LogOffset(2 * SEGMENT)), 1);
    assert_eq!(nowhere, Err(ReadError::Missing));
}

#[test]
fn the_tail_answers_before_anything_is_on_disk() {
    let mut s = setup(Engine::Ring);
    assert!(s.append(5000));
    let expected: Vec<u8> = (10..4500).map(byte_at).collect();
    assert_eq!(s.read(ReadAt::Log(LogOffset(10)), 4490), Ok(expected));
}

#[test]
fn reads_wait_for_a_buffer_and_all_are_answered() {
    let mut s = setup_with(Engine::Ring, 1, 2, None);
    let file = s.file(0);
    let bytes: Vec<u8> = (0..6000u64).map(byte_at).collect();
    assert_eq!(s.put(&file, 0, &bytes), Ok(()));
    forget_pages(&file.path());
    // Every third fails, and gives its buffer on at once.
    let missing = s.file(600_000);
    for number in 0..30u64 {
        let asker = s.asker();
        let which = if number % 3 == 2 { &missing } else { &file };
        let at = ReadAt::File(which.clone(), number * 100);
        s.disk.read(&mut s.ring, asker, at, 100);
    }
    let first = s.tickets - 29;
    let mut seen = Vec::new();
    while seen.len() < 30 {
        let answer = s.answer();
        let number = answer.asker.ticket.0 - first;
        match answer.outcome {
            Outcome::Read(Ok(read)) => {
                let at = number as usize * 100;
                assert_eq!(read[..], bytes[at..at + 100]);
                s.disk.give_back(&mut s.ring, read);
            }
            Outcome::Read(Err(error)) => {
                assert_eq!((number % 3, error), (2, ReadError::Missing));
            }
            other => panic!("{other:?}"),
        }
        seen.push(number);
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..30).collect::<Vec<_>>());
}

#[test]
fn more_flushes_than_slots_are_all_answered() {
    let mut s = setup(Engine::Ring);
    assert!(s.append(10));
    let write = s.whole_write(0, 0, true);
    for number in 0..200 {
        let asker = s.asker();
        match number % 3 {
            0 => s.disk.write(&mut s.ring, asker, write),
            1 => {
                let at = SyncTarget::Segment(LogOffset(0));
                s.disk.sync(&mut s.ring, asker, at);
            }
            // Nowhere: answered without a slot.
            _ => {
                let at = SyncTarget::Segment(LogOffset(9 * SEGMENT));
                s.disk.sync(&mut s.ring, asker, at);
            }
        }
    }
    let mut failed = 0;
    for _ in 0..200 {
        match s.answer().outcome {
            Outcome::Wrote(Ok(())) => {}
            Outcome::Wrote(Err(WriteError::Missing)) => failed += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((failed, s.disk.in_flight()), (66, 0));
}

#[test]
fn the_steady_state_allocates_nothing() {
    for engine in [Engine::Ring, Engine::Blocking] {
        let mut s = setup(engine);
        let files = [s.file(0), s.file(6000)];
        assert!(s.append(10_000));
        let write = s.whole_write(0, 0, true);
        let mut before = 0;
        for round in 0..300u64 {
            if round == 100 {
                before = ALLOCATIONS.get();
            }
            assert_eq!(s.write(write), Ok(()));
            for file in &files {
                assert_eq!(s.put(file, round * 20, &[7; 20]), Ok(()));
                let places = [
                    ReadAt::File(file.clone(), round * 20),
                    ReadAt::Log(LogOffset(round)),
                ];
                for at in places {
                    let asker = s.asker();
                    s.disk.read(&mut s.ring, asker, at, 20);
                    let Outcome::Read(Ok(bytes)) = s.answer().outcome else {
                        panic!("it is there");
                    };
                    s.disk.give_back(&mut s.ring, bytes);
                }
            }
            s.disk.turn();
        }
        assert_eq!(ALLOCATIONS.get() - before, 0, "{engine:?}");
    }
}
