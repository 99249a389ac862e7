//! Consumer offsets (14, 15), what is asked of queues (29 to 32), and the look-ups 12 and 33.

use super::world::*;
use crate::broker::news::{self, News};
use crate::ids::{LogOffset, Millis, QueueKey, QueueOffset};
use crate::role::{CONTROL, DISPATCH, INDEX, Letter, Mark};
use crate::wire::ResponseCode;

fn code(number: i32) -> ResponseCode {
    ResponseCode(number)
}

fn of_group<'a>(group: &'a str, topic: &'a str, queue: &'a str) -> Fields<'a> {
    vec![
        ("consumerGroup", group),
        ("topic", topic),
        ("queueId", queue),
    ]
}

fn commit<'a>(group: &'a str, topic: &'a str, queue: &'a str, offset: &'a str) -> Fields<'a> {
    with(of_group(group, topic, queue), "commitOffset", offset)
}

/// Rows 193 to 200.
#[test]
fn offsets_are_stored_without_a_range_check() {
    let mut world = World::new();
    for (queue, offset) in [("0", "999999"), ("99", "5"), ("-7", "6"), ("0", "4")] {
        let got = world.ask(15, &commit("G", "T", queue, offset), b"");
        assert_eq!((got.code, got.has_ext, got.ext.len()), (code(0), true, 0));
        let got = world.ask(14, &of_group("G", "T", queue), b"");
        assert_eq!((got.code, got.field("offset")), (code(0), offset));
    }
    world.ask(15, &commit("G", "T", "99", "-3"), b"");
    assert_eq!(world.ask(14, &of_group("G", "T", "99"), b"").code, code(22));
    let rows = [
        (commit("NoGrp", "T", "0", "1"), 26, "Group NoGrp not exist!"),
        (
            commit("G", "NoTopic", "0", "1"),
            17,
            "Topic NoTopic not exist!",
        ),
        (of_group("G", "T", "0"), 29, "Offset is null, topic is T"),
        (commit("G", "T", "0", "x"), 29, "Offset is null, topic is T"),
    ];
    for (fields, expected, remark) in rows {
        let got = world.ask(15, &fields, b"");
        assert_eq!((got.code, got.remark()), (code(expected), remark));
        assert!(got.has_ext);
    }
    for field in ["consumerGroup", "topic", "queueId"] {
        let got = world.ask(15, &without(commit("G", "T", "0", "1"), field), b"");
        assert_eq!((got.code, got.has_ext), (code(1), false), "{field}");
        let got = world.ask(14, &without(of_group("G", "T", "0"), field), b"");
        assert_eq!((got.code, got.has_ext), (code(1), false), "{field}");
    }
}

/// Rows 186 to 191: which half a new group starts at.
#[test]
fn a_new_group_starts_at_0_on_a_young_queue() {
    let mut world = World::new();
    world.fill("0", 2);
    let ask = |world: &mut World, fields: Fields<'_>| world.ask(14, &fields, b"");
    let got = ask(&mut world, of_group("New", "T", "0"));
    assert_eq!((got.code, got.field("offset")), (code(0), "0"));
    let got = ask(
        &mut world,
        with(of_group("New", "T", "0"), "setZeroIfNotFound", "false"),
    );
    assert_eq!(got.code, code(22));
    assert_eq!(
        got.remark(),
        "Not found, do not set to zero, maybe this group boot first"
    );
    for (topic, queue) in [("T", "1"), ("NoTopic", "0"), ("T", "99"), ("T", "-1")] {
        let got = ask(&mut world, of_group("New", topic, queue));
        assert_eq!(got.code, code(22), "{topic} {queue}");
        let remark = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first";
        assert_eq!(got.remark(), remark);
        assert!(got.has_ext && got.ext.is_empty());
    }
    let first = QueueOffset(1);
    world.letter(
        0,
        DISPATCH,
        Letter::QueueFirst {
            queue: QueueKey(0),
            first,
        },
        &[],
    );
    assert_eq!(
        ask(&mut world, of_group("New", "T", "0")).code,
        code(22),
        "no longer whole"
    );
}

