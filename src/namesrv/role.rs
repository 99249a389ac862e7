//! The name server's role: frames in, answers of [`Routes`] and [`KvConfig`] out (namesrv 2).

use std::path::PathBuf;

use shards::Now;
use shards::files::{Job, JobDone};
use shards::role::Role;

use super::{
    BrokerKey, KvConfig, MinBrokerChange, ORDER_TOPIC_CONFIG, Registration, RouteLimits,
    RouteQuestion, RouteSettings, Routes, TopicKind,
};
use crate::ids::{Conn, Micros, Ticket};
use crate::role::{Effect, Effects, Input, Ringmq};
use crate::wire::bodies::{DataVersion, RegisterBody, TopicRouteData};
use crate::wire::codes::{RequestCode, ResponseCode};
use crate::wire::fastjson::{self, to_ascii_vec};
use crate::wire::frame::{
    Encoding, Frame, RequestHead, ResponseHead, Scratch, encode_request, encode_response,
};
use crate::wire::headers::{
    BrokerHeartbeatRequest, BrokerIdentityRequest, HeaderError, RegisterBrokerRequest, RouteRequest,
};

const SAVE: Ticket = Ticket(1);
const SAVE_RETRY_MS: u64 = 1000;

/// What node.rs fills in.
#[derive(Clone, Debug)]
pub struct NamesrvSettings {
    pub routes: RouteSettings,
    pub limits: RouteLimits,
    /// `orderMessageEnable` and `returnOrderTopicConfigToBroker`.
    pub order_messages: bool,
    pub return_order_config: bool,
    /// `enableAllTopicList` and `enableTopicList`.
    pub list_all_topics: bool,
    pub list_topics: bool,
    /// `scanNotActiveBrokerInterval`.
    pub scan_interval_ms: u64,
    /// `kvConfigPath`.
    pub kv_path: PathBuf,
    /// What 319 shows.
    pub settings: Vec<(&'static str, String)>,
}

pub struct Namesrv {
    settings: NamesrvSettings,
    routes: Routes,
    kv: KvConfig,
    /// Changes of the settings, saved and on their way.
    changes: u64,
    saved: u64,
    saving: Option<u64>,
    save_at: Micros,
    scan_at: Micros,
    scratch: Scratch,
    opaque: i32,
    stopping: bool,
    stopped: bool,
}

/// An answer in the making.
#[derive(Default)]
struct Answer {
    code: i32,
    remark: Option<String>,
    ext: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

impl Answer {
    fn body(body: Vec<u8>) -> Answer {
        Answer {
            body,
            ..Answer::default()
        }
    }

    fn ext(name: &'static str, value: impl ToString) -> Answer {
        Answer {
            ext: vec![(name, value.to_string())],
            ..Answer::default()
        }
    }

    fn refuse(code: ResponseCode, remark: impl Into<String>) -> Answer {
        Answer {
            code: code.0,
            remark: Some(remark.into()),
            ..Answer::default()
        }
    }

    fn failed(error: &dyn std::fmt::Display) -> Answer {
        Answer::refuse(ResponseCode::SYSTEM_ERROR, error.to_string())
    }
}

impl From<HeaderError> for Answer {
    fn from(error: HeaderError) -> Answer {
        Answer::failed(&error)
    }
}

type Answered = Result<Answer, Answer>;

/// One number for one connection, as the tables know it.
fn number(conn: Conn) -> u64 {
    u64::from(conn.core) << 56 | u64::from(conn.slot & 0xFF_FFFF) << 32 | u64::from(conn.generation)
}

fn conn_of(number: u64) -> Conn {
    Conn {
        core: (number >> 56) as u8,
        slot: (number >> 32) as u32 & 0xFF_FFFF,
        generation: number as u32,
    }
}

impl Namesrv {
    #[must_use]
    pub fn new(settings: NamesrvSettings, kv: KvConfig) -> Self {
        Namesrv {
            routes: Routes::new(settings.routes, settings.limits),
            kv,
            changes: 0,
            saved: 0,
            saving: None,
            save_at: Micros(0),
            scan_at: Micros(0),
            scratch: Scratch::new(),
            opaque: 0,
            stopping: false,
            stopped: false,
            settings,
        }
    }

