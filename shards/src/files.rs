//! File verbs as steps over a small trait, so that a simulated disk can stop between any two.
//!
//! [`Job`] is what a role may ask of the background executor; [`carry_out`] is how, step by step,
//! over [`Files`]. The real files ([`crate::real_files`]) and the simulated ones differ in nothing
//! else. Every call of [`Files`] is one step.
//!
//! ```text
//!  ReplaceFile X      X.tmp made -> written -> synced | X -> X.bak | X.tmp -> X | directory synced
//!  PrepareSegment S   .ringmq/S made -> zeroed -> synced | .ringmq/S -> S | both synced | opened
//!  RetireSegment S    withdrawn | S -> .ringmq/S.retired | both synced | shrunk in steps | removed
//! ```

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::ids::LogOffset;
use crate::segments::{parse_segment_name, segment_name};

/// What stands in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub name: String,
    pub bytes: u64,
    pub is_dir: bool,
    pub modified_ms: u64,
}

/// Used and free space of a file system, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    pub used: u64,
    pub free: u64,
}

/// The file system as this crate sees it. Nothing is durable before its `sync`; names (creations,
/// renames, removals) are durable only after `sync_dir` of their directory.
pub trait Files {
    /// Sorted by name.
    fn list(&mut self, dir: &Path) -> io::Result<Vec<Entry>>;
    fn make_dir_all(&mut self, dir: &Path) -> io::Result<()>;
    fn len(&mut self, path: &Path) -> io::Result<u64>;
    /// Makes a new file (or empties an old one) of `bytes` zeros, allocated if `allocate`.
    fn create(&mut self, path: &Path, bytes: u64, allocate: bool) -> io::Result<()>;
    /// Fewer bytes than asked for only at the end of the file.
    fn read_at(&mut self, path: &Path, at: u64, buf: &mut [u8]) -> io::Result<usize>;
    /// All bytes, inside the file or making it longer.
    fn write_at(&mut self, path: &Path, at: u64, bytes: &[u8]) -> io::Result<()>;
    fn truncate(&mut self, path: &Path, bytes: u64) -> io::Result<()>;
    fn sync(&mut self, path: &Path) -> io::Result<()>;
    fn sync_dir(&mut self, dir: &Path) -> io::Result<()>;
    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()>;
    /// A file, or an empty directory.
    fn remove(&mut self, path: &Path) -> io::Result<()>;
    fn space(&mut self, path: &Path) -> io::Result<Space>;
}

