//! Sends: each check with its code, what is stored, what is answered.

use super::world::*;
use crate::broker::news::News;
use crate::ids::Millis;
use crate::role::{AppendRefused, CONTROL, Letter, Mark};
use crate::wire::ResponseCode;
use crate::wire::batch::BatchItem;
use crate::wire::properties::Properties;

fn code(number: i32) -> ResponseCode {
    ResponseCode(number)
}

/// Rows 1, 26, 29, 88: the fields of a send's answer.
#[test]
fn a_send_is_stored_and_answered_with_all_its_fields() {
    let mut world = World::new();
    world.log.resize(0x3B6, 0);
    let got = world.send("T", "0", "UNIQ_KEY\u{1}FD00AA\u{2}", b"x");
    assert_eq!(got.code, ResponseCode::SUCCESS);
    let expected = [
        ("MSG_REGION", "DefaultRegion"),
        ("TRACE_ON", "true"),
        ("msgId", "7F000001000051AF00000000000003B6"),
        ("queueId", "0"),
        ("queueOffset", "0"),
        ("transactionId", "FD00AA"),
    ];
    let expected = expected.map(|(name, value)| (name.to_string(), value.to_string()));
    assert_eq!(got.ext, expected.into());
    assert_eq!(world.send("T", "+1", "", b"y").field("queueId"), "1");
    assert_eq!(world.send("T", "0", "", b"z").field("queueOffset"), "1");
}

#[test]
fn what_is_stored_has_the_brokers_properties() {
    let mut world = World::new();
    world.send(
        "T",
        "2",
        "WAIT\u{1}true\u{2}POP_CK\u{1}x\u{2}TAGS\u{1}TagA",
        b"body",
    );
    let append = world.appends[0].clone();
    let record = records(&append.bytes)[0];
    let text = std::str::from_utf8(record.properties().0).unwrap();
    let unique = record.properties().text("UNIQ_KEY").unwrap().to_string();
    assert_eq!(
        text,
        format!(
            "WAIT\u{1}true\u{2}TAGS\u{1}TagA\u{2}UNIQ_KEY\u{1}{unique}\u{2}\
             MSG_REGION\u{1}DefaultRegion\u{2}TRACE_ON\u{1}true\u{2}CLUSTER\u{1}DefaultCluster\u{2}"
        )
    );
    // 26 days, 6 h 46 m and 21 s of the month of 2026-11-29 21:13:01 UTC.
    let clock = 28 * 86_400_000u32 + (21 * 3600 + 13 * 60 + 1) * 1000;
    assert_eq!(unique.len(), 32);
    assert_eq!(&unique[..12], "7F0000010001");
    assert_eq!(&unique[20..28], format!("{clock:08X}"));
    assert_eq!(record.topic(), "T");
    assert_eq!(record.queue_id(), 2);
    assert_eq!(record.born_timestamp(), 1_795_986_781_001);
    assert_eq!(record.born_host(), "127.0.0.1:44756".parse().unwrap());
    assert_eq!(record.store_host(), STORE_HOST.parse().unwrap());
    assert_eq!(record.tags_code(), 2_598_919);
    assert!(append.wait);
    world.send("T", "2", "WAIT\u{1}false\u{2}", b"body");
    assert!(!world.appends[1].wait);
}

/// The record of row 1 was 224 bytes long, an item of the batch of row 88 158.
#[test]
fn records_are_as_long_as_javas() {
    let mut setup = Setup::default();
    setup.boot.topics.push(topic("ErrT", 4, 100));
    let mut world = setup.build();
    let unique = format!("UNIQ_KEY\u{1}{}\u{2}", "F".repeat(56));
    world.send("ErrT", "0", &unique, b"x");
    assert_eq!(world.appends[0].bytes.len(), 224);
    let fields = with(World::send_fields("ErrT", "0"), "m", "true");
    world.ask(320, &fields, &batch(&[("x", "")]));
    assert_eq!(world.appends[1].bytes.len(), 158);
}

fn batch(items: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = vec![];
    for (body, properties) in items {
        let item = BatchItem {
            flag: 3,
            body: body.as_bytes(),
            properties: Properties(properties.as_bytes()),
        };
        item.encode(&mut bytes);
    }
    bytes
}

