//! From configuration to what each part wants to know.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::boot::StoreSettings;
use crate::broker::Transfer;
use crate::broker::control::{ControlConfig, Identity, SegmentSettings};
use crate::broker::shard::ShardConfig;
use crate::broker::topic_table::TopicSettings;
use crate::config::{BrokerConfig, FlushDiskType};
use crate::ids::{LogOffset, Millis};
use crate::store::FlushMode;
use crate::store::dispatch::DispatchConfig;
use crate::store::index::IndexConfig;
use crate::store::index_file::Shape;
use crate::store::log::{LogConfig, LogCounters};
use crate::store::queues;

/// Drawn once per process.
#[derive(Clone, Copy, Debug)]
pub struct Seeds {
    pub hash: u64,
    pub random: u64,
}

impl Seeds {
    /// From the kernel.
    pub fn draw() -> Seeds {
        let mut bytes = [0; 16];
        let flags = rustix::rand::GetRandomFlags::empty();
        // The kernel always has so few bytes ready; the clock is a poor but possible substitute.
        let drawn = rustix::rand::getrandom(&mut bytes, flags);
        let clock = wall_ms().wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let half = |at: usize| u64::from_ne_bytes(*bytes[at..].first_chunk().expect("16 bytes"));
        match drawn {
            Ok(16) => Seeds {
                hash: half(0),
                random: half(8),
            },
            _ => Seeds {
                hash: clock,
                random: clock.rotate_left(32),
            },
        }
    }
}

pub fn wall_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}

pub fn mode(config: &BrokerConfig) -> FlushMode {
    match config.flush_disk_type {
        FlushDiskType::SyncFlush => FlushMode::Sync,
        FlushDiskType::AsyncFlush => FlushMode::Async,
    }
}

pub fn store(config: &BrokerConfig, seeds: Seeds) -> StoreSettings {
    StoreSettings {
        root: config.store_path_root_dir.clone(),
        log_dir: config.store_path_commit_log.clone(),
        segment_bytes: u64::from(config.mapped_file_size_commit_log),
        queue_file_bytes: queue_file_bytes(config),
        mode: mode(config),
        topics: topics(config),
        auto_create_group: config.auto_create_subscription_group,
        index: index(config),
        hash_seed: seeds.hash,
    }
}

fn queue_file_bytes(config: &BrokerConfig) -> u64 {
    queues::file_bytes(u64::from(config.mapped_file_size_consume_queue))
}

fn topics(config: &BrokerConfig) -> TopicSettings {
    let trace = config
        .trace_topic_enable
        .then(|| config.msg_trace_topic_name.clone());
    TopicSettings {
        cluster: config.broker_cluster_name.clone(),
        broker: config.broker_name.clone(),
        auto_create: config.auto_create_topic_enable,
        default_queues: config.default_topic_queue_nums,
        cluster_topic: config.cluster_topic_enable,
        broker_topic: config.broker_topic_enable,
        trace_topic: trace,
        revive_queues: config.revive_queue_num,
        timer: config.timer_wheel_enable,
        delay_levels: 18,
    }
}

pub fn index(config: &BrokerConfig) -> IndexConfig {
    IndexConfig {
        root: config.store_path_root_dir.clone(),
        shape: Shape {
            slots: config.max_hash_slot_num,
            entries: config.max_index_num,
        },
        segment_bytes: u64::from(config.mapped_file_size_commit_log),
        enabled: config.message_index_enable,
        sync_interval_ms: 5000,
        utc_offset_ms: utc_offset_ms(),
    }
}

/// How far local time is ahead of UTC now.
fn utc_offset_ms() -> i64 {
    let seconds = (wall_ms() / 1000) as libc::time_t;
    // SAFETY: both pointers are to values on this stack; the function writes all fields or fails.
    let offset = unsafe {
        let mut local: libc::tm = std::mem::zeroed();
        if libc::localtime_r(&seconds, &mut local).is_null() {
            0
        } else {
            local.tm_gmtoff
        }
    };
    offset * 1000
}

