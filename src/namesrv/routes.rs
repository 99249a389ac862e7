//! The route tables: topics, brokers, clusters, and who is alive. namesrv 2-6.
//!
//! Every table is ordered, so that equal histories give equal answers, and every table is
//! bounded: what does not fit is refused before anything of it is written.

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use crate::wire::bodies::{
    BrokerData, BrokerMemberGroup, ClusterInfo, DataVersion, MemberGroup, QueueData, TopicConfig,
    TopicList, TopicRouteData,
};

/// Bits of a permission. namesrv 2.1.
pub mod perm {
    /// Clients may pull.
    pub const READ: i32 = 4;
    /// Clients may send.
    pub const WRITE: i32 = 2;
}

/// Bits of a topic's system flag. namesrv 2.10.
mod sys_flag {
    pub const UNIT: i32 = 1;
    pub const UNIT_SUB: i32 = 2;
}

const MASTER_ID: i64 = 0;

/// A broker that says nothing for so long is dead, unless it registered with a time of its own.
pub const BROKER_TIMEOUT_MS: u64 = 120_000;

/// Longest name or address, in bytes.
pub const NAME_BYTES_MAX: usize = 255;

/// Most filter servers of one broker.
pub const FILTER_SERVERS_MAX: usize = 16;

/// These topics show their brokers as they are, without an acting master. namesrv 5.
const SYNC_MEMBER_PREFIX: &str = "rmq_sys_SYNC_BROKER_MEMBER_";

/// The settings that decide what the tables do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RouteSettings {
    /// A slave may be shown as the master of a group that has none.
    pub support_acting_master: bool,
    /// A full registration removes the broker's queues of topics that it does not name.
    pub delete_topic_with_broker_registration: bool,
    /// A group is told when its smallest id changes.
    pub notify_min_broker_id_changed: bool,
}

/// How much the tables hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteLimits {
    /// Broker addresses.
    pub brokers_max: usize,
    /// Queue data: one for each topic at each broker name.
    pub queue_datas_max: usize,
}

impl Default for RouteLimits {
    /// About 350 MB of names at worst, a few MB in practice.
    fn default() -> Self {
        Self {
            brokers_max: 4_096,
            queue_datas_max: 500_000,
        }
    }
}

/// One broker process.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct BrokerKey {
    /// Its cluster.
    pub cluster: String,
    /// Its address `ip:port`.
    pub address: String,
}

/// A registration (103), read and checked for its form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    /// Who registers.
    pub broker: BrokerKey,
    /// Its name, shared by a master and its slaves.
    pub broker_name: String,
    /// 0 for the master.
    pub broker_id: i64,
    /// Where slaves connect to.
    pub ha_address: String,
    /// Its zone, if it said one.
    pub zone_name: Option<String>,
    /// Its own limit of silence, instead of [`BROKER_TIMEOUT_MS`].
    pub heartbeat_timeout_ms: Option<u64>,
    /// Whether a slave may act for a missing master; `None` marks a broker of before 5.x.
    pub enable_acting_master: Option<bool>,
    /// Version of its topics.
    pub data_version: DataVersion,
    /// All its topics, or the one that changed.
    pub topics: BTreeMap<String, TopicConfig>,
    /// Addresses of its filter servers.
    pub filter_servers: Vec<String>,
    /// The connection it came over; unregistered when that closes.
    pub connection: u64,
}

/// What a registration is answered with.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Registered {
    /// For a slave: where its master listens for slaves.
    pub ha_server_addr: Option<String>,
    /// For a slave: its master.
    pub master_addr: Option<String>,
    /// To be told to the group, where that is wanted.
    pub change: Option<MinBrokerChange>,
}

/// The smallest id of a group is another one (905).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MinBrokerChange {
    /// The group.
    pub broker_name: String,
    /// The smallest id.
    pub min_broker_id: i64,
    /// Its address.
    pub min_broker_addr: String,
    /// Who is gone, if the change is because of that.
    pub offline_broker_addr: Option<String>,
    /// Where the broker of the smallest id listens for slaves.
    pub ha_broker_addr: Option<String>,
    /// Connections of the group's members.
    pub connections: Vec<u64>,
}

