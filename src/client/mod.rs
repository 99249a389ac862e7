//! A small blocking client: sends one message, receives the messages of a topic. It is what
//! `ringmq send` and `ringmq receive` are made of, and it speaks to RocketMQ's servers as well.
//!
//! [`send`] and [`receive`] do everything in the calling thread; each connection has a thread that
//! reads. Nothing outlives the call. Spec: client-behaviour 2, 3, 8 and 11.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use thiserror::Error;

use crate::limits::{BODY_BYTES_MAX, GROUP_BYTES_MAX, PROPERTIES_BYTES_MAX, TOPIC_BYTES_MAX};
use crate::wire::fastjson::BodyError;
use crate::wire::frame::FrameError;
use crate::wire::headers::HeaderError;
use crate::wire::message_id::{MessageId, UniqueKey};
use crate::wire::record::BadRecord;
use crate::wire::{RequestCode, ResponseCode};

mod connection;
mod consumer;
mod group;
mod message;
mod producer;
mod routes;

pub use consumer::{ReceiveOptions, receive};
pub use message::{Packing, Received};
pub use producer::{SendOptions, Sent, Stored, send};

/// Why a message was not sent, or why receiving ended. The text says the cause and the cure.
#[derive(Debug, Error)]
pub enum ClientError {
    /// None of the name servers was there.
    #[error(
        "no name server answers: {tried}. Is `ringmq standalone` running there? \
         Other name servers are given with --namesrv or NAMESRV_ADDR"
    )]
    NameServers {
        /// Each with its cause.
        tried: Tried,
    },
    /// A topic or group that no broker would take.
    #[error("{what} {name:?} is no name: 1 to {max} letters, digits, and the signs _ - % |")]
    Name {
        /// `topic` or `group`.
        what: &'static str,
        /// What was given.
        name: String,
        /// Most bytes.
        max: usize,
    },
    /// RocketMQ has no messages without a body.
    #[error("a message needs a body of at least one byte")]
    BodyEmpty,
    /// More than brokers take by default.
    #[error("a body of {bytes} bytes; at most {BODY_BYTES_MAX}")]
    BodyTooLong {
        /// Its length.
        bytes: usize,
    },
    /// Tag or key would not come out as they went in.
    #[error("the {what} must be at least one character and hold none of the bytes 0, 1 and 2")]
    Property {
        /// `tag` or `key`.
        what: &'static str,
    },
    /// Tag and key do not fit a message.
    #[error("tag and key take {bytes} bytes; at most {PROPERTIES_BYTES_MAX}")]
    PropertiesTooLong {
        /// With what the client adds.
        bytes: usize,
    },
    /// Nobody has the topic, and nobody makes topics from first messages.
    #[error(
        "topic {topic} does not exist, and no broker makes topics by itself: set \
         autoCreateTopicEnable=true, or create the topic first (mqadmin updateTopic)"
    )]
    NotCreated {
        /// The topic.
        topic: String,
    },
    /// Nobody has the topic.
    #[error(
        "topic {topic} does not exist: it is made by the first message sent to it; with --follow \
         receiving waits for that"
    )]
    UnknownTopic {
        /// The topic.
        topic: String,
    },
    /// The brokers take the heartbeats of a group that they do not know, and ignore them.
    #[error(
        "no broker counts this client among the members of group {group}: does the group exist? \
         Set autoCreateSubscriptionGroup=true, or create it first (mqadmin updateSubGroup)"
    )]
    NotMember {
        /// The group.
        group: String,
    },
    /// The topic is there, but not for this.
    #[error("topic {topic} has no queue that can be {verb}: permissions, or no master is running")]
    NoQueue {
        /// The topic.
        topic: String,
        /// `written` or `read`.
        verb: &'static str,
    },
    /// The address that the name server gave leads nowhere.
    #[error(
        "the broker at {address} cannot be reached ({source}): is it running, and can this machine \
         reach the address that it registered (brokerIP1)?"
    )]
    Connect {
        /// As the name server gave it.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// The connection broke; a request under way may or may not have been carried out.
    #[error("the connection to {address} was lost: {why}")]
    Lost {
        /// The other end.
        address: String,
        /// How.
        why: LostWhy,
    },
    /// No answer in time; the request may or may not have been carried out.
    #[error("{address} did not answer {request} within {}", seconds(.timeout))]
    TimedOut {
        /// Who was asked.
        address: String,
        /// What.
        request: RequestCode,
        /// How long it had.
        timeout: Duration,
    },
    /// The answer is no.
    #[error("{address} refused {request}: code {code}{}", remark_text(.remark))]
    Refused {
        /// Who was asked.
        address: String,
        /// What.
        request: RequestCode,
        /// The answer's code.
        code: ResponseCode,
        /// The server's own words; may be empty.
        remark: String,
    },
    /// The answer is none.
    #[error("{address} answered {request} with something else: {why}")]
    Malformed {
        /// Who was asked.
        address: String,
        /// What.
        request: RequestCode,
        /// What is wrong.
        why: BadAnswer,
    },
    /// The caller could not pass a message on; it stays unread.
    #[error("a received message cannot be passed on: {0}")]
    Output(io::Error),
}

