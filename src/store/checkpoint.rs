//! The file `checkpoint`: what recovery may rely on. All integers are big-endian.
//!
//! ```text
//! 0        8        16       24             32           40          512
//! +--------+--------+--------+--------------+------------+-----------+------- -
//! | physic | logics | index  | master       | confirmed  | zeros     | ours
//! +--------+--------+--------+--------------+------------+-----------+------- -
//! 512     520             560    564    568       576        584       592             600
//! +-------+---------------+------+------+---------+----------+---------+---------------+-----+
//! | magic | copy of 0..40 | mode | zero | durable | queues   | indexed | index entries | crc |
//! +-------+---------------+------+------+---------+----------+---------+---------------+-----+
//! 604 zeros up to 4096
//! ```
//!
//! The first 40 bytes are as Java means them (store-format 10); Java keeps our part but does not
//! write it, so ours counts only while its copy of the first 40 bytes is the truth: a difference
//! says that Java was here. The CRC covers 512 up to itself.
//!
//! The file is replaced as a whole (new file, sync, rename, sync of the directory), although Java
//! overwrites in place: a tear between the two parts would look as if Java had been here, and
//! recovery would forget what is durable just when it matters.

use std::io;
use std::path::{Path, PathBuf};

use shards::files::Files;

use crate::ids::{LogOffset, Millis};
use crate::store::FlushMode;

/// The whole file.
pub const CHECKPOINT_BYTES: usize = 4096;

const PHYSIC_AT: usize = 0;
const LOGICS_AT: usize = PHYSIC_AT + size_of::<u64>();
const INDEX_AT: usize = LOGICS_AT + size_of::<u64>();
const MASTER_AT: usize = INDEX_AT + size_of::<u64>();
const CONFIRMED_AT: usize = MASTER_AT + size_of::<u64>();
const JAVA_BYTES: usize = CONFIRMED_AT + size_of::<u64>();

const OURS_AT: usize = 512;
const MAGIC_AT: usize = OURS_AT;
const COPY_AT: usize = MAGIC_AT + size_of::<u64>();
const MODE_AT: usize = COPY_AT + JAVA_BYTES;
const DURABLE_AT: usize = MODE_AT + 2 * size_of::<u32>();
const QUEUES_AT: usize = DURABLE_AT + size_of::<u64>();
const INDEXED_AT: usize = QUEUES_AT + size_of::<u64>();
const INDEX_ENTRIES_AT: usize = INDEXED_AT + size_of::<u64>();
const CRC_AT: usize = INDEX_ENTRIES_AT + size_of::<u64>();
const _: () = assert!(JAVA_BYTES == 40 && DURABLE_AT == 568 && CRC_AT == 600);

/// Of the drawing above; another drawing gets another one.
const MAGIC: [u8; 8] = *b"ringmq\0\x01";
const MODE_SYNC: u32 = 1;
const MODE_ASYNC: u32 = 2;

/// The first 40 bytes (store-format 10). Times are those of records, in milliseconds; 0 is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JavaPart {
    /// Records up to this store time are on stable storage in the log.
    pub physic: Millis,
    /// The same for the consume queues.
    pub logics: Millis,
    /// End time of the last index file that is full and on stable storage.
    pub index: Millis,
    /// Replication; kept as found.
    pub master_flushed: LogOffset,
    /// Replication; kept as found, but never beyond the log's end.
    pub confirmed: LogOffset,
}

impl JavaPart {
    /// Records up to this store time are on stable storage in log and queues as Java's own
    /// recovery reckons: with three seconds of doubt.
    #[must_use]
    pub fn trusted_until(self) -> Millis {
        Millis(self.physic.0.min(self.logics.0).saturating_sub(3000))
    }
}

/// Our part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OurPart {
    /// How the log was flushed since this was written.
    pub mode: FlushMode,
    /// Everything below is on stable storage in the log, and was acknowledged.
    pub durable: LogOffset,
    /// Everything below is on stable storage in the consume queues.
    pub queues: LogOffset,
    /// Everything below is on stable storage in the index files.
    pub indexed: LogOffset,
    /// Entries in the newest index file at that position.
    pub index_entries: u64,
}

