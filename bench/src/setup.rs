//! A blocking client for what comes before the load: a topic, its route, the broker's flush mode.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use crate::broker::Counters;
use crate::frames::{self, FrameError, PREFIX_BYTES, QUEUES_MAX, Topic};

const TOPIC: &str = "RingmqBench";
const BROKER_UNKNOWN: &str = "broker-a";
const QUEUES: u32 = 8;
const UPDATE_AND_CREATE_TOPIC: i32 = 17;
const GET_BROKER_CONFIG: i32 = 26;
const GET_BROKER_RUNTIME_INFO: i32 = 28;
const GET_ROUTE: i32 = 105;
const TOPIC_NOT_EXIST: i32 = 17;
/// V5_3_3: a name server answers it with strict JSON.
const VERSION: i32 = 479;
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    #[error("cannot talk to {address}")]
    Talk {
        address: SocketAddr,
        source: io::Error,
    },
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("{address} sent JSON that cannot be read")]
    Json {
        address: SocketAddr,
        source: serde_json::Error,
    },
    #[error("request {request} was answered with code {code}: {remark}")]
    Refused {
        request: i32,
        code: i64,
        remark: String,
    },
    #[error("the name server has no writable queue of topic {TOPIC} after 10 s")]
    NoRoute,
    #[error("the broker's flushDiskType is {0}: only SYNC_FLUSH can be compared with the device")]
    NotSync(String),
}

/// Creates the topic and learns its queues. Without a name server the queues are those asked for.
pub fn prepare(broker: SocketAddr, namesrv: Option<SocketAddr>) -> Result<Topic, SetupError> {
    let mut client = Client::connect(broker)?;
    let queues = QUEUES.to_string();
    let fields = [
        ("topic", TOPIC),
        ("defaultTopic", "TBW102"),
        ("readQueueNums", &queues),
        ("writeQueueNums", &queues),
        ("perm", "6"),
        ("topicFilterType", "SINGLE_TAG"),
        ("topicSysFlag", "0"),
        ("order", "false"),
    ];
    client.call(UPDATE_AND_CREATE_TOPIC, &fields)?.succeeded()?;
    match namesrv {
        Some(namesrv) => route(namesrv),
        None => Ok(Topic {
            name: TOPIC.into(),
            broker: BROKER_UNKNOWN.into(),
            queues: QUEUES,
        }),
    }
}

/// Refuses a broker that says it does not flush before it answers. One that says nothing passes.
pub fn check_flush_mode(broker: SocketAddr) -> Result<(), SetupError> {
    let answer = Client::connect(broker)?.call(GET_BROKER_CONFIG, &[])?;
    let properties = String::from_utf8_lossy(&answer.body).into_owned();
    let mode = properties
        .lines()
        .find_map(|line| line.strip_prefix("flushDiskType="));
    match mode {
        Some(mode) if mode != "SYNC_FLUSH" => Err(SetupError::NotSync(mode.into())),
        _ => Ok(()),
    }
}

/// What ringmq has stored and flushed since it started.
pub fn counters(broker: SocketAddr) -> Result<Counters, SetupError> {
    let answer = Client::connect(broker)?.call(GET_BROKER_RUNTIME_INFO, &[])?;
    let body = serde_json::from_slice(&answer.body);
    let info: Value = body.map_err(|source| SetupError::Json {
        address: broker,
        source,
    })?;
    let count = |key: &str| {
        info["table"][key]
            .as_str()
            .and_then(|text| text.parse().ok())
    };
    Ok(Counters {
        stored: count("ringmq.log.flushed_records").unwrap_or(0),
        flushes: count("ringmq.log.flushes").unwrap_or(0),
    })
}

/// Asks until the broker's registration has arrived.
fn route(namesrv: SocketAddr) -> Result<Topic, SetupError> {
    let mut client = Client::connect(namesrv)?;
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        let answer = client.call(GET_ROUTE, &[("topic", TOPIC)])?;
        if answer.code != i64::from(TOPIC_NOT_EXIST) {
            answer.succeeded()?;
            let body = serde_json::from_slice(&answer.body);
            let route: Value = body.map_err(|source| SetupError::Json {
                address: namesrv,
                source,
            })?;
            if let Some(topic) = topic_of(&route) {
                return Ok(topic);
            }
        }
        thread::sleep(Duration::from_millis(100));
    }
    Err(SetupError::NoRoute)
}

