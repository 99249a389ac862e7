//! What control answers itself: topics, groups, members, settings (broker-requests 6 to 9, 11, 17
//! to 20). One function per code; each returns the answer and when to give it.

use std::collections::BTreeMap;

use serde_json::json;

use crate::broker::control::{Control, Peer, Request};
use crate::broker::group_table;
use crate::broker::members::{Changed, ConsumerGroup, Member};
use crate::broker::news::News;
use crate::broker::topic_table::{RETRY_PREFIX, TopicError, is_legal_topic, topic};
use crate::role::Effects;
use crate::wire::bodies::{
    ConsumerData, ConsumerIdList, HeartbeatData, SubscriptionGroupConfig, TopicConfig,
    TopicFilterType, TopicList,
};
use crate::wire::codes::{RequestCode, ResponseCode};
use crate::wire::fastjson;
use crate::wire::headers::{
    ConsumerGroupRequest, CreateTopicRequest, HeaderError, TopicRequest, UnregisterClientRequest,
};

/// An answer in the making.
#[derive(Debug, Default)]
pub struct Answer {
    pub code: i32,
    pub remark: Option<String>,
    pub ext: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
    /// Only once the tables are saved and every role has heard the news.
    pub waits: bool,
}

impl Answer {
    fn ok() -> Answer {
        Answer::default()
    }

    fn body<T: serde::Serialize>(value: &T) -> Answer {
        Answer {
            body: fastjson::to_vec(value),
            ..Answer::default()
        }
    }

    pub fn refuse(code: ResponseCode, remark: impl Into<String>) -> Answer {
        Answer {
            code: code.0,
            remark: Some(remark.into()),
            ..Answer::default()
        }
    }

    fn waiting(mut self) -> Answer {
        self.waits = true;
        self
    }
}

impl From<HeaderError> for Answer {
    fn from(error: HeaderError) -> Answer {
        Answer::refuse(ResponseCode::SYSTEM_ERROR, error.to_string())
    }
}

impl From<fastjson::BodyError> for Answer {
    fn from(error: fastjson::BodyError) -> Answer {
        Answer::refuse(ResponseCode::SYSTEM_ERROR, error.to_string())
    }
}

impl From<TopicError> for Answer {
    fn from(error: TopicError) -> Answer {
        Answer::refuse(ResponseCode::SYSTEM_ERROR, error.to_string())
    }
}

type Answered = Result<Answer, Answer>;

impl Control {
    /// One match: code to function.
    pub(super) fn answer(&mut self, request: &Request<'_>, fx: &mut Effects<'_>) -> Answer {
        let answered = match request.frame.header.request_code() {
            RequestCode::HEART_BEAT => self.heartbeat(request, fx),
            RequestCode::UNREGISTER_CLIENT => self.unregister(request, fx),
            RequestCode::GET_CONSUMER_LIST_BY_GROUP => self.consumer_list(request),
            RequestCode::CHECK_CLIENT_CONFIG => check_client_config(request),
            RequestCode::UPDATE_AND_CREATE_TOPIC => self.update_topic(request, fx),
            RequestCode::DELETE_TOPIC_IN_BROKER => self.delete_topic(request, fx),
            RequestCode::GET_ALL_TOPIC_CONFIG => Ok(self.all_topics()),
            RequestCode::GET_TOPIC_CONFIG => self.topic_config(request),
            RequestCode::GET_SYSTEM_TOPIC_LIST_FROM_BROKER => {
                let topic_list = self.topics.system_topics();
                Ok(Answer::body(&TopicList {
                    broker_addr: None,
                    topic_list,
                }))
            }
            RequestCode::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP => self.update_group(request, fx),
            RequestCode::GET_ALL_SUBSCRIPTIONGROUP_CONFIG => {
                let count = self.groups.wire().subscription_group_table.len();
                let mut answer = Answer::body(self.groups.wire());
                answer.ext.push(("totalGroupNum", count.to_string()));
                Ok(answer)
            }
            RequestCode::GET_SUBSCRIPTIONGROUP_CONFIG => self.group_config(request, fx),
            RequestCode::DELETE_SUBSCRIPTIONGROUP => self.delete_group(request, fx),
            RequestCode::GET_CONSUMER_CONNECTION_LIST => self.consumer_connections(request),
            RequestCode::GET_PRODUCER_CONNECTION_LIST => self.producer_connections(request),
            RequestCode::QUERY_TOPIC_CONSUME_BY_WHO => self.who_consumes(request),
            RequestCode::GET_ALL_CONSUMER_OFFSET => Ok(Answer::body(self.offsets.wire())),
            RequestCode::GET_BROKER_CONFIG => Ok(self.broker_config()),
            RequestCode::GET_BROKER_RUNTIME_INFO => Ok(self.runtime_info(request)),
            code => {
                let remark = match code.name() {
                    Some(name) => format!("{name} ({}) is not built yet", code.0),
                    None => format!(" request type {} not supported", code.0),
                };
                Err(Answer::refuse(
                    ResponseCode::REQUEST_CODE_NOT_SUPPORTED,
                    remark,
                ))
            }
        };
        answered.unwrap_or_else(|refused| refused)
    }

