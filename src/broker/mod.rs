//! The broker's roles: shards, control, and what they tell each other.

pub mod control;
pub mod group_table;
pub mod members;
pub mod news;
pub mod offset_table;
pub mod topic_table;
