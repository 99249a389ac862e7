//! Pulls: each check with its code, what is found, long polling.

use super::world::*;
use crate::broker::news::{GroupSettings, News};
use crate::ids::{LogOffset, Micros, QueueKey, QueueOffset};
use crate::limits::PARKED_PULLS_PER_CONNECTION_MAX;
use crate::role::{CONTROL, DISPATCH, Letter, Mark};
use crate::wire::{Encoding, ResponseCode};

fn code(number: i32) -> ResponseCode {
    ResponseCode(number)
}

fn fields<'a>(queue: &'a str, offset: &'a str) -> Fields<'a> {
    World::pull_fields("T", queue, offset)
}

#[test]
fn a_pull_of_new_messages_reads_no_file() {
    let mut world = World::new();
    world.fill("0", 3);
    let got = world.pull("0", "0");
    assert_eq!((got.code, got.remark()), (code(0), "FOUND"));
    assert_eq!(got.bodies(), ["m0", "m1", "m2"]);
    let expected = [
        ("groupSysFlag", "0"),
        ("maxOffset", "3"),
        ("minOffset", "0"),
        ("nextBeginOffset", "3"),
        ("suggestWhichBrokerId", "0"),
        ("topicSysFlag", "0"),
    ];
    let expected = expected.map(|(name, value)| (name.to_string(), value.to_string()));
    assert_eq!(got.ext, expected.into());
    assert_eq!(world.reads, 0);
    let ranges = world.ranges.last().unwrap();
    assert_eq!(ranges.len(), 1, "neighbours are one range: {ranges:?}");
    assert_eq!(world.pull("0", "2").bodies(), ["m2"]);
}

#[test]
fn records_apart_are_ranges_apart() {
    let mut world = World::new();
    world.fill("0", 1);
    world.fill("1", 1);
    world.fill("0", 2);
    assert_eq!(world.pull("0", "0").bodies(), ["m0", "m0", "m1"]);
    assert_eq!(world.ranges.last().unwrap().len(), 2);
}

/// The table of 4.3; rows 151 to 159.
#[test]
fn offsets_outside_the_queue_are_answered_by_the_table() {
    let mut world = World::new();
    world.fill("0", 42);
    let rows = [
        ("0", "-1", 21, "OFFSET_TOO_SMALL", "0"),
        ("0", "-100", 21, "OFFSET_TOO_SMALL", "0"),
        ("0", "1000", 21, "OFFSET_OVERFLOW_BADLY", "42"),
        (
            "0",
            "9223372036854775807",
            21,
            "OFFSET_OVERFLOW_BADLY",
            "42",
        ),
        ("0", "42", 19, "OFFSET_OVERFLOW_ONE", "42"),
        ("1", "0", 19, "NO_MESSAGE_IN_QUEUE", "0"),
        ("1", "3", 21, "NO_MESSAGE_IN_QUEUE", "0"),
    ];
    for (queue, offset, expected, remark, next) in rows {
        let got = world.pull(queue, offset);
        assert_eq!(
            (got.code, got.remark()),
            (code(expected), remark),
            "{queue} {offset}"
        );
        assert_eq!(got.field("nextBeginOffset"), next, "{queue} {offset}");
        let end = if queue == "0" { "42" } else { "0" };
        assert_eq!((got.field("minOffset"), got.field("maxOffset")), ("0", end));
        assert_eq!(got.field("suggestWhichBrokerId"), "0");
        assert!(got.body.is_empty());
    }
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
    let got = world.pull("0", "4");
    assert_eq!((got.code, got.field("nextBeginOffset")), (code(21), "5"));
    assert_eq!(got.field("minOffset"), "5");
}

/// 4.4; rows 160 to 163 and 142.
#[test]
fn a_pull_brings_no_more_than_it_may() {
    let mut world = World::new();
    world.fill("0", 40);
    for (wanted, next) in [
        ("0", "1"),
        ("-1", "1"),
        ("1", "1"),
        ("7", "7"),
        ("100000", "32"),
    ] {
        let got = world.ask(11, &with(fields("0", "0"), "maxMsgNums", wanted), b"");
        assert_eq!(got.field("nextBeginOffset"), next, "{wanted}");
    }
    // A message that is longer than the limit comes alone, and stops those before it.
    let long = vec![b'x'; 300 * 1024];
    world.send("T", "0", "", &long);
    world.fill("0", 1);
    assert_eq!(world.pull("0", "20").field("nextBeginOffset"), "40");
    let got = world.pull("0", "40");
    assert_eq!(got.field("nextBeginOffset"), "41");
    assert!(got.body.len() > 300 * 1024);
}

