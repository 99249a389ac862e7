//! The background executor: one glommio thread for everything slow.
//!
//! ```text
//!  core --- Jobs::ask ---> bounded channel ---> serve: order by path ---> one async fn per job
//!  core <-- Mailbox::next <-- bounded ring, doorbell ----------------------------/
//!  core --- log lines ---> bounded ring ---> the application's logger
//! ```
//!
//! Cores never wait for it: when too much is waiting, a job is refused at once. Jobs on one path,
//! or on a directory and what lies in it, are carried out in the order in which they were asked;
//! others run beside each other. Short jobs block a helper thread of the executor ([`carry_out`]
//! over [`RealFiles`]); those on whole segments go in paced steps (`segment_jobs`).

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::Duration;

use glommio::{LocalExecutor, LocalExecutorBuilder, Placement, PoolPlacement};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use thiserror::Error;

use crate::disk::Asker;
use crate::files::{Job, JobDone, JobError, LogDir, SegmentTable, carry_out};
use crate::log_lines::LogLines;
use crate::mesh::Doorbell;
use crate::real_files::RealFiles;
use crate::segment_jobs::{self, Pace};
use crate::segments::{Segments, Traffic};

/// What glommio wants to be allowed to lock.
const LOCKED_BYTES_MIN: u64 = 512 * 1024;
/// Jobs carried out at once; more wait their turn.
const RUNNING_MAX: usize = 8;
/// A wake-up that got lost, which glommio does not rule out, costs at most this.
const TICK: Duration = Duration::from_millis(200);

/// Why there is no background executor.
#[derive(Debug, Error)]
pub enum BackgroundError {
    #[error(
        "only {bytes} bytes of memory may be locked, {LOCKED_BYTES_MIN} are needed: raise the limit \
         (`ulimit -l 512`; LimitMEMLOCK=512K in a systemd unit; --ulimit memlock=524288 for a \
         container)"
    )]
    LockedMemory { bytes: u64 },
    #[error("the background thread cannot be started: {0}")]
    Start(io::Error),
}

/// How the executor is set up.
pub struct BackgroundPlan {
    /// The CPU that it is pinned to, or wherever there is room.
    pub cpu: Option<usize>,
    /// Jobs that may wait or run, over all cores.
    pub jobs_max: usize,
    /// The log; jobs on segments fail without it.
    pub segments: Option<Arc<Segments>>,
    pub lines: Option<LogLines>,
}

/// The executor, as its starter holds it. Dropped, it ends without waiting.
pub struct Background {
    shared: &'static Shared,
    thread: Option<JoinHandle<()>>,
}

/// Rung by any core: something waits for the background thread.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    rung: AtomicU64,
    sleeps: AtomicBool,
    /// Of the task that waits; always the same one.
    waker: OnceLock<Waker>,
}

/// Outlives the executor, which is why it is never freed: a core may hold the bell for longer.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(crate) bell: Bell,
    pub(crate) hurry: AtomicBool,
    pub(crate) stop: AtomicBool,
    /// Jobs asked and not answered.
    jobs: AtomicUsize,
}

struct Asked {
    core: usize,
    asker: Asker,
    job: Job,
}

/// One answer to a job.
#[derive(Debug, PartialEq, Eq)]
pub struct JobAnswer {
    pub asker: Asker,
    pub done: JobDone,
}

/// One core's way in.
#[derive(Clone)]
pub struct Jobs {
    core: usize,
    jobs_max: usize,
    sender: SyncSender<Asked>,
    shared: &'static Shared,
}

/// One core's way back; the core's doorbell is rung after each answer.
pub struct Mailbox {
    answers: rtrb::Consumer<JobAnswer>,
}

impl Jobs {
    /// Asks for a job, or says that nothing will come of it now. Never waits.
    pub fn ask(&self, asker: Asker, job: Job) -> Result<(), JobError> {
        let jobs = &self.shared.jobs;
        if jobs.fetch_add(1, Ordering::Relaxed) >= self.jobs_max {
            jobs.fetch_sub(1, Ordering::Relaxed);
            return Err(JobError::Busy);
        }
        let core = self.core;
        if self.sender.try_send(Asked { core, asker, job }).is_err() {
            jobs.fetch_sub(1, Ordering::Relaxed);
            return Err(JobError::Busy);
        }
        self.shared.bell.ring();
        Ok(())
    }
}