/// Why a registration was refused (answered 1). Nothing of it was kept.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RegisterError {
    /// A single topic from an unknown broker: the change before the whole. namesrv 2.2.3.
    #[error("register broker failed")]
    OnlyOneTopic,
    /// A name or an address is empty or too long.
    #[error("{field} must have 1 to {NAME_BYTES_MAX} bytes")]
    Name {
        /// Which.
        field: &'static str,
    },
    /// Too many filter servers.
    #[error("a broker has at most {FILTER_SERVERS_MAX} filter servers")]
    TooManyFilterServers,
    /// The table of brokers is full.
    #[error("this name server takes at most {max} brokers")]
    TooManyBrokers {
        /// [`RouteLimits::brokers_max`].
        max: usize,
    },
    /// The table of topics is full.
    #[error("this name server takes at most {max} topics, counted once for each broker")]
    TooManyTopics {
        /// [`RouteLimits::queue_datas_max`].
        max: usize,
    },
}

/// Answer of a question for the data version (322).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Queried {
    /// Whether the broker has to register.
    pub changed: bool,
    /// The version on record; `None` for an unknown broker.
    pub recorded: Option<DataVersion>,
}

/// A broker that was silent for too long and is unregistered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expired {
    /// The broker.
    pub broker: BrokerKey,
    /// Its connection, to be closed.
    pub connection: u64,
    /// To be told to the group, where that is wanted.
    pub change: Option<MinBrokerChange>,
}

/// A question for a route (105).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteQuestion<'a> {
    /// The topic.
    pub topic: &'a str,
    /// Only brokers of this zone, and those without a master, are wanted. namesrv 6.
    pub zone: Option<&'a str>,
    /// The topic's order settings, where they are to be shown.
    pub order_conf: Option<&'a str>,
}

/// Which topics to list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopicKind {
    /// All (206).
    All,
    /// Unit topics (311).
    Unit,
    /// With a unit's subscription (312).
    UnitSub,
    /// With a unit's subscription, but no unit topic (313).
    UnitSubOnly,
}

#[derive(Debug, Clone)]
struct Live {
    updated_ms: u64,
    timeout_ms: u64,
    data_version: DataVersion,
    connection: u64,
    ha_address: String,
    broker_name: String,
}

/// The tables. namesrv 4.
#[derive(Debug, Clone, Default)]
pub struct Routes {
    settings: RouteSettings,
    limits: RouteLimits,
    /// topic -> broker name -> queues; no inner table is empty.
    topics: BTreeMap<String, BTreeMap<String, QueueData>>,
    /// broker name -> addresses; none is without an address.
    brokers: BTreeMap<String, BrokerData>,
    /// cluster -> broker names; none is empty.
    clusters: BTreeMap<String, BTreeSet<String>>,
    live: BTreeMap<BrokerKey, Live>,
    filter_servers: BTreeMap<BrokerKey, Vec<String>>,
    queue_datas: usize,
}

impl Routes {
    /// Empty tables.
    pub fn new(settings: RouteSettings, limits: RouteLimits) -> Self {
        Self {
            settings,
            limits,
            ..Self::default()
        }
    }

    /// Takes changed settings (318).
    pub fn set_settings(&mut self, settings: RouteSettings) {
        self.settings = settings;
    }

