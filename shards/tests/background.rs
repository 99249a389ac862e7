//! The background executor on the real kernel.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use shards::background::{Background, BackgroundPlan, JobAnswer, Jobs, Mailbox};
use shards::disk::Asker;
use shards::files::{Job, JobDone, JobError, LogDir};
use shards::mesh::Doorbell;
use shards::segments::{Segments, segment_name};
use shards::{LogOffset, RoleId, Ticket};

const SEGMENT: u64 = 4 << 20;

struct Setup {
    background: Background,
    jobs: Jobs,
    mailbox: Mailbox,
    doorbell: Arc<Doorbell>,
    segments: Arc<Segments>,
    dir: tempfile::TempDir,
}

fn setup(jobs_max: usize) -> Setup {
    setup_in(
        tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a scratch directory"),
        jobs_max,
    )
}

fn setup_in(dir: tempfile::TempDir, jobs_max: usize) -> Setup {
    let segments = Segments::open(LogDir {
        path: dir.path().join("commitlog"),
        segment_bytes: SEGMENT,
    })
    .expect("the log opens");
    let plan = BackgroundPlan {
        cpu: Some(0),
        jobs_max,
        segments: Some(segments.clone()),
        lines: None,
    };
    let doorbell = Arc::new(Doorbell::new().expect("an eventfd"));
    let (background, mut ends) =
        Background::start(plan, vec![doorbell.clone()]).expect("it starts here");
    let (jobs, mailbox) = ends.pop().expect("one core");
    Setup {
        background,
        jobs,
        mailbox,
        doorbell,
        segments,
        dir,
    }
}

fn asker(ticket: u64) -> Asker {
    Asker {
        role: RoleId(1),
        ticket: Ticket(ticket),
    }
}

