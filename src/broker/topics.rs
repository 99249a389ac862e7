//! This core's copy of the topics. Control writes, every shard hears of it as news.

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use thiserror::Error;

use super::news::Topic;
use crate::ids::QueueKey;
use crate::limits::{RETRY_TOPIC_BYTES_MAX, TOPIC_BYTES_MAX};

pub const RETRY_PREFIX: &str = "%RETRY%";
pub const DEAD_LETTER_PREFIX: &str = "%DLQ%";

const PERM_READ: u32 = 4;
const PERM_INHERIT: u32 = 1;

/// Topics to which no client may send (1.3).
const NOT_FOR_CLIENTS: [&str; 6] = [
    "SCHEDULE_TOPIC_XXXX",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "SELF_TEST_TOPIC",
    "OFFSET_MOVED_EVENT",
];

/// Why a topic name is refused (code 29). Java's words: tests of clients look for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NameError {
    #[error("The specified topic is blank.")]
    Blank,
    #[error("The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$")]
    Characters,
    #[error("The specified topic is longer than topic max length.")]
    TooLong,
}

/// Whether a name of a topic or group has only characters that RocketMQ allows.
#[must_use]
pub fn is_legal_name(name: &str) -> bool {
    let legal =
        |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'%' | b'|' | b'_' | b'-');
    !name.is_empty() && name.as_bytes().iter().all(legal)
}

/// Checks a topic's name (broker-requests 0).
///
/// # Errors
/// See [`NameError`].
pub fn check_name(topic: &str) -> Result<(), NameError> {
    if topic.trim().is_empty() {
        return Err(NameError::Blank);
    }
    if !is_legal_name(topic) {
        return Err(NameError::Characters);
    }
    let long = topic.starts_with(RETRY_PREFIX) || topic.starts_with(DEAD_LETTER_PREFIX);
    let most = if long {
        RETRY_TOPIC_BYTES_MAX
    } else {
        TOPIC_BYTES_MAX
    };
    if topic.len() > most {
        return Err(NameError::TooLong);
    }
    Ok(())
}

#[must_use]
pub fn is_for_clients(topic: &str) -> bool {
    !NOT_FOR_CLIENTS.contains(&topic)
}

/// One topic as sends and pulls need it.
#[derive(Clone, Debug)]
pub struct TopicEntry {
    pub read_queues: u32,
    pub write_queues: u32,
    perm: u32,
    pub sys_flag: u32,
    pub multi_tag: bool,
    pub order: bool,
    /// Attribute `cleanup.policy=COMPACTION`: messages must have keys.
    pub compaction: bool,
    /// Attribute `queue.type=BatchCQ`.
    pub inner_batches: bool,
    queues: Box<[QueueKey]>,
}

impl TopicEntry {
    fn new(topic: &Topic) -> TopicEntry {
        let is = |name: &str, wanted: &str| {
            let value = topic.attributes.get(name);
            value.is_some_and(|value| value.eq_ignore_ascii_case(wanted))
        };
        TopicEntry {
            read_queues: topic.read_queues,
            write_queues: topic.write_queues,
            perm: topic.perm,
            sys_flag: topic.sys_flag,
            multi_tag: topic.multi_tag,
            order: topic.order,
            compaction: is("cleanup.policy", "COMPACTION"),
            inner_batches: is("queue.type", "BatchCQ"),
            queues: topic.queues.as_slice().into(),
        }
    }

    #[must_use]
    pub fn is_readable(&self) -> bool {
        self.perm & PERM_READ != 0
    }

    /// Whether new topics may be made after this one (1.4).
    #[must_use]
    pub fn is_template(&self) -> bool {
        self.perm & PERM_INHERIT != 0
    }

    /// The queue with this number; `None` for negative and unknown numbers.
    #[must_use]
    pub fn queue(&self, queue_id: i32) -> Option<QueueKey> {
        let index = usize::try_from(queue_id).ok()?;
        self.queues.get(index).copied()
    }

    #[must_use]
    pub fn queues(&self) -> &[QueueKey] {
        &self.queues
    }
}

/// All topics, by name.
#[derive(Debug)]
pub struct Topics {
    by_name: HashMap<Box<str>, TopicEntry, FixedState>,
}

impl Topics {
    #[must_use]
    pub fn new(topics: &[Topic], hash_seed: u64) -> Topics {
        let mut all = Topics {
            by_name: HashMap::with_hasher(FixedState::with_seed(hash_seed)),
        };
        topics.iter().for_each(|topic| all.set(topic));
        all
    }

    pub fn set(&mut self, topic: &Topic) {
        let entry = TopicEntry::new(topic);
        self.by_name.insert(topic.name.as_str().into(), entry);
    }

    pub fn remove(&mut self, topic: &str) -> Option<TopicEntry> {
        self.by_name.remove(topic)
    }

    #[must_use]
    pub fn get(&self, topic: &str) -> Option<&TopicEntry> {
        self.by_name.get(topic)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows 43 to 57, 74 and 75 of golden/errors-5.3.3.jsonl.
    #[test]
    fn names_are_judged_as_java_judges_them() {
        let long = |prefix: &str, bytes: usize| format!("{prefix}{}", "x".repeat(bytes));
        for good in [
            "a",
            "%",
            "|",
            "%RETRY%",
            &long("", 127),
            &long("%RETRY%", 248),
        ] {
            assert_eq!(check_name(good), Ok(()), "{good}");
        }
        for bad in [
            "bad topic",
            "ünï",
            "a/b",
            "a.b",
            "a+b",
            "a@b",
            "a:b",
            "..",
            "a\0b",
        ] {
            assert_eq!(check_name(bad), Err(NameError::Characters), "{bad}");
        }
        for blank in ["", " "] {
            assert_eq!(check_name(blank), Err(NameError::Blank), "{blank:?}");
        }
        for too_long in [long("", 128), long("", 256), long("%DLQ%", 251)] {
            assert_eq!(check_name(&too_long), Err(NameError::TooLong), "{too_long}");
        }
    }

    #[test]
    fn system_topics_are_not_for_clients() {
        for topic in NOT_FOR_CLIENTS {
            assert!(!is_for_clients(topic), "{topic}");
        }
        // Rows 63 to 69: these take sends.
        for topic in [
            "TBW102",
            "BenchmarkTest",
            "RMQ_SYS_TRACE_TOPIC",
            "rmq_sys_wheel_timer",
        ] {
            assert!(is_for_clients(topic), "{topic}");
        }
    }
}
