//! The table and the way from a file to a configuration.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::knobs::{Knob, Usage};
use super::load::Configuration;
use super::*;

fn around() -> Surroundings {
    Surroundings {
        host_name: "host-7".to_owned(),
        local_address: "192.0.2.7".to_owned(),
        home: PathBuf::from("/home/op"),
        namesrv_addr: None,
    }
}

fn broker(text: &str) -> Result<Loaded<BrokerConfig>, LoadError> {
    parse("broker.conf", text.as_bytes(), &[], &around())
}

fn message(text: &str) -> String {
    broker(text).expect_err("not a configuration").to_string()
}

fn rows<C: Configuration>() -> Vec<&'static Knob> {
    C::ROWS.iter().flat_map(|part| part.iter()).collect()
}

#[test]
fn each_key_has_one_row_and_its_default_is_in_range() {
    for rows in [rows::<BrokerConfig>(), rows::<NamesrvConfig>()] {
        let mut names = BTreeSet::new();
        for knob in rows {
            assert!(names.insert(knob.name), "{} has two rows", knob.name);
            assert_eq!(knob.range.check(knob.default), Ok(()), "{}", knob.name);
            assert!(knob.about.ends_with('.'), "{}: a sentence", knob.name);
            assert!(
                knob.shows.is_empty() || knob.usage == Usage::Used,
                "{}",
                knob.name
            );
            assert!(
                !knob.shows.is_empty() || knob.usage == Usage::Unused,
                "{}",
                knob.name
            );
            assert!(
                knob.refused
                    .iter()
                    .all(|refused| refused.value != knob.default)
            );
        }
    }
}

/// Every field can hold both ends of its row's range.
#[test]
fn fields_are_as_wide_as_their_ranges() {
    fn check<C: Configuration>() {
        for knob in rows::<C>() {
            let (knobs::Range::Whole(min, max) | knobs::Range::Clamped(min, max)) = knob.range
            else {
                continue;
            };
            for number in [min, max] {
                let set = C::default().set(knob.name, &number.to_string());
                assert!(set.is_ok(), "{}={number}", knob.name);
            }
        }
    }
    check::<BrokerConfig>();
    check::<NamesrvConfig>();
}

#[test]
fn what_is_written_is_read_back() {
    let text = "namesrvAddr=a:1;b:2\ndeleteWhen=03;22\nflushDiskType=ASYNC_FLUSH\n";
    let first = broker(text).expect("a configuration").config;
    let mut written = String::new();
    for (key, value) in first.entries() {
        properties::write_entry(&mut written, key, &value);
    }
    let again = broker(&written).expect("what was written").config;
    assert_eq!(again, first);
}

/// config-reference 1-12: the defaults of RocketMQ, and the one that differs.
#[test]
fn defaults_are_rocketmqs_except_the_flush() {
    let config = broker("").expect("defaults").config;
    assert_eq!(config.broker_cluster_name, "DefaultCluster");
    assert_eq!(
        (config.listen_port, config.ha_listen_port),
        (10_911, 10_912)
    );
    assert_eq!(config.vip_port(), Some(10_909));
    assert_eq!(config.register_name_server_period, 30_000);
    assert_eq!(config.broker_permission, 6);
    assert_eq!(config.region_id, "DefaultRegion");
    assert!(config.auto_create_topic_enable && config.trace_on && !config.trace_topic_enable);
    assert_eq!(
        (config.default_topic_queue_nums, config.revive_queue_num),
        (8, 8)
    );
    assert_eq!(config.mapped_file_size_commit_log, 1 << 30);
    assert_eq!(config.mapped_file_size_consume_queue, 6_000_000);
    assert_eq!(config.max_message_size, 4 << 20);
    assert_eq!(
        (config.max_hash_slot_num, config.max_index_num),
        (5_000_000, 20_000_000)
    );
    assert_eq!(
        (config.max_msgs_num_batch, config.default_query_max_num),
        (64, 32)
    );
    assert_eq!(
        (config.sync_flush_timeout, config.flush_interval_commit_log),
        (5_000, 500)
    );
    assert_eq!(config.wait_time_mills_in_send_queue, 200);
    assert_eq!(config.max_transfer_bytes_on_message_in_memory, 256 << 10);
    assert_eq!(config.max_transfer_count_on_message_in_memory, 32);
    assert_eq!(config.max_transfer_bytes_on_message_in_disk, 64 << 10);
    assert_eq!(config.max_transfer_count_on_message_in_disk, 8);
    assert_eq!(
        (config.file_reserved_time, config.delete_when),
        (72, Hours(vec![4]))
    );
    assert_eq!(config.disk_max_used_space_ratio, 75);
    assert_eq!(config.channel_expired_timeout, 120_000);
    assert_eq!(config.server_channel_max_idle_time_seconds, 120);
    assert_eq!(config.message_delay_level.0.len(), 18);
    assert_eq!(config.flush_disk_type, FlushDiskType::SyncFlush);
    let config: NamesrvConfig = parse("", b"", &[], &around()).expect("defaults").config;
    assert_eq!(
        (config.listen_port, config.scan_not_active_broker_interval),
        (9_876, 5_000)
    );
    assert!(!config.order_message_enable && config.return_order_topic_config_to_broker);
    assert_eq!(
        config.kv_config_path,
        Path::new("/home/op/namesrv/kvConfig.json")
    );
}

