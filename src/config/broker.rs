//! What a broker is told at start: each key with its row. config-reference 2-12.

use std::path::PathBuf;

use super::knobs::{Range, Refused, Setting, settings};
use super::load::{Configuration, Notice, Surroundings};
use super::values::{Addresses, BrokerRole, Delays, FlushDiskType, Hours};
use super::{knobs, unused};
use crate::limits::BODY_BYTES_MAX;

use Range::{Clamped, Flag, OneOf, Path, Text, Whole};

const MINUTE_MS: i64 = 60_000;
const DAY_MS: i64 = 24 * 60 * MINUTE_MS;
const INT_MAX: i64 = i32::MAX as i64;
/// Longest name that the protocol carries everywhere.
const NAME: Range = Text(255);

const NO_REPLICATION: &[Refused] = &[
    Refused {
        value: "SYNC_MASTER",
        why: "this version does not replicate, so no slave would have what was answered as \
              stored; use ASYNC_MASTER",
    },
    Refused {
        value: "SLAVE",
        why: "this version does not replicate, so this broker would not follow its master; \
              use ASYNC_MASTER with a brokerName of its own",
    },
];

settings! {
    /// The configuration of a broker, defaults filled in.
    pub struct BrokerConfig;

    // Identity, network, registration.

    /// The cluster that the broker belongs to; clients and tools list brokers by it.
    "brokerClusterName" => broker_cluster_name: String = "DefaultCluster",
        NAME, "", AtStart, Used, "cluster list (106)";
    /// The name that queues are addressed by, the same for a master and its slaves; empty: the host
    /// name.
    "brokerName" => broker_name: String = "",
        NAME, "", AtStart, Used, "cluster list (106)";
    /// 0 is the master; a master always has 0.
    "brokerId" => broker_id: u64 = "0",
        Whole(0, i64::MAX), "", AtStart, Used, "cluster list (106)";
    /// The broker's part in replication.
    "brokerRole" => broker_role: BrokerRole = "ASYNC_MASTER",
        OneOf(BrokerRole::WORDS), "", AtStart, Used, "broker configuration (26)",
        refused NO_REPLICATION;
    /// The address that clients are sent to and that goes into message ids; empty: bindAddress if
    /// that is one interface, else the address of the way out.
    "brokerIP1" => broker_ip1: String = "",
        NAME, "", AtStart, Used, "route (105)";
    /// The address that slaves are sent to; empty: brokerIP1.
    "brokerIP2" => broker_ip2: String = "",
        NAME, "", AtStart, Used, "haServerAddr of a registration (103)";
    /// The interface that is listened on; 0.0.0.0 is all of them.
    "bindAddress" => bind_address: String = "0.0.0.0",
        NAME, "", AtStart, Used, "first lines of the log";
    /// The port for clients; the one two below is listened on as well (VIP). 0: any free port, and
    /// no VIP.
    "listenPort" => listen_port: u16 = "10911",
        Whole(0, 65_535), "port", AtStart, Used, "route (105)";
    /// The port for slaves; 0: listenPort + 1.
    "haListenPort" => ha_listen_port: u16 = "0",
        Whole(0, 65_535), "port", AtStart, Used, "haServerAddr of a registration (103)";
    /// The name servers to register with, all of them; flag -n and NAMESRV_ADDR say the same.
    "namesrvAddr" => namesrv_addr: Addresses = "",
        Range::Addresses, "", AtStart, Used, "registrations, by name server";
    /// How often the broker registers when nothing changes.
    "registerNameServerPeriod" => register_name_server_period: u32 = "30000",
        Clamped(10_000, 60_000), "ms", AtStart, Used, "registrations, by name server";
    /// How long a registration may take before it counts as failed.
    "registerBrokerTimeoutMills" => register_broker_timeout_mills: u32 = "24000",
        Whole(100, 10 * MINUTE_MS), "ms", AtStart, Used, "failed registrations, by name server";
    /// What clients may do with the whole broker: 4 read, 2 write, 6 both, 0 nothing.
    "brokerPermission" => broker_permission: u8 = "6",
        Whole(0, 7), "", Live, Used, "perm in the route (105)";
    /// Put into every message and every send's answer as MSG_REGION.
    "regionId" => region_id: String = "DefaultRegion",
        NAME, "", AtStart, Used, "MSG_REGION of a send's answer (310)";
    /// Sends are refused before this time since 1970; 0 takes them at once.
    "startAcceptSendRequestTimeStamp" => start_accept_send_request_time_stamp: u64 = "0",
        Whole(0, i64::MAX), "ms", AtStart, Used, "sends refused: too early";
    /// A connection without a byte in either direction for so long is closed.
    "serverChannelMaxIdleTimeSeconds" => server_channel_max_idle_time_seconds: u32 = "120",
        Whole(1, 86_400), "s", AtStart, Used, "connections closed: idle";
    /// Connections that may wait to be accepted, per listening port.
    "serverSocketBacklog" => server_socket_backlog: u32 = "1024",
        Whole(1, 65_535), "connections", AtStart, Used, "connections accepted";
    /// The socket's send buffer; 0 leaves it to the kernel.
    "serverSocketSndBufSize" => server_socket_snd_buf_size: u32 = "0",
        Whole(0, 1 << 30), "bytes", AtStart, Used, "ss -tm";
    /// The socket's receive buffer; 0 leaves it to the kernel.
    "serverSocketRcvBufSize" => server_socket_rcv_buf_size: u32 = "0",
        Whole(0, 1 << 30), "bytes", AtStart, Used, "ss -tm";
    /// A client of a group without a heartbeat for so long is forgotten.
    "channelExpiredTimeout" => channel_expired_timeout: u32 = "120000",
        Whole(1_000, DAY_MS), "ms", AtStart, Used, "clients forgotten";

    // Topics, groups, features.

    /// A send to an unknown topic makes it, after the pattern of TBW102.
    "autoCreateTopicEnable" => auto_create_topic_enable: bool = "true",
        Flag, "", AtStart, Used, "topics made by a send";
    /// Most queues that an auto-created topic gets; TBW102 has so many.
    "defaultTopicQueueNums" => default_topic_queue_nums: u32 = "8",
        Whole(1, 1_024), "queues", AtStart, Used, "topic configuration (21)";
    /// The topic named as the cluster exists.
    "clusterTopicEnable" => cluster_topic_enable: bool = "true",
        Flag, "", AtStart, Used, "topic configuration (21)";
    /// The topic named as the broker exists.
    "brokerTopicEnable" => broker_topic_enable: bool = "true",
        Flag, "", AtStart, Used, "topic configuration (21)";
    /// An unknown consumer group is made when a consumer names it.
    "autoCreateSubscriptionGroup" => auto_create_subscription_group: bool = "true",
        Flag, "", Live, Used, "group configuration (201)";
    /// The topic for message traces exists.
    "traceTopicEnable" => trace_topic_enable: bool = "false",
        Flag, "", AtStart, Used, "topic configuration (21)";
    /// The name of that topic.
    "msgTraceTopicName" => msg_trace_topic_name: String = "RMQ_SYS_TRACE_TOPIC",
        NAME, "", AtStart, Used, "topic configuration (21)";
    /// Clients are told that traces are wanted (TRACE_ON).
    "traceOn" => trace_on: bool = "true",
        Flag, "", Live, Used, "TRACE_ON of a send's answer (310)";
    /// Subscriptions may filter by SQL expression; off, they are refused.
    "enablePropertyFilter" => enable_property_filter: bool = "false",
        Flag, "", AtStart, Used, "pulls refused: filter type not enabled";
    /// An SQL filter applies to messages of a retry topic too.
    "filterSupportRetry" => filter_support_retry: bool = "false",
        Flag, "", AtStart, Unused, "";
    /// A pull without messages waits at the broker for one.
    "longPollingEnable" => long_polling_enable: bool = "true",
        Flag, "", Live, Used, "pulls parked";
    /// How long such a pull waits where long polling is off.
    "shortPollingTimeMills" => short_polling_time_mills: u32 = "1000",
        Whole(1, MINUTE_MS), "ms", Live, Used, "pulls parked";
    /// Refuse the consumers that pull by themselves.
    "rejectPullConsumerEnable" => reject_pull_consumer_enable: bool = "false",
        Flag, "", Live, Unused, "";
    /// Tell the members of a group when one joins or leaves (code 40).
    "notifyConsumerIdsChangedEnable" => notify_consumer_ids_changed_enable: bool = "true",
        Flag, "", Live, Used, "groups told of a change";
    /// How often the consumers' offsets are saved.
    "flushConsumerOffsetInterval" => flush_consumer_offset_interval: u32 = "5000",
        Whole(100, 10 * MINUTE_MS), "ms", AtStart, Used, "offsets saved";
    /// Refuse the halves of transactions.
    "rejectTransactionMessage" => reject_transaction_message: bool = "false",
        Flag, "", Live, Used, "sends refused: transaction";
    /// Age at which an undecided half is asked about for the first time.
    "transactionTimeOut" => transaction_time_out: u64 = "6000",
        Whole(1, DAY_MS), "ms", AtStart, Unused, "";
    /// Questions after which a half is given up.
    "transactionCheckMax" => transaction_check_max: u32 = "15",
        Whole(1, 10_000), "questions", AtStart, Unused, "";
    /// Time between two rounds of questions.
    "transactionCheckInterval" => transaction_check_interval: u64 = "30000",
        Whole(1_000, DAY_MS), "ms", AtStart, Unused, "";
    /// Most bytes of one record that settles halves.
    "transactionOpMsgMaxSize" => transaction_op_msg_max_size: u32 = "4096",
        Whole(64, 1 << 20), "bytes", AtStart, Unused, "";
    /// Longest time that a settled half waits to be recorded with others.
    "transactionOpBatchInterval" => transaction_op_batch_interval: u32 = "3000",
        Whole(1, MINUTE_MS), "ms", AtStart, Unused, "";
    /// The delays of levels 1, 2, 3 and so on.
    "messageDelayLevel" => message_delay_level: Delays =
        "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
        Range::Delays, "", AtStart, Used, "broker configuration (26)";
    /// Messages with a delivery time of their own are taken.
    "timerWheelEnable" => timer_wheel_enable: bool = "true",
        Flag, "", AtStart, Used, "sends refused: timer";
    /// Longest delay of such a message.
    "timerMaxDelaySec" => timer_max_delay_sec: u64 = "259200",
        Whole(1, INT_MAX), "s", AtStart, Used, "sends refused: timer";
    /// Queues of the topic that revives unacknowledged pops.
    "reviveQueueNum" => revive_queue_num: u32 = "8",
        Whole(1, 1_024), "queues", AtStart, Used, "topic configuration (21)";

    // How much may wait.

    /// Connections at a time; one more is closed at once.
    "maxConnections" => max_connections: u32 = "10000",
        Whole(1, 1_000_000), "connections", AtStart, Used, "connections refused: too many";
    /// What the process may use; the start fails if the lines of the budget add up to more.
    "memoryLimitMegabytes" => memory_limit_megabytes: u64 = "1024",
        Whole(256, 1 << 24), "MiB", AtStart, Used, "memory budget in the first lines of the log";
    /// Sends that may wait for the log at a time, over all connections.
    "sendThreadPoolQueueCapacity" => send_thread_pool_queue_capacity: u32 = "10000",
        Whole(1, 10_000_000), "requests", AtStart, Used, "sends refused: busy";
    /// Pulls that may wait at a time, over all connections.
    "pullThreadPoolQueueCapacity" => pull_thread_pool_queue_capacity: u32 = "100000",
        Whole(1, 10_000_000), "requests", AtStart, Used, "pulls refused: busy";
    /// How long a send may wait before it is refused as busy.
    "waitTimeMillsInSendQueue" => wait_time_mills_in_send_queue: u32 = "200",
        Whole(1, MINUTE_MS), "ms", Live, Used, "sends refused: busy";
    /// An append slower than this makes the broker refuse sends as busy until it is over.
    "osPageCacheBusyTimeOutMills" => os_page_cache_busy_time_out_mills: u32 = "1000",
        Whole(1, 10 * MINUTE_MS), "ms", Live, Used, "sends refused: slow append";

    // The store.

    /// The directory of everything; empty: `store` in the home directory.
    "storePathRootDir" => store_path_root_dir: PathBuf = "",
        Path, "", AtStart, Used, "first lines of the log";
    /// The directory of the commit log's files; empty: `commitlog` in storePathRootDir.
    "storePathCommitLog" => store_path_commit_log: PathBuf = "",
        Path, "", AtStart, Used, "first lines of the log";
    /// Start on a file system that loses its content or cannot flush (tmpfs, overlay, no barriers),
    /// though SYNC_FLUSH promises durability.
    "acceptUnsafeStore" => accept_unsafe_store: bool = "false",
        Flag, "", AtStart, Used, "first lines of the log";
    /// Bytes of one commit log file; must be what existing files have.
    "mappedFileSizeCommitLog" => mapped_file_size_commit_log: u32 = "1073741824",
        Whole(16_384, INT_MAX), "bytes", AtStart, Used, "files of the store";
    /// Bytes of one queue file, rounded up to whole units of 20; must be what existing files have.
    "mappedFileSizeConsumeQueue" => mapped_file_size_consume_queue: u32 = "6000000",
        Whole(20, INT_MAX - 20), "bytes", AtStart, Used, "files of the store";
    /// Longest body of a message.
    "maxMessageSize" => max_message_size: u32 = "4194304",
        Whole(10, BODY_BYTES_MAX as i64), "bytes", AtStart, Used, "sends refused: too long";
    /// Messages are found by key.
    "messageIndexEnable" => message_index_enable: bool = "true",
        Flag, "", AtStart, Used, "index entries";
    /// Hash slots of an index file; must be what existing files have.
    "maxHashSlotNum" => max_hash_slot_num: u32 = "5000000",
        Whole(1, 100_000_000), "slots", AtStart, Used, "files of the store";
    /// Entries of an index file, one of them unused; must be what existing files have.
    "maxIndexNum" => max_index_num: u32 = "20000000",
        Whole(2, 100_000_000), "entries", AtStart, Used, "files of the store";
    /// Most messages that a look-up by key answers.
    "maxMsgsNumBatch" => max_msgs_num_batch: u32 = "64",
        Whole(1, 10_000), "messages", Live, Used, "look-ups by key (12)";
    /// Messages that it answers where the request does not say.
    "defaultQueryMaxNum" => default_query_max_num: u32 = "32",
        Whole(1, 10_000), "messages", Live, Used, "look-ups by key (12)";
    /// Check body checksums of what recovery reads.
    "checkCRCOnRecover" => check_crc_on_recover: bool = "true",
        Flag, "", AtStart, Used, "recovery lines of the log";

    // Flush.

    /// SYNC_FLUSH answers a send when it is on stable storage, ASYNC_FLUSH when it is written.
    /// RocketMQ's default is ASYNC_FLUSH.
    "flushDiskType" => flush_disk_type: FlushDiskType = "SYNC_FLUSH",
        OneOf(FlushDiskType::WORDS), "", AtStart, Used, "durable and visible marks";
    /// A send whose flush takes longer is answered FLUSH_DISK_TIMEOUT; its outcome is unknown.
    "syncFlushTimeout" => sync_flush_timeout: u32 = "5000",
        Whole(1, 10 * MINUTE_MS), "ms", Live, Used, "sends answered: flush timeout";
    /// Time between two flushes of ASYNC_FLUSH.
    "flushIntervalCommitLog" => flush_interval_commit_log: u32 = "500",
        Whole(1, MINUTE_MS), "ms", AtStart, Used, "flushes of the commit log";
    /// Time between two flushes of the queue files.
    "flushIntervalConsumeQueue" => flush_interval_consume_queue: u32 = "1000",
        Whole(1, MINUTE_MS), "ms", AtStart, Used, "flushes of queue files";

    // Retention.

    /// Age at which a commit log file may go.
    "fileReservedTime" => file_reserved_time: u32 = "72",
        Whole(0, 1_000_000), "h", Live, Used, "commit log files removed";
    /// Hours of the day, local time, at which files of that age do go.
    "deleteWhen" => delete_when: Hours = "04",
        Range::Hours, "h", Live, Used, "commit log files removed";
    /// Disk use from which they go at any hour.
    "diskMaxUsedSpaceRatio" => disk_max_used_space_ratio: u8 = "75",
        Clamped(10, 95), "%", Live, Used, "commit log files removed";
    /// Disk use from which files go whatever their age.
    "diskSpaceCleanForciblyRatio" => disk_space_clean_forcibly_ratio: u8 = "85",
        Clamped(30, 97), "%", Live, Used, "commit log files removed: forced";
    /// Disk use from which sends are refused.
    "diskSpaceWarningLevelRatio" => disk_space_warning_level_ratio: u8 = "90",
        Clamped(35, 98), "%", Live, Used, "sends refused: disk full";
    /// Files may go whatever their age when the disk is that full.
    "cleanFileForciblyEnable" => clean_file_forcibly_enable: bool = "true",
        Flag, "", Live, Used, "commit log files removed: forced";
    /// Time between two looks at the disk.
    "cleanResourceInterval" => clean_resource_interval: u32 = "10000",
        Whole(100, 10 * MINUTE_MS), "ms", AtStart, Used, "commit log files removed";
    /// Pause between two removed files.
    "deleteCommitLogFilesInterval" => delete_commit_log_files_interval: u32 = "100",
        Whole(0, MINUTE_MS), "ms", AtStart, Used, "commit log files removed";
    /// Most files removed in one go.
    "deleteFileBatchMax" => delete_file_batch_max: u32 = "10",
        Whole(1, 1_000), "files", AtStart, Used, "commit log files removed";

    // Read limits.

    /// Most bytes of a pull's answer from recent messages; the first message always goes.
    "maxTransferBytesOnMessageInMemory" => max_transfer_bytes_on_message_in_memory: u32 = "262144",
        Whole(1, 8 << 20), "bytes", Live, Used, "messages per pull";
    /// Most messages of a pull's answer from recent messages.
    "maxTransferCountOnMessageInMemory" => max_transfer_count_on_message_in_memory: u32 = "32",
        Whole(1, 1_024), "messages", Live, Used, "messages per pull";
    /// Most bytes of a pull's answer from old messages; the first message always goes.
    "maxTransferBytesOnMessageInDisk" => max_transfer_bytes_on_message_in_disk: u32 = "65536",
        Whole(1, 8 << 20), "bytes", Live, Used, "messages per pull";
    /// Most messages of a pull's answer from old messages.
    "maxTransferCountOnMessageInDisk" => max_transfer_count_on_message_in_disk: u32 = "8",
        Whole(1, 1_024), "messages", Live, Used, "messages per pull";
    /// Messages within so much of the machine's memory from the log's end count as recent.
    "accessMessageInMemoryMaxRatio" => access_message_in_memory_max_ratio: u8 = "40",
        Whole(0, 100), "%", Live, Used, "messages per pull";
    /// Most bytes of queue units that one pull looks through for a match.
    "maxFilterMessageSize" => max_filter_message_size: u32 = "16000",
        Whole(20, 8 << 20), "bytes", Live, Used, "messages per pull";

    // Requests that change the configuration.

    /// Keys that no request may change, separated by `;`.
    "configBlackList" => config_black_list: String = "configBlackList;brokerConfigPath",
        Text(4_096), "", AtStart, Used, "changes refused (25)";
}