    fn heartbeat(&mut self, request: &Request<'_>, fx: &mut Effects<'_>) -> Answered {
        let data: HeartbeatData = fastjson::from_slice(request.frame.body)?;
        if self.members.is_full() {
            let remark = "this broker knows as many clients as it can";
            return Err(Answer::refuse(ResponseCode::SYSTEM_BUSY, remark));
        }
        let member = Member {
            client_id: data.client_id.clone(),
            language: request.frame.header.language,
            version: request.frame.header.version,
            address: request.address.to_string(),
            seen: request.now.mono,
        };
        for producer in &data.producer_data_set {
            self.members
                .produce(&producer.group_name, request.peer, member.clone());
        }
        let mut news = false;
        for consumer in &data.consumer_data_set {
            if data.without_sub {
                self.members
                    .touch(&consumer.group_name, request.peer, request.now.mono);
            } else {
                news |= self.consume(request, member.clone(), consumer, fx);
            }
        }
        let mut answer = Answer::ok();
        answer
            .ext
            .push(("IS_SUPPORT_HEART_BEAT_V2", "true".to_owned()));
        answer.ext.push(("IS_SUB_CHANGE", "true".to_owned()));
        answer.waits = news;
        Ok(answer)
    }

    /// Returns whether the shards have to hear of it before the answer.
    fn consume(
        &mut self,
        request: &Request<'_>,
        member: Member,
        consumer: &ConsumerData,
        fx: &mut Effects<'_>,
    ) -> bool {
        let name = &consumer.group_name;
        let known = self.groups.get(name).is_some();
        if !known && !self.create_group(request, name, fx) {
            return false;
        }
        let made_topic = self.create_retry_topic(request, name, consumer, fx);
        let changed = self.members.consume(request.peer, member, consumer);
        self.membership_changed(name, changed, fx);
        changed.news || made_topic || !known
    }

    fn create_group(&mut self, request: &Request<'_>, name: &str, fx: &mut Effects<'_>) -> bool {
        if !self.groups.may_create(name) {
            return false;
        }
        self.save_group(request, group_table::group(name), fx);
        true
    }

    fn save_group(
        &mut self,
        request: &Request<'_>,
        config: SubscriptionGroupConfig,
        fx: &mut Effects<'_>,
    ) {
        let name = config.group_name.clone();
        self.groups.insert(config);
        self.groups.bump(request.now.wall.0);
        self.groups_saver.changed();
        let news = self.groups.news(&name).expect("just inserted");
        self.broadcast(&News::Group(news), fx);
    }

    fn create_retry_topic(
        &mut self,
        request: &Request<'_>,
        group: &str,
        consumer: &ConsumerData,
        fx: &mut Effects<'_>,
    ) -> bool {
        let name = format!("{RETRY_PREFIX}{group}");
        if self.topics.get(&name).is_some() || !is_legal_topic(&name) {
            return false;
        }
        let queues = self
            .groups
            .get(group)
            .map_or(1, |group| group.retry_queue_nums);
        let ordered = |topic: &str| self.topics.get(topic).is_some_and(|topic| topic.order);
        let mut config = topic(&name, queues, 6);
        config.order = consumer
            .subscription_data_set
            .iter()
            .any(|data| ordered(&data.topic));
        self.put_topic(config, request.now.wall.0, fx).is_ok()
    }

