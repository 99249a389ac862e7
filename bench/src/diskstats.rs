//! What the block device itself counted: writes and flushes completed, from `/proc/diskstats`.
//!
//! The counts are of the whole disk, other programs included; the kernel counts flushes there and
//! not per partition.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

const DISKSTATS: &str = "/proc/diskstats";
/// Fields after the device's name, counted from 0 (kernel's Documentation/admin-guide/iostats).
const WRITES: usize = 4;
const SECTORS_WRITTEN: usize = 6;
const FLUSHES: usize = 15;
const SECTOR_BYTES: u64 = 512;

#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    #[error("cannot read {path}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{0} is not on a block device that the kernel names; give a directory on a disk")]
    NoDevice(PathBuf),
    #[error("{DISKSTATS} has no counts of writes and flushes for {0} (Linux 5.5 or later has)")]
    NoCounts(String),
}

/// The disk under a directory.
#[derive(Clone, Debug)]
pub struct Disk {
    /// As in `/proc/diskstats`, such as `nvme0n1`.
    pub name: String,
    sysfs: PathBuf,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DiskCounts {
    pub writes: u64,
    pub bytes_written: u64,
    pub flushes: u64,
}

impl DiskCounts {
    pub fn since(self, earlier: DiskCounts) -> DiskCounts {
        DiskCounts {
            writes: self.writes.wrapping_sub(earlier.writes),
            bytes_written: self.bytes_written.wrapping_sub(earlier.bytes_written),
            flushes: self.flushes.wrapping_sub(earlier.flushes),
        }
    }
}

impl Disk {
    /// Finds the disk by the directory's device number; for file systems without one of their own
    /// (btrfs, overlay) by the source of the mount.
    pub fn under(directory: &Path) -> Result<Self, DiskError> {
        let at = |path: &Path, source| DiskError::Read {
            path: path.into(),
            source,
        };
        let metadata = fs::metadata(directory).map_err(|error| at(directory, error))?;
        let mut device = metadata.dev();
        if rustix::fs::major(device) == 0 {
            let mount = Mount::of(directory)?;
            let source = fs::metadata(&mount.source)
                .ok()
                .filter(|found| found.rdev() != 0);
            device = source
                .ok_or_else(|| DiskError::NoDevice(directory.into()))?
                .rdev();
        }
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let link = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
        let mut sysfs = fs::canonicalize(&link).map_err(|error| at(&link, error))?;
        if sysfs.join("partition").exists() {
            sysfs.pop();
        }
        let name = sysfs.file_name().and_then(|name| name.to_str());
        let name = name
            .ok_or_else(|| DiskError::NoDevice(directory.into()))?
            .to_owned();
        Ok(Disk { name, sysfs })
    }

    /// Counts since the machine started.
    pub fn counts(&self) -> Result<DiskCounts, DiskError> {
        let read = fs::read_to_string(DISKSTATS);
        let text = read.map_err(|source| DiskError::Read {
            path: DISKSTATS.into(),
            source,
        })?;
        counts_in(&text, &self.name).ok_or_else(|| DiskError::NoCounts(self.name.clone()))
    }

    /// A setting of the disk's queue, such as `write_cache`.
    pub fn queue(&self, setting: &str) -> Option<String> {
        let text = fs::read_to_string(self.sysfs.join("queue").join(setting)).ok()?;
        Some(text.trim().to_owned())
    }
}

fn counts_in(diskstats: &str, name: &str) -> Option<DiskCounts> {
    let mut lines = diskstats
        .lines()
        .map(|line| line.split_ascii_whitespace().skip(2));
    let fields: Vec<u64> = lines
        .find_map(|mut fields| fields.next().filter(|&found| found == name).map(|_| fields))?
        .map_while(|field| field.parse().ok())
        .collect();
    Some(DiskCounts {
        writes: *fields.get(WRITES)?,
        bytes_written: fields.get(SECTORS_WRITTEN)? * SECTOR_BYTES,
        flushes: *fields.get(FLUSHES)?,
    })
}

/// A line of `/proc/self/mountinfo`.
#[derive(Clone, Debug)]
pub struct Mount {
    pub file_system: String,
    pub source: String,
    pub options: String,
}

impl Mount {
    /// The mount that holds a path: the last of those with the longest mount point.
    pub fn of(path: &Path) -> Result<Self, DiskError> {
        let read = |path: &Path, source| DiskError::Read {
            path: path.into(),
            source,
        };
        let path = fs::canonicalize(path).map_err(|error| read(path, error))?;
        let list = Path::new("/proc/self/mountinfo");
        let text = fs::read_to_string(list).map_err(|error| read(list, error))?;
        mount_in(&text, &path).ok_or(DiskError::NoDevice(path))
    }
}

fn mount_in(mountinfo: &str, path: &Path) -> Option<Mount> {
    let mounts = mountinfo.lines().filter_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        let point = Path::new(place.split(' ').nth(4)?);
        let mut kind = kind.split(' ');
        let (file_system, source) = (kind.next()?.to_owned(), kind.next()?.to_owned());
        let options = format!("{},{}", place.split(' ').nth(5)?, kind.next()?);
        let depth = path
            .starts_with(point)
            .then(|| point.components().count())?;
        Some((
            depth,
            Mount {
                file_system,
                source,
                options,
            },
        ))
    });
    mounts
        .max_by_key(|(depth, _)| *depth)
        .map(|(_, mount)| mount)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two lines of a machine with a partitioned disk; the meaning of the fields is from the
    /// kernel's documentation.
    const DISKSTATS: &str = "\
        \x20  8       0 sda 28651 5294 2671162 27503 8847 26925 4900248 33870 0 8764 61628 3817 21 \
        163312 246 365 9\n\
        \x20  8       1 sda1 1 2 3 4 5 6 7 8 0 10 11 12 13 14 15 0 0\n\
        \x20  7       0 loop0 0 0 0 0 0 0 0 0 0 0 0\n";

    #[test]
    fn writes_and_flushes_are_read_by_whole_names() {
        let sda = DiskCounts {
            writes: 8847,
            bytes_written: 4_900_248 * 512,
            flushes: 365,
        };
        assert_eq!(counts_in(DISKSTATS, "sda"), Some(sda));
        assert_eq!(
            counts_in(DISKSTATS, "sda1").map(|counts| counts.flushes),
            Some(0)
        );
        assert_eq!(
            counts_in(DISKSTATS, "loop0"),
            None,
            "a kernel without flush counts"
        );
        assert_eq!(counts_in(DISKSTATS, "sd"), None);
    }

    #[test]
    fn the_innermost_mount_holds_a_path() {
        let mountinfo = "\
            21 1 8:1 / / rw,relatime - ext4 /dev/root rw\n\
            22 21 0:5 / /data rw,nosuid shared:2 - btrfs /dev/sdb rw,ssd\n\
            23 22 0:9 / /data/fast rw - tmpfs none rw\n";
        let kind = |path: &str| mount_in(mountinfo, Path::new(path)).map(|mount| mount.source);
        assert_eq!(kind("/data/slow"), Some("/dev/sdb".into()));
        assert_eq!(kind("/data/fast/x"), Some("none".into()));
        assert_eq!(kind("/database"), Some("/dev/root".into()));
        let data = mount_in(mountinfo, Path::new("/data")).expect("mounted");
        assert_eq!(
            (&*data.file_system, &*data.options),
            ("btrfs", "rw,nosuid,rw,ssd")
        );
    }
}
