//! ringmq and Apache RocketMQ in one cluster: brokers of each at name servers of each.

use crate::support::broker::{JavaPeer, Ringmq};
use crate::support::ledger::every_message_once;
use crate::support::toolchain::Kind;
use crate::support::{Outcome, remoting, world};

/// A Java broker registers at ringmq's name server, ringmq's broker at a Java name server; clients
/// that know only the foreign name server reach each.
pub fn brokers_register_at_each_others_name_server() -> Outcome {
    let program = world::program(Kind::Java5)?;
    let our_namesrv = Ringmq::namesrv()?;
    let java = JavaPeer::start(&[])?;
    let java_at_ours = JavaPeer::start(&[
        "namesrvPort=0".into(),
        format!("namesrvAddr={}", our_namesrv.namesrv),
    ])?;
    let ours = Ringmq::broker("ringmq-a", &java.namesrv)?;
    for (namesrv, broker, topic) in [
        (&our_namesrv.namesrv, &java_at_ours.broker, "JavaAtOurs"),
        (&java.namesrv, &ours.broker, "OursAtJava"),
    ] {
        remoting::create_topic(namesrv, broker, topic, 4)?;
        let producer = program.producer(namesrv, &format!("P_{topic}"))?;
        let consumer = program.consumer(namesrv, &format!("C_{topic}"), topic, "*")?;
        let sent = producer.send(topic, "sync", 10, "")?;
        every_message_once(&sent, &consumer.wait_received(10)?)?;
        consumer.stop()?;
        producer.stop()?;
    }
    Ok(())
}
