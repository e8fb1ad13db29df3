//! One query to NCCL's RAS service and its response, limited in time and size.
//!
//! The protocol is that of `ncclras` (src/ras/client.cc of <https://github.com/NVIDIA/nccl>). Both sides first exchange
//! lines. Then the service sends the response and closes the connection. A service without JSON (before 2.28.7)
//! responds with text.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use paceline_health::event::RasReport;

use super::text::TextError;
use super::{json, text};

/// Version of the protocol.
const PROTOCOL: u32 = 2;
/// Maximum length of a line before the response.
const MAX_LINE: u64 = 1 << 10;

/// Limits of a query.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Timeout for connecting, and for each line before the response.
    pub connect: Duration,
    /// How long the service may wait for its other processes, in whole seconds. It collects twice, and each time waits
    /// up to five seconds longer than this (RAS_COLLECTIVE_EXTRA_TIMEOUT_SEC).
    pub peers: Duration,
    /// Timeout for the whole query.
    pub whole: Duration,
    /// Maximum bytes of a response.
    pub bytes: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connect: Duration::from_secs(2),
            peers: Duration::from_secs(3),
            whole: Duration::from_secs(40),
            bytes: 64 << 20,
        }
    }
}

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// No process listens at the address.
    #[error("{address}: {problem}")]
    Absent {
        /// The address.
        address: String,
        /// The system's error.
        problem: io::Error,
    },
    /// The connection failed or timed out.
    #[error("{during}: {problem}")]
    Broken {
        /// The stage of the exchange.
        during: &'static str,
        /// The system's error.
        problem: io::Error,
    },
    /// A program other than NCCL listens at the address.
    #[error("`{asked}` was answered by {answer:?}")]
    Stranger {
        /// The request.
        asked: String,
        /// The response.
        answer: String,
    },
    /// The response is not JSON of the expected structure.
    #[error("the answer in JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// The response is not text of the expected structure.
    #[error("the answer as text: {0}")]
    Text(#[from] TextError),
}

/// Sends one query.
///
/// # Errors
/// [`AskError`]. The query never takes longer than `limits.whole`, except for a name lookup.
pub fn ask(address: &str, limits: &Limits) -> Result<RasReport, AskError> {
    let until = Instant::now() + limits.whole;
    let mut talk = Talk::connect(address, until, limits)?;
    let (hello, greeting) = (format!("CLIENT PROTOCOL {PROTOCOL}"), "SERVER PROTOCOL ");
    let answer = talk.say(&hello)?;
    let is_ras = answer
        .get(..greeting.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(greeting));
    if !is_ras {
        let asked = hello;
        return Err(AskError::Stranger { asked, answer });
    }
    // Ignore the replies: if the service rejects one of these, its default is good enough.
    talk.say(&format!("TIMEOUT {}", limits.peers.as_secs()))?;
    talk.say("SET FORMAT json")?;
    talk.send("VERBOSE STATUS")?;
    talk.answer(limits.bytes)
}

/// Reads a response to its end. Detects the format from the first byte, whatever was negotiated.
///
/// # Errors
/// [`AskError`].
pub fn read(answer: impl Read) -> Result<RasReport, AskError> {
    let mut answer = BufReader::new(answer);
    let during = "waiting for the answer";
    let broken = |problem| AskError::Broken { during, problem };
    match answer.fill_buf().map_err(broken)?.first() {
        None => Err(broken(io::ErrorKind::UnexpectedEof.into())),
        Some(b'{') => Ok(json::read(answer)?),
        Some(_) => Ok(text::read(answer)?),
    }
}

struct Talk(BufReader<Timed>);

impl Talk {
    fn connect(address: &str, until: Instant, limits: &Limits) -> Result<Talk, AskError> {
        let absent = |problem| AskError::Absent {
            address: address.to_owned(),
            problem,
        };
        let places: Vec<SocketAddr> = address.to_socket_addrs().map_err(absent)?.collect();
        let mut problem = io::Error::from(io::ErrorKind::NotFound);
        for place in places {
            match TcpStream::connect_timeout(&place, limits.connect) {
                Ok(stream) => {
                    let timed = Timed { stream, until };
                    return Ok(Talk(BufReader::new(timed)));
                }
                Err(other) => problem = other,
            }
        }
        match problem.kind() {
            io::ErrorKind::TimedOut => Err(AskError::Broken {
                during: "connecting",
                problem,
            }),
            _ => Err(absent(problem)),
        }
    }

    fn send(&mut self, line: &str) -> Result<(), AskError> {
        let during = "asking";
        let sent = self.0.get_mut().write_line(line);
        sent.map_err(|problem| AskError::Broken { during, problem })
    }

    /// Sends a line and returns the line of the reply.
    fn say(&mut self, line: &str) -> Result<String, AskError> {
        self.send(line)?;
        let during = "waiting for a line";
        let broken = |problem| AskError::Broken { during, problem };
        let mut answer = Vec::new();
        let count = (&mut self.0)
            .take(MAX_LINE)
            .read_until(b'\n', &mut answer)
            .map_err(broken)?;
        if count == 0 {
            return Err(broken(io::ErrorKind::UnexpectedEof.into()));
        }
        Ok(String::from_utf8_lossy(&answer).trim_end().to_owned())
    }

    fn answer(mut self, bytes: u64) -> Result<RasReport, AskError> {
        read(self.0.by_ref().take(bytes))
    }
}

/// A stream with a deadline for all reads and writes together, however slowly bytes arrive.
struct Timed {
    stream: TcpStream,
    until: Instant,
}

impl Timed {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(Some(left))
    }

    fn write_line(&mut self, line: &str) -> io::Result<()> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write_all(format!("{line}\n").as_bytes())
    }
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(buffer).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
            _ => error,
        })
    }
}
