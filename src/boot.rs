//! Opening a store: tables, log, queues and index as the roles start from them.
//!
//! ```text
//!  config/*.json -> topics (keys for their queues), groups, offsets
//!  checkpoint -> where dispatch was -> recover the log, counting what follows per queue
//!             -> queue files up to there, cut behind -> Boot: one snapshot for all roles
//! ```
//!
//! Plain functions over [`Files`], so that the simulator opens its stores here too and can crash
//! between any two steps.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hashbrown::HashMap;
use serde::de::DeserializeOwned;
use shards::files::Files;

use crate::broker::control::{Tables, table_paths};
use crate::broker::group_table::GroupTable;
use crate::broker::news::{Boot, QueueState, SharedBoot};
use crate::broker::offset_table::SavedOffsets;
use crate::broker::topic_table::{TopicError, TopicSettings, TopicTable};
use crate::ids::{LogOffset, QueueKey, QueueOffset};
use crate::store::FlushMode;
use crate::store::checkpoint;
use crate::store::index::{self, IndexConfig, IndexFound};
use crate::store::queues::{self, QueueError};
use crate::store::recover::{RecoverConfig, Recovered, Refused, recover};
use crate::wire::fastjson;

/// What opening needs to know.
#[derive(Clone, Debug)]
pub struct StoreSettings {
    /// `storePathRootDir`.
    pub root: PathBuf,
    /// `storePathCommitLog`.
    pub log_dir: PathBuf,
    pub segment_bytes: u64,
    /// `mappedFileSizeConsumeQueue`, whole units.
    pub queue_file_bytes: u64,
    pub mode: FlushMode,
    pub topics: TopicSettings,
    pub auto_create_group: bool,
    pub index: IndexConfig,
    pub hash_seed: u64,
}

/// A store as the roles start from it.
#[derive(Debug)]
pub struct Opened {
    pub tables: Tables,
    pub boot: SharedBoot,
    pub recovered: Recovered,
    /// Dispatch goes on here.
    pub dispatch_from: LogOffset,
    pub index: IndexFound,
}

/// Why a store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Log(#[from] Refused),
    #[error(transparent)]
    Queue(#[from] QueueError),
    #[error(
        "neither {path} nor its .bak can be read ({cause}): mend or remove both; without them the \
         broker starts with an empty table"
    )]
    Table { path: PathBuf, cause: String },
    #[error("{path}: {cause}")]
    Io { path: PathBuf, cause: io::Error },
    #[error("topics.json: {0}")]
    Topics(#[from] TopicError),
}

/// Opens the store. Its lock is held, nothing else uses the files.
pub fn open(files: &mut dyn Files, settings: &StoreSettings) -> Result<Opened, OpenError> {
    let root = &settings.root;
    for dir in [
        root.clone(),
        root.join("config"),
        root.join("ringmq"),
        root.join("consumequeue"),
        settings.log_dir.clone(),
    ] {
        make_dir(files, &dir).map_err(|cause| OpenError::Io { path: dir, cause })?;
    }
    let tables = open_tables(files, settings)?;
    let known = checkpoint::load(files, root).map_err(|cause| OpenError::Io {
        path: checkpoint::path(root),
        cause,
    })?;
    // Without a word of ours, every queue is compared with the log.
    let wanted = known.ours.map_or(LogOffset(0), |ours| ours.queues);
    let mut next = Counted::new(&tables, settings);
    let config = RecoverConfig {
        root: root.clone(),
        log_dir: settings.log_dir.clone(),
        segment_bytes: settings.segment_bytes,
        mode: settings.mode,
        dispatched_from: wanted,
    };
    let recovered = recover(files, &config, &mut |record| next.count(record))?;
    let dispatch_from = wanted.clamp(recovered.first, recovered.end);
    let queues = open_queues(files, settings, &tables, &recovered, dispatch_from, &next)?;
    let index =
        index::open(files, &settings.index, recovered.first, recovered.end).map_err(|cause| {
            OpenError::Io {
                path: root.join("index"),
                cause,
            }
        })?;
    let boot = Boot {
        topics: tables.topics.all_news(),
        groups: tables.groups.all_news(),
        queues,
        offsets: tables.offsets.all(),
    };
    Ok(Opened {
        tables,
        boot: Arc::new(boot),
        recovered,
        dispatch_from,
        index,
    })
}

/// Makes a directory and those above it, each under a durable name: a store that is lost with its
/// directory is lost whatever was flushed in it. An earlier start may have died between making and
/// flushing, so the last name is flushed even if it was there.
fn make_dir(files: &mut dyn Files, dir: &Path) -> io::Result<()> {
    let parent = |dir: &Path| match dir.parent() {
        Some(above) if above.as_os_str().is_empty() => PathBuf::from("."),
        Some(above) => above.to_owned(),
        None => dir.to_owned(),
    };
    let mut above = vec![parent(dir)];
    while let Some(last) = above.last().filter(|last| last.parent().is_some())
        && let Err(error) = files.list(last)
        && error.kind() == io::ErrorKind::NotFound
    {
        let next = parent(last);
        above.push(next);
    }
    files.make_dir_all(dir)?;
    above
        .iter()
        .try_for_each(|above| match files.sync_dir(above) {
            // Who may not read the directory above has not made a name in it.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
            synced => synced,
        })
}

