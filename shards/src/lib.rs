//! The runtime of ringmq: pinned cores, each with one ring and one loop, and between them edges
//! that never block; a log of segments on disk and of chunks in memory.
//!
//! It knows nothing of records, topics or queues. An application brings its letters and marks
//! ([`App`]) and its roles ([`Role`]); a role decides and returns [`Effect`]s, this crate does
//! them.
//!
//! | module | what it owns |
//! |---|---|
//! | [`role`] | what a role can hear ([`Input`]) and ask ([`Effect`]) |
//! | [`mesh`] | edges: letters with byte lanes, marks, doorbells |
//! | [`cores`] | the entrance: a plan of cores and roles, start, stop |
//! | [`idle`] | clocks; spin, adaptive, park |
//! | [`stall`] | counters, stalls |
//! | [`listen`], [`conn`] | sockets that come, frames, bounds |
//! | [`chunk`] | the log's tail in memory: write buffer and cache in one |
//! | [`ring`] | one core's io_uring: operations, submitting, reaping |
//! | [`segments`] | the log's segments on disk, open on every core |
//! | [`disk`] | writes, flushes and reads of one core; [`descriptors`], [`faults`] |
//! | [`files`], [`real_files`] | file verbs as steps, between which a simulated disk can stop |
//! | [`background`], [`log_lines`] | the executor for slow work, and the cores' log lines |
//! | [`probe`], [`lock`] | facts about the machine, and the store's lock, before start |

pub mod background;
pub mod chunk;
pub mod conn;
pub mod cores;
pub mod descriptors;
pub mod disk;
pub mod faults;
pub mod files;
mod hands;
pub mod idle;
pub mod ids;
mod inputs;
pub mod listen;
pub mod lock;
pub mod log_lines;
pub mod mesh;
mod out;
pub mod probe;
mod range;
pub mod real_files;
mod receive;
pub mod ring;
pub mod role;
mod segment_jobs;
pub mod segments;
mod sleep;
pub mod stall;
mod stop;
mod turn;

/// What `sleep` is built on, so that its test can put loom in its place.
mod sync {
    pub use std::sync::atomic::{AtomicBool, Ordering, fence};
}

pub use ids::{
    Conn, FileDir, FileRef, ListenerId, LogOffset, LogRange, Micros, Millis, RoleId, Ticket,
};
pub use role::{App, Body, Effect, Effects, Full, Input, LastBlock, Mark, Now, ReadAt, Role, Span};