#[test]
fn cold_data_comes_in_smaller_pieces() {
    let setup = Setup {
        configure: |config| (config.ram_bytes, config.memory_percent) = (10_000, 10),
        ..Setup::default()
    };
    let mut world = setup.build();
    world.fill("0", 40);
    assert_eq!(world.pull("0", "0").field("nextBeginOffset"), "8");
    assert_eq!(world.pull("0", "36").field("nextBeginOffset"), "40");
}

/// The table of 4.2.
#[test]
fn checks_have_their_codes() {
    let mut setup = Setup::default();
    let mut write_only = topic("WO", 4, 10);
    write_only.perm = 2;
    setup.boot.topics.push(write_only);
    setup.boot.groups.push(GroupSettings {
        consume_enable: false,
        ..group("Off")
    });
    let mut world = setup.build();
    world.fill("0", 1);
    let mut refused = |fields: Fields<'_>, expected: i32, remark: &str, forbidden: Option<&str>| {
        let got = world.ask(11, &fields, b"");
        assert_eq!(got.code, code(expected), "{fields:?}: {got:?}");
        assert!(got.remark().contains(remark), "{got:?}");
        assert_eq!(got.ext.get("forbiddenType").map(String::as_str), forbidden);
        assert!(got.has_ext, "{got:?}");
    };
    let on = |name, value| with(fields("0", "0"), name, value);
    refused(
        on("consumerGroup", "bad group"),
        26,
        "[bad group] does not exist",
        None,
    );
    refused(
        on("consumerGroup", "Off"),
        16,
        "no permission, Off",
        Some("2"),
    );
    refused(on("topic", "NoTopic"), 17, "topic[NoTopic] not exist", None);
    refused(
        on("topic", "WO"),
        16,
        "the topic[WO] pulling message is forbidden",
        Some("3"),
    );
    for queue in ["4", "99", "-1"] {
        let remark =
            format!("queueId[{queue}] is illegal, topic:[T] topicConfig.readQueueNums:[4]");
        refused(fields(queue, "0"), 29, &remark, None);
    }
    refused(
        on("subscription", "||"),
        23,
        "parse the consumer's subscription failed",
        None,
    );
    for kind in ["SQL92", "XYZ"] {
        let remark = format!("does not support consumer to filter message by {kind}");
        refused(on("expressionType", kind), 1, &remark, None);
    }
    refused(
        on("sysFlag", "0"),
        24,
        "the consumer's group info not exist",
        None,
    );
    for (group, expected) in [("", 0), (&*"x".repeat(121), 0)] {
        let got = world.ask(11, &with(fields("0", "0"), "consumerGroup", group), b"");
        assert_eq!(got.code, code(expected), "rows 166 and 167");
    }
    for field in [
        "consumerGroup",
        "topic",
        "queueId",
        "queueOffset",
        "maxMsgNums",
        "sysFlag",
    ] {
        let got = world.ask(11, &without(fields("0", "0"), field), b"");
        assert_eq!((got.code, got.has_ext), (code(1), false), "{field}");
        assert!(got.remark().contains(field));
    }
    for field in [
        "commitOffset",
        "suspendTimeoutMillis",
        "subVersion",
        "subscription",
    ] {
        let got = world.ask(11, &without(fields("0", "0"), field), b"");
        assert_eq!(got.code, code(0), "{field}");
    }
    assert_eq!(
        world.ask(361, &fields("0", "0"), b"").code,
        code(0),
        "row 182"
    );
}

#[test]
fn the_brokers_own_switches_come_first() {
    let setup = Setup {
        configure: |config| {
            config.broker_permission = 2;
            config.lite_pull = false;
        },
        ..Setup::default()
    };
    let mut world = setup.build();
    let got = world.ask(11, &with(fields("0", "0"), "topic", "NoTopic"), b"");
    assert_eq!((got.code, got.field("forbiddenType")), (code(16), "1"));
    let setup = Setup {
        configure: |config| config.lite_pull = false,
        ..Setup::default()
    };
    assert_eq!(
        setup.build().ask(361, &fields("0", "0"), b"").code,
        code(16)
    );
    let setup = Setup {
        configure: |config| config.auto_create_groups = false,
        ..Setup::default()
    };
    let got = setup
        .build()
        .ask(11, &with(fields("0", "0"), "consumerGroup", "New"), b"");
    assert_eq!(got.code, code(26));
}