#[test]
fn a_batch_is_one_append_of_many_messages() {
    let mut world = World::new();
    world.fill("0", 1);
    let at = world.log.len();
    for (number, request) in [10, 310, 320].into_iter().enumerate() {
        let fields = with(World::send_fields("T", "0"), "m", "true");
        let fields = with(fields, "i", "TAGS\u{1}all\u{2}");
        let got = world.ask(
            request,
            &fields,
            &batch(&[("a", "KEYS\u{1}k"), ("b", ""), ("c", "")]),
        );
        assert_eq!(got.field("queueOffset"), (1 + 3 * number).to_string());
        assert!(!got.ext.contains_key("transactionId"), "row 88: {got:?}");
        let append = world.appends.last().unwrap();
        assert_eq!(append.count, 3);
        let stored = records(&append.bytes);
        let bodies: Vec<_> = stored.iter().map(|record| record.body()).collect();
        assert_eq!(bodies, [b"a", b"b", b"c"]);
        assert!(stored.iter().all(|record| record.flag() == 3));
        let text = std::str::from_utf8(stored[0].properties().0).unwrap();
        let all = "TAGS\u{1}all\u{2}MSG_REGION\u{1}DefaultRegion\u{2}TRACE_ON\u{1}true\u{2}\
                   CLUSTER\u{1}DefaultCluster\u{2}";
        assert_eq!(text, format!("KEYS\u{1}k\u{2}{all}"));
        assert_eq!(stored[1].properties().0, all.as_bytes());
        if number == 0 {
            let mut ids = vec![];
            let mut place = at;
            for record in &stored {
                ids.push(format!("7F000001000051AF{place:016X}"));
                place += record.size() as usize;
            }
            assert_eq!(got.field("msgId"), ids.join(","));
        }
    }
}

/// Rows 87 to 96.
#[test]
fn batches_are_refused_as_java_refuses_them() {
    let mut world = World::new();
    world.news(&News::Topic(topic("%RETRY%G", 1, 50)));
    let fields = |topic| with(World::send_fields(topic, "0"), "m", "true");
    let cut = &batch(&[("abc", "")])[..24];
    let mut negative = batch(&[("abc", "")]);
    negative[16..20].copy_from_slice(&(-1i32).to_be_bytes());
    for bad in [&b"not a batch"[..], cut, &negative, b""] {
        let got = world.ask(320, &fields("T"), bad);
        assert_eq!(got.code, code(1), "{bad:?}");
        assert!(!got.has_ext);
    }
    let got = world.ask(310, &fields("%RETRY%G"), &batch(&[("a", "")]));
    assert_eq!(got.code, code(13));
    assert_eq!(
        got.remark(),
        "batch request does not support retry group %RETRY%G"
    );
    let large = vec![0; 4 * 1024 * 1024 + 1];
    assert_eq!(world.ask(320, &fields("T"), &large).code, code(1));
    // Each item of 22 bytes becomes a record of more than 150.
    let many = batch(&vec![("", ""); 40_000]);
    assert_eq!(world.ask(320, &fields("T"), &many).code, code(13));
    let nul = batch(&[("a", "k\u{1}a\0b\u{2}")]);
    assert_eq!(world.ask(320, &fields("T"), &nul).code, code(13));
    assert!(world.appends.is_empty(), "nothing is stored");
    // Rows 91 and 94: any total size, and an empty body, are taken.
    let mut odd = batch(&[("", "")]);
    odd[..4].copy_from_slice(&[0; 4]);
    assert_eq!(world.ask(320, &fields("T"), &odd).code, code(0));
}

/// Rows 1 to 27: which fields are needed, and what is a number.
#[test]
fn fields_that_are_missing_or_no_numbers_are_named() {
    let mut world = World::new();
    let fields = || World::send_fields("T", "0");
    for field in ["b", "e", "f", "g", "h"] {
        let got = world.ask(310, &without(fields(), field), b"x");
        assert_eq!(got.code, code(1), "{field}");
        assert!(got.remark().contains(&format!("field {field}")), "{got:?}");
        assert!(!got.has_ext);
    }
    for field in ["a", "c", "d", "i", "j", "k", "m"] {
        let got = world.ask(310, &without(fields(), field), b"x");
        assert_eq!(got.code, code(0), "{field}");
    }
    for (field, value) in [
        ("e", "abc"),
        ("g", "x"),
        ("d", ""),
        ("h", "1.5"),
        ("j", "x"),
    ] {
        let got = world.ask(310, &with(fields(), field, value), b"x");
        assert_eq!(got.code, code(1), "{field}={value}");
    }
    for value in [" 1", "0x1"] {
        assert_eq!(
            world.ask(310, &with(fields(), "e", value), b"x").code,
            code(1)
        );
    }
    assert_eq!(
        world
            .ask(310, &with(fields(), "f", "99999999999"), b"x")
            .code,
        code(1)
    );
    assert_eq!(world.ask(310, &[], b"x").code, code(1));
}