pub fn log(config: &BrokerConfig) -> LogConfig {
    LogConfig {
        segment_bytes: u64::from(config.mapped_file_size_commit_log),
        mode: mode(config),
        flush_timeout_ms: u64::from(config.sync_flush_timeout),
        flush_interval_ms: u64::from(config.flush_interval_commit_log),
        park_ms: u64::from(config.wait_time_mills_in_send_queue),
    }
}

pub fn dispatch(
    config: &BrokerConfig,
    shards: usize,
    from: LogOffset,
    seeds: Seeds,
) -> DispatchConfig {
    DispatchConfig {
        dir: config.store_path_root_dir.join("consumequeue"),
        file_bytes: queue_file_bytes(config),
        segment_bytes: u64::from(config.mapped_file_size_commit_log),
        shards,
        sync_interval_ms: 5 * u64::from(config.flush_interval_consume_queue),
        from,
        hash_seed: seeds.hash,
    }
}

pub fn shard(
    config: &BrokerConfig,
    (number, shards): (usize, usize),
    store_host: SocketAddr,
    seeds: Seeds,
) -> ShardConfig {
    ShardConfig {
        cluster: config.broker_cluster_name.clone(),
        region: config.region_id.clone(),
        trace_on: config.trace_on,
        broker_permission: u32::from(config.broker_permission),
        accept_sends_from: Millis(config.start_accept_send_request_time_stamp),
        body_bytes_max: config.max_message_size as usize,
        send_wait_ms: u64::from(config.wait_time_mills_in_send_queue),
        auto_create_groups: config.auto_create_subscription_group,
        long_polling: config.long_polling_enable,
        short_polling_ms: u64::from(config.short_polling_time_mills),
        hot: Transfer {
            bytes: config.max_transfer_bytes_on_message_in_memory,
            messages: config.max_transfer_count_on_message_in_memory,
        },
        cold: Transfer {
            bytes: config.max_transfer_bytes_on_message_in_disk,
            messages: config.max_transfer_count_on_message_in_disk,
        },
        filter_bytes_max: config.max_filter_message_size,
        ram_bytes: ram_bytes(),
        memory_percent: u64::from(config.access_message_in_memory_max_ratio),
        unique_query_max: config.default_query_max_num,
        query_max: config.max_msgs_num_batch,
        queue_dir: config.store_path_root_dir.join("consumequeue"),
        queue_file_bytes: queue_file_bytes(config),
        hash_seed: seeds.hash,
        random_seed: seeds.random.wrapping_add(number as u64),
        process_id: std::process::id() as u16,
        unique_constant: (seeds.random >> 32) as u32 ^ number as u32,
        ..ShardConfig::new(number, shards, store_host)
    }
}

fn ram_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram * u64::from(info.mem_unit)
}

pub fn control(config: &BrokerConfig, shards: usize, log: Arc<LogCounters>) -> ControlConfig {
    ControlConfig {
        root: config.store_path_root_dir.clone(),
        shards,
        offsets_interval_ms: u64::from(config.flush_consumer_offset_interval),
        member_expires_ms: u64::from(config.channel_expired_timeout),
        notify_changes: config.notify_consumer_ids_changed_enable,
        settings: config.entries(),
        boot_ms: wall_ms(),
        log,
    }
}

pub fn segments(config: &BrokerConfig) -> SegmentSettings {
    SegmentSettings {
        segment_bytes: u64::from(config.mapped_file_size_commit_log),
        store: config.store_path_root_dir.clone(),
        warn_percent: u64::from(config.disk_max_used_space_ratio),
        full_percent: u64::from(config.disk_space_warning_level_ratio),
        space_interval_ms: u64::from(config.clean_resource_interval),
    }
}

pub fn identity(config: &BrokerConfig) -> Identity {
    Identity {
        cluster: config.broker_cluster_name.clone(),
        broker: config.broker_name.clone(),
        broker_id: config.broker_id,
        address: config.broker_address(),
        ha_address: config.ha_address(),
    }
}
