//! The file `abort`: the mark of a run that has not ended (store-format 11). Its presence at start
//! says that the last run, of this program or of Java, did not end cleanly.

use std::io;
use std::path::{Path, PathBuf};

use shards::files::Files;

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
