//! Both verbs against a server that answers from a table; rules against the spec's examples.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

use super::routes::{Queue, read_queues, share, write_queues};
use super::*;
use crate::wire::bodies::TopicRouteData;
use crate::wire::fastjson;
use server::{Asked, Reply, Server, State, TOPIC, code, route};

mod server;

fn no_script(_: &mut State, _: &Asked) -> Option<Reply> {
    None
}

fn options<'a>(name_servers: &'a [String], topic: &'a str) -> SendOptions<'a> {
    SendOptions {
        name_servers,
        topic,
        tag: Some("TagA"),
        key: Some("k1 k2"),
        body: b"hello",
    }
}

fn queues(broker: &str, ids: std::ops::Range<i32>) -> Vec<Queue> {
    let queue = |id| Queue {
        topic: TOPIC.to_owned(),
        broker: broker.to_owned(),
        id,
    };
    ids.map(queue).collect()
}

/// client-behaviour 2.1 and 2.4, broker-requests 1.1.
#[test]
fn the_first_message_of_a_topic_is_sent_as_its_template_says() {
    let server = Server::start(no_script);
    let template = route(&[("b", &server.address)], 8);
    server.state().routes.insert("TBW102".to_owned(), template);
    let sent = send(&options(&server.name_servers(), "New")).unwrap();

    let asked = server.state().all(RequestCode::SEND_MESSAGE_V2);
    assert_eq!(asked.len(), 1);
    let asked = &asked[0];
    assert_eq!(asked.body, b"hello");
    assert_eq!(asked.language, "OTHER");
    for (name, value) in [
        ("b", "New"),
        ("c", "TBW102"),
        ("d", "4"),
        ("f", "0"),
        ("h", "0"),
        ("j", "0"),
        ("k", "false"),
        ("m", "false"),
        ("n", "b"),
    ] {
        assert_eq!(asked.ext(name), value, "{name}");
    }
    assert!((0..4).contains(&asked.int("e")), "one of the new topic's 4");
    assert!((wall_ms() - asked.int("g")).abs() < 60_000);
    let id = &sent.msg_id;
    assert_eq!(
        asked.ext("i"),
        format!("UNIQ_KEY\x01{id}\x02WAIT\x01true\x02TAGS\x01TagA\x02KEYS\x01k1 k2\x02")
    );
    assert!(id.starts_with("7F000001") && id.len() == 32, "{id}");
    let expected = Sent {
        msg_id: id.clone(),
        offset_id: "7F00000100002A9F0000000000000063".to_owned(),
        broker: "b".to_owned(),
        queue_id: asked.int("e") as i32,
        queue_offset: 5,
        stored: Stored::Fully,
    };
    assert_eq!(sent, expected);
}

/// client-behaviour 11: 10, 11 and 12 are stored.
#[test]
fn a_message_that_is_stored_but_not_confirmed_is_not_sent_again() {
    for (answer, stored) in [
        (10, Stored::FlushTimedOut),
        (11, Stored::NoSlave),
        (12, Stored::SlaveTimedOut),
    ] {
        let server = Server::with_topic(4, move |_, asked| {
            (asked.code == 310).then(|| Reply {
                ext: vec![
                    ("msgId", "x".to_owned()),
                    ("queueId", "1".to_owned()),
                    ("queueOffset", "7".to_owned()),
                ],
                ..code(answer)
            })
        });
        let sent = send(&options(&server.name_servers(), TOPIC)).unwrap();
        assert_eq!((sent.stored, sent.queue_offset), (stored, 7));
        assert!(stored.to_string().contains(&answer.to_string()));
        assert_eq!(server.state().all(RequestCode::SEND_MESSAGE_V2).len(), 1);
    }
}

/// remoting 7: 5.x tries 1, 2, 14, 16, 17, 204, 205 and 1500 at another broker, others nowhere.
#[test]
fn a_broker_that_cannot_is_replaced_by_one_that_can() {
    for (answer, is_retried) in [
        (1, true),
        (2, true),
        (14, true),
        (16, true),
        (17, true),
        (204, true),
        (205, true),
        (1500, true),
        (13, false),
        (29, false),
    ] {
        let good = Server::with_topic(1, no_script);
        let bad = Server::with_topic(1, move |_, asked| {
            (asked.code == 310).then(|| Reply {
                remark: Some("its reason"),
                ..code(answer)
            })
        });
        let both = route(&[("bad", &bad.address), ("good", &good.address)], 2);
        good.state().routes.insert(TOPIC.to_owned(), both);
        // The first queue is random: so often that the bad broker had its turn almost surely.
        let results: Vec<_> = (0..32)
            .map(|_| send(&options(&good.name_servers(), TOPIC)))
            .collect();
        let count = bad.state().all(RequestCode::SEND_MESSAGE_V2).len();
        assert!(count > 0);
        if is_retried {
            assert!(
                results
                    .iter()
                    .all(|sent| sent.as_ref().unwrap().broker == "good")
            );
            continue;
        }
        let errors: Vec<_> = results
            .iter()
            .filter_map(|sent| sent.as_ref().err())
            .collect();
        assert_eq!(errors.len(), count, "each was tried once");
        let text = errors[0].to_string();
        assert!(text.contains(&format!("code {answer} ")), "{text}");
        assert!(
            text.contains("its reason") && text.contains(&bad.address),
            "{text}"
        );
    }
}

