//! Registration with the name servers (namesrv 2.2): everything at first contact and every 30 s,
//! and at once whatever topics changed.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use shards::role::ConnectError;

use crate::broker::topic_table::TopicTable;
use crate::ids::{Conn, Micros, Ticket};
use crate::role::{Effect, Effects};
use crate::wire::bodies::{RegisterBody, TopicConfigTable};
use crate::wire::codes::RequestCode;
use crate::wire::frame::{Encoding, Frame};
use crate::wire::frame::{RequestHead, encode_request};
use crate::wire::headers::{BrokerIdentityRequest, RegisterBrokerRequest};

/// Tickets of connects: this many plus the name server's place.
pub const TICKETS_FROM: u64 = 1 << 32;
/// A name server that starts beside the broker answers soon; a missing one is asked less and less.
const RECONNECT_MS: u64 = 50;
const RECONNECT_MS_MAX: u64 = 5000;
/// Tries before a name server counts as missing: about 1.5 s.
const TRIES_BEFORE_WARNING: u32 = 5;

#[derive(Clone, Debug)]
pub struct Identity {
    pub cluster: String,
    pub broker: String,
    pub broker_id: u64,
    /// `brokerIP1:listenPort`.
    pub address: String,
    /// `brokerIP2:haListenPort`.
    pub ha_address: String,
}

/// Name servers that have taken a registration, for those who wait for the first.
pub type Registered = Arc<AtomicU64>;

#[derive(Debug)]
pub struct Register {
    identity: Identity,
    period_ms: u64,
    timeout_ms: u64,
    permission: i32,
    servers: Vec<Server>,
    opaque: i32,
    pub registered: Registered,
}

#[derive(Debug)]
struct Server {
    address: SocketAddr,
    state: State,
    /// Topics to register before the next full registration.
    changed: BTreeSet<String>,
    full_due: bool,
    full_at: Micros,
    answer_until: Option<(i32, Micros)>,
    failing: bool,
    /// Connects that failed in a row.
    tries: u32,
    counted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed { again_at: Micros },
    Connecting,
    Open(Conn),
}

impl Register {
    #[must_use]
    pub fn new(
        identity: Identity,
        servers: &[SocketAddr],
        (period_ms, timeout_ms): (u64, u64),
        permission: i32,
        registered: Registered,
    ) -> Self {
        let server = |address: &SocketAddr| Server {
            address: *address,
            state: State::Closed {
                again_at: Micros(0),
            },
            changed: BTreeSet::new(),
            full_due: true,
            full_at: Micros(0),
            answer_until: None,
            failing: false,
            tries: 0,
            counted: false,
        };
        let servers = servers.iter().map(server).collect();
        Register {
            identity,
            period_ms,
            timeout_ms,
            permission,
            servers,
            opaque: 0,
            registered,
        }
    }

    pub fn topic_changed(&mut self, name: &str) {
        for server in &mut self.servers {
            server.changed.insert(name.to_owned());
        }
    }

    /// A topic is gone: only a full table says so.
    pub fn topic_gone(&mut self) {
        for server in &mut self.servers {
            server.full_due = true;
        }
    }

    #[must_use]
    pub fn owns(&self, conn: Conn) -> bool {
        self.servers
            .iter()
            .any(|server| server.state == State::Open(conn))
    }

    /// Connects, registers and gives up what does not answer.
    pub fn run(&mut self, now: Micros, topics: &TopicTable, fx: &mut Effects<'_>) {
        for place in 0..self.servers.len() {
            let server = &mut self.servers[place];
            match server.state {
                State::Closed { again_at } if now >= again_at => {
                    server.state = State::Connecting;
                    let ticket = Ticket(TICKETS_FROM + place as u64);
                    fx.push(Effect::Connect {
                        ticket,
                        addr: server.address,
                    });
                }
                State::Open(conn) => {
                    if server.answer_until.is_some_and(|(_, until)| now >= until) {
                        fx.push(Effect::Close { conn });
                        self.closed(now, conn);
                    } else {
                        self.send(now, place, conn, topics, fx);
                    }
                }
                State::Closed { .. } | State::Connecting => {}
            }
        }
    }

