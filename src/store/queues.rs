//! Consume queue files: where a queue's units stand, and what a start finds of them.
//!
//! ```text
//! 0            8        12                 20
//! +------------+--------+------------------+
//! | log offset | size   | tags code        |   unit, big-endian (store-format 6)
//! +------------+--------+------------------+
//! ```
//!
//! Unit n of a queue stands at byte 20 n of the row of its files; a file is named after its first
//! byte. A unit of zeros has not been written. `(0, i32::MAX, 0)` fills a file up to the first real
//! unit of a queue that did not start at 0.

use std::io;
use std::path::Path;
use std::sync::Arc;

use shards::files::Files;
use shards::ids::{FileDir, FileRef};

use crate::ids::{LogOffset, QueueOffset, UNIT_BYTES};

pub const LOG_OFFSET_AT: usize = 0;
pub const SIZE_AT: usize = LOG_OFFSET_AT + size_of::<i64>();
pub const TAGS_CODE_AT: usize = SIZE_AT + size_of::<i32>();
const _: () = assert!(TAGS_CODE_AT + size_of::<i64>() == UNIT_BYTES as usize);

/// What fills the places before a queue's first unit.
pub const FILLER: Unit = Unit {
    at: LogOffset(0),
    size: i32::MAX as u32,
    tags_code: 0,
};

/// One message of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    pub at: LogOffset,
    pub size: u32,
    pub tags_code: i64,
}

impl Unit {
    #[must_use]
    pub fn encode(self) -> [u8; UNIT_BYTES as usize] {
        let mut bytes = [0; UNIT_BYTES as usize];
        bytes[..SIZE_AT].copy_from_slice(&self.at.0.to_be_bytes());
        bytes[SIZE_AT..TAGS_CODE_AT].copy_from_slice(&self.size.to_be_bytes());
        bytes[TAGS_CODE_AT..].copy_from_slice(&self.tags_code.to_be_bytes());
        bytes
    }

    /// `None` where nothing was written, or what stands there cannot be a unit.
    #[must_use]
    pub fn decode(bytes: &[u8; UNIT_BYTES as usize]) -> Option<Unit> {
        let (at, rest) = bytes.split_first_chunk().expect("20 bytes");
        let (size, tags_code) = rest.split_first_chunk().expect("12 bytes");
        let (at, size) = (i64::from_be_bytes(*at), i32::from_be_bytes(*size));
        let tags_code = i64::from_be_bytes(*tags_code.first_chunk().expect("8 bytes"));
        (at >= 0 && size > 0).then_some(Unit {
            at: LogOffset(at as u64),
            size: size as u32,
            tags_code,
        })
    }

    #[must_use]
    pub fn end(self) -> LogOffset {
        self.at.plus(u64::from(self.size))
    }
}

/// Whole units of a piece of a queue file; stops at the first place that holds none.
pub fn units(bytes: &[u8]) -> impl Iterator<Item = Unit> + '_ {
    bytes
        .as_chunks::<{ UNIT_BYTES as usize }>()
        .0
        .iter()
        .map_while(Unit::decode)
}

/// The directory of one queue's files under `root` (`store/consumequeue`).
#[must_use]
pub fn queue_dir(root: &Path, topic: &str, queue_id: i32, file_bytes: u64) -> Arc<FileDir> {
    let path = root.join(topic).join(queue_id.to_string());
    Arc::new(FileDir {
        path,
        digits: 20,
        file_bytes,
    })
}

/// RocketMQ rounds the configured size up to whole units.
#[must_use]
pub fn file_bytes(configured: u64) -> u64 {
    configured.div_ceil(UNIT_BYTES).max(1) * UNIT_BYTES
}

/// The file that holds unit `offset`, and where in it.
#[must_use]
pub fn place(dir: &Arc<FileDir>, offset: QueueOffset) -> (FileRef, u64) {
    let position = offset.file_position_bytes();
    let at = position % dir.file_bytes;
    (
        FileRef {
            dir: dir.clone(),
            number: position - at,
        },
        at,
    )
}

/// What the files of one queue hold below a position of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Found {
    /// Smallest offset whose record is at or beyond the log's first byte.
    pub first: QueueOffset,
    /// One beyond the last unit whose record begins below the limit.
    pub next: QueueOffset,
    /// End of that unit's record.
    pub end: LogOffset,
}

/// Why the files of a queue cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    #[error("{path}: {cause}")]
    Io { path: String, cause: io::Error },
    #[error(
        "{path} has {found} bytes, but mappedFileSizeConsumeQueue makes files of {wanted}: set it \
         to the size with which this store was written"
    )]
    WrongLength {
        path: String,
        found: u64,
        wanted: u64,
    },
    #[error("{path} is no queue file: move it away, a queue's files are named by 20 digits")]
    Foreign { path: String },
}

