//! Images of logs, damaged in every way, and what recovery makes of them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use proptest::prelude::*;
use shards::segments::{parse_segment_name, segment_name};

use super::memory::{Dice, MemoryFiles};
use super::*;
use crate::role::{Input, Mark};
use crate::store::log::tests::{Asked, Desk, OnDisk, SEGMENT, boot, empty_log, record};

const LIMIT: u64 = limits::WRITE_BYTES_MAX;

fn root() -> PathBuf {
    PathBuf::from("/store")
}

fn path(at: u64, segment_bytes: u64) -> PathBuf {
    root()
        .join("commitlog")
        .join(segment_name(LogOffset(at / segment_bytes * segment_bytes)))
}

fn config(mode: FlushMode, segment_bytes: u64) -> RecoverConfig {
    RecoverConfig {
        root: root(),
        log_dir: root().join("commitlog"),
        segment_bytes,
        mode,
        dispatched_from: LogOffset(0),
    }
}

/// A log with records of these body lengths, made by the log role, everything durable; the last
/// run recorded `mode` and `durable` and did not end cleanly.
struct Image {
    files: MemoryFiles,
    segment_bytes: u64,
    records: Vec<OnDisk>,
    end: u64,
}

impl Image {
    fn new(segment_bytes: u64, segments: u64, bodies: &[usize]) -> Image {
        let recovered = empty_log(segments, segment_bytes);
        let boot = boot(1, 0);
        let mut desk = Desk::on(
            MemoryFiles::default(),
            FlushMode::Sync,
            segment_bytes,
            &recovered,
            &boot,
        );
        for (ask, bytes) in bodies.iter().enumerate() {
            desk.append(ask as u64, 0, &vec![ask as u8 + 1; *bytes]);
            desk.settle();
            desk.run();
        }
        let (records, end) = desk.on_disk(0);
        assert_eq!(records.len(), bodies.len());
        let mut files = desk.files;
        files.put(&root().join("abort"), b"1".to_vec());
        Image {
            files,
            segment_bytes,
            records,
            end,
        }
    }

    fn recorded(mut self, mode: FlushMode, durable: u64) -> Image {
        let ours = OurPart {
            mode,
            durable: LogOffset(durable),
            queues: LogOffset(0),
            indexed: LogOffset(0),
            index_entries: 0,
        };
        let checkpoint = Checkpoint {
            java: JavaPart::default(),
            ours: Some(ours),
        };
        self.files
            .put(&root().join("checkpoint"), checkpoint.encode());
        self
    }

    fn edit(&mut self, at: u64, edit: impl FnOnce(&mut [u8])) {
        let within = (at % self.segment_bytes) as usize;
        self.files.edit(&path(at, self.segment_bytes), |bytes| {
            edit(&mut bytes[within..])
        });
    }

    fn recover(&mut self) -> Result<Recovered, Refused> {
        recover(
            &mut self.files,
            &config(FlushMode::Sync, self.segment_bytes),
            &mut |_| {},
        )
    }

    /// Everything from `end` on is zero and durable.
    fn assert_zero_from(&self, end: u64) {
        for path in self.files.paths() {
            let Some(start) = path.file_name().and_then(parse_segment_name) else {
                continue;
            };
            let bytes = self.files.bytes(&path);
            let from = end.saturating_sub(start.0).min(bytes.len() as u64) as usize;
            assert!(
                bytes[from..].iter().all(|byte| *byte == 0),
                "{path:?} from {from}"
            );
            assert!(self.files.is_durable(&path));
        }
    }
}

