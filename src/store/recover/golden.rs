//! Logs that the real RocketMQ 5.3.3 wrote (tests/golden), whole and damaged.
//!
//! Where the log ends is what Java made of the same damage, unless a line says why not.

use std::path::{Path, PathBuf};
use std::process::Command;

use shards::files::Files;

use super::memory::MemoryFiles;
use super::*;

const CLEAN: (&str, u64) = ("store-5.3.3", 262_144);
const KILLED: (&str, u64) = ("store-5.3.3-killed", 196_608);
const EXTRA: (&str, u64) = ("store-5.3.3-extra", 65_536);
/// The last segment of the clean store, which ends after 44,979 bytes of it.
const LAST: &str = "commitlog/00000000000001310720";

struct Golden {
    files: MemoryFiles,
    segment_bytes: u64,
}

impl Golden {
    fn unpack((store, segment_bytes): (&str, u64)) -> Golden {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let packed = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
        let status = Command::new("tar")
            .arg("-xJf")
            .arg(packed.join(format!("{store}.tar.xz")))
            .arg("-C")
            .arg(folder.path())
            .arg("--exclude=timerwheel")
            .status()
            .expect("tar is installed");
        assert!(status.success(), "{store} can be unpacked");
        let mut golden = Golden {
            files: MemoryFiles::default(),
            segment_bytes,
        };
        let from = folder.path().join(store);
        for name in ["checkpoint", "abort"] {
            if let Ok(bytes) = std::fs::read(from.join(name)) {
                golden.files.put(&at(name), bytes);
            }
        }
        for entry in std::fs::read_dir(from.join("commitlog")).expect("it was unpacked") {
            let path = entry.expect("it can be listed").path();
            let bytes = std::fs::read(&path).expect("it can be read");
            let name = path.file_name().expect("files have names");
            golden.files.put(&at("commitlog").join(name), bytes);
        }
        golden
    }

    fn abort(mut self) -> Golden {
        self.files.put(&at("abort"), b"1".to_vec());
        self
    }

    fn zero(mut self, file: &str, from: usize, len: usize) -> Golden {
        self.files
            .edit(&at(file), |bytes| bytes[from..from + len].fill(0));
        self
    }

    fn flip(mut self, file: &str, place: usize) -> Golden {
        self.files.edit(&at(file), |bytes| bytes[place] ^= 0xFF);
        self
    }

    fn set(mut self, file: &str, place: usize, set: &[u8]) -> Golden {
        self.files.edit(&at(file), |bytes| {
            bytes[place..place + set.len()].copy_from_slice(set);
        });
        self
    }

    fn remove(mut self, file: &str) -> Golden {
        self.files.remove(&at(file)).expect("it is there");
        self
    }

    fn recover_from(&mut self, dispatched_from: u64) -> Result<Recovered, Refused> {
        let config = RecoverConfig {
            root: at(""),
            log_dir: at("commitlog"),
            segment_bytes: self.segment_bytes,
            mode: FlushMode::Sync,
            dispatched_from: LogOffset(dispatched_from),
        };
        recover(&mut self.files, &config, &mut |_| {})
    }

    fn ends_at(mut self, end: u64) -> Recovered {
        let recovered = self.recover_from(0).expect("Java starts on it");
        assert_eq!(recovered.end, LogOffset(end));
        let again = self.recover_from(0).expect("twice is once");
        assert_eq!((again.end, again.cut), (recovered.end, Cut::default()));
        assert_eq!(again.durable, Some(recovered.end), "ours from here on");
        recovered
    }
}

fn at(name: &str) -> PathBuf {
    Path::new("/store").join(name)
}

#[test]
fn whole_stores_are_read_to_their_last_record() {
    let clean = Golden::unpack(CLEAN).ends_at(1_355_699);
    assert_eq!((clean.first.0, clean.records, clean.clean), (0, 886, true));
    assert_eq!((clean.durable, clean.cut), (None, Cut::default()));
    let killed = Golden::unpack(KILLED).ends_at(2_095_785);
    assert_eq!(
        (killed.first.0, killed.records, killed.clean),
        (393_216, 1066, false)
    );
    assert_eq!(killed.prepared.0, 2_162_688 + KILLED.1, "prepared by Java");
    let extra = Golden::unpack(EXTRA).recover_from(0).expect("whole");
    assert_eq!((extra.records, extra.clean), (159, true));
    // As Java's checkpoint, less its three seconds of doubt.
    assert!(clean.last_store_timestamp.0 >= 1_795_986_121_788);
}