    /// Tells the shards and, unless it broadcasts, the members.
    pub(super) fn membership_changed(
        &mut self,
        name: &str,
        changed: Changed,
        fx: &mut Effects<'_>,
    ) {
        if changed.gone {
            self.broadcast(&News::Offline(name.to_owned()), fx);
        } else if changed.news {
            let online = self.members.consumers(name).map(|group| group.news(name));
            if let Some(online) = online {
                self.broadcast(&News::Online(online), fx);
            }
        }
        let notifies = self
            .groups
            .get(name)
            .is_none_or(|g| g.notify_consumer_ids_changed_enable);
        if changed.membership && notifies && self.config.notify_changes {
            self.notify_members(name, fx);
        }
    }

    fn notify_members(&mut self, name: &str, fx: &mut Effects<'_>) {
        let Some(group) = self
            .members
            .consumers(name)
            .filter(|group| !group.is_broadcasting())
        else {
            return;
        };
        let peers: Vec<Peer> = group.members.keys().copied().collect();
        for peer in peers {
            let fields = [("consumerGroup", name)];
            self.send_request(peer, RequestCode::NOTIFY_CONSUMER_IDS_CHANGED, &fields, fx);
        }
    }

    fn unregister(&mut self, request: &Request<'_>, fx: &mut Effects<'_>) -> Answered {
        let fields = UnregisterClientRequest::decode(&request.frame.header)?;
        if let Some(group) = fields.producer_group.filter(|group| !group.is_empty()) {
            self.members.leave_producers(group, request.peer);
        }
        if let Some(group) = fields.consumer_group.filter(|group| !group.is_empty()) {
            let changed = self.members.leave_consumers(group, request.peer);
            self.membership_changed(group, changed, fx);
        }
        Ok(Answer::ok())
    }

    fn consumer_list(&self, request: &Request<'_>) -> Answered {
        let fields = ConsumerGroupRequest::decode(&request.frame.header)?;
        let group = self.members.consumers(fields.consumer_group);
        let consumer_id_list = group.map(ConsumerGroup::client_ids).unwrap_or_default();
        if consumer_id_list.is_empty() {
            let remark = format!("no consumer for this group, {}", fields.consumer_group);
            return Err(Answer::refuse(ResponseCode::SYSTEM_ERROR, remark));
        }
        Ok(Answer::body(&ConsumerIdList { consumer_id_list }))
    }

    fn update_topic(&mut self, request: &Request<'_>, fx: &mut Effects<'_>) -> Answered {
        let fields = CreateTopicRequest::decode(&request.frame.header)?;
        let name = fields.topic;
        if !is_legal_topic(name) {
            let remark = format!(
                "the topic {name:?} is not allowed: 1 to 127 characters of % | - _ 0-9 A-Z a-z"
            );
            return Err(Answer::refuse(ResponseCode::INVALID_PARAMETER, remark));
        }
        if self.topics.is_system(name) {
            let remark = format!("the topic {name} is the system's own");
            return Err(Answer::refuse(ResponseCode::INVALID_PARAMETER, remark));
        }
        let Some(filter) = TopicFilterType::from_name(fields.topic_filter_type) else {
            let remark = format!(
                "topicFilterType {:?} is none of SINGLE_TAG, MULTI_TAG",
                fields.topic_filter_type
            );
            return Err(Answer::refuse(ResponseCode::SYSTEM_ERROR, remark));
        };
        let known = self.topics.get(name);
        let before = known.map(|topic| topic.attributes.clone());
        let config = TopicConfig {
            attributes: alter(before, fields.attributes.unwrap_or_default())?,
            order: fields.order,
            perm: fields.perm,
            read_queue_nums: fields.read_queue_nums,
            topic_filter_type: Some(filter),
            topic_name: name.to_owned(),
            topic_sys_flag: fields.topic_sys_flag,
            write_queue_nums: fields.write_queue_nums,
        };
        if known == Some(&config) {
            return Ok(Answer::ok());
        }
        self.put_topic(config, request.now.wall.0, fx)?;
        Ok(Answer::ok().waiting())
    }

