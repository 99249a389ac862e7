//! The bodies of the name server's requests and answers, as plain values. namesrv 1-2.
//!
//! Answers are strict compact JSON with quoted keys in alphabetical order, whatever the client's
//! version: every client and tool reads that, and Go's clients cut route data at its commas and
//! colons, so that a blank would end up in an address.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use serde::{Deserialize, Deserializer, Serialize};
use thiserror::Error;

/// A broker's count of changes to its topics. Equal only if all three members are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DataVersion {
    /// One more with each change.
    pub counter: i64,
    /// The term of an elected broker; 0 elsewhere.
    pub state_version: i64,
    /// Time of the last change, in milliseconds since 1970.
    pub timestamp: i64,
}

/// A topic as its broker describes it. What is not there is as in a new `TopicConfig` of Java.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopicConfig {
    /// Whether the order of queues matters to producers.
    pub order: bool,
    /// Bits 4 read, 2 write, 1 inherit.
    pub perm: u32,
    /// Queues to pull from.
    pub read_queue_nums: u32,
    /// `SINGLE_TAG` or `MULTI_TAG`.
    pub topic_filter_type: String,
    /// The name.
    pub topic_name: String,
    /// Bits 1 unit, 2 has a unit's subscription.
    pub topic_sys_flag: u32,
    /// Queues to send to.
    pub write_queue_nums: u32,
}

impl Default for TopicConfig {
    fn default() -> Self {
        Self {
            order: false,
            perm: 6,
            read_queue_nums: 16,
            topic_filter_type: "SINGLE_TAG".to_owned(),
            topic_name: String::new(),
            topic_sys_flag: 0,
            write_queue_nums: 16,
        }
    }
}

/// Body of a registration (103), whichever of its forms it came in.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RegisterBody {
    /// Version of the topics.
    pub data_version: DataVersion,
    /// The topics, by name.
    pub topics: BTreeMap<String, TopicConfig>,
    /// Addresses of filter servers.
    pub filter_servers: Vec<String>,
}

/// Why a registration's body was not understood (answered 1).
#[derive(Debug, Error)]
pub enum BodyError {
    /// Not the JSON that it should be.
    #[error("the body of the registration is not the expected JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// The lengths of the inflated form do not fit, or a topic's text is not one.
    #[error("the inflated body of the registration is malformed at byte {at}")]
    Inflated {
        /// How far it was understood.
        at: usize,
    },
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct WrittenRegister {
    #[serde(deserialize_with = "null_is_default")]
    filter_server_list: Vec<String>,
    #[serde(deserialize_with = "null_is_default")]
    topic_config_serialize_wrapper: WrittenTopics,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct WrittenTopics {
    #[serde(deserialize_with = "null_is_default")]
    data_version: DataVersion,
    #[serde(deserialize_with = "null_is_default")]
    topic_config_table: BTreeMap<String, TopicConfig>,
}

fn null_is_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Senders older than this put the bare topics into the body. namesrv 2.2.1.
const BARE_TOPICS_BELOW_VERSION: i32 = 37;

impl RegisterBody {
    /// Reads the uncompressed form. An empty body is a broker without topics. namesrv 2.2.1.
    pub fn parse(body: &[u8], sender_version: i32) -> Result<Self, BodyError> {
        if body.is_empty() {
            return Ok(Self::default());
        }
        let written = if sender_version < BARE_TOPICS_BELOW_VERSION {
            let topics = serde_json::from_slice(body)?;
            WrittenRegister {
                topic_config_serialize_wrapper: topics,
                ..Default::default()
            }
        } else {
            serde_json::from_slice(body)?
        };
        let WrittenTopics {
            data_version,
            topic_config_table,
        } = written.topic_config_serialize_wrapper;
        let topics = topic_config_table.into_iter().map(|(key, mut topic)| {
            if topic.topic_name.is_empty() {
                topic.topic_name = key;
            }
            (topic.topic_name.clone(), topic)
        });
        Ok(Self {
            data_version,
            topics: topics.collect(),
            filter_servers: written.filter_server_list,
        })
    }
}

/// Reads the compressed form after it was inflated. namesrv 2.2.2.
///
/// ```text
/// len, DataVersion as JSON | count of topics | each: len, text | len, JSON array of filter servers
/// ```
///
/// Lengths are 4 bytes, big-endian. What follows (static topics of newer senders) is not read.
pub fn parse_inflated(body: &[u8]) -> Result<RegisterBody, BodyError> {
    let mut parts = Parts { body, at: 0 };
    let data_version = serde_json::from_slice(parts.sized()?)?;
    let mut topics = BTreeMap::new();
    for _ in 0..parts.number()? {
        let at = parts.at;
        let topic = std::str::from_utf8(parts.sized()?)
            .ok()
            .and_then(topic_of_text);
        let topic = topic.ok_or(BodyError::Inflated { at })?;
        topics.insert(topic.topic_name.clone(), topic);
    }
    let filter_servers = match parts.sized()? {
        b"" => Vec::new(),
        json => serde_json::from_slice(json)?,
    };
    Ok(RegisterBody {
        data_version,
        topics,
        filter_servers,
    })
}

struct Parts<'a> {
    body: &'a [u8],
    at: usize,
}

impl<'a> Parts<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], BodyError> {
        let end = self.at.checked_add(len);
        let part = end.and_then(|end| self.body.get(self.at..end));
        let part = part.ok_or(BodyError::Inflated { at: self.at })?;
        self.at += len;
        Ok(part)
    }

    fn number(&mut self) -> Result<usize, BodyError> {
        let at = self.at;
        let bytes = self.take(4)?.try_into().expect("four bytes were taken");
        usize::try_from(i32::from_be_bytes(bytes)).map_err(|_| BodyError::Inflated { at })
    }

    fn sized(&mut self) -> Result<&'a [u8], BodyError> {
        let len = self.number()?;
        self.take(len)
    }
}

