//! Requests that cross cores: to the queue's owner, to control, and back.

use shards::mesh::EdgeSize;

use super::world::*;
use crate::ids::{LogOffset, QueueKey};
use crate::role::{self, CONTROL, INDEX, Letter, Mark, SHARD_0};
use crate::wire::{Encoding, Frame, RequestCode, ResponseCode, Scratch, encode_response};
use crate::wire::{ResponseHead, encode_request};

fn code(number: i32) -> ResponseCode {
    ResponseCode(number)
}

fn two() -> World {
    let setup = Setup {
        shards: 2,
        ..Setup::default()
    };
    setup.build()
}

/// Queue 0 is owned by shard 0, queue 1 by shard 1.
#[test]
fn each_shard_answers_for_every_queue() {
    let mut world = two();
    for queue in ["0", "1"] {
        world.fill(queue, 2);
        for core in [0, 1] {
            let mut ask = |request: i32, fields: &Fields<'_>| {
                let got =
                    world.ask_with(conn(core, 0), |_| {}, request, fields, b"", Encoding::Json);
                got.unwrap_or_else(|| panic!("{request} {fields:?} from {core}"))
            };
            let got = ask(11, &World::pull_fields("T", queue, "0"));
            assert_eq!(
                (got.code, got.bodies()),
                (code(0), vec!["m0".into(), "m1".into()])
            );
            let fields = vec![("topic", "T"), ("queueId", queue)];
            assert_eq!(ask(30, &fields).field("offset"), "2");
            assert_ne!(ask(32, &fields).field("timestamp"), "-1");
            assert_eq!(
                ask(29, &with(fields.clone(), "timestamp", "0")).field("offset"),
                "0"
            );
            let fields = with(fields, "consumerGroup", "G");
            let offset = core.to_string();
            assert_eq!(
                ask(15, &with(fields.clone(), "commitOffset", &offset)).code,
                code(0)
            );
            assert_eq!(ask(14, &fields).field("offset"), offset);
        }
    }
    assert_eq!(world.told, [], "all without control");
}

#[test]
fn offsets_of_unknown_queues_live_with_the_owner_of_queue_0() {
    let mut world = two();
    for (core, queue) in [(0, "99"), (1, "-7")] {
        let fields = vec![("topic", "T"), ("queueId", queue), ("consumerGroup", "G")];
        let commit = with(fields.clone(), "commitOffset", "5");
        world.ask_with(conn(core, 0), |_| {}, 15, &commit, b"", Encoding::Json);
        for core in [0, 1] {
            let got = world.ask_with(conn(core, 0), |_| {}, 14, &fields, b"", Encoding::Json);
            assert_eq!(got.unwrap().field("offset"), "5");
        }
    }
}

#[test]
fn a_held_pull_wakes_its_connection_on_the_other_core() {
    let mut world = two();
    let fields = with(World::pull_fields("T", "1", "0"), "sysFlag", "6");
    assert_eq!(world.try_ask(11, &fields, b""), None);
    world.fill("1", 1);
    let got = world.got.last().unwrap();
    assert_eq!(
        (got.conn, got.bodies()),
        (conn(0, 0), vec!["m0".to_string()])
    );
    let fields = with(fields, "queueOffset", "1");
    assert_eq!(world.try_ask(11, &fields, b""), None);
    world.pass(15_000);
    assert_eq!(world.got.last().unwrap().code, code(19));
    assert_eq!(world.try_ask(11, &fields, b""), None);
    world.close(conn(0, 0));
    let answers = world.got.len();
    assert_eq!(world.deadline(1), None, "its owner has dropped it");
    world.dispatches = true;
    world.open(conn(1, 5));
    let send = World::send_fields("T", "1");
    world.ask_with(conn(1, 5), |_| {}, 310, &send, b"x", Encoding::Json);
    assert_eq!(world.got.len(), answers + 1);
}

#[test]
fn a_cold_pull_of_another_core_comes_from_the_file() {
    let mut world = two();
    world.fill("1", 5);
    world.dispatches = false;
    world.fill("1", 1);
    world.mark(Mark::Visible(LogOffset(world.log.len() as u64)));
    world.tell_readable(QueueKey(1), &[]);
    let got = world.pull("1", "0");
    assert_eq!(got.bodies(), ["m0", "m1", "m2", "m3", "m4", "m0"]);
    assert_eq!(world.reads, 1);
}

/// Edges of one letter: everything still gets its answer.
#[test]
fn full_edges_between_shards_lose_nothing() {
    let size = |from: crate::ids::RoleId, to: crate::ids::RoleId| {
        let mut size = role::edge(from, to).unwrap();
        if from >= SHARD_0 && to >= SHARD_0 {
            size = EdgeSize {
                letters: 1,
                lane_bytes: 1024,
            };
        }
        size
    };
    let setup = Setup {
        shards: 2,
        size,
        ..Setup::default()
    };
    let mut world = setup.build();
    let fields = with(World::pull_fields("T", "1", "0"), "sysFlag", "6");
    for _ in 0..100 {
        assert_eq!(world.try_ask(11, &fields, b""), None);
    }
    world.fill("1", 1);
    world.pass(1);
    let found = world
        .got
        .iter()
        .filter(|got| got.code == code(0) && !got.body.is_empty());
    assert_eq!(found.count(), 100);
}

