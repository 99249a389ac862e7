//! The broker dies or stops under its clients and comes back with what it had.

use crate::support::broker::Broker;
use crate::support::ledger::{
    every_message_once, no_gap_in_any_queue, nothing_acknowledged_is_lost,
};
use crate::support::program::Client;
use crate::support::toolchain::Kind;
use crate::support::{Outcome, PATIENCE, wait_for, world};

/// Messages acknowledged between two deaths of the broker.
const MESSAGES_PER_LIFE: usize = 200;
const DEATHS: usize = 2;

/// Killed twice in the middle of traffic: everything that the producer was told is stored reaches
/// the consumer. The two run in processes of their own.
pub fn a_killed_broker_loses_nothing_acknowledged() -> Outcome {
    let mut broker = Broker::start()?;
    let topic = world::topic(&broker, "Killed", 4)?.name;
    let producing = world::own_program(Kind::Java5)?;
    let consuming = world::own_program(Kind::Java5)?;
    let producer = producing.producer(broker.namesrv(), "P_Killed")?;
    let consumer = consuming.consumer(broker.namesrv(), "C_Killed", &topic, "*")?;
    producer.begin(&format!("send topic={topic} mode=sync count=0 every=2"))?;
    for _ in 0..DEATHS {
        wait_acknowledged(&producer, MESSAGES_PER_LIFE)?;
        broker.kill()?;
        broker.start_again()?;
    }
    wait_acknowledged(&producer, MESSAGES_PER_LIFE)?;
    producer.ask("halt")?;
    producer.done("send")?;

    let mut acknowledged = producer.sent()?;
    acknowledged.retain(|message| message.status == "SEND_OK");
    let refused = producer.refused();
    wait_for("every acknowledged message", PATIENCE, || {
        let received = consumer.received()?;
        Ok(nothing_acknowledged_is_lost(&acknowledged, &refused, &received).ok())
    })
    .or_else(|_| nothing_acknowledged_is_lost(&acknowledged, &refused, &consumer.received()?))?;
    consumer.stop()?;
    producer.stop()
}

fn wait_acknowledged(producer: &Client, more: usize) -> Outcome {
    let goal = producer.sent()?.len() + more;
    wait_for(&format!("{goal} messages acknowledged"), PATIENCE, || {
        Ok((producer.sent()?.len() >= goal).then_some(()))
    })
}

/// A clean stop keeps the messages and how far each group is.
pub fn a_stopped_broker_keeps_messages_and_offsets() -> Outcome {
    let program = world::program(Kind::Java5)?;
    let mut broker = Broker::start()?;
    let topic = world::topic(&broker, "Stopped", 4)?.name;
    let producer = program.producer(broker.namesrv(), "P_Stopped")?;
    let consumer = program.consumer(broker.namesrv(), "C_Stopped", &topic, "*")?;
    let mut sent = producer.send(&topic, "sync", 20, "")?;
    let mut received = consumer.wait_received(20)?;
    consumer.stop()?;
    sent.extend(producer.send(&topic, "sync", 20, "")?);
    producer.stop()?;
    broker.stop()?;
    broker.start_again()?;

    let consumer = program.consumer(broker.namesrv(), "C_Stopped", &topic, "*")?;
    received.extend(consumer.wait_received(20)?);
    every_message_once(&sent, &received)?;
    no_gap_in_any_queue(&received)?;
    consumer.stop()
}
