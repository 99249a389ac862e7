//! The broker's topics: `topics.json`, the topics that exist from the start, and the queues' keys.

use std::collections::BTreeMap;

use crate::broker::news::Topic;
use crate::ids::QueueKey;
use crate::limits::{QUEUES_MAX, QUEUES_PER_TOPIC_MAX, TOPICS_MAX};
use crate::wire::bodies::{DataVersion, TopicConfig, TopicConfigTable, TopicFilterType};

pub const PERM_READ: i32 = 4;
pub const PERM_WRITE: i32 = 2;
pub const PERM_INHERIT: i32 = 1;

/// Sends to an unknown topic make it after this one's pattern (broker-requests 1.4).
pub const TEMPLATE_TOPIC: &str = "TBW102";
pub const RETRY_PREFIX: &str = "%RETRY%";
pub const DEAD_LETTER_PREFIX: &str = "%DLQ%";

/// Topics of every RocketMQ broker that clients neither make nor delete (store-format 4).
const SYSTEM_TOPICS: [&str; 10] = [
    TEMPLATE_TOPIC,
    "SCHEDULE_TOPIC_XXXX",
    "BenchmarkTest",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRACE_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "SELF_TEST_TOPIC",
    "OFFSET_MOVED_EVENT",
    "CHECKPOINT_TOPIC",
];
const SYSTEM_PREFIX: &str = "rmq_sys_";

/// What decides about the topics that exist from the start (broker-requests, part I).
#[derive(Clone, Debug)]
pub struct TopicSettings {
    pub cluster: String,
    pub broker: String,
    pub auto_create: bool,
    pub default_queues: u32,
    pub cluster_topic: bool,
    pub broker_topic: bool,
    pub trace_topic: Option<String>,
    pub revive_queues: u32,
    pub timer: bool,
    pub delay_levels: u32,
}

/// Why a topic is not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopicError {
    #[error("this broker has {TOPICS_MAX} topics, the most it can keep")]
    TooMany,
    #[error("this broker has {QUEUES_MAX} queues, the most it can keep")]
    TooManyQueues,
    #[error("a topic has at most {QUEUES_PER_TOPIC_MAX} queues")]
    TooManyQueuesInOne,
}

#[derive(Debug)]
pub struct TopicTable {
    settings: TopicSettings,
    version: DataVersion,
    configs: BTreeMap<String, TopicConfig>,
    keys: BTreeMap<String, Vec<QueueKey>>,
    next_key: u32,
    system: Vec<String>,
}

impl TopicTable {
    /// From a saved table and the topics that must exist.
    pub fn new(settings: TopicSettings, saved: TopicConfigTable) -> Result<Self, TopicError> {
        let cluster = &settings.cluster;
        let system = vec![
            cluster.clone(),
            settings.broker.clone(),
            format!("{cluster}_REPLY_TOPIC"),
        ];
        let mut table = TopicTable {
            version: saved.data_version,
            configs: BTreeMap::new(),
            keys: BTreeMap::new(),
            next_key: 0,
            system,
            settings,
        };
        for (name, mut config) in saved.topic_config_table {
            config.topic_name.clone_from(&name);
            table.insert(config)?;
        }
        for config in table.boot_topics() {
            if !table.configs.contains_key(&config.topic_name) {
                table.insert(config)?;
            }
        }
        Ok(table)
    }

    fn boot_topics(&self) -> Vec<TopicConfig> {
        let settings = &self.settings;
        let (cluster, broker) = (&settings.cluster, &settings.broker);
        let when = |condition: bool, value: i32| if condition { value } else { PERM_INHERIT };
        let mut topics = vec![
            topic("SELF_TEST_TOPIC", 1, 6),
            topic("BenchmarkTest", 1024, 6),
            topic(cluster, 16, when(settings.cluster_topic, 7)),
            topic(broker, 1, when(settings.broker_topic, 7)),
            topic("OFFSET_MOVED_EVENT", 1, 6),
            topic("SCHEDULE_TOPIC_XXXX", settings.delay_levels as i32, 6),
            topic(&format!("{cluster}_REPLY_TOPIC"), 1, 6),
            topic(
                &format!("rmq_sys_REVIVE_LOG_{cluster}"),
                settings.revive_queues as i32,
                6,
            ),
            topic(&format!("rmq_sys_SYNC_BROKER_MEMBER_{broker}"), 1, 1),
            topic("RMQ_SYS_TRANS_HALF_TOPIC", 1, 6),
            topic("RMQ_SYS_TRANS_OP_HALF_TOPIC", 1, 6),
        ];
        if settings.auto_create {
            topics.push(topic(TEMPLATE_TOPIC, settings.default_queues as i32, 7));
        }
        if let Some(trace) = &settings.trace_topic {
            topics.push(topic(trace, 1, 6));
        }
        if settings.timer {
            topics.push(topic("rmq_sys_wheel_timer", 1, 6));
        }
        topics
    }

    /// Adds or replaces a topic and gives its new queues keys. Queues that were there once stay.
    pub fn insert(&mut self, config: TopicConfig) -> Result<(), TopicError> {
        let queues = config.read_queue_nums.max(config.write_queue_nums).max(0) as usize;
        let have = self.keys.get(&config.topic_name).map_or(0, Vec::len);
        if queues > QUEUES_PER_TOPIC_MAX {
            return Err(TopicError::TooManyQueuesInOne);
        }
        if !self.configs.contains_key(&config.topic_name) && self.configs.len() >= TOPICS_MAX {
            return Err(TopicError::TooMany);
        }
        if self.next_key as usize + queues.saturating_sub(have) > QUEUES_MAX {
            return Err(TopicError::TooManyQueues);
        }
        let keys = self.keys.entry(config.topic_name.clone()).or_default();
        while keys.len() < queues {
            keys.push(QueueKey(self.next_key));
            self.next_key += 1;
        }
        self.configs.insert(config.topic_name.clone(), config);
        Ok(())
    }

