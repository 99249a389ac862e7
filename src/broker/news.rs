//! Cold payloads between roles, as JSON: what control tells everybody, and what shards tell
//! control.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ids::{QueueKey, QueueOffset};

/// A topic as every core knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topic {
    pub name: String,
    pub read_queues: u32,
    pub write_queues: u32,
    /// 4 read, 2 write, 1 inherit.
    pub perm: u32,
    pub sys_flag: u32,
    pub multi_tag: bool,
    pub order: bool,
    /// RocketMQ's `attributes`, such as `cleanup.policy`.
    pub attributes: std::collections::BTreeMap<String, String>,
    /// One key per queue id, from 0 to the larger of read and write queues; queues that were there
    /// once stay, so that their messages can still be read.
    pub queues: Vec<QueueKey>,
}

/// A consumer group's settings as pulls need them (subscriptionGroup.json).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupSettings {
    pub name: String,
    pub consume_enable: bool,
    pub broadcast_enable: bool,
    pub retry_max_times: i32,
    pub retry_queues: i32,
    pub sys_flag: i32,
}

/// One subscription of an online group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subscription {
    pub topic: String,
    pub expression: String,
    pub expression_type: String,
    /// Java hash codes of the tags, computed here; empty means all.
    pub tag_hashes: Vec<i32>,
    pub version: i64,
}

/// What the shards know of a group that is online.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Online {
    pub group: String,
    pub broadcasting: bool,
    pub subscriptions: Vec<Subscription>,
}

/// control -> everybody.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum News {
    /// New or changed.
    Topic(Topic),
    TopicGone(String),
    /// New or changed.
    Group(GroupSettings),
    GroupGone(String),
    /// New or changed; replaces what was known of the group.
    Online(Online),
    Offline(String),
    /// Consumer offsets of a topic or a group were dropped.
    OffsetsGone {
        topic: Option<String>,
        group: Option<String>,
    },
}

/// shard -> control.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewTopic {
    pub topic: String,
    pub default_topic: String,
    pub default_queues: i32,
    pub unit_mode: bool,
    /// Where the client connects to us from, for the log line.
    pub peer: String,
}

/// Changed consumer offsets: `(topic, group, queue id, offset)`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offsets(pub Vec<(String, String, i32, i64)>);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyQuery {
    pub topic: String,
    pub key: String,
    pub max: u32,
    pub begin_ms: i64,
    pub end_ms: i64,
}

/// What recovery found in one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueState {
    pub key: QueueKey,
    /// Smallest offset whose record is in the log.
    pub first: QueueOffset,
    /// Next offset to assign: everything in the log counted, dispatched or not.
    pub next: QueueOffset,
    /// End of what the queue's files hold.
    pub dispatched: QueueOffset,
}

/// What every role starts from: one snapshot, shared, never changed. Changes come as [`News`].
#[derive(Clone, Debug, Default)]
pub struct Boot {
    pub topics: Vec<Topic>,
    pub groups: Vec<GroupSettings>,
    /// By `QueueKey`.
    pub queues: Vec<QueueState>,
    /// `(topic, group, queue id, offset)` of consumerOffset.json.
    pub offsets: Vec<(String, String, i32, i64)>,
}

/// [`Boot`] as the roles hold it.
pub type SharedBoot = Arc<Boot>;
