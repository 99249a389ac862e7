//! What a start prints: the table of cores and the memory budget.

use std::fmt::Write as _;

use crate::config::{BrokerConfig, Layout};
use crate::limits;

const MB: u64 = 1024 * 1024;

/// The table, with what this broker may use of the memory.
pub fn table(layout: &Layout, engine: &str, broker: Option<&BrokerConfig>) -> String {
    let mut text = layout.table();
    if let Some(broker) = broker {
        let _ = writeln!(text, "{engine}");
        text += &memory(layout, broker);
    }
    text
}

fn memory(layout: &Layout, broker: &BrokerConfig) -> String {
    let shards = layout.shards() as u64;
    let cores = layout.cores.len() as u64;
    let index = u64::from(broker.max_hash_slot_num) * 4;
    let connections = u64::from(broker.max_connections) * 20 * 1024;
    let owners = [
        ("log's tail", limits::TAIL_BYTES),
        (
            "lanes between roles",
            shards * limits::APPEND_LANE_BYTES as u64 + 8 * MB,
        ),
        ("receive buffers", cores * 4 * MB),
        (
            "parked sends, at most",
            shards * limits::PARKED_SEND_BYTES_MAX as u64,
        ),
        ("cold reads", cores * 4 * MB),
        ("index slots", index),
        ("background executor", 16 * MB),
        ("connections, 20 KiB each, at most", connections),
    ];
    let total: u64 = owners.iter().map(|(_, bytes)| bytes).sum();
    let mut text = String::from("memory budget, beside 3 KiB for each queue:\n");
    for (owner, bytes) in owners {
        let _ = writeln!(text, "  {:>6} MB  {owner}", bytes.div_ceil(MB));
    }
    let _ = writeln!(text, "  {:>6} MB  in all", total.div_ceil(MB));
    text
}
