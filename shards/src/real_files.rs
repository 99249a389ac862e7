//! [`Files`] over the operating system.
//!
//! Files that are written, read or flushed stay open for the life of the [`RealFiles`], up to a
//! small bound: so a flush goes to the descriptor that the writes went to and cannot miss their
//! failure. One value serves one job; it is not kept, since others rename and remove too.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use rustix::fs::{FallocateFlags, fallocate, statvfs};

use crate::files::{Entry, Files, Space};

/// Files kept open by one job.
const OPEN_MAX: usize = 8;

/// The file system of this machine.
#[derive(Debug, Default)]
pub struct RealFiles {
    /// Oldest first.
    open: Vec<(PathBuf, File)>,
}

impl RealFiles {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn file(&mut self, path: &Path) -> io::Result<&File> {
        match self.open.iter().position(|(name, _)| name == path) {
            Some(place) => {
                let used = self.open.remove(place);
                self.open.push(used);
            }
            None => {
                let file = OpenOptions::new().read(true).write(true).open(path)?;
                self.keep(path, file);
            }
        }
        let (_, file) = self.open.last().expect("it was just put there");
        Ok(file)
    }

    fn keep(&mut self, path: &Path, file: File) {
        if self.open.len() == OPEN_MAX {
            self.open.remove(0);
        }
        self.open.push((path.to_owned(), file));
    }

    fn forget(&mut self, path: &Path) {
        self.open.retain(|(name, _)| name != path);
    }
}

impl Files for RealFiles {
    fn list(&mut self, dir: &Path) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let meta = match entry.metadata() {
                // It was removed since the directory was read.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                meta => meta?,
            };
            let modified = meta.modified()?.duration_since(UNIX_EPOCH);
            entries.push(Entry {
                name: entry.file_name().to_string_lossy().into_owned(),
                bytes: meta.len(),
                is_dir: meta.is_dir(),
                modified_ms: modified.map_or(0, |time| time.as_millis() as u64),
            });
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    fn make_dir_all(&mut self, dir: &Path) -> io::Result<()> {
        fs::create_dir_all(dir)
    }

    fn len(&mut self, path: &Path) -> io::Result<u64> {
        Ok(fs::metadata(path)?.len())
    }

    /// Where the file system cannot allocate, the file is sparse: later writes can then meet a
    /// full disk.
    fn create(&mut self, path: &Path, bytes: u64, allocate: bool) -> io::Result<()> {
        self.forget(path);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(path)?;
        if allocate && bytes > 0 {
            match fallocate(&file, FallocateFlags::empty(), 0, bytes) {
                Err(rustix::io::Errno::OPNOTSUPP) => file.set_len(bytes)?,
                done => done?,
            }
        } else {
            file.set_len(bytes)?;
        }
        self.keep(path, file);
        Ok(())
    }

    fn read_at(&mut self, path: &Path, at: u64, buf: &mut [u8]) -> io::Result<usize> {
        let file = self.file(path)?;
        let mut done = 0;
        while done < buf.len() {
            match file.read_at(&mut buf[done..], at + done as u64) {
                Ok(0) => break,
                Ok(len) => done += len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn write_at(&mut self, path: &Path, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.file(path)?.write_all_at(bytes, at)
    }

    fn truncate(&mut self, path: &Path, bytes: u64) -> io::Result<()> {
        self.file(path)?.set_len(bytes)
    }

    fn sync(&mut self, path: &Path) -> io::Result<()> {
        let synced = self.file(path)?.sync_all();
        if synced.is_err() {
            self.forget(path);
        }
        synced
    }

    fn sync_dir(&mut self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        self.forget(from);
        self.forget(to);
        fs::rename(from, to)
    }

    fn remove(&mut self, path: &Path) -> io::Result<()> {
        self.forget(path);
        match fs::remove_file(path) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EISDIR | libc::EPERM)) => {
                fs::remove_dir(path)
            }
            removed => removed,
        }
    }

    fn space(&mut self, path: &Path) -> io::Result<Space> {
        let facts = statvfs(path)?;
        Ok(Space {
            used: (facts.f_blocks - facts.f_bfree) * facts.f_frsize,
            free: facts.f_bavail * facts.f_frsize,
        })
    }
}