#[test]
fn what_control_answers_reaches_the_connection() {
    let mut world = World::new();
    assert_eq!(world.try_ask(34, &[], b"{}"), None);
    let (from, to, letter, payload) = world.told.pop().unwrap();
    let Letter::Forward { conn: asker, peer } = letter else {
        panic!("{letter:?}")
    };
    assert_eq!((from, to, asker), (role::shard(0), CONTROL, conn(0, 0)));
    assert_eq!(peer, "127.0.0.1:44756".parse().unwrap());
    let mut scratch = Scratch::new();
    let frame = Frame::decode(&payload, &mut scratch).unwrap();
    assert_eq!(
        (frame.header.request_code(), frame.body),
        (RequestCode(34), &b"{}"[..])
    );
    let head = ResponseHead {
        code: code(0),
        opaque: frame.header.opaque,
    };
    let body = vec![b'y'; 150_000];
    let mut answer = vec![];
    encode_response(&mut answer, Encoding::Json, &head, None, body.len(), |_| {});
    answer.extend_from_slice(&body);
    // A call of control to the client comes in between; pieces belong to one connection.
    let mut call = vec![];
    let request = crate::wire::RequestHead::new(RequestCode(40), 1).oneway();
    encode_request(&mut call, Encoding::Json, &request, None, 0, |_| {});
    world.open(conn(0, 3));
    let pieces: Vec<&[u8]> = answer.chunks(60_000).collect();
    for (number, piece) in pieces.iter().enumerate() {
        let more = number + 1 < pieces.len();
        let head = piece.len() as u32;
        let conn = conn(0, 0);
        world.letter(0, CONTROL, Letter::Reply { conn, head, more }, piece);
        if number == 0 {
            let (conn, head) = (self::conn(0, 3), call.len() as u32);
            let letter = Letter::Reply {
                conn,
                head,
                more: false,
            };
            world.letter(0, CONTROL, letter, &call);
        }
    }
    assert_eq!(world.got.len(), 2);
    assert_eq!(world.got[0].conn, conn(0, 3));
    assert_eq!(world.got[1].body, body);
    // To a connection that is gone: nothing.
    world.close(conn(0, 0));
    let gone: Vec<_> = world.told.iter().map(|told| told.2).collect();
    assert_eq!(gone, [Letter::Gone { conn: conn(0, 0) }]);
    let letter = Letter::Reply {
        conn: conn(0, 0),
        head: call.len() as u32,
        more: false,
    };
    world.letter(0, CONTROL, letter, &call);
    assert_eq!(world.got.len(), 2);
}

#[test]
fn an_answer_in_pieces_that_never_ends_closes_its_connection() {
    let mut world = World::new();
    let piece = vec![0; 60_000];
    let letter = Letter::Reply {
        conn: conn(0, 0),
        head: piece.len() as u32,
        more: true,
    };
    for _ in 0..300 {
        world.letter(0, CONTROL, letter, &piece);
    }
    assert_eq!(world.closed, [conn(0, 0)]);
}

#[test]
fn codes_go_their_way() {
    let mut world = World::new();
    for (request, remark) in [
        (36, "messages back"),
        (37, "transactional"),
        (41, "locks"),
        (42, "locks"),
        (324, "request-reply"),
        (325, "request-reply"),
        (400, "queue assignment"),
        (200_050, "POP"),
        (200_051, "POP"),
        (200_151, "POP"),
    ] {
        let got = world.ask(request, &[], b"");
        assert_eq!(got.code, code(3), "{request}");
        assert!(
            got.remark()
                .starts_with(&format!(" request type {request} not supported"))
        );
        assert!(got.remark().contains(remark), "{got:?}");
    }
    let got = world.ask(99_999, &[], b"");
    assert_eq!(
        (got.code, got.remark()),
        (code(3), " request type 99999 not supported")
    );
    let got = world.ask(0, &[], b"");
    assert_eq!(got.remark(), " request type 0 not supported", "row 434");
    for request in [
        34, 35, 38, 17, 215, 21, 26, 28, 200, 201, 202, 203, 208, 307, 351,
    ] {
        assert_eq!(world.try_ask(request, &[], b""), None, "{request}");
        let (_, to, letter, _) = world.told.pop().unwrap();
        assert_eq!(to, CONTROL);
        assert!(matches!(letter, Letter::Forward { .. }), "{request}");
    }
    let long = vec![0; crate::limits::FORWARD_BYTES_MAX];
    assert_eq!(world.ask(17, &[], &long).code, code(1));
}

#[test]
fn a_broken_frame_closes_and_an_answer_is_ignored() {
    let mut world = World::new();
    let bytes = b"\0\0\0\x05nope!";
    world.hear(
        0,
        role::Input::Frame {
            conn: conn(0, 0),
            bytes,
        },
    );
    assert_eq!(world.closed, [conn(0, 0)]);
    world.open(conn(0, 1));
    let answer = |head: &mut crate::wire::RequestHead| head.flag = 1;
    let got = world.ask_with(conn(0, 1), answer, 11, &[], b"", Encoding::Json);
    assert_eq!(got, None, "row 455");
    let answer = |head: &mut crate::wire::RequestHead| head.flag = 3;
    assert_eq!(
        world.ask_with(conn(0, 1), answer, 11, &[], b"", Encoding::Json),
        None
    );
    assert_eq!(world.closed.len(), 1);
}

#[test]
fn too_many_look_ups_are_answered_busy() {
    let mut world = World::new();
    let fields = [
        ("topic", "T"),
        ("key", "k"),
        ("maxNum", "1"),
        ("beginTimestamp", "0"),
        ("endTimestamp", "9"),
    ];
    for _ in 0..crate::limits::SHARD_FLOWS_MAX {
        assert_eq!(world.try_ask(12, &fields, b""), None);
    }
    let got = world.ask(12, &fields, b"");
    assert_eq!(got.code, code(2));
    assert!(world.told.iter().all(|told| told.1 == INDEX));
}
