//! Why a request is refused: one enum per verb, and the one table from there to response codes.
//!
//! The texts are what the asker reads in the remark, so each says the cause and, where there is
//! one, the cure. Spec: `broker-requests.md` 1.3, 1.7, 4.2, 10 and 13.

use shards::role::ReadError;
use thiserror::Error;

use crate::flow::TooMany;
use crate::ids::Millis;
use crate::role::AppendRefused;
use crate::wire::ResponseCode;
use crate::wire::batch::BatchError;
use crate::wire::headers::HeaderError;
use crate::wire::record::EncodeError;

use super::topics::NameError;

/// What a request asks for and this broker does not do yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Feature {
    #[error("delayed messages (property DELAY)")]
    DelayLevels,
    #[error("messages for a given time (properties TIMER_*)")]
    Timer,
    #[error("transactional messages")]
    Transactions,
    #[error("inner batches (topic attribute queue.type=BatchCQ)")]
    InnerBatches,
    #[error("sending messages back for a retry")]
    SendBack,
    #[error("queue locks of orderly consumers")]
    Locks,
    #[error("request-reply messages")]
    RequestReply,
    #[error("recalling timer messages")]
    Recall,
    #[error("POP consumption")]
    Pop,
    #[error("queue assignment by the broker")]
    Assignment,
}

