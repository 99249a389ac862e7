//! The log's segments on disk, open on every core.
//!
//! ```text
//!  commitlog/00000000000000000000   segment 0: segment_bytes long, from its first day on
//!  commitlog/00000000001073741824   segment 1: its name is the log offset of its first byte
//!  commitlog/.ringmq/               segments being made or taken away
//! ```
//!
//! [`Segments`] is the one list, changed by the background thread when a segment was prepared or is
//! to be retired. Each core reads it through a [`SegmentsView`] of its own: a copy that is taken
//! again when the list's generation has moved. A segment's descriptors close when the last view (or
//! the last operation under way) lets go of it, so nobody ever reads from a reused descriptor.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fd::{AsFd, BorrowedFd};
use thiserror::Error;

use crate::files::LogDir;
use crate::ids::LogOffset;
use crate::role::BLOCK_BYTES;

/// Width of a segment's file name (spec store-format 2).
pub const NAME_DIGITS: usize = 20;

/// A segment's file name: its start, decimal, padded to 20 digits (spec store-format 2).
#[must_use]
pub fn segment_name(start: LogOffset) -> String {
    format!("{:0NAME_DIGITS$}", start.0)
}

/// The start that a file name says, if it is a segment's name. Java parses names as i64, so larger
/// numbers are no names.
#[must_use]
pub fn parse_segment_name(name: &OsStr) -> Option<LogOffset> {
    let name = name.to_str()?;
    let digits = name.len() == NAME_DIGITS && name.bytes().all(|byte| byte.is_ascii_digit());
    let start = digits.then(|| name.parse::<u64>().ok())??;
    (start <= i64::MAX as u64).then_some(LogOffset(start))
}

/// Why a directory is not a log that can be continued.
#[derive(Debug, Error)]
pub enum OpenError {
    #[error("the segment size {0} is not a multiple of {BLOCK_BYTES}")]
    SegmentBytes(u64),
    #[error("{path} does not belong into a commit log: move it away")]
    Stray { path: PathBuf },
    #[error(
        "{path} has {bytes} bytes, not {expected}: set mappedFileSizeCommitLog to what the store \
         was written with, or restore the file"
    )]
    Length {
        path: PathBuf,
        bytes: u64,
        expected: u64,
    },
    #[error("the commit log has a hole: {missing} is missing before {next}: restore it")]
    Hole { missing: String, next: String },
    #[error("{step} {path}: {cause}")]
    Io {
        step: &'static str,
        path: PathBuf,
        cause: io::Error,
    },
}

/// One open segment.
#[derive(Debug)]
pub struct Segment {
    start: LogOffset,
    bytes: u64,
    /// Missing where the file system knows no `O_DIRECT`.
    direct: Option<File>,
    buffered: File,
}

impl Segment {
    fn open(path: &Path, start: LogOffset, bytes: u64) -> io::Result<Segment> {
        let open = |flags: i32| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .custom_flags(flags)
                .open(path)
        };
        let direct = match open(libc::O_DIRECT) {
            Ok(file) => Some(file),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => None,
            Err(error) => return Err(error),
        };
        Ok(Segment {
            start,
            bytes,
            direct,
            buffered: open(0)?,
        })
    }

    /// Log offset of the first byte.
    #[must_use]
    pub fn start(&self) -> LogOffset {
        self.start
    }

    /// Log offset behind the last byte.
    #[must_use]
    pub fn end(&self) -> LogOffset {
        self.start.plus(self.bytes)
    }

    /// Where `at .. at + len` lies in the file, if all of it does.
    #[must_use]
    pub fn position(&self, at: LogOffset, len: u64) -> Option<u64> {
        let position = at.0.checked_sub(self.start.0)?;
        (position.checked_add(len)? <= self.bytes).then_some(position)
    }

    /// For whole blocks from aligned memory; the buffered one where there is no direct one.
    #[must_use]
    pub fn direct(&self) -> BorrowedFd<'_> {
        self.direct.as_ref().unwrap_or(&self.buffered).as_fd()
    }

    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.direct.is_some()
    }

    /// For reads and `sendfile`.
    #[must_use]
    pub fn buffered(&self) -> BorrowedFd<'_> {
        self.buffered.as_fd()
    }
}