/// `name readQueues writeQueues perm filterType`, and attributes that are not read. The form
/// loses the order and system flags.
fn topic_of_text(text: &str) -> Option<TopicConfig> {
    let mut words = text.split(' ');
    Some(TopicConfig {
        topic_name: words.next().filter(|name| !name.is_empty())?.to_owned(),
        read_queue_nums: words.next()?.parse().ok()?,
        write_queue_nums: words.next()?.parse().ok()?,
        perm: words.next()?.parse().ok()?,
        topic_filter_type: words.next()?.to_owned(),
        ..TopicConfig::default()
    })
}

/// A topic's queues at one broker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct QueueData {
    /// The broker.
    pub broker_name: String,
    /// Bits 4 read, 2 write, 1 inherit.
    pub perm: u32,
    /// Queues to pull from.
    pub read_queue_nums: u32,
    /// Bits 1 unit, 2 has a unit's subscription.
    #[serde(default)]
    pub topic_sys_flag: u32,
    /// Queues to send to.
    pub write_queue_nums: u32,
}

/// The addresses of one broker name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BrokerData {
    /// Address by broker id; 0 is the master.
    pub broker_addrs: BTreeMap<i64, String>,
    /// The name.
    pub broker_name: String,
    /// Its cluster.
    pub cluster: String,
    /// Whether a slave may act for a missing master.
    pub enable_acting_master: bool,
    /// The broker's zone, if it said one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub zone_name: Option<String>,
}

/// Where a topic is (105).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct TopicRouteData {
    /// The brokers that have it.
    pub broker_datas: Vec<BrokerData>,
    /// Filter servers by broker address.
    pub filter_server_table: BTreeMap<String, Vec<String>>,
    /// `broker:queues;broker:queues` of an ordered topic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order_topic_conf: Option<String>,
    /// Its queues, broker by broker.
    pub queue_datas: Vec<QueueData>,
}

/// All clusters and brokers (106).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterInfo {
    /// Brokers by name.
    pub broker_addr_table: BTreeMap<String, BrokerData>,
    /// Broker names by cluster.
    pub cluster_addr_table: BTreeMap<String, BTreeSet<String>>,
}

/// A list of topics (206, 224, 304, 311-313).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct TopicList {
    /// A broker that knows more (304 only).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broker_addr: Option<String>,
    /// The names.
    pub topic_list: BTreeSet<String>,
}

/// One namespace of the key-value settings (219, and the answer of 103).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct KvTable {
    /// Value by key.
    pub table: BTreeMap<String, String>,
}

/// The brokers of one name (901), wrapped as its body is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BrokerMemberGroup {
    /// The only member of the body.
    pub broker_member_group: MemberGroup,
}

/// See [`BrokerMemberGroup`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberGroup {
    /// Address by broker id; empty for an unknown name.
    pub broker_addrs: BTreeMap<i64, String>,
    /// The name.
    pub broker_name: String,
    /// Its cluster.
    pub cluster: String,
}

/// Writes a body: compact, keys quoted, everything beyond ASCII as `\uXXXX`.
pub fn render<T: Serialize>(body: &T) -> Vec<u8> {
    let mut out = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut out, AsciiOnly);
    let written = body.serialize(&mut serializer);
    written.expect("bodies have string and number keys, and a Vec takes everything");
    out
}

struct AsciiOnly;

impl serde_json::ser::Formatter for AsciiOnly {
    fn write_string_fragment<W>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()>
    where
        W: ?Sized + io::Write,
    {
        for c in fragment.chars() {
            if c.is_ascii() {
                writer.write_all(c.encode_utf8(&mut [0; 4]).as_bytes())?;
                continue;
            }
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(writer, "\\u{unit:04x}")?;
            }
        }
        Ok(())
    }
}