#[test]
fn java_finds_its_checkpoint_as_it_left_it() {
    let mut golden = Golden::unpack(CLEAN);
    golden.recover_from(0).expect("whole");
    let saved = Checkpoint::decode(golden.files.bytes(&at("checkpoint"))).java;
    assert_eq!(saved.physic.0, 1_795_986_121_788);
    assert_eq!(saved.logics.0, 1_795_986_121_788);
    assert_eq!(saved.index.0, 1_795_986_121_725);
    assert_eq!(saved.confirmed.0, 1_040_327);
}

#[test]
fn damage_of_the_last_record_ends_the_log_before_it() {
    const BEFORE_LAST: u64 = 1_355_421;
    let clean = || Golden::unpack(CLEAN);
    clean().abort().ends_at(1_355_699);
    clean().flip(LAST, 44_791).ends_at(BEFORE_LAST);
    clean().abort().flip(LAST, 44_791).ends_at(BEFORE_LAST);
    clean().zero(LAST, 44_801, 178).ends_at(BEFORE_LAST);
    clean().abort().zero(LAST, 44_801, 178).ends_at(BEFORE_LAST);
    clean().abort().zero(LAST, 44_741, 238).ends_at(BEFORE_LAST);
    clean().abort().zero(LAST, 44_037, 942).ends_at(1_354_757);
    // Nothing covers a flipped byte of the properties.
    clean().abort().flip(LAST, 44_976).ends_at(1_355_699);
    // A torn text: Java serves it; after a crash its zero bytes give it away.
    clean().abort().zero(LAST, 44_840, 139).ends_at(BEFORE_LAST);
    clean().zero(LAST, 44_840, 139).ends_at(1_355_699);
    // A record that says that it stands elsewhere: Java takes it.
    let elsewhere = [0, 0, 0, 0, 0, 0, 0, 1];
    clean()
        .abort()
        .set(LAST, 44_729, &elsewhere)
        .ends_at(BEFORE_LAST);
}

#[test]
fn damage_in_the_middle_of_the_last_segment_cuts_what_follows() {
    for damaged in [
        Golden::unpack(CLEAN).abort().flip(LAST, 32_622),
        Golden::unpack(CLEAN).abort().zero(LAST, 32_532, 4),
    ] {
        let recovered = damaged.ends_at(1_343_252);
        assert_eq!(recovered.cut.bytes, 1_355_699 - 1_343_252);
        assert!(recovered.cut.records > 10);
    }
    let garbage = [0, 0, 1, 0, 0xDA, 0xA3, 0x20, 0xA7, 0xFF, 0xFF];
    let recovered = Golden::unpack(CLEAN)
        .set(LAST, 44_979, &garbage)
        .ends_at(1_355_699);
    assert_eq!(
        recovered.cut,
        Cut {
            bytes: 10,
            records: 0
        }
    );
}

#[test]
fn damage_that_java_never_looks_at_is_refused_where_it_is_read() {
    let first = "commitlog/00000000000000000000";
    let mut damaged = Golden::unpack(CLEAN).flip(first, 100);
    let refused = damaged.recover_from(0).expect_err("its first record");
    assert!(
        matches!(&refused, Refused::Damaged { at, .. } if at.0 == 0),
        "{refused}"
    );
    // Who needs no old records does not read them either.
    let recovered = damaged.recover_from(1_310_720).expect("not read");
    assert_eq!(recovered.end.0, 1_355_699);
}

#[test]
fn missing_and_empty_segments() {
    let clean = || Golden::unpack(CLEAN);
    let recovered = clean()
        .remove("commitlog/00000000000000000000")
        .ends_at(1_355_699);
    assert_eq!(recovered.first.0, 262_144);
    // Java counts up to the last record; for us the segment's end is the same place.
    clean().remove(LAST).ends_at(1_310_720);
    let mut empty = clean();
    empty.files.edit(&at(LAST), Vec::clear);
    empty.ends_at(1_310_720);
    // Java starts over the hole.
    let hole = clean()
        .remove("commitlog/00000000000000524288")
        .recover_from(0);
    assert!(matches!(hole, Err(Refused::Gap(_))));
    let mut other_size = clean();
    other_size.segment_bytes = 524_288;
    assert!(matches!(
        other_size.recover_from(0),
        Err(Refused::WrongLength { .. })
    ));
}

#[test]
fn a_missing_zero_or_future_checkpoint_is_harmless() {
    let clean = || Golden::unpack(CLEAN);
    clean().remove("checkpoint").ends_at(1_355_699);
    clean().abort().remove("checkpoint").ends_at(1_355_699);
    clean()
        .abort()
        .zero("checkpoint", 0, 4096)
        .ends_at(1_355_699);
    let future = [0, 0, 2, 0, 0, 0, 0, 0].repeat(3);
    let recovered = clean()
        .abort()
        .set("checkpoint", 0, &future)
        .ends_at(1_355_699);
    assert!(recovered.last_store_timestamp.0 < 1_800_000_000_000);
}
