//! A name server and broker on one port that answers from a small table, writes down what it was
//! asked, and can be told to answer otherwise.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use crate::wire::fastjson;
use crate::wire::frame::{
    Encoding, Frame, RequestHead, ResponseHead, Scratch, encode_request, encode_response,
    frame_length,
};
use crate::wire::properties;
use crate::wire::record::{PropertiesSpec, RecordSpec, patch};
use crate::wire::{RequestCode, ResponseCode};

pub const TOPIC: &str = "T";

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Asked {
    pub code: i32,
    pub language: &'static str,
    pub ext: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

impl Asked {
    pub fn ext(&self, name: &str) -> &str {
        self.ext.get(name).map_or("", String::as_str)
    }

    pub fn int(&self, name: &str) -> i64 {
        self.ext(name).parse().unwrap()
    }
}

#[derive(Default)]
pub struct Reply {
    pub code: i32,
    pub remark: Option<&'static str>,
    pub ext: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
    /// Requests that leave before the answer: code, fields, body.
    pub push: Vec<Push>,
    /// Closes the connection instead of answering, or after it.
    pub hang_up: bool,
    pub then_hang_up: bool,
}

pub type Push = (i32, Vec<(&'static str, String)>, Vec<u8>);

pub fn code(code: i32) -> Reply {
    Reply {
        code,
        ..Reply::default()
    }
}

type Script = Box<dyn FnMut(&mut State, &Asked) -> Option<Reply> + Send>;

#[derive(Default)]
pub struct State {
    /// 105 by topic, as JSON.
    pub routes: BTreeMap<String, String>,
    /// Records by queue of [`TOPIC`].
    pub queues: Vec<Vec<Vec<u8>>>,
    /// Committed offsets by queue.
    pub committed: BTreeMap<i64, i64>,
    pub members: Vec<String>,
    pub asked: Vec<Asked>,
    /// Answers of the client to pushed requests: code and body.
    pub answered: Vec<(i32, Vec<u8>)>,
}

impl State {
    pub fn all(&self, code: RequestCode) -> Vec<Asked> {
        let all = self.asked.iter().filter(|asked| asked.code == code.0);
        all.cloned().collect()
    }

    /// Adds a message; its body, tag and sys flag.
    pub fn store(&mut self, queue: usize, body: &[u8], tag: &str, sys_flag: i32) {
        let mut text = Vec::new();
        properties::append(&mut text, "UNIQ_KEY", format!("ID-{queue}").as_bytes());
        properties::append(&mut text, "TAGS", tag.as_bytes());
        let spec = RecordSpec {
            topic: TOPIC,
            queue_id: queue as i32,
            flag: 0,
            sys_flag,
            born_timestamp: 1_700_000_000_000,
            born_host: "10.0.0.7:4711".parse().unwrap(),
            store_host: "127.0.0.1:10911".parse().unwrap(),
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body,
            properties: PropertiesSpec {
                texts: &[&text],
                pairs: &[],
            },
        };
        let mut record = vec![0; spec.encoded_len().unwrap()];
        spec.encode(&mut record);
        let records = &mut self.queues[queue];
        let offset = records.len() as u64;
        patch(&mut record, offset, 1000 * offset, 1_700_000_000_001);
        records.push(record);
    }

    fn answer(&mut self, asked: &Asked) -> Reply {
        let queue = || asked.int("queueId");
        match RequestCode(asked.code) {
            RequestCode::GET_ROUTEINFO_BY_TOPIC => match self.routes.get(asked.ext("topic")) {
                Some(route) => Reply {
                    body: route.clone().into_bytes(),
                    ..Reply::default()
                },
                None => code(17),
            },
            RequestCode::SEND_MESSAGE_V2 => Reply {
                ext: vec![
                    ("msgId", "7F00000100002A9F0000000000000063".to_owned()),
                    ("queueId", asked.ext("e").to_owned()),
                    ("queueOffset", "5".to_owned()),
                ],
                ..Reply::default()
            },
            RequestCode::HEART_BEAT => {
                let body: serde_json::Value = serde_json::from_slice(&asked.body).unwrap();
                let id = body["clientID"].as_str().unwrap().to_owned();
                if !self.members.contains(&id) {
                    self.members.push(id);
                }
                code(0)
            }
            RequestCode::GET_CONSUMER_LIST_BY_GROUP => Reply {
                body: fastjson::to_vec(
                    &serde_json::json!({ "consumerIdList": self.members.clone() }),
                ),
                ..Reply::default()
            },
            RequestCode::QUERY_CONSUMER_OFFSET => match self.committed.get(&queue()) {
                Some(offset) => offset_reply(*offset),
                None => code(22),
            },
            RequestCode::GET_MIN_OFFSET => offset_reply(0),
            RequestCode::GET_MAX_OFFSET => offset_reply(self.queues[queue() as usize].len() as i64),
            RequestCode::UPDATE_CONSUMER_OFFSET => {
                self.committed.insert(queue(), asked.int("commitOffset"));
                code(0)
            }
            RequestCode::PULL_MESSAGE => self.pull(asked),
            RequestCode::UNREGISTER_CLIENT => {
                self.members
                    .retain(|member| member != asked.ext("clientID"));
                code(0)
            }
            _ => code(3),
        }
    }

    /// The answer to a pull that finds nothing.
    pub fn answer_19(&self, asked: &Asked) -> Reply {
        Reply {
            code: 19,
            body: Vec::new(),
            ..self.pull(asked)
        }
    }

    /// All records from the offset on, as a broker would give them.
    fn pull(&self, asked: &Asked) -> Reply {
        let records = &self.queues[asked.int("queueId") as usize];
        let (offset, max) = (asked.int("queueOffset") as usize, records.len());
        let (code, next) = match offset {
            offset if offset < max => (0, max),
            offset if offset == max => (19, max),
            _ => (21, max),
        };
        Reply {
            code,
            ext: vec![
                ("suggestWhichBrokerId", "0".to_owned()),
                ("nextBeginOffset", next.to_string()),
                ("minOffset", "0".to_owned()),
                ("maxOffset", max.to_string()),
            ],
            body: records.get(offset..).unwrap_or_default().concat(),
            ..Reply::default()
        }
    }
}

fn offset_reply(offset: i64) -> Reply {
    Reply {
        ext: vec![("offset", offset.to_string())],
        ..Reply::default()
    }
}

pub struct Server {
    pub address: String,
    state: Arc<Mutex<State>>,
}

impl Server {
    /// A server where `script` may answer first.
    pub fn start(
        script: impl FnMut(&mut State, &Asked) -> Option<Reply> + Send + 'static,
    ) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let state = Arc::new(Mutex::new(State::default()));
        let script: Arc<Mutex<Script>> = Arc::new(Mutex::new(Box::new(script)));
        let shared = state.clone();
        // It waits for connections until the test process ends.
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (state, script) = (shared.clone(), script.clone());
                thread::spawn(move || serve(stream.unwrap(), &state, &script));
            }
        });
        Server { address, state }
    }

    /// A server with a topic of so many queues, itself the broker `b`.
    pub fn with_topic(
        queues: usize,
        script: impl FnMut(&mut State, &Asked) -> Option<Reply> + Send + 'static,
    ) -> Server {
        let server = Server::start(script);
        let route = route(&[("b", &server.address)], queues);
        server.state().routes.insert(TOPIC.to_owned(), route);
        server.state().queues = vec![Vec::new(); queues];
        server
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub fn name_servers(&self) -> Vec<String> {
        vec![self.address.clone()]
    }
}

