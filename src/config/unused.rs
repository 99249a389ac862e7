//! Keys that a RocketMQ file may hold and that ringmq has no use for. They are checked like the
//! others and named in one warning, so that an operator's file works unchanged and nobody believes
//! that they did something. A value that would be dangerous to pass over is refused.
//! config-reference 2-14.

use super::knobs::{Change, Knob, Range, Refused, Usage};

use Range::{Flag, Fraction, OneOf, Text, Whole};

const fn row(name: &'static str, range: Range, default: &'static str, about: &'static str) -> Knob {
    Knob {
        name,
        range,
        unit: "",
        default,
        change: Change::AtStart,
        usage: Usage::Unused,
        refused: &[],
        about,
        shows: "",
    }
}

const fn refusing(knob: Knob, refused: &'static [Refused]) -> Knob {
    Knob { refused, ..knob }
}

const INT: Range = Whole(i32::MIN as i64, i32::MAX as i64);
const LONG: Range = Whole(i64::MIN, i64::MAX);
const COUNT: Range = Whole(0, i32::MAX as i64);
const WORDS: Range = Text(4_096);

const CORES: &str = "ringmq has cores instead of thread pools: see --cores.";
const WAITING: &str = "What may wait is bounded by sendThreadPoolQueueCapacity and \
                       pullThreadPoolQueueCapacity.";
const NOT_YET: &str = "Reserved: this version does not read it.";
const NO_EXTENSION: &str = "Queue extension files are not written.";
const PREPARED: &str = "The next file is always prepared ahead.";
const COLD: &str = "Cold readers share a fixed pool of buffers.";
const JAVA: &str = "It tunes the Java virtual machine's or Netty's memory and locks.";
const REGISTRATION: &str = "Registrations are complete, uncompressed and sent to namesrvAddr.";
const WRITES: &str = "Writes go to the ring in batches that the device sets the pace of.";
const REPLICATION: &str = "This version does not replicate.";
const POP: &str = "Reserved for pop consumption.";
const TIMER: &str = "Reserved for the timer wheel's inner workings.";

const NO_DLEDGER: &[Refused] = &[Refused {
    value: "true",
    why: "a DLedger log has another format and elects its master; use a plain commit log",
}];
const NO_DUPLICATION: &[Refused] = &[Refused {
    value: "true",
    why: "it lets the log's confirmed end be set from outside, which would acknowledge what may be \
          lost; remove the line",
}];
const NO_ROCKSDB: &[Refused] = &[Refused {
    value: "defaultRocksDB",
    why: "queues and settings are kept in files, not in RocksDB; use storeType=default and a store \
          written with it",
}];
const NO_ACL: &[Refused] = &[Refused {
    value: "true",
    why: "this version checks no credentials, so everybody would be let in; remove the line and \
          guard the port another way",
}];
const NO_CONTROLLER: &[Refused] = &[Refused {
    value: "true",
    why: "no controller elects this broker's master, so two of them could take sends; remove the \
          line",
}];
const NO_TLS: &[Refused] = &[Refused {
    value: "enforcing",
    why: "this version does not speak TLS, so connections would be plain; use permissive behind a \
          TLS proxy",
}];
const NO_CLUSTER_TEST: &[Refused] = &[Refused {
    value: "true",
    why: "unknown topics are not looked up in another environment; remove the line",
}];

