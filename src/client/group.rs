//! Membership of a group: heartbeats, sharing the queues, starting and leaving, and what brokers
//! ask of a member. client-behaviour 3.1, 3.2; broker-requests 6 to 10 and 14.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;

use super::connection::{CALL_TIMEOUT, Incoming};
use super::consumer::{Consumer, Owned, PAUSE};
use super::routes::{Queue, address, java_order, read_queues, share};
use super::{ClientError, random};
use crate::wire::bodies::{
    ConsumeFromWhere, ConsumeType, ConsumerData, ConsumerIdList, HeartbeatData, MessageModel,
    MessageQueue, QueueMap, SubscriptionData, TopicRouteData,
};
use crate::wire::fastjson::{self, ObjectWriter};
use crate::wire::headers::{
    ConsumerGroupRequest, OffsetResponse, QueryConsumerOffsetRequest, QueueRequest,
    UnregisterClientRequest,
};
use crate::wire::{RequestCode, ResponseCode};

const HEARTBEAT_PERIOD: Duration = Duration::from_secs(30);
const ROUTES_PERIOD: Duration = Duration::from_secs(30);
const BALANCE_PERIOD: Duration = Duration::from_secs(20);
const LEAVE_TIMEOUT: Duration = Duration::from_secs(3);

/// How often the stop flag is looked at while the topic is not there.
const WAIT_STEP: Duration = Duration::from_millis(100);

/// The body of 220.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ResetOffsets {
    offset_table: QueueMap<i64>,
}