/// What the log's own writes look like to the background thread, which paces itself by it. Written
/// by the log's core alone.
#[derive(Debug, Default)]
pub struct Traffic {
    /// Bytes ever written to segments.
    pub written_bytes: AtomicU64,
    /// Length of the last write.
    pub last_write_bytes: AtomicU64,
}

/// The list of open segments, shared by all cores.
#[derive(Debug)]
pub struct Segments {
    log: LogDir,
    /// Sorted by start, each begins where the one before ends.
    list: Mutex<Vec<Arc<Segment>>>,
    generation: AtomicU64,
    files_removed: AtomicU64,
    traffic: Traffic,
}

impl Segments {
    /// Opens every segment of a log; makes the directory if it is missing. A last file of no
    /// bytes holds nothing and is removed (spec store-format 2). Call it under the store's lock.
    ///
    /// # Errors
    /// [`OpenError`]: anything but segments of the right length without a hole between them.
    pub fn open(log: LogDir) -> Result<Arc<Segments>, OpenError> {
        if log.segment_bytes == 0 || !log.segment_bytes.is_multiple_of(BLOCK_BYTES) {
            return Err(OpenError::SegmentBytes(log.segment_bytes));
        }
        let list = open_all(&log)?;
        Ok(Arc::new(Segments {
            log,
            list: Mutex::new(list),
            generation: AtomicU64::new(1),
            files_removed: AtomicU64::new(0),
            traffic: Traffic::default(),
        }))
    }

    #[must_use]
    pub fn log(&self) -> &LogDir {
        &self.log
    }

    #[must_use]
    pub fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// Start of the first and end of the last segment; `None` when there is none.
    #[must_use]
    pub fn bounds(&self) -> Option<(LogOffset, LogOffset)> {
        let list = self.lock();
        Some((list.first()?.start(), list.last()?.end()))
    }

    /// A core's own copy.
    #[must_use]
    pub fn view(self: &Arc<Self>) -> SegmentsView {
        SegmentsView {
            shared: self.clone(),
            generation: 0,
            list: Vec::new(),
        }
    }