#[test]
fn what_depends_on_the_machine_is_filled_in() {
    let config = broker("").expect("defaults").config;
    assert_eq!(
        (config.broker_name.as_str(), config.broker_ip1.as_str()),
        ("host-7", "192.0.2.7")
    );
    assert_eq!(config.broker_address(), "192.0.2.7:10911");
    assert_eq!(config.ha_address(), "192.0.2.7:10912");
    assert_eq!(
        config.store_path_commit_log,
        Path::new("/home/op/store/commitlog")
    );
    let text =
        "bindAddress=::1\nstorePathRootDir=/data\nlistenPort=1\nmappedFileSizeConsumeQueue=21";
    let config = broker(text).expect("a configuration").config;
    assert_eq!(config.broker_address(), "[::1]:1");
    assert_eq!(config.store_path_commit_log, Path::new("/data/commitlog"));
    assert_eq!(
        (config.vip_port(), config.mapped_file_size_consume_queue),
        (None, 40)
    );
}

#[test]
fn flags_beat_the_file_and_the_file_beats_the_environment() {
    let environment = Surroundings {
        namesrv_addr: Some(Addresses(vec!["e:1".to_owned()])),
        ..around()
    };
    let flag = Flag {
        flag: "-n",
        key: "namesrvAddr",
        value: "f:3".to_owned(),
    };
    let load = |text: &str, flags: &[Flag]| {
        let loaded = parse::<BrokerConfig>("b", text.as_bytes(), flags, &environment);
        loaded
            .expect("a configuration")
            .config
            .namesrv_addr
            .0
            .join(";")
    };
    assert_eq!(load("", &[]), "e:1");
    assert_eq!(load("namesrvAddr=c:2", &[]), "c:2");
    assert_eq!(load("namesrvAddr=c:2", &[flag]), "f:3");
}

#[test]
fn a_mistake_is_named_with_file_line_and_cure() {
    assert_eq!(
        message("# mine\nbrokerClusterNme=c"),
        "broker.conf:2: no key is called `brokerClusterNme`; did you mean `brokerClusterName`?"
    );
    assert_eq!(
        message("qqqqqqqq=1"),
        "broker.conf:1: no key is called `qqqqqqqq`; remove the line (`ringmq keys` lists all keys)"
    );
    assert_eq!(
        message("\nlistenPort=70000\nbrokerRole=MASTER"),
        "broker.conf:2: listenPort=70000: expected a whole number from 0 to 65535\n\
         broker.conf:3: brokerRole=MASTER: expected one of ASYNC_MASTER, SYNC_MASTER, SLAVE"
    );
    assert_eq!(
        message("sendMessageThreadPoolNums=many"),
        "broker.conf:1: sendMessageThreadPoolNums=many: expected a whole number \
         from 0 to 2147483647"
    );
    assert!(message("k=\\u1").starts_with("broker.conf: line 1: "));
    let flag = Flag {
        flag: "--broker-port",
        key: "listenPort",
        value: "65536".to_owned(),
    };
    let error = parse::<BrokerConfig>("b", b"", &[flag], &around()).expect_err("no port");
    assert!(
        error
            .to_string()
            .starts_with("--broker-port: listenPort=65536: ")
    );
}