#[test]
fn exactly_one_row_matches_every_case() {
    for bits in 0..16u8 {
        let case = Case {
            unreadable: bits & 1 != 0,
            below_durable: bits & 2 != 0,
            mode: if bits & 4 != 0 {
                FlushMode::Sync
            } else {
                FlushMode::Async
            },
            later_record: bits & 8 != 0,
        };
        let rows: Vec<_> = TABLE.iter().filter(|row| row.matches(case)).collect();
        assert_eq!(rows.len(), 1, "{case:?}");
        // DESIGN 7, in words of its own.
        let refuse = case.unreadable
            || case.below_durable
            || (case.mode == FlushMode::Sync && case.later_record);
        assert_eq!(rows[0].decision == Decision::Refuse, refuse, "{case:?}");
    }
}

#[test]
fn no_files_are_an_empty_log() {
    let mut files = MemoryFiles::default();
    let recovered = recover(&mut files, &config(FlushMode::Async, SEGMENT), &mut |_| {})
        .expect("nothing is wrong");
    assert_eq!(
        (recovered.first, recovered.end, recovered.prepared),
        (LogOffset(0), LogOffset(0), LogOffset(0))
    );
    assert!(recovered.clean && recovered.segments.is_empty() && recovered.last_block.is_empty());
    let saved = checkpoint::load(&mut files, &root()).expect("it was saved");
    assert_eq!(
        saved.ours.expect("ours").mode,
        FlushMode::Async,
        "recorded before the first append"
    );
}

#[test]
fn a_log_reads_back_as_it_was_written() {
    let mut image =
        Image::new(SEGMENT, 4, &[100, 50_000, 0, 30_000, 7]).recorded(FlushMode::Sync, 0);
    let mut handed = Vec::new();
    let config = RecoverConfig {
        dispatched_from: LogOffset(image.records[1].at),
        ..config(FlushMode::Sync, SEGMENT)
    };
    let recovered = recover(&mut image.files, &config, &mut |record| {
        handed.push((record.log_offset(), record.queue_offset()))
    })
    .expect("nothing is wrong");
    assert_eq!(recovered.end.0, image.end);
    let expected: Vec<_> = image.records[1..]
        .iter()
        .map(|one| (one.at, one.queue_offset))
        .collect();
    assert_eq!(handed, expected);
    assert_eq!(
        (recovered.records, recovered.handed, recovered.cut),
        (5, 4, Cut::default())
    );
    assert_eq!(
        recovered.last_store_timestamp.0,
        image.records[4].store_timestamp
    );
    assert_eq!(
        (
            recovered.first.0,
            recovered.prepared.0,
            recovered.segments.len()
        ),
        (0, 4 * SEGMENT, 4)
    );
    assert!(!recovered.clean);
    let block = image.end / 4096 * 4096;
    let segment = image.files.bytes(&path(image.end, SEGMENT));
    assert_eq!(
        recovered.last_block,
        segment[(block % SEGMENT) as usize..(image.end % SEGMENT) as usize]
    );
    let ours = checkpoint::load(&mut image.files, &root())
        .expect("saved")
        .ours
        .expect("ours");
    assert_eq!((ours.durable.0, ours.mode), (image.end, FlushMode::Sync));
}

#[test]
fn the_last_record_cut_at_any_byte_is_gone_and_erased() {
    let whole = Image::new(SEGMENT, 2, &[300, 200]);
    let last = whole.records[1].clone();
    for mode in [FlushMode::Sync, FlushMode::Async] {
        for cut in 0..last.size {
            let mut image = Image::new(SEGMENT, 2, &[300, 200]).recorded(mode, last.at);
            image.edit(last.at + cut, |bytes| bytes.fill(0));
            let recovered = image
                .recover()
                .expect("a torn record is no reason to refuse");
            assert_eq!(recovered.end.0, last.at, "cut at {cut}");
            // Zero bytes at the end of what is left are nobody's: up to the last one that is not.
            assert!(
                recovered.cut.bytes <= cut && recovered.cut.records == 0,
                "cut at {cut}"
            );
            assert_eq!(recovered.cut.bytes == 0, cut <= 2, "cut at {cut}");
            image.assert_zero_from(last.at);
            let again = image.recover().expect("and once more");
            assert_eq!((again.end, again.cut), (recovered.end, Cut::default()));
        }
    }
}

