//! The log through a running core: ranges on their way to sockets from everywhere they can be, and
//! what a role writes and reads.

mod common;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use common::*;
use shards::chunk::{CHUNK_BYTES, TailWriter, tail};
use shards::cores::LogPlan;
use shards::disk::Engine;
use shards::files::{Job, JobDone, JobError, LogDir};
use shards::role::{SyncTarget, WriteError};
use shards::segments::{Segments, segment_name};
use shards::{Effect, FileDir, FileRef, Input, LastBlock, LogOffset, LogRange, ReadAt, Ticket};

const SEGMENT_BYTES: u64 = 4 << 20;
const END: u64 = SEGMENT_BYTES + SEGMENT_BYTES / 2;
const TAIL_FROM: u64 = END - CHUNK_BYTES - CHUNK_BYTES / 2;

/// The log's bytes from `at` on.
fn log_bytes(at: u64, len: usize) -> Vec<u8> {
    (at..at + len as u64)
        .map(|i| (i * 7 + i / 509 + i / 70_001) as u8)
        .collect()
}

struct Log {
    dir: tempfile::TempDir,
    segments: Arc<Segments>,
}

/// Two segments, of [`log_bytes`] as far as the tail of [`filled_tail`] does not have them, or of
/// zeros.
fn log(filled: bool) -> Log {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    for start in [0, SEGMENT_BYTES] {
        let file = File::create(dir.path().join(segment_name(LogOffset(start)))).expect("a file");
        file.set_len(SEGMENT_BYTES).expect("space");
        if filled {
            let len = SEGMENT_BYTES.min(TAIL_FROM - start);
            file.write_all_at(&log_bytes(start, len as usize), 0)
                .expect("space");
            file.sync_all().expect("a device");
        }
    }
    let segments = Segments::open(LogDir {
        path: dir.path().to_owned(),
        segment_bytes: SEGMENT_BYTES,
    });
    Log {
        segments: segments.expect("two segments"),
        dir,
    }
}

impl Log {
    fn forget_cache(&self) {
        for start in [0, SEGMENT_BYTES] {
            let path = self.dir.path().join(segment_name(LogOffset(start)));
            let file = File::open(path).expect("it is there");
            // SAFETY: advice for a descriptor that is open.
            unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        }
    }

    fn fill_cache(&self) {
        for start in [0, SEGMENT_BYTES] {
            let path = self.dir.path().join(segment_name(LogOffset(start)));
            std::fs::read(path).expect("it is there");
        }
    }

    /// Has the page cache hold the page at `at` of the first segment, and no other one for it.
    fn cache_page(&self, at: u64) {
        let path = self.dir.path().join(segment_name(LogOffset(0)));
        let file = File::open(path).expect("it is there");
        // SAFETY: advice for a descriptor that is open.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) };
        file.read_exact_at(&mut [0; 10], at).expect("it is there");
    }

    fn plan(&self, tail: shards::chunk::Tail) -> LogPlan {
        LogPlan {
            tail,
            segments: self.segments.clone(),
            engine: Engine::Ring,
            files_max: 8,
            reads_max: 4,
            faults: None,
        }
    }
}

/// A tail of three chunks that is filled up to [`END`].
fn filled_tail() -> (TailWriter, shards::chunk::Tail) {
    let from = LogOffset(TAIL_FROM);
    let (mut writer, tail) = tail(3 * CHUNK_BYTES, from).expect("memory");
    let bytes = log_bytes(TAIL_FROM, (END - TAIL_FROM) as usize);
    assert!(writer.make_room(bytes.len() as u64, from));
    writer.append(&bytes);
    (writer, tail)
}

