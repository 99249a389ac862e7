//! Jobs on whole segments, in steps that an append does not feel.
//!
//! At most one step is under way. A step is as long as the log's last write, within
//! 64 KiB and 1 MiB; steps follow each other at 64 MB/s, or a tenth faster than the log itself
//! writes, so that it never catches up with the segments being made. While the log writes nothing,
//! steps are long, since few long ones take less of the CPU; before a store is ready they follow
//! each other at once.

use std::cell::Cell;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use glommio::sync::Semaphore;

use crate::background::{Desk, Shared, blocking};
use crate::files::{self, Files, JobError, SHRINK_STEP_BYTES};
use crate::ids::LogOffset;
use crate::real_files::RealFiles;
use crate::role::BLOCK_BYTES;
use crate::segments::{Segments, Traffic};

const STEP_BYTES_MIN: u64 = 64 * 1024;
const STEP_BYTES_MAX: u64 = 1 << 20;
/// Bytes per second at least.
const RATE_MIN: f64 = 64e6;
/// How much faster than the log's own writes.
const RATE_LEAD: f64 = 1.1;
/// The log's rate is measured over at least this long.
const RATE_WINDOW: Duration = Duration::from_millis(100);
/// Between two cuts of a retired segment, and between two looks whether it is still used.
const PAUSE: Duration = Duration::from_millis(10);

/// When the next step may begin.
pub(crate) struct Pace {
    shared: &'static Shared,
    one_step: Semaphore,
    next: Cell<Instant>,
    measured: Cell<(Instant, u64)>,
    log_rate: Cell<f64>,
}

impl Pace {
    pub(crate) fn new(shared: &'static Shared) -> Pace {
        let now = Instant::now();
        Pace {
            shared,
            one_step: Semaphore::new(1),
            next: Cell::new(now),
            measured: Cell::new((now, 0)),
            log_rate: Cell::new(0.0),
        }
    }

    fn hurries(&self) -> bool {
        self.shared.hurry.load(Ordering::Relaxed)
    }

    fn step_bytes(&self, traffic: Option<&Traffic>) -> u64 {
        if self.hurries() {
            return STEP_BYTES_MAX;
        }
        let last = traffic.map_or(0, |traffic| {
            traffic.last_write_bytes.load(Ordering::Relaxed)
        });
        let idle = traffic.is_some() && self.log_rate.get() == 0.0;
        if idle {
            STEP_BYTES_MAX
        } else {
            step_bytes(last)
        }
    }

    /// Waits until a step of `bytes` may begin.
    async fn wait(&self, bytes: u64, traffic: Option<&Traffic>) {
        if self.hurries() {
            return;
        }
        let now = Instant::now();
        if let Some(traffic) = traffic {
            self.measure(now, traffic.written_bytes.load(Ordering::Relaxed));
        }
        let begin = self.begin(now, bytes);
        if begin > now {
            glommio::timer::sleep(begin - now).await;
        }
    }

    /// When a step of `bytes` may begin; the next one's time follows from it.
    fn begin(&self, now: Instant, bytes: u64) -> Instant {
        let begin = self.next.get().max(now);
        let rate = RATE_MIN.max(self.log_rate.get() * RATE_LEAD);
        let time = Duration::from_secs_f64(bytes as f64 / rate);
        self.next.set(begin + time);
        begin
    }

    fn measure(&self, now: Instant, written: u64) {
        let (since, before) = self.measured.get();
        let time = now - since;
        if time >= RATE_WINDOW {
            let bytes = written.saturating_sub(before);
            self.log_rate.set(bytes as f64 / time.as_secs_f64());
            self.measured.set((now, written));
        }
    }
}

/// The length of a paced step beside log writes of `last_write` bytes.
fn step_bytes(last_write: u64) -> u64 {
    last_write.clamp(STEP_BYTES_MIN, STEP_BYTES_MAX) / BLOCK_BYTES * BLOCK_BYTES
}