/// Keys of the broker alone.
#[rustfmt::skip]
pub(super) const BROKER: &[Knob] = &[
    // Identity and registration.
    row("rocketmqHome", WORDS, "", "Nothing is read from a home directory of RocketMQ."),
    row("fetchNamesrvAddrByAddressServer", Flag, "false", REGISTRATION),
    row("fetchNameSrvAddrByDnsLookup", Flag, "false", REGISTRATION),
    row("forceRegister", Flag, "true", REGISTRATION),
    row("compressedRegister", Flag, "false", REGISTRATION),
    row("enableSplitRegistration", Flag, "false", REGISTRATION),
    row("splitRegistrationSize", COUNT, "800", REGISTRATION),
    row("enableSingleTopicRegister", Flag, "false", REGISTRATION),
    row("brokerHeartbeatInterval", COUNT, "1000", REPLICATION),
    row("brokerNotActiveTimeoutMillis", LONG, "10000", REPLICATION),
    // Topics, groups, features.
    row("enableCreateSysGroup", Flag, "true", NOT_YET),
    row("enableCalcFilterBitMap", Flag, "false", "Filters are evaluated when a message is pulled."),
    row("expectConsumerNumUseFilter", COUNT, "32", "It sizes the filter bit map that is not kept."),
    row("maxErrorRateOfBloomFilter", COUNT, "20", "It sizes the filter bit map that is not kept."),
    row("filterDataCleanTimeSpan", LONG, "86400000", NOT_YET),
    row("litePullMessageEnable", Flag, "true", NOT_YET),
    row("realTimeNotifyConsumerChange", Flag, "true", NOT_YET),
    row("consumerOffsetUpdateVersionStep", LONG, "500", NOT_YET),
    row("delayOffsetUpdateVersionStep", LONG, "200", NOT_YET),
    row("useServerSideResetOffset", Flag, "true", NOT_YET),
    row("enableBroadcastOffsetStore", Flag, "true", NOT_YET),
    row("broadcastOffsetExpireSecond", LONG, "120", NOT_YET),
    row("broadcastOffsetExpireMaxSecond", LONG, "300", NOT_YET),
    row("storeReplyMessageEnable", Flag, "true", NOT_YET),
    row("slaveReadEnable", Flag, "false", REPLICATION),
    row("disableConsumeIfConsumerReadSlowly", Flag, "false", NOT_YET),
    row("consumerFallbehindThreshold", LONG, "17179869184", NOT_YET),
    row("recallMessageEnable", Flag, "false", NOT_YET),
    row("allowRecallWhenBrokerNotWriteable", Flag, "true", NOT_YET),
    row("enableMixedMessageType", Flag, "false", NOT_YET),
    row("validateSystemTopicWhenUpdateTopic", Flag, "true", NOT_YET),
    row("lockInStrictMode", Flag, "false", "A group's locks live on one core and are exact."),
    row("subscriptionExpiredTimeout", LONG, "600000", NOT_YET),
    refusing(
        row("aclEnable", Flag, "false", "Credentials are not checked."),
        NO_ACL,
    ),
    refusing(
        row("authenticationEnabled", Flag, "false", "Credentials are not checked."),
        NO_ACL,
    ),
    refusing(
        row("authorizationEnabled", Flag, "false", "Rights are not checked."),
        NO_ACL,
    ),
    row("messageStorePlugIn", WORDS, "", "There are no store plug-ins."),
    row("configManagerVersion", WORDS, "v1", "Topics, groups and offsets are JSON files."),
    row("serverLoadBalancerEnable", Flag, "true", NOT_YET),
    row("defaultMessageRequestMode", OneOf(&["PULL", "POP"]), "PULL", NOT_YET),
    row("defaultPopShareQueueNum", INT, "-1", NOT_YET),
    // Pop.
    row("reviveInterval", COUNT, "1000", POP),
    row("reviveMaxSlow", COUNT, "3", POP),
    row("reviveScanTime", COUNT, "10000", POP),
    row("enablePopBufferMerge", Flag, "false", POP),
    row("enablePopBatchAck", Flag, "false", POP),
    row("popCkStayBufferTime", COUNT, "10000", POP),
    row("popCkStayBufferTimeOut", COUNT, "3000", POP),
    row("popCkMaxBufferSize", COUNT, "200000", POP),
    row("popCkOffsetMaxQueueSize", COUNT, "20000", POP),
    row("popPollingSize", COUNT, "1024", POP),
    row("maxPopPollingSize", COUNT, "100000", POP),
    row("popPollingMapSize", COUNT, "100000", POP),
    row("popPollingMapExpireTimeSeconds", COUNT, "600", POP),
    row("popFromRetryProbability", Whole(0, 100), "20", POP),
    row("popLongPollingForceNotifyInterval", LONG, "800", POP),
    row("enableRetryTopicV2", Flag, "false", POP),
    row("retrieveMessageFromPopRetryTopicV1", Flag, "true", POP),
    row("initPopOffsetByCheckMsgInMem", Flag, "true", POP),
    row("popResponseReturnActualRetryTopic", Flag, "false", POP),
    row("enableSkipLongAwaitingAck", Flag, "false", POP),
    row("reviveAckWaitMs", LONG, "180000", POP),
    row("skipWhenCKRePutReachMaxTimes", Flag, "false", POP),
    row("appendAckAsync", Flag, "false", POP),
    row("appendCkAsync", Flag, "false", POP),
    row("enablePopMessageThreshold", Flag, "false", POP),
    row("popInflightMessageThreshold", LONG, "10000", POP),
    row("enableNotifyAfterPopOrderLockRelease", Flag, "true", POP),
    row("enablePopLog", Flag, "false", POP),
    row("popConsumerKVServiceInit", Flag, "false", POP),
    row("popConsumerKVServiceEnable", Flag, "false", POP),
    row("popReviveMaxAttemptTimes", COUNT, "16", POP),
    row("popReviveMaxReturnSizePerRead", COUNT, "16384", POP),
    // Thread pools and their queues.
    row("sendMessageThreadPoolNums", COUNT, "4", CORES),
    row("pullMessageThreadPoolNums", COUNT, "20", CORES),
    row("queryMessageThreadPoolNums", COUNT, "10", CORES),
    row("adminBrokerThreadPoolNums", COUNT, "16", CORES),
    row("clientManageThreadPoolNums", COUNT, "32", CORES),
    row("consumerManageThreadPoolNums", COUNT, "32", CORES),
    row("heartbeatThreadPoolNums", COUNT, "2", CORES),
    row("endTransactionThreadPoolNums", COUNT, "12", CORES),
    row("ackMessageThreadPoolNums", COUNT, "16", CORES),
    row("putMessageFutureThreadPoolNums", COUNT, "4", CORES),
    row("processReplyMessageThreadPoolNums", COUNT, "20", CORES),
    row("loadBalanceProcessorThreadPoolNums", COUNT, "32", CORES),
    row("recoverThreadPoolNums", COUNT, "32", CORES),
    row("litePullThreadPoolQueueCapacity", COUNT, "100000", WAITING),
    row("ackThreadPoolQueueCapacity", COUNT, "100000", WAITING),
    row("replyThreadPoolQueueCapacity", COUNT, "10000", WAITING),
    row("queryThreadPoolQueueCapacity", COUNT, "20000", WAITING),
    row("heartbeatThreadPoolQueueCapacity", COUNT, "50000", WAITING),
    row("clientManagerThreadPoolQueueCapacity", COUNT, "1000000", WAITING),
    row("consumerManagerThreadPoolQueueCapacity", COUNT, "1000000", WAITING),
    row("endTransactionPoolQueueCapacity", COUNT, "100000", WAITING),
    row("adminBrokerThreadPoolQueueCapacity", COUNT, "10000", WAITING),
    row("loadBalanceThreadPoolQueueCapacity", COUNT, "100000", WAITING),
    row("brokerFastFailureEnable", Flag, "true", "A send that waits too long is always refused."),
    row("waitTimeMillsInPullQueue", LONG, "5000", WAITING),
    row("waitTimeMillsInLitePullQueue", LONG, "5000", WAITING),
    row("waitTimeMillsInHeartbeatQueue", LONG, "31000", WAITING),
    row("waitTimeMillsInTransactionQueue", LONG, "3000", WAITING),
    row("waitTimeMillsInAckQueue", LONG, "3000", WAITING),
    row("waitTimeMillsInAdminBrokerQueue", LONG, "5000", WAITING),
    row("transferMsgByHeap", Flag, "true", JAVA),
    row("asyncSendEnable", Flag, "true", "Sends never wait for one another's answer."),
    // Store.
    row("readOnlyCommitLogStorePaths", WORDS, "", "The commit log is in one directory."),
    row("storePathEpochFile", WORDS, "", REPLICATION),
    row("storePathBrokerIdentity", WORDS, "", REPLICATION),
    row("mapperFileSizeBatchConsumeQueue", COUNT, "13800000", NOT_YET),
    row("enableConsumeQueueExt", Flag, "false", NO_EXTENSION),
    row("mappedFileSizeConsumeQueueExt", COUNT, "50331648", NO_EXTENSION),
    row("bitMapLengthConsumeQueueExt", COUNT, "64", NO_EXTENSION),
    refusing(
        row("storeType", OneOf(&["default"]), "default", "The one kind of store."),
        NO_ROCKSDB,
    ),
    row("recoverConcurrently", Flag, "false", "Recovery reads as the device's depth allows."),
    row("enableLogConsumeQueueRepeatedlyBuildWhenRecover", Flag, "false", JAVA),
    row("enableAcceleratedRecovery", Flag, "false", JAVA),
    row("messageIndexSafe", Flag, "false", "Index files are rebuilt from whole entries."),
    row("autoMessageVersionOnTopicLen", Flag, "true", NOT_YET),
    row("enabledAppendPropCRC", Flag, "false", NOT_YET),
    row("forceVerifyPropCRC", Flag, "false", NOT_YET),
    refusing(
        row("duplicationEnable", Flag, "false", "The log's end is the log's own."),
        NO_DUPLICATION,
    ),
    // Flush and write.
    row("flushCommitLogTimed", Flag, "true", WRITES),
    row("flushCommitLogLeastPages", COUNT, "4", WRITES),
    row("flushCommitLogThoroughInterval", COUNT, "10000", WRITES),
    row("commitIntervalCommitLog", COUNT, "200", WRITES),
    row("commitCommitLogLeastPages", COUNT, "4", WRITES),
    row("commitCommitLogThoroughInterval", COUNT, "200", WRITES),
    row("transientStorePoolEnable", Flag, "false", WRITES),
    row("transientStorePoolSize", COUNT, "5", WRITES),
    row("fastFailIfNoBufferInStorePool", Flag, "false", WRITES),
    row("writeWithoutMmap", Flag, "false", "Nothing is ever written through a mapping."),
    row("flushConsumeQueueLeastPages", COUNT, "2", WRITES),
    row("flushConsumeQueueThoroughInterval", COUNT, "60000", WRITES),
    row("warmMapedFileEnable", Flag, "false", PREPARED),
    row("flushLeastPagesWhenWarmMapedFile", COUNT, "4096", PREPARED),
    row("wakeFlushWhenPutMessage", Flag, "false", WRITES),
    row("wakeCommitWhenPutMessage", Flag, "true", WRITES),
    row("useReentrantLockWhenPutMessage", Flag, "true", JAVA),
    row("topicQueueLockNum", COUNT, "32", JAVA),
    row("useABSLock", Flag, "false", JAVA),
    row("maxAsyncPutMessageRequests", COUNT, "5000", JAVA),
    row("enableRunningFlagsInFlush", Flag, "false", "A failed flush always stops the sends."),
    row("readUnCommitted", Flag, "false", "Consumers see what is durable; see flushDiskType."),
    row("enableBuildConsumeQueueConcurrently", Flag, "false", JAVA),
    row("recheckReputOffsetFromCq", Flag, "false", NOT_YET),
    // Retention.
    row("deleteConsumeQueueFilesInterval", COUNT, "100", NOT_YET),
    row("destroyMapedFileIntervalForcibly", COUNT, "120000", "A file in use is never destroyed."),
    row("redeleteHangedFileInterval", COUNT, "120000", "A file in use is never destroyed."),
    row("replicasPerDiskPartition", COUNT, "1", NOT_YET),
    row("logicalDiskSpaceCleanForciblyThreshold", Fraction(0.0, 1.0), "0.8", NOT_YET),
    // Read limits.
    row("travelCqFileNumWhenGetMessage", COUNT, "1", NOT_YET),
    row("offsetCheckInSlave", Flag, "false", REPLICATION),
    row("pullBatchMaxMessageCount", COUNT, "160", "RocketMQ does not read it either."),
    row("coldDataFlowControlEnable", Flag, "false", COLD),
    row("coldDataScanEnable", Flag, "false", COLD),
    row("accessMessageInMemoryHotRatio", COUNT, "26", COLD),
    row("dataReadAheadEnable", Flag, "true", COLD),
    row("cgColdReadThreshold", LONG, "3145728", COLD),
    row("globalColdReadThreshold", LONG, "104857600", COLD),
    // Replication.
    row("haMasterAddress", WORDS, "", REPLICATION),
    row("haSendHeartbeatInterval", COUNT, "5000", REPLICATION),
    row("haHousekeepingInterval", COUNT, "20000", REPLICATION),
    row("haTransferBatchSize", COUNT, "32768", REPLICATION),
    row("haMaxGapNotInSync", COUNT, "268435456", REPLICATION),
    row("haSlaveFallbehindMax", COUNT, "268435456", "The 4.x name of haMaxGapNotInSync."),
    row("slaveTimeout", COUNT, "3000", REPLICATION),
    row("totalReplicas", COUNT, "1", REPLICATION),
    row("inSyncReplicas", COUNT, "1", REPLICATION),
    row("minInSyncReplicas", COUNT, "1", REPLICATION),
    row("enableAutoInSyncReplicas", Flag, "false", REPLICATION),
    row("allAckInSyncStateSet", Flag, "false", REPLICATION),
    row("haFlowControlEnable", Flag, "false", REPLICATION),
    row("maxHaTransferByteInSecond", LONG, "104857600", REPLICATION),
    row("haMaxTimeSlaveNotCatchup", LONG, "15000", REPLICATION),
    row("syncMasterFlushOffsetWhenStartup", Flag, "false", REPLICATION),
    row("syncFromLastFile", Flag, "false", REPLICATION),
    row("asyncLearner", Flag, "false", REPLICATION),
    row("enableSlaveActingMaster", Flag, "false", REPLICATION),
    row("enableRemoteEscape", Flag, "false", REPLICATION),
    refusing(
        row("enableControllerMode", Flag, "false", REPLICATION),
        NO_CONTROLLER,
    ),
    row("controllerAddr", WORDS, "", REPLICATION),
    refusing(
        row("enableDLegerCommitLog", Flag, "false", REPLICATION),
        NO_DLEDGER,
    ),
    row("dLegerGroup", WORDS, "", REPLICATION),
    row("dLegerPeers", WORDS, "", REPLICATION),
    row("dLegerSelfId", WORDS, "", REPLICATION),
    // Delay, timer, light queues, compaction.
    row("flushDelayOffsetInterval", LONG, "10000", NOT_YET),
    row("enableScheduleAsyncDeliver", Flag, "false", NOT_YET),
    row("scheduleAsyncDeliverMaxPendingLimit", COUNT, "2000", NOT_YET),
    row("scheduleAsyncDeliverMaxResendNum2Blocked", COUNT, "3", NOT_YET),
    row("timerPrecisionMs", Whole(1, 60_000), "1000", TIMER),
    row("timerRollWindowSlot", COUNT, "172800", TIMER),
    row("timerFlushIntervalMs", COUNT, "1000", TIMER),
    row("mappedFileSizeTimerLog", COUNT, "104857600", TIMER),
    row("timerCongestNumEachSlot", COUNT, "2147483647", TIMER),
    row("timerStopEnqueue", Flag, "false", TIMER),
    row("timerStopDequeue", Flag, "false", TIMER),
    row("timerSkipUnknownError", Flag, "false", TIMER),
    row("timerEnableRetryUntilSuccess", Flag, "false", TIMER),
    row("timerWarmEnable", Flag, "false", TIMER),
    row("timerEnableDisruptor", Flag, "false", JAVA),
    row("timerGetMessageThreadNum", COUNT, "3", CORES),
    row("timerPutMessageThreadNum", COUNT, "3", CORES),
    row("timerEnableCheckMetrics", Flag, "true", TIMER),
    row("timerCheckMetricsWhen", WORDS, "05", TIMER),
    row("disappearTimeAfterStart", LONG, "-1", NOT_YET),
    row("enableLmq", Flag, "false", NOT_YET),
    row("enableMultiDispatch", Flag, "false", NOT_YET),
    row("maxLmqConsumeQueueNum", COUNT, "20000", NOT_YET),
    row("enableCompaction", Flag, "true", "Topics are not compacted."),
    row("compactionMappedFileSize", COUNT, "104857600", "Topics are not compacted."),
    row("compactionCqMappedFileSize", COUNT, "10485760", "Topics are not compacted."),
    row("compactionScheduleInternal", COUNT, "900000", "Topics are not compacted."),
    row("maxOffsetMapSize", COUNT, "104857600", "Topics are not compacted."),
    row("compactionThreadNum", COUNT, "6", "Topics are not compacted."),
    // Metrics.
    row("metricsExporterType", OneOf(&["DISABLE", "OTLP_GRPC", "PROM", "LOG"]), "DISABLE", NOT_YET),
    row("metricsPromExporterPort", Whole(1, 65_535), "5557", NOT_YET),
    row("metricsPromExporterHost", WORDS, "", NOT_YET),
    row("metricsGrpcExporterTarget", WORDS, "", "Metrics are not pushed."),
    row("metricsGrpcExporterHeader", WORDS, "", "Metrics are not pushed."),
    row("metricGrpcExporterIntervalInMills", LONG, "60000", "Metrics are not pushed."),
    row("metricsLabel", WORDS, "", NOT_YET),
    row("metricsInDelta", Flag, "false", "Metrics are not pushed."),
    row("enableDetailStat", Flag, "true", NOT_YET),
    row("accountStatsEnable", Flag, "true", NOT_YET),
];

