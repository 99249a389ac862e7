//! What kind of machine and device this is, found out before anything relies on it.
//!
//! [`Facts`] are read from the kernel. [`Probe`] adds what a durable 4 KiB write costs with either
//! engine, measured within 50 ms on a scratch file and kept in `<store>/ringmq/probe`, as lines of
//! `name=value`, until kernel, file system or device change.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use io_uring::opcode;
use io_uring::types::FsyncFlags;
use rustix::io::{ReadWriteFlags, pwritev2};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::disk::Engine;
use crate::files::with_suffix;
use crate::ring::{Op, Ring, RingError, fd};
use crate::role::BLOCK_BYTES;

/// Length of the scratch file, and what is written into it at a time.
const SCRATCH_BYTES: u64 = 1 << 20;
/// For each of the two engines.
const MEASURE_TIME: Duration = Duration::from_millis(18);
const MEASURE_WRITES_MAX: usize = 200;

/// The block device under a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// The kernel's name, such as `nvme0n1p2`.
    pub name: String,
    pub logical_block_bytes: u32,
    pub physical_block_bytes: u32,
    /// Whether it has a volatile write cache, which flushes must empty.
    pub write_back: bool,
    /// Whether a write can bypass that cache.
    pub fua: bool,
    pub rotational: bool,
}

/// Facts about the machine and the file system of a store.
#[derive(Clone, Debug)]
pub struct Facts {
    /// As `uname -r` says it.
    pub kernel: String,
    /// Why there is no ring, with the cure.
    pub io_uring: Result<(), RingError>,
    /// `ext4`, `xfs`, `overlay`, `tmpfs`, ...
    pub file_system: String,
    pub mount_options: String,
    pub device: Option<Device>,
    /// Whether the kernel says what of a file is cached (since 6.5).
    pub cachestat: bool,
    /// Open files that this process may have.
    pub open_files_max: u64,
}

/// Why a flush on this file system proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotDurable {
    InMemory,
    NoBarriers,
}

impl fmt::Display for NotDurable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NotDurable::InMemory => "the file system lives in memory and is lost with the power",
            NotDurable::NoBarriers => {
                "it is mounted without barriers over a volatile write cache: flushes do not reach \
                 the device"
            }
        })
    }
}

impl Facts {
    /// Looks at the file system of `dir`, which must be there.
    pub fn of(dir: &Path) -> io::Result<Facts> {
        let (file_system, mount_options) = mount_of(&dir.canonicalize()?)?;
        let number = fs::metadata(dir)?.dev();
        Ok(Facts {
            kernel: kernel(),
            io_uring: Ring::new(4).map(drop),
            file_system,
            mount_options,
            device: device(rustix::fs::major(number), rustix::fs::minor(number)),
            cachestat: has_cachestat(),
            open_files_max: getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX),
        })
    }

    /// Why `SYNC_FLUSH` would be an empty promise here.
    #[must_use]
    pub fn not_durable(&self) -> Option<NotDurable> {
        if matches!(self.file_system.as_str(), "tmpfs" | "ramfs") {
            return Some(NotDurable::InMemory);
        }
        let cached = self.device.as_ref().is_none_or(|device| device.write_back);
        let no_barriers = self
            .mount_options
            .split(',')
            .any(|option| matches!(option, "nobarrier" | "barrier=0" | "barrier=none"));
        (no_barriers && cached).then_some(NotDurable::NoBarriers)
    }

    /// What a measurement belongs to.
    fn identity(&self) -> String {
        let device = self.device.as_ref().map_or("none", |device| &device.name);
        format!(
            "kernel={}\nfile_system={}\ndevice={device}\n",
            self.kernel, self.file_system
        )
    }
}

impl fmt::Display for Facts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Linux {}, {}", self.kernel, self.file_system)?;
        match &self.device {
            None => write!(f, " without a block device of its own")?,
            Some(device) => {
                let cache = if device.write_back {
                    "write back"
                } else {
                    "write through"
                };
                write!(
                    f,
                    " on {} (blocks {}/{}, {cache}, FUA {}{})",
                    device.name,
                    device.logical_block_bytes,
                    device.physical_block_bytes,
                    if device.fua { "yes" } else { "no" },
                    if device.rotational {
                        ", rotational"
                    } else {
                        ""
                    }
                )?;
            }
        }
        match self.not_durable() {
            Some(reason) => write!(f, "; {reason}"),
            None => Ok(()),
        }
    }
}

