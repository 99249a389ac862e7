//! One broker per store, and the mark of a run (store-format 11 and 12).

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use shards::files::Files;
use thiserror::Error;

/// Why the store cannot be used.
#[derive(Debug, Error)]
pub enum LockError {
    /// Another broker, this program or Java, has the store.
    #[error("{0} is locked: another broker uses this store; stop it first")]
    Taken(PathBuf),
    /// The file cannot be made or locked.
    #[error("{path}: {error}; the store's directory must exist and be writable")]
    Io {
        /// The lock file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
}

/// The store is ours until this is dropped. It holds the only descriptor of the file that this
/// process ever opens.
#[derive(Debug)]
pub struct StoreLock {
    _file: File,
}

/// Takes the lock of the store in `root`, before anything else is touched. The lock belongs to the
/// descriptor (`F_OFD_SETLK`), since a lock of the process would be lost when any other descriptor
/// of the file is closed; it excludes Java's, and Java's excludes it.
///
/// # Errors
/// See [`LockError`].
pub fn take(root: &Path) -> Result<StoreLock, LockError> {
    let path = root.join("lock");
    let io_error = |error| LockError::Io {
        path: path.clone(),
        error,
    };
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(io_error)?;
    if !try_lock(&file).map_err(io_error)? {
        return Err(LockError::Taken(path));
    }
    if file.metadata().map_err(io_error)?.len() == 0 {
        file.write_all(b"lock").map_err(io_error)?;
    }
    Ok(StoreLock { _file: file })
}

/// Locks the first byte; false if somebody else has it.
fn try_lock(file: &File) -> io::Result<bool> {
    // SAFETY: `flock` is plain data, for which zeros are a value.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    range.l_type = libc::F_WRLCK as libc::c_short;
    range.l_whence = libc::SEEK_SET as libc::c_short;
    range.l_start = 0;
    range.l_len = 1;
    // SAFETY: the descriptor is open and `range` outlives the call.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const range) };
    if result == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Ok(false),
        _ => Err(error),
    }
}

fn abort_path(root: &Path) -> PathBuf {
    root.join("abort")
}

/// Whether the last run, of this program or of Java, did not end cleanly.
///
/// # Errors
/// The directory cannot be read.
pub fn was_aborted(files: &mut dyn Files, root: &Path) -> io::Result<bool> {
    match files.len(&abort_path(root)) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Writes `abort`, durably: before the first append, else a power loss looks like a clean stop.
///
/// # Errors
/// A step failed; the broker must not become ready.
pub fn begin_run(files: &mut dyn Files, root: &Path, process: u32) -> io::Result<()> {
    let path = abort_path(root);
    files.create(&path, 0, false)?;
    files.write_at(&path, 0, process.to_string().as_bytes())?;
    files.sync(&path)?;
    files.sync_dir(root)
}

/// Removes `abort`: after everything else of a clean stop is on stable storage.
///
/// # Errors
/// A step failed; the next start reads the log as after a crash.
pub fn end_run(files: &mut dyn Files, root: &Path) -> io::Result<()> {
    files.remove(&abort_path(root))?;
    files.sync_dir(root)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_broker_is_refused_until_the_first_is_gone() {
        let root = tempfile::tempdir().expect("a directory for the test");
        let first = take(root.path()).expect("nobody has it");
        assert!(matches!(take(root.path()), Err(LockError::Taken(_))));
        drop(first);
        take(root.path()).expect("given back");
        let content = std::fs::read(root.path().join("lock")).expect("it is there");
        assert_eq!(content, b"lock");
    }

    #[test]
    fn closing_another_descriptor_does_not_give_the_lock_back() {
        let root = tempfile::tempdir().expect("a directory for the test");
        let _first = take(root.path()).expect("nobody has it");
        drop(File::open(root.path().join("lock")).expect("it is there"));
        assert!(matches!(take(root.path()), Err(LockError::Taken(_))));
    }
}