    /// Opens the segment at `start`, which must be there at full length, for all cores.
    ///
    /// # Errors
    /// `EEXIST` if it is open, `EINVAL` if it does not touch its neighbours or has a wrong
    /// length, or what opening says.
    pub fn add(&self, start: LogOffset) -> io::Result<()> {
        let path = self.log.segment_path(start);
        let bytes = std::fs::metadata(&path)?.len();
        let segment = Segment::open(&path, start, self.log.segment_bytes)?;
        let mut list = self.lock();
        let place = match list.binary_search_by_key(&start, |segment| segment.start) {
            Ok(_) => return Err(io::Error::from_raw_os_error(libc::EEXIST)),
            Err(place) => place,
        };
        let touches_last = place == 0 || list[place - 1].end() == start;
        let touches_next = place == list.len() || list[place].start == segment.end();
        if bytes != self.log.segment_bytes || !touches_last || !touches_next {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        list.insert(place, Arc::new(segment));
        self.generation.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Takes a segment off the list. The answer is closed by its last user: wait until
    /// [`Segments::is_unused`] before shrinking the file.
    pub fn take(&self, start: LogOffset) -> Option<Arc<Segment>> {
        let mut list = self.lock();
        let place = list
            .binary_search_by_key(&start, |segment| segment.start)
            .ok()?;
        let segment = list.remove(place);
        self.generation.fetch_add(1, Ordering::Release);
        Some(segment)
    }

    /// Whether the holder of a taken segment is its only user left.
    #[must_use]
    pub fn is_unused(taken: &Arc<Segment>) -> bool {
        let unused = Arc::strong_count(taken) == 1;
        // Pairs with the release of the last user's drop: what it did is over.
        std::sync::atomic::fence(Ordering::Acquire);
        unused
    }

    /// To be called after queue or index files were removed, before anyone hears of it: each core
    /// then closes its descriptors of files that are gone.
    pub fn note_removal(&self) {
        self.files_removed.fetch_add(1, Ordering::Release);
    }

    /// Moves with every [`Segments::note_removal`].
    #[must_use]
    pub fn removals(&self) -> u64 {
        self.files_removed.load(Ordering::Acquire)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Segment>>> {
        // The list is whole between any two of its operations, so a panic elsewhere harms nothing.
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn open_all(log: &LogDir) -> Result<Vec<Arc<Segment>>, OpenError> {
    let fail = |step, path: &Path| {
        let path = path.to_owned();
        move |cause| OpenError::Io { step, path, cause }
    };
    std::fs::create_dir_all(&log.path).map_err(fail("make", &log.path))?;
    let mut found = Vec::new();
    for entry in std::fs::read_dir(&log.path).map_err(fail("list", &log.path))? {
        let entry = entry.map_err(fail("list", &log.path))?;
        let meta = entry.metadata().map_err(fail("look at", &entry.path()))?;
        if meta.is_dir() {
            continue;
        }
        let path = entry.path();
        match parse_segment_name(&entry.file_name()) {
            Some(start) => found.push((start, path, meta.len())),
            None => return Err(OpenError::Stray { path }),
        }
    }
    found.sort();
    if let Some((_, path, 0)) = found.last() {
        std::fs::remove_file(path).map_err(fail("remove the empty", path))?;
        found.pop();
    }
    let mut list: Vec<Arc<Segment>> = Vec::with_capacity(found.len());
    for (start, path, bytes) in found {
        let expected = log.segment_bytes;
        if bytes != expected {
            return Err(OpenError::Length {
                path,
                bytes,
                expected,
            });
        }
        if let Some(last) = list.last().filter(|last| last.end() != start) {
            return Err(OpenError::Hole {
                missing: segment_name(last.end()),
                next: segment_name(start),
            });
        }
        let segment = Segment::open(&path, start, bytes).map_err(fail("open", &path))?;
        list.push(Arc::new(segment));
    }
    Ok(list)
}

/// One core's copy of the list.
#[derive(Debug)]
pub struct SegmentsView {
    shared: Arc<Segments>,
    generation: u64,
    list: Vec<Arc<Segment>>,
}

impl SegmentsView {
    /// Takes the list again if it has changed: one load when it has not. To be called once per
    /// turn, so that a retired segment is let go of; true if it changed.
    pub fn refresh(&mut self) -> bool {
        let generation = self.shared.generation.load(Ordering::Acquire);
        if generation == self.generation {
            return false;
        }
        // A change between the load and the copy is seen again next time, which does no harm.
        self.list.clone_from(&self.shared.lock());
        self.generation = generation;
        true
    }

    /// The segment that holds `at`; looks at the shared list once if its own copy has none.
    #[must_use]
    pub fn find(&mut self, at: LogOffset) -> Option<&Arc<Segment>> {
        if self.place(at).is_none() {
            self.refresh();
        }
        let place = self.place(at)?;
        Some(&self.list[place])
    }

    #[must_use]
    pub fn shared(&self) -> &Arc<Segments> {
        &self.shared
    }

    fn place(&self, at: LogOffset) -> Option<usize> {
        let bytes = self.shared.log.segment_bytes;
        let first = self.list.first()?.start();
        let place = usize::try_from(at.0.checked_sub(first.0)? / bytes).ok()?;
        (place < self.list.len()).then_some(place)
    }
}

impl crate::files::SegmentTable for Segments {
    fn opened(&self, start: LogOffset) -> io::Result<()> {
        self.add(start)
    }

    fn withdrawn(&self, start: LogOffset) {
        drop(self.take(start));
    }

    fn files_removed(&self) {
        self.note_removal();
    }
}
