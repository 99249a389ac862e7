//! ringmq.

pub mod config;
