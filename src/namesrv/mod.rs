//! The name server: which broker serves which topic, and at which address.
//!
//! [`Routes`] and [`KvConfig`] are plain values: registrations and requests go in, bodies of
//! answers come out, time is an argument, a connection is a number. They know neither frames nor
//! the disk.
//! Spec: namesrv.

mod kv;
pub mod role;
mod routes;

pub use kv::{KvConfig, KvError, ORDER_TOPIC_CONFIG};
pub use role::{Namesrv, NamesrvSettings};
pub use routes::{
    BROKER_TIMEOUT_MS, BrokerKey, Expired, FILTER_SERVERS_MAX, MinBrokerChange, NAME_BYTES_MAX,
    Queried, RegisterError, Registered, Registration, RouteLimits, RouteQuestion, RouteSettings,
    Routes, TopicKind, perm,
};