#[test]
fn a_hole_anywhere_in_the_last_record_is_found() {
    let whole = Image::new(SEGMENT, 2, &[300, 5000]);
    let last = whole.records[1].clone();
    for hole in last.at / 512..=(last.at + last.size - 1) / 512 {
        let mut image = Image::new(SEGMENT, 2, &[300, 5000]).recorded(FlushMode::Sync, last.at);
        let from = (hole * 512).max(last.at);
        let to = ((hole + 1) * 512).min(last.at + last.size);
        image.edit(from, |bytes| bytes[..(to - from) as usize].fill(0));
        let recovered = image.recover().expect("torn");
        assert_eq!(recovered.end.0, last.at, "hole at {from}");
        image.assert_zero_from(last.at);
    }
}

#[test]
fn a_blank_record_cut_at_any_byte_is_gone_and_erased() {
    let bodies = [40_000, 30_000];
    let whole = Image::new(SEGMENT, 2, &bodies);
    let blank = whole.records[0].size;
    assert_eq!(whole.records[1].at, SEGMENT);
    for cut in 0..8 {
        let mut image = Image::new(SEGMENT, 2, &bodies).recorded(FlushMode::Sync, 0);
        image.edit(SEGMENT, |bytes| bytes.fill(0));
        image.edit(blank + cut, |bytes| bytes.fill(0));
        let recovered = image.recover().expect("torn");
        assert_eq!(
            (recovered.end.0, recovered.prepared.0),
            (blank, 2 * SEGMENT),
            "cut at {cut}"
        );
        image.assert_zero_from(blank);
    }
    let mut image = Image::new(SEGMENT, 2, &bodies).recorded(FlushMode::Sync, 0);
    image.edit(SEGMENT, |bytes| bytes.fill(0));
    let recovered = image.recover().expect("whole");
    assert_eq!(
        (recovered.end.0, recovered.last_block.len()),
        (SEGMENT, 0),
        "a whole one ends the segment"
    );
}

#[test]
fn a_zero_byte_in_a_text_counts_only_beyond_the_durable_mark() {
    let properties = |one: &OnDisk| one.at + one.size - 3;
    for (mark, expected) in [(0, 1), (1, 2)] {
        let mut image = Image::new(SEGMENT, 2, &[300, 200]);
        let at = properties(&image.records[1]);
        let end = image.end;
        let durable = if mark == 0 { image.records[1].at } else { end };
        image = image.recorded(FlushMode::Sync, durable);
        image.edit(at, |bytes| bytes[0] = 0);
        assert_eq!(
            image.recover().expect("no reason to refuse").records,
            expected
        );
    }
}

#[test]
fn a_record_that_stands_elsewhere_is_none() {
    let mut image = Image::new(SEGMENT, 2, &[300, 200]).recorded(FlushMode::Async, 0);
    let last = image.records[1].at;
    image.edit(last, |bytes| bytes[35] ^= 1);
    assert_eq!(image.recover().expect("torn").end.0, last);
}

#[test]
fn damage_below_the_durable_mark_is_refused_and_nothing_is_touched() {
    for mode in [FlushMode::Sync, FlushMode::Async] {
        let mut image = Image::new(SEGMENT, 2, &[300, 200, 100]);
        let (bad, durable) = (image.records[1].at, image.records[2].at);
        image = image.recorded(mode, durable);
        image.edit(bad + 100, |bytes| bytes[0] ^= 1);
        let steps = image.files.steps;
        let refused = image.recover().expect_err("it was acknowledged");
        assert!(
            matches!(&refused, Refused::Damaged { at, .. } if at.0 == bad),
            "{refused}"
        );
        let text = refused.to_string();
        assert!(
            text.contains("acknowledged") && text.contains("00000000000000000000"),
            "{text}"
        );
        // The directory of the log is made durable before it is listed.
        assert_eq!(image.files.steps, steps + 1);
    }
}

