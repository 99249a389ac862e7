//! Producers and consumers of each client against one broker.

use crate::support::ledger::{every_message_once, no_gap_in_any_queue};
use crate::support::program::wait_received;
use crate::support::toolchain::Kind;
use crate::support::{Outcome, ensure, world};
use std::collections::BTreeSet;

/// One consumer receives every message once, in whichever way its client can send, and as it was
/// sent.
pub fn receives_once_what_it_sent(kind: Kind) -> Outcome {
    let program = world::program(kind)?;
    let broker = world::broker()?;
    let topic = world::topic(&broker, &format!("Exchange_{}", kind.name()), 4)?.name;
    let producer = program.producer(broker.namesrv(), &format!("P_{topic}"))?;
    let mut sent = producer.send(&topic, "sync", 10, "tags=A,B,C")?;
    let consumer = program.consumer(broker.namesrv(), &format!("C_{topic}"), &topic, "*")?;
    consumer.wait_received(10)?;
    for mode in modes(kind) {
        sent.extend(producer.send(&topic, mode, 10, "tags=A,B,C")?);
    }
    if matches!(kind, Kind::Java4 | Kind::Java5) {
        // Beyond 4 KiB the client compresses.
        sent.extend(producer.send(&topic, "sync", 3, "size=6000")?);
    }
    let received = consumer.wait_received(sent.len())?;
    every_message_once(&sent, &received)?;
    no_gap_in_any_queue(&received)?;
    consumer.stop()?;
    producer.stop()
}

/// The ways to send, beside the plain one, that a client has.
fn modes(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Java4 | Kind::Java5 | Kind::Go => &["sync", "async", "oneway", "batch"],
        Kind::Node => &["sync"],
    }
}

/// Two consumers of one group halve the queues, and each message reaches one of them; when one
/// leaves, the other goes on where it stopped.
pub fn consumers_share_a_topic(kind: Kind) -> Outcome {
    let program = world::program(kind)?;
    let broker = world::broker()?;
    let topic = world::topic(&broker, &format!("Share_{}", kind.name()), 4)?.name;
    let group = format!("C_{topic}");
    let producer = program.producer(broker.namesrv(), &format!("P_{topic}"))?;
    let first = program.consumer(broker.namesrv(), &group, &topic, "*")?;
    first.wait_queues(4)?;
    let second = program.consumer(broker.namesrv(), &group, &topic, "*")?;
    let of_second = second.wait_queues(2)?;
    let of_first = first.wait_queues(2)?;
    ensure(of_first.is_disjoint(&of_second), || {
        format!("{of_first:?} and {of_second:?}")
    })?;

    let mut sent = producer.send(&topic, "sync", 40, "")?;
    let both = wait_received(&[&first, &second], 40)?;
    every_message_once(&sent, &both)?;
    let (by_first, by_second) = (first.received()?, second.received()?);
    ensure(!by_first.is_empty() && !by_second.is_empty(), || {
        "one consumer got all".to_owned()
    })?;

    first.stop()?;
    second.wait_queues(4)?;
    sent.extend(producer.send(&topic, "sync", 40, "")?);
    let by_second = second.wait_received(by_second.len() + 40)?;
    let all = [by_first, by_second].concat();
    every_message_once(&sent, &all)?;
    no_gap_in_any_queue(&all)?;
    second.stop()?;
    producer.stop()
}

/// A subscription with tags gets these tags and no others.
pub fn gets_only_its_tags(kind: Kind) -> Outcome {
    let program = world::program(kind)?;
    let broker = world::broker()?;
    let topic = world::topic(&broker, &format!("Tags_{}", kind.name()), 4)?.name;
    let producer = program.producer(broker.namesrv(), &format!("P_{topic}"))?;
    let consumer = program.consumer(broker.namesrv(), &format!("C_{topic}"), &topic, "A||C")?;
    let mut sent = producer.send(&topic, "sync", 30, "tags=A,B,C")?;
    sent.retain(|message| message.tags != "B");
    let received = consumer.wait_received(20)?;
    every_message_once(&sent, &received)?;
    consumer.stop()?;
    producer.stop()
}

/// What one client sends, all receive, each in a group of its own.
pub fn all_receive_what_each_sent() -> Outcome {
    let broker = world::broker()?;
    let topic = world::topic(&broker, "Everyone", 4)?.name;
    let mut sent = Vec::new();
    for kind in Kind::ALL {
        let producer =
            world::program(kind)?.producer(broker.namesrv(), &format!("P_{}", kind.name()))?;
        sent.extend(producer.send(&topic, "sync", 5, "tags=A,B")?);
        producer.stop()?;
    }
    let mut consumers = Vec::new();
    for kind in Kind::ALL {
        let group = format!("C_{}", kind.name());
        consumers.push(world::program(kind)?.consumer(broker.namesrv(), &group, &topic, "*")?);
    }
    for consumer in consumers {
        let received = consumer.wait_received(sent.len())?;
        every_message_once(&sent, &received)?;
        no_gap_in_any_queue(&received)?;
        consumer.stop()?;
    }
    Ok(())
}

/// A pull that found nothing is kept by the broker and answered by the message that comes.
pub fn a_parked_pull_gets_the_next_message(kind: Kind) -> Outcome {
    let program = world::program(kind)?;
    let broker = world::broker()?;
    let topic = world::topic(&broker, "Park", 1)?;
    let producer = program.producer(broker.namesrv(), "P_Park")?;
    let group = format!("C_{}", topic.name);
    // Longer than anyone waits here: an answer means that the message woke the pull.
    let puller = program.puller(broker.namesrv(), &group, 300_000)?;
    puller.begin(&format!(
        "pull topic={} broker={} queue=0 offset=0",
        topic.name, topic.broker_name
    ))?;
    std::thread::sleep(std::time::Duration::from_secs(1));
    let early = puller.events("done");
    ensure(early.iter().all(|end| end["verb"] != "pull"), || {
        format!("not parked: {early:?}")
    })?;

    let sent = producer.send(&topic.name, "sync", 1, "")?;
    puller.done("pull")?;
    every_message_once(&sent, &puller.received()?)?;
    let pulled = puller.events("pulled");
    let statuses: BTreeSet<_> = pulled
        .iter()
        .filter_map(|event| event["status"].as_str())
        .collect();
    ensure(statuses == BTreeSet::from(["FOUND"]), || {
        format!("{pulled:?}")
    })?;
    puller.stop()?;
    producer.stop()
}