#[test]
fn errors_say_cause_and_cure() {
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = gone.local_addr().unwrap().to_string();
    drop(gone);
    let text = send(&options(std::slice::from_ref(&address), TOPIC))
        .unwrap_err()
        .to_string();
    assert!(
        text.contains(&address) && text.contains("refused"),
        "{text}"
    );
    assert!(text.contains("`ringmq standalone`"), "{text}");

    let server = Server::start(no_script);
    let name_servers = [address.clone(), server.address.clone()];
    for _ in 0..8 {
        // The other name server is asked whichever is the first.
        let error = send(&options(&name_servers, TOPIC)).unwrap_err();
        assert!(matches!(error, ClientError::NotCreated { .. }), "{error}");
    }
    let gone = route(&[("b", &address)], 1);
    server.state().routes.insert(TOPIC.to_owned(), gone);
    let text = send(&options(&name_servers, TOPIC))
        .unwrap_err()
        .to_string();
    assert!(
        text.contains(&address) && text.contains("brokerIP1"),
        "{text}"
    );

    let names = server.name_servers();
    let good = options(&names, TOPIC);
    for (bad, part) in [
        (
            SendOptions {
                topic: "a b",
                ..good
            },
            "topic \"a b\"",
        ),
        (SendOptions { topic: "", ..good }, "topic"),
        (SendOptions { body: b"", ..good }, "body"),
        (
            SendOptions {
                tag: Some("a\x01b"),
                ..good
            },
            "tag",
        ),
        (
            SendOptions {
                key: Some(""),
                ..good
            },
            "key",
        ),
        (
            SendOptions {
                key: Some(&"k".repeat(40_000)),
                ..good
            },
            "at most 32767",
        ),
        (
            SendOptions {
                body: &vec![1; (4 << 20) + 1],
                ..good
            },
            "at most 4194304",
        ),
    ] {
        let text = send(&bad).unwrap_err().to_string();
        assert!(text.contains(part), "{text}");
    }
}

/// client-behaviour 5: AVG and its two examples.
#[test]
fn queues_are_shared_as_java_shares_them() {
    let cases: [(i32, usize, &[std::ops::Range<i32>]); 4] = [
        (8, 3, &[0..3, 3..6, 6..8]),
        (2, 3, &[0..1, 1..2, 2..2]),
        (3, 1, std::slice::from_ref(&(0..3))),
        (4, 2, &[0..2, 2..4]),
    ];
    for (count, members, shares) in cases {
        let all = queues("b", 0..count);
        let members: Vec<_> = (0..members).map(|member| member.to_string()).collect();
        for (at, ids) in shares.iter().enumerate() {
            let mine = share(&all, &members, &at.to_string());
            assert_eq!(
                mine,
                queues("b", ids.clone()),
                "{count} queues, member {at}"
            );
        }
        assert!(share(&all, &members, "a stranger").is_empty());
    }
}

/// client-behaviour 2.2.
#[test]
fn only_queues_that_can_be_used_are_in_the_lists() {
    let text = r#"{"brokerDatas":[
        {"brokerAddrs":{"0":"h:1"},"brokerName":"b"},{"brokerAddrs":{"0":"h:2"},"brokerName":"a"},
        {"brokerAddrs":{"1":"h:3"},"brokerName":"slave"}],
        "queueDatas":[
        {"brokerName":"b","perm":2,"readQueueNums":3,"writeQueueNums":2},
        {"brokerName":"a","perm":6,"readQueueNums":2,"writeQueueNums":1},
        {"brokerName":"slave","perm":6,"readQueueNums":1,"writeQueueNums":1},
        {"brokerName":"unknown","perm":6,"readQueueNums":1,"writeQueueNums":1}]}"#;
    let mut route: TopicRouteData = fastjson::from_slice(text.as_bytes()).unwrap();
    let written = [queues("a", 0..1), queues("b", 0..2)].concat();
    assert_eq!(write_queues(TOPIC, &route), written);
    let read = [queues("a", 0..2), queues("slave", 0..1)].concat();
    assert_eq!(read_queues(TOPIC, &route), read);
    route.order_topic_conf = Some("b:1;slave:2".to_owned());
    let ordered = [queues("b", 0..1), queues("slave", 0..2)].concat();
    assert_eq!(write_queues(TOPIC, &route), ordered);
}

