//! The shard role, driven by hand: requests in, letters to a log and a dispatch of the test's own,
//! answers out. Expected codes and texts are those of Java 5.3.3 (golden/errors-5.3.3.jsonl, rows
//! by number) and of the specification.

mod cores;
mod offsets;
mod pulls;
mod sends;
mod waiting;
mod world;
