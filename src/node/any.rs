//! Every role behind one enum, so that a core calls it without a table of pointers.

use shards::Now;
use shards::role::Role;

use crate::broker::control::Control;
use crate::broker::shard::Shard;
use crate::ids::Micros;
use crate::namesrv::Namesrv;
use crate::role::{Effects, Input, Ringmq};
use crate::store::dispatch::Dispatch;
use crate::store::index::Index;
use crate::store::log::Log;

pub enum Any {
    Control(Box<Control>),
    Log(Box<Log>),
    Dispatch(Box<Dispatch>),
    Index(Box<Index>),
    Shard(Box<Shard>),
    Namesrv(Box<Namesrv>),
}

macro_rules! each {
    ($any:expr, $role:ident => $call:expr) => {
        match $any {
            Any::Control($role) => $call,
            Any::Log($role) => $call,
            Any::Dispatch($role) => $call,
            Any::Index($role) => $call,
            Any::Shard($role) => $call,
            Any::Namesrv($role) => $call,
        }
    };
}

impl Role<Ringmq> for Any {
    fn handle(&mut self, now: Now, input: Input<'_>, fx: &mut Effects<'_>) {
        each!(self, role => role.handle(now, input, fx));
    }

    fn deadline(&self) -> Option<Micros> {
        each!(self, role => role.deadline())
    }

    fn settles_late(&self) -> bool {
        each!(self, role => role.settles_late())
    }

    fn woken_by(&self) -> u64 {
        each!(self, role => role.woken_by())
    }

    fn name(&self) -> &'static str {
        each!(self, role => role.name())
    }
}
