//! A peer that answers every frame at once: the network floor under a broker's figures.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::thread;

use io_uring::{IoUring, cqueue, opcode, squeue, types};

use crate::frames::{FrameError, Framer, NumberReader, frame};
use crate::ring::{self, BufferRing};

const RING_ENTRIES: u32 = 1024;
const RECEIVE_BUFFERS: u16 = 128;
const RECEIVE_BUFFER_BYTES: usize = 32 * 1024;
const RECEIVE_GROUP: u16 = 0;
/// The accepting operation; connections have the numbers of their descriptors.
const ACCEPT: u64 = u64::MAX;
const SENT: u64 = 1 << 32;

/// Starts a responder on loopback that lives as long as the process; idle it costs nothing.
pub fn start_responder() -> io::Result<SocketAddr> {
    let listener = TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    thread::Builder::new()
        .name("responder".into())
        .spawn(move || {
            if let Err(error) = Responder::new(listener).and_then(|mut responder| responder.serve())
            {
                eprintln!("ringmq-bench: the empty responder failed: {error}");
            }
        })?;
    Ok(address)
}

struct Responder {
    ring: IoUring,
    buffers: BufferRing,
    listener: TcpListener,
    /// By descriptor.
    peers: Vec<Option<Peer>>,
    /// Peers with answers to send and no send in flight.
    ready: Vec<RawFd>,
    sends_in_flight: usize,
}

struct Peer {
    stream: TcpStream,
    framer: Framer,
    reader: NumberReader,
    answers: Vec<u8>,
    /// The bytes of the send in flight; empty while there is none.
    sending: Vec<u8>,
    receiving: bool,
}

impl Responder {
    fn new(listener: TcpListener) -> io::Result<Self> {
        let ring = ring::ring(RING_ENTRIES)?;
        let buffers = BufferRing::new(&ring, RECEIVE_GROUP, RECEIVE_BUFFERS, RECEIVE_BUFFER_BYTES)?;
        let (peers, ready) = (Vec::new(), Vec::new());
        Ok(Responder {
            ring,
            buffers,
            listener,
            peers,
            ready,
            sends_in_flight: 0,
        })
    }

    fn serve(&mut self) -> io::Result<()> {
        self.accept()?;
        let answer = Answer::new();
        loop {
            self.send_all()?;
            self.ring.submit_and_wait(self.sends_in_flight + 1)?;
            self.turn(&answer)?;
            self.buffers.publish();
        }
    }

    fn turn(&mut self, answer: &Answer) -> io::Result<()> {
        let mut accepted = Vec::new();
        let mut ended = Vec::new();
        for completion in self.ring.completion() {
            let (number, result) = (completion.user_data(), completion.result());
            if number == ACCEPT {
                accepted.push((result, cqueue::more(completion.flags())));
                continue;
            }
            let fd = number as u32 as RawFd;
            let Some(Some(peer)) = self.peers.get_mut(fd as usize) else {
                continue;
            };
            if number & SENT != 0 {
                self.sends_in_flight -= 1;
                peer.sending.clear();
                if !peer.answers.is_empty() && result >= 0 {
                    self.ready.push(fd);
                }
            } else {
                if let Some(buffer) = cqueue::buffer_select(completion.flags()) {
                    let bytes = self.buffers.filled(buffer, result.max(0) as usize);
                    let had_none = peer.answers.is_empty();
                    let valid = peer.hear(bytes, answer).is_ok();
                    self.buffers.give_back(buffer);
                    if had_none && peer.sending.is_empty() && !peer.answers.is_empty() {
                        self.ready.push(fd);
                    }
                    if !valid {
                        let _already_closed = peer.stream.shutdown(std::net::Shutdown::Both);
                    }
                }
                peer.receiving = cqueue::more(completion.flags());
                if !peer.receiving {
                    ended.push((fd, result));
                }
            }
        }
        for (fd, more) in accepted {
            self.welcome(fd, more)?;
        }
        for (fd, result) in ended {
            self.receive_again_or_part(fd, result)?;
        }
        Ok(())
    }

    fn send_all(&mut self) -> io::Result<()> {
        while let Some(fd) = self.ready.pop() {
            let Some(Some(peer)) = self.peers.get_mut(fd as usize) else {
                continue;
            };
            std::mem::swap(&mut peer.answers, &mut peer.sending);
            let length = peer.sending.len() as u32;
            let entry = opcode::Send::new(types::Fd(fd), peer.sending.as_ptr(), length)
                .flags(libc::MSG_WAITALL | libc::MSG_NOSIGNAL)
                .build()
                .user_data(SENT | fd as u64);
            self.sends_in_flight += 1;
            self.push(entry)?;
        }
        Ok(())
    }

