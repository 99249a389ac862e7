//! Reading the log back: what stays, what is cut, when to refuse (DESIGN 7, store-behaviour 6).
//!
//! ```text
//!  first        scan starts     recorded durable mark     first bad record
//!    v               v                   v                       v
//!    +---------------+-------------------+-----------------------+--------- - -
//!    | not read      | records must be   | records must also be  | zeros; else see [`TABLE`]
//!    |               | there: else rot   | free of zero bytes    |
//!    +---------------+-------------------+-----------------------+--------- - -
//! ```
//!
//! A plain function over [`Files`], one step after the other, so that a simulated disk can die
//! between any two: what was done up to there is found again, and running it twice is running it
//! once. Nothing is changed before the decision is made.
//!
//! RocketMQ's checksum covers the body alone. What makes the test of a record exact all the same:
//! everything beyond the log's end is zero, a record says where it stands, and no text that was
//! accepted holds a zero byte.

mod erase;
mod files;
#[cfg(test)]
mod golden;
#[cfg(test)]
pub(crate) mod memory;
mod scan;
#[cfg(test)]
pub(crate) mod tests;

use std::io;
use std::path::{Path, PathBuf};

use shards::files::Files;
use shards::role::BLOCK_BYTES;
use thiserror::Error;

use self::files::Found;
use self::scan::{Look, Scanner};
use crate::ids::{LogOffset, Millis};
use crate::limits;
use crate::store::FlushMode;
use crate::store::abort;
use crate::store::checkpoint::{self, Checkpoint, JavaPart, OurPart};
use crate::store::segment::Segments;
use crate::wire::record::Record;

/// What recovery needs to know.
#[derive(Clone, Debug)]
pub struct RecoverConfig {
    /// `storePathRootDir`: checkpoint and `abort` are there.
    pub root: PathBuf,
    /// `storePathCommitLog`.
    pub log_dir: PathBuf,
    /// `mappedFileSizeCommitLog`; see [`Segments::is_possible`].
    pub segment_bytes: u64,
    /// How the log will be flushed from here on; recorded before anything is appended.
    pub mode: FlushMode,
    /// Each valid record at or beyond this position is handed to the caller. Lies between two
    /// records: the checkpoint's `queues`, or 0.
    pub dispatched_from: LogOffset,
}

/// What the log holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// Start of the first segment.
    pub first: LogOffset,
    /// Where the next record goes. All below is on stable storage, all beyond is zero.
    pub end: LogOffset,
    /// End of the last segment, which may lie beyond `end` by whole segments.
    pub prepared: LogOffset,
    /// Start of each segment.
    pub segments: Vec<LogOffset>,
    /// The durable mark that the last run recorded; `None` if there is none, or Java was here.
    pub durable: Option<LogOffset>,
    /// Whether the last run ended cleanly.
    pub clean: bool,
    /// Store time of the last record; of the checkpoint if none had to be read.
    pub last_store_timestamp: Millis,
    /// Records that were read, and how many of them were handed to the caller.
    pub records: u64,
    pub handed: u64,
    /// What was cut off.
    pub cut: Cut,
    /// From the last block's start up to `end`.
    pub last_block: Vec<u8>,
    /// As it was saved at the end.
    pub checkpoint: Checkpoint,
}

/// What lay beyond the log's end and is zero now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// Up to the last byte that was not zero.
    pub bytes: u64,
    /// Whole records among them.
    pub records: u64,
}

