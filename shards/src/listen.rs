//! Sockets that come: listeners, accepting, handing over; and outbound connects.
//!
//! A listener is bound before the cores start, listens when the application is ready, and is
//! accepted from on one core. Each new socket goes to the role with the fewest connections among
//! the listener's candidates, through the mailbox of that role's core.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use io_uring::opcode;
use io_uring::types::Timespec;
use slab::Slab;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::ids::{ListenerId, Micros, RoleId, Ticket};
use crate::mesh::ROLES_MAX;
use crate::ring::{Op, Ring, fd};
use crate::role::ConnectError;

/// A listening socket.
#[derive(Clone, Debug)]
pub struct ListenerPlan {
    pub id: ListenerId,
    /// Port 0 lets the kernel choose.
    pub addr: SocketAddr,
    /// Roles that can serve its connections, at least one.
    pub candidates: Vec<RoleId>,
    /// Connections that the kernel completes before they are accepted.
    pub backlog: i32,
    /// Socket buffers of its connections; `None` leaves them to the kernel.
    pub send_buffer_bytes: Option<usize>,
    pub receive_buffer_bytes: Option<usize>,
}

impl ListenerPlan {
    #[must_use]
    pub fn new(id: ListenerId, addr: SocketAddr, candidates: Vec<RoleId>) -> Self {
        ListenerPlan {
            id,
            addr,
            candidates,
            backlog: 1024,
            send_buffer_bytes: None,
            receive_buffer_bytes: None,
        }
    }
}

/// Makes a stream socket without a delay for small segments.
fn stream(addr: &SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(
        Domain::for_address(*addr),
        Type::STREAM.cloexec(),
        Some(Protocol::TCP),
    )?;
    socket.set_tcp_nodelay(true)?;
    Ok(socket)
}

/// Takes the address, without listening yet. Accepted sockets inherit all options set here.
pub(crate) fn bind(plan: &ListenerPlan) -> io::Result<Socket> {
    let socket = stream(&plan.addr)?;
    socket.set_reuse_address(true)?;
    if plan.addr.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    if let Some(bytes) = plan.send_buffer_bytes {
        socket.set_send_buffer_size(bytes)?;
    }
    if let Some(bytes) = plan.receive_buffer_bytes {
        socket.set_recv_buffer_size(bytes)?;
    }
    socket.bind(&SockAddr::from(plan.addr))?;
    Ok(socket)
}

/// How many connections each role has, shared by all cores.
#[derive(Debug)]
pub(crate) struct Loads {
    roles: [AtomicU32; ROLES_MAX],
    total: AtomicU32,
}

impl Loads {
    pub fn new() -> Self {
        Loads {
            roles: [const { AtomicU32::new(0) }; ROLES_MAX],
            total: AtomicU32::new(0),
        }
    }

    pub fn of(&self, role: RoleId) -> u32 {
        self.roles[usize::from(role.0)].load(Ordering::Relaxed)
    }

    pub fn total(&self) -> u32 {
        self.total.load(Ordering::Relaxed)
    }

    pub fn add(&self, role: RoleId) {
        self.roles[usize::from(role.0)].fetch_add(1, Ordering::Relaxed);
        self.total.fetch_add(1, Ordering::Relaxed);
    }