/// Looks up what a queue's files hold of the log's part `first..limit`. Units at or beyond `limit`
/// are not trusted: with `cut`, they are made zero again, and files behind them removed.
///
/// Up to `limit` the units are known to be whole, so two binary searches find everything.
pub fn open(
    files: &mut dyn Files,
    dir: &Arc<FileDir>,
    first: LogOffset,
    limit: LogOffset,
    cut: bool,
) -> Result<Found, QueueError> {
    let Some(numbers) = numbers(files, dir)? else {
        return Ok(Found::default());
    };
    let mut row = Row {
        files,
        dir,
        numbers,
    };
    let beyond = row.search(|unit| unit.is_some_and(|unit| unit == FILLER || unit.at < limit))?;
    let start = row.search(|unit| {
        unit.is_some_and(|unit| unit == FILLER || (unit.at < limit && unit.at < first))
    })?;
    let last = match beyond.0.checked_sub(1).map(QueueOffset) {
        Some(last) if last >= row.first() => row.unit(last)?.filter(|unit| *unit != FILLER),
        _ => None,
    };
    if cut {
        row.cut(beyond)?;
    }
    let end = last.map_or(LogOffset(0), Unit::end);
    Ok(Found {
        first: start,
        next: beyond,
        end,
    })
}

/// The files' numbers in order, or nothing if the queue has none.
fn numbers(files: &mut dyn Files, dir: &FileDir) -> Result<Option<Vec<u64>>, QueueError> {
    let entries = match files.list(&dir.path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(cause) => return Err(io_error(&dir.path, cause)),
    };
    let mut numbers = Vec::new();
    for entry in entries.iter().filter(|entry| !entry.is_dir) {
        let path = dir.path.join(&entry.name);
        let shown = || path.display().to_string();
        let plain = entry.name.len() == 20 && entry.name.bytes().all(|b| b.is_ascii_digit());
        let number = entry.name.parse().ok().filter(|_| plain);
        let Some(number) = number else {
            return Err(QueueError::Foreign { path: shown() });
        };
        if entry.bytes != dir.file_bytes {
            if entry.bytes == 0 {
                files
                    .remove(&path)
                    .map_err(|cause| io_error(&path, cause))?;
                continue;
            }
            let (found, wanted) = (entry.bytes, dir.file_bytes);
            return Err(QueueError::WrongLength {
                path: shown(),
                found,
                wanted,
            });
        }
        numbers.push(number);
    }
    numbers.sort_unstable();
    Ok((!numbers.is_empty()).then_some(numbers))
}

fn io_error(path: &Path, cause: io::Error) -> QueueError {
    QueueError::Io {
        path: path.display().to_string(),
        cause,
    }
}

/// The row of a queue's files.
struct Row<'a> {
    files: &'a mut dyn Files,
    dir: &'a Arc<FileDir>,
    numbers: Vec<u64>,
}

impl Row<'_> {
    fn first(&self) -> QueueOffset {
        QueueOffset(self.numbers[0] / UNIT_BYTES)
    }

    /// The first offset for which `holds` is false; it must be true before and false after.
    fn search(&mut self, holds: impl Fn(Option<Unit>) -> bool) -> Result<QueueOffset, QueueError> {
        let per_file = self.dir.file_bytes / UNIT_BYTES;
        let mut low = self.first().0;
        let mut high = low + self.numbers.len() as u64 * per_file;
        while low < high {
            let middle = low + (high - low) / 2;
            if holds(self.unit(QueueOffset(middle))?) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(QueueOffset(low))
    }

    fn unit(&mut self, offset: QueueOffset) -> Result<Option<Unit>, QueueError> {
        let (file, at) = place(self.dir, offset);
        if self.numbers.binary_search(&file.number).is_err() {
            return Ok(None);
        }
        let path = file.path();
        let mut bytes = [0; UNIT_BYTES as usize];
        let read = self.files.read_at(&path, at, &mut bytes);
        let read = read.map_err(|cause| io_error(&path, cause))?;
        Ok(Unit::decode(&bytes).filter(|_| read == bytes.len()))
    }

    /// Makes everything from `end` on zero again, durably: what came back after a later crash would
    /// be taken for units of that later time. The file keeps its length at every moment.
    fn cut(&mut self, end: QueueOffset) -> Result<(), QueueError> {
        let (file, at) = place(self.dir, end);
        let beyond = self.numbers.iter().filter(|number| **number > file.number);
        for number in beyond.rev() {
            let (dir, number) = (self.dir.clone(), *number);
            let path = FileRef { dir, number }.path();
            let removed = self.files.remove(&path);
            removed
                .and_then(|()| self.files.sync_dir(&self.dir.path))
                .map_err(|cause| io_error(&path, cause))?;
        }
        self.numbers.retain(|number| *number <= file.number);
        if self.numbers.binary_search(&file.number).is_ok() {
            let path = file.path();
            self.zero(&path, at)
                .map_err(|cause| io_error(&path, cause))?;
        }
        // Names that the last run made and did not flush: nobody else would.
        let synced = self.files.sync_dir(&self.dir.path);
        synced.map_err(|cause| io_error(&self.dir.path, cause))
    }

    fn zero(&mut self, path: &Path, from: u64) -> io::Result<()> {
        let mut bytes = vec![0; (self.dir.file_bytes - from) as usize];
        let read = self.files.read_at(path, from, &mut bytes)?;
        let dirty = bytes[..read].iter().rposition(|byte| *byte != 0);
        if let Some(last) = dirty {
            bytes[..=last].fill(0);
            self.files.write_at(path, from, &bytes[..=last])?;
        }
        // Zeros that were read may hide what a crash brings back.
        self.files.sync(path)
    }
}