/// Why a broker must not start on this store. Nothing was changed, unless a step failed.
#[derive(Debug, Error)]
pub enum Refused {
    /// A name that is no segment's.
    #[error("{0} is no segment of the log: move it out of that directory")]
    StrayFile(PathBuf),
    /// A segment of another length.
    #[error(
        "{path} has {bytes} bytes instead of {expected}: set mappedFileSizeCommitLog to the size \
         that the store was made with, or restore the file"
    )]
    WrongLength {
        /// The segment.
        path: PathBuf,
        /// Its length.
        bytes: u64,
        /// What `mappedFileSizeCommitLog` says.
        expected: u64,
    },
    /// A segment whose start is no multiple of the length.
    #[error(
        "{path} does not start at a multiple of {expected} bytes: set mappedFileSizeCommitLog to \
         the size that the store was made with"
    )]
    WrongStart {
        /// The segment.
        path: PathBuf,
        /// What `mappedFileSizeCommitLog` says.
        expected: u64,
    },
    /// A segment is missing between two.
    #[error(
        "the log's segment {0} is missing: restore it, or move all older ones away and lose what \
         they hold"
    )]
    Gap(PathBuf),
    /// The log ends before what was acknowledged.
    #[error(
        "the log ends at {end} but was on stable storage up to {durable}: restore the missing \
         segments from a copy or a replica, or remove the file checkpoint and lose these messages"
    )]
    Short {
        /// End of the last segment.
        end: LogOffset,
        /// The recorded mark.
        durable: LogOffset,
    },
    /// The first bad record was acknowledged.
    #[error(
        "the log is damaged at {at}: {because}. Restore {path} from a copy or a replica; to cut \
         the log there and lose what follows, remove the file checkpoint (no help if the device \
         cannot read)"
    )]
    Damaged {
        /// The first bad record.
        at: LogOffset,
        /// Its segment.
        path: PathBuf,
        /// From the row of [`TABLE`].
        because: &'static str,
    },
    /// A record that only a larger limit could have let in.
    #[error(
        "the record at {at} has {bytes} bytes, more than the {} that this broker can hold",
        limits::RECORD_BYTES_MAX
    )]
    RecordTooLong {
        /// The record.
        at: LogOffset,
        /// Its size field.
        bytes: u64,
    },
    /// A step failed, other than reading the log.
    #[error("{step} {path}: {error}")]
    Io {
        /// What was tried.
        step: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
}

impl Refused {
    fn io(step: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Refused {
        let path = path.to_path_buf();
        move |error| Refused::Io { step, path, error }
    }
}

/// What to do with the first bad record met while reading a log back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The log ends before it; what follows is erased and counted.
    Cut,
    /// Only people can say what is to be done.
    Refuse,
}

/// One row: `None` matches anything.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The device failed to read, instead of bad bytes.
    pub unreadable: Option<bool>,
    /// It lies below the recorded durable mark.
    pub below_durable: Option<bool>,
    /// The flush mode recorded by the run that wrote it.
    pub mode: Option<FlushMode>,
    /// A valid record starts more than one batch beyond it, or in a later segment.
    pub later_record: Option<bool>,
    /// What follows.
    pub decision: Decision,
    /// Why.
    pub because: &'static str,
}

/// Exactly one row matches.
///
/// | unreadable | below the durable mark | mode  | a later record | decision |
/// |------------|------------------------|-------|----------------|----------|
/// | no         | yes                    | any   | any            | Refuse   |
/// | no         | no                     | SYNC  | yes            | Refuse   |
/// | no         | no                     | SYNC  | no             | Cut      |
/// | no         | no                     | ASYNC | any            | Cut      |
/// | yes        | any                    | any   | any            | Refuse   |
pub const TABLE: [Row; 5] = [
    Row {
        unreadable: Some(false),
        below_durable: Some(true),
        mode: None,
        later_record: None,
        decision: Decision::Refuse,
        because: "it was acknowledged, so no crash has torn it",
    },
    Row {
        unreadable: Some(false),
        below_durable: Some(false),
        mode: Some(FlushMode::Sync),
        later_record: Some(true),
        decision: Decision::Refuse,
        because: "one write is made at a time, so a later record proves that it was flushed",
    },
    Row {
        unreadable: Some(false),
        below_durable: Some(false),
        mode: Some(FlushMode::Sync),
        later_record: Some(false),
        decision: Decision::Cut,
        because: "the crash tore the last write, and nobody was told of it",
    },
    Row {
        unreadable: Some(false),
        below_durable: Some(false),
        mode: Some(FlushMode::Async),
        later_record: None,
        decision: Decision::Cut,
        because: "without a flush later writes may survive earlier ones",
    },
    Row {
        unreadable: Some(true),
        below_durable: None,
        mode: None,
        later_record: None,
        decision: Decision::Refuse,
        because: "the device fails to read it, which is never the same as zeros",
    },
];

/// The case at hand.
#[derive(Clone, Copy, Debug)]
struct Case {
    unreadable: bool,
    below_durable: bool,
    mode: FlushMode,
    later_record: bool,
}

impl Row {
    fn matches(&self, case: Case) -> bool {
        self.unreadable.is_none_or(|is| is == case.unreadable)
            && self.below_durable.is_none_or(|is| is == case.below_durable)
            && self.mode.is_none_or(|is| is == case.mode)
            && self.later_record.is_none_or(|is| is == case.later_record)
    }
}

