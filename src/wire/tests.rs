//! What is written is read as it was meant; what is read may be anything.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

use super::batch::{Batch, BatchError, BatchItem, ITEM_BYTES_MIN};
use super::frame::{EXT_FIELDS_MAX, LENGTH_BYTES, frame_length};
use super::headers::{HeaderError, PullResponse, SendRequest};
use super::message_id::{decode_offset_id, encode_offset_id};
use super::properties::Properties;
use super::record::*;
use super::*;

fn json(header: &str) -> Vec<u8> {
    let mut frame = (header.len() as u32).to_be_bytes().to_vec();
    frame.extend_from_slice(header.as_bytes());
    frame
}

#[test]
fn sloppy_headers_are_read_as_java_reads_them() {
    let mut scratch = Scratch::new();
    let frame = json(
        "\u{FEFF} {'co\\u0064e':\"30\",, extFields:{\"a\":1.50,b:true,\"c\":null,'d':{\"e\":[1]},\
         \"f\":'it\\'s \\\"\\n\\ud83d\\ude00\\ud800'},\"flag\":null,\"language\":\"KLINGON\",\
         \"opaque\":7.9,\"version\":-1e2,\"x\":[{\"y\":\"]}\\\\\"}],}\r\n",
    );
    let header = Frame::decode(&frame, &mut scratch).unwrap().header;
    assert_eq!(
        (header.code, header.flag, header.opaque, header.version),
        (30, 0, 7, -100)
    );
    assert_eq!(header.language, Language::Other);
    let fields: Vec<_> = header.ext_fields().collect();
    let expected = [
        ("a", "1.50"),
        ("b", "true"),
        ("d", "{\"e\":[1]}"),
        ("f", "it's \"\n😀?"),
    ];
    assert_eq!(fields, expected);
    assert_eq!(header.ext("c"), None);
}

#[test]
fn the_cpp_client_s_header_is_read() {
    let mut scratch = Scratch::new();
    let frame = json(concat!(
        r#"{"code":10,"extFields":{"AccessKey":"","OnsChannel":"ALIYUN","batch":"1","#,
        r#""bornTimestamp":"1700000000000","defaultTopic":"TBW102","defaultTopicQueueNums":4,"#,
        r#""flag":0,"producerGroup":"g","properties":"","queueId":2,"reconsumeTimes":0,"#,
        r#""sysFlag":0,"topic":"t","unitMode":"0"},"flag":0,"language":"CPP","opaque":1,"#,
        "\"remark\":\"\",\"version\":63}\n"
    ));
    let header = Frame::decode(&frame, &mut scratch).unwrap().header;
    assert_eq!((header.language, header.remark), (Language::Cpp, Some("")));
    let send = SendRequest::decode(&header).unwrap();
    assert_eq!(
        (send.topic, send.queue_id, send.batch, send.unit_mode),
        ("t", 2, true, false)
    );
    assert_eq!(
        (send.born_timestamp, send.max_reconsume_times),
        (1_700_000_000_000, None)
    );
}

