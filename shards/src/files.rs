//! File verbs as steps over a small trait, so that a simulated disk can stop between any two.
//!
//! [`Job`] is what a role may ask of the background executor; [`carry_out`] is how, step by step,
//! over [`Files`]. The real files and the simulated ones differ in nothing else.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::ids::LogOffset;

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
    #[error("{step} {path}: errno {errno}")]
    Io {
        step: &'static str,
        path: PathBuf,
        errno: i32,
    },
}
