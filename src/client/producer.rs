//! Sending one message. client-behaviour 2; broker-requests 1.

use std::fmt;
use std::time::{Duration, Instant};

use super::connection::{Connections, Incoming};
use super::routes::{NameServers, Queue, master, write_queues};
use super::{ClientError, check_topic, random, unique_key, wall_ms};
use crate::limits::{BODY_BYTES_MAX, PROPERTIES_BYTES_MAX};
use crate::wire::bodies::TopicRouteData;
use crate::wire::headers::{SendRequest, SendResponse};
use crate::wire::properties::{self, names};
use crate::wire::{RequestCode, ResponseCode};

/// The topic after which brokers make new ones.
const TEMPLATE_TOPIC: &str = "TBW102";
/// Queues of a topic that is made by this send, unless the broker allows fewer.
const NEW_TOPIC_QUEUES: i32 = 4;
const GROUP: &str = "ringmq_send";

const TRIES: usize = 3;
/// For all tries together. More than the 5 s after which a broker by default stops waiting for its
/// disk or its slave, so that its own word about the message comes first.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// What to send.
#[derive(Clone, Copy, Debug)]
pub struct SendOptions<'a> {
    /// `host:port` of each.
    pub name_servers: &'a [String],
    /// Made by the first message, if the brokers allow it.
    pub topic: &'a str,
    /// What receivers filter by.
    pub tag: Option<&'a str>,
    /// What the message is looked up by; several are separated by blanks.
    pub key: Option<&'a str>,
    /// 1 byte to 4 MiB.
    pub body: &'a [u8],
}

/// A message that a broker has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// The client's id of the message, which goes with it.
    pub msg_id: String,
    /// The broker's id of the stored message.
    pub offset_id: String,
    /// Where it is.
    pub broker: String,
    /// In which queue.
    pub queue_id: i32,
    /// At which place there.
    pub queue_offset: i64,
    /// How safe it is.
    pub stored: Stored,
}

/// How safe a stored message is (broker-requests 1.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// As safe as the broker was told to make it.
    Fully,
    /// Code 10.
    FlushTimedOut,
    /// Code 11.
    NoSlave,
    /// Code 12.
    SlaveTimedOut,
}

impl fmt::Display for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stored::Fully => "stored",
            Stored::FlushTimedOut => {
                "stored, but not confirmed to be on stable storage (10 FLUSH_DISK_TIMEOUT)"
            }
            Stored::NoSlave => "stored, but no slave takes copies (11 SLAVE_NOT_AVAILABLE)",
            Stored::SlaveTimedOut => {
                "stored, but not confirmed by a slave in time (12 FLUSH_SLAVE_TIMEOUT)"
            }
        })
    }
}

/// Sends a message to a queue of its topic and waits for the broker's word.
///
/// A broker that cannot be reached, that does not answer or that refuses for a reason of its own is
/// replaced by another one where the topic has several: 3 tries, 10 s in all. A try that ended
/// without an answer may have stored the message as well.
///
/// # Errors
/// See [`ClientError`]; of several tries the last one's.
pub fn send(options: &SendOptions<'_>) -> Result<Sent, ClientError> {
    check(options)?;
    let mut connections = Connections::new();
    let mut name_servers = NameServers::new(options.name_servers);
    let route = find_route(&mut connections, &mut name_servers, options.topic)?;
    let queues = write_queues(options.topic, &route);
    if queues.is_empty() {
        return Err(ClientError::NoQueue {
            topic: options.topic.to_owned(),
            verb: "written",
        });
    }
    let msg_id = unique_key(connections.local_ip()).to_string();
    let mut producer = Producer {
        properties: properties_of(options, &msg_id)?,
        options,
        connections,
        route,
        msg_id,
    };
    producer.send(&queues)
}

fn check(options: &SendOptions<'_>) -> Result<(), ClientError> {
    check_topic(options.topic)?;
    let clean = |text: &str| !text.is_empty() && !text.bytes().any(|byte| byte <= 2);
    for (what, text) in [("tag", options.tag), ("key", options.key)] {
        if !text.is_none_or(clean) {
            return Err(ClientError::Property { what });
        }
    }
    match options.body.len() {
        0 => Err(ClientError::BodyEmpty),
        bytes if bytes > BODY_BYTES_MAX => Err(ClientError::BodyTooLong { bytes }),
        _ => Ok(()),
    }
}

fn properties_of(options: &SendOptions<'_>, msg_id: &str) -> Result<String, ClientError> {
    let mut text = Vec::new();
    let wait = Some("true");
    for (name, value) in [
        (names::UNIQUE_KEY, Some(msg_id)),
        (names::WAIT, wait),
        (names::TAGS, options.tag),
        (names::KEYS, options.key),
    ] {
        if let Some(value) = value {
            properties::append(&mut text, name, value.as_bytes());
        }
    }
    if text.len() > PROPERTIES_BYTES_MAX {
        return Err(ClientError::PropertiesTooLong { bytes: text.len() });
    }
    Ok(String::from_utf8(text).expect("only whole texts were put together"))
}