#[test]
fn what_would_be_dangerous_to_pass_over_is_refused() {
    for (text, word) in [
        ("storeType=defaultRocksDB", "RocksDB"),
        ("duplicationEnable=true", "acknowledge"),
        ("enableDLegerCommitLog=true", "DLedger"),
        ("enableControllerMode=true", "controller"),
        ("aclEnable=TRUE", "credentials"),
        ("authenticationEnabled=true", "credentials"),
        ("tls.server.mode=enforcing", "TLS"),
        ("brokerRole=SLAVE", "replicate"),
        ("brokerRole=SYNC_MASTER", "replicate"),
    ] {
        let text = message(text);
        assert!(
            text.contains("is refused: ") && text.contains(word),
            "{text}"
        );
    }
    let text = "storeType=default\nduplicationEnable=false\nenableDLegerCommitLog=false\n\
                aclEnable=false\ntls.server.mode=permissive";
    assert!(broker(text).is_ok());
}

#[test]
fn keys_without_effect_are_named_once() {
    let text = "sendMessageThreadPoolNums=16\nlistenPort=10911\n\
                useReentrantLockWhenPutMessage=true\n\
                listenPort=10912\nbrokerId=3";
    let loaded = broker(text).expect("a configuration");
    assert_eq!(
        (loaded.config.listen_port, loaded.config.broker_id),
        (10_912, 0)
    );
    let notices: Vec<String> = loaded.notices.iter().map(ToString::to_string).collect();
    assert_eq!(
        notices,
        [
            "broker.conf:4: listenPort stood in the file before; this line counts",
            "broker.conf: accepted, but without effect here: sendMessageThreadPoolNums, \
             useReentrantLockWhenPutMessage",
            "brokerId=3 was taken as 0: this broker is a master",
        ]
    );
}

#[test]
fn a_file_is_read_or_its_path_is_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("broker.conf");
    std::fs::write(&path, "brokerName=broker-b\n").expect("a file");
    let loaded = load::<BrokerConfig>(Some(&path), &[], &around()).expect("a configuration");
    assert_eq!(loaded.config.broker_name, "broker-b");
    let missing = dir.path().join("nothing.conf");
    let error = load::<BrokerConfig>(Some(&missing), &[], &around()).expect_err("no file");
    assert!(error.to_string().contains("nothing.conf: cannot be read"));
    std::fs::write(&path, vec![b'#'; properties::TEXT_BYTES_MAX + 1]).expect("a file");
    assert!(load::<BrokerConfig>(Some(&path), &[], &around()).is_err());
}

/// broker-requests, code 25: known keys, black list, all or nothing.
#[test]
fn a_request_changes_live_keys_only() {
    let mut config = broker("").expect("defaults").config;
    let changed = change(
        &mut config,
        b"brokerPermission=4\nnobodyKnows=1\naclEnable=true\n",
    );
    assert_eq!(changed, Ok(vec!["brokerPermission"]));
    assert_eq!(config.broker_permission, 4);
    let before = config.clone();
    assert_eq!(
        change(&mut config, b"brokerPermission=6\nconfigBlackList=x"),
        Err(ChangeError::BlackListed)
    );
    assert_eq!(
        change(&mut config, b"brokerConfigPath=/etc/passwd"),
        Err(ChangeError::BlackListed)
    );
    assert_eq!(
        change(&mut config, b"brokerPermission=6\nlistenPort=1"),
        Err(ChangeError::AtStart { key: "listenPort" })
    );
    assert!(matches!(
        change(&mut config, b"traceOn=false\nbrokerPermission=9"),
        Err(ChangeError::Problem(_))
    ));
    assert!(matches!(
        change(&mut config, b"k=\\u1"),
        Err(ChangeError::Properties(_))
    ));
    assert_eq!(config, before);
    let mut config: NamesrvConfig = parse("", b"", &[], &around()).expect("defaults").config;
    assert_eq!(
        change(&mut config, b"kvConfigPath=/tmp/x"),
        Err(ChangeError::BlackListed)
    );
    assert_eq!(
        change(&mut config, b"enableTopicList=false"),
        Ok(vec!["enableTopicList"])
    );
    assert!(!config.enable_topic_list);
}

