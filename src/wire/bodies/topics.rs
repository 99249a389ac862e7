//! Topics and versions of tables (`broker-requests.md` 17, `namesrv.md` 2.8 and 2.10).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::fastjson::{nullable, number};
use super::java_enum;

/// When a table was changed. Two are equal if all three numbers are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DataVersion {
    /// One more with each change.
    #[serde(deserialize_with = "number")]
    pub counter: i64,
    /// Of the controller; 5.x.
    #[serde(deserialize_with = "number")]
    pub state_version: i64,
    /// Milliseconds.
    #[serde(deserialize_with = "number")]
    pub timestamp: i64,
}

java_enum! {
    /// How many tags a message of the topic can have.
    TopicFilterType {
        /// One.
        SingleTag = "SINGLE_TAG",
        /// Several.
        MultiTag = "MULTI_TAG",
    }
}

/// The settings of a topic; the default is Java's. Perm bits: 4 read, 2 write, 1 inherit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct TopicConfig {
    #[serde(deserialize_with = "nullable")]
    pub attributes: BTreeMap<String, String>,
    #[serde(deserialize_with = "nullable")]
    pub order: bool,
    #[serde(deserialize_with = "number")]
    pub perm: i32,
    #[serde(deserialize_with = "number")]
    pub read_queue_nums: i32,
    #[serde(deserialize_with = "TopicFilterType::tolerant")]
    pub topic_filter_type: Option<TopicFilterType>,
    #[serde(deserialize_with = "nullable")]
    pub topic_name: String,
    #[serde(deserialize_with = "number")]
    pub topic_sys_flag: i32,
    #[serde(deserialize_with = "number")]
    pub write_queue_nums: i32,
}

impl Default for TopicConfig {
    fn default() -> Self {
        TopicConfig {
            attributes: BTreeMap::new(),
            order: false,
            perm: 6,
            read_queue_nums: 16,
            topic_filter_type: Some(TopicFilterType::SingleTag),
            topic_name: String::new(),
            topic_sys_flag: 0,
            write_queue_nums: 16,
        }
    }
}

impl TopicConfig {
    /// The blank-separated form of compressed registrations. Loses `order` and `topicSysFlag`.
    pub fn to_text(&self) -> String {
        let filter = self.topic_filter_type.unwrap_or(TopicFilterType::SingleTag);
        let attributes = String::from_utf8(super::super::fastjson::to_vec(&self.attributes));
        format!(
            "{} {} {} {} {} {}",
            self.topic_name,
            self.read_queue_nums,
            self.write_queue_nums,
            self.perm,
            filter.name(),
            attributes.expect("JSON is UTF-8"),
        )
    }

    /// Reads the blank-separated form; 4.9 ends it after five words. `None` if it is none.
    pub fn from_text(text: &str) -> Option<TopicConfig> {
        let mut words = text.splitn(6, ' ');
        let topic_name = words.next()?.to_string();
        let read_queue_nums = words.next()?.parse().ok()?;
        let write_queue_nums = words.next()?.parse().ok()?;
        let perm = words.next()?.parse().ok()?;
        let topic_filter_type = TopicFilterType::from_name(words.next()?);
        let attributes = match words.next() {
            Some(json) if !json.is_empty() => {
                super::super::fastjson::from_slice(json.as_bytes()).ok()?
            }
            _ => BTreeMap::new(),
        };
        Some(TopicConfig {
            attributes,
            perm,
            read_queue_nums,
            topic_filter_type,
            topic_name,
            write_queue_nums,
            ..TopicConfig::default()
        })
    }
}

/// The answer to 21, the larger part of a registration, and `topics.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopicConfigTable {
    /// Changes with the table.
    #[serde(deserialize_with = "nullable")]
    pub data_version: DataVersion,
    /// Static topics; 5.x.
    #[serde(deserialize_with = "nullable")]
    pub mapping_data_version: DataVersion,
    /// By topic name.
    #[serde(deserialize_with = "nullable")]
    pub topic_config_table: BTreeMap<String, TopicConfig>,
    /// Static topics; 5.x.
    #[serde(deserialize_with = "nullable")]
    pub topic_queue_mapping_detail_map: BTreeMap<String, Value>,
    /// Static topics; 5.x.
    #[serde(deserialize_with = "nullable")]
    pub topic_queue_mapping_info_map: BTreeMap<String, Value>,
}

/// The answer to 206, 224, 304 and the like.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopicList {
    /// In 304, a broker that knows more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broker_addr: Option<String>,
    /// The names.
    #[serde(deserialize_with = "nullable")]
    pub topic_list: Vec<String>,
}

/// Text by text: runtime facts, settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct KvTable {
    /// The entries.
    #[serde(deserialize_with = "nullable")]
    pub table: BTreeMap<String, String>,
}