    /// Adds or changes a topic: table, file, every role, every name server.
    pub(super) fn put_topic(
        &mut self,
        config: TopicConfig,
        wall_ms: u64,
        fx: &mut Effects<'_>,
    ) -> Result<(), TopicError> {
        let name = config.topic_name.clone();
        self.topics.insert(config)?;
        self.topics.bump(wall_ms);
        self.topics_saver.changed();
        let news = self.topics.news(&name).expect("just inserted");
        self.broadcast(&News::Topic(news), fx);
        self.register.topic_changed(&name);
        Ok(())
    }

    fn delete_topic(&mut self, request: &Request<'_>, fx: &mut Effects<'_>) -> Answered {
        let name = TopicRequest::decode(&request.frame.header)?.topic;
        if name.trim().is_empty() || self.topics.is_system(name) {
            let remark = format!("the topic {name:?} is empty or the system's own");
            return Err(Answer::refuse(ResponseCode::INVALID_PARAMETER, remark));
        }
        if self.topics.remove(name).is_none() {
            return Ok(Answer::ok());
        }
        self.topics.bump(request.now.wall.0);
        self.topics_saver.changed();
        self.broadcast(&News::TopicGone(name.to_owned()), fx);
        if self.offsets.remove(Some(name), None) {
            self.offsets_saver.changed();
        }
        let gone = News::OffsetsGone {
            topic: Some(name.to_owned()),
            group: None,
        };
        self.broadcast(&gone, fx);
        self.register.topic_gone();
        self.deleting.push(name.to_owned());
        Ok(Answer::ok().waiting())
    }

    fn all_topics(&self) -> Answer {
        let table = self.topics.wire();
        let count = table.topic_config_table.len();
        let mut answer = Answer::body(&table);
        answer.ext.push(("totalTopicNum", count.to_string()));
        answer
    }

    fn topic_config(&self, request: &Request<'_>) -> Answered {
        let name = TopicRequest::decode(&request.frame.header)?.topic;
        self.topics
            .get(name)
            .map(Answer::body)
            .ok_or_else(|| no_topic(name))
    }

    fn update_group(&mut self, request: &Request<'_>, fx: &mut Effects<'_>) -> Answered {
        let config: SubscriptionGroupConfig = fastjson::from_slice(request.frame.body)?;
        if config.group_name.is_empty() {
            let remark = "the body names no group (groupName)";
            return Err(Answer::refuse(ResponseCode::SYSTEM_ERROR, remark));
        }
        self.save_group(request, config, fx);
        Ok(Answer::ok().waiting())
    }

    fn group_config(&mut self, request: &Request<'_>, fx: &mut Effects<'_>) -> Answered {
        let name = request.frame.header.ext("group").unwrap_or_default();
        if self.groups.get(name).is_none() && !self.create_group(request, name, fx) {
            let remark = format!("the group {name} does not exist");
            return Err(Answer::refuse(
                ResponseCode::SUBSCRIPTION_GROUP_NOT_EXIST,
                remark,
            ));
        }
        Ok(self.groups.get(name).map(Answer::body).unwrap_or_default())
    }

    fn delete_group(&mut self, request: &Request<'_>, fx: &mut Effects<'_>) -> Answered {
        let name = request.frame.header.ext("groupName").unwrap_or_default();
        if self.groups.remove(name) {
            self.groups.bump(request.now.wall.0);
            self.groups_saver.changed();
            self.broadcast(&News::GroupGone(name.to_owned()), fx);
        }
        let clean = request.frame.header.ext("cleanOffset");
        let clean = clean.or_else(|| request.frame.header.ext("removeOffset"));
        if clean.is_some_and(|text| text.eq_ignore_ascii_case("true")) {
            if self.offsets.remove(None, Some(name)) {
                self.offsets_saver.changed();
            }
            let gone = News::OffsetsGone {
                topic: None,
                group: Some(name.to_owned()),
            };
            self.broadcast(&gone, fx);
        }
        Ok(Answer::ok().waiting())
    }