#[test]
fn a_log_shorter_than_the_durable_mark_is_refused() {
    let mut image = Image::new(SEGMENT, 1, &[300]).recorded(FlushMode::Sync, SEGMENT + 1);
    assert!(matches!(image.recover(), Err(Refused::Short { .. })));
    // Only zeros where records were acknowledged.
    let mut image = Image::new(SEGMENT, 1, &[300]).recorded(FlushMode::Sync, 5000);
    assert!(matches!(image.recover(), Err(Refused::Damaged { .. })));
}

/// Segments of 8 MiB, the second record bad, and the third one starts `distance` beyond it.
fn bad_then_valid(mode: FlushMode, distance: u64) -> Image {
    let overhead = record("Topic", 0, b"").len() as u64;
    let fill = distance - overhead;
    let halves = [fill / 2, fill - fill / 2 - overhead];
    let bodies = [100, halves[0] as usize, halves[1] as usize, 10];
    let mut image = Image::new(8 << 20, 1, &bodies);
    let bad = image.records[1].at;
    assert_eq!(image.records[3].at, bad + distance);
    image = image.recorded(mode, bad);
    // Both records in between are bad, the last one is whole.
    for number in [1, 2] {
        let at = image.records[number].at;
        image.edit(at + 100, |bytes| bytes[0] ^= 1);
    }
    image
}

#[test]
fn in_sync_mode_a_record_more_than_one_write_beyond_proves_rot() {
    let mut image = bad_then_valid(FlushMode::Sync, LIMIT);
    let refused = image.recover().expect_err("one write at a time");
    assert!(refused.to_string().contains("later record"), "{refused}");
    let mut image = bad_then_valid(FlushMode::Sync, LIMIT - 1);
    let (bad, end) = (image.records[1].at, image.end);
    let recovered = image.recover().expect("all of one write");
    assert_eq!(
        (recovered.end.0, recovered.cut),
        (
            bad,
            Cut {
                bytes: end - bad,
                records: 1
            }
        )
    );
    image.assert_zero_from(bad);
    let mut image = bad_then_valid(FlushMode::Async, LIMIT);
    let recovered = image
        .recover()
        .expect("later writes may survive earlier ones");
    assert_eq!(recovered.cut.records, 1);
    image.assert_zero_from(bad);
}

#[test]
fn in_sync_mode_a_record_in_a_later_segment_proves_rot_however_near() {
    let mut image = Image::new(SEGMENT, 3, &[100, 100, 65_300]);
    let (bad, next) = (image.records[1].at, image.records[2].at);
    assert_eq!(next, SEGMENT);
    image = image.recorded(FlushMode::Sync, bad);
    image.edit(bad + 100, |bytes| bytes[0] ^= 1);
    assert!(matches!(image.recover(), Err(Refused::Damaged { .. })));
}

#[test]
fn a_cut_removes_later_segments_that_hold_anything_and_keeps_prepared_ones() {
    let mut image = Image::new(SEGMENT, 6, &[100, 100, 65_000, 65_000]);
    let bad = image.records[1].at;
    image = image.recorded(FlushMode::Async, bad);
    image.edit(bad + 100, |bytes| bytes[0] ^= 1);
    let recovered = image.recover().expect("async");
    assert_eq!((recovered.end.0, recovered.prepared.0), (bad, SEGMENT));
    assert_eq!(
        recovered.cut,
        Cut {
            bytes: image.end - bad,
            records: 2
        }
    );
    assert!(!image.files.paths().contains(&path(SEGMENT, SEGMENT)));
    image.assert_zero_from(bad);

    let mut image = Image::new(SEGMENT, 3, &[100, 100]);
    let bad = image.records[1].at;
    image = image.recorded(FlushMode::Sync, bad);
    image.edit(bad + 100, |bytes| bytes[0] ^= 1);
    let recovered = image.recover().expect("torn");
    assert_eq!(
        (recovered.end.0, recovered.prepared.0),
        (bad, 3 * SEGMENT),
        "prepared ones stay"
    );
}