/// 8b to 8f: without bit 4 the heartbeat's subscription counts.
#[test]
fn the_subscription_comes_from_the_heartbeat() {
    let mut world = World::new();
    world.send("T", "0", "TAGS\u{1}TagA\u{2}", b"a");
    world.send("T", "0", "TAGS\u{1}TagB\u{2}", b"b");
    let pull = |world: &mut World| {
        let fields = with(fields("0", "0"), "sysFlag", "0");
        world.ask(11, &with(fields, "subscription", ""), b"")
    };
    assert_eq!(pull(&mut world).code, code(24));
    world.news(&online("G", "Other", "*", 1));
    assert_eq!(
        pull(&mut world).code,
        code(24),
        "not subscribed to this topic"
    );
    world.news(&online("G", "T", "*", 0));
    assert_eq!(
        pull(&mut world).code,
        code(25),
        "a newer subscription than ours"
    );
    world.news(&online("G", "T", "TagB", 1));
    assert_eq!(pull(&mut world).bodies(), ["b"]);
    world.news(&online("G", "T", "*", 9));
    assert_eq!(pull(&mut world).bodies(), ["a", "b"]);
    let heard = |told: &(crate::ids::RoleId, crate::ids::RoleId, Letter, Vec<u8>)| {
        told.1 == CONTROL && told.2 == Letter::Heard { version: 7 }
    };
    assert_eq!(world.told.iter().filter(|told| heard(told)).count(), 4);
    world.news(&News::Offline("G".to_string()));
    assert_eq!(pull(&mut world).code, code(24));
    let News::Online(mut online) = online("G", "T", "*", 1) else {
        unreachable!()
    };
    online.broadcasting = true;
    world.news(&News::Online(online));
    assert_eq!(pull(&mut world).code, code(0));
    world.news(&News::Group(GroupSettings {
        broadcast_enable: false,
        ..group("G")
    }));
    let got = pull(&mut world);
    assert_eq!((got.code, got.field("forbiddenType")), (code(16), "4"));
}

/// Rows 168 to 172.
#[test]
fn tags_are_filtered_by_their_hash() {
    let mut world = World::new();
    for number in 0..10 {
        let tag = if number % 2 == 0 { "TagA" } else { "TagB" };
        let body = number.to_string();
        world.send("T", "0", &format!("TAGS\u{1}{tag}\u{2}"), body.as_bytes());
    }
    let mut pull = |expression| {
        let fields = with(fields("0", "0"), "subscription", expression);
        let got = world.ask(11, &fields, b"");
        (
            got.code.0,
            got.field("nextBeginOffset").to_string(),
            got.bodies().concat(),
        )
    };
    assert_eq!(pull("TagA"), (0, "10".into(), "02468".into()));
    assert_eq!(pull(" TagB ||TagC"), (0, "10".into(), "13579".into()));
    assert_eq!(pull("TagA||TagB"), (0, "10".into(), "0123456789".into()));
    assert_eq!(pull(""), (0, "10".into(), "0123456789".into()));
    assert_eq!(pull("A||"), (20, "10".into(), String::new()));
    assert_eq!(pull("no such"), (20, "10".into(), String::new()));
}

#[test]
fn one_pull_looks_at_800_messages() {
    let mut world = World::new();
    world.dispatches = false;
    world.fill("0", 1000);
    world.dispatch();
    let fields = with(fields("0", "0"), "subscription", "no such");
    let got = world.ask(11, &fields, b"");
    assert_eq!((got.code, got.field("nextBeginOffset")), (code(20), "800"));
    assert_eq!(world.reads, 0);
    let got = world.ask(11, &with(fields, "queueOffset", "800"), b"");
    assert_eq!(got.field("nextBeginOffset"), "1000");
}