/// The file's content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// As Java reads it.
    pub java: JavaPart,
    /// `None`: there never was one, it is damaged, or Java wrote the file since.
    pub ours: Option<OurPart>,
}

impl Checkpoint {
    /// The 4096 bytes of the file.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut file = vec![0; CHECKPOINT_BYTES];
        let java = &self.java;
        put_u64(&mut file, PHYSIC_AT, java.physic.0);
        put_u64(&mut file, LOGICS_AT, java.logics.0);
        put_u64(&mut file, INDEX_AT, java.index.0);
        put_u64(&mut file, MASTER_AT, java.master_flushed.0);
        put_u64(&mut file, CONFIRMED_AT, java.confirmed.0);
        if let Some(ours) = &self.ours {
            file[MAGIC_AT..COPY_AT].copy_from_slice(&MAGIC);
            file.copy_within(..JAVA_BYTES, COPY_AT);
            let mode = match ours.mode {
                FlushMode::Sync => MODE_SYNC,
                FlushMode::Async => MODE_ASYNC,
            };
            file[MODE_AT..][..4].copy_from_slice(&mode.to_be_bytes());
            put_u64(&mut file, DURABLE_AT, ours.durable.0);
            put_u64(&mut file, QUEUES_AT, ours.queues.0);
            put_u64(&mut file, INDEXED_AT, ours.indexed.0);
            put_u64(&mut file, INDEX_ENTRIES_AT, ours.index_entries);
            let crc = crc32fast::hash(&file[OURS_AT..CRC_AT]);
            file[CRC_AT..][..4].copy_from_slice(&crc.to_be_bytes());
        }
        file
    }

    /// What a file says. A missing, short or zero file says nothing, which is harmless: more is
    /// read and nothing is trusted.
    #[must_use]
    pub fn decode(file: &[u8]) -> Checkpoint {
        let Some(java) = file.get(..JAVA_BYTES) else {
            return Checkpoint::default();
        };
        Checkpoint {
            java: JavaPart {
                physic: millis(java, PHYSIC_AT),
                logics: millis(java, LOGICS_AT),
                index: millis(java, INDEX_AT),
                master_flushed: LogOffset(u64_at(java, MASTER_AT)),
                confirmed: LogOffset(u64_at(java, CONFIRMED_AT)),
            },
            ours: decode_ours(file),
        }
    }
}

fn decode_ours(file: &[u8]) -> Option<OurPart> {
    let checked = file.get(OURS_AT..CRC_AT)?;
    let crc = u32::from_be_bytes(*file.get(CRC_AT..)?.first_chunk()?);
    let is_ours = file[MAGIC_AT..COPY_AT] == MAGIC
        && crc32fast::hash(checked) == crc
        && file[COPY_AT..MODE_AT] == file[..JAVA_BYTES];
    let mode = match u64_at(file, MODE_AT) >> 32 {
        mode if mode == u64::from(MODE_SYNC) => FlushMode::Sync,
        mode if mode == u64::from(MODE_ASYNC) => FlushMode::Async,
        _ => return None,
    };
    is_ours.then(|| OurPart {
        mode,
        durable: LogOffset(u64_at(file, DURABLE_AT)),
        queues: LogOffset(u64_at(file, QUEUES_AT)),
        indexed: LogOffset(u64_at(file, INDEXED_AT)),
        index_entries: u64_at(file, INDEX_ENTRIES_AT),
    })
}

/// Times on disk are signed; a negative one says nothing.
fn millis(bytes: &[u8], at: usize) -> Millis {
    Millis(u64::try_from(u64_at(bytes, at) as i64).unwrap_or(0))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let field = bytes[at..].first_chunk().expect("callers checked the end");
    u64::from_be_bytes(*field)
}

fn put_u64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..][..8].copy_from_slice(&value.to_be_bytes());
}

/// Where the file is in a store.
#[must_use]
pub fn path(root: &Path) -> PathBuf {
    root.join("checkpoint")
}