/// `Job::PrepareSegment`.
pub(crate) async fn prepare(
    desk: &Rc<Desk>,
    segments: &Arc<Segments>,
    start: LogOffset,
    zeroed_bytes: u64,
) -> Result<(), JobError> {
    let log = segments.log().clone();
    let begun = blocking(move || files::begin_segment(start, &log, &mut RealFiles::new())).await?;
    if let Some(unfinished) = begun {
        let bytes = zeroed_bytes.min(segments.log().segment_bytes);
        zero(desk, &unfinished, 0, bytes).await?;
        let log = segments.log().clone();
        blocking(move || files::move_in(start, &log, &mut RealFiles::new())).await?;
    }
    let table = segments.clone();
    blocking(move || files::admit_segment(start, table.log(), &mut RealFiles::new(), &*table))
        .await?;
    desk.wake_cores();
    Ok(())
}

/// `Job::ZeroSegment`, and the zeroing of a new one: durable when it ends.
pub(crate) async fn zero(
    desk: &Rc<Desk>,
    path: &Path,
    from: u64,
    bytes: u64,
) -> Result<(), JobError> {
    if bytes == 0 {
        return Ok(());
    }
    let end = from + bytes;
    let first_block = from.next_multiple_of(BLOCK_BYTES).min(end);
    let last_block = (end / BLOCK_BYTES * BLOCK_BYTES).max(first_block);
    for (at, end) in [(from, first_block), (last_block, end)] {
        if at < end {
            let path = path.to_owned();
            blocking(move || zero_step(&path, at, end - at)).await?;
        }
    }
    zero_blocks(desk, path, first_block, last_block).await
}

/// One buffered step, with its flush.
fn zero_step(path: &Path, at: u64, bytes: u64) -> Result<(), JobError> {
    let mut files = RealFiles::new();
    files
        .write_at(path, at, &vec![0; bytes as usize])
        .map_err(JobError::at("zero", path))?;
    files.sync(path).map_err(JobError::at("flush", path))
}

/// A file for direct writes of zeros, and the zeros. The writes are ordinary calls on the
/// executor's blocking threads: glommio's own direct files poll for completions as long as one is
/// under way, which takes a whole CPU, and minutes where the CPU is shared.
struct Zeroing {
    file: std::fs::File,
    zeros: memmap2::Mmap,
}

impl Zeroing {
    /// `None` where the file system knows no direct writes.
    fn open(path: &Path) -> io::Result<Option<Zeroing>> {
        let mut options = std::fs::OpenOptions::new();
        options.write(true).custom_flags(libc::O_DIRECT);
        let file = match options.open(path) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => return Ok(None),
            file => file?,
        };
        let zeros = memmap2::MmapMut::map_anon(STEP_BYTES_MAX as usize)?;
        Ok(Some(Zeroing {
            file,
            zeros: zeros.make_read_only()?,
        }))
    }

    fn step(&self, position: u64, bytes: u64) -> io::Result<()> {
        self.file
            .write_all_at(&self.zeros[..bytes as usize], position)
    }
}

async fn zero_blocks(desk: &Rc<Desk>, path: &Path, from: u64, end: u64) -> Result<(), JobError> {
    if from == end {
        return Ok(());
    }
    let opened = path.to_owned();
    let opened = blocking(move || Zeroing::open(&opened)).await;
    // Where a file system knows no direct writes, each step is a buffered one.
    let zeroing = opened.map_err(JobError::at("open", path))?.map(Arc::new);
    zero_in_steps(desk, path, zeroing.as_ref(), from, end).await?;
    let Some(zeroing) = zeroing else {
        return Ok(());
    };
    let flushed = blocking(move || zeroing.file.sync_data()).await;
    flushed.map_err(JobError::at("flush", path))
}

async fn zero_in_steps(
    desk: &Rc<Desk>,
    path: &Path,
    zeroing: Option<&Arc<Zeroing>>,
    from: u64,
    end: u64,
) -> Result<(), JobError> {
    let traffic = desk.traffic();
    let mut position = from;
    while position < end {
        if desk.gives_up() {
            return Err(JobError::Busy);
        }
        let len = desk.pace.step_bytes(traffic).min(end - position);
        let Ok(_one_step) = desk.pace.one_step.acquire_permit(1).await else {
            return Err(JobError::Busy);
        };
        desk.pace.wait(len, traffic).await;
        match zeroing.cloned() {
            Some(zeroing) => blocking(move || zeroing.step(position, len))
                .await
                .map_err(JobError::at("zero", path))?,
            None => {
                let path = path.to_owned();
                blocking(move || zero_step(&path, position, len)).await?;
            }
        }
        position += len;
    }
    Ok(())
}

