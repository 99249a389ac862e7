//! The consumer groups' settings: `subscriptionGroup.json`.

use crate::broker::news::GroupSettings;
use crate::broker::topic_table::is_legal_group;
use crate::limits::GROUPS_MAX;
use crate::wire::bodies::{SubscriptionGroupConfig, SubscriptionGroupTable};

/// Groups of every RocketMQ broker (store-format 13.2).
const FROM_THE_START: [&str; 8] = [
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
];
const SYSTEM_PREFIX: &str = "CID_RMQ_SYS_";

#[derive(Debug)]
pub struct GroupTable {
    table: SubscriptionGroupTable,
    auto_create: bool,
}

impl GroupTable {
    #[must_use]
    pub fn new(saved: SubscriptionGroupTable, auto_create: bool) -> Self {
        let mut groups = GroupTable {
            table: saved,
            auto_create,
        };
        for (name, config) in &mut groups.table.subscription_group_table {
            config.group_name.clone_from(name);
        }
        for name in FROM_THE_START {
            if groups.get(name).is_none() {
                groups.insert(group(name));
            }
        }
        groups
    }

    #[must_use]
    pub fn get(&self, name: &str) -> Option<&SubscriptionGroupConfig> {
        self.table.subscription_group_table.get(name)
    }

    /// Whether looking this group up makes it.
    #[must_use]
    pub fn may_create(&self, name: &str) -> bool {
        let allowed = self.auto_create || name.starts_with(SYSTEM_PREFIX);
        allowed && is_legal_group(name) && self.table.subscription_group_table.len() < GROUPS_MAX
    }

    pub fn insert(&mut self, config: SubscriptionGroupConfig) {
        self.table
            .subscription_group_table
            .insert(config.group_name.clone(), config);
    }

    pub fn remove(&mut self, name: &str) -> bool {
        self.table.subscription_group_table.remove(name).is_some()
    }

    pub fn bump(&mut self, wall_ms: u64) {
        self.table.data_version.counter += 1;
        self.table.data_version.timestamp = wall_ms as i64;
    }

    #[must_use]
    pub fn wire(&self) -> &SubscriptionGroupTable {
        &self.table
    }

    #[must_use]
    pub fn news(&self, name: &str) -> Option<GroupSettings> {
        self.get(name).map(settings)
    }

    #[must_use]
    pub fn all_news(&self) -> Vec<GroupSettings> {
        self.table
            .subscription_group_table
            .values()
            .map(settings)
            .collect()
    }
}

fn settings(config: &SubscriptionGroupConfig) -> GroupSettings {
    GroupSettings {
        name: config.group_name.clone(),
        consume_enable: config.consume_enable,
        broadcast_enable: config.consume_broadcast_enable,
        retry_max_times: config.retry_max_times,
        retry_queues: config.retry_queue_nums,
        sys_flag: config.group_sys_flag,
    }
}

/// A group with the default settings.
#[must_use]
pub fn group(name: &str) -> SubscriptionGroupConfig {
    SubscriptionGroupConfig {
        group_name: name.to_owned(),
        ..SubscriptionGroupConfig::default()
    }
}