    pub fn sub(&self, role: RoleId) {
        self.roles[usize::from(role.0)].fetch_sub(1, Ordering::Relaxed);
        self.total.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A new socket on its way to its role.
pub(crate) struct Handed {
    pub socket: OwnedFd,
    pub role: RoleId,
    pub listener: ListenerId,
    pub peer: SocketAddr,
}

/// One listener on the core that accepts from it.
pub(crate) struct Acceptor {
    pub id: ListenerId,
    socket: Socket,
    candidates: Vec<RoleId>,
    /// Where the search for the least loaded begins, so that equals take turns.
    next: usize,
    armed: bool,
    /// The application wants connections.
    open: bool,
    retry_at: Option<Micros>,
}

/// What came of one completion of an accept.
pub(crate) enum Accepted {
    Socket(OwnedFd),
    Nothing,
    /// No descriptor or memory was left.
    Exhausted,
}

/// How long accepting rests when no descriptor is left.
const RETRY_MILLIS: u64 = 100;

impl Acceptor {
    pub fn new(id: ListenerId, socket: Socket, candidates: Vec<RoleId>) -> Self {
        Acceptor {
            id,
            socket,
            candidates,
            next: 0,
            armed: false,
            open: false,
            retry_at: None,
        }
    }

    /// Begins to accept; the socket listens already.
    pub fn open(&mut self, ring: &mut Ring, index: u8) {
        self.open = true;
        self.arm(ring, index);
    }

    fn arm(&mut self, ring: &mut Ring, index: u8) {
        if self.open && !self.armed && self.retry_at.is_none() {
            self.armed = true;
            let entry = opcode::AcceptMulti::new(fd(self.socket.as_raw_fd()))
                .flags(libc::SOCK_CLOEXEC)
                .build();
            // SAFETY: names no memory; the core keeps its acceptors as long as its ring.
            unsafe { ring.push(entry, Op::Accept { listener: index }) };
        }
    }

    /// Accepts no more: whoever connects from here on is refused by the kernel.
    pub fn close(&mut self, ring: &mut Ring, index: u8) {
        self.open = false;
        // Fails only where it does not listen yet.
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        if self.armed {
            let target = Op::Accept { listener: index }.pack();
            // SAFETY: names no memory.
            unsafe { ring.push(opcode::AsyncCancel::new(target).build(), Op::Cancel) };
        }
    }

    /// When accepting is to be tried again.
    pub fn retry_at(&self) -> Option<Micros> {
        self.retry_at
    }

    pub fn retry(&mut self, ring: &mut Ring, index: u8, now: Micros) {
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
            self.arm(ring, index);
        }
    }

    /// An accept completed.
    pub fn accepted(
        &mut self,
        ring: &mut Ring,
        index: u8,
        result: i32,
        goes_on: bool,
        now: Micros,
    ) -> Accepted {
        self.armed &= goes_on;
        let accepted = match -result {
            // SAFETY: a descriptor that the kernel just made for us.
            _ if result >= 0 => Accepted::Socket(unsafe { OwnedFd::from_raw_fd(result) }),
            libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS => {
                self.retry_at = Some(now.plus_millis(RETRY_MILLIS));
                Accepted::Exhausted
            }
            // The peer gave up, or we cancelled.
            _ => Accepted::Nothing,
        };
        self.arm(ring, index);
        accepted
    }

    /// The candidate with the fewest connections.
    pub fn choose(&mut self, loads: &Loads) -> RoleId {
        let count = self.candidates.len();
        let from = self.next;
        let place = (0..count)
            .map(|step| (from + step) % count)
            .min_by_key(|place| loads.of(self.candidates[*place]))
            .expect("a listener has candidates");
        self.next = place + 1;
        self.candidates[place]
    }
}

/// An outbound connect under way.
struct Connecting {
    socket: Socket,
    seat: u8,
    ticket: Ticket,
    /// Read by the kernel when the connect is submitted.
    address: Box<SockAddr>,
    within: Box<Timespec>,
}

/// The outbound connects of one core.
#[derive(Default)]
pub(crate) struct Connects {
    under_way: Slab<Connecting>,
}

/// What came of an outbound connect.
pub(crate) struct ConnectDone {
    pub seat: u8,
    pub ticket: Ticket,
    pub result: Result<OwnedFd, ConnectError>,
}

impl Connects {
    /// Begins a connect that is given up after `within`. Fails at once only without a socket.
    pub fn begin(
        &mut self,
        ring: &mut Ring,
        seat: u8,
        ticket: Ticket,
        to: SocketAddr,
        within: Micros,
    ) -> Result<(), ConnectError> {
        let socket =
            stream(&to).map_err(|error| ConnectError::Io(error.raw_os_error().unwrap_or(0)))?;
        let within = std::time::Duration::from_micros(within.0);
        let key = self.under_way.insert(Connecting {
            socket,
            seat,
            ticket,
            address: Box::new(SockAddr::from(to)),
            within: Box::new(Timespec::from(within)),
        });
        let connecting = &self.under_way[key];
        let address = &connecting.address;
        let connect = opcode::Connect::new(
            fd(connecting.socket.as_raw_fd()),
            address.as_ptr().cast(),
            address.len(),
        )
        .build();
        let timeout = opcode::LinkTimeout::new(&*connecting.within).build();
        // SAFETY: the entry of the slab holds the socket, the boxed address and the boxed time
        // until the connect has completed; by then the kernel has read the time of its timeout.
        unsafe {
            ring.push_linked(
                connect,
                Op::Connect { key: key as u32 },
                timeout,
                Op::Cancel,
            );
        }
        Ok(())
    }

    pub fn completed(&mut self, key: u32, result: i32) -> ConnectDone {
        let connecting = self.under_way.remove(key as usize);
        let result = match -result {
            0 => Ok(OwnedFd::from(connecting.socket)),
            libc::ECANCELED => Err(ConnectError::TimedOut),
            errno => Err(ConnectError::Io(errno)),
        };
        ConnectDone {
            seat: connecting.seat,
            ticket: connecting.ticket,
            result,
        }
    }
}

/// The peer of a socket that was accepted.
pub(crate) fn peer_of(socket: &OwnedFd) -> io::Result<SocketAddr> {
    let address = socket2::SockRef::from(&socket.as_fd()).peer_addr()?;
    address
        .as_socket()
        .ok_or_else(|| io::Error::from_raw_os_error(libc::EAFNOSUPPORT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_loaded_candidate_is_chosen_and_equals_take_turns() {
        let addr = "127.0.0.1:0".parse().expect("an address");
        let roles = [RoleId(3), RoleId(9), RoleId(5)];
        let plan = ListenerPlan::new(ListenerId(0), addr, roles.to_vec());
        let socket = bind(&plan).expect("any port is free");
        let mut acceptor = Acceptor::new(plan.id, socket, plan.candidates);
        let loads = Loads::new();
        let mut dealt = Vec::new();
        for _ in 0..6 {
            let role = acceptor.choose(&loads);
            loads.add(role);
            dealt.push(role);
        }
        assert_eq!(dealt, [roles, roles].concat());
        loads.sub(RoleId(9));
        assert_eq!(acceptor.choose(&loads), RoleId(9));
        assert_eq!(loads.total(), 5);
    }
}
