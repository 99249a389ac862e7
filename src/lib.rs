//! ringmq: a message broker with RocketMQ's protocol and files, on io_uring.
//!
//! Data flows one way: frame -> role -> effects -> ring. Start reading at [`role`].

pub mod boot;
pub mod broker;
pub mod cli;
pub mod client;
pub mod commands;
pub mod config;
pub mod flow;
pub mod ids;
pub mod limits;
pub mod namesrv;
pub mod node;
pub mod role;
pub mod store;
pub mod wire;