/// Rows 37 to 62: names, system topics, queue numbers.
#[test]
fn topics_and_queues_are_checked() {
    let mut world = World::new();
    let long = "x".repeat(128);
    let names = [
        ("bad topic", "illegal characters"),
        ("", "is blank"),
        (long.as_str(), "longer than"),
        ("a.b", "illegal characters"),
    ];
    for (name, remark) in names {
        let got = world.send(name, "0", "", b"x");
        assert_eq!(got.code, code(29), "{name}");
        assert!(got.remark().contains(remark), "{got:?}");
        assert_eq!(
            (got.field("TRACE_ON"), got.field("MSG_REGION")),
            ("true", "DefaultRegion")
        );
    }
    let got = world.send("SCHEDULE_TOPIC_XXXX", "0", "", b"x");
    assert_eq!(got.code, code(16));
    assert_eq!(
        got.remark(),
        "Sending message to topic[SCHEDULE_TOPIC_XXXX] is forbidden."
    );
    for queue in ["4", "99", "2147483647"] {
        let got = world.send("T", queue, "", b"x");
        assert_eq!(got.code, code(29), "{queue}");
        assert!(
            got.remark()
                .starts_with(&format!("request queueId[{queue}] is illegal"))
        );
    }
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..50 {
        seen.insert(world.send("T", "-1", "", b"x").field("queueId").to_string());
        world.send("T", "-2147483648", "", b"x");
    }
    assert_eq!(seen.len(), 4, "a negative number means any queue");
}

#[test]
fn the_same_seed_picks_the_same_queues() {
    let queues = |seed: fn(&mut crate::broker::shard::ShardConfig)| {
        let setup = Setup {
            configure: seed,
            ..Setup::default()
        };
        let mut world = setup.build();
        let mut queue = || world.send("T", "-1", "", b"x").field("queueId").to_string();
        (0..20).map(|_| queue()).collect::<Vec<_>>()
    };
    let first = queues(|config| config.random_seed = 1);
    assert_eq!(first, queues(|config| config.random_seed = 1));
    assert_ne!(first, queues(|config| config.random_seed = 2));
}

/// Rows 28 to 36: lengths.
#[test]
fn bodies_and_properties_have_limits() {
    let mut world = World::new();
    assert_eq!(world.send("T", "0", "", b"").code, code(13), "1.1: no body");
    assert_eq!(world.send("T", "0", "", b"0").code, code(0));
    let four = vec![b'x'; 4 * 1024 * 1024];
    assert_eq!(world.send("T", "0", "", &four).code, code(0));
    let more = vec![b'x'; 4 * 1024 * 1024 + 1];
    assert_eq!(world.send("T", "0", "", &more).code, code(13));
    let text = |bytes: usize| format!("k\u{1}{}\u{2}", "v".repeat(bytes - 3));
    assert_eq!(world.send("T", "0", &text(32_600), b"x").code, code(0));
    for bytes in [32_690, 32_767, 32_768, 40_000] {
        assert_eq!(
            world.send("T", "0", &text(bytes), b"x").code,
            code(13),
            "{bytes}"
        );
    }
    assert_eq!(
        world.send("T", "0", "k\u{1}a\0b\u{2}", b"x").code,
        code(13),
        "NUL rule"
    );
}