#[test]
fn a_queue_whose_start_is_out_of_memory_is_not_young() {
    let setup = Setup {
        configure: |config| (config.ram_bytes, config.memory_percent) = (1000, 40),
        ..Setup::default()
    };
    let mut world = setup.build();
    world.fill("0", 1);
    assert_eq!(world.ask(14, &of_group("New", "T", "0"), b"").code, code(0));
    world.fill("1", 3);
    assert_eq!(
        world.ask(14, &of_group("New", "T", "0"), b"").code,
        code(22)
    );
}

#[test]
fn control_gathers_what_changed_in_pieces() {
    let mut setup = Setup::default();
    setup.boot.offsets.push(("T".into(), "Old".into(), 0, 77));
    let mut world = setup.build();
    let got = world.ask(14, &of_group("Old", "T", "0"), b"");
    assert_eq!(got.field("offset"), "77", "from the file");
    world.letter(0, CONTROL, Letter::FetchOffsets, &[]);
    assert_eq!(
        pieces(&mut world),
        [(vec![], true)],
        "nothing changed, which is said"
    );
    world.ask(15, &commit("G", "T", "1", "5"), b"");
    world.ask(15, &commit("G", "T", "1", "6"), b"");
    world.letter(0, CONTROL, Letter::FetchOffsets, &[]);
    let expected = vec![("T".to_string(), "G".to_string(), 1, 6)];
    assert_eq!(pieces(&mut world), [(expected, true)]);
    world.letter(0, CONTROL, Letter::FetchOffsets, &[]);
    assert_eq!(pieces(&mut world), [(vec![], true)], "told once");
    for queue in 0..3000 {
        world.ask(15, &commit("G", "T", &queue.to_string(), "1"), b"");
    }
    world.letter(0, CONTROL, Letter::FetchOffsets, &[]);
    let told = pieces(&mut world);
    assert!(told.len() > 2);
    assert_eq!(
        told.iter().map(|(offsets, _)| offsets.len()).sum::<usize>(),
        3000
    );
    assert!(told.iter().rev().skip(1).all(|(_, last)| !last) && told.last().unwrap().1);
}

/// Offsets, and whether they are the last of their round.
type Piece = (Vec<(String, String, i32, i64)>, bool);

/// The pieces told to control since the last call.
fn pieces(world: &mut World) -> Vec<Piece> {
    let told = std::mem::take(&mut world.told);
    let piece = |(_, to, letter, payload): (_, _, Letter, Vec<u8>)| match letter {
        Letter::Offsets { last } => {
            assert_eq!(to, CONTROL);
            assert!(payload.len() <= crate::limits::ANSWER_PIECE_BYTES);
            let offsets: news::Offsets = serde_json::from_slice(&payload).unwrap();
            Some((offsets.0, last))
        }
        _ => None,
    };
    told.into_iter().filter_map(piece).collect()
}

#[test]
fn dropped_offsets_are_gone_and_control_can_set_them() {
    let mut world = World::new();
    world.news(&News::Group(group("H")));
    for group in ["G", "H"] {
        world.ask(15, &commit(group, "T", "1", "5"), b"");
    }
    world.news(&News::OffsetsGone {
        topic: None,
        group: Some("G".to_string()),
    });
    assert_eq!(world.ask(14, &of_group("G", "T", "1"), b"").code, code(22));
    assert_eq!(
        world.ask(14, &of_group("H", "T", "1"), b"").field("offset"),
        "5"
    );
    world.news(&News::OffsetsGone {
        topic: Some("T".to_string()),
        group: None,
    });
    assert_eq!(world.ask(14, &of_group("H", "T", "1"), b"").code, code(22));
    let set = news::Offsets(vec![("T".into(), "H".into(), 1, 9)]);
    let payload = serde_json::to_vec(&set).unwrap();
    world.letter(0, CONTROL, Letter::Offsets { last: true }, &payload);
    assert_eq!(
        world.ask(14, &of_group("H", "T", "1"), b"").field("offset"),
        "9"
    );
}

fn of_queue<'a>(topic: &'a str, queue: &'a str) -> Fields<'a> {
    vec![("topic", topic), ("queueId", queue)]
}