/// Answers a list of ranges (offset and length, 12 bytes each) with "head" and their bytes.
fn ranges_role() -> Script {
    Script::new(|_, input, fx| {
        if let Input::Frame { conn, bytes } = input {
            let ranges: Vec<LogRange> = bytes
                .chunks_exact(12)
                .map(|range| LogRange {
                    at: LogOffset(u64::from_be_bytes(range[..8].try_into().expect("eight"))),
                    len: u32::from_be_bytes(range[8..].try_into().expect("four")),
                })
                .collect();
            let len: u32 = ranges.iter().map(|range| range.len).sum();
            fx.reply_with_log(*conn, ranges, |out| {
                out.extend_from_slice(&(4 + len).to_be_bytes());
                out.extend_from_slice(b"head");
            });
        }
    })
}

fn ask(ranges: &[(u64, u32)]) -> Vec<u8> {
    ranges
        .iter()
        .flat_map(|(at, len)| [&at.to_be_bytes()[..], &len.to_be_bytes()[..]].concat())
        .collect()
}

fn answer(ranges: &[(u64, u32)]) -> Vec<u8> {
    let bodies = ranges
        .iter()
        .flat_map(|(at, len)| log_bytes(*at, *len as usize));
    b"head".iter().copied().chain(bodies).collect()
}

const REQUESTS: [&[(u64, u32)]; 10] = [
    &[(END - 1000, 1000)],
    &[(END - 300_000, 200_000), (END - 1000, 5)],
    &[(10, 1000)],
    &[(SEGMENT_BYTES - 100_000, 100_000)],
    &[(5000, 60_000), (END - 9000, 9000), (100, 7)],
    &[(0, 3_000_000)],
    &[
        (SEGMENT_BYTES, 400_000),
        (77, 70_000),
        (END - 20_000, 20_000),
    ],
    &[(12_345, 1), (23_456, 2), (34_567, 3), (45_678, 4)],
    &[(9, 0)],
    &[
        (1_000, 300),
        (END - 77, 7),
        (9_000, 130_000),
        (200_000, 20),
        (300_000, 900),
    ],
];

#[test]
fn ranges_come_from_tail_cache_or_device_and_are_the_same() {
    let log = log(true);
    let (_writer, tail) = filled_tail();
    for (cached, sendfile) in [(true, true), (true, false), (false, true)] {
        let mut plan = plan(1, vec![role(0, 0, ranges_role)], &[0]);
        plan.log = Some(log.plan(tail.clone()));
        plan.limits.cold_buffers = 2;
        plan.limits.cold_buffer_bytes = 128 << 10;
        if !sendfile {
            plan.limits.sendfile_from_bytes = u32::MAX;
        }
        let running = run(plan);
        let mut socket = connect(&running);
        for request in REQUESTS {
            if cached {
                log.fill_cache();
            } else {
                log.forget_cache();
            }
            send_frame(&mut socket, &ask(request));
            let got = read_frame(&mut socket);
            assert!(got == answer(request), "{request:?} cached {cached}");
        }
        let counters = &running.counters()[0];
        assert!(counters.ranges_from_tail.get() >= 4);
        // Reading ahead fills the cache, so that even uncached ranges may end with sendfile.
        let by_sendfile = counters.ranges_by_sendfile.get();
        assert!(by_sendfile > 0 || !(cached && sendfile));
        assert!(by_sendfile == 0 || sendfile);
        assert!(counters.ranges_by_read.get() >= 4);
        assert_eq!(counters.refused.range_failed.get(), 0);
        stop(running, &[0]);
    }
}

#[test]
fn a_range_that_is_cached_in_part_is_followed_by_its_own_rest() {
    let log = log(true);
    let (_writer, tail) = filled_tail();
    let mut plan = plan(1, vec![role(0, 0, ranges_role)], &[0]);
    plan.log = Some(log.plan(tail));
    let running = run(plan);
    let mut socket = connect(&running);
    for page in 1..20 {
        log.forget_cache();
        log.cache_page(0);
        log.cache_page(page * 40_000);
        let request = [(0, 20_000), (page * 40_000, 100), (END - 10, 10)];
        send_frame(&mut socket, &ask(&request));
        assert!(read_frame(&mut socket) == answer(&request), "{page}");
    }
    stop(running, &[0]);
}

