//! Who has a topic: name servers, the queues in a route, and which of them are a member's.
//! client-behaviour 2.2, 3.2 and 5; namesrv 2.1.

use std::cmp::Ordering;
use std::fmt;

use super::connection::{CALL_TIMEOUT, Connections};
use super::{ClientError, Tried, random};
use crate::wire::bodies::{BrokerData, TopicRouteData};
use crate::wire::fastjson::{self, BodyError};
use crate::wire::{RequestCode, ResponseCode};

/// What a group's retry topic begins with.
pub const RETRY_PREFIX: &str = "%RETRY%";

const MASTER_ID: i64 = 0;
const PERM_READ: i32 = 4;
const PERM_WRITE: i32 = 2;

/// One queue of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    pub topic: String,
    pub broker: String,
    pub id: i32,
}

impl fmt::Display for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "queue {} of {} at {}", self.id, self.topic, self.broker)
    }
}

impl PartialOrd for Queue {
    fn partial_cmp(&self, other: &Queue) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Queue {
    /// Java's order, in which all members of a group must see the queues.
    fn cmp(&self, other: &Queue) -> Ordering {
        java_order(&self.topic, &other.topic)
            .then_with(|| java_order(&self.broker, &other.broker))
            .then_with(|| self.id.cmp(&other.id))
    }
}

/// Java compares texts by UTF-16 units.
pub fn java_order(one: &str, other: &str) -> Ordering {
    one.encode_utf16().cmp(other.encode_utf16())
}

/// The name servers; one is asked until it fails.
pub struct NameServers<'a> {
    list: &'a [String],
    at: usize,
}

impl<'a> NameServers<'a> {
    /// Begins at a random one.
    pub fn new(list: &'a [String]) -> NameServers<'a> {
        let at = random() as usize % list.len().max(1);
        NameServers { list, at }
    }

    /// Where a topic is (105); `None` if nobody has it.
    ///
    /// # Errors
    /// No name server answers, or one refuses for another reason.
    pub fn route(
        &mut self,
        connections: &mut Connections,
        topic: &str,
    ) -> Result<Option<TopicRouteData>, ClientError> {
        let request = RequestCode::GET_ROUTEINFO_BY_TOPIC;
        let mut tried = Vec::new();
        for _ in 0..self.list.len() {
            let address = &self.list[self.at];
            let mut ask = || {
                connections.call(address, request, CALL_TIMEOUT, b"", |ext| {
                    ext.put_str("topic", topic);
                    ext.put_bool("acceptStandardJsonOnly", true);
                })
            };
            // It may have closed the connection, idle for long, just before it was asked.
            let asked = match ask() {
                Err(ClientError::Lost { .. }) => ask(),
                asked => asked,
            };
            let answer = match asked {
                Ok(answer) => answer,
                Err(error) => {
                    tried.push((address.clone(), error));
                    self.at = (self.at + 1) % self.list.len();
                    continue;
                }
            };
            return match ResponseCode(answer.code) {
                ResponseCode::SUCCESS => answer
                    .parse(request, |frame| {
                        fastjson::from_slice::<TopicRouteData>(frame.body)
                            .map_err(|error: BodyError| error)
                    })
                    .map(Some),
                ResponseCode::TOPIC_NOT_EXIST => Ok(None),
                _ => Err(answer.refused(request)),
            };
        }
        let tried = Tried(tried);
        Err(ClientError::NameServers { tried })
    }
}

/// Queues to send to: of brokers with a master, or those that an ordered topic's settings name.
pub fn write_queues(topic: &str, route: &TopicRouteData) -> Vec<Queue> {
    let queue = |broker: &str, id: i32| Queue {
        topic: topic.to_owned(),
        broker: broker.to_owned(),
        id,
    };
    let order = route.order_topic_conf.as_deref().unwrap_or_default();
    if !order.is_empty() {
        let parts = order.split(';').filter_map(|part| part.split_once(':'));
        let counts = parts.filter_map(|(broker, count)| Some((broker, count.parse().ok()?)));
        return counts
            .flat_map(|(broker, count): (_, i32)| (0..count).map(move |id| (broker, id)))
            .map(|(broker, id)| queue(broker, id))
            .collect();
    }
    let has_master = |name: &str| {
        let broker = broker(route, name);
        broker.is_some_and(|broker| broker.broker_addrs.contains_key(&MASTER_ID))
    };
    let writable = route
        .queue_datas
        .iter()
        .filter(|data| data.perm & PERM_WRITE != 0 && has_master(&data.broker_name));
    let mut queues: Vec<_> = writable
        .flat_map(|data| (0..data.write_queue_nums).map(|id| queue(&data.broker_name, id)))
        .collect();
    queues.sort();
    queues
}

/// Queues to read, in the order in which members share them. Needs no master, but some broker.
pub fn read_queues(topic: &str, route: &TopicRouteData) -> Vec<Queue> {
    let readable = route
        .queue_datas
        .iter()
        .filter(|data| data.perm & PERM_READ != 0 && address(route, &data.broker_name).is_some());
    let mut queues: Vec<_> = readable
        .flat_map(|data| {
            (0..data.read_queue_nums).map(|id| Queue {
                topic: topic.to_owned(),
                broker: data.broker_name.clone(),
                id,
            })
        })
        .collect();
    queues.sort();
    queues
}

/// The master's address.
pub fn master<'a>(route: &'a TopicRouteData, broker_name: &str) -> Option<&'a str> {
    let address = broker(route, broker_name)?.broker_addrs.get(&MASTER_ID)?;
    Some(address)
}

/// The master's address, or a slave's if there is none.
pub fn address<'a>(route: &'a TopicRouteData, broker_name: &str) -> Option<&'a str> {
    let addresses = &broker(route, broker_name)?.broker_addrs;
    addresses.values().next().map(String::as_str)
}

fn broker<'a>(route: &'a TopicRouteData, name: &str) -> Option<&'a BrokerData> {
    let mut brokers = route.broker_datas.iter();
    brokers.find(|broker| broker.broker_name == name)
}

/// The share of one member: AVG of client-behaviour 5, the default of every client. Both lists in
/// Java's order; nothing for one who is not in the list.
pub fn share<'a>(queues: &'a [Queue], members: &[String], me: &str) -> &'a [Queue] {
    let Some(at) = members.iter().position(|member| member == me) else {
        return &[];
    };
    let (count, rest) = (queues.len() / members.len(), queues.len() % members.len());
    let start = at * count + at.min(rest);
    let end = start + count + usize::from(at < rest);
    &queues[start..end]
}