    fn frame(&mut self, now: Now, conn: Conn, bytes: &[u8], fx: &mut Effects<'_>) {
        let mut scratch = std::mem::take(&mut self.scratch);
        match Frame::decode(bytes, &mut scratch) {
            Err(error) => {
                log::debug!("a connection is closed: {error}");
                fx.push(Effect::Close { conn });
            }
            Ok(frame) if frame.header.is_response() => {}
            Ok(frame) => {
                let answer = self
                    .answer(now, conn, &frame, fx)
                    .unwrap_or_else(|refused| refused);
                if !frame.header.is_oneway() {
                    fx.reply(conn, |out| write(out, &frame, &answer));
                }
            }
        }
        self.scratch = scratch;
    }

    fn answer(
        &mut self,
        now: Now,
        conn: Conn,
        frame: &Frame<'_>,
        fx: &mut Effects<'_>,
    ) -> Answered {
        let ext = |name: &str| frame.header.ext(name).unwrap_or_default();
        match frame.header.request_code() {
            RequestCode::GET_ROUTEINFO_BY_TOPIC => self.route(frame),
            RequestCode::REGISTER_BROKER => self.register(now, conn, frame, fx),
            RequestCode::UNREGISTER_BROKER => self.unregister(frame, fx),
            RequestCode::QUERY_DATA_VERSION => self.query_version(now, frame),
            RequestCode::BROKER_HEARTBEAT => self.heartbeat(now, frame),
            RequestCode::GET_BROKER_CLUSTER_INFO => {
                Ok(Answer::body(to_ascii_vec(&self.routes.cluster_info())))
            }
            RequestCode::GET_BROKER_MEMBER_GROUP => {
                let group = self
                    .routes
                    .member_group(ext("clusterName"), ext("brokerName"));
                Ok(Answer::body(to_ascii_vec(&group)))
            }
            RequestCode::WIPE_WRITE_PERM_OF_BROKER => Ok(Answer::ext(
                "wipeTopicCount",
                self.routes.wipe_write_perm(ext("brokerName")),
            )),
            RequestCode::ADD_WRITE_PERM_OF_BROKER => Ok(Answer::ext(
                "addTopicCount",
                self.routes.add_write_perm(ext("brokerName")),
            )),
            RequestCode::DELETE_TOPIC_IN_NAMESRV => {
                self.routes
                    .delete_topic(ext("topic"), frame.header.ext("clusterName"));
                Ok(Answer::default())
            }
            RequestCode::REGISTER_TOPIC_IN_NAMESRV => self.register_topic(frame),
            RequestCode::GET_NAMESRV_CONFIG => Ok(self.config()),
            code => match self.list(code, ext("cluster")) {
                Some(answered) => answered,
                None => self.key_value(code, frame),
            },
        }
    }

    fn route(&self, frame: &Frame<'_>) -> Answered {
        let request = RouteRequest::decode(&frame.header)?;
        let topic = request.topic;
        let order = self.settings.order_messages;
        let order_conf = order
            .then(|| self.kv.get(ORDER_TOPIC_CONFIG, topic))
            .flatten();
        let zone = request
            .zone_name
            .filter(|zone| request.zone_mode && !zone.trim().is_empty());
        match self.routes.route(&RouteQuestion {
            topic,
            zone,
            order_conf,
        }) {
            Some(route) => Ok(Answer::body(to_ascii_vec(&route))),
            None => Err(Answer::refuse(
                ResponseCode::TOPIC_NOT_EXIST,
                format!("No topic route info in name server for the topic: {topic}"),
            )),
        }
    }

