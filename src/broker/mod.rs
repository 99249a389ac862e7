//! The broker's roles: shards, control, and what they tell each other.

pub mod errors;
pub mod groups;
mod hold;
pub mod news;
mod offsets;
mod parked;
mod pull;
mod query;
mod queue;
mod reply;
mod send;
pub mod shard;
pub mod topics;
mod ways;

pub use queue::Transfer;
