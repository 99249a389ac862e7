//! Frames between real clients and servers: read, written again, and through the field structs.

use std::collections::BTreeMap;

use ringmq::wire::bodies::{
    ClusterInfo, ConsumerIdList, HeartbeatData, KvTable, LockRequest, LockResponse, OffsetTable,
    QueueMap, RegisterBody, SubscriptionGroupTable, TopicConfigTable, TopicList, TopicRouteData,
};
use ringmq::wire::fastjson::{from_object, to_vec};
use ringmq::wire::frame::{LENGTH_BYTES, frame_length};
use ringmq::wire::headers::{self, HeaderError};
use ringmq::wire::{Encoding, ExtWriter, Frame, Header, Language, RequestHead, Scratch};
use serde_json::Value;

use crate::{lines, number, text, unhex};

struct Golden {
    line: Value,
    bytes: Vec<u8>,
}

fn frames() -> Vec<Golden> {
    lines("wire-5.3.3.jsonl.xz")
        .into_iter()
        .map(|line| {
            let mut bytes = unhex(text(&line, "prefixHex"));
            bytes.extend(unhex(text(&line, "headerHex")));
            bytes.extend(unhex(line["bodyHex"].as_str().unwrap_or("")));
            Golden { line, bytes }
        })
        .collect()
}

/// The header as Java's values, read by a JSON parser that is not ours.
fn expected(line: &Value) -> Value {
    match number(line, "serializeType") {
        0 => serde_json::from_str(text(line, "header")).expect("Java's headers are JSON"),
        _ => line["fields"].clone(),
    }
}

fn fields(header: &Header<'_>) -> BTreeMap<String, String> {
    header
        .ext_fields()
        .map(|(name, value)| (name.to_string(), value.to_string()))
        .collect()
}

fn expected_fields(header: &Value) -> BTreeMap<String, String> {
    let Some(fields) = header["extFields"].as_object() else {
        return BTreeMap::new();
    };
    let value = |value: &Value| value.as_str().expect("Java's values are texts").to_string();
    fields
        .iter()
        .map(|(name, text)| (name.clone(), value(text)))
        .collect()
}

#[test]
fn every_frame_is_read_as_java_meant_it() {
    let mut scratch = Scratch::new();
    let frames = frames();
    assert_eq!(frames.len(), 639);
    for Golden { line, bytes } in &frames {
        let (word, rest) = bytes.split_first_chunk::<LENGTH_BYTES>().unwrap();
        assert_eq!(frame_length(*word), Ok(rest.len()));
        let frame = Frame::decode(rest, &mut scratch).unwrap_or_else(|e| panic!("{e}: {line}"));
        let header = expected(line);
        assert_eq!(
            i64::from(frame.header.code),
            number(&header, "code"),
            "{line}"
        );
        assert_eq!(
            i64::from(frame.header.opaque),
            number(&header, "opaque"),
            "{line}"
        );
        assert_eq!(
            i64::from(frame.header.flag),
            number(&header, "flag"),
            "{line}"
        );
        assert_eq!(
            i64::from(frame.header.version),
            number(&header, "version"),
            "{line}"
        );
        assert_eq!(frame.header.remark, header["remark"].as_str(), "{line}");
        let language = match &header["language"] {
            Value::Number(code) => Language::from_code(code.as_i64().unwrap()).unwrap(),
            name => Language::from_name(name.as_str().unwrap()),
        };
        assert_eq!(frame.header.language, language, "{line}");
        let mut java = expected_fields(&header);
        if frame.header.encoding == Encoding::Binary {
            // An empty text in a binary header is Java's null.
            java.retain(|_, value| !value.is_empty());
        }
        assert_eq!(fields(&frame.header), java, "{line}");
        assert_eq!(frame.body.len() as i64, number(line, "bodyLen"), "{line}");
        let kind = text(line, "kind");
        assert_eq!(frame.header.is_response(), kind == "response", "{line}");
        assert_eq!(frame.header.is_oneway(), kind == "oneway", "{line}");
    }
}

fn write_again(header: &Header<'_>, encoding: Encoding, body_bytes: usize) -> Vec<u8> {
    let head = RequestHead {
        code: header.request_code(),
        language: header.language,
        version: header.version,
        opaque: header.opaque,
        flag: header.flag,
    };
    let mut out = Vec::new();
    let ext = |ext: &mut ExtWriter<'_>| {
        header
            .ext_fields()
            .for_each(|(name, value)| ext.put_str(name, value));
    };
    ringmq::wire::encode_request(&mut out, encoding, &head, header.remark, body_bytes, ext);
    out
}