/// `Job::RetireSegment`.
pub(crate) async fn retire(
    desk: &Rc<Desk>,
    segments: &Arc<Segments>,
    start: LogOffset,
) -> Result<(), JobError> {
    let taken = segments.take(start);
    desk.wake_cores();
    let log = segments.log().clone();
    let moved = blocking(move || files::move_out(start, &log, &mut RealFiles::new())).await?;
    if let Some(taken) = taken {
        while !Segments::is_unused(&taken) {
            if desk.gives_up() {
                return Err(JobError::Busy);
            }
            glommio::timer::sleep(PAUSE).await;
            // A core that was about to sleep may have missed the first one.
            desk.wake_cores();
        }
        blocking(move || drop(taken)).await;
    }
    match moved {
        Some(bytes) => shrink(desk, segments.log().retired(start), bytes).await,
        None => Ok(()),
    }
}

/// Removes what a death has left half made or half retired.
pub(crate) async fn sweep(desk: &Rc<Desk>, segments: &Arc<Segments>) -> Result<(), JobError> {
    let log = segments.log().clone();
    let left = blocking(move || files::leftovers(&log, &mut RealFiles::new())).await?;
    for (path, bytes) in left {
        shrink(desk, path, bytes).await?;
    }
    Ok(())
}

/// Cuts a file off step by step, then removes it. What stopping leaves, the next start sweeps.
async fn shrink(desk: &Rc<Desk>, path: PathBuf, bytes: u64) -> Result<(), JobError> {
    let mut left = bytes;
    while left > 0 {
        if desk.gives_up() {
            return Err(JobError::Busy);
        }
        left = left.saturating_sub(SHRINK_STEP_BYTES);
        let path = path.clone();
        blocking(move || files::shrink(&path, left, &mut RealFiles::new())).await?;
        if left > 0 {
            glommio::timer::sleep(PAUSE).await;
        }
    }
    blocking(move || files::remove_retired(&path, &mut RealFiles::new())).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_as_long_as_the_logs_last_write_within_its_bounds() {
        assert_eq!(step_bytes(0), 64 * 1024);
        assert_eq!(step_bytes(4096), 64 * 1024);
        assert_eq!(step_bytes(200_000), 196_608);
        assert_eq!(step_bytes(512 * 1024), 512 * 1024);
        assert_eq!(step_bytes(4 << 20), 1 << 20);
    }

    #[test]
    fn the_pace_keeps_a_tenth_ahead_of_the_log() {
        let shared: &'static Shared = Box::leak(Box::default());
        let pace = Pace::new(shared);
        let (since, _) = pace.measured.get();
        pace.measure(since + Duration::from_secs(1), 200_000_000);
        assert_eq!(pace.log_rate.get(), 200e6);
        // Too soon to tell.
        pace.measure(since + Duration::from_millis(1050), 200_000_000);
        assert_eq!(pace.log_rate.get(), 200e6);
        pace.measure(since + Duration::from_secs(3), 220_000_000);
        assert_eq!(pace.log_rate.get(), 10e6);
    }

    #[test]
    fn steps_follow_each_other_at_the_rate_and_a_rest_is_not_made_up_for() {
        let shared: &'static Shared = Box::leak(Box::default());
        let pace = Pace::new(shared);
        let start = pace.next.get() + Duration::from_secs(1);
        // 64 MB/s: 64,000 bytes are a millisecond.
        let after = |now: u64, bytes| {
            let now = start + Duration::from_micros(now);
            (pace.begin(now, bytes) - start).as_micros()
        };
        assert_eq!(after(0, 64_000), 0);
        assert_eq!(after(0, 640_000), 1000);
        assert_eq!(after(2000, 64_000), 11_000);
        assert_eq!(after(50_000, 64_000), 50_000);
        assert_eq!(after(50_000, 64_000), 51_000);
        pace.log_rate.set(640e6 / RATE_LEAD);
        assert_eq!(after(60_000, 640_000), 60_000);
        assert_eq!(after(60_000, 640_000), 61_000);
    }
}