    /// A broker says what it has (103), in full or only the topic that changed. namesrv 2.2.3.
    pub fn register(
        &mut self,
        registration: &Registration,
        now_ms: u64,
    ) -> Result<Registered, RegisterError> {
        self.check(registration)?;
        let Registration {
            broker,
            broker_name,
            broker_id,
            ..
        } = registration;
        self.leave_old_name(broker, broker_name);
        let smallest_before = self.smallest_id(broker_name);
        let cluster = self.clusters.entry(broker.cluster.clone()).or_default();
        cluster.insert(broker_name.clone());
        let data = self
            .brokers
            .entry(broker_name.clone())
            .or_insert_with(|| BrokerData {
                broker_addrs: BTreeMap::new(),
                broker_name: broker_name.clone(),
                cluster: broker.cluster.clone(),
                enable_acting_master: false,
                zone_name: None,
            });
        data.enable_acting_master = registration.enable_acting_master.unwrap_or(false);
        data.zone_name = registration.zone_name.clone();
        // The same process under another id: it has changed its role.
        data.broker_addrs
            .retain(|id, address| id == broker_id || *address != broker.address);
        if self.is_outdated(registration) {
            self.live.remove(broker);
            return Ok(Registered::default());
        }
        let data = self
            .brokers
            .get_mut(broker_name)
            .expect("it was made above");
        let old = data.broker_addrs.insert(*broker_id, broker.address.clone());
        let is_smallest = data.broker_addrs.keys().next() == Some(broker_id);
        let is_prime_slave =
            *broker_id != MASTER_ID && is_smallest && registration.enable_acting_master.is_some();
        if *broker_id == MASTER_ID || is_prime_slave {
            self.write_topics(registration, old.is_none(), is_prime_slave);
        }
        self.live
            .insert(broker.clone(), live_of(registration, now_ms));
        if registration.filter_servers.is_empty() {
            self.filter_servers.remove(broker);
        } else {
            self.filter_servers
                .insert(broker.clone(), registration.filter_servers.clone());
        }
        let mut answer = self.master_for(registration);
        let is_smaller = smallest_before.is_some_and(|before| *broker_id < before);
        if is_smaller {
            answer.change = self.change_of(broker_name, None);
        }
        Ok(answer)
    }

    /// A broker leaves (104). An unknown one is no error.
    pub fn unregister(&mut self, broker: &BrokerKey, broker_name: &str) -> Option<MinBrokerChange> {
        self.live.remove(broker);
        self.filter_servers.remove(broker);
        let smallest_before = self.smallest_id(broker_name);
        let data = self.brokers.get_mut(broker_name)?;
        data.broker_addrs
            .retain(|_, address| *address != broker.address);
        if data.broker_addrs.is_empty() {
            self.forget(broker_name);
            return None;
        }
        if data.enable_acting_master && !data.broker_addrs.contains_key(&MASTER_ID) {
            for queues in self.topics.values_mut() {
                if let Some(queue_data) = queues.get_mut(broker_name) {
                    queue_data.perm &= !perm::WRITE;
                }
            }
        }
        if self.smallest_id(broker_name) == smallest_before {
            return None;
        }
        self.change_of(broker_name, Some(&broker.address))
    }

    /// A connection is gone: the brokers that last registered over it are unregistered.
    /// namesrv 3.
    pub fn connection_closed(&mut self, connection: u64) -> Vec<MinBrokerChange> {
        let over_it = self
            .live
            .iter()
            .filter(|(_, live)| live.connection == connection);
        let gone: Vec<_> = over_it
            .map(|(key, live)| (key.clone(), live.broker_name.clone()))
            .collect();
        gone.iter()
            .filter_map(|(key, name)| self.unregister(key, name))
            .collect()
    }

    /// Unregisters the brokers that have been silent for longer than they may. namesrv 3.
    pub fn expire(&mut self, now_ms: u64) -> Vec<Expired> {
        let silent = |live: &Live| live.updated_ms.saturating_add(live.timeout_ms) < now_ms;
        let gone: Vec<_> = self
            .live
            .iter()
            .filter(|(_, live)| silent(live))
            .map(|(key, live)| (key.clone(), live.broker_name.clone(), live.connection))
            .collect();
        let expire = |(broker, name, connection): (BrokerKey, String, u64)| {
            let change = self.unregister(&broker, &name);
            Expired {
                broker,
                connection,
                change,
            }
        };
        gone.into_iter().map(expire).collect()
    }