/// Receives without following; the bodies, and how it ended.
fn read_all(server: &Server) -> (Vec<String>, Result<u64, ClientError>) {
    let mut bodies = Vec::new();
    let result = run(server, false, &AtomicBool::new(false), &mut |message| {
        bodies.push(String::from_utf8_lossy(&message.body).into_owned());
        Ok(())
    });
    bodies.sort();
    (bodies, result)
}

fn run(
    server: &Server,
    follow: bool,
    stop: &AtomicBool,
    output: &mut dyn FnMut(&Received<'_>) -> io::Result<()>,
) -> Result<u64, ClientError> {
    let options = ReceiveOptions {
        name_servers: &server.name_servers(),
        topic: TOPIC,
        group: "g",
        follow,
        stop,
    };
    receive(&options, output)
}

#[test]
fn what_is_unread_at_the_start_is_received_once_and_committed() {
    // A message that arrives meanwhile is left for the next time.
    let mut pulls = 0;
    let server = Server::with_topic(2, move |state, asked| {
        if asked.code == 11 {
            pulls += 1;
            if pulls == 1 {
                state.store(0, b"late", "t", 0);
            }
        }
        None
    });
    for (queue, body) in [(0, "a"), (0, "b"), (1, "c")] {
        server.state().store(queue, body.as_bytes(), "t", 0);
    }
    let (bodies, result) = read_all(&server);
    assert_eq!((bodies.join(","), result.unwrap()), ("a,b,c".to_owned(), 3));
    assert_eq!(server.state().committed, [(0, 2), (1, 1)].into());
    let (bodies, result) = read_all(&server);
    assert_eq!((bodies.join(","), result.unwrap()), ("late".to_owned(), 1));
    let (_, result) = read_all(&server);
    assert_eq!(result.unwrap(), 0);
    let left = server.state().all(RequestCode::UNREGISTER_CLIENT);
    assert_eq!(left.len(), 3);
    assert_eq!(left[0].ext("consumerGroup"), "g");
    let by_committed = server.state().all(RequestCode::GET_MIN_OFFSET);
    assert_eq!(
        by_committed.len(),
        2,
        "only a new group asks for the oldest message"
    );
}

/// broker-requests 4.1 and 6.
#[test]
fn a_member_says_what_it_wants() {
    let server = Server::with_topic(1, no_script);
    server.state().store(0, b"a", "t", 0);
    read_all(&server).1.unwrap();
    let pull = &server.state().all(RequestCode::PULL_MESSAGE)[0];
    for (name, value) in [
        ("consumerGroup", "g"),
        ("topic", TOPIC),
        ("queueId", "0"),
        ("queueOffset", "0"),
        ("maxMsgNums", "32"),
        ("sysFlag", "4"),
        ("subscription", "*"),
        ("expressionType", "TAG"),
    ] {
        assert_eq!(pull.ext(name), value, "{name}");
    }
    let heartbeat = &server.state().all(RequestCode::HEART_BEAT)[0];
    let body: serde_json::Value = serde_json::from_slice(&heartbeat.body).unwrap();
    let group = &body["consumerDataSet"][0];
    assert_eq!(group["groupName"], "g");
    assert_eq!(group["messageModel"], "CLUSTERING");
    assert_eq!(group["consumeType"], "CONSUME_PASSIVELY");
    let topics = group["subscriptionDataSet"].as_array().unwrap();
    let topics: Vec<_> = topics
        .iter()
        .map(|topic| topic["topic"].as_str().unwrap())
        .collect();
    assert_eq!(topics, [TOPIC, "%RETRY%g"]);
    assert_eq!(topics.len(), 2);
}

#[test]
fn a_message_is_handed_on_with_all_it_has_and_unpacked() {
    let server = Server::with_topic(3, no_script);
    let mut packed = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::new(5));
    packed.write_all(&[b'x'; 5000]).unwrap();
    let packed = packed.finish().unwrap();
    // remoting 12: bit 0 with no type or type 3 is zlib, type 1 is LZ4.
    server.state().store(0, &packed, "TagZ", 0x1);
    server.state().store(1, &packed, "TagZ", 0x301);
    server.state().store(2, b"lz4", "TagZ", 0x101);
    let mut count = 0;
    let received = run(&server, false, &AtomicBool::new(false), &mut |message| {
        count += 1;
        assert_eq!(message.topic, TOPIC);
        assert_eq!(message.tag, Some("TagZ"));
        assert_eq!(message.keys, None);
        assert_eq!(message.msg_id, format!("ID-{}", message.queue_id));
        assert_eq!(
            message.offset_id.as_str(),
            "7F00000100002A9F0000000000000000"
        );
        assert_eq!((message.broker, message.queue_offset), ("b", 0));
        assert_eq!(message.born_ms, 1_700_000_000_000);
        assert_eq!(message.stored_ms, 1_700_000_000_001);
        if message.queue_id < 2 {
            assert_eq!((message.body.len(), message.packing), (5000, None));
        } else {
            assert_eq!(&*message.body, b"lz4");
            assert_eq!(message.packing, Some(Packing::Lz4));
        }
        Ok(())
    });
    assert_eq!((received.unwrap(), count), (3, 3));
}

