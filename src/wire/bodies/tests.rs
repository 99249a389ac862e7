//! Bodies of clients that differ from Java's, and Java's own through a round.

use super::*;
use crate::wire::fastjson::{from_object, from_slice, to_vec};

#[test]
fn a_heartbeat_of_the_cpp_client_is_read() {
    let body = concat!(
        r#"{"clientID":"1-127.0.0.1@DEFAULT","consumerDataSet":[{"consumeFromWhere":0,"#,
        r#""consumeType":1,"groupName":"g","messageModel":1,"subscriptionDataSet":"#,
        r#"[{"subString":"*","subVersion":"1700000000000","topic":"t"}]}]}"#,
        "\n"
    );
    let data: HeartbeatData = from_object(body.as_bytes()).unwrap();
    assert_eq!(data.client_id, "1-127.0.0.1@DEFAULT");
    assert!(data.producer_data_set.is_empty());
    let group = &data.consumer_data_set[0];
    assert_eq!(group.group_name, "g");
    assert_eq!(group.consume_type, Some(ConsumeType::Passively));
    assert_eq!(group.message_model, Some(MessageModel::Clustering));
    assert_eq!(group.consume_from_where, Some(ConsumeFromWhere::LastOffset));
    let subscription = &group.subscription_data_set[0];
    assert_eq!(subscription.sub_version, 1_700_000_000_000);
    assert_eq!(
        (
            subscription.topic.as_str(),
            subscription.expression_type.as_ref()
        ),
        ("t", None)
    );
}

#[test]
fn null_sets_and_unknown_names_are_taken_but_not_a_missing_group() {
    let nulls = br#"{"clientID":"e@5","consumerDataSet":null,"producerDataSet":null}"#;
    let data: HeartbeatData = from_object(nulls).unwrap();
    assert!(data.consumer_data_set.is_empty() && data.producer_data_set.is_empty());
    assert_eq!(
        from_object::<HeartbeatData>(b"{}").unwrap(),
        HeartbeatData::default()
    );

    let unknown = br#"{"consumerDataSet":[{"groupName":"g","consumeType":"X","messageModel":7}]}"#;
    let data: HeartbeatData = from_object(unknown).unwrap();
    assert_eq!(data.consumer_data_set[0].consume_type, None);
    assert_eq!(data.consumer_data_set[0].message_model, None);

    for bad in [
        r#"{"consumerDataSet":[{"consumeType":"CONSUME_PASSIVELY"}]}"#,
        r#"{"clientID":"e@6"} xx"#,
        "hello",
        "null",
        "[]",
        "",
    ] {
        assert!(
            from_object::<HeartbeatData>(bad.as_bytes()).is_err(),
            "{bad}"
        );
    }
}

#[test]
fn a_route_is_written_strictly_and_read_in_both_forms() {
    let route = TopicRouteData {
        broker_datas: vec![BrokerData {
            broker_addrs: [(0, "127.0.0.1:20911".to_string())].into(),
            broker_name: "broker-a".into(),
            cluster: "DefaultCluster".into(),
            ..BrokerData::default()
        }],
        queue_datas: vec![QueueData {
            broker_name: "broker-a".into(),
            perm: 7,
            read_queue_nums: 8,
            topic_sys_flag: 0,
            write_queue_nums: 8,
        }],
        ..TopicRouteData::default()
    };
    // As a name server 5.3.3 answered.
    let strict = concat!(
        r#"{"brokerDatas":[{"brokerAddrs":{"0":"127.0.0.1:20911"},"brokerName":"broker-a","#,
        r#""cluster":"DefaultCluster","enableActingMaster":false}],"filterServerTable":{},"#,
        r#""queueDatas":[{"brokerName":"broker-a","perm":7,"readQueueNums":8,"#,
        r#""topicSysFlag":0,"writeQueueNums":8}]}"#
    );
    assert_eq!(String::from_utf8(to_vec(&route)).unwrap(), strict);
    let legacy = strict.replace("{\"0\":", "{0:");
    for text in [strict, legacy.as_str()] {
        assert_eq!(
            from_slice::<TopicRouteData>(text.as_bytes()).unwrap(),
            route
        );
    }
}

#[test]
fn a_registration_is_read_packed_or_not_whatever_its_header_says() {
    let topic = TopicConfig {
        attributes: [("+message.type".to_string(), "FIFO".to_string())].into(),
        topic_name: "T".into(),
        read_queue_nums: 4,
        ..TopicConfig::default()
    };
    let mut body = RegisterBody::default();
    body.topic_config_serialize_wrapper.data_version.counter = 7;
    body.topic_config_serialize_wrapper
        .topic_config_table
        .insert("T".into(), topic);

    let packed = body.pack();
    for (bytes, compressed) in [
        (body.encode(), false),
        (packed.clone(), true),
        (packed, false),
    ] {
        for version in [409, 479] {
            assert_eq!(
                RegisterBody::decode(&bytes, compressed, version).unwrap(),
                body
            );
        }
    }
    let bare = to_vec(&body.topic_config_serialize_wrapper);
    assert_eq!(RegisterBody::decode(&bare, false, 36).unwrap(), body);
    assert_eq!(
        RegisterBody::decode(b"", false, 479).unwrap(),
        RegisterBody::default()
    );
    assert!(RegisterBody::decode(b"not zlib", true, 479).is_err());
    assert!(RegisterBody::decode(b"x", false, 479).is_err());
}

#[test]
fn a_topic_text_of_4_9_has_five_words() {
    let topic = TopicConfig::from_text("T 8 4 6 MULTI_TAG").unwrap();
    assert_eq!(
        (topic.read_queue_nums, topic.write_queue_nums, topic.perm),
        (8, 4, 6)
    );
    assert_eq!(topic.topic_filter_type, Some(TopicFilterType::MultiTag));
    assert_eq!(topic.to_text(), "T 8 4 6 MULTI_TAG {}");
    assert_eq!(TopicConfig::from_text("T 8 4 6"), None);
}

#[test]
fn offsets_are_read_with_java_s_bare_numbers_as_keys() {
    let text = concat!(
        r#"{"dataVersion":{"counter":0,"stateVersion":0,"timestamp":1795985042666},"#,
        r#""groupTopicMap":{"G":["T"]},"offsetTable":{"T@G":{0:12,1:7}}}"#
    );
    let table: OffsetTable = from_slice(text.as_bytes()).unwrap();
    assert_eq!(table.offset_table["T@G"], [(0, 12), (1, 7)].into());
    let written = String::from_utf8(to_vec(&table)).unwrap();
    assert!(
        written.ends_with(r#""offsetTable":{"T@G":{"0":12,"1":7}}}"#),
        "{written}"
    );
}