/// The body of 105 for brokers by name and address (namesrv 2.1).
pub fn route(brokers: &[(&str, &str)], queues: usize) -> String {
    let datas = brokers.iter().map(|(name, address)| {
        format!(r#"{{"brokerAddrs":{{"0":"{address}"}},"brokerName":"{name}","cluster":"c"}}"#)
    });
    let datas = datas.collect::<Vec<_>>().join(",");
    let counts = brokers.iter().map(|(name, _)| {
        format!(
            r#"{{"brokerName":"{name}","perm":7,"readQueueNums":{queues},"writeQueueNums":{queues}}}"#
        )
    });
    let counts = counts.collect::<Vec<_>>().join(",");
    format!(r#"{{"brokerDatas":[{datas}],"filterServerTable":{{}},"queueDatas":[{counts}]}}"#)
}

fn serve(mut stream: TcpStream, state: &Mutex<State>, script: &Mutex<Script>) {
    let mut word = [0; 4];
    while stream.read_exact(&mut word).is_ok() {
        let mut bytes = vec![0; frame_length(word).unwrap()];
        if stream.read_exact(&mut bytes).is_err() {
            return;
        }
        let mut scratch = Scratch::default();
        let frame = Frame::decode(&bytes, &mut scratch).unwrap();
        let header = frame.header;
        let mut state = state.lock().unwrap();
        if header.is_response() {
            state.answered.push((header.code, frame.body.to_vec()));
            continue;
        }
        let ext = header.ext_fields();
        let asked = Asked {
            code: header.code,
            language: header.language.name(),
            ext: ext
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
            body: frame.body.to_vec(),
        };
        state.asked.push(asked.clone());
        let scripted = (script.lock().unwrap())(&mut state, &asked);
        let reply = scripted.unwrap_or_else(|| state.answer(&asked));
        if reply.hang_up {
            return;
        }
        let out = encode(&reply, header.opaque);
        if stream.write_all(&out).is_err() || reply.then_hang_up {
            return;
        }
    }
}

fn encode(reply: &Reply, opaque: i32) -> Vec<u8> {
    let mut out = Vec::new();
    for (number, (code, fields, body)) in reply.push.iter().enumerate() {
        // One-way, but for 221 and unknown ones (broker-requests 9 and 14).
        let head = RequestHead::new(RequestCode(*code), 9000 + number as i32);
        let head = if matches!(code, 40 | 220) {
            head.oneway()
        } else {
            head
        };
        encode_request(&mut out, Encoding::Json, &head, None, body.len(), |ext| {
            fields
                .iter()
                .for_each(|(name, value)| ext.put_str(name, value));
        });
        out.extend_from_slice(body);
    }
    let head = ResponseHead {
        code: ResponseCode(reply.code),
        opaque,
    };
    let length = reply.body.len();
    encode_response(
        &mut out,
        Encoding::Json,
        &head,
        reply.remark,
        length,
        |ext| {
            reply
                .ext
                .iter()
                .for_each(|(name, value)| ext.put_str(name, value));
        },
    );
    out.extend_from_slice(&reply.body);
    out
}