    fn consumer_connections(&self, request: &Request<'_>) -> Answered {
        let name = ConsumerGroupRequest::decode(&request.frame.header)?.consumer_group;
        let Some(group) = self.members.consumers(name) else {
            let remark = format!("the consumer group {name} is not online");
            return Err(Answer::refuse(ResponseCode::CONSUMER_NOT_ONLINE, remark));
        };
        Ok(Answer::body(&json!({
            "connectionSet": group.members.values().map(connection).collect::<Vec<_>>(),
            "consumeFromWhere": group.from_where,
            "consumeType": group.consume_type,
            "messageModel": group.model,
            "subscriptionTable": group.subscriptions,
        })))
    }

    fn producer_connections(&self, request: &Request<'_>) -> Answered {
        let name = request
            .frame
            .header
            .ext("producerGroup")
            .unwrap_or_default();
        let Some(members) = self.members.producers(name) else {
            let remark = format!("the producer group {name} is not online");
            return Err(Answer::refuse(ResponseCode::SYSTEM_ERROR, remark));
        };
        let connections: Vec<_> = members.values().map(connection).collect();
        Ok(Answer::body(&json!({ "connectionSet": connections })))
    }

    fn who_consumes(&self, request: &Request<'_>) -> Answered {
        let name = TopicRequest::decode(&request.frame.header)?.topic;
        let mut groups = self.offsets.groups_of(name);
        let online = self.members.consumer_groups();
        let online = online.filter(|(_, group)| group.subscriptions.contains_key(name));
        groups.extend(online.map(|(group, _)| group.clone()));
        groups.sort_unstable();
        groups.dedup();
        Ok(Answer::body(&json!({ "groupList": groups })))
    }

    fn broker_config(&self) -> Answer {
        let lines = self
            .config
            .settings
            .iter()
            .map(|(key, value)| format!("{key}={value}\n"));
        let mut answer = Answer {
            body: lines.collect::<String>().into_bytes(),
            ..Answer::ok()
        };
        let version = json!({ "counter": 0, "stateVersion": 0, "timestamp": self.config.boot_ms });
        answer.ext.push(("version", version.to_string()));
        answer
    }

    fn runtime_info(&self, request: &Request<'_>) -> Answer {
        let mut table: BTreeMap<&str, String> = BTreeMap::new();
        for key in ZERO_KEYS {
            table.insert(key, "0".to_owned());
        }
        for key in RATE_KEYS {
            table.insert(key, "0.0 0.0 0.0".to_owned());
        }
        let up = request.now.wall.0.saturating_sub(self.config.boot_ms) / 1000;
        let (days, hours, minutes) = (up / 86_400, up / 3600 % 24, up / 60 % 60);
        let ratio = format!("{:.2}", self.segments.ratio_percent as f64 / 100.0);
        let behind = self.checkpoints.written.0.saturating_sub(self.dispatched.0);
        let own = [
            ("bootTimestamp", self.config.boot_ms.to_string()),
            (
                "runtime",
                format!(
                    "[ {days} days, {hours} hours, {minutes} minutes, {} seconds ]",
                    up % 60
                ),
            ),
            ("brokerVersionDesc", "V5_3_3".to_owned()),
            ("brokerVersion", crate::wire::codes::VERSION.to_string()),
            ("brokerActive", "true".to_owned()),
            ("commitLogDiskRatio", ratio.clone()),
            ("consumeQueueDiskRatio", ratio),
            ("commitLogMinOffset", self.first.0.to_string()),
            ("commitLogMaxOffset", self.checkpoints.written.0.to_string()),
            ("dispatchBehindBytes", behind.to_string()),
        ];
        let mut table: BTreeMap<String, String> = table
            .into_iter()
            .chain(own)
            .map(|(key, value)| (key.to_owned(), value))
            .collect();
        let counted = self.config.log.list().into_iter();
        table.extend(counted.map(|(name, n)| (format!("ringmq.log.{name}"), n.to_string())));
        Answer::body(&json!({ "table": table }))
    }
}