/// config-reference 15, and the answer of 319 of a Java name server.
#[test]
fn the_keys_of_real_files_are_known() {
    let broker_keys = "brokerClusterName brokerName brokerId brokerIP1 namesrvAddr listenPort \
        storePathRootDir storePathCommitLog brokerRole flushDiskType fileReservedTime deleteWhen \
        diskMaxUsedSpaceRatio mappedFileSizeCommitLog maxMessageSize autoCreateTopicEnable \
        autoCreateSubscriptionGroup defaultTopicQueueNums enablePropertyFilter traceTopicEnable \
        slaveReadEnable waitTimeMillsInSendQueue sendMessageThreadPoolNums \
        pullMessageThreadPoolNums osPageCacheBusyTimeOutMills transientStorePoolEnable \
        warmMapedFileEnable messageDelayLevel transactionTimeOut transactionCheckMax \
        transactionCheckInterval timerMaxDelaySec inSyncReplicas aclEnable enableLmq \
        metricsExporterType";
    for key in broker_keys.split_whitespace() {
        assert!(knobs::find(BrokerConfig::ROWS, key).is_some(), "{key}");
    }
    let namesrv = "bindAddress=127.0.0.3\nclientRequestThreadPoolNums=8\n\
        clientRequestThreadPoolQueueCapacity=50000\nclusterTest=false\n\
        configBlackList=configBlackList;configStorePath;kvConfigPath\n\
        configStorePath=namesrv.conf\ndefaultThreadPoolNums=16\n\
        defaultThreadPoolQueueCapacity=10000\ndeleteTopicWithBrokerRegistration=false\n\
        enableAllTopicList=true\nenableControllerInNamesrv=false\n\
        enableShutdownGracefully=false\nenableTopicList=true\nkvConfigPath=home/kvConfig.json\n\
        listenPort=19876\nneedWaitForService=false\nnotifyMinBrokerIdChanged=false\n\
        orderMessageEnable=true\nproductEnvName=center\nreturnOrderTopicConfigToBroker=true\n\
        rocketmqHome=home\nscanNotActiveBrokerInterval=5000\nserverAsyncSemaphoreValue=64\n\
        serverCallbackExecutorThreads=0\nserverChannelMaxIdleTimeSeconds=120\n\
        serverNettyWorkerGroupEnable=true\nserverOnewaySemaphoreValue=256\n\
        serverPooledByteBufAllocatorEnable=true\nserverSelectorThreads=3\n\
        serverSocketBacklog=1024\nserverSocketRcvBufSize=0\nserverSocketSndBufSize=0\n\
        serverWorkerThreads=8\nshutdownWaitTimeSeconds=30\nsupportActingMaster=false\n\
        unRegisterBrokerQueueCapacity=3000\nuseEpollNativeSelector=false\n\
        waitSecondsForService=45\nwriteBufferHighWaterMark=0\nwriteBufferLowWaterMark=0\n";
    let loaded = parse::<NamesrvConfig>("n", namesrv.as_bytes(), &[], &around());
    let config = loaded.expect("Java's own file").config;
    assert_eq!(
        (config.listen_port, config.order_message_enable),
        (19_876, true)
    );
    assert_eq!(config.kv_config_path, Path::new("home/kvConfig.json"));
}

#[test]
fn the_list_of_keys_has_each_row() {
    let table = key_table::<BrokerConfig>();
    for knob in rows::<BrokerConfig>() {
        let line = format!("{}={}", knob.name, knob.default);
        assert!(table.lines().any(|row| row == line), "{line}");
    }
    assert!(table.contains("    a whole number from 0 to 65535 (port); a change takes effect at"));
    assert!(table.contains("    SLAVE is refused: this version does not replicate"));
}