#[test]
fn what_the_window_no_longer_holds_is_read_from_the_file() {
    let mut world = World::new();
    world.fill("0", 250);
    // News without units: the window is empty then.
    world.dispatches = false;
    world.fill("0", 1);
    world.mark(Mark::Visible(LogOffset(world.log.len() as u64)));
    world.tell_readable(QueueKey(0), &[]);
    let got = world.pull("0", "10");
    assert_eq!(world.reads, 1);
    assert_eq!(got.bodies().len(), 32);
    assert_eq!(got.bodies()[0], "m10");
    assert_eq!(got.field("nextBeginOffset"), "42");
    // One file a pull: 100 units each here.
    let got = world.pull("0", "95");
    assert_eq!(got.field("nextBeginOffset"), "100");
    assert_eq!(got.bodies(), ["m95", "m96", "m97", "m98", "m99"]);
    assert_eq!(world.pull("0", "249").bodies(), ["m249", "m0"]);
    assert_eq!(world.pull("0", "250").bodies(), ["m0"]);
    // A message that becomes readable with its unit is in the window again.
    world.dispatches = true;
    world.fill("0", 1);
    let reads = world.reads;
    assert_eq!(world.pull("0", "251").bodies(), ["m0"]);
    assert_eq!(world.reads, reads);
}

#[test]
fn a_missing_queue_file_is_skipped() {
    let mut setup = Setup::default();
    setup.boot.queues.push(queue_state(0, 0, 250));
    let mut world = setup.build();
    let got = world.pull("0", "30");
    assert_eq!((got.code, got.remark()), (code(19), "OFFSET_FOUND_NULL"));
    assert_eq!(got.field("nextBeginOffset"), "100");
    assert_eq!(world.pull("0", "210").field("nextBeginOffset"), "250");
}

#[test]
fn removed_and_filler_units_are_passed_over() {
    let mut world = World::new();
    world.fill("0", 4);
    let first = records(&world.log)
        .iter()
        .take(2)
        .map(|record| u64::from(record.size()))
        .sum();
    world.mark(Mark::First(LogOffset(first)));
    let got = world.pull("0", "0");
    assert_eq!(
        (got.code, got.bodies()),
        (code(0), vec!["m2".to_string(), "m3".to_string()])
    );
    assert_eq!(got.field("nextBeginOffset"), "4");
    world.mark(Mark::First(LogOffset(world.log.len() as u64)));
    let got = world.pull("0", "1");
    assert_eq!((got.code, got.remark()), (code(20), "MESSAGE_WAS_REMOVING"));
    assert_eq!(got.field("nextBeginOffset"), "4");
    let mut filler = vec![0; 20];
    filler[8..12].copy_from_slice(&i32::MAX.to_be_bytes());
    world.queue_ends.insert(QueueKey(1), 1);
    world.tell_readable(QueueKey(1), &filler);
    let got = world.pull("1", "0");
    assert_eq!((got.code, got.field("nextBeginOffset")), (code(20), "1"));
}

#[test]
fn nothing_is_skipped_before_the_marks_are_known() {
    let mut world = World::new();
    world.dispatches = false;
    world.fill("0", 2);
    let units: Vec<u8> = (0..2)
        .flat_map(|n| world.units[&(QueueKey(0), n)].clone())
        .collect();
    world.tell_readable(QueueKey(0), &units);
    let got = world.pull("0", "0");
    assert_eq!((got.code, got.field("nextBeginOffset")), (code(20), "0"));
    world.mark(Mark::Visible(LogOffset(world.log.len() as u64)));
    assert_eq!(world.pull("0", "0").bodies(), ["m0", "m1"]);
}

/// News of a topic and news of its messages come from two roles, in no order.
#[test]
fn a_queue_may_be_told_before_its_topic() {
    let mut world = World::new();
    world.queue_ends.insert(QueueKey(700), 3);
    world.tell_readable(QueueKey(700), &[0; 60]);
    world.news(&News::Topic(topic("Late", 1, 700)));
    let fields = World::pull_fields("Late", "0", "3");
    let got = world.ask(11, &fields, b"");
    assert_eq!((got.code, got.field("maxOffset")), (code(19), "3"));
}

// ---- long polling

fn suspended<'a>(queue: &'a str, offset: &'a str, millis: &'a str) -> Fields<'a> {
    let fields = with(fields(queue, offset), "sysFlag", "6");
    with(fields, "suspendTimeoutMillis", millis)
}