/// Raises the limit of open files as far as it goes and answers it.
pub fn raise_open_files() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    // Where raising is forbidden, the limit stays what it is.
    let _ = setrlimit(Resource::Nofile, raised);
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// What a durable 4 KiB write costs here, and which engine follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Floor {
    /// Median of write and linked flush through the ring, in microseconds; `None` without a ring.
    pub ring_us: Option<u32>,
    /// Median of `pwritev2` with `RWF_DSYNC`.
    pub blocking_us: u32,
    /// Whether the file system takes direct writes.
    pub direct: bool,
}

impl Floor {
    /// The ring, unless the blocking engine takes less than half the time: it costs a thread of its
    /// own, and a busy machine can make either look slow for a moment.
    #[must_use]
    pub fn engine(&self) -> Engine {
        match self.ring_us {
            Some(ring) if u64::from(ring) <= u64::from(self.blocking_us) * 2 => Engine::Ring,
            _ => Engine::Blocking,
        }
    }

    /// Of the better engine, in microseconds.
    #[must_use]
    pub fn best_us(&self) -> u32 {
        self.blocking_us.min(self.ring_us.unwrap_or(u32::MAX))
    }
}

/// Facts and floor of a store.
#[derive(Clone, Debug)]
pub struct Probe {
    pub facts: Facts,
    pub floor: Floor,
    /// False if the floor was kept from an earlier start.
    pub measured_now: bool,
}

impl Probe {
    /// Looks at a store, measuring only if nothing valid is kept. Not before its lock is held.
    pub fn of(store: &Path) -> io::Result<Probe> {
        let dir = store.join("ringmq");
        fs::create_dir_all(&dir)?;
        let facts = Facts::of(&dir)?;
        let path = dir.join("probe");
        let kept = fs::read_to_string(&path).unwrap_or_default();
        if let Some(floor) = parse(&kept, &facts) {
            return Ok(Probe {
                facts,
                floor,
                measured_now: false,
            });
        }
        let floor = measure(&dir.join("probe.scratch"), facts.io_uring.is_ok())?;
        let unfinished = with_suffix(&path, ".tmp");
        fs::write(&unfinished, text(&floor, &facts))?;
        fs::rename(&unfinished, &path)?;
        Ok(Probe {
            facts,
            floor,
            measured_now: true,
        })
    }
}

fn text(floor: &Floor, facts: &Facts) -> String {
    let ring = floor
        .ring_us
        .map_or("none".to_owned(), |time| time.to_string());
    format!(
        "{}ring_us={ring}\nblocking_us={}\ndirect={}\n",
        facts.identity(),
        floor.blocking_us,
        floor.direct
    )
}

fn parse(kept: &str, facts: &Facts) -> Option<Floor> {
    let values = kept.strip_prefix(&facts.identity())?;
    let value = |name: &str| {
        values
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
    };
    let ring_us = match value("ring_us")? {
        "none" => None,
        time => Some(time.parse().ok()?),
    };
    // A ring that has appeared or gone since is another machine.
    if ring_us.is_some() != facts.io_uring.is_ok() {
        return None;
    }
    Some(Floor {
        ring_us,
        blocking_us: value("blocking_us")?.parse().ok()?,
        direct: value("direct")?.parse().ok()?,
    })
}

/// The scratch file, removed at the end.
struct Scratch {
    path: PathBuf,
    file: File,
    direct: bool,
    block: memmap2::MmapMut,
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A file that stays is written over by the next measurement.
        let _ = fs::remove_file(&self.path);
    }
}

impl Scratch {
    fn make(path: &Path) -> io::Result<Scratch> {
        let buffered = File::create(path)?;
        buffered.write_all_at(&vec![0; SCRATCH_BYTES as usize], 0)?;
        buffered.sync_all()?;
        let open = |flags| {
            let mut options = OpenOptions::new();
            options
                .read(true)
                .write(true)
                .custom_flags(flags)
                .open(path)
        };
        let (file, direct) = match open(libc::O_DIRECT) {
            Ok(file) => (file, true),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => (open(0)?, false),
            Err(error) => return Err(error),
        };
        let mut block = memmap2::MmapMut::map_anon(BLOCK_BYTES as usize)?;
        block.fill(0xA5);
        Ok(Scratch {
            path: path.to_owned(),
            file,
            direct,
            block,
        })
    }
}

