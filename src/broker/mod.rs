//! The broker's roles: shards, control, and what they tell each other.

pub mod news;
