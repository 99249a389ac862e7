//! The device floor: how long one block takes to become durable when nothing else is asked of the
//! device. No broker that promises durability can answer faster.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use io_uring::{IoUring, opcode, squeue, types};
use rustix::io::ReadWriteFlags;
use serde::Serialize;

use crate::diskstats::{Disk, DiskCounts, DiskError};
use crate::record::{Latencies, Summary};
use crate::ring;

const FILE_BYTES: u64 = 64 * 1024 * 1024;
const BLOCK_BYTES: usize = 4096;
/// Written to the disk while the file is prepared.
const ZEROS_BYTES: usize = 1024 * 1024;
const WRITES_MIN: u64 = 2_000;
const TIME_MIN: Duration = Duration::from_secs(2);
/// A device too slow for `WRITES_MIN` is measured this long.
const TIME_MAX: Duration = Duration::from_secs(10);
const WARM_UP_WRITES: u64 = 100;

#[derive(Debug, thiserror::Error)]
pub enum FloorError {
    #[error("cannot prepare {path}")]
    Prepare { path: PathBuf, source: io::Error },
    #[error("cannot make a ring (io_uring of Linux 6.1 or later is needed)")]
    Ring(#[source] io::Error),
    #[error("a durable write of 4 KiB failed (the file system may lack O_DIRECT)")]
    Write(#[source] io::Error),
    #[error("a durable write of 4 KiB wrote {0} bytes")]
    Short(usize),
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// A way to make a block durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// A ring's direct write, linked to an fdatasync.
    Ring,
    /// pwritev2, direct, with RWF_DSYNC.
    Blocking,
}

impl Method {
    pub const ALL: [Method; 2] = [Method::Ring, Method::Blocking];

    pub fn name(self) -> &'static str {
        match self {
            Method::Ring => "ring",
            Method::Blocking => "blocking",
        }
    }
}

/// Durable 4 KiB writes, one after the other, and what the disk counted meanwhile.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct DeviceFloor {
    pub method: Method,
    pub latency: Summary,
    pub disk: DiskCounts,
}

/// A file whose blocks have all been written, as a broker's prepared segment is.
pub struct FloorFile {
    file: File,
}

#[repr(align(4096))]
struct Block([u8; BLOCK_BYTES]);

#[repr(align(4096))]
struct Zeros([u8; ZEROS_BYTES]);

impl FloorFile {
    /// Allocates and zero-writes 64 MiB in `directory`.
    pub fn prepare(directory: &Path) -> Result<Self, FloorError> {
        let path = directory.join("floor");
        let prepare = || -> io::Result<File> {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(true);
            let file = options.custom_flags(libc::O_DIRECT).open(&path)?;
            let whole = rustix::fs::FallocateFlags::empty();
            rustix::fs::fallocate(&file, whole, 0, FILE_BYTES)?;
            let zeros = Box::new(Zeros([0; ZEROS_BYTES]));
            for at in (0..FILE_BYTES).step_by(ZEROS_BYTES) {
                file.write_all_at(&zeros.0, at)?;
            }
            file.sync_all()?;
            Ok(file)
        };
        let file = prepare().map_err(|source| FloorError::Prepare {
            path: path.clone(),
            source,
        })?;
        Ok(FloorFile { file })
    }

    /// Writes block after block until 2 s have passed and 2,000 writes are done, 10 s at most.
    pub fn measure(&self, method: Method, disk: &Disk) -> Result<DeviceFloor, FloorError> {
        let mut writer = Writer::new(&self.file, method)?;
        let mut latencies = Latencies::new();
        for number in 0..WARM_UP_WRITES {
            writer.write(number)?;
        }
        let before = disk.counts()?;
        let began = Instant::now();
        let mut last = began;
        for number in 0.. {
            writer.write(WARM_UP_WRITES + number)?;
            let now = Instant::now();
            latencies.record((now - last).as_nanos() as u64);
            last = now;
            let enough = number + 1 >= WRITES_MIN && now - began >= TIME_MIN;
            if enough || now - began >= TIME_MAX {
                break;
            }
        }
        let disk = disk.counts()?.since(before);
        Ok(DeviceFloor {
            method,
            latency: latencies.summary(),
            disk,
        })
    }
}

struct Writer<'a> {
    // Dropped first: the block may be in flight after a failure.
    ring: Option<IoUring>,
    block: Box<Block>,
    file: &'a File,
}

impl<'a> Writer<'a> {
    fn new(file: &'a File, method: Method) -> Result<Self, FloorError> {
        let ring = match method {
            Method::Ring => Some(ring::ring(4).map_err(FloorError::Ring)?),
            Method::Blocking => None,
        };
        Ok(Writer {
            ring,
            block: Box::new(Block([0xA5; BLOCK_BYTES])),
            file,
        })
    }

    /// Returns when the block is durable.
    fn write(&mut self, number: u64) -> Result<(), FloorError> {
        let at = number * BLOCK_BYTES as u64 % FILE_BYTES;
        if let Some(ring) = &mut self.ring {
            return write_linked(ring, self.file, &self.block, at);
        }
        let parts = [IoSlice::new(&self.block.0)];
        let written = rustix::io::pwritev2(self.file, &parts, at, ReadWriteFlags::DSYNC);
        match written.map_err(|error| FloorError::Write(error.into()))? {
            BLOCK_BYTES => Ok(()),
            short => Err(FloorError::Short(short)),
        }
    }
}

/// A short write breaks the link, so both results count.
fn write_linked(ring: &mut IoUring, file: &File, block: &Block, at: u64) -> Result<(), FloorError> {
    let fd = types::Fd(file.as_raw_fd());
    let write = opcode::Write::new(fd, block.0.as_ptr(), BLOCK_BYTES as u32)
        .offset(at)
        .build();
    let write = write.flags(squeue::Flags::IO_LINK).user_data(0);
    let sync = opcode::Fsync::new(fd)
        .flags(types::FsyncFlags::DATASYNC)
        .build()
        .user_data(1);
    // SAFETY: both operations have completed, or the ring has failed, when this returns; the
    // block outlives the ring in `Writer`, whose fields drop in order.
    let pushed = unsafe { ring.submission().push_multiple(&[write, sync]) };
    pushed.map_err(|error| FloorError::Ring(io::Error::other(error)))?;
    let mut missing = 2;
    while missing > 0 {
        match ring.submit_and_wait(missing) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(FloorError::Ring(error)),
        }
        for completion in ring.completion() {
            missing -= 1;
            match (completion.user_data(), completion.result()) {
                (_, error) if error < 0 => {
                    return Err(FloorError::Write(io::Error::from_raw_os_error(-error)));
                }
                (0, written) if written as usize != BLOCK_BYTES => {
                    return Err(FloorError::Short(written as usize));
                }
                _ => {}
            }
        }
    }
    Ok(())
}