/// Measures both engines.
///
/// # Errors
/// What the device says; without a working durable write there is no store.
pub fn measure(scratch: &Path, with_ring: bool) -> io::Result<Floor> {
    let scratch = Scratch::make(scratch)?;
    let blocking_us = median_us(|at| {
        let block = [IoSlice::new(&scratch.block)];
        let written = pwritev2(&scratch.file, &block, at, ReadWriteFlags::DSYNC)?;
        whole(written as i32)
    })?;
    let ring_us = if with_ring {
        let mut ring = Ring::new(4).map_err(io::Error::other)?;
        Some(median_us(|at| ring_write(&mut ring, &scratch, at))?)
    } else {
        None
    };
    Ok(Floor {
        ring_us,
        blocking_us,
        direct: scratch.direct,
    })
}

fn median_us(mut write: impl FnMut(u64) -> io::Result<()>) -> io::Result<u32> {
    let mut times = Vec::with_capacity(MEASURE_WRITES_MAX);
    let begin = Instant::now();
    while times.len() < MEASURE_WRITES_MAX && (begin.elapsed() < MEASURE_TIME || times.is_empty()) {
        let at = times.len() as u64 * BLOCK_BYTES % SCRATCH_BYTES;
        let start = Instant::now();
        write(at)?;
        times.push(start.elapsed().as_micros() as u32);
    }
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

fn ring_write(ring: &mut Ring, scratch: &Scratch, at: u64) -> io::Result<()> {
    let file = fd(scratch.file.as_raw_fd());
    let write = opcode::Write::new(file, scratch.block.as_ptr(), BLOCK_BYTES as u32)
        .offset(at)
        .build();
    let flush = opcode::Fsync::new(file).flags(FsyncFlags::DATASYNC).build();
    let (first, second) = (Op::Disk { key: 0, part: 0 }, Op::Disk { key: 0, part: 1 });
    // SAFETY: file and block outlive this function, which waits for both completions.
    unsafe { ring.push_linked(write, first, flush, second) };
    let (mut written, mut flushed) = (None, None);
    while written.is_none() || flushed.is_none() {
        ring.submit_and_wait(None);
        ring.reap(2, &mut |op, result, _| match op {
            Op::Disk { part: 0, .. } => written = Some(result),
            _ => flushed = Some(result),
        });
    }
    whole(written.unwrap_or(0))?;
    match flushed {
        Some(0) => Ok(()),
        failed => Err(io::Error::from_raw_os_error(-failed.unwrap_or(-libc::EIO))),
    }
}

fn whole(written: i32) -> io::Result<()> {
    match written {
        errno if errno < 0 => Err(io::Error::from_raw_os_error(-errno)),
        written if written as u64 == BLOCK_BYTES => Ok(()),
        _ => Err(io::Error::from(io::ErrorKind::WriteZero)),
    }
}

fn kernel() -> String {
    rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned()
}

/// Type and options of the mount that holds `path`: the last of those with the longest mount point.
fn mount_of(path: &Path) -> io::Result<(String, String)> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let best = mounts
        .lines()
        .filter_map(parse_mount)
        .filter(|mount| path.starts_with(&mount.point))
        .max_by_key(|mount| mount.point.as_os_str().len());
    best.map(|mount| (mount.kind, mount.options))
        .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
}

struct Mount {
    point: PathBuf,
    kind: String,
    options: String,
}

/// One line of mountinfo: `id parent maj:min root point options [optional...] - type source
/// super-options`.
fn parse_mount(line: &str) -> Option<Mount> {
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ');
    let point = left.nth(4)?;
    let own = left.next()?;
    let mut right = right.split(' ');
    let kind = right.next()?;
    let of_file_system = right.nth(1).unwrap_or("");
    Some(Mount {
        point: unescape(point).into(),
        kind: kind.to_owned(),
        options: format!("{own},{of_file_system}"),
    })
}