    /// A heartbeat (904). False for an unknown broker, which is answered 0 all the same.
    pub fn touch(&mut self, broker: &BrokerKey, now_ms: u64) -> bool {
        let live = self.live.get_mut(broker);
        live.map(|live| live.updated_ms = now_ms).is_some()
    }

    /// Whether a broker's version is the one on record (322); counts as a heartbeat.
    pub fn query_data_version(
        &mut self,
        broker: &BrokerKey,
        version: DataVersion,
        now_ms: u64,
    ) -> Queried {
        self.touch(broker, now_ms);
        let recorded = self.live.get(broker).map(|live| live.data_version);
        Queried {
            changed: recorded != Some(version),
            recorded,
        }
    }

    /// Where a topic is (105); `None` is answered 17. namesrv 2.1.
    pub fn route(&self, question: &RouteQuestion<'_>) -> Option<TopicRouteData> {
        let queues = self.topics.get(question.topic)?;
        let mut route = TopicRouteData {
            order_topic_conf: question.order_conf.map(str::to_owned),
            ..TopicRouteData::default()
        };
        for (name, queue_data) in queues {
            let Some(broker) = self.brokers.get(name) else {
                continue;
            };
            if question.zone.is_some_and(|zone| !is_in_zone(broker, zone)) {
                continue;
            }
            for address in broker.broker_addrs.values() {
                let key = BrokerKey {
                    cluster: broker.cluster.clone(),
                    address: address.clone(),
                };
                if let Some(servers) = self.filter_servers.get(&key) {
                    route
                        .filter_server_table
                        .insert(address.clone(), servers.clone());
                }
            }
            route
                .broker_datas
                .push(self.shown(question.topic, broker, queue_data));
            route.queue_datas.push(queue_data.clone());
        }
        Some(route)
    }

    /// All clusters and brokers (106).
    pub fn cluster_info(&self) -> ClusterInfo {
        ClusterInfo {
            broker_addr_table: self.brokers.clone(),
            cluster_addr_table: self
                .clusters
                .iter()
                .map(|(cluster, names)| (cluster.clone(), names.iter().cloned().collect()))
                .collect(),
        }
    }

    /// The brokers of one name (901); empty for an unknown one.
    pub fn member_group(&self, cluster: &str, broker_name: &str) -> BrokerMemberGroup {
        let broker = self.brokers.get(broker_name);
        BrokerMemberGroup {
            broker_member_group: MemberGroup {
                broker_addrs: broker
                    .map(|data| data.broker_addrs.clone())
                    .unwrap_or_default(),
                broker_name: broker_name.to_owned(),
                cluster: cluster.to_owned(),
            },
        }
    }

    /// The topics of a kind (206, 311-313), by the flags that the first broker gives.
    pub fn topics(&self, kind: TopicKind) -> TopicList {
        let wanted = |queues: &BTreeMap<String, QueueData>| {
            let flag = queues
                .values()
                .next()
                .map_or(0, |queue_data| queue_data.topic_sys_flag);
            let (unit, unit_sub) = (flag & sys_flag::UNIT != 0, flag & sys_flag::UNIT_SUB != 0);
            match kind {
                TopicKind::All => true,
                TopicKind::Unit => unit,
                TopicKind::UnitSub => unit_sub,
                TopicKind::UnitSubOnly => unit_sub && !unit,
            }
        };
        let listed = self.topics.iter().filter(|(_, queues)| wanted(queues));
        TopicList {
            broker_addr: None,
            topic_list: listed.map(|(topic, _)| topic.clone()).collect(),
        }
    }

    /// The topics with queues in a cluster (224); none for an unknown one.
    pub fn topics_of_cluster(&self, cluster: &str) -> TopicList {
        let Some(names) = self.clusters.get(cluster) else {
            return TopicList::default();
        };
        let there = |queues: &BTreeMap<String, QueueData>| {
            queues.keys().any(|broker_name| names.contains(broker_name))
        };
        let listed = self.topics.iter().filter(|(_, queues)| there(queues));
        TopicList {
            broker_addr: None,
            topic_list: listed.map(|(topic, _)| topic.clone()).collect(),
        }
    }