/// Rows 101 to 129 and 395 to 402, where the feature is built; else it is named.
#[test]
fn properties_that_ask_for_a_feature_are_refused_by_name() {
    let mut world = World::new();
    let property = |name: &str, value: &str| format!("{name}\u{1}{value}\u{2}");
    for level in ["-1", "0", ""] {
        assert_eq!(
            world.send("T", "0", &property("DELAY", level), b"x").code,
            code(0),
            "{level}"
        );
    }
    for level in ["abc", "1.5"] {
        assert_eq!(
            world.send("T", "0", &property("DELAY", level), b"x").code,
            code(1),
            "{level}"
        );
    }
    let refused = [
        (property("DELAY", "1"), "DELAY"),
        (property("TIMER_DELAY_SEC", "5"), "TIMER_"),
        (property("TIMER_DELAY_MS", "5"), "TIMER_"),
        (property("TIMER_DELIVER_MS", "5"), "TIMER_"),
        (property("TRAN_MSG", "true"), "transactional"),
        (property("INNER_NUM", "2"), "INNER_NUM"),
    ];
    for (text, remark) in refused {
        let got = world.send("T", "0", &text, b"x");
        assert_eq!(got.code, code(13), "{text:?}");
        assert!(got.remark().contains(remark), "{got:?}");
    }
    assert_eq!(
        world
            .send("T", "0", &property("TRAN_MSG", "false"), b"x")
            .code,
        code(0)
    );
    let flag = |world: &mut World, flag: i32| {
        let text = flag.to_string();
        let fields = with(World::send_fields("T", "0"), "f", &text);
        world.ask(310, &fields, b"x").code
    };
    for good in [0x40, 0x700, 0x20, 0x10, 0x30, 0x8] {
        assert_eq!(flag(&mut world, good), code(0), "{good:#x}");
    }
    for bad in [0x80, 0xc0, i32::MAX, 0x4, 0xc] {
        assert_eq!(flag(&mut world, bad), code(13), "{bad:#x}");
    }
}

#[test]
fn topic_attributes_and_permissions_are_honoured() {
    let mut setup = Setup::default();
    let mut compact = topic("Compact", 1, 10);
    compact
        .attributes
        .insert("cleanup.policy".into(), "COMPACTION".into());
    let mut inner = topic("Inner", 1, 11);
    inner
        .attributes
        .insert("queue.type".into(), "BatchCQ".into());
    let mut order = topic("Order", 1, 12);
    order.order = true;
    let mut closed = topic("Closed", 1, 13);
    closed.perm = 0;
    let mut tags = topic("Tags", 1, 14);
    tags.multi_tag = true;
    setup
        .boot
        .topics
        .extend([compact, inner, order, closed, tags]);
    setup.configure = |config| config.broker_permission = 4;
    let mut world = setup.build();
    // Row 86.
    let got = world.send("Compact", "0", "", b"x");
    assert_eq!(
        (got.code, got.remark()),
        (code(13), "Required message key is missing")
    );
    assert_eq!(
        world.send("Compact", "0", "KEYS\u{1}k\u{2}", b"x").code,
        code(0)
    );
    assert_eq!(world.send("Inner", "0", "", b"x").code, code(13));
    assert_eq!(
        world.send("Order", "0", "", b"x").code,
        code(16),
        "1.3, row 3"
    );
    assert_eq!(
        world.send("T", "0", "", b"x").code,
        code(0),
        "only ordered topics are closed"
    );
    // Row 85: the topic's own permission is the route's business.
    assert_eq!(world.send("Closed", "0", "", b"x").code, code(0));
    world.send("Tags", "0", "", b"x");
    let append = world.appends.last().unwrap();
    assert_eq!(records(&append.bytes)[0].sys_flag(), 0x2);
}

#[test]
fn a_broker_that_cannot_store_says_so() {
    let mut world = World::new();
    world.mark(Mark::DiskFull(1));
    assert_eq!(world.send("T", "0", "", b"x").code, code(14));
    assert_eq!(
        world.send("T", "9", "", b"x").code,
        code(29),
        "checks come first"
    );
    world.mark(Mark::DiskFull(0));
    assert_eq!(world.send("T", "0", "", b"x").code, code(0));
    world.mark(Mark::Poisoned(1));
    assert_eq!(world.send("T", "0", "", b"x").code, code(14));
    let setup = Setup {
        configure: |config| config.accept_sends_from = Millis(u64::MAX / 2),
        ..Setup::default()
    };
    assert_eq!(setup.build().send("T", "0", "", b"x").code, code(1));
}

/// 1.7 and the letters' own table.
#[test]
fn what_the_log_refuses_has_a_code() {
    let refusals = [
        (AppendRefused::Busy, 2),
        (AppendRefused::NoSegment, 14),
        (AppendRefused::Poisoned, 14),
        (AppendRefused::NoQueue, 17),
        (AppendRefused::Stopping, 14),
    ];
    for (refused, expected) in refusals {
        let mut world = World::new();
        world.log_answers = false;
        assert_eq!(
            world.try_ask(310, &World::send_fields("T", "0"), b"x"),
            None
        );
        world.answer_next(Err(refused));
        assert_eq!(world.got[0].code, code(expected), "{refused:?}");
    }
    let mut world = World::new();
    world.log_answers = false;
    world.try_ask(310, &World::send_fields("T", "0"), b"x");
    let (shard, ask, mut stored) = world.unanswered.pop_front().unwrap();
    stored.flush_timed_out = true;
    world.answer(shard, ask, Ok(stored));
    assert_eq!(world.got[0].code, code(10));
    assert_eq!(world.got[0].field("queueOffset"), "0", "it is stored");
}

