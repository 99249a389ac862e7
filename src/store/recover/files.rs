//! The segments that are there.

use std::io;
use std::path::{Path, PathBuf};

use shards::files::{Entry, Files};
use shards::segments::{parse_segment_name, segment_name};

use super::Refused;
use crate::ids::LogOffset;
use crate::store::segment::Segments;

const REWRITE_BYTES: u64 = 1 << 20;

/// Segments without a gap, each of the right length.
pub(super) struct Found {
    dir: PathBuf,
    pub segments: Segments,
    /// Of each, in order.
    pub starts: Vec<LogOffset>,
}

impl Found {
    /// Lists and checks them. An empty last file is what a crash leaves of one that was being made:
    /// it is removed. Directories are not the log's.
    pub fn list(files: &mut dyn Files, dir: &Path, segments: Segments) -> Result<Found, Refused> {
        make_dir(files, dir).map_err(Refused::io("make directory", dir))?;
        let mut entries = files.list(dir).map_err(Refused::io("list", dir))?;
        entries.retain(|entry| !entry.is_dir);
        let mut found = Found {
            dir: dir.to_path_buf(),
            segments,
            starts: Vec::with_capacity(entries.len()),
        };
        let full = match entries.split_last() {
            Some((last, full)) if last.bytes == 0 => full,
            _ => &entries,
        };
        for entry in full {
            found.add(entry)?;
        }
        for empty in &entries[full.len()..] {
            let path = dir.join(&empty.name);
            if parse_segment_name(empty.name.as_ref()).is_none() {
                return Err(Refused::StrayFile(path));
            }
            files
                .remove(&path)
                .and_then(|()| files.sync_dir(dir))
                .map_err(Refused::io("remove", &path))?;
        }
        Ok(found)
    }

    fn add(&mut self, entry: &Entry) -> Result<(), Refused> {
        let path = self.dir.join(&entry.name);
        let Some(start) = parse_segment_name(entry.name.as_ref()) else {
            return Err(Refused::StrayFile(path));
        };
        let expected = self.segments.bytes();
        if entry.bytes != expected {
            return Err(Refused::WrongLength {
                path,
                bytes: entry.bytes,
                expected,
            });
        }
        if self.segments.start_of(start) != start {
            return Err(Refused::WrongStart { path, expected });
        }
        if !self.starts.is_empty() && self.end() != start {
            return Err(Refused::Gap(self.path_of(self.end())));
        }
        self.starts.push(start);
        Ok(())
    }

    /// Start of the first segment; 0 for an empty log.
    pub fn first(&self) -> LogOffset {
        self.starts.first().copied().unwrap_or_default()
    }

    /// End of the last segment.
    pub fn end(&self) -> LogOffset {
        self.starts
            .last()
            .map_or(LogOffset(0), |last| last.plus(self.segments.bytes()))
    }

    /// The segment that holds `at`, there or not.
    pub fn path_of(&self, at: LogOffset) -> PathBuf {
        self.dir.join(segment_name(self.segments.start_of(at)))
    }

    /// Fills `buf` from one segment.
    pub fn read(&self, files: &mut dyn Files, at: LogOffset, buf: &mut [u8]) -> io::Result<()> {
        let within = at.since(self.segments.start_of(at));
        let bytes = files.read_at(&self.path_of(at), within, buf)?;
        if bytes < buf.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }

    /// Writes into one segment.
    pub fn write(&self, files: &mut dyn Files, at: LogOffset, bytes: &[u8]) -> Result<(), Refused> {
        let path = self.path_of(at);
        let within = at.since(self.segments.start_of(at));
        files
            .write_at(&path, within, bytes)
            .map_err(Refused::io("write into", &path))
    }

    /// Removes all segments from `start` on, the last one first and each for good before the next,
    /// so that there is never a gap.
    pub fn remove_from(&mut self, files: &mut dyn Files, start: LogOffset) -> Result<(), Refused> {
        while let Some(last) = self.starts.last().filter(|last| **last >= start) {
            let path = self.path_of(*last);
            files
                .remove(&path)
                .and_then(|()| files.sync_dir(&self.dir))
                .map_err(Refused::io("remove", &path))?;
            self.starts.pop();
        }
        Ok(())
    }

    /// Writes `from .. to` again, as it was read. A flush that failed may have left bytes that are
    /// seen but will never reach the device, and no later flush tells of them.
    pub fn rewrite(
        &self,
        files: &mut dyn Files,
        from: LogOffset,
        to: LogOffset,
    ) -> Result<(), Refused> {
        let mut at = from;
        while at < to {
            let len = REWRITE_BYTES.min(to.since(at)).min(self.segments.left(at));
            let mut bytes = vec![0; len as usize];
            let path = self.path_of(at);
            self.read(files, at, &mut bytes)
                .map_err(Refused::io("read", &path))?;
            self.write(files, at, &bytes)?;
            at = at.plus(len);
        }
        Ok(())
    }

    /// Makes everything from `from` on durable: what was read may have come from a cache.
    pub fn sync_from(&self, files: &mut dyn Files, from: LogOffset) -> Result<(), Refused> {
        let from = self.segments.start_of(from);
        for start in self.starts.iter().filter(|start| **start >= from) {
            let path = self.path_of(*start);
            files.sync(&path).map_err(Refused::io("sync", &path))?;
        }
        files
            .sync_dir(&self.dir)
            .map_err(Refused::io("sync", &self.dir))
    }
}

/// Makes the log's directory, durably.
fn make_dir(files: &mut dyn Files, dir: &Path) -> io::Result<()> {
    files.make_dir_all(dir)?;
    match dir.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => files.sync_dir(parent),
        _ => Ok(()),
    }
}
