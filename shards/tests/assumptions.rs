//! What the disk code believes about the kernel, one test each.

use std::fs::{File, OpenOptions};
use std::io::IoSliceMut;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::Duration;

use io_uring::opcode;
use io_uring::types::FsyncFlags;
use rustix::fs::{Advice, FallocateFlags, fadvise, fallocate};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use shards::ring::{Op, Ring, fd};

const WRITE: Op = Op::Disk { key: 0, part: 0 };
const FLUSH: Op = Op::Disk { key: 0, part: 1 };

fn scratch() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a scratch directory");
    let path = dir.path().join("file");
    (dir, path)
}

fn open(path: &PathBuf, flags: i32) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(flags)
        .open(path)
        .expect("it can be opened")
}

/// A block of memory as direct writes want it.
fn block(byte: u8) -> memmap2::MmapMut {
    let mut block = memmap2::MmapMut::map_anon(4096).expect("anonymous memory");
    block.fill(byte);
    block
}

fn linked(file: &File, memory: &[u8]) -> Vec<(Op, i32)> {
    let mut ring = Ring::new(4).expect("io_uring is allowed here");
    let target = fd(file.as_raw_fd());
    let write = opcode::Write::new(target, memory.as_ptr(), memory.len() as u32).build();
    let flush = opcode::Fsync::new(target)
        .flags(FsyncFlags::DATASYNC)
        .build();
    // SAFETY: file and memory outlive the completions, which are waited for.
    unsafe { ring.push_linked(write, WRITE, flush, FLUSH) };
    let mut seen = Vec::new();
    while seen.len() < 2 {
        ring.submit_and_wait(Some(Duration::from_secs(10)));
        ring.reap(4, &mut |op, result, _| seen.push((op, result)));
    }
    seen
}

#[test]
fn a_flush_linked_to_a_whole_write_comes_after_it() {
    let (_dir, path) = scratch();
    for flags in [0, libc::O_DIRECT] {
        let file = open(&path, flags);
        for _ in 0..20 {
            assert_eq!(linked(&file, &block(7)), [(WRITE, 4096), (FLUSH, 0)]);
        }
    }
}

#[test]
fn a_flush_linked_to_a_failed_write_is_cancelled() {
    let (_dir, path) = scratch();
    drop(open(&path, 0));
    let unwritable = File::open(&path).expect("it is there");
    let seen = linked(&unwritable, &block(7));
    assert_eq!(seen, [(WRITE, -libc::EBADF), (FLUSH, -libc::ECANCELED)]);
    // Less than a block fails later, inside the file system.
    let direct = open(&path, libc::O_DIRECT);
    let seen = linked(&direct, &block(7)[..100]);
    assert_eq!(seen, [(WRITE, -libc::EINVAL), (FLUSH, -libc::ECANCELED)]);
}

#[test]
fn a_direct_write_is_seen_by_buffered_readers_that_had_cached_the_old_bytes() {
    let (_dir, path) = scratch();
    let (direct, buffered) = (open(&path, libc::O_DIRECT), open(&path, 0));
    let mut seen = [0; 4096];
    for byte in 1..50 {
        direct.write_all_at(&block(byte), 0).expect("written");
        buffered.read_exact_at(&mut seen, 0).expect("read");
        assert!(seen.iter().all(|&seen| seen == byte));
    }
}

#[test]
fn a_read_that_may_not_wait_says_so_instead_of_reading_the_device() {
    let (_dir, path) = scratch();
    let file = open(&path, 0);
    file.write_all_at(&vec![5; 65536], 0).expect("written");
    file.sync_all().expect("flushed");
    let mut memory = [0; 4096];
    let mut read = || {
        let mut into = [IoSliceMut::new(&mut memory)];
        preadv2(&file, &mut into, 8192, ReadWriteFlags::NOWAIT)
    };
    assert_eq!(read(), Ok(4096));
    fadvise(&file, 0, None, Advice::DontNeed).expect("it is a file");
    assert_eq!(read(), Err(Errno::AGAIN));
}

#[test]
fn allocated_space_reads_as_zeros() {
    let (_dir, path) = scratch();
    let file = open(&path, 0);
    fallocate(&file, FallocateFlags::empty(), 0, 1 << 20).expect("there is space");
    assert_eq!(file.metadata().expect("open").len(), 1 << 20);
    let bytes = std::fs::read(&path).expect("readable");
    assert!(bytes.len() == 1 << 20 && bytes.iter().all(|&byte| byte == 0));
}

#[test]
fn a_removed_file_that_is_open_has_no_links() {
    let (_dir, path) = scratch();
    let file = open(&path, 0);
    assert_eq!(file.metadata().expect("open").nlink(), 1);
    std::fs::remove_file(&path).expect("it was there");
    assert_eq!(file.metadata().expect("open").nlink(), 0);
}