    fn send(
        &mut self,
        now: Micros,
        place: usize,
        conn: Conn,
        topics: &TopicTable,
        fx: &mut Effects<'_>,
    ) {
        let server = &mut self.servers[place];
        if server.answer_until.is_some() {
            return;
        }
        let table = if server.full_due || now >= server.full_at {
            server.full_due = false;
            server.full_at = now.plus_millis(self.period_ms);
            topics.wire()
        } else if server.changed.is_empty() {
            return;
        } else {
            topics.wire_of(server.changed.iter())
        };
        server.changed.clear();
        self.opaque = self.opaque.wrapping_add(1);
        server.answer_until = Some((self.opaque, now.plus_millis(self.timeout_ms)));
        let body = self.body(table);
        let identity = &self.identity;
        let head = RequestHead::new(RequestCode::REGISTER_BROKER, self.opaque);
        let request = RegisterBrokerRequest {
            broker_name: &identity.broker,
            broker_addr: &identity.address,
            cluster_name: &identity.cluster,
            ha_server_addr: &identity.ha_address,
            broker_id: identity.broker_id as i64,
            heartbeat_timeout_millis: None,
            enable_acting_master: Some(false),
            compressed: false,
            body_crc32: (crc32fast::hash(&body) & 0x7FFF_FFFF) as i32,
            zone_name: None,
        };
        fx.reply(conn, |out| {
            encode_request(out, Encoding::Json, &head, None, body.len(), |ext| {
                request.encode(ext)
            });
            out.extend_from_slice(&body);
        });
    }

    fn body(&self, mut table: TopicConfigTable) -> Vec<u8> {
        const READ_WRITE: i32 = 6;
        if self.permission != READ_WRITE {
            for topic in table.topic_config_table.values_mut() {
                topic.perm &= self.permission;
            }
        }
        let body = RegisterBody {
            topic_config_serialize_wrapper: table,
            ..Default::default()
        };
        body.encode()
    }

    pub fn connected(&mut self, now: Micros, ticket: Ticket, result: Result<Conn, ConnectError>) {
        let place = ticket
            .0
            .checked_sub(TICKETS_FROM)
            .map(|place| place as usize);
        let Some(server) = place.and_then(|place| self.servers.get_mut(place)) else {
            return;
        };
        match result {
            Ok(conn) => {
                server.tries = 0;
                server.state = State::Open(conn);
                server.full_due = true;
                server.answer_until = None;
            }
            Err(error) => {
                server.tries = server.tries.saturating_add(1);
                if server.tries == TRIES_BEFORE_WARNING && !server.failing {
                    server.failing = true;
                    log::warn!("name server {} cannot be reached: {error}", server.address);
                }
                let wait = RECONNECT_MS << server.tries.min(10);
                let again_at = now.plus_millis(wait.min(RECONNECT_MS_MAX));
                server.state = State::Closed { again_at };
            }
        }
    }

    pub fn closed(&mut self, now: Micros, conn: Conn) {
        for server in &mut self.servers {
            if server.state == State::Open(conn) {
                server.state = State::Closed {
                    again_at: now.plus_millis(RECONNECT_MS),
                };
                server.answer_until = None;
            }
        }
    }

    /// The answer of a name server.
    pub fn answered(&mut self, now: Micros, conn: Conn, frame: &Frame<'_>) {
        let from = |server: &&mut Server| server.state == State::Open(conn);
        let Some(server) = self.servers.iter_mut().find(from) else {
            return;
        };
        let opaque = server.answer_until.map(|(opaque, _)| opaque);
        if !frame.header.is_response() || opaque != Some(frame.header.opaque) {
            return;
        }
        server.answer_until = None;
        if frame.header.code == 0 {
            if std::mem::replace(&mut server.failing, false) {
                log::info!("registered with name server {} again", server.address);
            }
            if !std::mem::replace(&mut server.counted, true) {
                self.registered.fetch_add(1, Ordering::Release);
            }
            return;
        }
        let remark = frame.header.remark.unwrap_or_default();
        let code = frame.header.code;
        log::warn!(
            "name server {} refuses this broker: {code} {remark}",
            server.address
        );
        server.full_due = true;
        server.full_at = now.plus_millis(RECONNECT_MS);
    }

    /// Tells all name servers that this broker leaves.
    pub fn leave(&mut self, fx: &mut Effects<'_>) {
        let identity = &self.identity;
        for server in &self.servers {
            let State::Open(conn) = server.state else {
                continue;
            };
            self.opaque = self.opaque.wrapping_add(1);
            let head = RequestHead::new(RequestCode::UNREGISTER_BROKER, self.opaque);
            let request = BrokerIdentityRequest {
                broker_name: &identity.broker,
                broker_addr: &identity.address,
                cluster_name: &identity.cluster,
                broker_id: identity.broker_id as i64,
            };
            fx.reply(conn, |out| {
                encode_request(out, Encoding::Json, &head, None, 0, |ext| {
                    request.encode(ext)
                });
            });
        }
    }

    #[must_use]
    pub fn deadline(&self) -> Option<Micros> {
        let next = |server: &Server| match server.state {
            State::Closed { again_at } => Some(again_at),
            State::Connecting => None,
            State::Open(_) => match server.answer_until {
                Some((_, until)) => Some(until),
                None if server.full_due || !server.changed.is_empty() => Some(Micros(0)),
                None => Some(server.full_at),
            },
        };
        self.servers.iter().filter_map(next).min()
    }
}