#[test]
fn many_slow_readers_share_a_small_pool() {
    let log = log(true);
    let (_writer, tail) = filled_tail();
    let mut plan = plan(1, vec![role(0, 0, ranges_role)], &[0]);
    plan.log = Some(log.plan(tail));
    plan.limits.cold_buffers = 1;
    plan.limits.cold_buffer_bytes = 64 << 10;
    plan.limits.out_queue_bytes_max = 100 << 20;
    plan.listeners[0].send_buffer_bytes = Some(16 << 10);
    let running = run(plan);
    log.forget_cache();
    let mut stuck = connect(&running);
    send_frame(&mut stuck, &ask(&[(0, 4_000_000)]));
    wait_until(|| running.counters()[0].sends_blocked.get() > 0);
    let readers: Vec<_> = (0..6u32)
        .map(|reader| {
            let mut socket = connect(&running);
            std::thread::spawn(move || {
                let request = [(u64::from(reader) * 10_000, 500_000 + reader), (END - 5, 5)];
                send_frame(&mut socket, &ask(&request));
                std::thread::sleep(Duration::from_millis(u64::from(reader) * 5));
                let mut got = Vec::new();
                let mut buffer = [0; 30_000];
                let expected = framed(&answer(&request));
                while got.len() < expected.len() {
                    let len = socket.read(&mut buffer).expect("more comes");
                    assert!(len > 0);
                    got.extend_from_slice(&buffer[..len]);
                    std::thread::sleep(Duration::from_micros(300));
                }
                assert!(got == expected);
            })
        })
        .collect();
    for reader in readers {
        reader.join().expect("its bytes are right");
    }
    assert!(read_frame(&mut stuck) == answer(&[(0, 4_000_000)]));
    stop(running, &[0]);
}

#[test]
fn a_range_that_nobody_holds_closes_the_connection() {
    let log = log(true);
    let (_writer, tail) = filled_tail();
    let mut plan = plan(1, vec![role(0, 0, ranges_role)], &[0]);
    plan.log = Some(log.plan(tail));
    let running = run(plan);
    let mut socket = connect(&running);
    send_frame(&mut socket, &ask(&[(2 * SEGMENT_BYTES + 5, 100)]));
    let mut got = Vec::new();
    let _ = socket.read_to_end(&mut got);
    assert!(got.is_empty() || got == [0, 0, 0, 104, b'h', b'e', b'a', b'd']);
    assert_eq!(running.counters()[0].refused.range_failed.get(), 1);
    stop(running, &[0]);
}

