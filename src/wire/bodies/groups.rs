//! Heartbeats, locks, groups, offsets (`broker-requests.md` 6 to 11 and 18).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::fastjson::{MessageQueue, nullable, number, numbers};
use super::java_enum;
use super::topics::DataVersion;

java_enum! {
    /// Who moves the messages.
    ConsumeType {
        /// The application pulls.
        Actively = "CONSUME_ACTIVELY",
        /// The client pulls and pushes.
        Passively = "CONSUME_PASSIVELY",
        /// The broker hands out.
        Pop = "CONSUME_POP",
    }
}

java_enum! {
    /// Who gets a message of a group.
    MessageModel {
        /// Every member.
        Broadcasting = "BROADCASTING",
        /// One member.
        Clustering = "CLUSTERING",
    }
}

java_enum! {
    /// Where a group without offsets begins.
    ConsumeFromWhere {
        /// At the end.
        LastOffset = "CONSUME_FROM_LAST_OFFSET",
        /// Deprecated; as `LastOffset`.
        LastOffsetAndFromMinWhenBootFirst = "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
        /// Deprecated; as `LastOffset`.
        MinOffset = "CONSUME_FROM_MIN_OFFSET",
        /// Deprecated; as `LastOffset`.
        MaxOffset = "CONSUME_FROM_MAX_OFFSET",
        /// At the beginning.
        FirstOffset = "CONSUME_FROM_FIRST_OFFSET",
        /// At a time.
        Timestamp = "CONSUME_FROM_TIMESTAMP",
    }
}

/// The body of 34. A group without name does not fit (Java answers 1 too).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HeartbeatData {
    /// The client's own name, `ip@instance`.
    #[serde(rename = "clientID", deserialize_with = "nullable")]
    pub client_id: String,
    /// Its consumer groups.
    #[serde(deserialize_with = "nullable")]
    pub consumer_data_set: Vec<ConsumerData>,
    /// Non-zero in heartbeats of version 2.
    #[serde(deserialize_with = "number")]
    pub heartbeat_fingerprint: i32,
    /// Its producer groups.
    #[serde(deserialize_with = "nullable")]
    pub producer_data_set: Vec<ProducerData>,
    /// Version 2: the subscriptions are left out, only liveness counts.
    #[serde(deserialize_with = "nullable")]
    pub without_sub: bool,
}

/// A producer group of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProducerData {
    /// The group.
    pub group_name: String,
}

/// A consumer group of a client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConsumerData {
    /// `None` if not known.
    #[serde(default, deserialize_with = "ConsumeFromWhere::tolerant")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consume_from_where: Option<ConsumeFromWhere>,
    /// `None` if not known.
    #[serde(default, deserialize_with = "ConsumeType::tolerant")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consume_type: Option<ConsumeType>,
    /// The group.
    pub group_name: String,
    /// `None` if not known.
    #[serde(default, deserialize_with = "MessageModel::tolerant")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message_model: Option<MessageModel>,
    /// What the group's members subscribe to.
    #[serde(default, deserialize_with = "nullable")]
    pub subscription_data_set: Vec<SubscriptionData>,
    /// Commercial.
    #[serde(default, deserialize_with = "nullable")]
    pub unit_mode: bool,
}

/// A group's subscription to one topic.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SubscriptionData {
    /// Legacy.
    #[serde(deserialize_with = "nullable")]
    pub class_filter_mode: bool,
    /// Hashes of the tags as the client computed them: not to be trusted. Go writes them as text.
    #[serde(deserialize_with = "numbers")]
    pub code_set: Vec<i64>,
    /// `TAG` (also if absent) or `SQL92`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expression_type: Option<String>,
    /// The expression.
    #[serde(deserialize_with = "nullable")]
    pub sub_string: String,
    /// Milliseconds, in Go nanoseconds; greater is newer.
    #[serde(deserialize_with = "number")]
    pub sub_version: i64,
    /// The tags of a TAG expression; empty for all.
    #[serde(deserialize_with = "nullable")]
    pub tags_set: Vec<String>,
    /// The topic.
    #[serde(deserialize_with = "nullable")]
    pub topic: String,
}