    fn register(
        &mut self,
        now: Now,
        conn: Conn,
        frame: &Frame<'_>,
        fx: &mut Effects<'_>,
    ) -> Answered {
        let request = RegisterBrokerRequest::decode(&frame.header)?;
        let crc = (crc32fast::hash(frame.body) & 0x7FFF_FFFF) as i32;
        if request.body_crc32 != 0 && request.body_crc32 != crc {
            return Err(Answer::refuse(
                ResponseCode::SYSTEM_ERROR,
                "crc32 not match",
            ));
        }
        let body = RegisterBody::decode(frame.body, request.compressed, frame.header.version)
            .map_err(|error| Answer::failed(&error))?;
        let registration = registration(&request, body, number(conn));
        let registered = self.routes.register(&registration, now.mono.0 / 1000);
        let registered = registered.map_err(|error| Answer::failed(&error))?;
        let mut answer = Answer::default();
        let named = [
            ("haServerAddr", registered.ha_server_addr),
            ("masterAddr", registered.master_addr),
        ];
        for (name, value) in named {
            answer.ext.extend(value.map(|value| (name, value)));
        }
        if self.settings.return_order_config {
            let table = self.kv.list(ORDER_TOPIC_CONFIG);
            answer.body = table.map(|table| to_ascii_vec(&table)).unwrap_or_default();
        }
        self.tell_change(registered.change.as_ref(), fx);
        Ok(answer)
    }

    fn unregister(&mut self, frame: &Frame<'_>, fx: &mut Effects<'_>) -> Answered {
        let request = BrokerIdentityRequest::decode(&frame.header)?;
        let broker = key(request.cluster_name, request.broker_addr);
        let change = self.routes.unregister(&broker, request.broker_name);
        self.tell_change(change.as_ref(), fx);
        Ok(Answer::default())
    }

    fn query_version(&mut self, now: Now, frame: &Frame<'_>) -> Answered {
        let request = BrokerIdentityRequest::decode(&frame.header)?;
        let version: DataVersion =
            fastjson::from_slice(frame.body).map_err(|error| Answer::failed(&error))?;
        let broker = key(request.cluster_name, request.broker_addr);
        let queried = self
            .routes
            .query_data_version(&broker, version, now.mono.0 / 1000);
        let mut answer = Answer::ext("changed", queried.changed);
        answer.body = queried
            .recorded
            .map(|version| to_ascii_vec(&version))
            .unwrap_or_default();
        Ok(answer)
    }

    fn heartbeat(&mut self, now: Now, frame: &Frame<'_>) -> Answered {
        let request = BrokerHeartbeatRequest::decode(&frame.header)?;
        self.routes.touch(
            &key(request.cluster_name, request.broker_addr),
            now.mono.0 / 1000,
        );
        Ok(Answer::default())
    }

    fn register_topic(&mut self, frame: &Frame<'_>) -> Answered {
        let topic = frame.header.ext("topic").unwrap_or_default();
        let route: TopicRouteData =
            fastjson::from_slice(frame.body).map_err(|error| Answer::failed(&error))?;
        let registered = self.routes.register_topic(topic, &route.queue_datas);
        registered
            .map(|_| Answer::default())
            .map_err(|error| Answer::failed(&error))
    }

    fn list(&self, code: RequestCode, cluster: &str) -> Option<Answered> {
        let kind = match code {
            RequestCode::GET_ALL_TOPIC_LIST_FROM_NAMESERVER => TopicKind::All,
            RequestCode::GET_UNIT_TOPIC_LIST => TopicKind::Unit,
            RequestCode::GET_HAS_UNIT_SUB_TOPIC_LIST => TopicKind::UnitSub,
            RequestCode::GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST => TopicKind::UnitSubOnly,
            RequestCode::GET_TOPICS_BY_CLUSTER if self.settings.list_topics => {
                return Some(Ok(Answer::body(to_ascii_vec(
                    &self.routes.topics_of_cluster(cluster),
                ))));
            }
            RequestCode::GET_SYSTEM_TOPIC_LIST_FROM_NS if self.settings.list_topics => {
                return Some(Ok(Answer::body(to_ascii_vec(&self.routes.system_topics()))));
            }
            RequestCode::GET_TOPICS_BY_CLUSTER | RequestCode::GET_SYSTEM_TOPIC_LIST_FROM_NS => {
                return Some(Err(Answer::refuse(ResponseCode::SYSTEM_ERROR, "disable")));
            }
            _ => return None,
        };
        let allowed = match kind {
            TopicKind::All => self.settings.list_all_topics,
            _ => self.settings.list_topics,
        };
        Some(if allowed {
            Ok(Answer::body(to_ascii_vec(&self.routes.topics(kind))))
        } else {
            Err(Answer::refuse(ResponseCode::SYSTEM_ERROR, "disable"))
        })
    }

