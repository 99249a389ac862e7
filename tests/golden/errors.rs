//! Malformed frames: what closes a connection, what is answered, what is met with silence.

use ringmq::wire::frame::{LENGTH_BYTES, frame_length};
use ringmq::wire::{Frame, Scratch};
use serde_json::Value;

use crate::{lines, number, text, unhex};

/// The rows about frames, by their numbers in the capture's main run.
const BROKER_ROWS: std::ops::RangeInclusive<i64> = 416..=493;
const NAMESRV_ROWS: std::ops::RangeInclusive<i64> = 494..=568;

/// Rows that a connection decides before there is a frame: it looks at the first bytes for TLS and
/// PROXY headers.
const SNIFFED: [&str; 3] = [
    "first on the connection: frame length 0",
    "first on the connection: TLS ClientHello byte 0x16",
    "first on the connection: PROXY protocol v1 then a request",
];

#[derive(Debug, PartialEq)]
enum Decision {
    Closed,
    Silent,
    /// With the opaque of the answer.
    Reply(i32),
}

/// What a server does with the first frame of these bytes.
fn decide(bytes: &[u8], scratch: &mut Scratch) -> Decision {
    let Some((word, rest)) = bytes.split_first_chunk::<LENGTH_BYTES>() else {
        return Decision::Silent;
    };
    let Ok(length) = frame_length(*word) else {
        return Decision::Closed;
    };
    let Some(frame) = rest.get(..length) else {
        return Decision::Silent;
    };
    match Frame::decode(frame, scratch) {
        Err(_) => Decision::Closed,
        Ok(frame) if frame.header.is_response() || frame.header.is_oneway() => Decision::Silent,
        Ok(frame) => Decision::Reply(frame.header.opaque),
    }
}

/// The request of a row; of the long ones only the beginning was kept.
fn request(row: &Value) -> Vec<u8> {
    if let Some(frame) = row["request"]["frame"].as_str() {
        return unhex(frame);
    }
    let mut bytes = unhex(text(&row["request"], "frameHead"));
    let whole = LENGTH_BYTES + u32::from_be_bytes(*bytes.first_chunk().unwrap()) as usize;
    if text(row, "name") == "header of 1 MiB" {
        bytes.resize(whole - 2, b'y');
        bytes.extend_from_slice(b"\"}");
    } else {
        let open = bytes.iter().position(|byte| *byte == b'[').unwrap();
        let tail = br#","language":"JAVA","opaque":7,"version":479}"#;
        let depth = (whole - open - tail.len()) / 2;
        assert!(depth > 2000);
        bytes.truncate(open);
        bytes.extend(std::iter::repeat_n(b'[', depth));
        bytes.extend(std::iter::repeat_n(b']', whole - tail.len() - bytes.len()));
        bytes.extend_from_slice(tail);
    }
    assert_eq!(bytes.len(), whole);
    bytes
}

#[test]
fn a_malformed_frame_meets_the_same_end_as_at_java() {
    let mut scratch = Scratch::new();
    let mut count = 0;
    for row in lines("errors-5.3.3.jsonl.xz").iter().take(626) {
        let rows = if text(row, "to") == "broker" {
            BROKER_ROWS
        } else {
            NAMESRV_ROWS
        };
        let name = text(row, "name");
        if !rows.contains(&number(row, "n")) || SNIFFED.contains(&name) {
            continue;
        }
        count += 1;
        let decision = decide(&request(row), &mut scratch);
        match text(row, "outcome") {
            "closed" => assert_eq!(decision, Decision::Closed, "{name}"),
            "silent" => assert_eq!(decision, Decision::Silent, "{name}"),
            _ => {
                let answer: Value = serde_json::from_str(text(row, "header")).unwrap();
                let opaque = number(&answer, "opaque");
                // Without one Java makes a number up; ours is 0.
                let made_up = name == "JSON no opaque" || name == "JSON header {}";
                let opaque = if made_up { 0 } else { opaque as i32 };
                assert_eq!(decision, Decision::Reply(opaque), "{name}");
            }
        }
    }
    assert_eq!(count, 78 + 75 - 2 * SNIFFED.len());
}

#[test]
fn every_other_request_of_the_error_run_is_a_good_frame() {
    let mut scratch = Scratch::new();
    for row in &lines("errors-5.3.3.jsonl.xz") {
        let answered = text(row, "outcome") == "reply";
        let (Some(frame), Some(header)) = (
            row["request"]["frame"].as_str(),
            row["request"]["header"].as_str(),
        ) else {
            continue;
        };
        let Ok(expected) = serde_json::from_str::<Value>(header) else {
            continue;
        };
        let bytes = unhex(frame);
        let length = frame_length(*bytes.first_chunk().unwrap()).unwrap();
        let decoded = Frame::decode(&bytes[LENGTH_BYTES..][..length], &mut scratch);
        if !answered || !expected.is_object() {
            continue;
        }
        let decoded = decoded.unwrap_or_else(|error| panic!("{error}: {row}"));
        if let Some(code) = expected["code"].as_i64() {
            assert_eq!(i64::from(decoded.header.code), code);
        }
        for (name, value) in expected["extFields"].as_object().into_iter().flatten() {
            let value = match value {
                Value::String(text) => Some(text.clone()),
                Value::Null => None,
                other => Some(other.to_string()),
            };
            assert_eq!(decoded.header.ext(name), value.as_deref(), "{name}: {row}");
        }
    }
}