    pub fn remove(&mut self, name: &str) -> Option<TopicConfig> {
        self.keys.remove(name);
        self.configs.remove(name)
    }

    /// Every change has a version of its own, so that name servers see it.
    pub fn bump(&mut self, wall_ms: u64) {
        self.version.counter += 1;
        self.version.timestamp = wall_ms as i64;
    }

    #[must_use]
    pub fn get(&self, name: &str) -> Option<&TopicConfig> {
        self.configs.get(name)
    }

    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.configs.keys().cloned().collect()
    }

    #[must_use]
    pub fn queues(&self) -> u32 {
        self.next_key
    }

    /// The topic as the other roles know it.
    #[must_use]
    pub fn news(&self, name: &str) -> Option<Topic> {
        let config = self.configs.get(name)?;
        Some(Topic {
            name: name.to_owned(),
            read_queues: config.read_queue_nums.max(0) as u32,
            write_queues: config.write_queue_nums.max(0) as u32,
            perm: config.perm.max(0) as u32,
            sys_flag: config.topic_sys_flag as u32,
            multi_tag: config.topic_filter_type == Some(TopicFilterType::MultiTag),
            order: config.order,
            attributes: config.attributes.clone(),
            queues: self.keys.get(name).cloned().unwrap_or_default(),
        })
    }

    #[must_use]
    pub fn all_news(&self) -> Vec<Topic> {
        self.configs
            .keys()
            .filter_map(|name| self.news(name))
            .collect()
    }

    /// As in the file `topics.json`.
    #[must_use]
    pub fn saved(&self) -> serde_json::Value {
        serde_json::json!({ "dataVersion": self.version, "topicConfigTable": self.configs })
    }

    /// As registered and as answered to 21.
    #[must_use]
    pub fn wire(&self) -> TopicConfigTable {
        TopicConfigTable {
            data_version: self.version,
            topic_config_table: self.configs.clone(),
            ..TopicConfigTable::default()
        }
    }

    /// Some topics of the table, under its version.
    #[must_use]
    pub fn wire_of<'a>(&self, names: impl Iterator<Item = &'a String>) -> TopicConfigTable {
        let topics = names.filter_map(|name| self.configs.get_key_value(name));
        TopicConfigTable {
            data_version: self.version,
            topic_config_table: topics
                .map(|(name, config)| (name.clone(), config.clone()))
                .collect(),
            ..TopicConfigTable::default()
        }
    }

    #[must_use]
    pub fn is_system(&self, name: &str) -> bool {
        SYSTEM_TOPICS.contains(&name)
            || name.starts_with(SYSTEM_PREFIX)
            || self.system.iter().any(|system| system == name)
    }

    #[must_use]
    pub fn system_topics(&self) -> Vec<String> {
        let fixed = SYSTEM_TOPICS.iter().map(|name| (*name).to_owned());
        let mut names: Vec<String> = fixed.chain(self.system.iter().cloned()).collect();
        let prefixed = self
            .configs
            .keys()
            .filter(|name| name.starts_with(SYSTEM_PREFIX));
        names.extend(prefixed.cloned());
        names
    }

    /// The topic that a send would make (broker-requests 1.4), if the rules allow one.
    #[must_use]
    pub fn for_send(
        &self,
        name: &str,
        default_topic: &str,
        default_queues: i32,
        unit_mode: bool,
    ) -> Option<TopicConfig> {
        const UNIT: i32 = 1;
        const UNIT_SUB: i32 = 2;
        let template = self.configs.get(default_topic).filter(|template| {
            let closed = default_topic == TEMPLATE_TOPIC && !self.settings.auto_create;
            template.perm & PERM_INHERIT != 0 && !closed
        });
        if let Some(template) = template {
            let queues = default_queues.min(template.write_queue_nums).max(0);
            let mut config = topic(name, queues, template.perm & !PERM_INHERIT);
            config.topic_sys_flag = template.topic_sys_flag | if unit_mode { UNIT } else { 0 };
            config.topic_filter_type = template.topic_filter_type;
            return Some(config);
        }
        if name.starts_with(RETRY_PREFIX) {
            let mut config = topic(name, 1, PERM_READ | PERM_WRITE);
            config.topic_sys_flag = if unit_mode { UNIT_SUB } else { 0 };
            return Some(config);
        }
        None
    }
}

/// A topic with as many read as write queues.
#[must_use]
pub fn topic(name: &str, queues: i32, perm: i32) -> TopicConfig {
    TopicConfig {
        topic_name: name.to_owned(),
        read_queue_nums: queues,
        write_queue_nums: queues,
        perm,
        ..TopicConfig::default()
    }
}

/// Whether clients may use this name (store-format 4): legal characters, bounded length.
#[must_use]
pub fn is_legal_topic(name: &str) -> bool {
    let retry = name.starts_with(RETRY_PREFIX) || name.starts_with(DEAD_LETTER_PREFIX);
    let most = if retry {
        crate::limits::RETRY_TOPIC_BYTES_MAX
    } else {
        crate::limits::TOPIC_BYTES_MAX
    };
    !name.is_empty() && name.len() <= most && has_legal_characters(name)
}

/// As the 5.3.3 broker looks groups up: any length up to 255, even none.
#[must_use]
pub fn is_legal_group(name: &str) -> bool {
    name.len() <= crate::limits::GROUP_BYTES_MAX && has_legal_characters(name)
}

fn has_legal_characters(name: &str) -> bool {
    name.bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"%|-_".contains(&byte))
}
