//! What a shard is told of the configuration and the machine.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::queue::{QueueFiles, Transfer};
use crate::ids::{Millis, UNIT_BYTES};
use crate::limits::{BODY_BYTES_MAX, PULL_BYTES_MAX, PULL_MESSAGES_MAX};

/// What a shard is told of the configuration. `node.rs` fills it in; the names in the comments are
/// the configuration's.
#[derive(Clone, Debug)]
pub struct ShardConfig {
    /// This shard, of how many.
    pub number: usize,
    pub shards: usize,
    /// `brokerClusterName`.
    pub cluster: String,
    /// `regionId`.
    pub region: String,
    /// `traceOn`.
    pub trace_on: bool,
    /// `brokerIP1` and `listenPort`: part of every message id.
    pub store_host: SocketAddr,
    /// `brokerPermission`: 4 read, 2 write.
    pub broker_permission: u32,
    /// `startAcceptSendRequestTimeStamp`.
    pub accept_sends_from: Millis,
    /// `maxMessageSize`, at most [`BODY_BYTES_MAX`].
    pub body_bytes_max: usize,
    /// `waitTimeMillsInSendQueue`.
    pub send_wait_ms: u64,
    /// `autoCreateSubscriptionGroup`.
    pub auto_create_groups: bool,
    /// `longPollingEnable`.
    pub long_polling: bool,
    /// `shortPollingTimeMills`.
    pub short_polling_ms: u64,
    /// `litePullMessageEnable`.
    pub lite_pull: bool,
    /// `maxTransfer{Bytes,Count}OnMessageInMemory`.
    pub hot: Transfer,
    /// `maxTransfer{Bytes,Count}OnMessageInDisk`.
    pub cold: Transfer,
    /// `maxFilterMessageSize`: 20 bytes for each message that one pull may look at.
    pub filter_bytes_max: u32,
    /// The machine's memory, and `accessMessageInMemoryMaxRatio` in percent of it.
    pub ram_bytes: u64,
    pub memory_percent: u64,
    /// `defaultQueryMaxNum` and `maxMsgsNumBatch`.
    pub unique_query_max: u32,
    pub query_max: u32,
    /// `store/consumequeue`, and `mappedFileSizeConsumeQueue` in whole units.
    pub queue_dir: PathBuf,
    pub queue_file_bytes: u64,
    /// Random at start, fixed in simulation.
    pub hash_seed: u64,
    pub random_seed: u64,
    /// Parts of the unique keys made here: the process id's low 16 bits, and any number that no
    /// other process of this machine has.
    pub process_id: u16,
    pub unique_constant: u32,
}

impl ShardConfig {
    /// RocketMQ's defaults for shard `number` of `shards`.
    #[must_use]
    pub fn new(number: usize, shards: usize, store_host: SocketAddr) -> ShardConfig {
        ShardConfig {
            number,
            shards,
            cluster: "DefaultCluster".to_string(),
            region: "DefaultRegion".to_string(),
            trace_on: true,
            store_host,
            broker_permission: 6,
            accept_sends_from: Millis(0),
            body_bytes_max: BODY_BYTES_MAX,
            send_wait_ms: 200,
            auto_create_groups: true,
            long_polling: true,
            short_polling_ms: 1000,
            lite_pull: true,
            hot: Transfer {
                bytes: 256 * 1024,
                messages: 32,
            },
            cold: Transfer {
                bytes: 64 * 1024,
                messages: 8,
            },
            filter_bytes_max: 16_000,
            ram_bytes: 4 << 30,
            memory_percent: 40,
            unique_query_max: 32,
            query_max: 64,
            queue_dir: PathBuf::from("store/consumequeue"),
            queue_file_bytes: 6_000_000,
            hash_seed: 0,
            random_seed: 0,
            process_id: 1,
            unique_constant: 0,
        }
    }

    /// How far behind the log's end a message still counts as in memory.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        (u128::from(self.ram_bytes) * u128::from(self.memory_percent) / 100) as u64
    }

    /// How long a pull is held. Clients that ask for no time at all are held as briefly as without
    /// long polling, since they pull on at once.
    #[must_use]
    pub fn hold_ms(&self, suspend_ms: i64) -> u64 {
        const HOLD_MS_MAX: u64 = 3_600_000;
        match u64::try_from(suspend_ms) {
            Ok(wanted @ 1..) if self.long_polling => wanted.min(HOLD_MS_MAX),
            Ok(_) | Err(_) => self.short_polling_ms,
        }
    }

    /// Where the queue files are.
    pub(super) fn queue_files(&self) -> QueueFiles<'_> {
        QueueFiles {
            dir: &self.queue_dir,
            file_bytes: self.queue_file_bytes,
        }
    }

    pub(super) fn check(mut self) -> Self {
        assert!(
            self.number < self.shards,
            "shard {} of {}",
            self.number,
            self.shards
        );
        assert!(
            self.queue_file_bytes > 0 && self.queue_file_bytes.is_multiple_of(UNIT_BYTES),
            "queue files of {} bytes do not hold whole units",
            self.queue_file_bytes
        );
        self.body_bytes_max = self.body_bytes_max.min(BODY_BYTES_MAX);
        for transfer in [&mut self.hot, &mut self.cold] {
            transfer.bytes = transfer.bytes.min(PULL_BYTES_MAX);
            transfer.messages = transfer.messages.min(PULL_MESSAGES_MAX);
        }
        self
    }
}