/// Keys of the name server alone.
#[rustfmt::skip]
pub(super) const NAMESRV: &[Knob] = &[
    row("rocketmqHome", WORDS, "", "Nothing is read from a home directory of RocketMQ."),
    row("unRegisterBrokerQueueCapacity", COUNT, "3000", "A broker is unregistered at once."),
    row("clientRequestThreadPoolNums", COUNT, "8", CORES),
    row("clientRequestThreadPoolQueueCapacity", COUNT, "50000", CORES),
    row("defaultThreadPoolNums", COUNT, "16", CORES),
    row("defaultThreadPoolQueueCapacity", COUNT, "10000", CORES),
    refusing(
        row("enableControllerInNamesrv", Flag, "false", REPLICATION),
        NO_CONTROLLER,
    ),
    refusing(
        row("clusterTest", Flag, "false", "Topics are looked up here only."),
        NO_CLUSTER_TEST,
    ),
    row("productEnvName", WORDS, "center", "Topics are looked up here only."),
];

/// Netty's keys, the same for both.
#[rustfmt::skip]
pub(super) const SOCKETS: &[Knob] = &[
    row("serverWorkerThreads", COUNT, "8", CORES),
    row("serverSelectorThreads", COUNT, "3", CORES),
    row("serverCallbackExecutorThreads", COUNT, "0", CORES),
    row("serverOnewaySemaphoreValue", COUNT, "256", JAVA),
    row("serverAsyncSemaphoreValue", COUNT, "64", JAVA),
    row("serverNettyWorkerGroupEnable", Flag, "true", JAVA),
    row("writeBufferHighWaterMark", COUNT, "0", JAVA),
    row("writeBufferLowWaterMark", COUNT, "0", JAVA),
    row("serverPooledByteBufAllocatorEnable", Flag, "true", JAVA),
    row("useEpollNativeSelector", Flag, "false", "Sockets are the ring's."),
    row("enableShutdownGracefully", Flag, "false", "Every stop is graceful."),
    row("shutdownWaitTimeSeconds", COUNT, "30", "Every stop is graceful."),
    row("connectTimeoutMillis", COUNT, "3000", NOT_YET),
    row("clientChannelMaxIdleTimeSeconds", COUNT, "120", NOT_YET),
    row("useTLS", Flag, "false", "This version does not speak TLS."),
];