    /// The topics that exist of themselves: one for each cluster and broker (304).
    pub fn system_topics(&self) -> TopicList {
        let first = self.brokers.values().next();
        // A broker may be named as its cluster is.
        let names: BTreeSet<_> = self.clusters.keys().chain(self.brokers.keys()).collect();
        TopicList {
            broker_addr: first.and_then(|data| data.broker_addrs.values().next().cloned()),
            topic_list: names.into_iter().cloned().collect(),
        }
    }

    /// Makes a broker's topics read-only (205). The number of its topics.
    pub fn wipe_write_perm(&mut self, broker_name: &str) -> usize {
        self.each_queue_data(broker_name, |queue_data| queue_data.perm &= !perm::WRITE)
    }

    /// Makes a broker's topics readable and writable (327). The number of its topics.
    pub fn add_write_perm(&mut self, broker_name: &str) -> usize {
        self.each_queue_data(broker_name, |queue_data| {
            queue_data.perm = perm::READ | perm::WRITE;
        })
    }

    /// Deletes a topic (216), everywhere or in one cluster. An unknown one is no error.
    pub fn delete_topic(&mut self, topic: &str, cluster: Option<&str>) {
        match cluster {
            None => {
                let removed = self.topics.remove(topic);
                self.queue_datas -= removed.map_or(0, |queues| queues.len());
            }
            Some(cluster) => {
                let names = self.clusters.get(cluster).cloned().unwrap_or_default();
                for broker_name in &names {
                    self.remove_queue_data(topic, broker_name);
                }
            }
        }
    }

    /// Sets a topic's queues at some brokers (217). False if one of them is unknown, and then
    /// nothing changes.
    pub fn register_topic(
        &mut self,
        topic: &str,
        queue_datas: &[QueueData],
    ) -> Result<bool, RegisterError> {
        check_name("topic", topic)?;
        let known = |queue_data: &QueueData| self.brokers.contains_key(&queue_data.broker_name);
        if !queue_datas.iter().all(known) {
            return Ok(false);
        }
        self.check_room(queue_datas.len())?;
        for queue_data in queue_datas {
            self.write_queue_data(topic, queue_data.clone());
        }
        Ok(true)
    }

    /// Registered broker addresses.
    pub fn broker_count(&self) -> usize {
        self.live.len()
    }

    /// Topics.
    pub fn topic_count(&self) -> usize {
        self.topics.len()
    }

    /// Everything that can refuse a registration, before anything is written.
    fn check(&self, registration: &Registration) -> Result<(), RegisterError> {
        let Registration {
            broker,
            broker_name,
            broker_id,
            topics,
            ..
        } = registration;
        check_name("clusterName", &broker.cluster)?;
        check_name("brokerAddr", &broker.address)?;
        check_name("brokerName", broker_name)?;
        check_name("haServerAddr", &registration.ha_address)?;
        if registration
            .zone_name
            .as_ref()
            .is_some_and(|zone| zone.len() > NAME_BYTES_MAX)
        {
            return Err(RegisterError::Name { field: "zone name" });
        }
        topics
            .keys()
            .try_for_each(|topic| check_name("topic", topic))?;
        let servers = &registration.filter_servers;
        servers
            .iter()
            .try_for_each(|server| check_name("filter server", server))?;
        if servers.len() > FILTER_SERVERS_MAX {
            return Err(RegisterError::TooManyFilterServers);
        }
        let data = self.brokers.get(broker_name);
        let id_known = data.is_some_and(|data| data.broker_addrs.contains_key(broker_id));
        if !id_known && topics.len() == 1 {
            return Err(RegisterError::OnlyOneTopic);
        }
        // Ids that lost their process are bounded by the addresses that were ever there at once.
        let addresses = data.map_or(0, |data| data.broker_addrs.len());
        let max = self.limits.brokers_max;
        let full = self.live.len() >= max || addresses >= max;
        if full && !self.live.contains_key(broker) {
            return Err(RegisterError::TooManyBrokers { max });
        }
        let is_new = |topic: &&String| {
            let queues = self.topics.get(topic.as_str());
            !queues.is_some_and(|queues| queues.contains_key(broker_name))
        };
        self.check_room(topics.keys().filter(is_new).count())
    }

