//! A real short write: the process's limit of file size cuts it. The limit holds for the whole
//! process, so this binary has one test.

use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use io_uring::types::FsyncFlags;
use io_uring::{opcode, squeue};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use shards::chunk::tail;
use shards::disk::{Asker, Disk, DiskPlan, Engine, Outcome, TailWrite};
use shards::files::{Job, JobDone, LogDir, carry_out};
use shards::real_files::RealFiles;
use shards::ring::{Op, Ring, fd};
use shards::role::{BLOCK_BYTES, WriteError};
use shards::segments::Segments;
use shards::{LogOffset, RoleId, Ticket};

const WANTED: usize = 16384;
const LIMIT: u64 = 8192;
const WRITE: Op = Op::Disk { key: 0, part: 0 };
const FLUSH: Op = Op::Disk { key: 0, part: 1 };

fn chained(flags: i32, chain: squeue::Flags) -> Vec<(Op, i32)> {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a scratch directory");
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .custom_flags(flags)
        .open(dir.path().join("file"))
        .expect("it can be opened");
    let memory = memmap2::MmapMut::map_anon(WANTED).expect("anonymous memory");
    let mut ring = Ring::new(4).expect("io_uring is allowed here");
    let target = fd(file.as_raw_fd());
    let write = opcode::Write::new(target, memory.as_ptr(), WANTED as u32)
        .build()
        .flags(chain);
    let flush = opcode::Fsync::new(target)
        .flags(FsyncFlags::DATASYNC)
        .build();
    // SAFETY: file and memory outlive the completions, which are waited for.
    unsafe {
        ring.push(write, WRITE);
        ring.push(flush, FLUSH);
    }
    let mut seen = Vec::new();
    for _ in 0..3 {
        ring.submit_and_wait(Some(Duration::from_millis(300)));
        ring.reap(4, &mut |op, result, _| seen.push((op, result)));
    }
    seen
}

/// A write of two blocks of which the limit lets one through.
fn through_a_disk(engine: Engine) -> impl FnOnce() -> Outcome {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a scratch directory");
    let log = LogDir {
        path: dir.path().to_owned(),
        segment_bytes: 4 * BLOCK_BYTES,
    };
    let segments = Segments::open(log.clone()).expect("an empty log opens");
    let job = Job::PrepareSegment {
        start: LogOffset(0),
        zeroed_bytes: log.segment_bytes,
    };
    let done = carry_out(&job, &log, &mut RealFiles::new(), &*segments);
    assert_eq!(done, JobDone::Done);
    move || {
        let _dir = dir;
        let (_writer, reader) = tail(0, LogOffset(0)).expect("anonymous memory");
        let plan = DiskPlan {
            engine,
            files_max: 1,
            reads_max: 1,
            faults: None,
        };
        let mut disk = Disk::new(plan, &segments, reader);
        let mut ring = Ring::new(4).expect("io_uring is allowed here");
        let asker = Asker {
            role: RoleId(0),
            ticket: Ticket(0),
        };
        let write = TailWrite {
            at: LogOffset(LIMIT - BLOCK_BYTES),
            len: 2 * BLOCK_BYTES as u32,
            last: None,
            sync: true,
        };
        disk.write(&mut ring, asker, write);
        loop {
            if let Some(answer) = disk.next_answer() {
                return answer.outcome;
            }
            ring.submit_and_wait(Some(Duration::from_secs(10)));
            let mut seen = Vec::new();
            ring.reap(4, &mut |op, result, _| seen.push((op, result)));
            for (op, result) in seen {
                if let Op::Disk { key, part } = op {
                    disk.completed(&mut ring, key, part, result);
                }
            }
        }
    }
}

#[test]
fn only_a_plain_link_cancels_the_flush_behind_a_short_write_and_says_so() {
    // SAFETY: ignoring a signal runs no code of ours.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let disks = [Engine::Ring, Engine::Blocking].map(through_a_disk);
    let before = getrlimit(Resource::Fsize);
    let limit = Rlimit {
        current: Some(LIMIT),
        maximum: before.maximum,
    };
    setrlimit(Resource::Fsize, limit).expect("lowering is allowed");
    let short = (WRITE, LIMIT as i32);
    let link = squeue::Flags::IO_LINK;
    for flags in [0, libc::O_DIRECT] {
        assert_eq!(chained(flags, link), [short, (FLUSH, -libc::ECANCELED)]);
        // Why the others are not used: a flush that succeeds behind half a write, and a flush
        // of which nothing is ever heard.
        let hard = chained(flags, squeue::Flags::IO_HARDLINK);
        assert_eq!(hard, [short, (FLUSH, 0)]);
        let skipping = chained(flags, link | squeue::Flags::SKIP_SUCCESS);
        assert_eq!(skipping, [short]);
    }
    let error = WriteError::Short {
        written: BLOCK_BYTES as u32,
        wanted: 2 * BLOCK_BYTES as u32,
    };
    for write in disks {
        match write() {
            Outcome::Wrote(result) => assert_eq!(result, Err(error)),
            other => panic!("not the answer to a write: {other:?}"),
        }
    }
    setrlimit(Resource::Fsize, before).expect("the hard limit is what it was");
}
