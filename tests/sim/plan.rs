//! What one seed decides before anything runs.

use std::path::PathBuf;

use ringmq::boot::StoreSettings;
use ringmq::broker::topic_table::TopicSettings;
use ringmq::store::FlushMode;
use ringmq::store::index::IndexConfig;
use ringmq::store::index_file::Shape;

use crate::disk::{Canary, Faults};
use crate::rng::Rng;

#[derive(Clone)]
pub struct Plan {
    pub store: StoreSettings,
    pub shards: usize,
    pub queue_sync_ms: u64,
    pub wall_base: u64,
    pub faults: Faults,
    pub canary: Option<Canary>,
    /// Crashes before the last life, which ends cleanly.
    pub deaths: u64,
    /// Requests that each life's clients make.
    pub requests: u64,
    pub clients: usize,
    pub topics: u64,
    pub body_bytes_max: u64,
}

impl Plan {
    pub fn draw(rng: &mut Rng, canary: Option<Canary>) -> Plan {
        let segment_bytes = [64, 128, 256][rng.below(3) as usize] * 1024;
        let body_bytes_max = match rng.below(8) {
            0 => (segment_bytes * 2 / 3).min(200 * 1024),
            1..=3 => 200,
            _ => 6 * 1024,
        };
        let root = PathBuf::from("/store");
        let queue_file_bytes = [20 * 16, 20 * 50, 20 * 300][rng.below(3) as usize];
        let is_async = canary.is_none() && rng.once_in(5);
        let store = StoreSettings {
            log_dir: root.join("commitlog"),
            segment_bytes,
            queue_file_bytes,
            mode: if is_async {
                FlushMode::Async
            } else {
                FlushMode::Sync
            },
            topics: TopicSettings {
                cluster: "DefaultCluster".to_string(),
                broker: "broker-a".to_string(),
                auto_create: true,
                default_queues: 8,
                cluster_topic: true,
                broker_topic: true,
                trace_topic: None,
                revive_queues: 1,
                timer: false,
                delay_levels: 18,
            },
            auto_create_group: true,
            index: IndexConfig {
                root: root.clone(),
                shape: Shape {
                    slots: 64,
                    entries: [40, 500][rng.below(2) as usize],
                },
                segment_bytes,
                enabled: true,
                sync_interval_ms: rng.within(5, 500),
                utc_offset_ms: 0,
            },
            hash_seed: rng.next(),
            root,
        };
        Plan {
            store,
            shards: rng.within(1, 3) as usize,
            queue_sync_ms: rng.within(1, 400),
            wall_base: 1_700_000_000_000,
            faults: draw_faults(rng, canary),
            canary,
            deaths: rng.within(1, 4),
            requests: rng.within(20, 200),
            clients: rng.within(1, 5) as usize,
            topics: rng.within(1, 4),
            body_bytes_max,
        }
    }

    /// A short life of one shard, small enough to look at every moment of it.
    pub fn short() -> Plan {
        let plan = Plan::draw(&mut Rng::new(1), Some(Canary::DroppedRoom));
        Plan {
            canary: None,
            shards: 1,
            requests: 24,
            clients: 2,
            topics: 1,
            body_bytes_max: 2000,
            ..plan
        }
    }

    pub fn is_sync(&self) -> bool {
        self.store.mode == FlushMode::Sync
    }
}

fn draw_faults(rng: &mut Rng, canary: Option<Canary>) -> Faults {
    if canary.is_some() || rng.percent(65) {
        return Faults::default();
    }
    let mut chance = |often: u64| {
        if rng.once_in(2) {
            rng.within(often, often * 10)
        } else {
            0
        }
    };
    Faults {
        sync_fails: chance(100),
        write_fails: chance(150),
        short_write: chance(150),
        no_space: chance(60),
        read_fails: 0,
        stall: chance(60),
    }
}