/// A queue file holds whole units of this size. store-format 5.
const QUEUE_UNIT_BYTES: u32 = 20;

impl BrokerConfig {
    /// The port of the VIP channel, two below the listening port, where there is one.
    pub fn vip_port(&self) -> Option<u16> {
        self.listen_port.checked_sub(2).filter(|&port| port > 0)
    }

    /// `brokerIP1:listenPort`: where the name servers send clients.
    pub fn broker_address(&self) -> String {
        with_port(&self.broker_ip1, self.listen_port)
    }

    /// `brokerIP2:haListenPort`: where the name servers send slaves.
    pub fn ha_address(&self) -> String {
        with_port(&self.broker_ip2, self.ha_listen_port)
    }
}

fn with_port(host: &str, port: u16) -> String {
    if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

impl Configuration for BrokerConfig {
    const ROWS: &'static [&'static [knobs::Knob]] =
        &[Self::KNOBS, unused::BROKER, unused::SOCKETS, unused::TLS];

    fn set(&mut self, name: &str, text: &str) -> Result<bool, knobs::ValueError> {
        self.set(name, text)
    }

    fn black_list(&self) -> &str {
        &self.config_black_list
    }

    fn before_file(&mut self, around: &Surroundings) {
        if let Some(addresses) = &around.namesrv_addr {
            self.namesrv_addr = addresses.clone();
        }
    }

    /// Fills in what depends on the machine or on another key.
    fn finish(&mut self, around: &Surroundings, notices: &mut Vec<Notice>) {
        if self.broker_name.is_empty() {
            self.broker_name = around.host_name.clone();
        }
        if self.broker_ip1.is_empty() {
            let everywhere = matches!(self.bind_address.as_str(), "0.0.0.0" | "::" | "[::]");
            let address = if everywhere {
                &around.local_address
            } else {
                &self.bind_address
            };
            self.broker_ip1 = address.clone();
        }
        if self.broker_ip2.is_empty() {
            self.broker_ip2 = self.broker_ip1.clone();
        }
        if self.ha_listen_port == 0 {
            self.ha_listen_port = self.listen_port.saturating_add(1);
        }
        if self.broker_id != 0 && self.broker_role != BrokerRole::Slave {
            notices.push(Notice::MasterHasIdZero {
                given: self.broker_id,
            });
            self.broker_id = 0;
        }
        if self.store_path_root_dir.as_os_str().is_empty() {
            self.store_path_root_dir = around.home.join("store");
        }
        if self.store_path_commit_log.as_os_str().is_empty() {
            self.store_path_commit_log = self.store_path_root_dir.join("commitlog");
        }
        self.mapped_file_size_consume_queue = self
            .mapped_file_size_consume_queue
            .next_multiple_of(QUEUE_UNIT_BYTES);
    }
}