impl Setup {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn next(&mut self) -> JobAnswer {
        let begin = Instant::now();
        loop {
            if let Some(answer) = self.mailbox.next() {
                return answer;
            }
            assert!(begin.elapsed() < Duration::from_secs(20), "no answer");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn carry_out(&mut self, job: Job) -> JobDone {
        self.jobs.ask(asker(7), job).expect("there is room");
        let answer = self.next();
        assert_eq!(answer.asker, asker(7));
        answer.done
    }
}

fn replace(path: &Path, bytes: &str) -> Job {
    Job::ReplaceFile {
        path: path.to_owned(),
        bytes: bytes.as_bytes().to_vec(),
    }
}

#[test]
fn jobs_on_one_path_keep_their_order_and_all_are_answered() {
    let mut s = setup(100);
    let path = s.path("x.json");
    for number in 0..40u64 {
        let bytes = format!("{number}");
        s.jobs
            .ask(asker(number), replace(&path, &bytes))
            .expect("there is room");
    }
    let tickets: Vec<u64> = (0..40).map(|_| s.next().asker.ticket.0).collect();
    assert_eq!(tickets, (0..40).collect::<Vec<_>>());
    assert_eq!(std::fs::read(&path).expect("it is there"), b"39");
    // A directory waits for what was asked of its files.
    let below = s.path("d/e");
    let jobs = [
        Job::MakeDir {
            path: below.clone(),
        },
        replace(&below.join("f"), "f"),
        Job::RemoveTree { path: s.path("d") },
    ];
    for (number, job) in jobs.into_iter().enumerate() {
        s.jobs
            .ask(asker(number as u64), job)
            .expect("there is room");
    }
    for number in 0..3 {
        let done = JobDone::Done;
        let asker = asker(number);
        assert_eq!(s.next(), JobAnswer { asker, done });
    }
    assert!(!s.path("d").exists());
    // A segment is taken away only after it was made, however long that takes.
    let start = LogOffset(0);
    let prepare = Job::PrepareSegment {
        start,
        zeroed_bytes: SEGMENT,
    };
    for (number, job) in [(0, prepare), (1, Job::RetireSegment { start })] {
        s.jobs.ask(asker(number), job).expect("there is room");
    }
    assert_eq!(s.next().asker, asker(0));
    assert_eq!(s.next().asker, asker(1));
    assert_eq!(s.segments.bounds(), None);
    s.background.stop();
}

/// Waits until the doorbell was rung.
fn heard(doorbell: &Doorbell) {
    let mut count = [0; 8];
    let begin = Instant::now();
    while rustix::io::read(doorbell.event(), &mut count).is_err() {
        assert!(begin.elapsed() < Duration::from_secs(5), "not rung");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn an_answer_rings_a_sleeping_core() {
    let mut s = setup(10);
    s.doorbell.fall_asleep();
    let job = Job::Space { path: s.path("") };
    let done = s.carry_out(job);
    assert!(matches!(done, JobDone::Space(space) if space.free > 0 && space.used > 0));
    heard(&s.doorbell);
    s.background.stop();
}

#[test]
fn too_many_jobs_are_refused_at_once() {
    let mut s = setup(4);
    let path = s.path("x.json");
    let mut taken = 0;
    let mut refused = 0;
    for _ in 0..200 {
        match s.jobs.ask(asker(1), replace(&path, "x")) {
            Ok(()) => taken += 1,
            Err(JobError::Busy) => refused += 1,
            Err(other) => panic!("{other:?}"),
        }
    }
    assert!(taken >= 4 && refused > 0);
    for _ in 0..taken {
        assert_eq!(s.next().done, JobDone::Done);
    }
    // There is room again.
    assert_eq!(s.carry_out(replace(&path, "x")), JobDone::Done);
    s.background.stop();
}

fn assert_zero(path: &Path) {
    let bytes = std::fs::read(path).expect("it is there");
    assert_eq!(bytes.len() as u64, SEGMENT);
    assert!(bytes.iter().all(|&byte| byte == 0));
}

#[test]
fn a_prepared_segment_is_all_zero_written_and_open() {
    let mut s = setup(10);
    let mut view = s.segments.view();
    for (number, hurry) in [(0, true), (1, false)] {
        s.background.hurry(hurry);
        let start = LogOffset(number * SEGMENT);
        let job = Job::PrepareSegment {
            start,
            zeroed_bytes: SEGMENT,
        };
        assert_eq!(s.carry_out(job), JobDone::Done);
        let path = s.segments.log().segment_path(start);
        assert_zero(&path);
        assert!(view.find(start).is_some());
        // Not one unwritten extent is left: that is what makes appends fast.
        let file = std::fs::File::open(&path).expect("it is there");
        assert!(unwritten_extents(&file).is_none_or(|count| count == 0));
    }
    let hidden = std::fs::read_dir(s.path("commitlog/.ringmq")).expect("it is there");
    assert_eq!(hidden.count(), 0);
    s.background.stop();
}

/// FIEMAP's count of extents that are allocated and unwritten, where the file system knows.
fn unwritten_extents(file: &std::fs::File) -> Option<usize> {
    use std::os::fd::AsRawFd;
    #[repr(C)]
    struct Extent {
        logical: u64,
        physical: u64,
        length: u64,
        reserved64: [u64; 2],
        flags: u32,
        reserved: [u32; 3],
    }
    #[repr(C)]
    struct Map {
        start: u64,
        length: u64,
        flags: u32,
        mapped: u32,
        count: u32,
        reserved: u32,
        extents: [Extent; 64],
    }
    const FS_IOC_FIEMAP: libc::c_ulong = 0xC020_660B;
    const UNWRITTEN: u32 = 0x800;
    // SAFETY: all fields are numbers.
    let mut map: Map = unsafe { std::mem::zeroed() };
    map.length = u64::MAX;
    map.count = 64;
    // SAFETY: the kernel fills at most `count` extents.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FIEMAP, &mut map) };
    let extents = &map.extents[..map.mapped as usize];
    let unwritten = extents.iter().filter(|extent| extent.flags & UNWRITTEN > 0);
    (result == 0).then(|| unwritten.count())
}

#[test]
fn paced_zeroing_leaves_the_device_to_others() {
    let mut s = setup(10);
    let job = Job::PrepareSegment {
        start: LogOffset(0),
        zeroed_bytes: SEGMENT,
    };
    let begin = Instant::now();
    assert_eq!(s.carry_out(job), JobDone::Done);
    // 4 MiB at 64 MB/s, in steps of 1 MiB, the first of which does not wait.
    let least = Duration::from_secs_f64((SEGMENT - (1 << 20)) as f64 / 64e6);
    assert!(begin.elapsed() >= least, "{:?}", begin.elapsed());
    s.background.stop();
}

#[test]
fn only_the_asked_part_of_a_segment_is_zeroed() {
    let mut s = setup(10);
    s.background.hurry(true);
    let start = LogOffset(0);
    let job = Job::PrepareSegment {
        start,
        zeroed_bytes: 0,
    };
    assert_eq!(s.carry_out(job), JobDone::Done);
    let path = s.segments.log().segment_path(start);
    let (from, bytes) = (4096 + 77, 3 << 20);
    for (from, bytes) in [(from, bytes), (8200, 10), (4096, 4096), (5000, 100)] {
        std::fs::write(&path, vec![9; SEGMENT as usize]).expect("writable");
        let job = Job::ZeroSegment { start, from, bytes };
        assert_eq!(s.carry_out(job), JobDone::Done);
        let seen = std::fs::read(&path).expect("it is there");
        let wrong = seen.iter().enumerate().find(|(at, byte)| {
            let inside = (from..from + bytes).contains(&(*at as u64));
            **byte != if inside { 0 } else { 9 }
        });
        assert_eq!(wrong, None, "{from} + {bytes}");
    }
    let job = Job::ZeroSegment {
        start: LogOffset(SEGMENT),
        from: 0,
        bytes: 4096,
    };
    let failed = s.carry_out(job);
    assert!(matches!(failed, JobDone::Failed(JobError::Io { errno, .. }) if errno == libc::ENOENT));
    s.background.stop();
}

#[test]
fn a_retired_segment_waits_for_the_last_core_that_uses_it() {
    let mut s = setup(10);
    s.background.hurry(true);
    for number in 0..2 {
        let job = Job::PrepareSegment {
            start: LogOffset(number * SEGMENT),
            zeroed_bytes: 4096,
        };
        assert_eq!(s.carry_out(job), JobDone::Done);
    }
    let start = LogOffset(0);
    let path = s.segments.log().segment_path(start);
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .expect("it is there");
    file.write_all_at(b"still here", 0).expect("writable");
    let mut view = s.segments.view();
    let used = view.find(start).expect("it is open").clone();
    s.doorbell.fall_asleep();
    s.jobs
        .ask(asker(1), Job::RetireSegment { start })
        .expect("there is room");
    std::thread::sleep(Duration::from_millis(150));
    // Out of the log, a sleeping core was woken to let go, and the bytes are still there.
    assert!(!path.exists());
    heard(&s.doorbell);
    assert!(s.mailbox.is_empty());
    let mut bytes = [0; 10];
    rustix::io::pread(used.buffered(), &mut bytes, 0).expect("readable");
    assert_eq!(&bytes, b"still here");
    assert!(view.refresh());
    drop(used);
    assert_eq!(s.next().done, JobDone::Done);
    assert_eq!(file.metadata().expect("open").len(), 0);
    assert_eq!(
        s.segments.bounds().map(|(first, _)| first),
        Some(LogOffset(SEGMENT))
    );
    s.background.stop();
}

#[test]
fn what_a_death_left_is_swept_at_the_next_start() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a scratch directory");
    let hidden = dir.path().join("commitlog/.ringmq");
    std::fs::create_dir_all(&hidden).expect("makeable");
    let name = segment_name(LogOffset(0));
    std::fs::write(hidden.join(&name), vec![1; 20 << 20]).expect("makeable");
    std::fs::write(hidden.join(format!("{name}.retired")), "x").expect("makeable");
    std::fs::write(hidden.join("notes"), "not ours").expect("makeable");
    let mut s = setup_in(dir, 10);
    s.background.hurry(true);
    // Waits for the sweep, which would take its unfinished file away.
    let job = Job::PrepareSegment {
        start: LogOffset(0),
        zeroed_bytes: SEGMENT,
    };
    assert_eq!(s.carry_out(job), JobDone::Done);
    assert_zero(&s.segments.log().segment_path(LogOffset(0)));
    let left: Vec<_> = std::fs::read_dir(&hidden)
        .expect("it is there")
        .map(|entry| entry.expect("readable").file_name())
        .collect();
    assert_eq!(left, ["notes"]);
    s.background.stop();
}

struct Kept(std::sync::mpsc::Sender<(String, Option<String>)>);

impl log::Log for Kept {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }
    fn log(&self, record: &log::Record<'_>) {
        let thread = std::thread::current().name().map(str::to_owned);
        // The test may be over.
        let _ = self.0.send((record.args().to_string(), thread));
    }
    fn flush(&self) {}
}

#[test]
fn a_cores_log_lines_are_written_on_the_background_thread() {
    let (sender, receiver) = std::sync::mpsc::channel();
    let level = log::LevelFilter::Info;
    let lines = shards::log_lines::install(Box::new(Kept(sender)), level, 100);
    let plan = BackgroundPlan {
        cpu: None,
        jobs_max: 1,
        segments: None,
        lines: Some(lines.expect("no other logger here")),
    };
    let (background, _) = Background::start(plan, Vec::new()).expect("it starts here");
    let core = std::thread::spawn(|| {
        shards::log_lines::mark_core_thread();
        for number in 0..10 {
            log::info!("line {number}");
        }
    });
    core.join().expect("the core ends");
    for number in 0..10 {
        let (text, thread) = receiver
            .recv_timeout(Duration::from_secs(10))
            .expect("it is written");
        assert_eq!(text, format!("line {number}"));
        assert_eq!(thread.as_deref(), Some("background"));
    }
    background.stop();
}

#[test]
fn stopping_carries_out_what_was_asked() {
    let s = setup(100);
    let paths: Vec<PathBuf> = (0..30).map(|number| s.path(&format!("{number}"))).collect();
    for path in &paths {
        s.jobs
            .ask(asker(1), replace(path, "x"))
            .expect("there is room");
    }
    s.background.stop();
    assert!(paths.iter().all(|path| path.exists()));
    // Nobody is there any more.
    let refused = s.jobs.ask(asker(1), replace(&paths[0], "y"));
    assert_eq!(refused, Err(JobError::Busy));
}
