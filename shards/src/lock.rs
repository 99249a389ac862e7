//! The store's lock (spec store-format 12): one process at a time, RocketMQ's included.
//!
//! Java locks the first byte with a POSIX record lock. Ours is an open file description lock on the
//! same byte: the two exclude each other, and ours is not lost when something else in this process
//! closes the file.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use thiserror::Error;

const CONTENT: &[u8] = b"lock";

/// Why the store cannot be had.
#[derive(Debug, Error)]
pub enum LockError {
    #[error(
        "the store is in use by process {pid} ({path} is locked): stop it, or use another store"
    )]
    HeldBy { path: PathBuf, pid: i32 },
    #[error(
        "the store is in use by another broker ({path} is locked): stop it, or use another store"
    )]
    Held { path: PathBuf },
    #[error("{step} {path}: {cause}")]
    Io {
        step: &'static str,
        path: PathBuf,
        cause: io::Error,
    },
}

/// Holds the store until it is dropped. Take it before touching anything else in the store.
#[derive(Debug)]
pub struct StoreLock {
    /// The lock lives and dies with this descriptor.
    _file: File,
}

impl StoreLock {
    /// Locks `<store>/lock`, making it and the store's directory where missing.
    ///
    /// # Errors
    /// At once if somebody holds it.
    pub fn take(store: &Path) -> Result<StoreLock, LockError> {
        let path = store.join("lock");
        let fail = |step| {
            let path = path.clone();
            move |cause| LockError::Io { step, path, cause }
        };
        std::fs::create_dir_all(store).map_err(fail("make the directory of"))?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(fail("open"))?;
        if let Err(error) = lock(&file, libc::F_OFD_SETLK, &mut first_byte()) {
            return Err(match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EACCES) => held(&file, &path),
                _ => fail("lock")(error),
            });
        }
        let bytes = file.metadata().map_err(fail("look at"))?.len();
        if bytes != CONTENT.len() as u64 {
            file.set_len(0).map_err(fail("write"))?;
            file.write_all_at(CONTENT, 0).map_err(fail("write"))?;
        }
        Ok(StoreLock { _file: file })
    }
}

/// Only a holder of a POSIX lock, such as Java, has a process id.
fn held(file: &File, path: &Path) -> LockError {
    let path = path.to_owned();
    let mut holder = first_byte();
    let asked = lock(file, libc::F_OFD_GETLK, &mut holder);
    match holder.l_pid {
        pid if asked.is_ok() && pid > 0 => LockError::HeldBy { path, pid },
        _ => LockError::Held { path },
    }
}

fn first_byte() -> libc::flock {
    libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 1,
        l_pid: 0,
    }
}

fn lock(file: &File, command: libc::c_int, range: &mut libc::flock) -> io::Result<()> {
    // SAFETY: both commands take a `flock`, which outlives the call.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, range) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_held_once_and_free_again_afterwards() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let store = dir.path().join("store");
        let held = StoreLock::take(&store).expect("nobody holds it");
        assert!(matches!(
            StoreLock::take(&store),
            Err(LockError::Held { .. })
        ));
        let content = std::fs::read(store.join("lock")).expect("it was made");
        assert_eq!(content, b"lock");
        // Looking at the file, as a backup does, must not lose the lock.
        assert!(matches!(
            StoreLock::take(&store),
            Err(LockError::Held { .. })
        ));
        drop(held);
        StoreLock::take(&store).expect("it was let go");
    }

    #[test]
    fn a_posix_lock_as_java_takes_it_excludes_us_and_is_named() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let path = dir.path().join("lock");
        std::fs::write(&path, "lock").expect("the directory is there");
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .expect("it was just written");
        lock(&file, libc::F_SETLK, &mut first_byte()).expect("nobody holds it");
        let pid = std::process::id() as i32;
        match StoreLock::take(dir.path()) {
            Err(LockError::HeldBy { pid: named, .. }) => assert_eq!(named, pid),
            other => panic!("{other:?}"),
        }
    }
}