/// Rows 201 to 216 and 224.
#[test]
fn a_queues_ends_are_0_where_nothing_is_known() {
    let mut world = World::new();
    world.fill("0", 42);
    let first = QueueOffset(3);
    world.letter(
        0,
        DISPATCH,
        Letter::QueueFirst {
            queue: QueueKey(0),
            first,
        },
        &[],
    );
    let fields = with(of_queue("T", "0"), "committed", "false");
    assert_eq!(world.ask(30, &fields, b"").field("offset"), "42");
    assert_eq!(world.ask(31, &of_queue("T", "0"), b"").field("offset"), "3");
    for (topic, queue) in [("NoTopic", "0"), ("T", "99"), ("T", "-1"), ("T", "1")] {
        for request in [30, 31] {
            let got = world.ask(request, &of_queue(topic, queue), b"");
            assert_eq!(
                (got.code, got.field("offset")),
                (code(0), "0"),
                "{request} {topic}"
            );
        }
        let got = world.ask(29, &with(of_queue(topic, queue), "timestamp", "1"), b"");
        assert_eq!((got.code, got.field("offset")), (code(0), "0"));
        let got = world.ask(32, &of_queue(topic, queue), b"");
        assert_eq!((got.code, got.field("timestamp")), (code(0), "-1"));
    }
    for request in [29, 30, 31, 32] {
        let got = world.ask(request, &[("topic", "T"), ("timestamp", "1")], b"");
        assert_eq!((got.code, got.has_ext), (code(1), false), "{request}");
    }
}

/// 29; rows 217 to 223.
#[test]
fn offsets_are_found_by_time() {
    let mut world = World::new();
    let start = world.now.wall.0;
    // Times 0, 0, 10, 10, 20, 20 ..
    for _ in 0..10 {
        world.fill("0", 2);
        world.pass(10);
    }
    let mut at = |time: i64, bound: &str| {
        let time = (start as i64 + time).to_string();
        let fields = with(of_queue("T", "0"), "timestamp", &time);
        let got = world.ask(29, &with(fields, "boundaryType", bound), b"");
        got.field("offset").parse::<i64>().unwrap()
    };
    let rows = [
        (-1, 0, 0),
        (0, 0, 1),
        (1, 2, 1),
        (10, 2, 3),
        (15, 4, 3),
        (90, 18, 19),
        (91, 20, 19),
        (9999, 20, 19),
    ];
    for (time, lower, upper) in rows {
        assert_eq!(
            (at(time, "LOWER"), at(time, "upper")),
            (lower, upper),
            "{time}"
        );
    }
    assert_eq!(at(10, "junk"), 2, "row 221");
    for (timestamp, expected) in [("-1", "0"), ("0", "0"), ("9223372036854775807", "20")] {
        let fields = with(of_queue("T", "0"), "timestamp", timestamp);
        assert_eq!(world.ask(29, &fields, b"").field("offset"), expected);
    }
    // What was removed is older than all that is there.
    let removed: u64 = records(&world.log)
        .iter()
        .take(5)
        .map(|r| u64::from(r.size()))
        .sum();
    world.mark(Mark::First(LogOffset(removed)));
    let fields = with(of_queue("T", "0"), "timestamp", "0");
    assert_eq!(world.ask(29, &fields, b"").field("offset"), "5");
    let first = QueueOffset(5);
    world.letter(
        0,
        DISPATCH,
        Letter::QueueFirst {
            queue: QueueKey(0),
            first,
        },
        &[],
    );
    let got = world.ask(32, &of_queue("T", "0"), b"");
    assert_eq!(got.field("timestamp"), (start + 20).to_string());
}

