//! The extension fields of requests and responses: one line per field.
//!
//! Spec: `broker-requests.md` and `namesrv.md`. A field is
//! * `required`: decoding fails if it is missing (the caller answers 1 and names it),
//! * `optional`: `None` if it is missing and left out when written,
//! * `or x`: `x` if it is missing.
//!
//! Java misses only the fields that it reads: what it never looks at is not `required` here.
//! Unknown fields are skipped; of a field that comes twice the last counts.

use super::frame::{ExtWriter, Header};

/// Why the fields of a request or response cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// A required field did not come.
    #[error("the field {field} is missing")]
    Missing {
        /// Its name on the wire.
        field: &'static str,
    },
    /// A number field that is none, or passes its 32 or 64 bits. Blanks and `0x` are refused.
    #[error("the field {field} is not a number")]
    NotANumber {
        /// Its name on the wire.
        field: &'static str,
    },
}

impl HeaderError {
    /// The name on the wire of the field that is wrong.
    pub fn field(self) -> &'static str {
        match self {
            HeaderError::Missing { field } | HeaderError::NotANumber { field } => field,
        }
    }
}

/// A type that an extension field can have.
trait FieldValue<'a>: Sized {
    fn parse(text: &'a str) -> Option<Self>;
    fn put(&self, name: &str, out: &mut ExtWriter<'_>);
}

impl<'a> FieldValue<'a> for &'a str {
    fn parse(text: &'a str) -> Option<Self> {
        Some(text)
    }
    fn put(&self, name: &str, out: &mut ExtWriter<'_>) {
        out.put_str(name, self);
    }
}

impl FieldValue<'_> for i32 {
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }
    fn put(&self, name: &str, out: &mut ExtWriter<'_>) {
        out.put_int(name, *self);
    }
}

impl FieldValue<'_> for i64 {
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }
    fn put(&self, name: &str, out: &mut ExtWriter<'_>) {
        out.put_int(name, *self);
    }
}

impl FieldValue<'_> for bool {
    /// As `Boolean.parseBoolean`: everything but "true" is false.
    fn parse(text: &str) -> Option<Self> {
        Some(text.eq_ignore_ascii_case("true"))
    }
    fn put(&self, name: &str, out: &mut ExtWriter<'_>) {
        out.put_bool(name, *self);
    }
}

/// The C++ client marks a batch with "1".
fn true_or_1(text: &str) -> Option<bool> {
    Some(text == "1" || text.eq_ignore_ascii_case("true"))
}