const TLS_ABOUT: &str = "This version does not speak TLS.";

/// Keys of `tls.properties`, the same for both.
#[rustfmt::skip]
pub(super) const TLS: &[Knob] = &[
    refusing(
        row(
            "tls.server.mode",
            OneOf(&["disabled", "permissive", "enforcing"]),
            "permissive",
            TLS_ABOUT,
        ),
        NO_TLS,
    ),
    row("tls.enable", Flag, "false", TLS_ABOUT),
    row("tls.config.file", WORDS, "/etc/rocketmq/tls.properties", TLS_ABOUT),
    row("tls.test.mode.enable", Flag, "true", TLS_ABOUT),
    row("tls.server.certPath", WORDS, "", TLS_ABOUT),
    row("tls.server.keyPath", WORDS, "", TLS_ABOUT),
    row("tls.server.keyPassword", WORDS, "", TLS_ABOUT),
    row("tls.server.trustCertPath", WORDS, "", TLS_ABOUT),
    row("tls.server.need.client.auth", OneOf(&["none", "optional", "require"]), "none", TLS_ABOUT),
    row("tls.server.authClient", Flag, "false", TLS_ABOUT),
    row("tls.client.certPath", WORDS, "", TLS_ABOUT),
    row("tls.client.keyPath", WORDS, "", TLS_ABOUT),
    row("tls.client.keyPassword", WORDS, "", TLS_ABOUT),
    row("tls.client.trustCertPath", WORDS, "", TLS_ABOUT),
    row("tls.client.authServer", Flag, "false", TLS_ABOUT),
];
