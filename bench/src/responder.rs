//! A peer that answers every frame at once: the network floor under a broker's figures. It is the
//! broker's own loop with a role that does nothing, so that the difference between the two is what
//! the broker does.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use shards::conn::SocketLimits;
use shards::cores::{CorePlan, Plan, RolePlan, Running, start};
use shards::idle::Idle;
use shards::listen::ListenerPlan;
use shards::mesh::Marks;
use shards::{App, Effect, Effects, Input, ListenerId, Mark, Micros, Now, Role, RoleId};

use crate::frames::{NumberReader, frame};

struct Empty;

impl App for Empty {
    type Letter = ();
    type Mark = NoMark;
}

#[derive(Clone, Copy, Debug)]
struct NoMark;

impl Mark for NoMark {
    const KINDS: usize = 0;

    fn new(_: usize, _: u64) -> Self {
        NoMark
    }

    fn kind(self) -> usize {
        0
    }

    fn value(self) -> u64 {
        0
    }
}

/// A send's answer as a broker gives it, around the request's number.
const BEFORE: &str = concat!(
    r#"{"code":0,"extFields":{"msgId":"7F00000100002A9F0000000000000000","queueId":"0","#,
    r#""queueOffset":"0","MSG_REGION":"DefaultRegion","TRACE_ON":"true"},"flag":1,"#,
    r#""language":"JAVA","opaque":"#
);
const BEHIND: &str = r#","serializeTypeCurrentRPC":"JSON","version":479}"#;

#[derive(Default)]
struct Responder {
    reader: NumberReader,
}

impl Role<Empty> for Responder {
    fn handle(&mut self, _: Now, input: Input<'_, Empty>, fx: &mut Effects<'_, Empty>) {
        match input {
            Input::Frame { conn, bytes } => {
                let Some(header) = header(bytes) else {
                    return fx.push(Effect::Close { conn });
                };
                let opaque = self.reader.opaque(header).unwrap_or(0);
                let answer = format!("{BEFORE}{opaque}{BEHIND}");
                fx.reply(conn, |out| {
                    out.extend_from_slice(&frame(answer.as_bytes(), &[]))
                });
            }
            Input::Stop => fx.push(Effect::Stopped),
            _ => {}
        }
    }

    fn deadline(&self) -> Option<Micros> {
        None
    }

    fn name(&self) -> &'static str {
        "responder"
    }
}

/// The JSON header of a frame without its length word.
fn header(bytes: &[u8]) -> Option<&[u8]> {
    let (word, rest) = bytes.split_first_chunk::<4>()?;
    let length = u32::from_be_bytes(*word) & 0xFF_FFFF;
    rest.get(..length as usize)
}

/// A running responder; it ends with the process.
pub struct Floor {
    _running: Running<Empty>,
    pub address: SocketAddr,
}

/// Starts a responder on loopback, on a core like a broker's shard; idle it costs nothing.
pub fn start_responder() -> io::Result<Floor> {
    let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let plan = Plan {
        cores: vec![CorePlan {
            cpu: Some(0),
            idle: Idle::Park,
            ring_entries: 4096,
        }],
        roles: vec![RolePlan {
            id: RoleId(0),
            core: 0,
            build: Box::new(Responder::default),
        }],
        listeners: vec![ListenerPlan::new(ListenerId(0), any_port, vec![RoleId(0)])],
        edge: Box::new(|_, _| None),
        marks: Marks::new(),
        log: None,
        background: None,
        limits: SocketLimits::default(),
        stall_threshold: Micros(10_000),
    };
    let mut running = start(plan).map_err(io::Error::other)?;
    running.open_listeners().map_err(io::Error::other)?;
    let address = running
        .addr(ListenerId(0))
        .ok_or_else(|| io::Error::other("no listener"))?;
    Ok(Floor {
        _running: running,
        address,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_found_and_never_beyond_the_frame() {
        assert_eq!(header(&[0, 0, 0, 2, b'{', b'}', 9]), Some(&b"{}"[..]));
        assert_eq!(header(&[0, 0, 0, 3, b'{', b'}']), None);
        assert_eq!(header(&[0, 0]), None);
    }
}