    fn key_value(&mut self, code: RequestCode, frame: &Frame<'_>) -> Answered {
        let namespace = frame.header.ext("namespace");
        let key = frame.header.ext("key");
        let (space, name) = (namespace.unwrap_or_default(), key.unwrap_or_default());
        match code {
            RequestCode::PUT_KV_CONFIG => {
                let value = frame.header.ext("value").unwrap_or_default();
                if namespace.is_none() || key.is_none() {
                    let remark = "namespace or key is missing";
                    return Err(Answer::refuse(ResponseCode::SYSTEM_ERROR, remark));
                }
                let changed = self.kv.put(space, name, value);
                self.changes += u64::from(changed.map_err(|error| Answer::failed(&error))?);
                Ok(Answer::default())
            }
            RequestCode::GET_KV_CONFIG => match self.kv.get(space, name) {
                Some(value) => Ok(Answer::ext("value", value)),
                None => Err(Answer::refuse(
                    ResponseCode::QUERY_NOT_FOUND,
                    format!("No config item, Namespace: {space} Key: {name}"),
                )),
            },
            RequestCode::DELETE_KV_CONFIG => {
                self.changes += u64::from(self.kv.delete(space, name));
                Ok(Answer::default())
            }
            RequestCode::GET_KVLIST_BY_NAMESPACE => match self.kv.list(space) {
                Some(table) => Ok(Answer::body(to_ascii_vec(&table))),
                None => Err(Answer::refuse(
                    ResponseCode::QUERY_NOT_FOUND,
                    format!("No config item, Namespace: {space}"),
                )),
            },
            code => Err(Answer::refuse(
                ResponseCode::REQUEST_CODE_NOT_SUPPORTED,
                format!(" request type {} not supported", code.0),
            )),
        }
    }

    fn config(&self) -> Answer {
        let lines = self
            .settings
            .settings
            .iter()
            .map(|(key, value)| format!("{key}={value}\n"));
        Answer::body(lines.collect::<String>().into_bytes())
    }

    /// Tells a group's members that its smallest id is another one (namesrv 5).
    fn tell_change(&mut self, change: Option<&MinBrokerChange>, fx: &mut Effects<'_>) {
        let Some(change) = change.filter(|_| self.settings.routes.notify_min_broker_id_changed)
        else {
            return;
        };
        for connection in &change.connections {
            self.opaque = self.opaque.wrapping_add(1);
            let code = RequestCode::NOTIFY_MIN_BROKER_ID_CHANGE;
            let head = RequestHead::new(code, self.opaque).oneway();
            fx.reply(conn_of(*connection), |out| {
                encode_request(out, Encoding::Json, &head, None, 0, |ext| {
                    ext.put_int("minBrokerId", change.min_broker_id);
                    ext.put_str("brokerName", &change.broker_name);
                    ext.put_str("minBrokerAddr", &change.min_broker_addr);
                    if let Some(address) = &change.offline_broker_addr {
                        ext.put_str("offlineBrokerAddr", address);
                    }
                    if let Some(address) = &change.ha_broker_addr {
                        ext.put_str("haBrokerAddr", address);
                    }
                });
            });
        }
    }

    fn scan(&mut self, now: Now, fx: &mut Effects<'_>) {
        if now.mono < self.scan_at {
            return;
        }
        self.scan_at = now.mono.plus_millis(self.settings.scan_interval_ms);
        for expired in self.routes.expire(now.mono.0 / 1000) {
            log::warn!(
                "broker {} is silent: its routes are removed",
                expired.broker.address
            );
            fx.push(Effect::Close {
                conn: conn_of(expired.connection),
            });
            self.tell_change(expired.change.as_ref(), fx);
        }
    }

