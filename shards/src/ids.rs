//! Names for things that cross the border between a role and its core. One meaning, one type.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// A byte position in the log, counted from the first byte ever appended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LogOffset(pub u64);

impl LogOffset {
    /// The position `bytes` further on.
    #[must_use]
    pub fn plus(self, bytes: u64) -> LogOffset {
        LogOffset(self.0 + bytes)
    }

    /// Bytes from `earlier` to here; `earlier` must not lie behind.
    #[must_use]
    pub fn since(self, earlier: LogOffset) -> u64 {
        assert!(earlier <= self, "{earlier:?} lies behind {self:?}");
        self.0 - earlier.0
    }
}

impl fmt::Debug for LogOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "log@{}", self.0)
    }
}

impl fmt::Display for LogOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Whole bytes `at .. at + len` of the log, inside one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRange {
    pub at: LogOffset,
    pub len: u32,
}

impl LogRange {
    #[must_use]
    pub fn end(self) -> LogOffset {
        self.at.plus(u64::from(self.len))
    }
}

/// Microseconds of the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Micros(pub u64);

impl Micros {
    #[must_use]
    pub fn plus_millis(self, millis: u64) -> Micros {
        Micros(self.0.saturating_add(millis.saturating_mul(1000)))
    }
}

/// Milliseconds since 1970 of the wall clock, RocketMQ's unit for stored times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Millis(pub u64);

/// One role of the process; the application numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RoleId(pub u8);

/// One listening socket; the application numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerId(pub u8);

/// One connection. A slot is used again only after its last completion, under a new generation, so
/// that an answer to a gone connection can never reach another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Conn {
    /// The core that owns the socket.
    pub core: u8,
    pub slot: u32,
    pub generation: u32,
}

/// What a role calls one of its own unanswered effects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// A directory of equally long files, each named after a decimal number of fixed width.
#[derive(Debug, PartialEq, Eq)]
pub struct FileDir {
    pub path: PathBuf,
    /// Width of the names: 20 for RocketMQ's file queues, 17 for index files.
    pub digits: u8,
    /// Every file is made with this length, sparse.
    pub file_bytes: u64,
}

/// One file of such a directory. Cheap to copy; the core keeps the descriptors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRef {
    pub dir: Arc<FileDir>,
    pub number: u64,
}

impl FileRef {
    #[must_use]
    pub fn path(&self) -> PathBuf {
        let width = usize::from(self.dir.digits);
        self.dir.path.join(format!("{:0width$}", self.number))
    }
}
