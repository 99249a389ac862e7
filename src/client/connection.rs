//! Connections to name servers and brokers, and the requests under way on them. remoting 1, 4, 9.
//!
//! A thread for each connection reads frames into one bounded queue, so that a slow reader holds
//! the servers up instead of filling memory. What arrives while an answer is awaited is kept for
//! [`Connections::next`].

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use super::{BadAnswer, ClientError, LostWhy};
use crate::wire::codes::{Language, RequestCode, ResponseCode};
use crate::wire::frame::{
    self, Encoding, ExtWriter, Frame, LENGTH_BYTES, RequestHead, ResponseHead, Scratch,
    encode_request, encode_response,
};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long ordinary requests may take: Java's clients give offsets that long, other requests 3 s.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Frames read and not yet looked at, of all connections.
const ARRIVALS_MAX: usize = 64;

/// A request on its way: where it went, and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Started {
    connection: u64,
    pub opaque: i32,
}

/// A whole frame: an answer, or a request of the server.
#[derive(Debug)]
pub struct Incoming {
    pub address: Arc<str>,
    pub code: i32,
    pub opaque: i32,
    pub is_response: bool,
    is_oneway: bool,
    connection: u64,
    bytes: Vec<u8>,
}

impl Incoming {
    fn new(arrival: &Arrival, bytes: Vec<u8>) -> Result<Incoming, frame::FrameError> {
        let mut scratch = Scratch::default();
        let header = Frame::decode(&bytes, &mut scratch)?.header;
        Ok(Incoming {
            address: arrival.address.clone(),
            code: header.code,
            opaque: header.opaque,
            is_response: header.is_response(),
            is_oneway: header.is_oneway(),
            connection: arrival.connection,
            bytes,
        })
    }

