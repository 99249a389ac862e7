//! RocketMQ's bytes: frames and their two headers, request and response fields, JSON bodies,
//! stored records, client batches, message ids.
//!
//! Nothing here does input or output, keeps state or knows what a request means. What comes from
//! outside is checked once and becomes another type ([`frame::Frame`], [`record::Record`],
//! [`batch::Batch`]); what goes out is strict. Numbers stay plain `u64` and `i64`.

pub mod batch;
mod binary;
pub mod bodies;
pub mod codes;
pub mod fastjson;
pub mod frame;
pub mod headers;
mod json;
pub mod message_id;
pub mod properties;
pub mod record;
mod scan;
mod write;

#[cfg(test)]
mod tests;

pub use codes::{Language, RequestCode, ResponseCode};
pub use frame::{
    Encoding, ExtWriter, Frame, FrameError, Header, RequestHead, ResponseHead, Scratch,
};
pub use frame::{encode_request, encode_response};
