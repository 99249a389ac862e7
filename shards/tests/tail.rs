//! The tail: what readers may see while the writer appends and gives chunks up.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use proptest::prelude::*;
use shards::chunk::{CHUNK_BYTES, Lease, Tail, TailWriter, tail};
use shards::role::BLOCK_BYTES;
use shards::{LogOffset, LogRange};

/// What every byte of the test's log is: no two places at chunk distance look alike.
fn byte_at(position: u64) -> u8 {
    (position ^ (position >> 20).wrapping_mul(0x9D)) as u8
}

fn bytes_at(at: u64, len: u64) -> Vec<u8> {
    (at..at + len).map(byte_at).collect()
}

fn assert_bytes(lease: &Lease<'_>, at: u64) {
    let mut position = at;
    for piece in lease.pieces() {
        for &byte in piece {
            assert_eq!(byte, byte_at(position), "at {position}");
            position += 1;
        }
    }
}

fn new_tail(chunks: u64, end: u64) -> (TailWriter, Tail) {
    tail(chunks * CHUNK_BYTES, LogOffset(end)).expect("anonymous memory")
}

fn range(at: u64, len: u64) -> LogRange {
    LogRange {
        at: LogOffset(at),
        len: len as u32,
    }
}

fn append(writer: &mut TailWriter, len: u64, written: u64) -> bool {
    let at = writer.end().0;
    let room = writer.make_room(len, LogOffset(written));
    if room {
        writer.append(&bytes_at(at, len));
    }
    room
}

/// A small generator of our own: the test needs no quality, only speed.
fn next(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed
}