fn open_tables(files: &mut dyn Files, settings: &StoreSettings) -> Result<Tables, OpenError> {
    let [topics, groups, offsets, deleted] = table_paths(&settings.root);
    Ok(Tables {
        topics: TopicTable::new(settings.topics.clone(), read_table(files, &topics)?)?,
        groups: GroupTable::new(read_table(files, &groups)?, settings.auto_create_group),
        offsets: SavedOffsets::new(read_table(files, &offsets)?),
        deleted: read_table(files, &deleted)?,
    })
}

/// The file, else its `.bak`, else nothing if both are missing or empty (store-format 13.1).
fn read_table<T: DeserializeOwned + Default>(
    files: &mut dyn Files,
    path: &Path,
) -> Result<T, OpenError> {
    let mut backup = path.as_os_str().to_owned();
    backup.push(".bak");
    let mut damage = None;
    for path in [path, Path::new(&backup)] {
        let bytes = match read_whole(files, path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(cause) => {
                return Err(OpenError::Io {
                    path: path.to_owned(),
                    cause,
                });
            }
        };
        if bytes
            .iter()
            .all(|byte| *byte == 0 || byte.is_ascii_whitespace())
        {
            continue;
        }
        match fastjson::from_slice(&bytes) {
            Ok(table) => {
                if let Some(cause) = damage {
                    log::warn!("{} is used instead: {cause}", path.display());
                }
                return Ok(table);
            }
            Err(error) => damage = Some(error.to_string()),
        }
    }
    match damage {
        None => Ok(T::default()),
        Some(cause) => Err(OpenError::Table {
            path: path.to_owned(),
            cause,
        }),
    }
}

fn read_whole(files: &mut dyn Files, path: &Path) -> io::Result<Vec<u8>> {
    let bytes = files.len(path)?;
    if bytes > fastjson::TEXT_BYTES_MAX as u64 {
        return Err(io::Error::other("longer than any table"));
    }
    let mut content = vec![0; bytes as usize];
    let read = files.read_at(path, 0, &mut content)?;
    content.truncate(read);
    Ok(content)
}

/// Next offsets, as the log's undispatched end says.
struct Counted {
    topics: HashMap<String, Vec<QueueKey>, foldhash::fast::FixedState>,
    deleted: std::collections::BTreeMap<String, u64>,
    /// By key.
    next: Vec<QueueOffset>,
    strangers: u64,
}

impl Counted {
    fn new(tables: &Tables, settings: &StoreSettings) -> Self {
        let hasher = foldhash::fast::FixedState::with_seed(settings.hash_seed);
        let mut topics = HashMap::with_hasher(hasher);
        for topic in tables.topics.all_news() {
            topics.insert(topic.name, topic.queues);
        }
        let next = vec![QueueOffset(0); tables.topics.queues() as usize];
        Counted {
            topics,
            deleted: tables.deleted.clone(),
            next,
            strangers: 0,
        }
    }

    fn count(&mut self, record: &crate::wire::record::Record<'_>) {
        let counts_from = self.deleted.get(record.topic());
        if !record.needs_dispatch() || counts_from.is_some_and(|at| record.log_offset() < *at) {
            return;
        }
        let keys = self.topics.get(record.topic());
        let key = keys.and_then(|keys| keys.get(usize::try_from(record.queue_id()).ok()?));
        match key {
            Some(key) => {
                let next = &mut self.next[key.0 as usize];
                *next = QueueOffset(record.queue_offset() + 1).max(*next);
            }
            None => self.strangers += 1,
        }
    }
}

fn open_queues(
    files: &mut dyn Files,
    settings: &StoreSettings,
    tables: &Tables,
    recovered: &Recovered,
    dispatch_from: LogOffset,
    counted: &Counted,
) -> Result<Vec<QueueState>, OpenError> {
    if counted.strangers > 0 {
        let count = counted.strangers;
        log::warn!("{count} records of the log belong to no topic of this broker: left aside");
    }
    let root = settings.root.join("consumequeue");
    let mut states = Vec::with_capacity(tables.topics.queues() as usize);
    for topic in tables.topics.all_news() {
        for (queue_id, key) in topic.queues.iter().enumerate() {
            let bytes = settings.queue_file_bytes;
            let dir = queues::queue_dir(&root, &topic.name, queue_id as i32, bytes);
            let cut = !(recovered.clean && dispatch_from == recovered.end);
            let found = queues::open(files, &dir, recovered.first, dispatch_from, cut)?;
            let next = found.next.max(counted.next[key.0 as usize]);
            let dispatched = found.next;
            states.push(QueueState {
                key: *key,
                first: found.first,
                next,
                dispatched,
            });
        }
    }
    if !recovered.clean {
        sync_names(files, &root).map_err(|cause| OpenError::Io { path: root, cause })?;
    }
    states.sort_unstable_by_key(|state| state.key.0);
    Ok(states)
}

/// Makes the names of the topics' and queues' directories durable: the last run may have died
/// before it did, and whoever finds them there takes them for durable.
fn sync_names(files: &mut dyn Files, root: &Path) -> io::Result<()> {
    for topic in files.list(root)?.iter().filter(|entry| entry.is_dir) {
        files.sync_dir(&root.join(&topic.name))?;
    }
    files.sync_dir(root)
}