/// The answer to 38.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConsumerIdList {
    /// Client ids of the group's members.
    #[serde(deserialize_with = "nullable")]
    pub consumer_id_list: Vec<String>,
}

/// The body of 41 and 42.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LockRequest {
    /// Who wants the queues.
    #[serde(deserialize_with = "nullable")]
    pub client_id: String,
    /// For which group.
    #[serde(deserialize_with = "nullable")]
    pub consumer_group: String,
    /// The queues.
    #[serde(deserialize_with = "nullable")]
    pub mq_set: Vec<MessageQueue>,
    /// Only 5.x clients send it.
    #[serde(deserialize_with = "nullable")]
    pub only_this_broker: bool,
}

/// The answer to 41. Never null: Go and C++ expect an array.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LockResponse {
    /// The queues that the client now has.
    #[serde(rename = "lockOKMQSet", deserialize_with = "nullable")]
    pub lock_ok_mq_set: Vec<MessageQueue>,
}

/// The settings of a consumer group; the default is Java's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct SubscriptionGroupConfig {
    #[serde(deserialize_with = "nullable")]
    pub attributes: BTreeMap<String, String>,
    #[serde(deserialize_with = "number")]
    pub broker_id: i64,
    pub consume_broadcast_enable: bool,
    pub consume_enable: bool,
    pub consume_from_min_enable: bool,
    pub consume_message_orderly: bool,
    #[serde(deserialize_with = "number")]
    pub consume_timeout_minute: i32,
    #[serde(deserialize_with = "nullable")]
    pub group_name: String,
    /// `{"type":"CUSTOMIZED"}` or with the delays of a policy.
    pub group_retry_policy: Value,
    #[serde(deserialize_with = "number")]
    pub group_sys_flag: i32,
    pub notify_consumer_ids_changed_enable: bool,
    #[serde(deserialize_with = "number")]
    pub retry_max_times: i32,
    #[serde(deserialize_with = "number")]
    pub retry_queue_nums: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subscription_data_set: Option<Value>,
    #[serde(deserialize_with = "number")]
    pub which_broker_when_consume_slowly: i64,
}

impl Default for SubscriptionGroupConfig {
    fn default() -> Self {
        SubscriptionGroupConfig {
            attributes: BTreeMap::new(),
            broker_id: 0,
            consume_broadcast_enable: true,
            consume_enable: true,
            consume_from_min_enable: true,
            consume_message_orderly: false,
            consume_timeout_minute: 15,
            group_name: String::new(),
            group_retry_policy: serde_json::json!({ "type": "CUSTOMIZED" }),
            group_sys_flag: 0,
            notify_consumer_ids_changed_enable: true,
            retry_max_times: 16,
            retry_queue_nums: 1,
            subscription_data_set: None,
            which_broker_when_consume_slowly: 1,
        }
    }
}

/// The answer to 201, and `subscriptionGroup.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SubscriptionGroupTable {
    /// Changes with the table.
    #[serde(deserialize_with = "nullable")]
    pub data_version: DataVersion,
    /// Group to topic to forbidden operations.
    #[serde(deserialize_with = "nullable")]
    pub forbidden_table: BTreeMap<String, BTreeMap<String, i32>>,
    /// By group name.
    #[serde(deserialize_with = "nullable")]
    pub subscription_group_table: BTreeMap<String, SubscriptionGroupConfig>,
}

/// The answer to 43, and `consumerOffset.json`. Java's numbers are unquoted keys; ours are quoted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OffsetTable {
    /// Absent in 4.x.
    #[serde(deserialize_with = "nullable")]
    pub data_version: DataVersion,
    /// Topics of each group; 5.3.
    #[serde(deserialize_with = "nullable")]
    pub group_topic_map: BTreeMap<String, Vec<String>>,
    /// `topic@group` to queue to offset. Not checked: may be beyond the queue's end or negative.
    #[serde(deserialize_with = "nullable")]
    pub offset_table: BTreeMap<String, BTreeMap<i32, i64>>,
}