fn decide(case: Case) -> &'static Row {
    TABLE
        .iter()
        .find(|row| row.matches(case))
        .expect("a test shows that exactly one row matches every case")
}

/// What the last run left to go by.
#[derive(Clone, Copy, Debug)]
struct Trust {
    clean: bool,
    /// Everything below was on stable storage and acknowledged.
    durable: LogOffset,
    /// Whether the mark is our own; else it is what Java's times say at least.
    is_ours: bool,
    mode: FlushMode,
    /// Zero bytes in a text are the sender's, not a tear's, up to this store time. Java accepts
    /// them.
    texts_until: Millis,
}

impl Trust {
    fn ours(clean: bool, ours: OurPart) -> Trust {
        Trust {
            clean,
            durable: ours.durable,
            is_ours: true,
            mode: ours.mode,
            texts_until: Millis(0),
        }
    }

    /// What can be said of a store that Java used last: `mark` is where its own recovery would
    /// begin.
    fn java(clean: bool, mark: LogOffset, java: JavaPart) -> Trust {
        Trust {
            clean,
            durable: mark,
            is_ours: false,
            mode: FlushMode::Async,
            texts_until: if clean {
                Millis(u64::MAX)
            } else {
                java.trusted_until()
            },
        }
    }

    /// Where to begin: at the first position that somebody needs. After a clean end both marks lie
    /// between records and can be trusted; else the whole segment is looked at.
    fn scan_start(&self, found: &Found, dispatched_from: LogOffset) -> LogOffset {
        let needed = dispatched_from.min(self.durable).max(found.first());
        if self.clean && self.is_ours {
            needed
        } else {
            found.segments.start_of(needed).max(found.first())
        }
    }
}