#[test]
fn a_frame_is_written_byte_for_byte_as_java_writes_it() {
    let mut scratch = Scratch::new();
    let mut not_equal = 0;
    for Golden { line, bytes } in &frames() {
        let frame = Frame::decode(&bytes[LENGTH_BYTES..], &mut scratch).unwrap();
        let mut again = write_again(&frame.header, frame.header.encoding, frame.body.len());
        again.extend_from_slice(frame.body);
        if again != *bytes {
            // Java writes an empty object where fields are declared but all null, and an empty
            // text in a binary header, which is read as null.
            let empty = match frame.header.encoding {
                Encoding::Json => text(line, "header").contains(r#""extFields":{}"#),
                Encoding::Binary => line["fields"].to_string().contains(r#":"""#),
            };
            assert!(empty, "{line}");
            not_equal += 1;
        }
    }
    assert!(not_equal < 60, "{not_equal}");
}

#[test]
fn a_frame_written_in_the_other_encoding_says_the_same() {
    let mut scratch = Scratch::new();
    let mut again_scratch = Scratch::new();
    for Golden { line, bytes } in &frames() {
        let frame = Frame::decode(&bytes[LENGTH_BYTES..], &mut scratch).unwrap();
        let header = frame.header;
        for encoding in [Encoding::Json, Encoding::Binary] {
            let written = write_again(&header, encoding, 0);
            let again = Frame::decode(&written[LENGTH_BYTES..], &mut again_scratch)
                .unwrap()
                .header;
            assert_eq!(again.encoding, encoding);
            assert_eq!(again.code, header.code, "{line}");
            let numbers = |of: &Header<'_>| (of.language, of.version, of.opaque, of.flag);
            assert_eq!(numbers(&again), numbers(&header), "{line}");
            let remark = header
                .remark
                .filter(|text| encoding == Encoding::Json || !text.is_empty());
            assert_eq!(again.remark, remark, "{line}");
            let mut expected = fields(&header);
            if encoding == Encoding::Binary {
                expected.retain(|_, value| !value.is_empty());
            }
            assert_eq!(fields(&again), expected, "{line}");
        }
    }
}

/// Fields that any request can carry and nobody reads.
const EVERYWHERE: &[&str] = &[
    "ns",
    "nsd",
    "bname",
    "n",
    "oway",
    "lo",
    "ReqT",
    "AccessKey",
    "Signature",
    "SecurityToken",
];

fn request(header: &Header<'_>, out: &mut ExtWriter<'_>) -> Result<(), HeaderError> {
    match header.code {
        10 | 310 | 320 | 324 | 325 => headers::SendRequest::decode(header)?.encode(out),
        11 | 361 => headers::PullRequest::decode(header)?.encode(out),
        12 => headers::QueryMessageRequest::decode(header)?.encode(out),
        14 => headers::QueryConsumerOffsetRequest::decode(header)?.encode(out),
        15 => headers::UpdateConsumerOffsetRequest::decode(header)?.encode(out),
        17 => headers::CreateTopicRequest::decode(header)?.encode(out),
        21 => headers::GetAllTopicConfigRequest::decode(header)?.encode(out),
        29 => headers::SearchOffsetRequest::decode(header)?.encode(out),
        30..=32 => headers::QueueRequest::decode(header)?.encode(out),
        33 => headers::ViewMessageRequest::decode(header)?.encode(out),
        35 => headers::UnregisterClientRequest::decode(header)?.encode(out),
        36 => headers::SendBackRequest::decode(header)?.encode(out),
        37 => headers::EndTransactionRequest::decode(header)?.encode(out),
        38 | 40 => headers::ConsumerGroupRequest::decode(header)?.encode(out),
        100 | 101 | 102 | 219 => headers::KvConfigRequest::decode(header)?.encode(out),
        103 => headers::RegisterBrokerRequest::decode(header)?.encode(out),
        104 | 322 => headers::BrokerIdentityRequest::decode(header)?.encode(out),
        105 => headers::RouteRequest::decode(header)?.encode(out),
        205 | 327 => headers::BrokerNameRequest::decode(header)?.encode(out),
        202 | 215 | 300 | 351 => headers::TopicRequest::decode(header)?.encode(out),
        216 => headers::DeleteTopicInNamesrvRequest::decode(header)?.encode(out),
        224 => headers::ClusterRequest::decode(header)?.encode(out),
        901 => headers::MemberGroupRequest::decode(header)?.encode(out),
        904 => headers::BrokerHeartbeatRequest::decode(header)?.encode(out),
        _ => out.put_str("not ours", ""),
    }
    Ok(())
}

fn response(
    request_code: i64,
    header: &Header<'_>,
    out: &mut ExtWriter<'_>,
) -> Result<(), HeaderError> {
    match (request_code, header.code) {
        (10 | 310 | 320, 0) => headers::SendResponse::decode(header)?.encode(out),
        (11 | 361, 0 | 19..=21) => headers::PullResponse::decode(header)?.encode(out),
        (12, 0) => headers::QueryMessageResponse::decode(header)?.encode(out),
        (14 | 29 | 30 | 31, 0) => headers::OffsetResponse::decode(header)?.encode(out),
        (21, 0) => headers::GetAllTopicConfigResponse::decode(header)?.encode(out),
        (32, 0) => headers::TimestampResponse::decode(header)?.encode(out),
        (34, 0) => headers::HeartbeatResponse::decode(header)?.encode(out),
        (101, 0) => headers::KvConfigResponse::decode(header)?.encode(out),
        (103, 0) => headers::RegisterBrokerResponse::decode(header)?.encode(out),
        (205, 0) => headers::WipeWritePermResponse::decode(header)?.encode(out),
        (322, 0) => headers::QueryDataVersionResponse::decode(header)?.encode(out),
        (327, 0) => headers::AddWritePermResponse::decode(header)?.encode(out),
        _ => out.put_str("not ours", ""),
    }
    Ok(())
}

#[test]
fn no_field_of_a_real_client_or_server_is_lost_in_our_structs() {
    let mut scratch = Scratch::new();
    let mut again_scratch = Scratch::new();
    let mut codes = std::collections::BTreeSet::new();
    for Golden { line, bytes } in &frames() {
        let header = Frame::decode(&bytes[LENGTH_BYTES..], &mut scratch)
            .unwrap()
            .header;
        let asked = number(line, "requestCode");
        let mut out = Vec::new();
        let head = RequestHead::new(0.into(), 0);
        ringmq::wire::encode_request(&mut out, Encoding::Json, &head, None, 0, |ext| {
            let written = if header.is_response() {
                response(asked, &header, ext)
            } else {
                request(&header, ext)
            };
            written.unwrap_or_else(|error| panic!("{error}: {line}"));
        });
        let again = Frame::decode(&out[LENGTH_BYTES..], &mut again_scratch)
            .unwrap()
            .header;
        if again.ext("not ours").is_some() {
            continue;
        }
        codes.insert((asked, header.is_response()));
        for (name, value) in header.ext_fields() {
            if !EVERYWHERE.contains(&name) {
                assert_eq!(again.ext(name), Some(value), "{name} of {line}");
            }
        }
    }
    assert!(codes.len() > 45, "{codes:?}");
}

/// Which type a body has, written again as compact JSON.
fn body_again(code: i64, is_response: bool, body: &[u8]) -> Option<Vec<u8>> {
    macro_rules! again {
        ($type:ty) => {
            Some(to_vec(
                &from_object::<$type>(body).expect("Java's body fits"),
            ))
        };
    }
    match (code, is_response) {
        (34, false) => again!(HeartbeatData),
        (41 | 42, false) => again!(LockRequest),
        (41, true) => again!(LockResponse),
        (38, true) => again!(ConsumerIdList),
        (21, true) => again!(TopicConfigTable),
        (103, false) => again!(RegisterBody),
        (103 | 28 | 219, true) => again!(KvTable),
        (105, true) => again!(TopicRouteData),
        (106, true) => again!(ClusterInfo),
        (206 | 224 | 304 | 305 | 311..=313 | 343, true) => again!(TopicList),
        (201, true) => again!(SubscriptionGroupTable),
        (43, true) => again!(OffsetTable),
        _ => None,
    }
}

#[test]
fn no_member_of_a_real_body_is_lost_in_our_types() {
    let mut count = 0;
    for Golden { line, .. } in &frames() {
        let Some(body) = line["bodyText"].as_str() else {
            continue;
        };
        let is_response = text(line, "kind") == "response";
        if is_response && number(line, "code") != 0 {
            continue;
        }
        let asked = number(line, "requestCode");
        let Some(again) = body_again(asked, is_response, body.as_bytes()) else {
            continue;
        };
        count += 1;
        let strict = ringmq::wire::fastjson::to_strict(body).unwrap();
        let expected: Value = serde_json::from_str(&strict).unwrap();
        let again: Value = serde_json::from_slice(&again).unwrap();
        assert_contains(&again, &expected, line);
    }
    assert!(count > 60, "{count}");
}

/// Every member of Java's is there with its value; ours may say more (4.9 leaves members out).
fn assert_contains(ours: &Value, java: &Value, line: &Value) {
    match (ours, java) {
        (Value::Object(ours), Value::Object(java)) => {
            for (name, value) in java {
                let own = ours
                    .get(name)
                    .unwrap_or_else(|| panic!("{name} is lost: {line}"));
                assert_contains(own, value, line);
            }
        }
        (Value::Array(ours), Value::Array(java)) => {
            assert_eq!(ours.len(), java.len(), "{line}");
            ours.iter()
                .zip(java)
                .for_each(|(ours, java)| assert_contains(ours, java, line));
        }
        _ => assert_eq!(ours, java, "{line}"),
    }
}

#[test]
fn maps_keyed_by_queues_are_read() {
    let mut count = 0;
    for Golden { line, .. } in &frames() {
        if number(line, "requestCode") != 222 || text(line, "kind") != "response" {
            continue;
        }
        let Some(body) = line["bodyText"].as_str() else {
            continue;
        };
        #[derive(serde::Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Reset {
            offset_table: QueueMap<i64>,
        }
        let reset: Reset = from_object(body.as_bytes()).unwrap();
        assert_eq!(
            reset.offset_table.0.len(),
            body.matches("brokerName").count()
        );
        assert!(
            reset
                .offset_table
                .0
                .keys()
                .all(|queue| queue.broker_name == "broker-a")
        );
        count += 1;
    }
    assert!(count > 0);
}