#[test]
fn what_is_written_is_durable_readable_and_answered_once() {
    let log = log(false);
    let (mut writer, tail) = tail(4 * CHUNK_BYTES, LogOffset(0)).expect("memory");
    let plan_log = log.plan(tail);
    let queue = FileRef {
        dir: Arc::new(FileDir {
            path: log.dir.path().join("queue"),
            digits: 20,
            file_bytes: 100_000,
        }),
        number: 0,
    };
    let file = queue.clone();
    let (tell, said) = said();
    let build = move || {
        let mut step = 0u64;
        Script::new(move |_, input, fx| {
            let ticket = |step: u64| Ticket(100 + step);
            match input {
                Input::Deadline => {
                    assert!(writer.make_room(10_000, LogOffset(0)));
                    writer.append(&log_bytes(0, 10_000));
                    writer.snapshot(1);
                    fx.push(Effect::Write {
                        ticket: ticket(step),
                        at: LogOffset(0),
                        len: 8192,
                        last: Some(LastBlock { copy: 1 }),
                        sync: true,
                    });
                    return;
                }
                Input::Wrote { ticket: t, result } => {
                    assert_eq!(*t, ticket(step));
                    tell.send(format!("{result:?}")).expect("the test listens");
                }
                Input::Read { ticket: t, result } => {
                    assert_eq!(*t, ticket(step));
                    let bytes = result.expect("it is there");
                    let right = match step {
                        3 => bytes == &log_bytes(20, 5000)[..],
                        4 => bytes == &[7; 300][..],
                        _ => unreachable!("no read in step {step}"),
                    };
                    tell.send(format!("{right}")).expect("the test listens");
                }
                Input::Slow { ticket: t, done } => {
                    assert_eq!(*t, ticket(step));
                    tell.send(format!("{done:?}")).expect("the test listens");
                }
                _ => return,
            }
            step += 1;
            let ticket = ticket(step);
            let effect = match step {
                1 => {
                    let bytes = fx.bytes(|arena| arena.extend_from_slice(&[7; 300]));
                    Effect::Put {
                        ticket,
                        file: file.clone(),
                        at: 40,
                        bytes,
                    }
                }
                2 => Effect::Sync {
                    ticket,
                    target: SyncTarget::File(file.clone()),
                },
                3 => Effect::Read {
                    ticket,
                    at: ReadAt::Log(LogOffset(20)),
                    len: 5000,
                },
                4 => Effect::Read {
                    ticket,
                    at: ReadAt::File(file.clone(), 40),
                    len: 300,
                },
                5 => Effect::Write {
                    ticket,
                    at: LogOffset(2 * SEGMENT_BYTES),
                    len: 4096,
                    last: None,
                    sync: true,
                },
                6 => Effect::Slow {
                    ticket,
                    job: Job::MakeDir { path: "/".into() },
                },
                _ => return,
            };
            fx.push(effect);
        })
        .with_deadline(soon(1))
    };
    let mut plan = plan(1, vec![role(0, 0, build)], &[]);
    plan.log = Some(plan_log);
    let running = run(plan);
    let missing: Result<(), _> = Err(WriteError::Missing);
    for expected in [
        "Ok(())".to_owned(),
        "Ok(())".to_owned(),
        "Ok(())".to_owned(),
        "true".to_owned(),
        "true".to_owned(),
        format!("{missing:?}"),
        format!("{:?}", JobDone::Failed(JobError::Busy)),
    ] {
        assert_eq!(said.next(), expected);
    }
    let on_disk = std::fs::read(log.dir.path().join(segment_name(LogOffset(0)))).expect("there");
    assert!(on_disk[..10_000] == log_bytes(0, 10_000));
    assert!(on_disk[10_000..].iter().all(|byte| *byte == 0));
    let in_queue = std::fs::read(queue.path()).expect("it was made");
    assert!(in_queue[40..340] == [7; 300]);
    assert_eq!(running.counters()[0].flushes.get(), 1);
    stop(running, &[0]);
    assert!(Path::new(&queue.path()).exists());
}

#[test]
fn slow_work_is_done_in_the_background() {
    let log = log(false);
    let made = log.dir.path().join("made");
    let path = made.clone();
    let (tell, said) = said();
    let build = move || {
        Script::new(move |_, input, fx| match input {
            Input::Deadline => fx.push(Effect::Slow {
                ticket: Ticket(9),
                job: Job::MakeDir { path: path.clone() },
            }),
            Input::Slow { ticket, done } => {
                tell.send((ticket.0, done.clone()))
                    .expect("the test listens");
            }
            _ => {}
        })
        .with_deadline(soon(1))
    };
    let mut plan = plan(2, vec![role(0, 1, build)], &[]);
    plan.background = Some(shards::background::BackgroundPlan {
        cpu: None,
        jobs_max: 8,
        segments: None,
        lines: None,
    });
    let running = run(plan);
    assert_eq!(said.next(), (9, JobDone::Done));
    assert!(made.is_dir());
    let _ = std::io::stdout().flush();
    stop(running, &[0]);
}