#[test]
fn a_message_that_could_not_be_passed_on_stays_unread() {
    let server = Server::with_topic(1, no_script);
    for body in ["a", "b", "c"] {
        server.state().store(0, body.as_bytes(), "t", 0);
    }
    let error = run(
        &server,
        false,
        &AtomicBool::new(false),
        &mut |message| match &*message.body {
            b"b" => Err(io::ErrorKind::BrokenPipe.into()),
            _ => Ok(()),
        },
    );
    assert!(matches!(error, Err(ClientError::Output(_))));
    assert_eq!(server.state().committed, [(0, 1)].into());
    assert_eq!(server.state().all(RequestCode::UNREGISTER_CLIENT).len(), 1);
    assert_eq!(read_all(&server).0, ["b", "c"]);
}

#[test]
fn a_name_server_may_close_its_connection() {
    let broker = Server::with_topic(1, no_script);
    broker.state().store(0, b"a", "t", 0);
    let route = route(&[("b", &broker.address)], 1);
    let name_server = Server::start(move |_, asked| {
        let reply = Reply {
            body: route.clone().into_bytes(),
            then_hang_up: true,
            ..Reply::default()
        };
        (asked.ext("topic") == TOPIC).then_some(reply)
    });
    assert_eq!(read_all(&name_server).0, ["a"]);
}

/// broker-requests 4.3: 21 says where to go on, even backwards.
#[test]
fn an_offset_that_is_not_there_moves() {
    let server = Server::with_topic(1, no_script);
    server.state().store(0, b"a", "t", 0);
    server.state().committed.insert(0, 9);
    assert_eq!(read_all(&server).1.unwrap(), 0);
    assert_eq!(server.state().committed, [(0, 1)].into());
    let mut moved = false;
    let server = Server::with_topic(1, move |_, asked| {
        (asked.code == 11 && !std::mem::replace(&mut moved, true)).then(|| Reply {
            ext: vec![
                ("suggestWhichBrokerId", "0".to_owned()),
                ("nextBeginOffset", "1".to_owned()),
                ("minOffset", "1".to_owned()),
                ("maxOffset", "2".to_owned()),
            ],
            ..code(21)
        })
    });
    server.state().store(0, b"deleted", "t", 0);
    server.state().store(0, b"kept", "t", 0);
    assert_eq!(read_all(&server).0, ["kept"]);
    assert_eq!(server.state().committed, [(0, 2)].into());
}

#[test]
fn members_share_the_queues() {
    let server = Server::with_topic(3, no_script);
    for (queue, body) in ["a", "b", "c"].iter().enumerate() {
        server.state().store(queue, body.as_bytes(), "t", 0);
    }
    // Sorts before every address, so it has the first two of three queues.
    server.state().members.push("!other".to_owned());
    assert_eq!(read_all(&server).0, ["c"]);
    assert_eq!(server.state().committed, [(2, 1)].into());
}