    fn check_room(&self, more: usize) -> Result<(), RegisterError> {
        let max = self.limits.queue_datas_max;
        if more > 0 && self.queue_datas + more > max {
            return Err(RegisterError::TooManyTopics { max });
        }
        Ok(())
    }

    /// A process that comes back under another name leaves nothing behind under the old one.
    fn leave_old_name(&mut self, broker: &BrokerKey, broker_name: &str) {
        let old = self.live.get(broker).map(|live| live.broker_name.clone());
        if let Some(old) = old.filter(|old| old != broker_name) {
            self.unregister(broker, &old);
        }
    }

    /// The id belongs to another live process of a later term.
    fn is_outdated(&self, registration: &Registration) -> bool {
        let Registration {
            broker,
            broker_name,
            broker_id,
            ..
        } = registration;
        let data = self.brokers.get(broker_name);
        let holder = data.and_then(|data| data.broker_addrs.get(broker_id));
        let Some(address) = holder.filter(|address| **address != broker.address) else {
            return false;
        };
        let key = BrokerKey {
            cluster: broker.cluster.clone(),
            address: address.clone(),
        };
        let term = registration.data_version.state_version;
        self.live
            .get(&key)
            .is_some_and(|live| live.data_version.state_version > term)
    }

    fn write_topics(&mut self, registration: &Registration, first: bool, is_prime_slave: bool) {
        let Registration {
            broker,
            broker_name,
            topics,
            ..
        } = registration;
        // One topic is an increment: the others are not gone.
        if self.settings.delete_topic_with_broker_registration && topics.len() != 1 {
            let gone: Vec<String> = self
                .topics
                .iter()
                .filter(|(topic, queues)| {
                    queues.contains_key(broker_name) && !topics.contains_key(*topic)
                })
                .map(|(topic, _)| topic.clone())
                .collect();
            for topic in &gone {
                self.remove_queue_data(topic, broker_name);
            }
        }
        let recorded = self.live.get(broker).map(|live| live.data_version);
        let changed = first || recorded != Some(registration.data_version);
        let acting = is_prime_slave && registration.enable_acting_master == Some(true);
        for (topic, config) in topics {
            let queues = self.topics.get(topic);
            let is_there = queues.is_some_and(|queues| queues.contains_key(broker_name));
            if !changed && is_there {
                continue;
            }
            let perm = if acting {
                config.perm & !perm::WRITE
            } else {
                config.perm
            };
            let queue_data = QueueData {
                broker_name: broker_name.clone(),
                perm,
                read_queue_nums: config.read_queue_nums,
                topic_sys_flag: config.topic_sys_flag,
                write_queue_nums: config.write_queue_nums,
            };
            self.write_queue_data(topic, queue_data);
        }
    }

    fn write_queue_data(&mut self, topic: &str, queue_data: QueueData) {
        let queues = self.topics.entry(topic.to_owned()).or_default();
        let old = queues.insert(queue_data.broker_name.clone(), queue_data);
        self.queue_datas += usize::from(old.is_none());
    }

    fn remove_queue_data(&mut self, topic: &str, broker_name: &str) {
        let Some(queues) = self.topics.get_mut(topic) else {
            return;
        };
        let removed = queues.remove(broker_name);
        self.queue_datas -= usize::from(removed.is_some());
        if queues.is_empty() {
            self.topics.remove(topic);
        }
    }

    fn each_queue_data(&mut self, broker_name: &str, change: impl Fn(&mut QueueData)) -> usize {
        let all = self.topics.values_mut();
        let its = all.filter_map(|queues| queues.get_mut(broker_name));
        its.map(change).count()
    }

