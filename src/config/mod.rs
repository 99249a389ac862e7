//! Configuration: one table of knobs, the files that set them, and the layout of the cores.
//!
//! A value comes from a command line flag, else from the file, else from the environment
//! (`NAMESRV_ADDR`), else from its row's default. A key that no row has, a value out of its range
//! and a value that ringmq cannot honour are errors that name the file, the line and the cure;
//! Java passes over the first two in silence. Spec: config-reference.

mod broker;
pub mod cores;
pub mod knobs;
mod load;
mod namesrv;
pub mod properties;
mod unused;
mod values;

pub use broker::BrokerConfig;
pub use cores::{Core, Engine, Idle, Layout, LayoutError, RoleKind, allowed_cpus, default_layout};
pub use load::{
    ChangeError, Flag, LoadError, Loaded, NAMESRV_ADDR, Notice, Place, Problem, Surroundings,
    change, key_table, load, parse,
};
pub use namesrv::NamesrvConfig;
pub use values::{Addresses, BrokerRole, Delays, FlushDiskType, Hours};

#[cfg(test)]
mod tests;