fn topic_of(route: &Value) -> Option<Topic> {
    let queue_data = route["queueDatas"].as_array()?.first()?;
    let queues = u32::try_from(queue_data["writeQueueNums"].as_u64()?).ok()?;
    let broker = queue_data["brokerName"].as_str()?.to_owned();
    let writable = queue_data["perm"].as_u64()? & 2 != 0 && queues > 0;
    writable.then(|| Topic {
        name: TOPIC.into(),
        broker,
        queues: queues.min(QUEUES_MAX),
    })
}

struct Client {
    address: SocketAddr,
    stream: TcpStream,
    opaque: i32,
}

struct Answer {
    request: i32,
    code: i64,
    remark: String,
    body: Vec<u8>,
}

impl Answer {
    fn succeeded(&self) -> Result<(), SetupError> {
        let Answer {
            request,
            code,
            remark,
            ..
        } = self;
        if *code == 0 {
            return Ok(());
        }
        Err(SetupError::Refused {
            request: *request,
            code: *code,
            remark: remark.clone(),
        })
    }
}

impl Client {
    fn connect(address: SocketAddr) -> Result<Self, SetupError> {
        let open = || -> io::Result<TcpStream> {
            let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            stream.set_nodelay(true)?;
            Ok(stream)
        };
        let stream = open().map_err(|source| SetupError::Talk { address, source })?;
        Ok(Client {
            address,
            stream,
            opaque: 0,
        })
    }

    /// Sends one request and waits for its answer; what the peer asks meanwhile is ignored.
    fn call(&mut self, code: i32, fields: &[(&str, &str)]) -> Result<Answer, SetupError> {
        self.opaque += 1;
        let fields = fields
            .iter()
            .map(|(key, value)| (key.to_string(), json!(value)));
        let header = json!({
            "code": code, "flag": 0, "language": "JAVA", "opaque": self.opaque,
            "version": VERSION, "serializeTypeCurrentRPC": "JSON",
            "extFields": fields.collect::<Map<_, _>>(),
        });
        let address = self.address;
        let request = frames::frame(header.to_string().as_bytes(), &[]);
        let talk = |source| SetupError::Talk { address, source };
        self.stream.write_all(&request).map_err(talk)?;
        loop {
            let (header, body) = self.read_frame()?;
            let is_answer = header["flag"].as_u64().is_some_and(|flag| flag & 1 != 0);
            if is_answer && header["opaque"].as_i64() == Some(i64::from(self.opaque)) {
                let number = header["code"].as_i64().unwrap_or(0);
                let remark = header["remark"].as_str().unwrap_or_default().to_owned();
                return Ok(Answer {
                    request: code,
                    code: number,
                    remark,
                    body,
                });
            }
        }
    }

    fn read_frame(&mut self) -> Result<(Value, Vec<u8>), SetupError> {
        let address = self.address;
        let talk = |source| SetupError::Talk { address, source };
        let mut prefix = [0; PREFIX_BYTES];
        self.stream.read_exact(&mut prefix).map_err(talk)?;
        let (header_bytes, body_bytes) = frames::lengths(&prefix)?;
        let mut header = vec![0; header_bytes];
        let mut body = vec![0; body_bytes];
        self.stream.read_exact(&mut header).map_err(talk)?;
        self.stream.read_exact(&mut body).map_err(talk)?;
        let header = serde_json::from_slice(&header);
        Ok((
            header.map_err(|source| SetupError::Json { address, source })?,
            body,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The route's form is that of the name server's specification, section 2.1.
    #[test]
    fn a_route_names_broker_and_queues_and_a_read_only_one_is_no_route() {
        let route = |perm: u32, queues: u32| {
            json!({
                "brokerDatas": [{"brokerAddrs": {"0": "10.0.0.1:10911"},
                    "brokerName": "broker-b", "cluster": "DefaultCluster"}],
                "filterServerTable": {},
                "queueDatas": [{"brokerName": "broker-b", "perm": perm, "readQueueNums": 16,
                    "topicSysFlag": 0, "writeQueueNums": queues}],
            })
        };
        let topic = topic_of(&route(6, 16)).expect("writable");
        assert_eq!((&*topic.broker, topic.queues), ("broker-b", QUEUES_MAX));
        assert_eq!(topic_of(&route(2, 3)).map(|topic| topic.queues), Some(3));
        assert!(topic_of(&route(4, 8)).is_none());
        assert!(topic_of(&route(6, 0)).is_none());
        assert!(topic_of(&json!({"queueDatas": []})).is_none());
    }
}