#[test]
fn what_the_device_cannot_read_is_never_zeros() {
    for (offset, mode) in [
        (50, FlushMode::Sync),
        (50, FlushMode::Async),
        (20_000, FlushMode::Async),
        (SEGMENT, FlushMode::Sync),
    ] {
        let mut image = Image::new(SEGMENT, 2, &[100, 100]);
        let last = image.records[1].at;
        image = image.recorded(mode, last);
        let bad = last + offset;
        image.files.unreadable = Some((path(bad, SEGMENT), bad % SEGMENT));
        let refused = image.recover().expect_err("unreadable");
        assert!(refused.to_string().contains("cannot read"), "{refused}");
        // Below the scanned part nobody looks.
        image.files.unreadable = None;
        image.recover().expect("it was only that");
    }
}

#[test]
fn everything_from_the_recorded_mark_on_is_synced() {
    let mut image = Image::new(SEGMENT, 4, &[65_000, 65_000, 65_000]);
    let durable = image.records[1].at;
    image = image.recorded(FlushMode::Async, durable);
    image.files.synced.clear();
    image.recover().expect("nothing is wrong");
    assert!(
        !image.files.synced.contains(&path(0, SEGMENT)),
        "it was durable"
    );
    for at in [SEGMENT, 2 * SEGMENT] {
        assert!(image.files.synced.contains(&path(at, SEGMENT)), "{at}");
    }
}

#[test]
fn what_is_no_segment_is_refused_by_name() {
    let damage: [(&str, fn(&mut MemoryFiles), &str); 4] = [
        (
            "notes.txt",
            |files| files.put(&root().join("commitlog/notes.txt"), vec![1]),
            "notes.txt",
        ),
        (
            "length",
            |files| files.edit(&path(0, SEGMENT), |bytes| bytes.truncate(5)),
            "mappedFileSizeCommitLog",
        ),
        (
            "gap",
            |files| {
                files.remove(&path(SEGMENT, SEGMENT)).expect("it is there");
            },
            "00000000000000065536",
        ),
        (
            "start",
            |files| {
                files.put(
                    &root().join("commitlog/00000000000000000007"),
                    vec![0; SEGMENT as usize],
                )
            },
            "multiple",
        ),
    ];
    for (what, damage, word) in damage {
        let mut image = Image::new(SEGMENT, 3, &[100]).recorded(FlushMode::Sync, 0);
        damage(&mut image.files);
        let refused = image.recover().expect_err(what).to_string();
        assert!(refused.contains(word), "{what}: {refused}");
    }
}

#[test]
fn an_empty_last_file_is_removed() {
    let mut image = Image::new(SEGMENT, 2, &[100]).recorded(FlushMode::Sync, 0);
    image.files.put(&path(2 * SEGMENT, SEGMENT), Vec::new());
    assert_eq!(image.recover().expect("harmless").prepared.0, 2 * SEGMENT);
    assert!(!image.files.paths().contains(&path(2 * SEGMENT, SEGMENT)));
}

#[test]
fn after_a_clean_end_only_what_somebody_needs_is_read() {
    let mut image = Image::new(SEGMENT, 2, &[100, 200, 300]);
    image = image.recorded(FlushMode::Sync, 0);
    abort::end_run(&mut image.files, &root()).expect("memory");
    let all = image.recover().expect("nothing is wrong");
    assert_eq!((all.records, all.clean), (3, true));
    let config = RecoverConfig {
        dispatched_from: LogOffset(image.end),
        ..config(FlushMode::Sync, SEGMENT)
    };
    let none = recover(&mut image.files, &config, &mut |_| {}).expect("nothing is wrong");
    assert_eq!((none.records, none.end.0), (0, image.end));
    assert_eq!(
        none.last_store_timestamp.0, image.records[2].store_timestamp,
        "from the checkpoint"
    );
    assert_eq!(none.last_block, all.last_block);
}

