//! The few requests that the tests send themselves, so that a missing Java does not stop the Go and
//! Node tests: create a topic and look up its route.

use super::{Outcome, PATIENCE, ensure, failed, wait_for};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const UPDATE_AND_CREATE_TOPIC: u16 = 17;
const GET_ROUTEINFO_BY_TOPIC: u16 = 105;
const TOPIC_NOT_EXIST: i64 = 17;
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// One request on a connection of its own: the code, the remark and the body of the answer.
fn call(address: &str, code: u16, fields: Value) -> Outcome<(i64, String, Vec<u8>)> {
    let header = json!({
        "code": code, "flag": 0, "language": "OTHER", "opaque": 1, "version": 479,
        "serializeTypeCurrentRPC": "JSON", "extFields": fields,
    })
    .to_string();
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    let header_bytes = header.len() as u32;
    stream.write_all(&(header_bytes + 4).to_be_bytes())?;
    stream.write_all(&header_bytes.to_be_bytes())?;
    stream.write_all(header.as_bytes())?;

    let mut lengths = [0; 8];
    stream.read_exact(&mut lengths)?;
    let [a, b, c, d, _, f, g, h] = lengths;
    let total = u32::from_be_bytes([a, b, c, d]) as usize;
    let header_bytes = u32::from_be_bytes([0, f, g, h]) as usize;
    ensure(
        total <= ANSWER_BYTES_MAX && header_bytes + 4 <= total,
        || format!("an answer of {total} bytes with a header of {header_bytes}"),
    )?;
    let mut frame = vec![0; total - 4];
    stream.read_exact(&mut frame)?;
    let body = frame.split_off(header_bytes);
    let header: Value = serde_json::from_slice(&frame).map_err(std::io::Error::from)?;
    let remark = header["remark"].as_str().unwrap_or_default().to_owned();
    Ok((header["code"].as_i64().unwrap_or(-1), remark, body))
}

/// Creates a topic at the broker and waits until the name server knows its route. Returns the
/// broker's name.
pub fn create_topic(namesrv: &str, broker: &str, topic: &str, queues: u32) -> Outcome<String> {
    let queues = queues.to_string();
    let fields = json!({
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": queues, "writeQueueNums": queues,
        "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    });
    let (code, remark, _) = call(broker, UPDATE_AND_CREATE_TOPIC, fields)?;
    ensure(code == 0, || {
        format!("creating {topic}: code {code}, {remark}")
    })?;
    wait_for(&format!("the route of {topic}"), PATIENCE, || {
        Ok(route(namesrv, topic)?
            .and_then(|route| Some(route["queueDatas"][0]["brokerName"].as_str()?.to_owned())))
    })
}

/// The route of a topic, if the name server knows one.
pub fn route(namesrv: &str, topic: &str) -> Outcome<Option<Value>> {
    let fields = json!({ "topic": topic, "acceptStandardJsonOnly": "true" });
    match call(namesrv, GET_ROUTEINFO_BY_TOPIC, fields)? {
        (0, _, body) => Ok(Some(
            serde_json::from_slice(&body).map_err(std::io::Error::from)?,
        )),
        (TOPIC_NOT_EXIST, _, _) => Ok(None),
        (code, remark, _) => failed(format!("the route of {topic}: code {code}, {remark}")),
    }
}