/// The topic's route; of a new topic that of the brokers that would make it.
fn find_route(
    connections: &mut Connections,
    name_servers: &mut NameServers<'_>,
    topic: &str,
) -> Result<TopicRouteData, ClientError> {
    if let Some(route) = name_servers.route(connections, topic)? {
        return Ok(route);
    }
    let template = name_servers.route(connections, TEMPLATE_TOPIC)?;
    let mut route = template.ok_or_else(|| ClientError::NotCreated {
        topic: topic.to_owned(),
    })?;
    for queues in &mut route.queue_datas {
        queues.write_queue_nums = queues.read_queue_nums.min(NEW_TOPIC_QUEUES);
    }
    Ok(route)
}

struct Producer<'a> {
    options: &'a SendOptions<'a>,
    connections: Connections,
    route: TopicRouteData,
    msg_id: String,
    properties: String,
}

impl Producer<'_> {
    fn send(&mut self, queues: &[Queue]) -> Result<Sent, ClientError> {
        let deadline = Instant::now() + SEND_TIMEOUT;
        let mut at = random() as usize % queues.len();
        for left in (0..TRIES).rev() {
            match self.try_once(&queues[at], deadline) {
                Err(error)
                    if left > 0 && Instant::now() < deadline && can_be_tried_again(&error) =>
                {
                    log::debug!("trying again: {error}");
                    at = next_queue(queues, at);
                }
                result => return result,
            }
        }
        unreachable!("the last try returns, whatever its result")
    }

    fn try_once(&mut self, queue: &Queue, deadline: Instant) -> Result<Sent, ClientError> {
        let address = master(&self.route, &queue.broker).ok_or_else(|| ClientError::NoQueue {
            topic: queue.topic.clone(),
            verb: "written",
        })?;
        let request = SendRequest {
            producer_group: GROUP,
            topic: &queue.topic,
            default_topic: TEMPLATE_TOPIC,
            default_topic_queue_nums: NEW_TOPIC_QUEUES,
            queue_id: queue.id,
            sys_flag: 0,
            born_timestamp: wall_ms(),
            flag: 0,
            properties: &self.properties,
            reconsume_times: 0,
            unit_mode: false,
            max_reconsume_times: None,
            batch: false,
            broker_name: Some(&queue.broker),
        };
        let timeout = deadline.saturating_duration_since(Instant::now());
        let code = RequestCode::SEND_MESSAGE_V2;
        let body = self.options.body;
        let asked = self
            .connections
            .call(address, code, timeout, body, |ext| request.encode(ext));
        let answer = asked?;
        if ResponseCode(answer.code) == ResponseCode::GO_AWAY {
            self.connections.close(&answer.address);
        }
        self.sent(queue, &answer)
    }

    fn sent(&self, queue: &Queue, answer: &Incoming) -> Result<Sent, ClientError> {
        let stored = match ResponseCode(answer.code) {
            ResponseCode::SUCCESS => Stored::Fully,
            ResponseCode::FLUSH_DISK_TIMEOUT => Stored::FlushTimedOut,
            ResponseCode::SLAVE_NOT_AVAILABLE => Stored::NoSlave,
            ResponseCode::FLUSH_SLAVE_TIMEOUT => Stored::SlaveTimedOut,
            _ => return Err(answer.refused(RequestCode::SEND_MESSAGE_V2)),
        };
        answer.parse(RequestCode::SEND_MESSAGE_V2, |frame| {
            SendResponse::decode(&frame.header).map(|response| Sent {
                msg_id: self.msg_id.clone(),
                offset_id: response.msg_id.to_owned(),
                broker: queue.broker.clone(),
                queue_id: response.queue_id,
                queue_offset: response.queue_offset,
                stored,
            })
        })
    }
}

/// The next queue round robin that is not at the broker just tried; else just the next.
fn next_queue(queues: &[Queue], at: usize) -> usize {
    let others = (1..queues.len()).map(|step| (at + step) % queues.len());
    others
        .clone()
        .find(|next| queues[*next].broker != queues[at].broker)
        .or(others.clone().next())
        .unwrap_or(at)
}

/// As Java 5.x: what the network or this one broker is to blame for (remoting 7).
fn can_be_tried_again(error: &ClientError) -> bool {
    match error {
        ClientError::Connect { .. } | ClientError::Lost { .. } | ClientError::TimedOut { .. } => {
            true
        }
        ClientError::Refused { code, .. } => matches!(
            *code,
            ResponseCode::SYSTEM_ERROR
                | ResponseCode::SYSTEM_BUSY
                | ResponseCode::SERVICE_NOT_AVAILABLE
                | ResponseCode::NO_PERMISSION
                | ResponseCode::TOPIC_NOT_EXIST
                | ResponseCode::NO_BUYER_ID
                | ResponseCode::NOT_IN_CURRENT_UNIT
                | ResponseCode::GO_AWAY
        ),
        _ => false,
    }
}