#[test]
fn a_pull_without_messages_waits_for_the_next_one() {
    let mut world = World::new();
    world.fill("0", 1);
    assert_eq!(world.try_ask(11, &suspended("0", "1", "15000"), b""), None);
    assert_eq!(
        world.try_ask(11, &suspended("1", "0", "15000"), b""),
        None,
        "an empty queue"
    );
    world.pass(1000);
    world.fill("0", 1);
    let got = world.got.last().unwrap();
    assert_eq!((got.code, got.bodies()), (code(0), vec!["m0".to_string()]));
    assert_eq!(got.field("nextBeginOffset"), "2");
    let answers = world.got.len();
    world.fill("0", 1);
    assert_eq!(world.got.len(), answers + 1, "it was answered once");
    world.fill("1", 1);
    assert_eq!(world.got.last().unwrap().bodies(), ["m0"]);
    assert_eq!(world.deadline(0), None, "nothing waits any more");
}

#[test]
fn a_pull_is_answered_when_its_time_is_over() {
    let mut world = World::new();
    world.fill("0", 1);
    let start = world.now.mono;
    assert_eq!(world.try_ask(11, &suspended("0", "1", "1500"), b""), None);
    assert_eq!(world.deadline(0), Some(start.plus_millis(1500)));
    world.pass(1499);
    assert_eq!(world.got.len(), 1);
    world.pass(1);
    let got = world.got.last().unwrap();
    assert_eq!((got.code, got.remark()), (code(19), "OFFSET_OVERFLOW_ONE"));
    // -1 and 0 are no invitation to ask again at once.
    for millis in ["-1", "0"] {
        assert_eq!(world.try_ask(11, &suspended("0", "1", millis), b""), None);
        world.pass(1000);
        assert_eq!(world.got.last().unwrap().code, code(19));
    }
}

#[test]
fn only_19_is_held() {
    let mut world = World::new();
    world.fill("0", 1);
    for (offset, expected) in [("5", 21), ("-1", 21), ("0", 0)] {
        let got = world.ask(11, &suspended("0", offset, "15000"), b"");
        assert_eq!(got.code, code(expected), "{offset}");
    }
    let fields = with(suspended("0", "0", "15000"), "subscription", "no such");
    assert_eq!(world.ask(11, &fields, b"").code, code(20));
}

#[test]
fn short_polling_holds_for_a_second() {
    let setup = Setup {
        configure: |config| config.long_polling = false,
        ..Setup::default()
    };
    let mut world = setup.build();
    assert_eq!(world.try_ask(11, &suspended("0", "0", "15000"), b""), None);
    world.pass(999);
    assert!(world.got.is_empty());
    world.pass(1);
    assert_eq!(world.got[0].code, code(19));
}

#[test]
fn messages_of_other_tags_do_not_wake_but_count() {
    let mut world = World::new();
    let fields = with(suspended("0", "0", "15000"), "subscription", "TagA");
    assert_eq!(world.try_ask(11, &fields, b""), None);
    world.send("T", "0", "TAGS\u{1}TagB\u{2}", b"b");
    assert_eq!(world.got.len(), 1, "only the send is answered");
    world.send("T", "0", "TAGS\u{1}TagA\u{2}", b"a");
    let got = world.got.last().unwrap();
    assert_eq!(
        (got.bodies(), got.field("nextBeginOffset")),
        (vec!["a".to_string()], "2")
    );
    // Woken by time, what was passed over is not looked at again.
    let fields = with(suspended("0", "2", "100"), "subscription", "TagA");
    assert_eq!(world.try_ask(11, &fields, b""), None);
    world.send("T", "0", "TAGS\u{1}TagB\u{2}", b"b");
    world.pass(100);
    let got = world.got.last().unwrap();
    assert_eq!((got.code, got.field("nextBeginOffset")), (code(20), "3"));
}

/// Without units nobody knows the tags: everybody looks, from the file.
#[test]
fn news_without_units_wake_everybody() {
    let mut world = World::new();
    let fields = with(suspended("0", "0", "15000"), "subscription", "TagA");
    assert_eq!(world.try_ask(11, &fields, b""), None);
    world.dispatches = false;
    world.send("T", "0", "TAGS\u{1}TagA\u{2}", b"a");
    world.mark(Mark::Visible(LogOffset(world.log.len() as u64)));
    world.tell_readable(QueueKey(0), &[]);
    while world.step() {}
    assert_eq!(world.got.last().unwrap().bodies(), ["a"]);
    assert_eq!(world.reads, 1);
}