#[test]
fn a_field_that_is_missing_or_no_number_is_named() {
    let mut scratch = Scratch::new();
    let frame = json(r#"{"code":310,"extFields":{"b":"t","e":"1","f":"0","g":"1"}}"#);
    let header = Frame::decode(&frame, &mut scratch).unwrap().header;
    let missing = HeaderError::Missing { field: "h" };
    assert_eq!(SendRequest::decode(&header), Err(missing));
    for bad in [" 1", "0x1", "", "abc", "1.5", "99999999999"] {
        let frame = json(&format!(r#"{{"code":310,"extFields":{{"e":"{bad}"}}}}"#));
        let header = Frame::decode(&frame, &mut scratch).unwrap().header;
        let error = HeaderError::NotANumber { field: "e" };
        assert_eq!(SendRequest::decode(&header), Err(error), "{bad}");
    }
    let frame = json(r#"{"extFields":{"b":"t","e":"+1","f":"0","g":"1","h":"-1"}}"#);
    let header = Frame::decode(&frame, &mut scratch).unwrap().header;
    assert_eq!(SendRequest::decode(&header).unwrap().queue_id, 1);
}

#[test]
fn codes_that_do_not_fit_a_binary_header_come_back() {
    let mut scratch = Scratch::new();
    for code in RequestCode::NAMED.iter().copied() {
        let mut out = Vec::new();
        let head = RequestHead::new(code, 1);
        encode_request(&mut out, Encoding::Binary, &head, None, 0, |_| ());
        let header = Frame::decode(&out[LENGTH_BYTES..], &mut scratch)
            .unwrap()
            .header;
        assert_eq!(header.request_code(), code);
    }
}

#[test]
fn an_empty_field_object_is_written_where_it_is_wanted() {
    let mut out = Vec::new();
    let head = ResponseHead {
        code: ResponseCode::SYSTEM_ERROR,
        opaque: -1,
    };
    encode_response(
        &mut out,
        Encoding::Json,
        &head,
        Some("a\"\u{1}"),
        3,
        |ext| ext.present(),
    );
    let expected = concat!(
        r#"{"code":1,"extFields":{},"flag":1,"language":"JAVA","opaque":-1,"#,
        r#""remark":"a\"\u0001","serializeTypeCurrentRPC":"JSON","version":479}"#
    );
    assert_eq!(std::str::from_utf8(&out[8..]).unwrap(), expected);
    assert_eq!(out[..4], (4 + expected.len() as u32 + 3).to_be_bytes());
}

#[test]
fn more_fields_than_any_client_sends_close_the_connection() {
    let mut scratch = Scratch::new();
    let fields = vec!["\"a\":\"b\""; EXT_FIELDS_MAX + 1].join(",");
    let frame = json(&format!("{{\"extFields\":{{{fields}}}}}"));
    assert_eq!(
        Frame::decode(&frame, &mut scratch).err(),
        Some(FrameError::TooManyFields)
    );
}

/// The worked example of the store format.
#[test]
fn the_example_record_has_the_bytes_of_the_spec() {
    let expected = concat!(
        "00000073daa320a73610a6860000000100000000000000000000000500000000",
        "000003e8000000000000018bcfe568000a000001000004d20000018bcfe56801",
        "0a00000200002a9f0000000000000000000000000000000568656c6c6f09546f",
        "70696354657374000a54414753015461674102",
    );
    let spec = RecordSpec {
        topic: "TopicTest",
        queue_id: 1,
        flag: 0,
        sys_flag: 0x30,
        born_timestamp: 1_700_000_000_000,
        born_host: "10.0.0.1:1234".parse().unwrap(),
        store_host: "10.0.0.2:10911".parse().unwrap(),
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body: b"hello",
        properties: PropertiesSpec {
            texts: &[b"TAGS\x01TagA\x02"],
            pairs: &[],
        },
    };
    let mut record = vec![0xEE; spec.encoded_len().unwrap()];
    spec.encode(&mut record);
    patch(&mut record, 5, 1000, 1_700_000_000_001);
    let hex: String = record.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, expected);
}

#[test]
fn each_way_to_be_no_record_is_told() {
    let spec = RecordSpec {
        topic: "T",
        queue_id: 0,
        flag: 0,
        sys_flag: 0,
        born_timestamp: 0,
        born_host: "10.0.0.1:1".parse().unwrap(),
        store_host: "10.0.0.1:1".parse().unwrap(),
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body: b"body",
        properties: PropertiesSpec {
            texts: &[b"k\x01v"],
            pairs: &[("n\0", b"w")],
        },
    };
    let mut good = vec![0; spec.encoded_len().unwrap()];
    spec.encode(&mut good);
    patch(&mut good, 0, 77, 0);
    let all = Check {
        position: Some(77),
        body_crc: true,
        no_nul: true,
    };
    let with = |at: usize, byte: u8, check: Check| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        match Untrusted(&bytes).check(check) {
            Checked::Bad(why) => Err(Some(why)),
            Checked::BadWithSize(_) => Err(None),
            _ => Ok(()),
        }
    };
    let position = Check {
        position: Some(77),
        ..Check::default()
    };
    let crc = Check {
        body_crc: true,
        ..Check::default()
    };
    let nul = Check {
        no_nul: true,
        ..Check::default()
    };
    assert_eq!(with(3, good[3], position), Ok(()));
    assert_eq!(with(3, good[3], crc), Ok(()));
    assert_eq!(with(3, good[3], all), Err(Some(BadRecord::Nul)));
    assert_eq!(with(3, good[3], nul), Err(Some(BadRecord::Nul)));
    assert_eq!(with(35, 78, position), Err(Some(BadRecord::Position(78))));
    assert_eq!(with(88, b'B', crc), Err(Some(BadRecord::BodyCrc)));
    assert_eq!(with(88, b'B', position), Ok(()));
    assert_eq!(with(7, 0, position), Err(Some(BadRecord::Magic)));
    let cut = BadRecord::Cut {
        size: good.len() as u32 + 1,
    };
    assert_eq!(with(3, good[3] + 1, position), Err(Some(cut)));
    assert_eq!(
        with(0, 0xFF, position).map_err(|why| why.is_some()),
        Err(true)
    );
    assert_eq!(with(3, good[3] - 1, position), Err(None));
    assert_eq!(with(84, 0xFF, position), Err(Some(BadRecord::Length)));
    assert_eq!(with(93, 0xFF, position), Err(Some(BadRecord::Topic)));
    assert_eq!(with(92, 0xFF, position), Err(Some(BadRecord::Length)));
    let zeros = Untrusted(&[0; 200]).check(all);
    assert!(matches!(zeros, Checked::Bad(BadRecord::Magic)), "{zeros:?}");
    assert!(matches!(
        Untrusted(&good[..7]).check(all),
        Checked::Bad(BadRecord::NoHead)
    ));
}

#[test]
fn a_record_with_any_one_byte_changed_is_read_within_its_bounds() {
    let spec = RecordSpec {
        topic: "topic",
        queue_id: 0,
        flag: 0,
        sys_flag: 0,
        born_timestamp: 0,
        born_host: "10.0.0.1:1".parse().unwrap(),
        store_host: "10.0.0.1:1".parse().unwrap(),
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body: &[3; 60],
        properties: PropertiesSpec {
            texts: &[b"k\x01v\x02KEYS\x01a b\x02"],
            pairs: &[],
        },
    };
    let mut bytes = vec![0; spec.encoded_len().unwrap()];
    spec.encode(&mut bytes);
    bytes.resize(200, 1);
    for at in 0..bytes.len() {
        let good = bytes[at];
        for byte in 0..=u8::MAX {
            bytes[at] = byte;
            if let Checked::Message(record) = Untrusted(&bytes).check(Check::default()) {
                assert!(record.size() as usize <= bytes.len());
                record.keys().count();
                record.store_host();
            }
        }
        bytes[at] = good;
    }
}

#[test]
fn only_topics_above_127_bytes_need_version_2() {
    let mut record = [0; 1024];
    for (topic, is_v2) in [
        ("t".repeat(127), false),
        ("t".repeat(128), true),
        ("ü".repeat(63), false),
        ("ü".repeat(64), true),
    ] {
        let spec = RecordSpec {
            topic: &topic,
            queue_id: 0,
            flag: 0,
            sys_flag: 0,
            born_timestamp: 0,
            born_host: "10.0.0.1:1".parse().unwrap(),
            store_host: "[::1]:1".parse().unwrap(),
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body: b"",
            properties: PropertiesSpec::default(),
        };
        let record = &mut record[..spec.encoded_len().unwrap()];
        spec.encode(record);
        let Checked::Message(record) = Untrusted(record).check(Check::default()) else {
            panic!("{topic} makes no record");
        };
        assert_eq!((record.is_v2(), record.topic()), (is_v2, topic.as_str()));
    }
}

#[test]
fn a_batch_with_one_wrong_length_is_no_batch() {
    let mut body = Vec::new();
    let item = BatchItem {
        flag: 1,
        body: b"body",
        properties: Properties(b"k\x01v\x02"),
    };
    item.encode(&mut body);
    item.encode(&mut body);
    // Any total size is taken, even 0.
    body[..4].copy_from_slice(&[0; 4]);
    let batch = Batch::check(&body).unwrap();
    assert_eq!(batch.count(), 2);
    assert_eq!(batch.iter().collect::<Vec<_>>(), [item, item]);
    let second = body.len() / 2;
    for (at, byte) in [(16, 0x80), (16, 1), (24, 0x80), (24, 0x7F)] {
        let mut bad = body.clone();
        bad[second + at] = byte;
        assert_eq!(
            Batch::check(&bad).err(),
            Some(BatchError::Item { item: 1 }),
            "{at}"
        );
    }
    assert_eq!(
        Batch::check(&body[..body.len() - 1]).err(),
        Some(BatchError::Item { item: 1 })
    );
    assert_eq!(Batch::check(&[]).err(), Some(BatchError::Empty));
    assert_eq!(Batch::check(&[0; ITEM_BYTES_MIN]).unwrap().count(), 1);
}

fn host() -> impl Strategy<Value = SocketAddr> {
    prop_oneof![
        any::<([u8; 4], u16)>().prop_map(|(ip, port)| SocketAddr::from((ip, port))),
        any::<([u16; 8], u16)>().prop_map(|(ip, port)| SocketAddr::from((ip, port))),
    ]
}

proptest! {
    #[test]
    fn a_frame_is_read_as_it_was_written(
        numbers in any::<(i16, i32, i32, i16)>(),
        language in 0..14_i64,
        remark in proptest::option::of(".{1,40}"),
        fields in btree_map(".{1,8}", ".{1,40}", 0..20),
        body in vec(any::<u8>(), 0..50),
        is_binary in any::<bool>(),
    ) {
        let (code, opaque, flag, version) = numbers;
        let encoding = if is_binary { Encoding::Binary } else { Encoding::Json };
        let head = RequestHead {
            code: RequestCode(i32::from(code.min(3000))),
            language: Language::from_code(language).unwrap(),
            version: i32::from(version),
            opaque,
            flag,
        };
        let mut out = b"before".to_vec();
        encode_request(&mut out, encoding, &head, remark.as_deref(), body.len(), |ext| {
            fields.iter().for_each(|(name, value)| ext.put_str(name, value));
        });
        out.extend_from_slice(&body);
        let out = &out[6..];
        prop_assert_eq!(frame_length(*out.first_chunk().unwrap()), Ok(out.len() - LENGTH_BYTES));
        let mut scratch = Scratch::new();
        let frame = Frame::decode(&out[LENGTH_BYTES..], &mut scratch).unwrap();
        let header = frame.header;
        prop_assert_eq!(frame.body, body);
        prop_assert_eq!(header.encoding, encoding);
        prop_assert_eq!(header.request_code(), head.code);
        prop_assert_eq!(
            (header.language, header.version, header.opaque, header.flag),
            (head.language, head.version, head.opaque, head.flag)
        );
        prop_assert_eq!(header.remark, remark.as_deref());
        let read: BTreeMap<_, _> =
            header.ext_fields().map(|(name, value)| (name.into(), value.into())).collect();
        prop_assert_eq!(read, fields);
    }

    #[test]
    fn any_bytes_are_a_frame_or_an_error(
        mut bytes in vec(any::<u8>(), 0..300),
        kind in 0..3_u8,
        length in 0..300_u32,
    ) {
        if bytes.len() >= 4 && kind < 2 {
            bytes[..4].copy_from_slice(&(u32::from(kind) << 24 | length).to_be_bytes());
        }
        let mut scratch = Scratch::new();
        if let Ok(frame) = Frame::decode(&bytes, &mut scratch) {
            frame.header.ext_fields().count();
        }
    }

    #[test]
    fn any_json_like_text_is_a_header_or_an_error(
        text in "[{}\\[\\],:\"'\\\\ a0ux.eté\u{FEFF}-]{0,60}",
        good in 0..100_usize,
    ) {
        let start = r#"{"code":1,"extFields":{"a":"b\n","c":{"d":[1]}},"language":"GO"}"#;
        let mut header = start[..good.min(start.len())].to_string();
        header.push_str(&text);
        let mut scratch = Scratch::new();
        if let Ok(frame) = Frame::decode(&json(&header), &mut scratch) {
            frame.header.ext_fields().count();
        }
        // What is written anew is strict JSON.
        if let Ok(strict) = fastjson::to_strict(&header) {
            serde_json::from_str::<serde_json::Value>(&strict).unwrap();
        }
    }

    #[test]
    fn strict_json_is_written_anew_without_a_change(
        keys in vec(".{0,6}", 0..6),
        numbers in vec(any::<i64>(), 6),
        eighths in any::<i16>(),
    ) {
        let fraction = f64::from(eighths) / 8.0;
        let value: serde_json::Map<String, serde_json::Value> = keys
            .iter()
            .zip(&numbers)
            .map(|(key, number)| (key.clone(), serde_json::json!([number, fraction, key, null])))
            .collect();
        let text = serde_json::to_string(&value).unwrap();
        let again: serde_json::Map<_, _> =
            serde_json::from_str(&fastjson::to_strict(&text).unwrap()).unwrap();
        prop_assert_eq!(again, value);
    }

    #[test]
    fn a_record_is_read_as_it_was_written(
        topic in "[a-zA-Z0-9_%|-]{1,200}",
        numbers in any::<(i32, i32, i32, i32)>(),
        times in any::<(i64, i64, i64)>(),
        offsets in any::<(u64, u64)>(),
        hosts in (host(), host()),
        body in vec(any::<u8>(), 0..200),
        texts in vec(vec(1..=255_u8, 0..40), 0..3),
        pair in ("[A-Z]{1,6}", vec(3..=255_u8, 1..20)),
        beyond in vec(any::<u8>(), 0..50),
    ) {
        let texts: Vec<&[u8]> = texts.iter().map(Vec::as_slice).collect();
        let spec = RecordSpec {
            topic: &topic,
            queue_id: numbers.0,
            flag: numbers.1,
            sys_flag: numbers.2,
            born_timestamp: times.0,
            born_host: hosts.0,
            store_host: hosts.1,
            reconsume_times: numbers.3,
            prepared_transaction_offset: times.1,
            body: &body,
            properties: PropertiesSpec { texts: &texts, pairs: &[(&pair.0, &pair.1)] },
        };
        let size = spec.encoded_len().unwrap();
        let mut bytes = vec![0xEE; size];
        spec.encode(&mut bytes);
        patch(&mut bytes, offsets.0, offsets.1, times.2);
        bytes.extend_from_slice(&beyond);
        let check = Check { position: Some(offsets.1), body_crc: true, no_nul: true };
        let Checked::Message(record) = Untrusted(&bytes).check(check) else {
            panic!("no message");
        };
        prop_assert_eq!(record.bytes(), &bytes[..size]);
        prop_assert_eq!(record.topic(), topic);
        prop_assert_eq!((record.queue_id(), record.flag()), (numbers.0, numbers.1));
        prop_assert_eq!(record.sys_flag() & !0x30, numbers.2 & !0x30);
        prop_assert_eq!(record.reconsume_times(), numbers.3);
        prop_assert_eq!(record.born_timestamp(), times.0);
        prop_assert_eq!(record.prepared_transaction_offset(), times.1);
        prop_assert_eq!(record.store_timestamp(), times.2);
        prop_assert_eq!((record.queue_offset(), record.log_offset()), offsets);
        prop_assert_eq!((record.born_host(), record.store_host()), hosts);
        prop_assert_eq!(record.body(), body);
        prop_assert_eq!(record.properties().get(&pair.0), Some(pair.1.as_slice()));
        let mut joined = Vec::new();
        texts.iter().for_each(|text| properties::append_text(&mut joined, text));
        properties::append(&mut joined, &pair.0, &pair.1);
        prop_assert_eq!(record.properties().0, joined);
    }

    #[test]
    fn any_bytes_with_lengths_that_nearly_fit_are_a_record_or_not(
        mut bytes in vec(any::<u8>(), 130),
        magic in 0..4_usize,
        lengths in (0..8_u8, 0..8_u8, 0..8_u8),
        more in 0..8_usize,
        claimed in 0..3_u32,
    ) {
        let (body, topic, properties) = lengths;
        let exact = RECORD_BYTES_MIN + usize::from(body + topic + properties);
        let magics = [0xDAA3_20A7_u32, 0xDAA3_20AB, 0xCBD4_3194, 0];
        bytes[..4].copy_from_slice(&(exact as u32 + claimed - 1).to_be_bytes());
        bytes[4..8].copy_from_slice(&magics[magic].to_be_bytes());
        bytes[39] &= 0xCF;
        bytes[84..88].copy_from_slice(&[0, 0, 0, body]);
        bytes[88 + usize::from(body)] = topic;
        bytes[89 + usize::from(body + topic)..][..2].copy_from_slice(&[0, properties]);
        bytes.truncate(exact + more - 4);
        let check = Check { position: None, body_crc: more % 2 == 0, no_nul: claimed == 0 };
        if let Checked::Message(record) = Untrusted(&bytes).check(check) {
            record.properties().iter().count();
            record.keys().count();
            record.born_host();
            record.store_host();
        }
    }

    #[test]
    fn any_bytes_are_a_batch_or_an_error(bytes in vec(0..6_u8, 0..200)) {
        if let Ok(batch) = Batch::check(&bytes) {
            prop_assert_eq!(batch.iter().count(), batch.count() as usize);
        }
    }

    #[test]
    fn a_batch_is_read_as_it_was_written(
        items in vec((any::<i32>(), vec(any::<u8>(), 0..40), vec(any::<u8>(), 0..40)), 1..8),
    ) {
        let items: Vec<_> = items
            .iter()
            .map(|(flag, body, text)| BatchItem { flag: *flag, body, properties: Properties(text) })
            .collect();
        let mut body = Vec::new();
        items.iter().for_each(|item| item.encode(&mut body));
        prop_assert_eq!(Batch::check(&body).unwrap().iter().collect::<Vec<_>>(), items);
    }

    #[test]
    fn an_offset_id_is_read_as_it_was_written(host in host(), offset in any::<u64>()) {
        let id = encode_offset_id(host, offset);
        prop_assert_eq!(decode_offset_id(id.as_str()), Ok((host, offset)));
    }

    #[test]
    fn any_text_is_an_offset_id_or_an_error(text in "[0-9A-Fx]{32}|[0-9A-F]{56}|.{0,60}") {
        _ = decode_offset_id(&text);
    }
}

#[test]
fn a_pull_answer_has_its_fields_in_their_order() {
    let mut out = Vec::new();
    let head = ResponseHead {
        code: ResponseCode::PULL_NOT_FOUND,
        opaque: 1,
    };
    let fields = PullResponse {
        suggest_which_broker_id: 0,
        next_begin_offset: i64::MIN,
        min_offset: 1,
        max_offset: i64::MAX,
        offset_delta: None,
        topic_sys_flag: None,
        group_sys_flag: None,
        forbidden_type: Some(-1),
    };
    encode_response(&mut out, Encoding::Json, &head, None, 0, |ext| {
        fields.encode(ext)
    });
    let expected = concat!(
        r#"{"suggestWhichBrokerId":"0","nextBeginOffset":"-9223372036854775808","minOffset":"1","#,
        r#""maxOffset":"9223372036854775807","forbiddenType":"-1"}"#
    );
    let text = std::str::from_utf8(&out[8..]).unwrap();
    assert!(text.contains(expected), "{text}");
    let mut scratch = Scratch::new();
    let header = Frame::decode(&out[LENGTH_BYTES..], &mut scratch)
        .unwrap()
        .header;
    assert_eq!(PullResponse::decode(&header), Ok(fields));
}
