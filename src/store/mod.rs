//! The store: RocketMQ's files, and what makes "stored" true.
//!
//! ```text
//!  shards --- Append ---> log role ---- Write ----> segments (commitlog/)
//!         <-- Appended --    | marks: written, durable, visible
//!                            v
//!                 dispatch, index, replica: read up to visible
//! ```
//!
//! | module | what it owns |
//! |---|---|
//! | [`log`] | the log role: offset assignment, batches, the last block, poison |
//! | [`parked`] | appends that wait for a segment or for room |
//! | [`marks`] | the log's positions and the one door that moves them |
//! | [`segment`] | names, roll arithmetic, the blank record |
//! | [`recover`] | reading the log back: what stays, what is cut, when to refuse |
//! | [`checkpoint`] | what recovery may rely on |
//! | [`dispatch`] | the dispatch role: consume queue units, news for their owners |
//! | [`queues`] | consume queue files: units, places, what a start finds |
//! | [`index`], [`index_file`] | the index role: records by key |
//! | [`follow`] | reading the log on from a place, from the tail or from disk |
//! | [`abort`] | the mark of a run that has not ended |

pub mod abort;
pub mod checkpoint;
pub mod dispatch;
pub mod follow;
pub mod index;
pub mod index_file;
pub mod log;
pub mod marks;
pub mod parked;
pub mod queues;
pub mod recover;
pub mod segment;

/// RocketMQ's `flushDiskType`: what "stored" promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushMode {
    /// `SYNC_FLUSH`: on stable storage.
    Sync,
    /// `ASYNC_FLUSH`: written, and on stable storage within `flushIntervalCommitLog`.
    Async,
}
