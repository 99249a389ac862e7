//! The broker's roles: shards, control, and what they tell each other.

pub mod control;
pub mod errors;
pub mod group_table;
pub mod groups;
mod hold;
pub mod members;
pub mod news;
pub mod offset_table;
mod offsets;
mod parked;
mod pull;
mod query;
mod queue;
mod reply;
mod send;
pub mod shard;
mod shard_config;
pub mod topic_table;
pub mod topics;
mod unique;
mod ways;

pub use queue::Transfer;

#[cfg(test)]
mod tests;
