//! The rules of registration, liveness and look-up, and the bodies that 5.3.3 answered with.

use std::io::Write;

use flate2::Compression;
use flate2::write::ZlibEncoder;

use super::*;
use crate::wire::bodies::RegisterBody;
use crate::wire::fastjson::to_ascii_vec;

/// Body of the first registration of a 5.3.3 broker, shortened to four of its topics.
const BODY: &[u8] = br#"{"filterServerList":[],"topicConfigSerializeWrapper":{
"dataVersion":{"counter":0,"stateVersion":0,"timestamp":1795985042663},
"mappingDataVersion":{"counter":0,"stateVersion":0,"timestamp":1795985044517},
"topicConfigTable":{
"RMQ_SYS_TRANS_HALF_TOPIC":{"attributes":{},"order":false,"perm":6,"readQueueNums":1,
"topicFilterType":"SINGLE_TAG","topicName":"RMQ_SYS_TRANS_HALF_TOPIC","topicSysFlag":0,
"writeQueueNums":1},
"TBW102":{"attributes":{},"order":false,"perm":7,"readQueueNums":8,
"topicFilterType":"SINGLE_TAG","topicName":"TBW102","topicSysFlag":0,"writeQueueNums":8},
"rmq_sys_SYNC_BROKER_MEMBER_broker-a":{"attributes":{},"order":false,"perm":1,
"readQueueNums":1,"topicFilterType":"SINGLE_TAG",
"topicName":"rmq_sys_SYNC_BROKER_MEMBER_broker-a","topicSysFlag":0,"writeQueueNums":1},
"broker-a":{"attributes":{},"order":false,"perm":7,"readQueueNums":1,
"topicFilterType":"SINGLE_TAG","topicName":"broker-a","topicSysFlag":0,"writeQueueNums":1}},
"topicQueueMappingDetailMap":{},"topicQueueMappingInfoMap":{}}}"#;

const ADDRESS: &str = "127.0.0.1:20911";

fn key(address: &str) -> BrokerKey {
    BrokerKey {
        cluster: "DefaultCluster".to_owned(),
        address: address.to_owned(),
    }
}

fn topic(name: &str, perm: i32) -> (String, TopicConfig) {
    let topic_name = name.to_owned();
    (
        name.to_owned(),
        TopicConfig {
            topic_name,
            perm,
            ..TopicConfig::default()
        },
    )
}

fn version(counter: i64) -> DataVersion {
    DataVersion {
        counter,
        state_version: 0,
        timestamp: 1_700_000_000_000,
    }
}

fn registration(address: &str, id: i64, topics: &[&str]) -> Registration {
    Registration {
        broker: key(address),
        broker_name: "broker-a".to_owned(),
        broker_id: id,
        ha_address: format!("{address}-ha"),
        zone_name: None,
        heartbeat_timeout_ms: None,
        enable_acting_master: Some(false),
        data_version: version(1),
        topics: topics.iter().map(|name| topic(name, 6)).collect(),
        filter_servers: vec![],
        connection: 1,
    }
}

fn golden_registration() -> Registration {
    let body = RegisterBody::decode(BODY, false, 479).expect("a captured body");
    let table = body.topic_config_serialize_wrapper;
    Registration {
        data_version: table.data_version,
        topics: table.topic_config_table,
        filter_servers: body.filter_server_list,
        ..registration(ADDRESS, 0, &[])
    }
}

fn routes(settings: RouteSettings) -> Routes {
    Routes::new(settings, RouteLimits::default())
}

fn with(registrations: &[Registration]) -> Routes {
    let mut routes = routes(RouteSettings::default());
    for registration in registrations {
        routes.register(registration, 0).expect("a registration");
    }
    routes
}

fn route(routes: &Routes, topic: &str) -> Option<TopicRouteData> {
    routes.route(&RouteQuestion {
        topic,
        zone: None,
        order_conf: None,
    })
}

fn perm_of(routes: &Routes, topic: &str) -> i32 {
    route(routes, topic).expect("a route").queue_datas[0].perm
}

/// The counter of queue data is what the tables hold.
fn check_count(routes: &Routes) {
    let counted: usize = routes.topics.values().map(BTreeMap::len).sum();
    assert_eq!(routes.queue_datas, counted);
    assert!(routes.topics.values().all(|queues| !queues.is_empty()));
    assert!(
        routes
            .brokers
            .values()
            .all(|data| !data.broker_addrs.is_empty())
    );
}