/// A closed list of file verbs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Job {
    /// The whole content of a small file: new file, sync, the old one kept as `.bak`, rename, sync
    /// of the directory. At any death the old or the new content is found.
    ReplaceFile {
        path: PathBuf,
        bytes: Vec<u8>,
    },
    /// Makes a segment of the log in the hidden directory, zero-written from its start for
    /// `zeroed_bytes`, synced, renamed in, both directories synced; then opens it on every core.
    PrepareSegment {
        start: LogOffset,
        zeroed_bytes: u64,
    },
    /// Writes zeros into a segment's part that the log has not reached, in paced steps, and syncs.
    /// The asker makes sure that the log stays out of it meanwhile.
    ZeroSegment {
        start: LogOffset,
        from: u64,
        bytes: u64,
    },
    /// Renamed out of the log, shrunk in steps, removed, once no core uses it.
    RetireSegment {
        start: LogOffset,
    },
    /// Removes one file; a missing one is no error.
    RemoveFile {
        path: PathBuf,
    },
    /// Removes a directory and all below it.
    RemoveTree {
        path: PathBuf,
    },
    MakeDir {
        path: PathBuf,
    },
    Space {
        path: PathBuf,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobDone {
    Done,
    Space(Space),
    Failed(JobError),
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum JobError {
    #[error("no space left on the device")]
    NoSpace,
    /// The background executor has too much to do, or has ended.
    #[error("too many jobs are waiting")]
    Busy,
    #[error("{step} {path}: errno {errno}")]
    Io {
        step: &'static str,
        path: PathBuf,
        errno: i32,
    },
}

/// Where the log's segments live and how long each is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogDir {
    pub path: PathBuf,
    /// A multiple of [`crate::role::BLOCK_BYTES`].
    pub segment_bytes: u64,
}

impl LogDir {
    #[must_use]
    pub fn segment_path(&self, start: LogOffset) -> PathBuf {
        self.path.join(segment_name(start))
    }

    /// Where segments are made and taken away; RocketMQ ignores sub-directories.
    #[must_use]
    pub fn hidden(&self) -> PathBuf {
        self.path.join(".ringmq")
    }

    fn unfinished(&self, start: LogOffset) -> PathBuf {
        self.hidden().join(segment_name(start))
    }

    /// A retired segment on its way out.
    #[must_use]
    pub fn retired(&self, start: LogOffset) -> PathBuf {
        self.hidden()
            .join(format!("{}.retired", segment_name(start)))
    }
}

/// The cores' knowledge of files, told by [`carry_out`].
pub trait SegmentTable {
    /// A segment stands in the log at full length: open it.
    fn opened(&self, start: LogOffset) -> io::Result<()>;
    /// Nobody may begin to use the segment from now on.
    fn withdrawn(&self, start: LogOffset);
    /// Other files are gone: forget their descriptors.
    fn files_removed(&self);
}

/// Bytes that are zeroed in one step where nobody paces them.
const ZERO_STEP_BYTES: u64 = 1 << 20;
/// Bytes that are cut off in one step: giving 512 MiB back at once held a core for 66 ms.
pub const SHRINK_STEP_BYTES: u64 = 16 << 20;

/// Carries a job out to its end, unpaced and without waiting for cores that still use a segment:
/// for a simulated disk and for the start of a store. The background executor does the same steps
/// and waits between them.
pub fn carry_out(
    job: &Job,
    log: &LogDir,
    files: &mut dyn Files,
    table: &dyn SegmentTable,
) -> JobDone {
    let done = match job {
        Job::ReplaceFile { path, bytes } => replace_file(path, bytes, files),
        Job::PrepareSegment {
            start,
            zeroed_bytes,
        } => prepare_segment(*start, *zeroed_bytes, log, files, table),
        Job::ZeroSegment { start, from, bytes } => {
            let path = log.segment_path(*start);
            zero(&path, *from, *bytes, files).and_then(|()| sync(&path, files))
        }
        Job::RetireSegment { start } => retire_segment(*start, log, files, table),
        Job::RemoveFile { path } => remove_file(path, files, table),
        Job::RemoveTree { path } => remove_tree(path, files, table),
        Job::MakeDir { path } => make_dir(path, files),
        Job::Space { path } => match files.space(path) {
            Ok(space) => return JobDone::Space(space),
            Err(cause) => Err(JobError::at("ask for the space of", path)(cause)),
        },
    };
    match done {
        Ok(()) => JobDone::Done,
        Err(error) => JobDone::Failed(error),
    }
}

impl JobError {
    /// Says at which step a call of [`Files`] failed; a full disk or quota is told apart.
    pub fn at(step: &'static str, path: &Path) -> impl FnOnce(io::Error) -> JobError {
        let path = path.to_owned();
        move |cause| match cause.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT) => JobError::NoSpace,
            errno => JobError::Io {
                step,
                path,
                errno: errno.unwrap_or(libc::EIO),
            },
        }
    }
}

/// `X.tmp` and `X.bak` beside `X`.
#[must_use]
pub fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// At any moment the old content is readable under its name or as `.bak`, or the new one under the
/// name, which is how RocketMQ reads it too (spec store-format 13). An attempt that failed leaves
/// at most a `.tmp`; the next one begins with a new file, since a descriptor (and the pages behind
/// it) whose flush has failed proves nothing when it is flushed again.
fn replace_file(path: &Path, bytes: &[u8], files: &mut dyn Files) -> Result<(), JobError> {
    let new = with_suffix(path, ".tmp");
    let old = with_suffix(path, ".bak");
    let dir = parent(path);
    remove_if_there(&new, files)?;
    files
        .create(&new, 0, false)
        .map_err(JobError::at("make", &new))?;
    files
        .write_at(&new, 0, bytes)
        .map_err(JobError::at("write", &new))?;
    sync(&new, files)?;
    if is_there(path, files)? {
        rename(path, &old, files)?;
    }
    rename(&new, path, files)?;
    sync_dir(dir, files)
}