    fn save(&mut self, now: Now, fx: &mut Effects<'_>) {
        let waits = self.changes != self.saved && self.saving.is_none();
        if waits && now.mono >= self.save_at {
            self.saving = Some(self.changes);
            let path = self.settings.kv_path.clone();
            let job = Job::ReplaceFile {
                path,
                bytes: self.kv.to_file(),
            };
            fx.push(Effect::Slow { ticket: SAVE, job });
        }
        if self.stopping && self.changes == self.saved && !self.stopped {
            self.stopped = true;
            fx.push(Effect::Stopped);
        }
    }

    fn saved(&mut self, now: Now, done: &JobDone) {
        let Some(change) = self.saving.take() else {
            return;
        };
        if let JobDone::Failed(error) = done {
            log::error!(
                "{} cannot be saved: {error}",
                self.settings.kv_path.display()
            );
            self.save_at = now.mono.plus_millis(SAVE_RETRY_MS);
        } else {
            self.saved = change;
        }
    }
}

fn key(cluster: &str, address: &str) -> BrokerKey {
    BrokerKey {
        cluster: cluster.to_owned(),
        address: address.to_owned(),
    }
}

fn registration(
    request: &RegisterBrokerRequest<'_>,
    body: RegisterBody,
    connection: u64,
) -> Registration {
    let table = body.topic_config_serialize_wrapper;
    Registration {
        broker: key(request.cluster_name, request.broker_addr),
        broker_name: request.broker_name.to_owned(),
        broker_id: request.broker_id,
        ha_address: request.ha_server_addr.to_owned(),
        zone_name: request.zone_name.map(str::to_owned),
        heartbeat_timeout_ms: request
            .heartbeat_timeout_millis
            .and_then(|millis| u64::try_from(millis).ok()),
        enable_acting_master: request.enable_acting_master,
        data_version: table.data_version,
        topics: table.topic_config_table,
        filter_servers: body.filter_server_list,
        connection,
    }
}

fn write(out: &mut Vec<u8>, frame: &Frame<'_>, answer: &Answer) {
    let head = ResponseHead {
        code: ResponseCode(answer.code),
        opaque: frame.header.opaque,
    };
    let remark = answer.remark.as_deref();
    encode_response(
        out,
        frame.header.encoding,
        &head,
        remark,
        answer.body.len(),
        |ext| {
            answer
                .ext
                .iter()
                .for_each(|(name, value)| ext.put_str(name, value));
        },
    );
    out.extend_from_slice(&answer.body);
}

impl Role<Ringmq> for Namesrv {
    fn handle(&mut self, now: Now, input: Input<'_>, fx: &mut Effects<'_>) {
        match input {
            Input::Frame { conn, bytes } => self.frame(now, conn, bytes, fx),
            Input::Closed { conn } => {
                for change in self.routes.connection_closed(number(conn)) {
                    self.tell_change(Some(&change), fx);
                }
            }
            Input::Slow { ticket: SAVE, done } => self.saved(now, &done),
            Input::Stop => self.stopping = true,
            Input::Settled | Input::Deadline => {
                self.scan(now, fx);
                self.save(now, fx);
            }
            _ => {}
        }
    }

    fn deadline(&self) -> Option<Micros> {
        let save = self.changes != self.saved && self.saving.is_none();
        let scan = (!self.stopping).then_some(self.scan_at);
        [scan, save.then_some(self.save_at)]
            .into_iter()
            .flatten()
            .min()
    }

    fn woken_by(&self) -> u64 {
        0
    }

    fn name(&self) -> &'static str {
        "namesrv"
    }
}

/// Reads `kvConfig.json`; a missing file is an empty table.
pub fn read_kv(path: &std::path::Path) -> Result<KvConfig, String> {
    match std::fs::read(path) {
        Ok(bytes) if bytes.is_empty() => Ok(KvConfig::default()),
        Ok(bytes) => KvConfig::from_file(&bytes).map_err(|error| {
            let path = path.display();
            format!("{path} is not what a name server writes ({error}): mend or remove it")
        }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(KvConfig::default()),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}