/// The answers that have come, oldest first; after a `None` more can come.
impl Iterator for Mailbox {
    type Item = JobAnswer;

    fn next(&mut self) -> Option<JobAnswer> {
        self.answers.pop().ok()
    }
}

impl Mailbox {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.answers.is_empty()
    }
}

impl Background {
    /// Starts the executor for as many cores as there are doorbells; answers each core's ends.
    ///
    /// # Errors
    /// [`BackgroundError`], with the cure where there is one.
    pub fn start(
        plan: BackgroundPlan,
        doorbells: Vec<Arc<Doorbell>>,
    ) -> Result<(Background, Vec<(Jobs, Mailbox)>), BackgroundError> {
        allow_locked_memory()?;
        let shared: &'static Shared = Box::leak(Box::default());
        let jobs_max = plan.jobs_max.max(1);
        let (sender, asked) = mpsc::sync_channel(jobs_max);
        let mut ends = Vec::with_capacity(doorbells.len());
        let mut cores = Vec::with_capacity(doorbells.len());
        for (core, doorbell) in doorbells.into_iter().enumerate() {
            let (producer, answers) = rtrb::RingBuffer::new(jobs_max);
            cores.push((producer, doorbell));
            let jobs = Jobs {
                core,
                jobs_max,
                sender: sender.clone(),
                shared,
            };
            ends.push((jobs, Mailbox { answers }));
        }
        let (ready, started) = mpsc::sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("background".to_owned())
            .spawn(move || run_thread(plan, shared, asked, cores, &ready))
            .map_err(BackgroundError::Start)?;
        match started.recv() {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(BackgroundError::Start(error)),
            Err(_) => {
                let ended = io::Error::other("it ended at once");
                return Err(BackgroundError::Start(ended));
            }
        }
        let thread = Some(thread);
        Ok((Background { shared, thread }, ends))
    }

    /// While true, segments are zeroed as fast as the device goes: for the time before a store is
    /// ready, when there is nobody to disturb.
    pub fn hurry(&self, hurry: bool) {
        self.shared.hurry.store(hurry, Ordering::Relaxed);
    }

    /// Carries out what was asked, writes the last log lines, and ends.
    pub fn stop(mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.bell.ring();
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported by its own thread.
            let _ = thread.join();
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.bell.ring();
    }
}

impl Bell {
    /// Wakes the executor if it sleeps: one system call then, none otherwise.
    pub(crate) fn ring(&self) {
        self.rung.fetch_add(1, Ordering::SeqCst);
        let asleep = self.sleeps.load(Ordering::SeqCst);
        if asleep && self.sleeps.swap(false, Ordering::SeqCst) {
            self.waker.get().inspect(|waker| waker.wake_by_ref());
        }
    }

    fn wait(&self, seen: u64) -> BellWait<'_> {
        BellWait { bell: self, seen }
    }
}

/// Ends once the bell was rung more often than `seen`.
struct BellWait<'a> {
    bell: &'a Bell,
    seen: u64,
}

impl Future for BellWait<'_> {
    type Output = u64;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<u64> {
        let bell = self.bell;
        bell.waker.get_or_init(|| context.waker().clone());
        // First say that we sleep, then look: a ringer counts first and then looks.
        bell.sleeps.store(true, Ordering::SeqCst);
        let rung = bell.rung.load(Ordering::SeqCst);
        if rung == self.seen {
            return Poll::Pending;
        }
        bell.sleeps.store(false, Ordering::SeqCst);
        Poll::Ready(rung)
    }
}

/// Raises the soft limit of locked memory to what is needed, if the hard one allows it.
fn allow_locked_memory() -> Result<(), BackgroundError> {
    let limit = getrlimit(Resource::Memlock);
    let enough = |bytes: Option<u64>| bytes.is_none_or(|bytes| bytes >= LOCKED_BYTES_MIN);
    if enough(limit.current) {
        return Ok(());
    }
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if !enough(limit.maximum) || setrlimit(Resource::Memlock, raised).is_err() {
        let bytes = limit.current.unwrap_or(0);
        return Err(BackgroundError::LockedMemory { bytes });
    }
    Ok(())
}

type CoreEnd = (rtrb::Producer<JobAnswer>, Arc<Doorbell>);