/// Keys of 28 that tools parse as numbers, for what is not counted yet.
const ZERO_KEYS: [&str; 29] = [
    "putMessageEntireTimeMax",
    "putMessageTimesTotal",
    "putMessageFailedTimes",
    "putMessageSizeTotal",
    "dispatchMaxBuffer",
    "getMessageEntireTimeMax",
    "remainTransientStoreBufferNumbs",
    "msgPutTotalYesterdayMorning",
    "msgPutTotalTodayMorning",
    "msgPutTotalTodayNow",
    "msgGetTotalYesterdayMorning",
    "msgGetTotalTodayMorning",
    "msgGetTotalTodayNow",
    "pageCacheLockTimeMills",
    "earliestMessageTimeStamp",
    "startAcceptSendRequestTimeStamp",
    "timerReadBehind",
    "timerOffsetBehind",
    "timerCongestNum",
    "timerEnqueueTps",
    "timerDequeueTps",
    "sendThreadPoolQueueSize",
    "sendThreadPoolQueueHeadWaitTimeMills",
    "pullThreadPoolQueueSize",
    "pullThreadPoolQueueHeadWaitTimeMills",
    "queryThreadPoolQueueSize",
    "queryThreadPoolQueueHeadWaitTimeMills",
    "ackThreadPoolQueueSize",
    "ackThreadPoolQueueHeadWaitTimeMills",
];

/// Keys of 28 with three rates; the 4.9 tools spell one of them with a single r.
const RATE_KEYS: [&str; 6] = [
    "putTps",
    "getFoundTps",
    "getMissTps",
    "getTotalTps",
    "getTransferredTps",
    "getTransferedTps",
];

fn check_client_config(request: &Request<'_>) -> Answered {
    let body: serde_json::Value = fastjson::from_slice(request.frame.body)?;
    let kind = body["subscriptionData"]["expressionType"]
        .as_str()
        .unwrap_or("TAG");
    if kind == "TAG" {
        return Ok(Answer::ok());
    }
    let remark = format!("filters of type {kind} are not built yet: use tags");
    Err(Answer::refuse(ResponseCode::SYSTEM_ERROR, remark))
}

fn no_topic(name: &str) -> Answer {
    Answer::refuse(
        ResponseCode::TOPIC_NOT_EXIST,
        format!("the topic {name} does not exist"),
    )
}

fn connection(member: &Member) -> serde_json::Value {
    json!({
        "clientAddr": member.address,
        "clientId": member.client_id,
        "language": member.language.name(),
        "version": member.version,
    })
}

/// Attributes after a change `+key=value,-key` (broker-requests 17).
fn alter(
    before: Option<BTreeMap<String, String>>,
    change: &str,
) -> Result<BTreeMap<String, String>, Answer> {
    const KNOWN: [(&str, bool); 4] = [
        ("queue.type", false),
        ("cleanup.policy", false),
        ("message.type", true),
        ("reserve.time", true),
    ];
    let refuse = |remark: String| Answer::refuse(ResponseCode::SYSTEM_ERROR, remark);
    let creates = before.is_none();
    let mut attributes = before.unwrap_or_default();
    for item in change
        .split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty())
    {
        let (add, rest) = item.split_at_checked(1).unwrap_or((item, ""));
        let (key, value) = rest.split_once('=').unwrap_or((rest, ""));
        let Some((_, mutable)) = KNOWN.iter().find(|(known, _)| *known == key) else {
            return Err(refuse(format!("there is no topic attribute {key:?}")));
        };
        match (add, creates || *mutable) {
            ("+", true) => attributes.insert(key.to_owned(), value.to_owned()),
            ("-", _) if !creates && *mutable => attributes.remove(key),
            ("+" | "-", false) => {
                return Err(refuse(format!("the attribute {key} cannot be changed")));
            }
            _ => return Err(refuse(format!("{item:?} is neither +key=value nor -key"))),
        };
    }
    Ok(attributes)
}