    fn accept(&mut self) -> io::Result<()> {
        let listener = types::Fd(self.listener.as_raw_fd());
        self.push(opcode::AcceptMulti::new(listener).build().user_data(ACCEPT))
    }

    fn welcome(&mut self, fd: RawFd, more: bool) -> io::Result<()> {
        if fd < 0 {
            return Err(io::Error::from_raw_os_error(-fd));
        }
        // SAFETY: the kernel has just made this descriptor for us; nobody else knows it.
        let stream = unsafe { TcpStream::from_raw_fd(fd) };
        stream.set_nodelay(true)?;
        self.peers
            .resize_with(self.peers.len().max(fd as usize + 1), || None);
        self.peers[fd as usize] = Some(Peer {
            stream,
            framer: Framer::default(),
            reader: NumberReader::default(),
            answers: Vec::new(),
            sending: Vec::new(),
            receiving: true,
        });
        self.push(receive(fd))?;
        if more { Ok(()) } else { self.accept() }
    }

    fn receive_again_or_part(&mut self, fd: RawFd, result: i32) -> io::Result<()> {
        let again = result > 0 || result == -libc::ENOBUFS;
        if let Some(Some(peer)) = self.peers.get_mut(fd as usize).filter(|_| again) {
            peer.receiving = true;
            return self.push(receive(fd));
        }
        // A send in flight keeps the peer and its bytes; a broken socket ends it soon.
        if self.peers[fd as usize]
            .as_ref()
            .is_some_and(|peer| peer.sending.is_empty())
        {
            self.peers[fd as usize] = None;
        }
        Ok(())
    }

    fn push(&mut self, entry: squeue::Entry) -> io::Result<()> {
        // SAFETY: a send points into its peer's `sending`, which stays until it has completed;
        // the other entries point at nothing.
        while unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.ring.submit()?;
        }
        Ok(())
    }
}

impl Peer {
    fn hear(&mut self, bytes: &[u8], answer: &Answer) -> Result<(), FrameError> {
        let Peer {
            framer,
            reader,
            answers,
            ..
        } = self;
        framer.feed(bytes, |header| {
            let opaque = reader.opaque(header);
            let opaque = opaque.ok_or_else(|| {
                FrameError::NoNumbers(String::from_utf8_lossy(header).into_owned())
            })?;
            answer.append(opaque, answers);
            Ok(())
        })
    }
}

fn receive(fd: RawFd) -> squeue::Entry {
    opcode::RecvMulti::new(types::Fd(fd), RECEIVE_GROUP)
        .build()
        .user_data(fd as u64)
}

/// The answer to a send, all of it fixed but the opaque.
struct Answer {
    before: Vec<u8>,
    after: &'static [u8],
}

/// An opaque is right-aligned in as many places as an `i32` can need.
const OPAQUE_PLACES: usize = 11;

impl Answer {
    fn new() -> Self {
        let before = b"{\"code\":0,\"extFields\":{\"msgId\":\"7F000001000051AF0000000000000000\",\
            \"queueId\":\"0\",\"queueOffset\":\"0\",\"MSG_REGION\":\"DefaultRegion\",\
            \"TRACE_ON\":\"true\"},\"flag\":1,\"opaque\":";
        let after = b",\"version\":479}";
        let places = [b' '; OPAQUE_PLACES];
        let header = [&before[..], &places, after].concat();
        let whole = frame(&header, &[]);
        let before_bytes = whole.len() - OPAQUE_PLACES - after.len();
        Answer {
            before: whole[..before_bytes].to_vec(),
            after,
        }
    }

    fn append(&self, opaque: i32, answers: &mut Vec<u8>) {
        let mut places = [b' '; OPAQUE_PLACES];
        let mut rest = opaque.unsigned_abs();
        let mut at = OPAQUE_PLACES - 1;
        loop {
            places[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
            at -= 1;
        }
        if opaque < 0 {
            places[at - 1] = b'-';
        }
        answers.extend_from_slice(&self.before);
        answers.extend_from_slice(&places);
        answers.extend_from_slice(self.after);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_a_frame_with_the_opaque_that_was_asked() {
        for opaque in [0, 7, 1_999_999_999, -1, i32::MIN] {
            let mut bytes = Vec::new();
            Answer::new().append(opaque, &mut bytes);
            let mut seen = Vec::new();
            let result = Framer::default().feed::<FrameError>(&bytes, |header| {
                let json: serde_json::Value = serde_json::from_slice(header).expect("JSON");
                seen.push((json["code"].as_i64(), json["opaque"].as_i64()));
                Ok(())
            });
            result.expect("a valid frame");
            assert_eq!(seen, [(Some(0), Some(i64::from(opaque)))]);
        }
    }
}