fn run_thread(
    plan: BackgroundPlan,
    shared: &'static Shared,
    asked: Receiver<Asked>,
    cores: Vec<CoreEnd>,
    ready: &SyncSender<io::Result<()>>,
) {
    let executor = match make_executor(plan.cpu) {
        Ok(executor) => executor,
        Err(error) => {
            // If nobody listens any more, the starter has given up.
            let _ = ready.send(Err(error));
            return;
        }
    };
    let desk = Rc::new(Desk {
        shared,
        segments: plan.segments,
        pace: Pace::new(shared),
        cores: RefCell::new(cores),
        unsent: RefCell::new(VecDeque::new()),
        queue: RefCell::new(VecDeque::new()),
        running: RefCell::new(Vec::new()),
        next: Cell::new(0),
    });
    executor.run(async move {
        let _ = ready.send(Ok(()));
        serve(desk, asked, plan.lines).await;
    });
}

/// The helper thread and the kernel's workers inherit the pinning, so that all of it stays off the
/// other CPUs.
fn make_executor(cpu: Option<usize>) -> io::Result<LocalExecutor> {
    if let Some(cpu) = cpu {
        if cpu >= rustix::thread::CpuSet::MAX_CPU {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let mut cpus = rustix::thread::CpuSet::new();
        cpus.set(cpu);
        rustix::thread::sched_setaffinity(None, &cpus)?;
    }
    Ok(LocalExecutorBuilder::new(Placement::Unbound)
        .blocking_thread_pool_placement(PoolPlacement::Unbound(1))
        .io_memory(256 * 1024)
        .make()?)
}

/// All state of the executor.
pub(crate) struct Desk {
    pub(crate) shared: &'static Shared,
    segments: Option<Arc<Segments>>,
    pub(crate) pace: Pace,
    cores: RefCell<Vec<CoreEnd>>,
    /// Answers for cores that have not taken earlier ones.
    unsent: RefCell<VecDeque<(usize, JobAnswer)>>,
    /// In the order in which they were asked.
    queue: RefCell<VecDeque<Asked>>,
    /// Path of each running job, by its number.
    running: RefCell<Vec<(u64, PathBuf)>>,
    next: Cell<u64>,
}

async fn serve(desk: Rc<Desk>, asked: Receiver<Asked>, mut lines: Option<LogLines>) {
    if let Some(lines) = &mut lines {
        lines.ring_with(&desk.shared.bell);
    }
    let shared = desk.shared;
    let ticker = glommio::spawn_local(async move {
        loop {
            glommio::timer::sleep(TICK).await;
            shared.bell.ring();
        }
    });
    sweep(&desk);
    let mut rung = 0;
    loop {
        if let Some(lines) = &mut lines {
            lines.write_out();
        }
        desk.queue.borrow_mut().extend(asked.try_iter());
        desk.send_answers();
        start_jobs(&desk);
        let stop = desk.shared.stop.load(Ordering::SeqCst);
        if stop && desk.queue.borrow().is_empty() && desk.running.borrow().is_empty() {
            break;
        }
        rung = desk.shared.bell.wait(rung).await;
    }
    ticker.cancel().await;
    desk.send_answers();
    if let Some(lines) = &mut lines {
        lines.write_out();
    }
}

impl Desk {
    fn send_answers(&self) {
        let mut cores = self.cores.borrow_mut();
        self.unsent.borrow_mut().retain_mut(|(core, answer)| {
            let (answers, doorbell) = &mut cores[*core];
            let empty = JobAnswer {
                asker: answer.asker,
                done: JobDone::Done,
            };
            match answers.push(std::mem::replace(answer, empty)) {
                Ok(()) => {
                    self.shared.jobs.fetch_sub(1, Ordering::Relaxed);
                    doorbell.ring();
                    false
                }
                Err(rtrb::PushError::Full(back)) => {
                    *answer = back;
                    true
                }
            }
        });
    }

    /// Wakes every core, so that each looks at the list of segments again.
    pub(crate) fn wake_cores(&self) {
        for (_, doorbell) in self.cores.borrow().iter() {
            doorbell.ring();
        }
    }

    pub(crate) fn traffic(&self) -> Option<&Traffic> {
        self.segments.as_deref().map(Segments::traffic)
    }

    /// Whether long jobs are to end where they are, because the executor is to stop.
    pub(crate) fn gives_up(&self) -> bool {
        self.shared.stop.load(Ordering::Relaxed)
    }

    fn begin(&self, path: PathBuf) -> u64 {
        let number = self.next.get();
        self.next.set(number + 1);
        self.running.borrow_mut().push((number, path));
        number
    }

    fn end(&self, number: u64) {
        self.running
            .borrow_mut()
            .retain(|(running, _)| *running != number);
        self.shared.bell.ring();
    }

    /// Takes the oldest job that nothing before it stands in the way of.
    fn take_startable(&self) -> Option<(Asked, PathBuf)> {
        let running = self.running.borrow();
        if running.len() >= RUNNING_MAX {
            return None;
        }
        let mut queue = self.queue.borrow_mut();
        let mut before: Vec<PathBuf> = running.iter().map(|(_, path)| path.clone()).collect();
        for place in 0..queue.len() {
            let path = job_path(&queue[place].job, self.segments.as_deref());
            if before.iter().all(|other| !overlap(other, &path)) {
                return queue.remove(place).map(|asked| (asked, path));
            }
            before.push(path);
        }
        None
    }
}

fn start_jobs(desk: &Rc<Desk>) {
    while let Some((asked, path)) = desk.take_startable() {
        let number = desk.begin(path);
        let desk = desk.clone();
        glommio::spawn_local(async move {
            let Asked { core, asker, job } = asked;
            let done = run_job(&desk, job).await;
            let answer = JobAnswer { asker, done };
            desk.unsent.borrow_mut().push_back((core, answer));
            desk.end(number);
        })
        .detach();
    }
}

async fn run_job(desk: &Rc<Desk>, job: Job) -> JobDone {
    let segments = desk.segments.clone();
    let done = match (job, segments) {
        (
            Job::PrepareSegment {
                start,
                zeroed_bytes,
            },
            Some(segments),
        ) => segment_jobs::prepare(desk, &segments, start, zeroed_bytes).await,
        (Job::ZeroSegment { start, from, bytes }, Some(segments)) => {
            let path = segments.log().segment_path(start);
            segment_jobs::zero(desk, &path, from, bytes).await
        }
        (Job::RetireSegment { start }, Some(segments)) => {
            segment_jobs::retire(desk, &segments, start).await
        }
        (job, segments) => return blocking(move || short_job(&job, segments.as_deref())).await,
    };
    match done {
        Ok(()) => JobDone::Done,
        Err(error) => JobDone::Failed(error),
    }
}

fn short_job(job: &Job, segments: Option<&Segments>) -> JobDone {
    let nowhere = LogDir {
        path: PathBuf::new(),
        segment_bytes: 0,
    };
    let log = segments.map_or(&nowhere, Segments::log);
    let table: &dyn SegmentTable = match segments {
        Some(segments) => segments,
        None => &NoSegments,
    };
    carry_out(job, log, &mut RealFiles::new(), table)
}

/// The table of a process without a log.
struct NoSegments;

impl SegmentTable for NoSegments {
    fn opened(&self, _: crate::ids::LogOffset) -> io::Result<()> {
        Err(io::Error::from_raw_os_error(libc::ENOENT))
    }
    fn withdrawn(&self, _: crate::ids::LogOffset) {}
    fn files_removed(&self) {}
}

/// Runs on the executor's helper thread.
pub(crate) async fn blocking<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> R {
    glommio::executor().spawn_blocking(work).await
}

/// Clears away what a death has left half made or half removed; segments wait for it.
fn sweep(desk: &Rc<Desk>) {
    let Some(segments) = desk.segments.clone() else {
        return;
    };
    let number = desk.begin(segments.log().path.clone());
    let desk = desk.clone();
    glommio::spawn_local(async move {
        if let Err(error) = segment_jobs::sweep(&desk, &segments).await {
            log::warn!("the log's hidden directory cannot be cleared: {error}");
        }
        desk.end(number);
    })
    .detach();
}

fn job_path(job: &Job, segments: Option<&Segments>) -> PathBuf {
    match job {
        Job::ReplaceFile { path, .. }
        | Job::RemoveFile { path }
        | Job::RemoveTree { path }
        | Job::MakeDir { path }
        | Job::Space { path } => path.clone(),
        Job::PrepareSegment { start, .. }
        | Job::ZeroSegment { start, .. }
        | Job::RetireSegment { start } => segments
            .map(|segments| segments.log().segment_path(*start))
            .unwrap_or_default(),
    }
}

/// Whether two jobs touch the same file, or one what lies in the other's directory.
fn overlap(a: &Path, b: &Path) -> bool {
    a.starts_with(b) || b.starts_with(a)
}