    /// Reads header and body.
    pub fn read<R>(&self, read: impl FnOnce(&Frame<'_>) -> R) -> R {
        let mut scratch = Scratch::default();
        let frame = Frame::decode(&self.bytes, &mut scratch);
        read(&frame.expect("the same bytes were read when they arrived"))
    }

    /// Reads an answer whose code was looked at.
    pub fn parse<R, E: Into<BadAnswer>>(
        &self,
        request: RequestCode,
        read: impl FnOnce(&Frame<'_>) -> Result<R, E>,
    ) -> Result<R, ClientError> {
        self.read(read).map_err(|why| ClientError::Malformed {
            address: self.address.to_string(),
            request,
            why: why.into(),
        })
    }

    /// The answer as an error.
    pub fn refused(&self, request: RequestCode) -> ClientError {
        ClientError::Refused {
            address: self.address.to_string(),
            request,
            code: ResponseCode(self.code),
            remark: self.read(|frame| frame.header.remark.unwrap_or_default().to_owned()),
        }
    }

    /// Every code but success as an error.
    pub fn succeeded(self, request: RequestCode) -> Result<Incoming, ClientError> {
        match ResponseCode(self.code) {
            ResponseCode::SUCCESS => Ok(self),
            _ => Err(self.refused(request)),
        }
    }
}

/// What a reading thread found.
struct Arrival {
    connection: u64,
    address: Arc<str>,
    what: Result<Vec<u8>, LostWhy>,
}

struct Connection {
    number: u64,
    stream: TcpStream,
}

/// All connections of one client, by address.
pub struct Connections {
    open: BTreeMap<String, Connection>,
    arrivals: Receiver<Arrival>,
    reader: SyncSender<Arrival>,
    kept: VecDeque<Result<Incoming, ClientError>>,
    opened: u64,
    opaque: i32,
    local_ip: IpAddr,
}

impl Connections {
    pub fn new() -> Connections {
        let (reader, arrivals) = sync_channel(ARRIVALS_MAX);
        Connections {
            open: BTreeMap::new(),
            arrivals,
            reader,
            kept: VecDeque::new(),
            opened: 0,
            opaque: 0,
            local_ip: IpAddr::V4(Ipv4Addr::LOCALHOST),
        }
    }

    /// The address from which the newest connection was made.
    pub fn local_ip(&self) -> IpAddr {
        self.local_ip
    }

    /// Whether there is a connection to an address.
    pub fn is_open(&self, address: &str) -> bool {
        self.open.contains_key(address)
    }

    /// Whether an answer can still come.
    pub fn is_under_way(&self, address: &str, started: Started) -> bool {
        let open = self.open.get(address);
        open.is_some_and(|connection| connection.number == started.connection)
    }

    /// Sends a request; its answer comes out of [`Connections::next`].
    ///
    /// # Errors
    /// The other end cannot be reached, or the connection broke.
    pub fn start(
        &mut self,
        address: &str,
        code: RequestCode,
        body: &[u8],
        ext: impl FnOnce(&mut ExtWriter<'_>),
    ) -> Result<Started, ClientError> {
        self.opaque = self.opaque.wrapping_add(1);
        let opaque = self.opaque;
        // Old brokers do not know the language Rust.
        let head = RequestHead {
            language: Language::Other,
            ..RequestHead::new(code, opaque)
        };
        let mut out = Vec::with_capacity(512 + body.len());
        encode_request(&mut out, Encoding::Json, &head, None, body.len(), ext);
        out.extend_from_slice(body);
        let connection = self.connection(address)?;
        let number = connection.number;
        self.write(address, &out)?;
        Ok(Started {
            connection: number,
            opaque,
        })
    }

    /// Sends a request and waits for its answer, whatever its code.
    ///
    /// # Errors
    /// No answer. After [`ClientError::TimedOut`] the connection is closed: what is behind it is
    /// stuck.
    pub fn call(
        &mut self,
        address: &str,
        code: RequestCode,
        timeout: Duration,
        body: &[u8],
        ext: impl FnOnce(&mut ExtWriter<'_>),
    ) -> Result<Incoming, ClientError> {
        let started = self.start(address, code, body, ext)?;
        let deadline = Instant::now() + timeout;
        loop {
            match self.arrival(deadline) {
                None => {
                    self.close(address);
                    return Err(ClientError::TimedOut {
                        address: address.to_owned(),
                        request: code,
                        timeout,
                    });
                }
                Some(Ok(answer)) if answer.is_response && answer.opaque == started.opaque => {
                    return Ok(answer);
                }
                Some(other) => {
                    if !self.is_under_way(address, started)
                        && let Err(error) = other
                    {
                        return Err(error);
                    }
                    self.kept.push_back(other);
                }
            }
        }
    }

    /// The next frame, or the news that a connection was lost; `None` at the deadline.
    pub fn next(&mut self, deadline: Instant) -> Option<Result<Incoming, ClientError>> {
        match self.kept.pop_front() {
            Some(kept) => Some(kept),
            None => self.arrival(deadline),
        }
    }

    /// Answers a request of the server, if it wants an answer and is still there.
    pub fn answer(
        &mut self,
        asked: &Incoming,
        code: ResponseCode,
        remark: Option<&str>,
        body: &[u8],
    ) -> Result<(), ClientError> {
        let open = self.open.get(&*asked.address);
        let is_there = open.is_some_and(|connection| connection.number == asked.connection);
        if asked.is_oneway || !is_there {
            return Ok(());
        }
        let head = ResponseHead {
            code,
            opaque: asked.opaque,
        };
        let encoding = asked.read(|frame| frame.header.encoding);
        let mut out = Vec::with_capacity(256 + body.len());
        encode_response(&mut out, encoding, &head, remark, body.len(), |_| {});
        out.extend_from_slice(body);
        self.write(&asked.address, &out)
    }

    /// Closes a connection; requests on it are lost.
    pub fn close(&mut self, address: &str) {
        if let Some(connection) = self.open.remove(address) {
            // It may be closed already; the reading thread ends either way.
            let _ = connection.stream.shutdown(Shutdown::Both);
        }
    }

    fn connection(&mut self, address: &str) -> Result<&Connection, ClientError> {
        if !self.open.contains_key(address) {
            let connect = self.connect(address);
            let connection = connect.map_err(|source| ClientError::Connect {
                address: address.to_owned(),
                source,
            })?;
            self.open.insert(address.to_owned(), connection);
        }
        Ok(&self.open[address])
    }

    fn connect(&mut self, address: &str) -> io::Result<Connection> {
        let mut result = Err(io::Error::new(
            io::ErrorKind::NotFound,
            "the name has no address",
        ));
        for place in address.to_socket_addrs()? {
            result = TcpStream::connect_timeout(&place, CONNECT_TIMEOUT);
            if result.is_ok() {
                break;
            }
        }
        let stream = result?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
        self.local_ip = stream.local_addr()?.ip();
        self.opened += 1;
        let (number, address) = (self.opened, Arc::from(address));
        let (to, from) = (self.reader.clone(), stream.try_clone()?);
        thread::Builder::new()
            .name("client-read".to_owned())
            .spawn(move || read_frames(from, number, address, &to))?;
        Ok(Connection { number, stream })
    }

    fn write(&mut self, address: &str, bytes: &[u8]) -> Result<(), ClientError> {
        let mut stream = &self.open[address].stream;
        stream.write_all(bytes).map_err(|error| {
            self.close(address);
            ClientError::Lost {
                address: address.to_owned(),
                why: error.into(),
            }
        })
    }

    /// The next arrival that still matters.
    fn arrival(&mut self, deadline: Instant) -> Option<Result<Incoming, ClientError>> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let mut arrival = match self.arrivals.recv_timeout(left) {
                Ok(arrival) => arrival,
                Err(RecvTimeoutError::Timeout) => return None,
                Err(RecvTimeoutError::Disconnected) => unreachable!("`self` holds a sender"),
            };
            let open = self.open.get(&*arrival.address);
            if open.is_none_or(|connection| connection.number != arrival.connection) {
                continue;
            }
            let what = std::mem::replace(&mut arrival.what, Err(LostWhy::Closed));
            let incoming =
                what.and_then(|bytes| Incoming::new(&arrival, bytes).map_err(LostWhy::from));
            return Some(incoming.map_err(|why| {
                self.close(&arrival.address);
                ClientError::Lost {
                    address: arrival.address.to_string(),
                    why,
                }
            }));
        }
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        for connection in self.open.values() {
            // The reading threads end with their connections; nobody waits for them.
            let _ = connection.stream.shutdown(Shutdown::Both);
        }
    }
}

fn read_frames(
    mut stream: TcpStream,
    connection: u64,
    address: Arc<str>,
    to: &SyncSender<Arrival>,
) {
    loop {
        let what = read_frame(&mut stream);
        let is_last = what.is_err();
        let address = address.clone();
        let arrival = Arrival {
            connection,
            address,
            what,
        };
        if to.send(arrival).is_err() || is_last {
            return;
        }
    }
}

fn read_frame(stream: &mut TcpStream) -> Result<Vec<u8>, LostWhy> {
    let mut word = [0; LENGTH_BYTES];
    read_all(stream, &mut word)?;
    let mut bytes = vec![0; frame::frame_length(word)?];
    read_all(stream, &mut bytes)?;
    Ok(bytes)
}

fn read_all(stream: &mut TcpStream, bytes: &mut [u8]) -> Result<(), LostWhy> {
    stream.read_exact(bytes).map_err(|error| {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            LostWhy::Closed
        } else {
            LostWhy::Io(error)
        }
    })
}
