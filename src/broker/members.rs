//! Who is online: the members of consumer and producer groups, by connection, and the groups'
//! subscriptions (broker-requests 6 to 9).

use std::collections::BTreeMap;

use crate::broker::control::Peer;
use crate::broker::news::{Online, Subscription};
use crate::ids::Micros;
use crate::limits::MEMBERS_MAX;
use crate::wire::bodies::{
    ConsumeFromWhere, ConsumeType, ConsumerData, MessageModel, SubscriptionData,
};
use crate::wire::codes::Language;
use crate::wire::properties::java_hash;

#[derive(Clone, Debug)]
pub struct Member {
    pub client_id: String,
    pub language: Language,
    pub version: i32,
    pub address: String,
    pub seen: Micros,
}

#[derive(Debug)]
pub struct ConsumerGroup {
    pub members: BTreeMap<Peer, Member>,
    pub consume_type: Option<ConsumeType>,
    pub model: Option<MessageModel>,
    pub from_where: Option<ConsumeFromWhere>,
    pub subscriptions: BTreeMap<String, SubscriptionData>,
}

/// What a heartbeat or a leave changed in one group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// A member or a topic came or went: members are to be told (40).
    pub membership: bool,
    /// What the shards know of the group is no longer right.
    pub news: bool,
    /// Nobody is left.
    pub gone: bool,
}

#[derive(Debug, Default)]
pub struct Members {
    consumers: BTreeMap<String, ConsumerGroup>,
    producers: BTreeMap<String, BTreeMap<Peer, Member>>,
    /// Entries in both tables.
    count: usize,
}

impl Members {
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.count >= MEMBERS_MAX
    }

    #[must_use]
    pub fn consumers(&self, group: &str) -> Option<&ConsumerGroup> {
        self.consumers.get(group)
    }

    pub fn consumer_groups(&self) -> impl Iterator<Item = (&String, &ConsumerGroup)> {
        self.consumers.iter()
    }

    #[must_use]
    pub fn producers(&self, group: &str) -> Option<&BTreeMap<Peer, Member>> {
        self.producers.get(group)
    }

    pub fn producer_groups(&self) -> impl Iterator<Item = (&String, &BTreeMap<Peer, Member>)> {
        self.producers.iter()
    }

    pub fn produce(&mut self, group: &str, peer: Peer, member: Member) {
        let group = self.producers.entry(group.to_owned()).or_default();
        self.count += usize::from(group.insert(peer, member).is_none());
    }

    /// One consumer group of a heartbeat. The latest heartbeat decides about the group's mode; a
    /// subscription is replaced by a newer one; topics that it does not name are dropped.
    pub fn consume(&mut self, peer: Peer, member: Member, data: &ConsumerData) -> Changed {
        let fresh = || ConsumerGroup {
            members: BTreeMap::new(),
            consume_type: None,
            model: None,
            from_where: None,
            subscriptions: BTreeMap::new(),
        };
        let group = self
            .consumers
            .entry(data.group_name.clone())
            .or_insert_with(fresh);
        let joined = group.members.insert(peer, member).is_none();
        self.count += usize::from(joined);
        let mut changed = Changed {
            membership: joined,
            ..Changed::default()
        };
        let was_broadcasting = group.is_broadcasting();
        group.consume_type = data.consume_type;
        group.model = data.message_model;
        group.from_where = data.consume_from_where;
        changed.news = was_broadcasting != group.is_broadcasting();
        for subscription in &data.subscription_data_set {
            match group.subscriptions.get_mut(&subscription.topic) {
                None => {
                    group
                        .subscriptions
                        .insert(subscription.topic.clone(), subscription.clone());
                    changed = Changed {
                        membership: true,
                        news: true,
                        gone: false,
                    };
                }
                Some(known) if subscription.sub_version > known.sub_version => {
                    known.clone_from(subscription);
                    changed.news = true;
                }
                Some(_) => {}
            }
        }
        let named = |topic: &String| {
            data.subscription_data_set
                .iter()
                .any(|subscription| subscription.topic == *topic)
        };
        let before = group.subscriptions.len();
        group.subscriptions.retain(|topic, _| named(topic));
        if group.subscriptions.len() != before {
            changed = Changed {
                membership: true,
                news: true,
                gone: false,
            };
        }
        changed
    }

    /// A heartbeat without subscriptions (version 2): only liveness counts.
    pub fn touch(&mut self, group: &str, peer: Peer, now: Micros) -> bool {
        let member = self
            .consumers
            .get_mut(group)
            .and_then(|group| group.members.get_mut(&peer));
        member.map(|member| member.seen = now).is_some()
    }

    pub fn leave_producers(&mut self, group: &str, peer: Peer) {
        if let Some(members) = self.producers.get_mut(group) {
            self.count -= usize::from(members.remove(&peer).is_some());
            if members.is_empty() {
                self.producers.remove(group);
            }
        }
    }

    pub fn leave_consumers(&mut self, group: &str, peer: Peer) -> Changed {
        let Some(known) = self.consumers.get_mut(group) else {
            return Changed::default();
        };
        if known.members.remove(&peer).is_none() {
            return Changed::default();
        }
        self.count -= 1;
        let gone = known.members.is_empty();
        if gone {
            self.consumers.remove(group);
        }
        Changed {
            membership: true,
            news: gone,
            gone,
        }
    }

    /// A connection is gone: the groups that it leaves, with what that changed.
    pub fn leave_all(&mut self, peer: Peer) -> Vec<(String, Changed)> {
        let with = |members: &BTreeMap<Peer, Member>| members.contains_key(&peer);
        let producing = self.producers.iter().filter(|(_, members)| with(members));
        let producing: Vec<String> = producing.map(|(group, _)| group.clone()).collect();
        for group in producing {
            self.leave_producers(&group, peer);
        }
        let consuming = self
            .consumers
            .iter()
            .filter(|(_, group)| with(&group.members));
        let consuming: Vec<String> = consuming.map(|(group, _)| group.clone()).collect();
        let leave = |group: String| {
            let changed = self.leave_consumers(&group, peer);
            (group, changed)
        };
        consuming.into_iter().map(leave).collect()
    }

    /// Connections with an entry that was last refreshed before `limit`.
    #[must_use]
    pub fn expired(&self, limit: Micros) -> Vec<Peer> {
        let consumers = self.consumers.values().flat_map(|group| &group.members);
        let members = consumers.chain(self.producers.values().flatten());
        let mut old: Vec<Peer> = members
            .filter(|(_, member)| member.seen < limit)
            .map(|(peer, _)| *peer)
            .collect();
        old.sort_unstable();
        old.dedup();
        old
    }
}