#[test]
fn readers_on_other_threads_never_see_given_up_bytes() {
    let (mut writer, _) = new_tail(3, 0);
    let published = AtomicU64::new(0);
    let over = AtomicBool::new(false);
    let leased = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for reader in 1..=2u64 {
            let tail = writer.reader();
            let (published, over, leased) = (&published, &over, &leased);
            scope.spawn(move || {
                let mut seed = reader << 32 | 0x9E37_79B9;
                while !over.load(Ordering::Relaxed) {
                    let end = published.load(Ordering::Acquire);
                    let len = 1 + next(&mut seed) % 3000;
                    let back = len + next(&mut seed) % (3 * CHUNK_BYTES);
                    let Some(at) = end.checked_sub(back) else {
                        continue;
                    };
                    if let Some(lease) = tail.lease(range(at, len)) {
                        assert_bytes(&lease, at);
                        if next(&mut seed) % 64 == 0 {
                            std::thread::yield_now();
                        }
                        assert_bytes(&lease, at);
                        leased.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        let (mut seed, mut refused) = (7u64, 0u64);
        while writer.end().0 < 150 * CHUNK_BYTES {
            let len = 1 + next(&mut seed) % 200_000;
            // Everything appended counts as written: only leases protect a chunk.
            if append(&mut writer, len, u64::MAX / 2) {
                published.store(writer.end().0, Ordering::Release);
            } else {
                refused += 1;
                std::thread::yield_now();
            }
        }
        over.store(true, Ordering::Relaxed);
        println!("{refused} times a lease was in the way");
    });
    assert!(
        leased.load(Ordering::Relaxed) > 100,
        "readers must have read"
    );
}

#[test]
fn a_lease_keeps_its_chunks_until_it_is_dropped() {
    let (mut writer, tail) = new_tail(2, 0);
    assert!(append(&mut writer, CHUNK_BYTES, 0));
    let lease = tail.lease(range(CHUNK_BYTES - 10, 10)).expect("appended");
    assert!(append(&mut writer, CHUNK_BYTES, CHUNK_BYTES));
    // The third chunk needs the place of the first.
    assert!(!append(&mut writer, 1, 2 * CHUNK_BYTES));
    assert_bytes(&lease, CHUNK_BYTES - 10);
    // Withdrawn already: new readers would keep the writer waiting for ever.
    assert!(tail.lease(range(0, 1)).is_none());
    drop(lease);
    assert!(append(&mut writer, 1, 2 * CHUNK_BYTES));
    assert!(tail.lease(range(2 * CHUNK_BYTES, 1)).is_some());
}

#[test]
fn what_is_not_written_is_not_given_up() {
    let (mut writer, tail) = new_tail(2, 0);
    assert!(append(&mut writer, CHUNK_BYTES, 0));
    assert!(append(&mut writer, CHUNK_BYTES, 0));
    assert!(!append(&mut writer, 1, CHUNK_BYTES - 1));
    assert!(tail.lease(range(0, 1)).is_some());
    assert!(append(&mut writer, 1, CHUNK_BYTES));
    assert!(tail.lease(range(0, 1)).is_none());
}

#[test]
fn a_new_tail_holds_nothing_until_a_log_is_begun_or_continued() {
    let (mut writer, tail) = new_tail(2, 0);
    assert!(tail.lease(range(0, 100)).is_none());
    // A log that ends in the middle of a block is continued.
    let end = 5 * CHUNK_BYTES + 3 * BLOCK_BYTES + 77;
    assert!(writer.skip_to(LogOffset(end)));
    let block = end / BLOCK_BYTES * BLOCK_BYTES;
    writer.load(LogOffset(block), &bytes_at(block, 77));
    assert!(tail.lease(range(block - 1, 1)).is_none());
    let lease = tail.lease(range(block, 77)).expect("loaded");
    assert_bytes(&lease, block);
    drop(lease);
    assert!(append(&mut writer, 1000, end));
    assert_bytes(&tail.lease(range(block, 1077)).expect("held"), block);
}

#[test]
fn skipping_within_a_chunk_takes_it_from_its_old_readers() {
    let (mut writer, tail) = new_tail(2, 0);
    assert!(append(&mut writer, CHUNK_BYTES, 0));
    assert!(append(&mut writer, CHUNK_BYTES, 0));
    let lease = tail.lease(range(0, 1)).expect("appended");
    assert!(!writer.skip_to(LogOffset(2 * CHUNK_BYTES + BLOCK_BYTES)));
    drop(lease);
    assert!(writer.skip_to(LogOffset(2 * CHUNK_BYTES + BLOCK_BYTES)));
    assert!(tail.lease(range(0, 1)).is_none());
}

#[test]
fn a_snapshot_is_the_last_block_with_zeros_behind() {
    let (mut writer, tail) = new_tail(2, 0);
    assert!(append(&mut writer, BLOCK_BYTES + 100, 0));
    writer.snapshot(0);
    let mut expected = bytes_at(BLOCK_BYTES, 100);
    expected.resize(BLOCK_BYTES as usize, 0);
    assert_eq!(tail.snapshot(0)[..], expected);
    // Appending goes on; the other copy sees it, this one does not.
    assert!(append(&mut writer, 50, 0));
    writer.snapshot(1);
    assert_eq!(tail.snapshot(0)[..], expected);
    expected[..150].copy_from_slice(&bytes_at(BLOCK_BYTES, 150));
    assert_eq!(tail.snapshot(1)[..], expected);
    // The next block is shorter: nothing of the one before shows.
    assert!(append(&mut writer, BLOCK_BYTES - 150 + 7, 0));
    writer.snapshot(1);
    let mut expected = bytes_at(2 * BLOCK_BYTES, 7);
    expected.resize(BLOCK_BYTES as usize, 0);
    assert_eq!(tail.snapshot(1)[..], expected);
}

#[derive(Clone, Debug)]
enum Step {
    Append(u64),
    Lease { back: u64, len: u64 },
    Release(usize),
    Write,
    Snapshot,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (1..CHUNK_BYTES * 3 / 2).prop_map(Step::Append),
        3 => (0..4 * CHUNK_BYTES, 1..CHUNK_BYTES).prop_map(|(back, len)| Step::Lease { back, len }),
        2 => any::<usize>().prop_map(Step::Release),
        3 => Just(Step::Write),
        1 => Just(Step::Snapshot),
    ];
    prop::collection::vec(step, 1..60)
}

/// What a tail of `chunks` has to have given up before it can hold `len` more bytes.
fn given_up_below(end: u64, len: u64, chunks: u64) -> u64 {
    ((end + len - 1) / CHUNK_BYTES + 1).saturating_sub(chunks) * CHUNK_BYTES
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn a_tail_is_the_end_of_what_was_appended(
        begin in 0..3 * CHUNK_BYTES, chunks in 2u64..5, steps in steps(),
    ) {
        let begin = begin / BLOCK_BYTES * BLOCK_BYTES;
        let (mut writer, tail) = new_tail(chunks, begin);
        let (mut written, mut leases) = (begin, Vec::new());
        for step in steps {
            let end = writer.end().0;
            match step {
                Step::Append(len) => {
                    let below = given_up_below(end, len, chunks);
                    let fits = len <= writer.append_bytes_max();
                    let leased = leases.iter().any(|(at, _)| *at < below);
                    let room = append(&mut writer, len, written);
                    prop_assert_eq!(room, fits && below <= written && !leased);
                    prop_assert_eq!(writer.end().0, if room { end + len } else { end });
                }
                Step::Lease { back, len } => {
                    let Some(at) = end.checked_sub(back.max(len)) else { continue };
                    let lease = tail.lease(range(at, len));
                    if at < begin { prop_assert!(lease.is_none()); }
                    leases.extend(lease.map(|lease| (at, lease)));
                }
                Step::Release(which) => {
                    if !leases.is_empty() { leases.swap_remove(which % leases.len()); }
                }
                Step::Write => written = end,
                Step::Snapshot => {
                    writer.snapshot(0);
                    let block = end / BLOCK_BYTES * BLOCK_BYTES;
                    let mut expected = bytes_at(block, end - block);
                    expected.resize(BLOCK_BYTES as usize, 0);
                    prop_assert!(tail.snapshot(0)[..] == expected[..]);
                }
            }
            let mut scratch = Vec::new();
            for (at, lease) in &leases {
                assert_bytes(lease, *at);
                let whole = lease.whole(&mut scratch);
                prop_assert!(whole == bytes_at(*at, whole.len() as u64));
            }
        }
    }
}