#[test]
fn a_record_longer_than_any_here_is_refused_and_not_cut() {
    let mut image = Image::new(8 << 20, 1, &[100, 100]).recorded(FlushMode::Async, 0);
    let last = image.records[1].at;
    image.edit(last, |bytes| {
        bytes[..4].copy_from_slice(&(5u32 << 20).to_be_bytes())
    });
    let refused = image.recover().expect_err("somebody stored it");
    assert!(
        matches!(refused, Refused::RecordTooLong { at, bytes } if at.0 == last && bytes == 5 << 20),
        "{refused}"
    );
}

#[test]
fn abort_says_that_the_last_run_did_not_end() {
    let mut files = MemoryFiles::default();
    assert!(!abort::was_aborted(&mut files, &root()).expect("memory"));
    abort::begin_run(&mut files, &root(), 1234).expect("memory");
    assert_eq!(files.bytes(&root().join("abort")), b"1234");
    let mut after_power_loss = files.clone();
    after_power_loss.lose_power(&mut Dice(1));
    assert!(
        abort::was_aborted(&mut after_power_loss, &root()).expect("memory"),
        "it is durable"
    );
    abort::end_run(&mut files, &root()).expect("memory");
    assert!(!abort::was_aborted(&mut files, &root()).expect("memory"));
}

/// An image that needs everything: blocks to erase, segments to remove, a checkpoint to save.
fn needs_everything() -> Image {
    let mut image = Image::new(SEGMENT, 6, &[100, 20_000, 40_000, 65_000, 65_000]);
    let bad = image.records[1].at;
    image = image.recorded(FlushMode::Async, bad);
    image.edit(bad + 100, |bytes| bytes[0] ^= 1);
    image
}

#[test]
fn recovery_cut_between_any_two_steps_recovers() {
    let mut whole = needs_everything();
    let before = whole.files.steps;
    let expected = whole.recover().expect("async");
    let steps = whole.files.steps - before;
    assert!(steps > 10, "{steps}");
    for left in 0..steps {
        for seed in 0..20 {
            let mut image = needs_everything();
            image.files.steps_left = Some(left);
            assert!(
                matches!(image.recover(), Err(Refused::Io { .. })),
                "step {left}"
            );
            if seed == 0 {
                image.files.steps_left = None; // only the process died
            } else {
                image.files.lose_power(&mut Dice(seed));
            }
            let recovered = image
                .recover()
                .unwrap_or_else(|refused| panic!("step {left}, seed {seed}: {refused}"));
            assert_eq!(
                (recovered.end, recovered.records),
                (expected.end, expected.records),
                "step {left}, seed {seed}"
            );
            image.assert_zero_from(recovered.end.0);
            let again = image.recover().expect("twice is once");
            assert_eq!((again.end, again.cut), (recovered.end, Cut::default()));
        }
    }
}

#[derive(Clone, Debug)]
struct Run {
    sync: bool,
    appends: Vec<(u32, usize, bool)>,
    seed: u64,
}

fn any_run() -> impl Strategy<Value = Run> {
    let append = (
        0..4u32,
        prop_oneof![0..300usize, 0..30_000usize],
        any::<bool>(),
    );
    (
        any::<bool>(),
        prop::collection::vec(append, 1..60),
        any::<u64>(),
    )
        .prop_map(|(sync, appends, seed)| Run {
            sync,
            appends,
            seed,
        })
}

/// The body of append number `ask`.
fn body(ask: u64, bytes: usize) -> Vec<u8> {
    let mut body = ask.to_be_bytes().to_vec();
    body.resize(8 + bytes, ask as u8);
    body
}

/// One disk and what was promised of it.
#[derive(Default)]
struct World {
    files: MemoryFiles,
    /// By append: the body's length without its number.
    sent: Vec<usize>,
    /// Append, log offset, queue offset.
    acknowledged: Vec<(u64, u64, u64)>,
}