/// 33; rows 272 to 277.
#[test]
fn a_message_is_found_by_its_place_in_the_log() {
    let mut world = World::new();
    world.fill("0", 3);
    let second = records(&world.log)[0].size().to_string();
    let got = world.ask(33, &[("offset", &second)], b"");
    assert_eq!((got.code, got.bodies()), (code(0), vec!["m1".to_string()]));
    let end = world.log.len().to_string();
    for offset in ["-1", "13", &end, "99999999", "9223372036854775807"] {
        let got = world.ask(33, &[("offset", offset), ("topic", "T")], b"");
        assert_eq!(got.code, code(1), "{offset}");
        assert_eq!(
            got.remark(),
            format!("can not find message by the offset, {offset}")
        );
    }
    assert_eq!(world.ask(33, &[], b"").code, code(1));
    let next = records(&world.log)[1].size() + records(&world.log)[0].size();
    world.mark(Mark::First(LogOffset(u64::from(next))));
    assert_eq!(
        world.ask(33, &[("offset", &second)], b"").code,
        code(1),
        "removed"
    );
    world.dispatches = false;
    world.fill("0", 1);
    assert_eq!(
        world.ask(33, &[("offset", &end)], b"").code,
        code(1),
        "not visible yet"
    );
}

fn by_key<'a>(key: &'a str, max: &'a str) -> Fields<'a> {
    let mut fields = vec![("topic", "T"), ("maxNum", max)];
    fields.extend([("beginTimestamp", "1"), ("endTimestamp", "9"), ("key", key)]);
    fields
}

/// 12; rows 267 to 271.
#[test]
fn messages_are_found_by_key() {
    let mut world = World::new();
    world.fill("0", 3);
    let sizes: Vec<u64> = records(&world.log)
        .iter()
        .map(|r| u64::from(r.size()))
        .collect();
    let mut ask = |fields: &Fields<'_>, found: &[u64]| {
        let before = world.got.len();
        assert_eq!(world.try_ask(12, fields, b""), None);
        let (_, to, letter, payload) = world.told.pop().unwrap();
        let Letter::FindKey { ask } = letter else {
            panic!("{letter:?}")
        };
        assert_eq!(to, INDEX);
        let found: Vec<u8> = found.iter().flat_map(|at| at.to_ne_bytes()).collect();
        let letter = Letter::FoundKey {
            ask,
            last_update: Millis(5),
            last_offset: LogOffset(6),
        };
        world.letter(0, INDEX, letter, &found);
        let query: news::KeyQuery = serde_json::from_slice(&payload).unwrap();
        (query, world.got[before].clone())
    };
    // Newest first from the index, oldest first to the client; no record begins at 1.
    let (query, got) = ask(&by_key("k", "64"), &[sizes[0] + sizes[1], 1, 0]);
    let expected = news::KeyQuery {
        topic: "T".into(),
        key: "k".into(),
        max: 64,
        begin_ms: 1,
        end_ms: 9,
    };
    assert_eq!(query, expected);
    assert_eq!(
        (got.code, got.bodies()),
        (code(0), vec!["m0".to_string(), "m2".to_string()])
    );
    assert_eq!(got.field("indexLastUpdateTimestamp"), "5");
    assert_eq!(got.field("indexLastUpdatePhyoffset"), "6");
    let (query, got) = ask(&without(by_key("k", "1000"), "key"), &[]);
    assert_eq!((query.max, query.key.as_str()), (64, ""));
    assert_eq!(got.code, code(22));
    assert_eq!(
        got.remark(),
        "can not find message, maybe time range not correct"
    );
    assert_eq!(got.field("indexLastUpdateTimestamp"), "5");
    let (query, got) = ask(&by_key("k", "-1"), &[0]);
    assert_eq!((query.max, got.code), (0, code(22)));
    let (query, _) = ask(&with(by_key("k", "1"), "_UNIQUE_KEY_QUERY", "true"), &[]);
    assert_eq!(query.max, 32);
}

/// A key that no message can have is not looked for: it would fit no edge.
#[test]
fn a_key_that_is_too_long_finds_nothing() {
    let mut world = World::new();
    let key = "k".repeat(40_000);
    let got = world.ask(12, &by_key(&key, "64"), b"");
    assert_eq!(
        (got.code, got.field("indexLastUpdateTimestamp")),
        (code(22), "0")
    );
    let topic = "t".repeat(300);
    let got = world.ask(12, &with(by_key("k", "64"), "topic", &topic), b"");
    assert_eq!(got.code, code(22));
    assert!(world.told.is_empty());
}
