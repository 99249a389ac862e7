//! Sends that wait: for room in the edge to the log, for credits, for their topic; and stopping.

use shards::mesh::EdgeSize;

use super::world::*;
use crate::broker::news::{NewTopic, News};
use crate::limits::{APPENDS_IN_FLIGHT_MAX, NEW_TOPIC_WAIT_MS, PARKED_SEND_BYTES_MAX};
use crate::role::{CONTROL, LOG, Letter, Mark};
use crate::wire::{Encoding, ResponseCode};

fn code(number: i32) -> ResponseCode {
    ResponseCode(number)
}

/// A world whose edge to the log takes two letters.
fn narrow() -> World {
    let size = |from, to| match to {
        LOG => EdgeSize {
            letters: 2,
            lane_bytes: 8 * 1024 * 1024,
        },
        _ => crate::role::edge(from, to).unwrap(),
    };
    let setup = Setup {
        size,
        ..Setup::default()
    };
    setup.build()
}

fn send(world: &mut World, topic: &str, body: &str) -> Option<Got> {
    let fields = World::send_fields(topic, "0");
    world.try_ask(310, &fields, body.as_bytes())
}

fn stored(world: &World) -> Vec<String> {
    let records = world
        .appends
        .iter()
        .map(|append| records(&append.bytes)[0].body().to_vec());
    records
        .map(|body| String::from_utf8(body).unwrap())
        .collect()
}

#[test]
fn sends_wait_in_order_when_the_edge_is_full() {
    let mut world = narrow();
    world.tell_log = false;
    for number in 0..5 {
        assert_eq!(send(&mut world, "T", &number.to_string()), None);
    }
    let deadline = world.now.mono.plus_millis(200);
    assert_eq!(world.deadline(0), Some(deadline));
    world.tell_log = true;
    while world.step() {}
    assert_eq!(stored(&world), ["0", "1", "2", "3", "4"]);
    assert_eq!(world.got.len(), 5);
    assert!(world.got.iter().all(|got| got.code == code(0)));
    assert_eq!(world.deadline(0), None);
}

#[test]
fn a_refusal_does_not_wait() {
    let mut world = narrow();
    world.tell_log = false;
    for _ in 0..3 {
        send(&mut world, "T", "x");
    }
    assert_eq!(world.send("bad topic", "0", "", b"x").code, code(29));
}

#[test]
fn sends_that_waited_too_long_are_answered_busy_with_the_cause() {
    let mut world = narrow();
    world.tell_log = false;
    for _ in 0..2 {
        send(&mut world, "T", "told");
    }
    send(&mut world, "T", "late");
    world.pass(199);
    assert!(world.got.is_empty());
    world.pass(1);
    assert_eq!(world.got.len(), 1);
    assert_eq!(world.got[0].code, code(2));
    let remark = world.got[0].remark();
    assert!(remark.starts_with("[TIMEOUT_CLEAN_QUEUE]"), "{remark}");
    assert!(
        remark.contains("period in queue: 200ms, size of queue: 1"),
        "{remark}"
    );
    world.tell_log = true;
    while world.step() {}
    assert_eq!(
        stored(&world),
        ["told", "told"],
        "what was refused is not stored"
    );
}

#[test]
fn no_more_appends_are_under_way_than_there_are_credits() {
    let mut world = World::new();
    world.log_answers = false;
    for _ in 0..APPENDS_IN_FLIGHT_MAX + 3 {
        send(&mut world, "T", "x");
    }
    assert_eq!(world.appends.len(), APPENDS_IN_FLIGHT_MAX);
    world.answer_next(Ok(()));
    assert_eq!(world.appends.len(), APPENDS_IN_FLIGHT_MAX + 1);
    assert_eq!(world.got.len(), 1);
}

#[test]
fn connections_pause_before_the_bound_and_go_on() {
    let mut world = narrow();
    world.tell_log = false;
    let body = vec![b'x'; 1024 * 1024];
    let fields = World::send_fields("T", "0");
    let ask = |world: &mut World| world.try_ask(310, &fields, &body);
    let mut sent = 0;
    while world.paused.is_empty() {
        assert_eq!(ask(&mut world), None);
        sent += 1;
    }
    assert!(
        (11..=15).contains(&sent),
        "three quarters of 16 MiB: {sent}"
    );
    // Frames that had arrived before the pause still count, up to the bound.
    let refused = loop {
        sent += 1;
        if let Some(got) = ask(&mut world) {
            break got;
        }
        assert!(sent * body.len() < 2 * PARKED_SEND_BYTES_MAX);
    };
    assert_eq!(refused.code, code(2));
    assert!(refused.remark().starts_with("[OVERLOAD]"), "{refused:?}");
    world.tell_log = true;
    while world.step() {}
    assert!(world.paused.is_empty());
    assert_eq!(world.appends.len(), sent - 1);
}

/// The request to control, as it stands in `world.told`.
fn asked(world: &mut World) -> (u64, NewTopic) {
    let (_, to, letter, payload) = world.told.pop().expect("control is asked");
    let Letter::CreateTopic { ask } = letter else {
        panic!("{letter:?}")
    };
    assert_eq!(to, CONTROL);
    (ask, serde_json::from_slice(&payload).unwrap())
}