    /// The last address of a name is gone.
    fn forget(&mut self, broker_name: &str) {
        self.brokers.remove(broker_name);
        self.clusters.retain(|_, names| {
            names.remove(broker_name);
            !names.is_empty()
        });
        let mut removed = 0;
        self.topics.retain(|_, queues| {
            removed += usize::from(queues.remove(broker_name).is_some());
            !queues.is_empty()
        });
        self.queue_datas -= removed;
    }

    fn smallest_id(&self, broker_name: &str) -> Option<i64> {
        self.brokers
            .get(broker_name)?
            .broker_addrs
            .keys()
            .next()
            .copied()
    }

    fn change_of(&self, broker_name: &str, offline: Option<&str>) -> Option<MinBrokerChange> {
        if !self.settings.notify_min_broker_id_changed {
            return None;
        }
        let data = self.brokers.get(broker_name)?;
        let (&min_broker_id, min_broker_addr) = data.broker_addrs.first_key_value()?;
        let live = |address: &String| {
            let key = BrokerKey {
                cluster: data.cluster.clone(),
                address: address.clone(),
            };
            self.live.get(&key)
        };
        let members = data.broker_addrs.values().filter_map(live);
        Some(MinBrokerChange {
            broker_name: broker_name.to_owned(),
            min_broker_id,
            min_broker_addr: min_broker_addr.clone(),
            offline_broker_addr: offline.map(str::to_owned),
            ha_broker_addr: live(min_broker_addr).map(|live| live.ha_address.clone()),
            connections: members.map(|live| live.connection).collect(),
        })
    }

    /// What a slave is told of its master.
    fn master_for(&self, registration: &Registration) -> Registered {
        let Registration {
            broker,
            broker_name,
            broker_id,
            ..
        } = registration;
        let data = self.brokers.get(broker_name);
        let master = data.and_then(|data| data.broker_addrs.get(&MASTER_ID));
        let Some(address) = master.filter(|_| *broker_id != MASTER_ID) else {
            return Registered::default();
        };
        let key = BrokerKey {
            cluster: broker.cluster.clone(),
            address: address.clone(),
        };
        match self.live.get(&key) {
            Some(live) => Registered {
                ha_server_addr: Some(live.ha_address.clone()),
                master_addr: Some(address.clone()),
                change: None,
            },
            None => Registered::default(),
        }
    }

    /// A broker as a client sees it: a slave in the master's place where it acts for it.
    /// namesrv 5.
    fn shown(&self, topic: &str, broker: &BrokerData, queue_data: &QueueData) -> BrokerData {
        let mut shown = broker.clone();
        let acts = self.settings.support_acting_master
            && !topic.starts_with(SYNC_MEMBER_PREFIX)
            && broker.enable_acting_master
            && !broker.broker_addrs.contains_key(&MASTER_ID)
            && queue_data.perm & perm::WRITE == 0;
        if !acts {
            return shown;
        }
        if let Some((_, address)) = shown.broker_addrs.pop_first() {
            shown.broker_addrs.insert(MASTER_ID, address);
        }
        shown
    }
}

fn check_name(field: &'static str, name: &str) -> Result<(), RegisterError> {
    match name.len() {
        1..=NAME_BYTES_MAX => Ok(()),
        _ => Err(RegisterError::Name { field }),
    }
}

fn live_of(registration: &Registration, now_ms: u64) -> Live {
    Live {
        updated_ms: now_ms,
        timeout_ms: registration
            .heartbeat_timeout_ms
            .unwrap_or(BROKER_TIMEOUT_MS),
        data_version: registration.data_version,
        connection: registration.connection,
        ha_address: registration.ha_address.clone(),
        broker_name: registration.broker_name.clone(),
    }
}

fn is_in_zone(broker: &BrokerData, zone: &str) -> bool {
    let same = broker
        .zone_name
        .as_deref()
        .is_some_and(|name| name.eq_ignore_ascii_case(zone));
    same || !broker.broker_addrs.contains_key(&MASTER_ID)
}

#[cfg(test)]
mod tests;