fn prepare_segment(
    start: LogOffset,
    zeroed_bytes: u64,
    log: &LogDir,
    files: &mut dyn Files,
    table: &dyn SegmentTable,
) -> Result<(), JobError> {
    if let Some(unfinished) = begin_segment(start, log, files)? {
        zero(&unfinished, 0, zeroed_bytes.min(log.segment_bytes), files)?;
        move_in(start, log, files)?;
    }
    admit_segment(start, log, files, table)
}

/// First part of [`Job::PrepareSegment`]: a file of full length in the hidden directory, reading
/// as zeros. Answers its path, or `None` if the segment is in its place already, after an attempt
/// that failed in its last part.
pub fn begin_segment(
    start: LogOffset,
    log: &LogDir,
    files: &mut dyn Files,
) -> Result<Option<PathBuf>, JobError> {
    if is_there(&log.segment_path(start), files)? {
        return Ok(None);
    }
    let unfinished = log.unfinished(start);
    files
        .make_dir_all(&log.hidden())
        .map_err(JobError::at("make", &log.hidden()))?;
    remove_if_there(&unfinished, files)?;
    files
        .create(&unfinished, log.segment_bytes, true)
        .map_err(JobError::at("allocate", &unfinished))?;
    Ok(Some(unfinished))
}

/// Middle part of [`Job::PrepareSegment`]: durable, and moved into the log. Nothing has a name
/// there before all of it is on the device.
pub fn move_in(start: LogOffset, log: &LogDir, files: &mut dyn Files) -> Result<(), JobError> {
    let unfinished = log.unfinished(start);
    sync(&unfinished, files)?;
    rename(&unfinished, &log.segment_path(start), files)
}

/// Last part of [`Job::PrepareSegment`]: the name is made durable, the segment is opened.
pub fn admit_segment(
    start: LogOffset,
    log: &LogDir,
    files: &mut dyn Files,
    table: &dyn SegmentTable,
) -> Result<(), JobError> {
    sync_dir(&log.hidden(), files)?;
    sync_dir(&log.path, files)?;
    table
        .opened(start)
        .map_err(JobError::at("open", &log.segment_path(start)))
}

fn retire_segment(
    start: LogOffset,
    log: &LogDir,
    files: &mut dyn Files,
    table: &dyn SegmentTable,
) -> Result<(), JobError> {
    table.withdrawn(start);
    let Some(mut bytes) = move_out(start, log, files)? else {
        return Ok(());
    };
    let retired = log.retired(start);
    while bytes > 0 {
        bytes = bytes.saturating_sub(SHRINK_STEP_BYTES);
        shrink(&retired, bytes, files)?;
    }
    remove_retired(&retired, files)
}

/// Second part of [`Job::RetireSegment`], after the cores were told: out of the log. Answers its
/// length, or `None` if it is not there.
pub fn move_out(
    start: LogOffset,
    log: &LogDir,
    files: &mut dyn Files,
) -> Result<Option<u64>, JobError> {
    let (path, retired) = (log.segment_path(start), log.retired(start));
    if !is_there(&path, files)? {
        return Ok(None);
    }
    files
        .make_dir_all(&log.hidden())
        .map_err(JobError::at("make", &log.hidden()))?;
    rename(&path, &retired, files)?;
    sync_dir(&log.hidden(), files)?;
    sync_dir(&log.path, files)?;
    files
        .len(&retired)
        .map(Some)
        .map_err(JobError::at("look at", &retired))
}

/// One step of [`Job::RetireSegment`], once no core uses it.
pub fn shrink(retired: &Path, bytes: u64, files: &mut dyn Files) -> Result<(), JobError> {
    files
        .truncate(retired, bytes)
        .map_err(JobError::at("shrink", retired))
}