/// No interleaving of a message's news and a pull loses the wake-up: the check and the hold are one
/// call.
#[test]
fn a_message_between_two_pulls_is_never_missed() {
    for before in [false, true] {
        let mut world = World::new();
        world.dispatches = false;
        world.fill("0", 1);
        if before {
            world.dispatch();
        }
        let got = world.try_ask(11, &suspended("0", "0", "15000"), b"");
        assert_eq!(got.is_some(), before);
        if !before {
            world.dispatch();
        }
        assert_eq!(world.got.last().unwrap().bodies(), ["m0"]);
    }
}

#[test]
fn pulls_of_a_closed_connection_are_dropped() {
    let mut world = World::new();
    world.open(conn(0, 1));
    let fields = suspended("0", "0", "15000");
    let json = Encoding::Json;
    for conn in [conn(0, 0), conn(0, 1), conn(0, 1)] {
        assert_eq!(world.ask_with(conn, |_| {}, 11, &fields, b"", json), None);
    }
    world.close(conn(0, 1));
    world.fill("0", 1);
    let pulls = world.got.iter().filter(|got| !got.body.is_empty());
    let conns: Vec<_> = pulls.map(|got| got.conn).collect();
    assert_eq!(conns, [conn(0, 0)]);
    world.pass(20_000);
    assert_eq!(world.got.len(), 2);
}

#[test]
fn held_pulls_are_bounded() {
    let mut world = World::new();
    world.open(conn(0, 1));
    let fields = suspended("0", "0", "15000");
    for _ in 0..PARKED_PULLS_PER_CONNECTION_MAX {
        assert_eq!(world.try_ask(11, &fields, b""), None);
    }
    assert_eq!(world.ask(11, &fields, b"").code, code(2));
    let json = Encoding::Json;
    assert_eq!(
        world.ask_with(conn(0, 1), |_| {}, 11, &fields, b"", json),
        None
    );
    // More than one call may wake: the rest follow at once.
    world.dispatches = false;
    world.fill("0", 1);
    world.dispatch();
    let before = world.got.len();
    assert!(before < PARKED_PULLS_PER_CONNECTION_MAX);
    assert_eq!(world.deadline(0), Some(Micros(0)));
    world.pass(0);
    let found = world
        .got
        .iter()
        .filter(|got| got.code == code(0) && !got.body.is_empty());
    assert_eq!(found.count(), PARKED_PULLS_PER_CONNECTION_MAX + 1);
    assert_eq!(world.deadline(0), None);
}

#[test]
fn a_deleted_topic_answers_its_pulls() {
    let mut world = World::new();
    world.fill("0", 1);
    assert_eq!(world.try_ask(11, &suspended("0", "1", "15000"), b""), None);
    world.news(&News::TopicGone("T".to_string()));
    assert_eq!(world.got.last().unwrap().code, code(17));
    assert_eq!(world.ask(11, &fields("0", "0"), b"").code, code(17));
    world.news(&News::Topic(topic("T", 4, 400)));
    let got = world.pull("0", "0");
    assert_eq!(
        (got.code, got.field("maxOffset")),
        (code(19), "0"),
        "it starts at 0 again"
    );
}

/// 4.7; rows 184 and 185.
#[test]
fn a_pull_commits_once_and_without_a_check() {
    let mut world = World::new();
    world.fill("0", 1);
    let ask = |world: &mut World, group: &str| {
        let fields = [("consumerGroup", group), ("topic", "T"), ("queueId", "0")];
        world.ask(14, &fields, b"").field("offset").to_string()
    };
    let fields = with(fields("0", "1"), "commitOffset", "3");
    let fields = with(fields, "consumerGroup", "NewGroup");
    let fields = with(fields, "sysFlag", "7");
    assert_eq!(world.try_ask(11, &fields, b""), None);
    assert_eq!(ask(&mut world, "NewGroup"), "3");
    let lower = with(fields.clone(), "commitOffset", "2");
    world.try_ask(11, &lower, b"");
    assert_eq!(ask(&mut world, "NewGroup"), "2", "it may go back");
    let update = [
        ("consumerGroup", "NewGroup"),
        ("topic", "T"),
        ("queueId", "0"),
    ];
    let update = with(update.to_vec(), "commitOffset", "7");
    world.ask(15, &update, b"");
    world.fill("0", 1);
    assert_eq!(ask(&mut world, "NewGroup"), "7", "waking commits nothing");
}