#[test]
fn a_registered_broker_is_shown_as_5_3_3_shows_it() {
    let routes = with(&[golden_registration()]);
    let body = to_ascii_vec(&route(&routes, "TBW102").expect("a route"));
    assert_eq!(
        String::from_utf8_lossy(&body),
        concat!(
            r#"{"brokerDatas":[{"brokerAddrs":{"0":"127.0.0.1:20911"},"brokerName":"broker-a","#,
            r#""cluster":"DefaultCluster","enableActingMaster":false}],"filterServerTable":{},"#,
            r#""queueDatas":[{"brokerName":"broker-a","perm":7,"readQueueNums":8,"#,
            r#""topicSysFlag":0,"writeQueueNums":8}]}"#
        )
    );
    // As captured, but for the quotes around the broker id (namesrv 1).
    assert_eq!(
        String::from_utf8_lossy(&to_ascii_vec(&routes.cluster_info())),
        concat!(
            r#"{"brokerAddrTable":{"broker-a":{"brokerAddrs":{"0":"127.0.0.1:20911"},"#,
            r#""brokerName":"broker-a","cluster":"DefaultCluster","enableActingMaster":false}},"#,
            r#""clusterAddrTable":{"DefaultCluster":["broker-a"]}}"#
        )
    );
    assert_eq!(
        to_ascii_vec(&routes.system_topics()),
        br#"{"brokerAddr":"127.0.0.1:20911","topicList":["DefaultCluster","broker-a"]}"#
    );
    assert_eq!(
        to_ascii_vec(&routes.topics(TopicKind::Unit)),
        br#"{"topicList":[]}"#
    );
    assert_eq!(
        to_ascii_vec(&routes.member_group("zz", "zz")),
        br#"{"brokerMemberGroup":{"brokerAddrs":{},"brokerName":"zz","cluster":"zz"}}"#
    );
    assert_eq!(route(&routes, "CapTopic"), None);
    assert_eq!(routes.topics(TopicKind::All).topic_list.len(), 4);
    assert_eq!((routes.broker_count(), routes.topic_count()), (1, 4));
    check_count(&routes);
}

