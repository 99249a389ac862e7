//! mqadmin 5.3.3.

use crate::support::toolchain::Kind;
use crate::support::{Outcome, ensure, failed, world};

/// `updateTopic` creates a topic with the given queues; route, list and cluster show it and its
/// broker.
pub fn mqadmin_creates_and_shows_a_topic() -> Outcome {
    let program = world::program(Kind::Java5)?;
    let broker = world::broker()?;
    let (namesrv, address) = (broker.namesrv(), broker.address());
    let clusters = program.admin(&format!("clusterList -n {namesrv}"))?;
    let row = columns(&clusters, address)?;
    let [cluster, broker_name, id, ..] = row[..] else {
        return failed(format!("a short row: {row:?}"));
    };
    ensure(id == "0" && row.contains(&"V5_3_3"), || clusters.clone())?;

    let created = program.admin(&format!(
        "updateTopic -n {namesrv} -c {cluster} -t ByAdmin -r 6 -w 5"
    ))?;
    let config = "TopicConfig [topicName=ByAdmin, readQueueNums=6, writeQueueNums=5, perm=RW-, \
                  topicFilterType=SINGLE_TAG, topicSysFlag=0, order=false, attributes={}]";
    ensure(
        created.contains(&format!("create topic to {address} success.")),
        || created.clone(),
    )?;
    ensure(created.contains(config), || created.clone())?;

    let route = program.admin(&format!("topicRoute -n {namesrv} -t ByAdmin"))?;
    for part in [
        format!("0:\"{address}\""),
        format!("\"brokerName\":\"{broker_name}\""),
        format!("\"cluster\":\"{cluster}\""),
        "\"readQueueNums\":6".to_owned(),
        "\"writeQueueNums\":5".to_owned(),
        "\"perm\":6".to_owned(),
    ] {
        ensure(route.contains(&part), || format!("no {part} in {route}"))?;
    }
    let topics = program.admin(&format!("topicList -n {namesrv}"))?;
    for topic in ["ByAdmin", "TBW102"] {
        ensure(topics.lines().any(|line| line == topic), || {
            format!("no {topic} in {topics}")
        })?;
    }
    Ok(())
}

/// A message is found by its place, by its key and by the id that its producer gave it.
pub fn mqadmin_finds_a_message_by_id_key_and_unique_key() -> Outcome {
    let program = world::program(Kind::Java5)?;
    let broker = world::broker()?;
    let namesrv = broker.namesrv();
    let topic = world::topic(&broker, "Query", 4)?.name;
    let producer = program.producer(namesrv, "P_Query")?;
    let sent = producer.send(&topic, "sync", 5, "tags=A,B")?;
    producer.stop()?;
    let message = &sent[3];
    let (Some(unique), Some(place), Some(queue), Some(offset)) = (
        &message.msg_id,
        &message.offset_msg_id,
        message.queue_id,
        message.queue_offset,
    ) else {
        return failed(format!("{message:?}"));
    };

    let by_key = program.admin(&format!(
        "queryMsgByKey -n {namesrv} -t {topic} -k {}",
        message.keys
    ))?;
    let row = columns(&by_key, unique)?;
    ensure(
        row == [unique, &queue.to_string(), &offset.to_string()],
        || by_key.clone(),
    )?;

    let by_place = program.admin(&format!("queryMsgById -n {namesrv} -t {topic} -i {place}"))?;
    ensure(value(&by_place, "OffsetID:")? == place, || by_place.clone())?;
    let by_unique = program.admin(&format!(
        "queryMsgByUniqueKey -n {namesrv} -t {topic} -i {unique}"
    ))?;
    for printed in [by_place, by_unique] {
        for (name, expected) in [
            ("Topic:", topic.clone()),
            ("Tags:", format!("[{}]", message.tags)),
            ("Keys:", format!("[{}]", message.keys)),
            ("Queue ID:", queue.to_string()),
            ("Queue Offset:", offset.to_string()),
            ("Store Host:", broker.address().to_owned()),
        ] {
            ensure(value(&printed, name)? == expected, || {
                format!("{name} {expected}: {printed}")
            })?;
        }
        ensure(printed.contains(&format!("UNIQ_KEY={unique}")), || {
            printed.clone()
        })?;
    }
    Ok(())
}

/// The columns of the line that contains the text.
pub fn columns<'a>(printed: &'a str, text: &str) -> Outcome<Vec<&'a str>> {
    match printed.lines().find(|line| line.contains(text)) {
        Some(line) => Ok(line.split_whitespace().collect()),
        None => failed(format!("no {text} in {printed}")),
    }
}

/// What stands behind the name at the start of a line.
fn value<'a>(printed: &'a str, name: &str) -> Outcome<&'a str> {
    match printed.lines().find_map(|line| line.strip_prefix(name)) {
        Some(value) => Ok(value.trim()),
        None => failed(format!("no {name} in {printed}")),
    }
}