#[test]
fn following_goes_on_after_lost_connections_and_new_members_until_it_is_stopped() {
    let stop = AtomicBool::new(false);
    let mut pulls = 0;
    let server = Server::with_topic(2, move |state, asked| {
        if asked.code != 11 {
            return None;
        }
        pulls += 1;
        match pulls {
            1 => {
                // A member that is gone when its queues have been given up for it.
                state.members.push("!other".to_owned());
                let group = vec![("consumerGroup", "g".to_owned())];
                let offset = state.answer_19(asked);
                Some(Reply {
                    push: vec![(40, group, Vec::new())],
                    ..offset
                })
            }
            6 => {
                state.members.retain(|member| member != "!other");
                state.committed.clear();
                Some(Reply {
                    hang_up: true,
                    ..Reply::default()
                })
            }
            12 => {
                state.store(0, b"at last", "t", 0);
                None
            }
            _ => None,
        }
    });
    server.state().committed = [(0, 0), (1, 0)].into();
    let received = run(&server, true, &stop, &mut |message| {
        assert_eq!(&*message.body, b"at last");
        stop.store(true, Ordering::Relaxed);
        Ok(())
    });
    assert_eq!(received.unwrap(), 1);
    assert_eq!(server.state().committed, [(0, 1), (1, 0)].into());
    let pulls = server.state().all(RequestCode::PULL_MESSAGE);
    assert_eq!(pulls[0].ext("sysFlag"), "6");
    assert_eq!(pulls[0].ext("suspendTimeoutMillis"), "15000");
    let ids: Vec<_> = pulls.iter().map(|pull| pull.ext("queueId")).collect();
    assert_eq!(ids[2..6], ["1"; 4], "the other member has queue 0");
    assert!(ids[6..].contains(&"0"), "it is gone");
    let heartbeats = server.state().all(RequestCode::HEART_BEAT);
    assert!(heartbeats.len() >= 2, "a broker that comes back is told");
}

/// broker-requests 14 and 221; others are not supported (3).
#[test]
fn a_broker_can_move_a_member_and_ask_where_it_is() {
    let stop = AtomicBool::new(false);
    let mut pulls = 0;
    let server = Server::with_topic(1, move |state, asked| {
        if asked.code != 11 {
            return None;
        }
        pulls += 1;
        let group = || vec![("topic", TOPIC.to_owned()), ("group", "g".to_owned())];
        let table = br#"{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:1}}"#;
        (pulls == 2).then(|| Reply {
            push: vec![
                (221, group(), Vec::new()),
                (307, Vec::new(), Vec::new()),
                (220, group(), table.to_vec()),
            ],
            ..state.answer_19(asked)
        })
    });
    server.state().store(0, b"a", "t", 0);
    server.state().store(0, b"b", "t", 0);
    let mut bodies = Vec::new();
    run(&server, true, &stop, &mut |message| {
        bodies.push(message.body.to_vec());
        stop.store(bodies.len() == 3, Ordering::Relaxed);
        Ok(())
    })
    .unwrap();
    assert_eq!(bodies, [b"a", b"b", b"b"]);
    let answered = server.state().answered.clone();
    let table = br#"{"messageQueueTable":{{"brokerName":"b","queueId":0,"topic":"T"}:2}}"#;
    assert_eq!(answered[0], (0, table.to_vec()));
    assert_eq!(answered[1].0, 3);
    assert_eq!(answered.len(), 2, "220 is one-way");
}

#[test]
fn receiving_says_what_is_missing() {
    let server = Server::start(no_script);
    let error = read_all(&server).1.unwrap_err();
    assert!(matches!(error, ClientError::UnknownTopic { .. }), "{error}");
    let server = Server::with_topic(1, |_, asked| {
        (asked.code == 11).then(|| Reply {
            remark: Some("the group may not"),
            ..code(16)
        })
    });
    server.state().store(0, b"a", "t", 0);
    // No permission ends the following as well.
    for follow in [false, true] {
        let never = AtomicBool::new(false);
        let error = run(&server, follow, &never, &mut |_| Ok(()))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("16 NO_PERMISSION, the group may not"),
            "{error}"
        );
    }
    for group in ["", "a b", &"g".repeat(249)] {
        let options = ReceiveOptions {
            name_servers: &[],
            topic: TOPIC,
            group,
            follow: false,
            stop: &AtomicBool::new(false),
        };
        let error = receive(&options, &mut |_| Ok(())).unwrap_err();
        assert!(
            matches!(error, ClientError::Name { what: "group", .. }),
            "{error}"
        );
    }
}

#[test]
fn a_message_id_counts_from_the_first_of_the_month() {
    // The 15th of a month lies 14 to 15 days after its first, whatever the time zone.
    let day = 24 * 3600 * 1000;
    let noon_of_june_15_2024 = 1_718_452_800_000;
    let ms = i64::from(month_ms(noon_of_june_15_2024));
    assert!(
        (13 * day + day / 2..=15 * day + day / 2).contains(&ms),
        "{ms}"
    );
    let noon_of_june_29_2024 = noon_of_june_15_2024 + 14 * day;
    let wrapped = i64::from(month_ms(noon_of_june_29_2024) as u32);
    assert_eq!(wrapped, ms + 14 * day, "more than 2^31 ms");
}