/// Reads the file of the store in `root`.
///
/// # Errors
/// The file is there but cannot be read: what it says is not to be ignored.
pub fn load(files: &mut dyn Files, root: &Path) -> io::Result<Checkpoint> {
    let mut file = vec![0; CHECKPOINT_BYTES];
    match files.read_at(&path(root), 0, &mut file) {
        Ok(bytes) => Ok(Checkpoint::decode(&file[..bytes])),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Checkpoint::default()),
        Err(error) => Err(error),
    }
}

/// Replaces the file of the store in `root`: at any death the old or the new content is found.
///
/// # Errors
/// A step failed; the old content still counts.
pub fn save(files: &mut dyn Files, root: &Path, checkpoint: &Checkpoint) -> io::Result<()> {
    let fresh = root.join("checkpoint.new");
    files.create(&fresh, 0, false)?;
    files.write_at(&fresh, 0, &checkpoint.encode())?;
    files.sync(&fresh)?;
    files.rename(&fresh, &path(root))?;
    files.sync_dir(root)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_checkpoint() -> impl Strategy<Value = Checkpoint> {
        let java = prop::array::uniform5(0..i64::MAX as u64).prop_map(|five| JavaPart {
            physic: Millis(five[0]),
            logics: Millis(five[1]),
            index: Millis(five[2]),
            master_flushed: LogOffset(five[3]),
            confirmed: LogOffset(five[4]),
        });
        let ours =
            (any::<bool>(), prop::array::uniform4(any::<u64>())).prop_map(|(sync, four)| OurPart {
                mode: if sync {
                    FlushMode::Sync
                } else {
                    FlushMode::Async
                },
                durable: LogOffset(four[0]),
                queues: LogOffset(four[1]),
                indexed: LogOffset(four[2]),
                index_entries: four[3],
            });
        (java, prop::option::of(ours)).prop_map(|(java, ours)| Checkpoint { java, ours })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(checkpoint in any_checkpoint()) {
            let file = checkpoint.encode();
            prop_assert_eq!(file.len(), 4096);
            prop_assert_eq!(Checkpoint::decode(&file), checkpoint);
        }

        #[test]
        fn one_flipped_bit_voids_our_part(
            checkpoint in any_checkpoint(),
            bit in 0..(92 + 40) * 8usize,
        ) {
            prop_assume!(checkpoint.ours.is_some());
            let mut file = checkpoint.encode();
            let byte = if bit / 8 < 40 { bit / 8 } else { 512 + bit / 8 - 40 };
            file[byte] ^= 1 << (bit % 8);
            prop_assert_eq!(Checkpoint::decode(&file).ours, None);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..5000)) {
            let _ = Checkpoint::decode(&bytes);
        }
    }

    #[test]
    fn java_finds_its_fields_where_it_looks() {
        let checkpoint = Checkpoint {
            java: JavaPart {
                physic: Millis(0x0102),
                logics: Millis(0x0304),
                index: Millis(0x0506),
                master_flushed: LogOffset(0x0708),
                confirmed: LogOffset(0x090A),
            },
            ours: None,
        };
        let mut expected = [0u8; 4096];
        for (at, byte) in [(6, 1), (7, 2), (14, 3), (15, 4), (22, 5), (23, 6)] {
            expected[at] = byte;
        }
        for (at, byte) in [(30, 7), (31, 8), (38, 9), (39, 10)] {
            expected[at] = byte;
        }
        assert_eq!(checkpoint.encode(), expected);
    }

    #[test]
    fn a_checkpoint_that_java_wrote_since_voids_our_part() {
        let ours = OurPart {
            mode: FlushMode::Sync,
            durable: LogOffset(1000),
            queues: LogOffset(900),
            indexed: LogOffset(800),
            index_entries: 7,
        };
        let mut file = Checkpoint {
            java: JavaPart::default(),
            ours: Some(ours),
        }
        .encode();
        assert_eq!(Checkpoint::decode(&file).ours, Some(ours));
        file[PHYSIC_AT..][..8].copy_from_slice(&1_795_986_121_788u64.to_be_bytes());
        let read = Checkpoint::decode(&file);
        assert_eq!(read.ours, None);
        assert_eq!(read.java.physic, Millis(1_795_986_121_788));
    }
}
