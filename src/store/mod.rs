//! The store.
pub mod dispatch;
pub mod follow;
pub mod index;
pub mod index_file;
pub mod queues;