/// Blanks in mount points are written as `\040` and the like.
fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\\') {
        out.push_str(before);
        match after.get(..3).map(|code| u8::from_str_radix(code, 8)) {
            Some(Ok(byte)) => {
                out.push(char::from(byte));
                rest = &after[3..];
            }
            _ => {
                out.push('\\');
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

fn device(major: u32, minor: u32) -> Option<Device> {
    if major == 0 {
        return None;
    }
    let dir = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    // A partition's queue is its disk's.
    let queue = [dir.join("queue"), dir.parent()?.join("queue")]
        .into_iter()
        .find(|queue| queue.is_dir())?;
    let value = |name: &str| {
        let text = fs::read_to_string(queue.join(name)).unwrap_or_default();
        text.trim().to_owned()
    };
    let number = |name: &str| value(name).parse().unwrap_or(0);
    Some(Device {
        name: dir.file_name()?.to_string_lossy().into_owned(),
        logical_block_bytes: number("logical_block_size"),
        physical_block_bytes: number("physical_block_size"),
        write_back: value("write_cache") != "write through",
        fua: number("fua") == 1,
        rotational: number("rotational") == 1,
    })
}

/// The same number on every architecture.
const SYS_CACHESTAT: libc::c_long = 451;

/// `cachestat` on no file: only a kernel that has it complains about the file.
fn has_cachestat() -> bool {
    // SAFETY: with a bad descriptor no pointer is looked at.
    let result = unsafe { libc::syscall(SYS_CACHESTAT, -1, 0usize, 0usize, 0) };
    let error = io::Error::last_os_error().raw_os_error();
    result == -1 && !matches!(error, Some(libc::ENOSYS | libc::EPERM))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_line_is_read_as_the_kernel_documents_it() {
        let line = r"36 35 98:0 /mnt1 /mnt\0402 rw,noatime master:1 - ext3 /dev/root rw,barrier=0";
        let mount = parse_mount(line).expect("a whole line");
        assert_eq!(mount.point, Path::new("/mnt 2"));
        assert_eq!(mount.kind, "ext3");
        assert_eq!(mount.options, "rw,noatime,rw,barrier=0");
        assert!(parse_mount("36 35 98:0 /").is_none());
        assert_eq!(unescape(r"a\b\1"), r"a\b\1");
    }

    fn facts(file_system: &str, options: &str, device: Option<Device>) -> Facts {
        Facts {
            kernel: "6.18.0".to_owned(),
            io_uring: Ok(()),
            file_system: file_system.to_owned(),
            mount_options: options.to_owned(),
            device,
            cachestat: true,
            open_files_max: 1024,
        }
    }

    #[test]
    fn sync_flush_means_nothing_in_memory_or_without_barriers() {
        let cached = Some(Device {
            write_back: true,
            ..Device::default()
        });
        let through = Some(Device::default());
        let of =
            |fs, options, device: &Option<Device>| facts(fs, options, device.clone()).not_durable();
        assert_eq!(of("ext4", "rw,relatime", &cached), None);
        assert_eq!(of("tmpfs", "rw", &None), Some(NotDurable::InMemory));
        let no_barriers = Some(NotDurable::NoBarriers);
        assert_eq!(of("ext4", "rw,nobarrier", &cached), no_barriers);
        assert_eq!(of("ext4", "rw,barrier=0", &None), no_barriers);
        // Nothing volatile is there to be flushed.
        assert_eq!(of("xfs", "rw,nobarrier", &through), None);
    }

    #[test]
    fn a_kept_floor_is_void_on_another_machine() {
        let here = facts("ext4", "rw", None);
        let floor = Floor {
            ring_us: Some(83),
            blocking_us: 86,
            direct: true,
        };
        let kept = text(&floor, &here);
        assert_eq!(parse(&kept, &here), Some(floor));
        assert_eq!(parse(&kept, &facts("xfs", "rw", None)), None);
        assert_eq!(
            parse(&kept, &facts("ext4", "rw", Some(Device::default()))),
            None
        );
        let mut newer = here.clone();
        newer.kernel = "6.19.0".to_owned();
        assert_eq!(parse(&kept, &newer), None);
        let mut forbidden = here.clone();
        forbidden.io_uring = Err(RingError::Forbidden);
        assert_eq!(parse(&kept, &forbidden), None);
        assert_eq!(parse(&kept[..kept.len() / 2], &here), None);
        assert_eq!(parse("", &here), None);
    }

    #[test]
    fn the_ring_is_chosen_unless_blocking_takes_less_than_half() {
        let engine = |ring_us, blocking_us| {
            Floor {
                ring_us,
                blocking_us,
                direct: true,
            }
            .engine()
        };
        assert_eq!(engine(Some(83), 86), Engine::Ring);
        assert_eq!(engine(Some(160), 80), Engine::Ring);
        assert_eq!(engine(Some(161), 80), Engine::Blocking);
        assert_eq!(engine(None, 80), Engine::Blocking);
    }

    #[test]
    fn a_store_is_measured_once() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let first = Probe::of(dir.path()).expect("the device takes durable writes");
        assert!(first.measured_now);
        assert!(first.floor.best_us() > 0);
        assert!(first.floor.ring_us.is_some());
        let second = Probe::of(dir.path()).expect("as before");
        assert!(!second.measured_now);
        assert_eq!(second.floor, first.floor);
        let left: Vec<_> = fs::read_dir(dir.path().join("ringmq"))
            .expect("it was made")
            .map(|entry| entry.expect("readable").file_name())
            .collect();
        assert_eq!(left, ["probe"]);
    }
}