/// Reads the log of a store back, makes all of it durable, erases what lies behind its end and
/// saves a checkpoint that says so. The store's lock is held, nothing else uses the files.
///
/// `each` gets every valid record from `dispatched_from` on, in log order; if recovery refuses
/// in the end, forget what it got.
///
/// # Errors
/// See [`Refused`]: cause and cure.
pub fn recover(
    files: &mut dyn Files,
    config: &RecoverConfig,
    each: &mut dyn FnMut(&Record<'_>),
) -> Result<Recovered, Refused> {
    let clean = !abort::was_aborted(files, &config.root)
        .map_err(Refused::io("look for abort in", &config.root))?;
    let checkpoint = checkpoint::load(files, &config.root)
        .map_err(Refused::io("read checkpoint in", &config.root))?;
    let segments = Segments::new(config.segment_bytes);
    let mut found = Found::list(files, &config.log_dir, segments)?;
    let mut scanner = Scanner::default();
    let trust = match checkpoint.ours {
        Some(ours) => Trust::ours(clean, ours),
        None => {
            let mark = scan::java_mark(files, &mut scanner, &found, checkpoint.java);
            Trust::java(clean, mark, checkpoint.java)
        }
    };
    if found.end() < trust.durable {
        return Err(Refused::Short {
            end: found.end(),
            durable: trust.durable,
        });
    }

    let scanned = scan_records(files, &mut scanner, &found, &trust, config, each)?;
    let survey = judge(files, &mut scanner, &found, &trust, &scanned)?;
    erase::erase(files, &mut found, scanned.end, &survey)?;
    if !clean && trust.is_ours {
        found.rewrite(files, trust.durable.max(found.first()), scanned.end)?;
    }
    found.sync_from(
        files,
        if trust.is_ours {
            trust.durable
        } else {
            found.first()
        },
    )?;

    let known_before = if trust.is_ours {
        checkpoint.java.physic
    } else {
        Millis(0)
    };
    let last_store_timestamp = scanned.last_timestamp.max(known_before);
    let checkpoint = next_checkpoint(&checkpoint, config.mode, scanned.end, last_store_timestamp);
    checkpoint::save(files, &config.root, &checkpoint)
        .map_err(Refused::io("save checkpoint in", &config.root))?;
    Ok(Recovered {
        first: found.first(),
        end: scanned.end,
        prepared: found.end(),
        last_block: last_block(files, &found, scanned.end)?,
        segments: found.starts,
        durable: trust.is_ours.then_some(trust.durable),
        clean,
        last_store_timestamp,
        records: scanned.records,
        handed: scanned.handed,
        cut: survey.cut,
        checkpoint,
    })
}

/// The log up to its first bad record.
struct Scanned {
    end: LogOffset,
    /// The device failed to read there.
    unreadable: bool,
    records: u64,
    handed: u64,
    last_timestamp: Millis,
}

fn scan_records(
    files: &mut dyn Files,
    scanner: &mut Scanner,
    found: &Found,
    trust: &Trust,
    config: &RecoverConfig,
    each: &mut dyn FnMut(&Record<'_>),
) -> Result<Scanned, Refused> {
    let mut scanned = Scanned {
        end: trust.scan_start(found, config.dispatched_from),
        unreadable: false,
        records: 0,
        handed: 0,
        last_timestamp: Millis(0),
    };
    while scanned.end < found.end() {
        let at = scanned.end;
        match scanner.look(files, found, at) {
            Look::Record(record) if is_torn(&record, at, trust) => break,
            Look::Record(record) => {
                scanned.records += 1;
                let timestamp = u64::try_from(record.store_timestamp()).unwrap_or(0);
                scanned.last_timestamp = scanned.last_timestamp.max(Millis(timestamp));
                scanned.end = at.plus(u64::from(record.size()));
                if at >= config.dispatched_from {
                    scanned.handed += 1;
                    each(&record);
                }
            }
            Look::Blank => scanned.end = found.segments.end_of(at),
            Look::Bad => break,
            Look::TooLong(bytes) => return Err(Refused::RecordTooLong { at, bytes }),
            Look::Unreadable => {
                scanned.unreadable = true;
                break;
            }
        }
    }
    Ok(scanned)
}

/// A zero byte in a text, where it can only come from a write that was not finished: nothing else
/// guards the texts.
fn is_torn(record: &Record<'_>, at: LogOffset, trust: &Trust) -> bool {
    let is_trusted = u64::try_from(record.store_timestamp())
        .is_ok_and(|timestamp| Millis(timestamp) <= trust.texts_until);
    at >= trust.durable && !is_trusted && scan::has_nul(record)
}

/// Looks at what follows the log's end, and refuses where it must.
fn judge(
    files: &mut dyn Files,
    scanner: &mut Scanner,
    found: &Found,
    trust: &Trust,
    scanned: &Scanned,
) -> Result<erase::Survey, Refused> {
    let at = scanned.end;
    let mut case = Case {
        unreadable: scanned.unreadable,
        below_durable: at < trust.durable,
        mode: trust.mode,
        later_record: false,
    };
    let mut survey = erase::Survey::default();
    // After a clean end exactly at the recorded mark nothing can follow it: it was zero before,
    // and nobody has written since.
    let is_known = trust.clean && trust.is_ours && at == trust.durable;
    if !case.unreadable && !case.below_durable && !is_known {
        survey = erase::Survey::make(files, scanner, found, at);
        case.later_record = survey.later_record;
        case.unreadable = survey.unreadable.is_some();
    }
    let row = decide(case);
    match row.decision {
        Decision::Cut => Ok(survey),
        Decision::Refuse => {
            let at = survey.unreadable.unwrap_or(at);
            Err(Refused::Damaged {
                at,
                path: found.path_of(at),
                because: row.because,
            })
        }
    }
}

/// Everything up to `end` is on stable storage now, and nothing else is left.
fn next_checkpoint(
    last: &Checkpoint,
    mode: FlushMode,
    end: LogOffset,
    last_store_timestamp: Millis,
) -> Checkpoint {
    let known = last.ours.unwrap_or(OurPart {
        mode,
        durable: end,
        queues: LogOffset(0),
        indexed: LogOffset(0),
        index_entries: 0,
    });
    Checkpoint {
        java: JavaPart {
            physic: last_store_timestamp,
            logics: last.java.logics.min(last_store_timestamp),
            master_flushed: last.java.master_flushed.min(end),
            confirmed: last.java.confirmed.min(end),
            ..last.java
        },
        ours: Some(OurPart {
            mode,
            durable: end,
            queues: known.queues.min(end),
            indexed: known.indexed.min(end),
            index_entries: known.index_entries,
        }),
    }
}

fn last_block(files: &mut dyn Files, found: &Found, end: LogOffset) -> Result<Vec<u8>, Refused> {
    let block = LogOffset(end.0 / BLOCK_BYTES * BLOCK_BYTES);
    let mut bytes = vec![0; end.since(block) as usize];
    if !bytes.is_empty() {
        found
            .read(files, block, &mut bytes)
            .map_err(Refused::io("read", &found.path_of(block)))?;
    }
    Ok(bytes)
}
