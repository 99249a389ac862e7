//! What a name server knows (`namesrv.md` 2.1, 2.6, 2.7). Always written as strict JSON with
//! quoted ids and no blanks: Go cuts the text of `brokerAddrs` apart itself.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::fastjson::{nullable, number};

/// The answer to 105.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopicRouteData {
    /// The brokers, one entry per name.
    #[serde(deserialize_with = "nullable")]
    pub broker_datas: Vec<BrokerData>,
    /// Legacy, but some clients want it present.
    #[serde(deserialize_with = "nullable")]
    pub filter_server_table: BTreeMap<String, Vec<String>>,
    /// `broker:queues` joined by `;`, for ordered topics.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order_topic_conf: Option<String>,
    /// The topic's queues, one entry per broker name.
    #[serde(deserialize_with = "nullable")]
    pub queue_datas: Vec<QueueData>,
    /// Static topics; never written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic_queue_mapping_by_broker: Option<Value>,
}

/// The brokers of one name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BrokerData {
    /// Id to `ip:port`; 0 is the master. Must be present, even if empty.
    #[serde(deserialize_with = "nullable")]
    pub broker_addrs: BTreeMap<i64, String>,
    /// The name.
    #[serde(deserialize_with = "nullable")]
    pub broker_name: String,
    /// The cluster.
    #[serde(deserialize_with = "nullable")]
    pub cluster: String,
    /// 5.x.
    #[serde(deserialize_with = "nullable")]
    pub enable_acting_master: bool,
    /// 5.x.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone_name: Option<String>,
}

/// A topic's queues at the brokers of one name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct QueueData {
    #[serde(deserialize_with = "nullable")]
    pub broker_name: String,
    #[serde(deserialize_with = "number")]
    pub perm: i32,
    #[serde(deserialize_with = "number")]
    pub read_queue_nums: i32,
    #[serde(deserialize_with = "number")]
    pub topic_sys_flag: i32,
    #[serde(deserialize_with = "number")]
    pub write_queue_nums: i32,
}

/// The answer to 106.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterInfo {
    /// By broker name.
    #[serde(deserialize_with = "nullable")]
    pub broker_addr_table: BTreeMap<String, BrokerData>,
    /// Broker names by cluster.
    #[serde(deserialize_with = "nullable")]
    pub cluster_addr_table: BTreeMap<String, Vec<String>>,
}

/// The answer to 901.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BrokerMemberGroup {
    /// The only member of the body.
    #[serde(deserialize_with = "nullable")]
    pub broker_member_group: MemberGroup,
}

/// The addresses of one broker name, without what [`BrokerData`] says beside them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MemberGroup {
    /// Id to `ip:port`; empty if the name is unknown.
    #[serde(deserialize_with = "nullable")]
    pub broker_addrs: BTreeMap<i64, String>,
    /// The name.
    #[serde(deserialize_with = "nullable")]
    pub broker_name: String,
    /// The cluster.
    #[serde(deserialize_with = "nullable")]
    pub cluster: String,
}