/// Nothing was stored, but for [`AppendRefused::Poisoned`]: then the outcome is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SendError<'a> {
    #[error(transparent)]
    Field(#[from] HeaderError),
    #[error("broker unable to service, until {} ms since 1970", .until.0)]
    NotYetAccepting { until: Millis },
    #[error("the broker's permission forbids sending to ordered topics")]
    BrokerNotWritable,
    #[error(transparent)]
    Name(#[from] NameError),
    #[error("Sending message to topic[{topic}] is forbidden.")]
    SystemTopic { topic: &'a str },
    #[error(
        "topic[{topic}] not exist, apply first please! It could not be made by this send: \
         its default topic allows no new topics"
    )]
    NoTopic { topic: &'a str },
    #[error("request queueId[{queue_id}] is illegal: {read} read and {write} write queues")]
    QueueId {
        queue_id: i32,
        read: u32,
        write: u32,
    },
    #[error("subscription group not exist, {group}")]
    NoGroup { group: &'a str },
    #[error("the dead-letter topic of group {group} could not be made")]
    NoDeadLetters { group: &'a str },
    #[error("Required message key is missing")]
    NoKeys,
    #[error("batch request does not support retry group {topic}")]
    BatchToRetry { topic: &'a str },
    #[error("a topic of {bytes} bytes; at most 127 unless it is a retry topic")]
    TopicTooLong { bytes: usize },
    #[error("the message has no body")]
    NoBody,
    #[error("a body of {bytes} bytes; maxMessageSize is {max}")]
    BodyTooLong { bytes: usize, max: usize },
    #[error("message body size exceeded: a batch of {bytes} bytes; maxMessageSize is {max}")]
    BatchTooLong { bytes: usize, max: usize },
    #[error("the records of this batch take more than {max} bytes; send fewer at once")]
    BatchRecordsTooLong { max: usize },
    #[error(transparent)]
    Encode(#[from] EncodeError),
    #[error(transparent)]
    Batch(#[from] BatchError),
    #[error("the properties hold a zero byte, which the log does not store")]
    Nul,
    #[error("INNER_NUM or the inner batch flag on a topic without inner batches")]
    InnerBatch,
    #[error("the property DELAY is not a number")]
    DelayLevel,
    #[error("this broker does not support {0} yet")]
    NotBuilt(Feature),
    #[error("the broker's disk is too full; nothing is stored until space is freed")]
    DiskFull,
    #[error("the broker is stopping")]
    Stopping,
    #[error("[OVERLOAD]{waiting_bytes} bytes of sends wait already, start another broker")]
    Overloaded { waiting_bytes: usize },
    #[error(
        "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, \
         period in queue: {waited_ms}ms, size of queue: {waiting}"
    )]
    WaitedTooLong { waited_ms: u64, waiting: usize },
    #[error("[OVERLOAD]too many topics are being made at the moment")]
    TooManyNewTopics,
    #[error(transparent)]
    Refused(#[from] AppendRefused),
}

#[must_use]
pub fn send_code(error: &SendError<'_>) -> ResponseCode {
    match error {
        SendError::Field(_)
        | SendError::NotYetAccepting { .. }
        | SendError::BatchTooLong { .. }
        | SendError::Batch(_)
        | SendError::NoDeadLetters { .. }
        | SendError::DelayLevel => ResponseCode::SYSTEM_ERROR,
        SendError::BrokerNotWritable | SendError::SystemTopic { .. } => ResponseCode::NO_PERMISSION,
        SendError::Name(_) | SendError::QueueId { .. } => ResponseCode::INVALID_PARAMETER,
        SendError::NoTopic { .. } => ResponseCode::TOPIC_NOT_EXIST,
        SendError::NoGroup { .. } => ResponseCode::SUBSCRIPTION_GROUP_NOT_EXIST,
        SendError::NoKeys
        | SendError::BatchToRetry { .. }
        | SendError::TopicTooLong { .. }
        | SendError::NoBody
        | SendError::BodyTooLong { .. }
        | SendError::BatchRecordsTooLong { .. }
        | SendError::Encode(_)
        | SendError::Nul
        | SendError::InnerBatch
        | SendError::NotBuilt(_) => ResponseCode::MESSAGE_ILLEGAL,
        SendError::DiskFull | SendError::Stopping => ResponseCode::SERVICE_NOT_AVAILABLE,
        SendError::Overloaded { .. }
        | SendError::WaitedTooLong { .. }
        | SendError::TooManyNewTopics => ResponseCode::SYSTEM_BUSY,
        SendError::Refused(refused) => match refused {
            AppendRefused::Busy => ResponseCode::SYSTEM_BUSY,
            AppendRefused::NoSegment | AppendRefused::Poisoned | AppendRefused::Stopping => {
                ResponseCode::SERVICE_NOT_AVAILABLE
            }
            AppendRefused::NoQueue => ResponseCode::TOPIC_NOT_EXIST,
        },
    }
}

/// Whether the answer carries MSG_REGION and TRACE_ON, as Java's does unless it failed while it
/// read the request.
#[must_use]
pub fn send_error_has_fields(error: &SendError<'_>) -> bool {
    send_code(error) != ResponseCode::SYSTEM_ERROR
}

/// Why a pull is answered without looking at the queue, or could not look at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PullError<'a> {
    #[error(transparent)]
    Field(#[from] HeaderError),
    #[error("the broker's permission forbids pulling messages")]
    BrokerNotReadable,
    #[error("lite pull is not enabled on this broker (litePullMessageEnable)")]
    LiteDisabled,
    #[error("subscription group [{group}] does not exist")]
    NoGroup { group: &'a str },
    #[error("subscription group no permission, {group}")]
    GroupDisabled { group: &'a str },
    #[error("topic[{topic}] not exist, apply first please!")]
    NoTopic { topic: &'a str },
    #[error("the topic[{topic}] pulling message is forbidden")]
    TopicNotReadable { topic: &'a str },
    #[error("queueId[{queue_id}] is illegal, topic:[{topic}] topicConfig.readQueueNums:[{read}]")]
    QueueId {
        queue_id: i32,
        topic: &'a str,
        read: u32,
    },
    #[error("parse the consumer's subscription failed")]
    Expression,
    #[error("the consumer's group info not exist")]
    GroupOffline,
    #[error("the consumer group[{group}] can not consume by broadcast way")]
    BroadcastForbidden { group: &'a str },
    #[error("the consumer's subscription not exist")]
    NotSubscribed,
    #[error("the consumer's subscription not latest")]
    SubscriptionOld,
    #[error("The broker does not support consumer to filter message by {kind}")]
    ExpressionType { kind: &'a str },
    #[error("[OVERLOAD]too many pulls wait already")]
    TooManyHeld,
    #[error("[OVERLOAD]this broker keeps no more consumer offsets")]
    TooManyOffsets,
    #[error(transparent)]
    TooMany(#[from] TooMany),
    #[error("the queue or the log cannot be read: {0}")]
    Read(#[from] ReadError),
    #[error("the topic was deleted")]
    TopicGone,
}

#[must_use]
pub fn pull_code(error: &PullError<'_>) -> ResponseCode {
    match error {
        PullError::Field(_) | PullError::ExpressionType { .. } | PullError::Read(_) => {
            ResponseCode::SYSTEM_ERROR
        }
        PullError::BrokerNotReadable
        | PullError::LiteDisabled
        | PullError::GroupDisabled { .. }
        | PullError::TopicNotReadable { .. }
        | PullError::BroadcastForbidden { .. } => ResponseCode::NO_PERMISSION,
        PullError::NoGroup { .. } => ResponseCode::SUBSCRIPTION_GROUP_NOT_EXIST,
        PullError::NoTopic { .. } | PullError::TopicGone => ResponseCode::TOPIC_NOT_EXIST,
        PullError::QueueId { .. } => ResponseCode::INVALID_PARAMETER,
        PullError::Expression => ResponseCode::SUBSCRIPTION_PARSE_FAILED,
        PullError::GroupOffline | PullError::NotSubscribed => ResponseCode::SUBSCRIPTION_NOT_EXIST,
        PullError::SubscriptionOld => ResponseCode::SUBSCRIPTION_NOT_LATEST,
        PullError::TooManyHeld | PullError::TooManyOffsets | PullError::TooMany(_) => {
            ResponseCode::SYSTEM_BUSY
        }
    }
}

/// The field `forbiddenType` of a pull that is forbidden (4.2).
#[must_use]
pub fn forbidden_type(error: &PullError<'_>) -> Option<i32> {
    match error {
        PullError::BrokerNotReadable => Some(1),
        PullError::GroupDisabled { .. } => Some(2),
        PullError::TopicNotReadable { .. } => Some(3),
        PullError::BroadcastForbidden { .. } => Some(4),
        PullError::Field(_)
        | PullError::LiteDisabled
        | PullError::NoGroup { .. }
        | PullError::NoTopic { .. }
        | PullError::QueueId { .. }
        | PullError::Expression
        | PullError::GroupOffline
        | PullError::NotSubscribed
        | PullError::SubscriptionOld
        | PullError::ExpressionType { .. }
        | PullError::TooManyHeld
        | PullError::TooManyOffsets
        | PullError::TooMany(_)
        | PullError::Read(_)
        | PullError::TopicGone => None,
    }
}

/// Why a question about a queue's or a group's offsets (14, 15, 29 to 32) gets no number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum OffsetError<'a> {
    #[error(transparent)]
    Field(#[from] HeaderError),
    #[error("Group {group} not exist!")]
    NoGroup { group: &'a str },
    #[error("Topic {topic} not exist!")]
    NoTopic { topic: &'a str },
    #[error("Offset is null, topic is {topic}")]
    NoOffset { topic: &'a str },
    #[error("Not found, do not set to zero, maybe this group boot first")]
    NotFoundNotZero,
    #[error("Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first")]
    NotFound,
    #[error("[OVERLOAD]this broker keeps no more consumer offsets")]
    TooManyOffsets,
    #[error(transparent)]
    TooMany(#[from] TooMany),
    #[error("the queue or the log cannot be read: {0}")]
    Read(#[from] ReadError),
}

#[must_use]
pub fn offset_code(error: &OffsetError<'_>) -> ResponseCode {
    match error {
        OffsetError::Field(_) | OffsetError::Read(_) => ResponseCode::SYSTEM_ERROR,
        OffsetError::NoGroup { .. } => ResponseCode::SUBSCRIPTION_GROUP_NOT_EXIST,
        OffsetError::NoTopic { .. } => ResponseCode::TOPIC_NOT_EXIST,
        OffsetError::NoOffset { .. } => ResponseCode::INVALID_PARAMETER,
        OffsetError::NotFoundNotZero | OffsetError::NotFound => ResponseCode::QUERY_NOT_FOUND,
        OffsetError::TooManyOffsets | OffsetError::TooMany(_) => ResponseCode::SYSTEM_BUSY,
    }
}

/// Why a look-up of messages (12, 33) brings none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum QueryError {
    #[error(transparent)]
    Field(#[from] HeaderError),
    #[error("can not find message by the offset, {offset}")]
    NoMessageAt { offset: i64 },
    #[error("can not find message, maybe time range not correct")]
    NothingFound,
    #[error(transparent)]
    TooMany(#[from] TooMany),
    #[error("the log cannot be read: {0}")]
    Read(#[from] ReadError),
}

#[must_use]
pub fn query_code(error: &QueryError) -> ResponseCode {
    match error {
        QueryError::Field(_) | QueryError::NoMessageAt { .. } | QueryError::Read(_) => {
            ResponseCode::SYSTEM_ERROR
        }
        QueryError::NothingFound => ResponseCode::QUERY_NOT_FOUND,
        QueryError::TooMany(_) => ResponseCode::SYSTEM_BUSY,
    }
}

/// Why a request is not even looked into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RouteError {
    #[error(" request type {code} not supported")]
    UnknownCode { code: i32 },
    #[error(" request type {code} not supported: this broker does not have {feature} yet")]
    NotBuilt { code: i32, feature: Feature },
    #[error("a request of {bytes} bytes; at most {max} for this code")]
    TooLong { bytes: usize, max: usize },
    #[error("[OVERLOAD]the core that must answer this is too busy")]
    Busy,
}

#[must_use]
pub fn route_code(error: &RouteError) -> ResponseCode {
    match error {
        RouteError::UnknownCode { .. } | RouteError::NotBuilt { .. } => {
            ResponseCode::REQUEST_CODE_NOT_SUPPORTED
        }
        RouteError::TooLong { .. } => ResponseCode::SYSTEM_ERROR,
        RouteError::Busy => ResponseCode::SYSTEM_BUSY,
    }
}