#[test]
fn order_settings_and_text_beyond_ascii_are_strict_json() {
    let mut one = registration("a:1", 0, &["T", "U"]);
    one.zone_name = Some("zé😀".to_owned());
    let routes = with(&[one]);
    let question = RouteQuestion {
        topic: "T",
        zone: None,
        order_conf: Some("broker-a:4"),
    };
    let body = to_ascii_vec(&routes.route(&question).expect("a route"));
    let text = String::from_utf8(body).expect("text");
    assert!(
        text.contains(r#""zoneName":"z\u00e9\ud83d\ude00"}"#),
        "{text}"
    );
    assert!(text.contains(r#""filterServerTable":{},"orderTopicConf":"broker-a:4","queueDatas""#));
}

/// errors 584, 590, and namesrv 2.2.1.
#[test]
fn bodies_may_leave_out_what_they_like() {
    for body in [&b""[..], b"{}", br#"{"topicConfigSerializeWrapper":null}"#] {
        assert_eq!(
            RegisterBody::decode(body, false, 479).expect("a body"),
            RegisterBody::default()
        );
    }
    assert!(RegisterBody::decode(b"zz", false, 479).is_err());
    let bare =
        br#"{"dataVersion":{"counter":1,"timestamp":2},"topicConfigTable":{"T":{"perm":4}}}"#;
    let body = RegisterBody::decode(bare, false, 36).expect("the bare topics of an old sender");
    let table = body.topic_config_serialize_wrapper;
    assert_eq!(
        table.data_version,
        DataVersion {
            counter: 1,
            state_version: 0,
            timestamp: 2
        }
    );
    assert_eq!(table.topic_config_table["T"].perm, 4);
}

/// The body that a 5.3.3 broker with `compressedRegister` sent, inflated, first and last parts.
#[test]
fn the_compressed_form_is_read() {
    let mut body = Vec::new();
    body.extend(b"\x00\x00\x009{\"counter\":45,\"stateVersion\":0,\"timestamp\":1795985480005}");
    body.extend(b"\x00\x00\x00\x02");
    body.extend(b"\x00\x00\x00$%RETRY%Cap_POPCG 1 1 6 SINGLE_TAG {}");
    body.extend(b"\x00\x00\x00'BenchmarkTest 1024 1024 6 SINGLE_TAG {}");
    body.extend(b"\x00\x00\x00\x02[]\x00\x00\x00\x00");
    let read = |body: &[u8]| RegisterBody::decode(&deflated(body), true, 479);
    let whole = read(&body).expect("a captured body");
    let table = whole.topic_config_serialize_wrapper;
    assert_eq!(
        (table.data_version.counter, table.data_version.timestamp),
        (45, 1_795_985_480_005)
    );
    let topics = &table.topic_config_table;
    assert_eq!(topics["BenchmarkTest"].write_queue_nums, 1_024);
    assert_eq!(topics["%RETRY%Cap_POPCG"].perm, 6);
    assert_eq!((topics.len(), whole.filter_server_list.len()), (2, 0));
    for len in 0..body.len() {
        assert!(read(&body[..len]).is_err(), "{len}");
    }
    let empty_last = b"\x00\x00\x00\x02{}\x00\x00\x00\x01\x00\x00\x00\x08T 1 1 6 \x00\x00\x00\x00";
    // Five words, the last one empty, and no filter servers; a sender of before the mappings.
    assert!(RegisterBody::decode(&deflated(empty_last), true, 409).is_ok());
}

fn deflated(body: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(body).expect("a vector takes every write");
    encoder.finish().expect("a vector takes every write")
}

/// errors 585: the increment before the whole is refused, and leaves nothing.
#[test]
fn exactly_one_topic_from_an_unknown_broker_is_refused() {
    let mut routes = routes(RouteSettings::default());
    let one = registration("a:1", 0, &["EOne"]);
    assert_eq!(routes.register(&one, 0), Err(RegisterError::OnlyOneTopic));
    assert_eq!(
        RegisterError::OnlyOneTopic.to_string(),
        "register broker failed"
    );
    assert!(routes.cluster_info().cluster_addr_table.is_empty());
    assert!(
        routes.register(&registration("a:1", 0, &[]), 0).is_ok(),
        "no topic is no increment"
    );
    assert!(routes.register(&one, 0).is_ok(), "the id is known");
    let slave = registration("a:2", 1, &["EOne"]);
    assert_eq!(routes.register(&slave, 0), Err(RegisterError::OnlyOneTopic));
}

/// namesrv 2.2.3, step 7, and the incremental registration.
#[test]
fn topics_are_written_when_the_version_changes_or_the_topic_is_new() {
    let mut routes = with(&[registration("a:1", 0, &["T", "U"])]);
    let mut again = registration("a:1", 0, &["T", "U"]);
    again.topics = [topic("T", 4), topic("New", 4)].into();
    routes.register(&again, 0).expect("equal version");
    assert_eq!((perm_of(&routes, "T"), perm_of(&routes, "New")), (6, 4));
    assert!(
        route(&routes, "U").is_some(),
        "a topic that is not named stays"
    );
    for changed in [
        DataVersion {
            counter: 2,
            ..version(1)
        },
        DataVersion {
            state_version: 1,
            ..version(2)
        },
        DataVersion {
            timestamp: 5,
            ..version(2)
        },
    ] {
        let perm = perm_of(&routes, "T") ^ 1;
        let mut increment = registration("a:1", 0, &[]);
        increment.data_version = changed;
        increment.topics = [topic("T", perm)].into();
        routes.register(&increment, 0).expect("changed version");
        assert_eq!(perm_of(&routes, "T"), perm);
    }
    check_count(&routes);
}

#[test]
fn topics_that_are_no_longer_named_go_where_that_is_wanted() {
    let settings = RouteSettings {
        delete_topic_with_broker_registration: true,
        ..Default::default()
    };
    let mut routes = routes(settings);
    routes
        .register(&registration("a:1", 0, &["T", "U", "V"]), 0)
        .expect("the whole");
    routes
        .register(&registration("a:1", 0, &["T"]), 0)
        .expect("an increment");
    assert_eq!(routes.topic_count(), 3);
    routes
        .register(&registration("a:1", 0, &["T", "U"]), 0)
        .expect("the whole");
    assert_eq!(route(&routes, "V"), None);
    check_count(&routes);
}

#[test]
fn a_slave_writes_topics_only_as_the_smallest_id_of_a_new_broker() {
    let master = registration("a:1", 0, &["T", "U"]);
    let routes_of = |registrations: &[Registration]| with(registrations);
    let beside = routes_of(&[master, registration("a:2", 1, &["T", "S"])]);
    assert_eq!(route(&beside, "S"), None);
    let mut old = registration("a:2", 1, &["T", "S"]);
    old.enable_acting_master = None;
    assert_eq!(routes_of(&[old]).topic_count(), 0);
    let prime = registration("a:2", 1, &["T", "S"]);
    assert_eq!(perm_of(&routes_of(std::slice::from_ref(&prime)), "S"), 6);
    let acting = Registration {
        enable_acting_master: Some(true),
        ..prime
    };
    assert_eq!(perm_of(&routes_of(&[acting]), "S"), 4);
}

#[test]
fn a_slave_is_told_its_master() {
    let mut routes = with(&[registration("a:1", 0, &["T", "U"])]);
    let answer = routes
        .register(&registration("a:2", 1, &[]), 0)
        .expect("a slave");
    assert_eq!(answer.master_addr.as_deref(), Some("a:1"));
    assert_eq!(answer.ha_server_addr.as_deref(), Some("a:1-ha"));
    let answer = routes
        .register(&registration("a:1", 0, &[]), 0)
        .expect("the master");
    assert_eq!(answer, Registered::default());
    routes.unregister(&key("a:1"), "broker-a");
    let answer = routes
        .register(&registration("a:2", 1, &[]), 0)
        .expect("a slave");
    assert_eq!(answer, Registered::default());
}

/// namesrv 2.2.3, steps 3 and 4.
#[test]
fn a_changed_role_moves_and_an_older_term_is_passed_over() {
    let mut routes = with(&[
        registration("a:1", 0, &["T", "U"]),
        registration("a:2", 1, &[]),
    ]);
    routes.unregister(&key("a:1"), "broker-a");
    routes
        .register(&registration("a:2", 0, &["T", "U"]), 0)
        .expect("a new master");
    let addrs = |routes: &Routes| {
        routes
            .member_group("c", "broker-a")
            .broker_member_group
            .broker_addrs
    };
    assert_eq!(addrs(&routes), BTreeMap::from([(0, "a:2".to_owned())]));

    let mut later = registration("a:2", 0, &["T", "U"]);
    later.data_version.state_version = 5;
    routes.register(&later, 0).expect("a later term");
    let mut older = registration("a:3", 0, &["T", "Old"]);
    older.data_version.state_version = 4;
    assert_eq!(routes.register(&older, 0), Ok(Registered::default()));
    assert_eq!(addrs(&routes), BTreeMap::from([(0, "a:2".to_owned())]));
    assert_eq!((route(&routes, "Old"), routes.broker_count()), (None, 1));
    older.data_version.state_version = 5;
    routes.register(&older, 0).expect("an equal term");
    assert_eq!(addrs(&routes), BTreeMap::from([(0, "a:3".to_owned())]));
}

#[test]
fn unregistering_the_last_address_removes_the_name_everywhere() {
    let mut other = registration("b:1", 0, &["T", "B"]);
    other.broker_name = "broker-b".to_owned();
    other.broker.cluster = "Other".to_owned();
    let mut routes = with(&[
        registration("a:1", 0, &["T", "U"]),
        registration("a:2", 1, &[]),
        other,
    ]);
    routes.unregister(&key("a:9"), "broker-a");
    routes.unregister(&key("a:1"), "broker-z");
    routes.unregister(&key("a:1"), "broker-a");
    assert_eq!(
        perm_of(&routes, "U"),
        6,
        "no acting master, so nothing is wiped"
    );
    routes.unregister(&key("a:2"), "broker-a");
    assert_eq!(route(&routes, "U"), None);
    assert_eq!(
        route(&routes, "T").expect("at the other").queue_datas.len(),
        1
    );
    let info = routes.cluster_info();
    assert_eq!(
        info.cluster_addr_table.keys().collect::<Vec<_>>(),
        ["Other"]
    );
    assert_eq!(routes.broker_count(), 1);
    check_count(&routes);
}

/// errors 587: the registering connection is closed, the route is gone.
#[test]
fn a_closed_connection_unregisters_its_brokers() {
    let mut routes = with(&[registration("a:1", 0, &["EA", "EB"])]);
    assert!(routes.connection_closed(7).is_empty());
    assert!(route(&routes, "EA").is_some());
    let mut over_another = registration("a:1", 0, &["EA", "EB"]);
    over_another.connection = 2;
    routes
        .register(&over_another, 0)
        .expect("over a new connection");
    routes.connection_closed(1);
    assert!(
        route(&routes, "EA").is_some(),
        "the last registration counts"
    );
    routes.connection_closed(2);
    assert_eq!((route(&routes, "EA"), routes.broker_count()), (None, 0));
}

#[test]
fn silence_expires_and_every_sign_of_life_counts() {
    let mut brief = registration("b:1", 0, &["B", "C"]);
    brief.broker_name = "broker-b".to_owned();
    brief.heartbeat_timeout_ms = Some(10_000);
    brief.connection = 2;
    let mut routes = with(&[registration("a:1", 0, &["T", "U"]), brief]);
    assert!(
        routes.expire(10_000).is_empty(),
        "the limit itself is in time"
    );
    assert!(routes.touch(&key("b:1"), 10_000));
    assert!(!routes.touch(&key("z:1"), 10_000));
    assert!(routes.expire(20_000).is_empty());
    let expired = routes.expire(20_001);
    assert_eq!(
        expired,
        [Expired {
            broker: key("b:1"),
            connection: 2,
            change: None
        }]
    );
    assert_eq!(route(&routes, "B"), None);
    routes.query_data_version(&key("a:1"), version(1), 100_000);
    assert!(routes.expire(220_000).is_empty());
    assert_eq!(routes.expire(220_001).len(), 1);
    assert_eq!((routes.topic_count(), routes.broker_count()), (0, 0));
}

/// Captured: 322 with an equal version; errors 593: an unknown broker.
#[test]
fn the_data_version_is_compared_and_told() {
    let mut routes = with(&[registration("a:1", 0, &["T", "U"])]);
    let same = routes.query_data_version(&key("a:1"), version(1), 1);
    assert_eq!(
        same,
        Queried {
            changed: false,
            recorded: Some(version(1))
        }
    );
    let other = routes.query_data_version(&key("a:1"), version(2), 1);
    assert_eq!(
        other,
        Queried {
            changed: true,
            recorded: Some(version(1))
        }
    );
    let unknown = routes.query_data_version(&key("z:1"), version(1), 1);
    assert_eq!(
        unknown,
        Queried {
            changed: true,
            recorded: None
        }
    );
    let body = DataVersion {
        counter: 45,
        state_version: 0,
        timestamp: 1_795_985_480_005,
    };
    let written = br#"{"counter":45,"stateVersion":0,"timestamp":1795985480005}"#;
    assert_eq!(to_ascii_vec(&body), written);
}

/// namesrv 2.9; errors 602-603.
#[test]
fn permissions_are_wiped_and_given_back() {
    let mut routes = with(&[golden_registration()]);
    assert_eq!(routes.wipe_write_perm("broker-a"), 4);
    assert_eq!(perm_of(&routes, "TBW102"), 5);
    assert_eq!(routes.add_write_perm("broker-a"), 4);
    assert_eq!(perm_of(&routes, "TBW102"), 6);
    assert_eq!(
        (routes.wipe_write_perm("zz"), routes.add_write_perm("zz")),
        (0, 0)
    );
}

#[test]
fn topics_are_listed_by_cluster_and_kind() {
    let mut broker = registration("a:1", 0, &["Plain", "Unit", "Sub", "Both"]);
    for (name, flag) in [("Unit", 1), ("Sub", 2), ("Both", 3)] {
        broker
            .topics
            .get_mut(name)
            .expect("it is there")
            .topic_sys_flag = flag;
    }
    let routes = with(&[broker]);
    let names = |list: TopicList| list.topic_list.into_iter().collect::<Vec<_>>();
    assert_eq!(names(routes.topics(TopicKind::Unit)), ["Both", "Unit"]);
    assert_eq!(names(routes.topics(TopicKind::UnitSub)), ["Both", "Sub"]);
    assert_eq!(names(routes.topics(TopicKind::UnitSubOnly)), ["Sub"]);
    assert_eq!(names(routes.topics_of_cluster("DefaultCluster")).len(), 4);
    assert_eq!(
        to_ascii_vec(&routes.topics_of_cluster("zz")),
        br#"{"topicList":[]}"#
    );
}

/// namesrv 2.11, 2.12; errors 607-610.
#[test]
fn topics_are_deleted_and_registered_one_by_one() {
    let mut routes = with(&[registration("a:1", 0, &["T", "U"])]);
    routes.delete_topic("zz", None);
    routes.delete_topic("T", Some("zz"));
    assert!(route(&routes, "T").is_some());
    routes.delete_topic("T", Some("DefaultCluster"));
    routes.delete_topic("U", None);
    assert_eq!(routes.topic_count(), 0);
    let queues = |broker: &str| QueueData {
        broker_name: broker.to_owned(),
        perm: 6,
        read_queue_nums: 4,
        topic_sys_flag: 0,
        write_queue_nums: 4,
    };
    assert_eq!(
        routes.register_topic("N", &[queues("broker-a"), queues("zz")]),
        Ok(false)
    );
    assert_eq!(route(&routes, "N"), None);
    assert_eq!(routes.register_topic("N", &[]), Ok(true));
    assert_eq!(route(&routes, "N"), None);
    assert_eq!(routes.register_topic("N", &[queues("broker-a")]), Ok(true));
    assert_eq!(
        route(&routes, "N").expect("a route").queue_datas,
        [queues("broker-a")]
    );
    check_count(&routes);
}

/// namesrv 2.3 and 5.
#[test]
fn a_slave_acts_for_a_missing_master() {
    let settings = RouteSettings {
        support_acting_master: true,
        ..Default::default()
    };
    let member_topic = "rmq_sys_SYNC_BROKER_MEMBER_broker-a";
    let mut routes = routes(settings);
    let acting = |address: &str, id: i64, topics: &[&str]| Registration {
        enable_acting_master: Some(true),
        ..registration(address, id, topics)
    };
    routes
        .register(&acting("a:1", 0, &["T", member_topic]), 0)
        .expect("the master");
    routes.register(&acting("a:3", 2, &[]), 0).expect("a slave");
    routes.register(&acting("a:2", 1, &[]), 0).expect("a slave");
    let ids = |routes: &Routes, topic: &str| {
        let addrs = route(routes, topic).expect("a route").broker_datas[0]
            .broker_addrs
            .clone();
        addrs.into_iter().collect::<Vec<_>>()
    };
    assert_eq!(ids(&routes, "T").len(), 3);
    routes.unregister(&key("a:1"), "broker-a");
    assert_eq!(perm_of(&routes, "T"), 4);
    assert_eq!(
        ids(&routes, "T"),
        [(0, "a:2".to_owned()), (2, "a:3".to_owned())]
    );
    assert_eq!(ids(&routes, member_topic)[0], (1, "a:2".to_owned()));
    routes.set_settings(RouteSettings::default());
    assert_eq!(ids(&routes, "T")[0], (1, "a:2".to_owned()));
}

#[test]
fn a_group_is_told_when_its_smallest_id_changes() {
    let settings = RouteSettings {
        notify_min_broker_id_changed: true,
        ..Default::default()
    };
    let mut routes = routes(settings);
    let over = |address: &str, id: i64, connection: u64| Registration {
        connection,
        ..registration(address, id, &[])
    };
    let first = routes.register(&over("a:2", 2, 20), 0).expect("a slave");
    assert_eq!(first.change, None);
    let answer = routes.register(&over("a:0", 0, 10), 0).expect("the master");
    let change = answer.change.expect("a smaller id");
    assert_eq!(
        (change.min_broker_id, change.min_broker_addr.as_str()),
        (0, "a:0")
    );
    assert_eq!(
        (change.offline_broker_addr, change.connections),
        (None, vec![10, 20])
    );
    let gone = routes.connection_closed(10);
    assert_eq!(gone.len(), 1);
    assert_eq!(
        (gone[0].min_broker_id, gone[0].connections.as_slice()),
        (2, &[20][..])
    );
    assert_eq!(gone[0].offline_broker_addr.as_deref(), Some("a:0"));
    assert_eq!(gone[0].ha_broker_addr.as_deref(), Some("a:2-ha"));
}

/// namesrv 6.
#[test]
fn a_zone_sees_its_own_brokers_and_those_without_a_master() {
    let named = |address: &str, name: &str, id: i64, zone: &str| Registration {
        broker_name: name.to_owned(),
        zone_name: Some(zone.to_owned()),
        ..registration(address, id, &["T", name])
    };
    let routes = with(&[
        named("a:1", "broker-a", 0, "Z1"),
        named("b:1", "broker-b", 0, "z2"),
        named("c:1", "broker-c", 1, "z2"),
    ]);
    let question = RouteQuestion {
        topic: "T",
        zone: Some("z1"),
        order_conf: None,
    };
    let seen = routes.route(&question).expect("a route");
    let names: Vec<_> = seen
        .broker_datas
        .iter()
        .map(|data| data.broker_name.as_str())
        .collect();
    assert_eq!(names, ["broker-a", "broker-c"]);
    assert_eq!(seen.queue_datas.len(), 2);
}

#[test]
fn filter_servers_are_shown_by_address_and_removed_by_an_empty_list() {
    let mut broker = registration("a:1", 0, &["T", "U"]);
    broker.filter_servers = vec!["a:5".to_owned()];
    let mut routes = with(&[broker.clone()]);
    let table = |routes: &Routes| route(routes, "T").expect("a route").filter_server_table;
    assert_eq!(table(&routes)["a:1"], ["a:5"]);
    broker.filter_servers.clear();
    routes.register(&broker, 0).expect("again");
    assert!(table(&routes).is_empty());
}

#[test]
fn a_broker_that_comes_back_under_another_name_leaves_the_old_one() {
    let mut routes = with(&[registration("a:1", 0, &["T", "U"])]);
    let mut renamed = registration("a:1", 0, &["T", "V"]);
    renamed.broker_name = "broker-b".to_owned();
    routes.register(&renamed, 0).expect("under another name");
    let info = routes.cluster_info();
    assert_eq!(
        info.broker_addr_table.keys().collect::<Vec<_>>(),
        ["broker-b"]
    );
    assert_eq!(route(&routes, "U"), None);
    check_count(&routes);
}

#[test]
fn what_does_not_fit_is_refused_and_leaves_nothing() {
    let limits = RouteLimits {
        brokers_max: 2,
        queue_datas_max: 3,
    };
    let mut routes = Routes::new(RouteSettings::default(), limits);
    routes
        .register(&registration("a:1", 0, &["T", "U"]), 0)
        .expect("room");
    let more = registration("a:1", 0, &["T", "U", "V", "W"]);
    assert_eq!(
        routes.register(&more, 0),
        Err(RegisterError::TooManyTopics { max: 3 })
    );
    assert_eq!(routes.topic_count(), 2);
    routes
        .register(&registration("a:1", 0, &["T", "U", "V"]), 0)
        .expect("three fit");
    routes
        .register(&registration("a:2", 1, &[]), 0)
        .expect("two fit");
    let third = registration("a:3", 2, &[]);
    assert_eq!(
        routes.register(&third, 0),
        Err(RegisterError::TooManyBrokers { max: 2 })
    );
    routes
        .register(&registration("a:2", 1, &[]), 0)
        .expect("a known one may always");
    let long = "x".repeat(256);
    let nameless = Registration {
        broker_name: String::new(),
        ..registration("a:2", 1, &[])
    };
    let field = "brokerName";
    assert_eq!(
        routes.register(&nameless, 0),
        Err(RegisterError::Name { field })
    );
    let named = Registration {
        broker_name: long.clone(),
        ..registration("a:2", 1, &[])
    };
    assert_eq!(
        routes.register(&named, 0),
        Err(RegisterError::Name { field })
    );
    let topic = registration("a:2", 1, &["T", long.as_str()]);
    assert_eq!(
        routes.register(&topic, 0),
        Err(RegisterError::Name { field: "topic" })
    );
    let mut servers = registration("a:2", 1, &[]);
    servers.filter_servers = vec!["a:1".to_owned(); FILTER_SERVERS_MAX + 1];
    assert_eq!(
        routes.register(&servers, 0),
        Err(RegisterError::TooManyFilterServers)
    );
    let queues = QueueData {
        broker_name: "broker-a".to_owned(),
        perm: 6,
        read_queue_nums: 1,
        topic_sys_flag: 0,
        write_queue_nums: 1,
    };
    let full = routes.register_topic("X", &[queues]);
    assert_eq!(full, Err(RegisterError::TooManyTopics { max: 3 }));
    check_count(&routes);
}