impl World {
    /// Starts, checks what is there, appends, and loses power in the middle of what it does.
    fn live(&mut self, run: &Run) -> Result<(), TestCaseError> {
        let mode = if run.sync {
            FlushMode::Sync
        } else {
            FlushMode::Async
        };
        let mut seen = BTreeMap::new();
        let recovered = recover(&mut self.files, &config(mode, SEGMENT), &mut |record| {
            let found = (record.queue_offset(), record.body().to_vec());
            seen.insert(record.log_offset(), found);
        });
        let recovered =
            recovered.map_err(|refused| TestCaseError::fail(format!("refused: {refused}")))?;
        self.check(&seen)?;
        // All queues go on where none has been: the records do not say which one they are of.
        let next = seen.values().map(|one| one.0 + 1).max().unwrap_or(0);
        let prepared = recovered.end.0 / SEGMENT + 40;
        let starts = recovered.first.0 / SEGMENT..prepared;
        let recovered = Recovered {
            prepared: LogOffset(prepared * SEGMENT),
            segments: starts.map(|number| LogOffset(number * SEGMENT)).collect(),
            ..recovered
        };
        abort::begin_run(&mut self.files, &root(), 1).expect("memory");
        let files = std::mem::take(&mut self.files);
        let mut desk = Desk::on(files, mode, SEGMENT, &recovered, &boot(4, next));
        desk.tell(Input::Mark(Mark::Prepared(recovered.prepared)));
        let mut dice = Dice(run.seed);
        self.append(&mut desk, run, &mut dice);
        self.files = desk.files;
        self.files.lose_power(&mut dice);
        Ok(())
    }

    fn append(&mut self, desk: &mut Desk, run: &Run, dice: &mut Dice) {
        let mut told = Vec::new();
        for (queue, bytes, settle) in &run.appends {
            let ask = self.sent.len() as u64;
            self.sent.push(*bytes);
            desk.append(ask, *queue, &body(ask, *bytes));
            if *settle {
                desk.settle();
            }
            if !desk.asked.is_empty() && dice.roll(3) == 0 {
                desk.complete();
                desk.settle();
            }
            for (ask, result) in desk.take_answers() {
                let stored = result.expect("nothing fails before the power does");
                told.push((ask, stored.log_offset.0, stored.queue_offset.0));
            }
        }
        // In ASYNC only what was flushed is promised.
        let durable = desk.durable();
        told.retain(|one| run.sync || one.1 < durable);
        self.acknowledged.extend(told);
        // The write under way leaves anything.
        if let Some((_, Asked::Write { .. })) = desk.asked.front() {
            let (_, mut asked) = desk.asked.pop_front().expect("seen");
            if let Asked::Write { sync, .. } = &mut asked {
                *sync = false;
            }
            desk.do_on_disk(&asked);
        }
    }

    fn check(&self, seen: &BTreeMap<u64, (u64, Vec<u8>)>) -> Result<(), TestCaseError> {
        for (_, found) in seen.values() {
            let number = found.first_chunk().expect("bodies begin with their number");
            let ask = u64::from_be_bytes(*number);
            let sent = self.sent.get(ask as usize).map(|bytes| body(ask, *bytes));
            prop_assert_eq!(sent.as_ref(), Some(found), "nobody sent that");
        }
        for (ask, at, queue_offset) in &self.acknowledged {
            let expected = (*queue_offset, body(*ask, self.sent[*ask as usize]));
            prop_assert_eq!(seen.get(at), Some(&expected), "{} at {} is lost", ask, at);
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// The promise: what was acknowledged in SYNC is there after every loss of power, at its
    /// place, with its bytes; nothing is there that nobody sent; and the next life goes on from
    /// there.
    #[test]
    fn an_acknowledged_record_survives_every_crash(runs in prop::collection::vec(any_run(), 1..5)) {
        let mut world = World::default();
        for run in &runs {
            world.live(run)?;
        }
    }
}
