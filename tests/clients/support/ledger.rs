//! What was sent against what arrived.

use super::{Outcome, ensure, failed};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A message that a producer sent, as its program reports it. Who knows no more than that it went
/// out (one-way) leaves the rest empty.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sent {
    pub status: String,
    pub topic: String,
    pub body: String,
    pub keys: String,
    pub tags: String,
    pub msg_id: Option<String>,
    pub offset_msg_id: Option<String>,
    pub queue_id: Option<u32>,
    pub queue_offset: Option<u64>,
}

/// A message that a consumer got.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Received {
    pub topic: String,
    pub body: String,
    pub keys: String,
    pub tags: String,
    /// The user property `number`: the message's number, which also ends its key.
    pub number: String,
    pub msg_id: String,
    pub offset_msg_id: String,
    pub queue_id: u32,
    pub queue_offset: u64,
    pub reconsume_times: u32,
}

/// Every message sent arrived exactly once and as it was sent, and nothing else arrived.
pub fn every_message_once(sent: &[Sent], received: &[Received]) -> Outcome {
    let mut arrived: HashMap<&str, Vec<&Received>> = HashMap::new();
    for message in received {
        arrived.entry(&message.body).or_default().push(message);
    }
    for message in sent {
        let copies = arrived.remove(message.body.as_str()).unwrap_or_default();
        match copies[..] {
            [copy] => as_it_was_sent(message, copy)?,
            _ => {
                return failed(format!(
                    "{message:?} arrived {} times: {copies:?}",
                    copies.len()
                ));
            }
        }
    }
    ensure(arrived.is_empty(), || format!("nobody sent {arrived:?}"))
}

/// The offsets of each queue begin at 0 and have no gap: for a topic that was received whole, and
/// once.
pub fn no_gap_in_any_queue(received: &[Received]) -> Outcome {
    let mut queues: BTreeMap<u32, BTreeSet<u64>> = BTreeMap::new();
    for message in received {
        let fresh = queues
            .entry(message.queue_id)
            .or_default()
            .insert(message.queue_offset);
        ensure(fresh, || {
            format!("a second message at the offset of {message:?}")
        })?;
    }
    for (queue, offsets) in &queues {
        ensure(offsets.iter().copied().eq(0..offsets.len() as u64), || {
            format!("queue {queue} has the offsets {offsets:?}")
        })?;
    }
    Ok(())
}

/// After crashes: every acknowledged message arrived, at the place that its sender was told; a
/// place never held two messages, and nothing arrived that nobody tried to send.
pub fn nothing_acknowledged_is_lost(
    acknowledged: &[Sent],
    refused: &BTreeSet<String>,
    received: &[Received],
) -> Outcome {
    let mut places: BTreeMap<(u32, u64), &Received> = BTreeMap::new();
    for message in received {
        let place = (message.queue_id, message.queue_offset);
        let first = places.entry(place).or_insert(message);
        ensure(first.body == message.body, || {
            format!("one place, two messages: {first:?}, {message:?}")
        })?;
    }
    let mut known = refused.clone();
    for message in acknowledged {
        known.insert(message.body.clone());
        let (Some(queue), Some(offset)) = (message.queue_id, message.queue_offset) else {
            return failed(format!("acknowledged without a place: {message:?}"));
        };
        match places.get(&(queue, offset)) {
            Some(copy) => as_it_was_sent(message, copy)?,
            None => return failed(format!("lost: {message:?}")),
        }
    }
    match received
        .iter()
        .find(|message| !known.contains(&message.body))
    {
        Some(message) => failed(format!("nobody sent {message:?}")),
        None => Ok(()),
    }
}

fn as_it_was_sent(sent: &Sent, received: &Received) -> Outcome {
    let number = sent.keys.rsplit('-').next().unwrap_or_default();
    let same = sent.topic == received.topic
        && sent.body == received.body
        && sent.keys == received.keys
        && sent.tags == received.tags
        && number == received.number
        && sent.msg_id.as_ref().is_none_or(|id| *id == received.msg_id)
        && sent
            .offset_msg_id
            .as_ref()
            .is_none_or(|id| *id == received.offset_msg_id)
        && sent.queue_id.is_none_or(|queue| queue == received.queue_id)
        && sent
            .queue_offset
            .is_none_or(|offset| offset == received.queue_offset)
        && received.reconsume_times == 0;
    ensure(same, || format!("sent {sent:?}, arrived as {received:?}"))
}

/// The ledger itself: it accepts what is right and notices each way to be wrong.
pub fn notices_what_is_wrong() -> Outcome {
    let sent = [sent(0, "m-0"), sent(1, "m-1")];
    let right = [received(0, "m-0"), received(1, "m-1")];
    every_message_once(&sent, &right)?;
    no_gap_in_any_queue(&right)?;
    nothing_acknowledged_is_lost(&sent, &BTreeSet::new(), &right)?;

    let twice = [right[0].clone(), right[1].clone(), received(2, "m-1")];
    let foreign = [right[0].clone(), right[1].clone(), received(2, "m-2")];
    let moved = [right[0].clone(), received(2, "m-1")];
    let changed = [
        right[0].clone(),
        Received {
            tags: "other".into(),
            ..right[1].clone()
        },
    ];
    let same_place = [right[0].clone(), right[1].clone(), received(1, "m-0")];
    let refused = BTreeSet::from(["m-2".to_owned()]);
    nothing_acknowledged_is_lost(&sent, &BTreeSet::new(), &twice)?;
    nothing_acknowledged_is_lost(&sent, &refused, &foreign)?;
    for (what, outcome) in [
        ("lost", every_message_once(&sent, &right[..1])),
        ("twice", every_message_once(&sent, &twice)),
        ("foreign", every_message_once(&sent, &foreign)),
        ("moved", every_message_once(&sent, &moved)),
        ("changed", every_message_once(&sent, &changed)),
        ("gap", no_gap_in_any_queue(&moved)),
        ("same place", no_gap_in_any_queue(&same_place)),
        (
            "acknowledged, lost",
            nothing_acknowledged_is_lost(&sent, &refused, &right[..1]),
        ),
        (
            "acknowledged, moved",
            nothing_acknowledged_is_lost(&sent, &refused, &moved),
        ),
        (
            "acknowledged, same place",
            nothing_acknowledged_is_lost(&sent, &refused, &same_place),
        ),
        (
            "invented",
            nothing_acknowledged_is_lost(&sent, &BTreeSet::new(), &foreign),
        ),
    ] {
        ensure(outcome.is_err(), || format!("{what}: not noticed"))?;
    }
    Ok(())
}

fn sent(offset: u64, name: &str) -> Sent {
    Sent {
        status: "SEND_OK".into(),
        topic: "T".into(),
        body: name.into(),
        keys: name.into(),
        tags: "A".into(),
        msg_id: None,
        offset_msg_id: None,
        queue_id: Some(0),
        queue_offset: Some(offset),
    }
}

fn received(offset: u64, name: &str) -> Received {
    Received {
        topic: "T".into(),
        body: name.into(),
        keys: name.into(),
        tags: "A".into(),
        number: name.rsplit('-').next().unwrap_or_default().into(),
        msg_id: "unique".into(),
        offset_msg_id: "place".into(),
        queue_id: 0,
        queue_offset: offset,
        reconsume_times: 0,
    }
}