macro_rules! header_fields {
    ($(
        $(#[$doc:meta])*
        $name:ident $(<$lt:lifetime>)? {
            $($field:ident: $type:ty, $kind:ident $(($default:expr))?,
                $wire:literal $(| $alias:literal)* $(, $parse:path)?;)*
        }
    )*) => {$(
        $(#[$doc])*
        #[allow(missing_docs)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name $(<$lt>)? {
            $(pub $field: header_fields!(@type $kind $type),)*
        }

        impl $(<$lt>)? $name $(<$lt>)? {
            /// Reads the fields.
            ///
            /// # Errors
            /// The first required field that is missing, or a number that is none.
            pub fn decode(header: &Header<$($lt)?>) -> Result<Self, HeaderError> {
                $(let mut $field: Option<$type> = None;)*
                for (name, text) in header.ext_fields() {
                    match name {
                        $($wire $(| $alias)* => {
                            let value = header_fields!(@parse $type, text $(, $parse)?);
                            $field = Some(value.ok_or(HeaderError::NotANumber { field: $wire })?);
                        })*
                        _ => {}
                    }
                }
                Ok($name {
                    $($field: header_fields!(@value $kind $field, $wire $(, $default)?),)*
                })
            }

            /// Writes the fields, in the order of the declaration and under the first name of each.
            pub fn encode(&self, out: &mut ExtWriter<'_>) {
                $(header_fields!(@put $kind self.$field, $wire, out);)*
            }
        }
    )*};
    (@type required $type:ty) => { $type };
    (@type optional $type:ty) => { Option<$type> };
    (@type or $type:ty) => { $type };
    (@parse $type:ty, $text:ident) => { <$type as FieldValue>::parse($text) };
    (@parse $type:ty, $text:ident, $parse:path) => { $parse($text) };
    (@value required $field:ident, $wire:literal) => {
        $field.ok_or(HeaderError::Missing { field: $wire })?
    };
    (@value optional $field:ident, $wire:literal) => { $field };
    (@value or $field:ident, $wire:literal, $default:expr) => { $field.unwrap_or($default) };
    (@put required $value:expr, $wire:literal, $out:ident) => { $value.put($wire, $out) };
    (@put or $value:expr, $wire:literal, $out:ident) => { $value.put($wire, $out) };
    (@put optional $value:expr, $wire:literal, $out:ident) => {
        if let Some(value) = &$value {
            value.put($wire, $out);
        }
    };
}

header_fields! {
    /// 10, 310, 320, 324, 325 (`broker-requests.md` 1.1). Letters and long names are both taken
    /// for any of the codes; written are the letters ([`SendRequest::encode_long_names`]: 10, 324).
    SendRequest<'a> {
        producer_group: &'a str, or(""), "a" | "producerGroup";
        topic: &'a str, required, "b" | "topic";
        default_topic: &'a str, or(""), "c" | "defaultTopic";
        default_topic_queue_nums: i32, or(0), "d" | "defaultTopicQueueNums";
        queue_id: i32, required, "e" | "queueId";
        sys_flag: i32, required, "f" | "sysFlag";
        born_timestamp: i64, required, "g" | "bornTimestamp";
        flag: i32, required, "h" | "flag";
        properties: &'a str, or(""), "i" | "properties";
        reconsume_times: i32, or(0), "j" | "reconsumeTimes";
        unit_mode: bool, or(false), "k" | "unitMode";
        max_reconsume_times: i32, optional, "l" | "maxReconsumeTimes";
        batch: bool, or(false), "m" | "batch", true_or_1;
        broker_name: &'a str, optional, "n" | "bname" | "brokerName";
    }

    /// The answer to a send (1.2); also with codes 10, 11 and 12, when the message is stored.
    SendResponse<'a> {
        msg_id: &'a str, required, "msgId";
        queue_id: i32, required, "queueId";
        queue_offset: i64, required, "queueOffset";
        transaction_id: &'a str, optional, "transactionId";
        batch_uniq_id: &'a str, optional, "batchUniqId";
        recall_handle: &'a str, optional, "recallHandle";
        msg_region: &'a str, optional, "MSG_REGION";
        trace_on: bool, optional, "TRACE_ON";
    }

    /// 11 and 361 (4.1).
    PullRequest<'a> {
        consumer_group: &'a str, required, "consumerGroup";
        topic: &'a str, required, "topic";
        queue_id: i32, required, "queueId";
        queue_offset: i64, required, "queueOffset";
        max_msg_nums: i32, required, "maxMsgNums";
        sys_flag: i32, required, "sysFlag";
        commit_offset: i64, or(0), "commitOffset";
        suspend_timeout_millis: i64, or(0), "suspendTimeoutMillis";
        subscription: &'a str, optional, "subscription";
        sub_version: i64, or(0), "subVersion";
        expression_type: &'a str, optional, "expressionType";
        max_msg_bytes: i32, optional, "maxMsgBytes";
        request_source: i32, optional, "requestSource";
        proxy_forward_client_id: &'a str, optional, "proxyFrowardClientId";
    }

    /// The answer to a pull (4.3): on codes 0, 19, 20 and 21 all four required fields.
    PullResponse {
        suggest_which_broker_id: i64, required, "suggestWhichBrokerId";
        next_begin_offset: i64, required, "nextBeginOffset";
        min_offset: i64, required, "minOffset";
        max_offset: i64, required, "maxOffset";
        offset_delta: i64, optional, "offsetDelta";
        topic_sys_flag: i32, optional, "topicSysFlag";
        group_sys_flag: i32, optional, "groupSysFlag";
        forbidden_type: i32, optional, "forbiddenType";
    }

    /// 12 (13). A missing key finds nothing (22).
    QueryMessageRequest<'a> {
        topic: &'a str, required, "topic";
        key: &'a str, or(""), "key";
        max_num: i32, required, "maxNum";
        begin_timestamp: i64, required, "beginTimestamp";
        end_timestamp: i64, required, "endTimestamp";
        is_unique_key: bool, or(false), "_UNIQUE_KEY_QUERY";
    }

    /// The answer to 12.
    QueryMessageResponse {
        index_last_update_timestamp: i64, required, "indexLastUpdateTimestamp";
        index_last_update_phyoffset: i64, required, "indexLastUpdatePhyoffset";
    }

    /// 33 (13): the log offset of a record.
    ViewMessageRequest<'a> {
        offset: i64, required, "offset";
        topic: &'a str, optional, "topic";
    }

    /// 14 (10).
    QueryConsumerOffsetRequest<'a> {
        consumer_group: &'a str, required, "consumerGroup";
        topic: &'a str, required, "topic";
        queue_id: i32, required, "queueId";
        set_zero_if_not_found: bool, optional, "setZeroIfNotFound";
    }

    /// 15 (10). A `commitOffset` that is missing or no number is answered 29, not 1.
    UpdateConsumerOffsetRequest<'a> {
        consumer_group: &'a str, required, "consumerGroup";
        topic: &'a str, required, "topic";
        queue_id: i32, required, "queueId";
        commit_offset: i64, required, "commitOffset";
    }

    /// 29 (10). `boundaryType` is "lower" or "upper" in any case; other text means lower.
    SearchOffsetRequest<'a> {
        topic: &'a str, required, "topic";
        queue_id: i32, required, "queueId";
        timestamp: i64, required, "timestamp";
        boundary_type: &'a str, optional, "boundaryType";
    }

    /// 30, 31 and 32 (10).
    QueueRequest<'a> {
        topic: &'a str, required, "topic";
        queue_id: i32, required, "queueId";
        committed: bool, optional, "committed";
    }

    /// The answer to 14, 29, 30 and 31.
    OffsetResponse {
        offset: i64, required, "offset";
    }

    /// The answer to 32: milliseconds, -1 if there is no message.
    TimestampResponse {
        timestamp: i64, required, "timestamp";
    }

    /// The answer to 34 (6).
    HeartbeatResponse {
        is_support_heart_beat_v2: bool, optional, "IS_SUPPORT_HEART_BEAT_V2";
        is_sub_change: bool, optional, "IS_SUB_CHANGE";
    }

    /// 35 (7). C++ sends both groups, the unused one empty.
    UnregisterClientRequest<'a> {
        client_id: &'a str, or(""), "clientID";
        producer_group: &'a str, optional, "producerGroup";
        consumer_group: &'a str, optional, "consumerGroup";
    }

    /// 38 (8), and 40 (9) to a client.
    ConsumerGroupRequest<'a> {
        consumer_group: &'a str, required, "consumerGroup";
    }

    /// 36 (5): the log offset of the record to try again.
    SendBackRequest<'a> {
        offset: i64, required, "offset";
        group: &'a str, required, "group";
        delay_level: i32, required, "delayLevel";
        origin_msg_id: &'a str, optional, "originMsgId";
        origin_topic: &'a str, optional, "originTopic";
        unit_mode: bool, or(false), "unitMode";
        max_reconsume_times: i32, optional, "maxReconsumeTimes";
    }

    /// 37 (12.1).
    EndTransactionRequest<'a> {
        topic: &'a str, optional, "topic";
        producer_group: &'a str, required, "producerGroup";
        tran_state_table_offset: i64, required, "tranStateTableOffset";
        commit_log_offset: i64, required, "commitLogOffset";
        commit_or_rollback: i32, required, "commitOrRollback";
        from_transaction_check: bool, or(false), "fromTransactionCheck";
        msg_id: &'a str, required, "msgId";
        transaction_id: &'a str, optional, "transactionId";
    }

    /// 17 (17). Numbers are not checked by Java.
    CreateTopicRequest<'a> {
        topic: &'a str, required, "topic";
        default_topic: &'a str, or(""), "defaultTopic";
        read_queue_nums: i32, required, "readQueueNums";
        write_queue_nums: i32, required, "writeQueueNums";
        perm: i32, required, "perm";
        topic_filter_type: &'a str, required, "topicFilterType";
        topic_sys_flag: i32, or(0), "topicSysFlag";
        order: bool, or(false), "order";
        attributes: &'a str, optional, "attributes";
        force: bool, or(false), "force";
    }

    /// 202, 215, 300 and 351 (17). Java answers 29 to a 215 without a topic, so a missing topic is
    /// the empty one.
    TopicRequest<'a> {
        topic: &'a str, or(""), "topic";
    }

    /// 21 (17): paging, absent for "everything".
    GetAllTopicConfigRequest<'a> {
        topic_seq: i32, optional, "topicSeq";
        data_version: &'a str, optional, "dataVersion";
        max_topic_num: i32, optional, "maxTopicNum";
    }

    /// The answer to 21.
    GetAllTopicConfigResponse {
        total_topic_num: i32, optional, "totalTopicNum";
    }
}