/// 1.4.
#[test]
fn sends_wait_for_their_topic_and_keep_their_order() {
    let mut world = World::new();
    for number in 0..3 {
        assert_eq!(send(&mut world, "New", &number.to_string()), None);
    }
    let (ask, new) = asked(&mut world);
    assert_eq!(new.topic, "New");
    assert_eq!(new.default_topic, "TBW102");
    assert_eq!(new.default_queues, 4);
    assert_eq!(new.peer, "127.0.0.1:44756");
    assert!(world.told.is_empty(), "asked once");
    assert_eq!(
        send(&mut world, "T", "other").map(|got| got.code),
        Some(code(0))
    );
    world.news(&News::Topic(topic("New", 4, 500)));
    // Others of the topic wait already: no overtaking.
    assert_eq!(send(&mut world, "New", "3"), None);
    world.letter(0, CONTROL, Letter::TopicCreated { ask, ok: true }, &[]);
    assert_eq!(stored(&world), ["other", "0", "1", "2", "3"]);
    assert_eq!(world.got.len(), 5);
}

#[test]
fn a_topic_that_cannot_be_made_is_17() {
    let mut world = World::new();
    send(&mut world, "New", "x");
    let (ask, _) = asked(&mut world);
    world.letter(0, CONTROL, Letter::TopicCreated { ask, ok: false }, &[]);
    assert_eq!(world.got[0].code, code(17));
    assert!(
        world.got[0]
            .remark()
            .starts_with("topic[New] not exist, apply first please!")
    );
    // Row 79: the default topic is known and no template, so nobody is asked.
    let fields = with(World::send_fields("New", "0"), "c", "T");
    world.told.clear();
    assert_eq!(world.ask(310, &fields, b"x").code, code(17));
    assert!(world.told.is_empty());
    // What is no name is not handed on.
    let long = "x".repeat(300_000);
    let fields = with(World::send_fields("Other", "0"), "c", &long);
    assert_eq!(world.try_ask(310, &fields, b"x"), None);
    assert_eq!(asked(&mut world).1.default_topic, "");
    // A retry topic is made whatever the default topic is.
    let fields = with(World::send_fields("%RETRY%G", "0"), "c", "T");
    assert_eq!(world.try_ask(310, &fields, b"x"), None);
    asked(&mut world);
}

/// Row 80.
#[test]
fn a_topic_made_without_queues_is_29() {
    let mut world = World::new();
    send(&mut world, "New", "x");
    let (ask, _) = asked(&mut world);
    world.news(&News::Topic(topic("New", 0, 500)));
    world.letter(0, CONTROL, Letter::TopicCreated { ask, ok: true }, &[]);
    assert_eq!(world.got[0].code, code(29));
    assert_eq!(world.send("New", "-1", "", b"x").code, code(29));
}

#[test]
fn a_topic_that_control_does_not_make_in_time_is_busy() {
    let mut world = World::new();
    send(&mut world, "New", "x");
    let (ask, _) = asked(&mut world);
    world.pass(NEW_TOPIC_WAIT_MS - 1);
    assert!(world.got.is_empty());
    world.pass(1);
    assert_eq!(world.got[0].code, code(2));
    world.news(&News::Topic(topic("New", 4, 500)));
    world.letter(0, CONTROL, Letter::TopicCreated { ask, ok: true }, &[]);
    assert!(world.appends.is_empty(), "it was refused before");
    assert_eq!(
        send(&mut world, "New", "y").map(|got| got.code),
        Some(code(0))
    );
}

#[test]
fn a_poisoned_log_answers_those_that_wait() {
    let mut world = narrow();
    world.tell_log = false;
    for _ in 0..3 {
        send(&mut world, "T", "x");
    }
    world.mark(Mark::Poisoned(1));
    world.tell_log = true;
    while world.step() {}
    assert_eq!(world.appends.len(), 2);
    let codes: Vec<_> = world.got.iter().map(|got| got.code.0).collect();
    assert!(codes.contains(&14), "{codes:?}");
}

#[test]
fn stopping_waits_for_appends_and_tells_the_last_offsets() {
    let mut world = World::new();
    world.log_answers = false;
    send(&mut world, "T", "under way");
    send(&mut world, "New", "waits");
    let fields = [
        ("consumerGroup", "G"),
        ("topic", "T"),
        ("queueId", "0"),
        ("commitOffset", "8"),
    ];
    world.ask(15, &fields, b"");
    world.told.clear();
    world.got.clear();
    world.hear(0, crate::role::Input::Stop);
    assert_eq!(world.got[0].code, code(14), "what waits is refused");
    assert_eq!(world.send("T", "0", "", b"x").code, code(14));
    assert!(world.stopped.is_empty() && world.told.is_empty());
    world.answer_next(Ok(()));
    assert_eq!(world.got.last().unwrap().code, code(0));
    assert_eq!(world.stopped, [0]);
    let (_, _, letter, payload) = world.told.pop().unwrap();
    assert_eq!(letter, Letter::Offsets { last: true });
    assert_eq!(payload, br#"[["T","G",0,8]]"#);
    world.pass(1000);
    assert_eq!(world.stopped, [0], "once");
}

#[test]
fn what_was_sent_before_the_connection_closed_is_stored() {
    let mut world = narrow();
    world.tell_log = false;
    let fields = World::send_fields("T", "0");
    let oneway = |head: &mut crate::wire::RequestHead| *head = head.oneway();
    for _ in 0..3 {
        let got = world.ask_with(conn(0, 0), oneway, 310, &fields, b"x", Encoding::Json);
        assert_eq!(got, None);
    }
    world.close(conn(0, 0));
    world.tell_log = true;
    while world.step() {}
    assert_eq!(world.appends.len(), 3);
}