/// How a connection was lost.
#[derive(Debug, Error)]
pub enum LostWhy {
    /// The other end closed it.
    #[error("it was closed by the other end")]
    Closed,
    /// The network.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// What came is no frame.
    #[error("{0}")]
    Frame(#[from] FrameError),
}

/// What is wrong with an answer.
#[derive(Debug, Error)]
pub enum BadAnswer {
    /// A field of its header.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// Its JSON body.
    #[error(transparent)]
    Body(#[from] BodyError),
    /// A message in it.
    #[error(transparent)]
    Record(#[from] BadRecord),
}

/// Name servers that were asked in vain, each with its cause.
#[derive(Debug)]
pub struct Tried(pub Vec<(String, ClientError)>);

impl fmt::Display for Tried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (address, error)) in self.0.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            match error {
                ClientError::Connect { source, .. } => write!(f, "{comma}{address} ({source})")?,
                error => write!(f, "{comma}{error}")?,
            }
        }
        Ok(())
    }
}

fn seconds(timeout: &Duration) -> String {
    format!("{} s", timeout.as_secs())
}

fn remark_text(remark: &str) -> String {
    if remark.is_empty() {
        String::new()
    } else {
        format!(", {remark}")
    }
}

fn check_topic(name: &str) -> Result<(), ClientError> {
    check_name("topic", name, TOPIC_BYTES_MAX)
}

fn check_group(name: &str) -> Result<(), ClientError> {
    // The group's retry topic puts `%RETRY%` before the name, and fits the same bound.
    check_name("group", name, GROUP_BYTES_MAX - routes::RETRY_PREFIX.len())
}

/// Names that brokers take (broker-requests 0).
fn check_name(what: &'static str, name: &str, max: usize) -> Result<(), ClientError> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"%|_-".contains(&byte);
    if (1..=max).contains(&name.len()) && name.bytes().all(fits) {
        return Ok(());
    }
    Err(ClientError::Name {
        what,
        name: name.to_owned(),
        max,
    })
}

fn wall() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

fn wall_ms() -> i64 {
    i64::try_from(wall().as_millis()).unwrap_or(i64::MAX)
}

/// A number that differs from call to call.
fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish()
}

/// This process's name at the brokers: `ip@pid#nanoseconds` (client-behaviour 1 and 11).
fn client_id(ip: IpAddr) -> String {
    format!("{ip}@{}#{}", std::process::id(), wall().as_nanos())
}

/// The message's own id, UNIQ_KEY (client-behaviour 8). The constant is random, so that two
/// processes with equal pids on equal addresses (containers) do not make the same ids.
fn unique_key(ip: IpAddr) -> MessageId {
    UniqueKey {
        ip,
        process: std::process::id() as u16,
        constant: random() as u32,
        month_ms: month_ms(wall_ms()),
        counter: 0,
    }
    .encode()
}

/// Milliseconds since the first of the month, local time: tools look for the message around that
/// time. The 32 bits are read as unsigned, so that they last for a month. 0 if the system does not
/// know its time zone.
fn month_ms(now_ms: i64) -> i32 {
    let now = (now_ms / 1000) as libc::time_t;
    // SAFETY: a zeroed `tm` is a valid one: integers, and a pointer that may be null.
    let mut time: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to values on this stack.
    if unsafe { libc::localtime_r(&raw const now, &raw mut time) }.is_null() {
        return 0;
    }
    (time.tm_mday, time.tm_hour, time.tm_min, time.tm_sec) = (1, 0, 0, 0);
    time.tm_isdst = -1;
    // SAFETY: the pointer is to a value on this stack.
    let first = unsafe { libc::mktime(&raw mut time) };
    (now_ms - first * 1000) as i32
}

#[cfg(test)]
mod tests;