#[test]
fn a_oneway_send_is_stored_and_not_answered() {
    let mut world = World::new();
    let fields = World::send_fields("T", "0");
    let json = crate::wire::Encoding::Json;
    let got = world.ask_with(
        conn(0, 0),
        |head| *head = head.oneway(),
        310,
        &fields,
        b"x",
        json,
    );
    assert_eq!(got, None);
    let bad = World::send_fields("bad topic", "0");
    let got = world.ask_with(
        conn(0, 0),
        |head| *head = head.oneway(),
        310,
        &bad,
        b"x",
        json,
    );
    assert_eq!(got, None, "row 130");
    assert_eq!(world.appends.len(), 1);
    assert!(world.got.is_empty());
}

#[test]
fn an_answer_has_the_encoding_of_its_request() {
    let mut world = World::new();
    let fields = World::send_fields("T", "0");
    for encoding in [crate::wire::Encoding::Json, crate::wire::Encoding::Binary] {
        let got = world.ask_with(conn(0, 0), |_| {}, 310, &fields, b"x", encoding);
        assert_eq!(got.map(|got| got.encoding), Some(encoding));
    }
}

/// 1.5.
#[test]
fn a_message_retried_too_often_goes_to_the_dead_letters() {
    let mut setup = Setup::default();
    setup.boot.topics.push(topic("%RETRY%G", 1, 20));
    setup.boot.topics.push(topic("%DLQ%G", 1, 21));
    setup.configure = |config| config.auto_create_groups = false;
    let mut world = setup.build();
    let mut send = |times: &str, max: Option<&str>, version: i32| {
        let mut fields = with(World::send_fields("%RETRY%G", "0"), "j", times);
        fields.extend(max.map(|max| ("l", max)));
        let json = crate::wire::Encoding::Json;
        let head = |head: &mut crate::wire::RequestHead| head.version = version;
        let got = world
            .ask_with(conn(0, 0), head, 310, &fields, b"x", json)
            .unwrap();
        assert_eq!(got.code, code(0), "{got:?}");
        let append = world.appends.last().unwrap();
        let record = records(&append.bytes)[0];
        assert_eq!(record.reconsume_times().to_string(), times);
        let delay = record.properties().text("DELAY").map(str::to_string);
        (record.topic().to_string(), delay)
    };
    let retry = ("%RETRY%G".to_string(), None);
    let dead = ("%DLQ%G".to_string(), Some("-1".to_string()));
    assert_eq!(send("16", None, 479), retry);
    assert_eq!(send("17", None, 479), dead);
    assert_eq!(send("3", Some("2"), 479), dead);
    assert_eq!(send("2", Some("2"), 479), retry);
    assert_eq!(
        send("3", Some("2"), 120),
        retry,
        "old clients do not say how often"
    );
    world.news(&News::Topic(topic("%RETRY%Nobody", 1, 22)));
    let got = world.send("%RETRY%Nobody", "0", "", b"x");
    assert_eq!(got.code, code(26));
}

#[test]
fn a_dead_letter_topic_is_made_when_it_is_needed() {
    let mut setup = Setup::default();
    setup.boot.topics.push(topic("%RETRY%G", 1, 20));
    let mut world = setup.build();
    let fields = with(World::send_fields("%RETRY%G", "0"), "j", "17");
    assert_eq!(world.try_ask(310, &fields, b"x"), None);
    let (_, to, letter, payload) = world.told.pop().unwrap();
    let Letter::CreateTopic { ask } = letter else {
        panic!("{letter:?}")
    };
    assert_eq!(to, CONTROL);
    let new: crate::broker::news::NewTopic = serde_json::from_slice(&payload).unwrap();
    assert_eq!((new.topic.as_str(), new.default_queues), ("%DLQ%G", 1));
    world.news(&News::Topic(topic("%DLQ%G", 1, 21)));
    world.letter(0, CONTROL, Letter::TopicCreated { ask, ok: true }, &[]);
    let append = world.appends.last().unwrap();
    assert_eq!(records(&append.bytes)[0].topic(), "%DLQ%G");
}