header_fields! {
    /// 105 (`namesrv.md` 2.1). Without a topic: 17.
    RouteRequest<'a> {
        topic: &'a str, or(""), "topic";
        accept_standard_json_only: bool, or(false), "acceptStandardJsonOnly";
        zone_name: &'a str, optional, "__ZONE_NAME";
        zone_mode: bool, or(false), "__ZONE_MODE";
    }

    /// 103 (2.2).
    RegisterBrokerRequest<'a> {
        broker_name: &'a str, required, "brokerName";
        broker_addr: &'a str, required, "brokerAddr";
        cluster_name: &'a str, required, "clusterName";
        ha_server_addr: &'a str, required, "haServerAddr";
        broker_id: i64, required, "brokerId";
        heartbeat_timeout_millis: i64, optional, "heartbeatTimeoutMillis";
        enable_acting_master: bool, optional, "enableActingMaster";
        compressed: bool, or(false), "compressed";
        body_crc32: i32, or(0), "bodyCrc32";
        zone_name: &'a str, optional, "__ZONE_NAME";
    }

    /// The answer to 103: filled in for slaves.
    RegisterBrokerResponse<'a> {
        ha_server_addr: &'a str, optional, "haServerAddr";
        master_addr: &'a str, optional, "masterAddr";
    }

    /// 104 and 322 (2.3, 2.4).
    BrokerIdentityRequest<'a> {
        broker_name: &'a str, required, "brokerName";
        broker_addr: &'a str, required, "brokerAddr";
        cluster_name: &'a str, required, "clusterName";
        broker_id: i64, required, "brokerId";
    }

    /// The answer to 322.
    QueryDataVersionResponse {
        changed: bool, required, "changed";
    }

    /// 904 (2.5).
    BrokerHeartbeatRequest<'a> {
        cluster_name: &'a str, required, "clusterName";
        broker_addr: &'a str, required, "brokerAddr";
        broker_name: &'a str, required, "brokerName";
        broker_id: i64, optional, "brokerId";
        epoch: i32, optional, "epoch";
        max_offset: i64, optional, "maxOffset";
        confirm_offset: i64, optional, "confirmOffset";
        heartbeat_timeout_mills: i64, optional, "heartbeatTimeoutMills";
        election_priority: i32, optional, "electionPriority";
    }

    /// 100, 101, 102 and 219 (2.8): which of the three are needed depends on the code.
    KvConfigRequest<'a> {
        namespace: &'a str, optional, "namespace";
        key: &'a str, optional, "key";
        value: &'a str, optional, "value";
    }

    /// The answer to 101.
    KvConfigResponse<'a> {
        value: &'a str, optional, "value";
    }

    /// 205 and 327 (2.9).
    BrokerNameRequest<'a> {
        broker_name: &'a str, or(""), "brokerName";
    }

    /// The answer to 205: topics that the broker has.
    WipeWritePermResponse {
        wipe_topic_count: i32, required, "wipeTopicCount";
    }

    /// The answer to 327.
    AddWritePermResponse {
        add_topic_count: i32, required, "addTopicCount";
    }

    /// 224 (2.10).
    ClusterRequest<'a> {
        cluster: &'a str, or(""), "cluster";
    }

    /// 216 (2.11).
    DeleteTopicInNamesrvRequest<'a> {
        topic: &'a str, or(""), "topic";
        cluster_name: &'a str, optional, "clusterName";
    }

    /// 901 (2.6).
    MemberGroupRequest<'a> {
        cluster_name: &'a str, or(""), "clusterName";
        broker_name: &'a str, or(""), "brokerName";
    }
}

impl SendRequest<'_> {
    /// Writes the fields of 10 and 324 under their long names.
    pub fn encode_long_names(&self, out: &mut ExtWriter<'_>) {
        out.put_str("producerGroup", self.producer_group);
        out.put_str("topic", self.topic);
        out.put_str("defaultTopic", self.default_topic);
        out.put_int("defaultTopicQueueNums", self.default_topic_queue_nums);
        out.put_int("queueId", self.queue_id);
        out.put_int("sysFlag", self.sys_flag);
        out.put_int("bornTimestamp", self.born_timestamp);
        out.put_int("flag", self.flag);
        out.put_str("properties", self.properties);
        out.put_int("reconsumeTimes", self.reconsume_times);
        out.put_bool("unitMode", self.unit_mode);
        if let Some(times) = self.max_reconsume_times {
            out.put_int("maxReconsumeTimes", times);
        }
        out.put_bool("batch", self.batch);
        if let Some(name) = self.broker_name {
            out.put_str("bname", name);
        }
    }
}