impl ConsumerGroup {
    #[must_use]
    pub fn is_broadcasting(&self) -> bool {
        self.model == Some(MessageModel::Broadcasting)
    }

    /// Each client once, although it may have two connections while it reconnects.
    #[must_use]
    pub fn client_ids(&self) -> Vec<String> {
        let mut ids: Vec<String> = Vec::new();
        for member in self.members.values() {
            if !ids.contains(&member.client_id) {
                ids.push(member.client_id.clone());
            }
        }
        ids
    }

    /// What the shards need of the group for pulls.
    #[must_use]
    pub fn news(&self, group: &str) -> Online {
        Online {
            group: group.to_owned(),
            broadcasting: self.is_broadcasting(),
            subscriptions: self.subscriptions.values().map(news_of).collect(),
        }
    }
}

fn news_of(data: &SubscriptionData) -> Subscription {
    let expression_type = data.expression_type.clone().filter(|kind| !kind.is_empty());
    Subscription {
        topic: data.topic.clone(),
        expression: data.sub_string.clone(),
        expression_type: expression_type.unwrap_or_else(|| "TAG".to_owned()),
        tag_hashes: tag_hashes(data),
        version: data.sub_version,
    }
}

/// Computed here and not taken from the client: C++ and Node leave them out. The tags come from
/// the expression, since C++ leaves them out too.
fn tag_hashes(data: &SubscriptionData) -> Vec<i32> {
    if data.sub_string.is_empty() || data.sub_string == "*" {
        return Vec::new();
    }
    let tags = data
        .sub_string
        .split("||")
        .map(str::trim)
        .filter(|tag| !tag.is_empty());
    tags.map(java_hash).collect()
}