/// Last step of [`Job::RetireSegment`].
pub fn remove_retired(retired: &Path, files: &mut dyn Files) -> Result<(), JobError> {
    remove_if_there(retired, files)?;
    sync_dir(parent(retired), files)
}

/// What a death has left in the hidden directory, to be shrunk and removed: path and how many bytes
/// are to be cut off first.
pub fn leftovers(log: &LogDir, files: &mut dyn Files) -> Result<Vec<(PathBuf, u64)>, JobError> {
    let hidden = log.hidden();
    let entries = match files.list(&hidden) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(JobError::at("list", &hidden))?,
    };
    let mut left = Vec::new();
    for entry in entries.into_iter().filter(|entry| !entry.is_dir) {
        let name = entry.name.strip_suffix(".retired").unwrap_or(&entry.name);
        if parse_segment_name(name.as_ref()).is_none() {
            continue;
        }
        // Half of a rename survived: the same file stands in the log. Only this name may go.
        let in_log = is_there(&log.path.join(name), files)?;
        let bytes = if in_log { 0 } else { entry.bytes };
        left.push((hidden.join(&entry.name), bytes));
    }
    Ok(left)
}

/// Writes zeros in steps, without a flush.
fn zero(path: &Path, from: u64, bytes: u64, files: &mut dyn Files) -> Result<(), JobError> {
    let zeros = vec![0; ZERO_STEP_BYTES.min(bytes) as usize];
    let end = from + bytes;
    let mut at = from;
    while at < end {
        let len = ZERO_STEP_BYTES.min(end - at);
        files
            .write_at(path, at, &zeros[..len as usize])
            .map_err(JobError::at("zero", path))?;
        at += len;
    }
    Ok(())
}

fn remove_file(
    path: &Path,
    files: &mut dyn Files,
    table: &dyn SegmentTable,
) -> Result<(), JobError> {
    if !remove_if_there(path, files)? {
        return Ok(());
    }
    table.files_removed();
    sync_dir(parent(path), files)
}

fn remove_tree(
    path: &Path,
    files: &mut dyn Files,
    table: &dyn SegmentTable,
) -> Result<(), JobError> {
    let removed = remove_below(path, files);
    table.files_removed();
    if removed? {
        sync_dir(parent(path), files)?;
    }
    Ok(())
}

/// Children before their directory; false if there was nothing.
fn remove_below(path: &Path, files: &mut dyn Files) -> Result<bool, JobError> {
    let entries = match files.list(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        entries => entries.map_err(JobError::at("list", path))?,
    };
    for entry in entries {
        let child = path.join(&entry.name);
        if entry.is_dir {
            remove_below(&child, files)?;
        } else {
            remove_if_there(&child, files)?;
        }
    }
    remove_if_there(path, files)
}

/// Makes a directory and those above it, each under a durable name.
fn make_dir(path: &Path, files: &mut dyn Files) -> Result<(), JobError> {
    let mut top = path;
    while let Some(above) = top.parent().filter(|above| !above.as_os_str().is_empty()) {
        match files.list(top) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => top = above,
            _ => break,
        }
    }
    files
        .make_dir_all(path)
        .map_err(JobError::at("make", path))?;
    let made = path.ancestors().take_while(|dir| *dir != top);
    made.map(parent).try_for_each(|dir| sync_dir(dir, files))
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    }
}

fn is_there(path: &Path, files: &mut dyn Files) -> Result<bool, JobError> {
    match files.len(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(JobError::at("look at", path)(error)),
    }
}

fn remove_if_there(path: &Path, files: &mut dyn Files) -> Result<bool, JobError> {
    match files.remove(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(JobError::at("remove", path)(error)),
    }
}

fn rename(from: &Path, to: &Path, files: &mut dyn Files) -> Result<(), JobError> {
    files.rename(from, to).map_err(JobError::at("rename", from))
}

fn sync(path: &Path, files: &mut dyn Files) -> Result<(), JobError> {
    files.sync(path).map_err(JobError::at("flush", path))
}

fn sync_dir(dir: &Path, files: &mut dyn Files) -> Result<(), JobError> {
    files
        .sync_dir(dir)
        .map_err(JobError::at("flush the directory", dir))
}
