//! Which way each request goes, as a table by code (remoting 8).

use super::errors::Feature;
use crate::wire::RequestCode;

/// Who answers a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The connection's shard appends to the log.
    Send,
    /// The shard that owns the queue.
    Owner,
    /// The connection's shard, by a look-up.
    Here,
    Control,
    /// Refused by name.
    NotYet(Feature),
    /// No broker takes it.
    Unknown,
}

/// By code, so that a look-up halves it.
const WAYS: &[(RequestCode, Way)] = &[
    (RequestCode::SEND_MESSAGE, Way::Send),
    (RequestCode::PULL_MESSAGE, Way::Owner),
    (RequestCode::QUERY_MESSAGE, Way::Here),
    (RequestCode::QUERY_CONSUMER_OFFSET, Way::Owner),
    (RequestCode::UPDATE_CONSUMER_OFFSET, Way::Owner),
    (RequestCode::UPDATE_AND_CREATE_TOPIC, Way::Control),
    (RequestCode::UPDATE_AND_CREATE_TOPIC_LIST, Way::Control),
    (RequestCode::GET_ALL_TOPIC_CONFIG, Way::Control),
    (RequestCode::UPDATE_BROKER_CONFIG, Way::Control),
    (RequestCode::GET_BROKER_CONFIG, Way::Control),
    (RequestCode::GET_BROKER_RUNTIME_INFO, Way::Control),
    (RequestCode::SEARCH_OFFSET_BY_TIMESTAMP, Way::Owner),
    (RequestCode::GET_MAX_OFFSET, Way::Owner),
    (RequestCode::GET_MIN_OFFSET, Way::Owner),
    (RequestCode::GET_EARLIEST_MSG_STORETIME, Way::Owner),
    (RequestCode::VIEW_MESSAGE_BY_ID, Way::Here),
    (RequestCode::HEART_BEAT, Way::Control),
    (RequestCode::UNREGISTER_CLIENT, Way::Control),
    (
        RequestCode::CONSUMER_SEND_MSG_BACK,
        Way::NotYet(Feature::SendBack),
    ),
    (
        RequestCode::END_TRANSACTION,
        Way::NotYet(Feature::Transactions),
    ),
    (RequestCode::GET_CONSUMER_LIST_BY_GROUP, Way::Control),
    (RequestCode::LOCK_BATCH_MQ, Way::NotYet(Feature::Locks)),
    (RequestCode::UNLOCK_BATCH_MQ, Way::NotYet(Feature::Locks)),
    (RequestCode::GET_ALL_CONSUMER_OFFSET, Way::Control),
    (RequestCode::GET_ALL_DELAY_OFFSET, Way::Control),
    (RequestCode::CHECK_CLIENT_CONFIG, Way::Control),
    (
        RequestCode::GET_TIMER_CHECK_POINT,
        Way::NotYet(Feature::Timer),
    ),
    (RequestCode::GET_TIMER_METRICS, Way::NotYet(Feature::Timer)),
    (
        RequestCode::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        Way::Control,
    ),
    (RequestCode::GET_ALL_SUBSCRIPTIONGROUP_CONFIG, Way::Control),
    (RequestCode::GET_TOPIC_STATS_INFO, Way::Control),
    (RequestCode::GET_CONSUMER_CONNECTION_LIST, Way::Control),
    (RequestCode::GET_PRODUCER_CONNECTION_LIST, Way::Control),
    (RequestCode::DELETE_SUBSCRIPTIONGROUP, Way::Control),
    (RequestCode::GET_CONSUME_STATS, Way::Control),
    (RequestCode::DELETE_TOPIC_IN_BROKER, Way::Control),
    (RequestCode::INVOKE_BROKER_TO_RESET_OFFSET, Way::Control),
    (
        RequestCode::INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        Way::Control,
    ),
    (
        RequestCode::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        Way::Control,
    ),
    (RequestCode::QUERY_TOPIC_CONSUME_BY_WHO, Way::Control),
    (RequestCode::QUERY_CONSUME_TIME_SPAN, Way::Control),
    (RequestCode::GET_SYSTEM_TOPIC_LIST_FROM_BROKER, Way::Control),
    (RequestCode::CLEAN_EXPIRED_CONSUMEQUEUE, Way::Control),
    (RequestCode::GET_CONSUMER_RUNNING_INFO, Way::Control),
    (RequestCode::QUERY_CORRECTION_OFFSET, Way::Control),
    (RequestCode::CONSUME_MESSAGE_DIRECTLY, Way::Control),
    (RequestCode::SEND_MESSAGE_V2, Way::Send),
    (RequestCode::CLONE_GROUP_OFFSET, Way::Control),
    (RequestCode::VIEW_BROKER_STATS_DATA, Way::Control),
    (RequestCode::CLEAN_UNUSED_TOPIC, Way::Control),
    (RequestCode::GET_BROKER_CONSUME_STATS, Way::Control),
    (RequestCode::SEND_BATCH_MESSAGE, Way::Send),
    (RequestCode::QUERY_CONSUME_QUEUE, Way::Control),
    (
        RequestCode::RESUME_CHECK_HALF_MESSAGE,
        Way::NotYet(Feature::Transactions),
    ),
    (
        RequestCode::SEND_REPLY_MESSAGE,
        Way::NotYet(Feature::RequestReply),
    ),
    (
        RequestCode::SEND_REPLY_MESSAGE_V2,
        Way::NotYet(Feature::RequestReply),
    ),
    (RequestCode::GET_ALL_PRODUCER_INFO, Way::Control),
    (RequestCode::DELETE_EXPIRED_COMMITLOG, Way::Control),
    (RequestCode::QUERY_TOPICS_BY_CONSUMER, Way::Control),
    (RequestCode::QUERY_SUBSCRIPTION_BY_CONSUMER, Way::Control),
    (RequestCode::GET_TOPIC_CONFIG, Way::Control),
    (RequestCode::GET_SUBSCRIPTIONGROUP_CONFIG, Way::Control),
    (RequestCode::UPDATE_AND_GET_GROUP_FORBIDDEN, Way::Control),
    (RequestCode::LITE_PULL_MESSAGE, Way::Owner),
    (RequestCode::RECALL_MESSAGE, Way::NotYet(Feature::Recall)),
    (
        RequestCode::QUERY_ASSIGNMENT,
        Way::NotYet(Feature::Assignment),
    ),
    (
        RequestCode::SET_MESSAGE_REQUEST_MODE,
        Way::NotYet(Feature::Assignment),
    ),
    (
        RequestCode::GET_ALL_MESSAGE_REQUEST_MODE,
        Way::NotYet(Feature::Assignment),
    ),
    (RequestCode::GET_BROKER_HA_STATUS, Way::Control),
    (RequestCode::AUTH_CREATE_USER, Way::Control),
    (RequestCode::AUTH_UPDATE_USER, Way::Control),
    (RequestCode::AUTH_DELETE_USER, Way::Control),
    (RequestCode::AUTH_GET_USER, Way::Control),
    (RequestCode::AUTH_LIST_USER, Way::Control),
    (RequestCode::AUTH_CREATE_ACL, Way::Control),
    (RequestCode::AUTH_UPDATE_ACL, Way::Control),
    (RequestCode::AUTH_DELETE_ACL, Way::Control),
    (RequestCode::AUTH_GET_ACL, Way::Control),
    (RequestCode::AUTH_LIST_ACL, Way::Control),
    (RequestCode::POP_MESSAGE, Way::NotYet(Feature::Pop)),
    (RequestCode::ACK_MESSAGE, Way::NotYet(Feature::Pop)),
    (RequestCode::PEEK_MESSAGE, Way::NotYet(Feature::Pop)),
    (
        RequestCode::CHANGE_MESSAGE_INVISIBLETIME,
        Way::NotYet(Feature::Pop),
    ),
    (RequestCode::NOTIFICATION, Way::NotYet(Feature::Pop)),
    (RequestCode::POLLING_INFO, Way::NotYet(Feature::Pop)),
    (RequestCode::POP_ROLLBACK, Way::NotYet(Feature::Pop)),
    (RequestCode::BATCH_ACK_MESSAGE, Way::NotYet(Feature::Pop)),
];

/// The way of a request.
#[must_use]
pub fn way(code: RequestCode) -> Way {
    let found = WAYS.binary_search_by_key(&code, |(code, _)| *code);
    found.map_or(Way::Unknown, |at| WAYS[at].1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_names_each_code_once() {
        let sorted = WAYS.windows(2).all(|pair| pair[0].0 < pair[1].0);
        assert!(sorted, "a look-up halves the table");
        for (code, found) in WAYS {
            assert_eq!(way(*code), *found);
        }
    }

    #[test]
    fn what_no_broker_takes_is_unknown() {
        for code in [0, 9, 105, 99_999, -1] {
            assert_eq!(way(RequestCode(code)), Way::Unknown, "{code}");
        }
    }
}