impl Consumer<'_> {
    /// Looks the topic up; while following, waits for its first message. False if stopped.
    pub fn find_topic(&mut self) -> Result<bool, ClientError> {
        let topic = self.options.topic;
        let mut is_told = false;
        loop {
            if let Some(route) = self.name_servers.route(&mut self.connections, topic)? {
                if read_queues(topic, &route).is_empty() {
                    return Err(ClientError::NoQueue {
                        topic: topic.to_owned(),
                        verb: "read",
                    });
                }
                self.routes.insert(topic.to_owned(), route);
                return Ok(true);
            }
            if !self.options.follow {
                return Err(ClientError::UnknownTopic {
                    topic: topic.to_owned(),
                });
            }
            if !is_told {
                log::warn!("topic {topic} does not exist; waiting for its first message");
                is_told = true;
            }
            let again = Instant::now() + PAUSE;
            while Instant::now() < again {
                if self.is_stopped() {
                    return Ok(false);
                }
                thread::sleep(WAIT_STEP);
            }
        }
    }

    /// Becomes a member and takes its share of the queues. The first heartbeat makes the group's
    /// retry topic, which other members' clients share out as well.
    pub fn join(&mut self) -> Result<(), ClientError> {
        self.heartbeat()?;
        self.refresh_routes()?;
        self.balance()
    }

    /// What is due by the clock.
    pub fn tend(&mut self) -> Result<(), ClientError> {
        let now = Instant::now();
        if self.heartbeat_at <= now {
            self.heartbeat().or_else(|error| self.bear(error))?;
            // A broker that crashed may have forgotten what it had not yet saved.
            let owned = self.owned.values_mut();
            owned.for_each(|owned| owned.committed = -1);
        }
        if self.routes_at <= now {
            self.refresh_routes().or_else(|error| self.bear(error))?;
        }
        if self.balance_at <= now {
            self.balance().or_else(|error| self.bear(error))?;
        }
        if self.commit_at <= now {
            self.commit_all().or_else(|error| self.bear(error))?;
        }
        Ok(())
    }

    /// Tells every broker of the topics that this member is there (34). Those that cannot be
    /// reached are passed over unless it is all of them.
    fn heartbeat(&mut self) -> Result<(), ClientError> {
        self.heartbeat_at = Instant::now() + HEARTBEAT_PERIOD;
        let body = fastjson::to_vec(&self.heartbeat_data());
        let code = RequestCode::HEART_BEAT;
        let (mut failed, mut succeeded) = (None, false);
        for address in self.addresses() {
            let asked = self
                .connections
                .call(&address, code, CALL_TIMEOUT, &body, |_| {});
            match asked.and_then(|answer| answer.succeeded(code)) {
                Ok(_) => succeeded = true,
                Err(error) => {
                    log::debug!("no heartbeat: {error}");
                    self.heartbeat_at = Instant::now() + PAUSE;
                    failed = Some(error);
                }
            }
        }
        match failed {
            Some(error) if !succeeded => Err(error),
            _ => Ok(()),
        }
    }

    /// All members of a group must subscribe to the same topics, so the retry topic is named too.
    fn heartbeat_data(&self) -> HeartbeatData {
        let subscription = |topic: &str| SubscriptionData {
            expression_type: Some("TAG".to_owned()),
            sub_string: "*".to_owned(),
            sub_version: self.subscription_version,
            topic: topic.to_owned(),
            ..SubscriptionData::default()
        };
        HeartbeatData {
            client_id: self.client_id.clone(),
            consumer_data_set: vec![ConsumerData {
                consume_from_where: Some(ConsumeFromWhere::FirstOffset),
                // As push consumers say it, so that they can be members of the same group.
                consume_type: Some(ConsumeType::Passively),
                group_name: self.options.group.to_owned(),
                message_model: Some(MessageModel::Clustering),
                subscription_data_set: vec![
                    subscription(self.options.topic),
                    subscription(&self.retry_topic),
                ],
                unit_mode: false,
            }],
            ..HeartbeatData::default()
        }
    }

    pub fn addresses(&self) -> BTreeSet<String> {
        let brokers = self.routes.values().flat_map(|route| &route.broker_datas);
        brokers
            .flat_map(|broker| broker.broker_addrs.values().cloned())
            .collect()
    }

    fn refresh_routes(&mut self) -> Result<(), ClientError> {
        self.routes_at = Instant::now() + ROUTES_PERIOD;
        let before = self.addresses();
        for topic in [self.options.topic.to_owned(), self.retry_topic.clone()] {
            match self.name_servers.route(&mut self.connections, &topic)? {
                Some(route) if self.routes.get(&topic) == Some(&route) => {}
                Some(route) => {
                    self.routes.insert(topic, route);
                    self.balance_at = Instant::now();
                }
                // Its brokers may be gone for a while only: what is known of them stays.
                None => log::debug!("no name server knows {topic}"),
            }
        }
        if self.addresses() != before {
            self.heartbeat()?;
        }
        Ok(())
    }

    /// Takes and gives up queues, so that each has one member.
    fn balance(&mut self) -> Result<(), ClientError> {
        self.balance_at = Instant::now() + BALANCE_PERIOD;
        for (topic, route) in self.routes.clone() {
            let mut members = self.members(&topic, &route)?;
            members.sort_by(|one, other| java_order(one, other));
            if !members.contains(&self.client_id) {
                return self.unseen();
            }
            let queues = read_queues(&topic, &route);
            let mine = share(&queues, &members, &self.client_id);
            self.give_up(&topic, mine)?;
            for queue in mine {
                if !self.owned.contains_key(queue)
                    && let Err(error) = self.take(queue)
                {
                    self.balance_at = Instant::now() + PAUSE;
                    self.bear(error)?;
                }
            }
        }
        self.is_balanced = true;
        Ok(())
    }

    /// A broker does not know this member: it keeps what it has until it is seen.
    fn unseen(&mut self) -> Result<(), ClientError> {
        let now = Instant::now();
        (self.heartbeat_at, self.balance_at) = (now, now + PAUSE);
        if !self.is_balanced && self.join_by <= now {
            return Err(ClientError::NotMember {
                group: self.options.group.to_owned(),
            });
        }
        Ok(())
    }

    /// The group's members (38), from any broker of the topic: each knows them all. Code 1 is how
    /// brokers say that there is none.
    fn members(&mut self, topic: &str, route: &TopicRouteData) -> Result<Vec<String>, ClientError> {
        let brokers = &route.broker_datas;
        let broker = &brokers[random() as usize % brokers.len().max(1)..];
        let place = broker
            .first()
            .and_then(|broker| address(route, &broker.broker_name));
        let place = place.ok_or_else(|| ClientError::NoQueue {
            topic: topic.to_owned(),
            verb: "read",
        })?;
        let code = RequestCode::GET_CONSUMER_LIST_BY_GROUP;
        let request = ConsumerGroupRequest {
            consumer_group: self.options.group,
        };
        let asked = self
            .connections
            .call(place, code, CALL_TIMEOUT, b"", |ext| request.encode(ext));
        let answer = asked?;
        if ResponseCode(answer.code) == ResponseCode::SYSTEM_ERROR {
            return Ok(Vec::new());
        }
        let list: ConsumerIdList = answer
            .succeeded(code)?
            .parse(code, |frame| fastjson::from_slice(frame.body))?;
        Ok(list.consumer_id_list)
    }

    fn give_up(&mut self, topic: &str, mine: &[Queue]) -> Result<(), ClientError> {
        let others: Vec<Queue> = self
            .owned
            .keys()
            .filter(|queue| queue.topic == topic && !mine.contains(queue))
            .cloned()
            .collect();
        for queue in others {
            let committed = self.commit(&queue);
            self.owned.remove(&queue);
            committed.or_else(|error| self.bear(error))?;
        }
        Ok(())
    }

    /// Begins a queue where the group stopped, or with the oldest message.
    fn take(&mut self, queue: &Queue) -> Result<(), ClientError> {
        let address = self.address_of(queue)?;
        let code = RequestCode::QUERY_CONSUMER_OFFSET;
        let request = QueryConsumerOffsetRequest {
            consumer_group: self.options.group,
            topic: &queue.topic,
            queue_id: queue.id,
            set_zero_if_not_found: Some(false),
        };
        let asked = self
            .connections
            .call(&address, code, CALL_TIMEOUT, b"", |ext| request.encode(ext));
        let answer = asked?;
        let (next, committed) = match ResponseCode(answer.code) {
            ResponseCode::SUCCESS => {
                let offset = answer.parse(code, |frame| OffsetResponse::decode(&frame.header))?;
                (offset.offset, offset.offset)
            }
            ResponseCode::QUERY_NOT_FOUND => (self.bound(queue, RequestCode::GET_MIN_OFFSET)?, -1),
            _ => return Err(answer.refused(code)),
        };
        let end = if self.options.follow {
            None
        } else {
            Some(self.bound(queue, RequestCode::GET_MAX_OFFSET)?)
        };
        let owned = Owned {
            next,
            committed,
            end,
            pull: None,
            pull_at: Instant::now(),
        };
        self.owned.insert(queue.clone(), owned);
        Ok(())
    }

    /// A queue's first offset (31) or the one after its last (30).
    fn bound(&mut self, queue: &Queue, code: RequestCode) -> Result<i64, ClientError> {
        let address = self.address_of(queue)?;
        let request = QueueRequest {
            topic: &queue.topic,
            queue_id: queue.id,
            committed: None,
        };
        let asked = self
            .connections
            .call(&address, code, CALL_TIMEOUT, b"", |ext| request.encode(ext));
        let answer = asked?.succeeded(code)?;
        let offset = answer.parse(code, |frame| OffsetResponse::decode(&frame.header))?;
        Ok(offset.offset)
    }

    /// A request of a broker.
    pub fn asked(&mut self, asked: &Incoming) -> Result<(), ClientError> {
        let ours = asked.read(|frame| {
            let named = |name| frame.header.ext(name);
            let group = named("consumerGroup").or(named("group"));
            group.is_none_or(|group| group == self.options.group)
        });
        let answered = match RequestCode(asked.code) {
            RequestCode::NOTIFY_CONSUMER_IDS_CHANGED => {
                if ours {
                    self.balance_at = Instant::now();
                }
                self.connections
                    .answer(asked, ResponseCode::SUCCESS, None, b"")
            }
            RequestCode::RESET_CONSUMER_CLIENT_OFFSET if ours => self.reset_offsets(asked),
            RequestCode::GET_CONSUMER_STATUS_FROM_CLIENT if ours => {
                let body = self.offsets();
                self.connections
                    .answer(asked, ResponseCode::SUCCESS, None, &body)
            }
            code => {
                let remark = format!(" request type {} not supported", code.0);
                let code = ResponseCode::REQUEST_CODE_NOT_SUPPORTED;
                self.connections.answer(asked, code, Some(&remark), b"")
            }
        };
        answered.or_else(|error| self.bear(error))
    }

    /// An operator moves the group (220).
    fn reset_offsets(&mut self, asked: &Incoming) -> Result<(), ClientError> {
        let table = asked.read(|frame| fastjson::from_slice::<ResetOffsets>(frame.body));
        let table = match table {
            Ok(table) => table.offset_table.0,
            Err(error) => {
                log::warn!("{} resets offsets, but {error}", asked.address);
                let code = ResponseCode::SYSTEM_ERROR;
                return self.connections.answer(asked, code, None, b"");
            }
        };
        for (queue, offset) in table {
            let queue = Queue {
                topic: queue.topic,
                broker: queue.broker_name,
                id: queue.queue_id,
            };
            self.move_to(&queue, offset);
        }
        self.connections
            .answer(asked, ResponseCode::SUCCESS, None, b"")
    }

    /// Where this member is (221).
    fn offsets(&self) -> Vec<u8> {
        let owned = self.owned.iter().map(|(queue, owned)| {
            let queue = MessageQueue {
                broker_name: queue.broker.clone(),
                queue_id: queue.id,
                topic: queue.topic.clone(),
            };
            (queue, owned.next)
        });
        let owned: Vec<_> = owned.collect();
        let entries = owned.iter().map(|(queue, next)| (queue, *next));
        ObjectWriter::new()
            .queue_map("messageQueueTable", entries)
            .finish()
    }

    /// Leaves the group at every broker that is connected (35), so that others take over at once.
    pub fn leave(&mut self) {
        let code = RequestCode::UNREGISTER_CLIENT;
        let request = UnregisterClientRequest {
            client_id: &self.client_id,
            producer_group: None,
            consumer_group: Some(self.options.group),
        };
        for address in self.addresses() {
            if !self.connections.is_open(&address) {
                continue;
            }
            let asked = self
                .connections
                .call(&address, code, LEAVE_TIMEOUT, b"", |ext| {
                    request.encode(ext)
                });
            if let Err(error) = asked.and_then(|answer| answer.succeeded(code)) {
                log::debug!("left without a word: {error}");
            }
        }
    }
}
