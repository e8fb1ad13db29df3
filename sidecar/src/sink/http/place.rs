//! The requested place of the page, which is an address, a network interface or a host name of this machine.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::path::Path;
use std::str::FromStr;
use std::sync::mpsc::channel;
use std::time::Duration;

use tokio::net::TcpSocket;

/// Length of the kernel's queue of connections that are not accepted yet.
const BACKLOG: u32 = 64;
/// Timeout of a name lookup. It is short, so that monitoring does not wait for a slow name server.
const RESOLVE: Duration = Duration::from_secs(3);
/// The longest host name (RFC 1035, 2.3.4).
const MAX_NAME: usize = 253;

/// An address, or a name and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// `127.0.0.1:9810`, `[::1]:9810`.
    Address(SocketAddr),
    /// `eth0:9810`: any address of this interface, and no other. `localhost:9810`, `node-7:9810`: the address of this
    /// host name. Which of the two is meant is decided when the socket is bound. An interface takes precedence.
    Named(String, u16),
}

/// Not a valid place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "must be ADDRESS:PORT, INTERFACE:PORT or HOST:PORT, such as 127.0.0.1:9810, eth0:9810 or localhost:9810"
)]
pub struct NoPlace;

impl FromStr for Place {
    type Err = NoPlace;

    fn from_str(text: &str) -> Result<Place, NoPlace> {
        if let Ok(address) = text.parse() {
            return Ok(Place::Address(address));
        }
        let (name, port) = text.rsplit_once(':').ok_or(NoPlace)?;
        // Text that looks like an address but was not parsed above is a malformed address.
        let is_name = (1..=MAX_NAME).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/')
            && !name.contains([':', '[', ']'])
            && name.bytes().any(|byte| byte.is_ascii_alphabetic());
        let port = port.parse().map_err(|_| NoPlace)?;
        // A pod gets its own IPv6 address in a variable, without brackets.
        if let Ok(address) = name.parse::<Ipv6Addr>() {
            return Ok(Place::Address(SocketAddr::new(address.into(), port)));
        }
        is_name
            .then(|| Place::Named(name.to_owned(), port))
            .ok_or(NoPlace)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Address(address) => write!(f, "{address}"),
            Place::Named(name, port) => write!(f, "{name}:{port}"),
        }
    }
}

impl Place {
    /// Returns a free port on 127.0.0.1.
    pub fn loopback() -> Place {
        Place::Address(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0))
    }

    /// Returns the port, or zero for any port.
    pub fn port(&self) -> u16 {
        match self {
            Place::Address(address) => address.port(),
            Place::Named(_, port) => *port,
        }
    }

    /// Returns true if it is all addresses of this machine (unspecified).
    pub fn is_everywhere(&self) -> bool {
        matches!(self, Place::Address(address) if address.ip().is_unspecified())
    }

    /// Returns true if other machines can reach it.
    pub fn is_shared(&self) -> bool {
        match self {
            Place::Address(address) => !address.ip().is_loopback(),
            // `localhost` is never another machine (RFC 6761, 6.3).
            Place::Named(name, _) => name != "localhost",
        }
    }

    /// Starts to listen there. Must be called within a runtime.
    ///
    /// # Errors
    /// The system's error, with a clearer message where needed.
    pub fn bind(&self) -> io::Result<TcpListener> {
        match self {
            Place::Address(address) => {
                TcpListener::bind(address).map_err(|error| explained(error, &address.ip().to_string()))
            }
            Place::Named(name, port) if !is_interface(name) => {
                let addresses = resolve(name, *port)?;
                // Do not pass the whole list to `bind`, so that the error of the first address is reported, for example
                // that of 127.0.0.1 before ::1.
                let mut problem = None;
                for address in &addresses {
                    match TcpListener::bind(address) {
                        Ok(listener) => return Ok(listener),
                        Err(error) => problem = problem.or(Some(error)),
                    }
                }
                let problem = problem.unwrap_or_else(|| io::ErrorKind::NotFound.into());
                Err(explained(problem, name))
            }
            Place::Named(name, port) => {
                let socket = TcpSocket::new_v4()?;
                socket.set_reuseaddr(true)?;
                socket.bind_device(Some(name.as_bytes()))?;
                socket.bind(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), *port))?;
                socket.listen(BACKLOG)?.into_std()
            }
        }
    }
}

impl Place {
    /// Checks that it is possible to listen there now. Must be called outside a runtime.
    ///
    /// # Errors
    /// Like [`Place::bind`].
    pub fn probe(&self) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let _entered = runtime.enter();
        self.bind().map(drop)
    }
}

/// Returns true for the name of a network interface. The limit is IFNAMSIZ including its zero byte (netdevice(7)).
fn is_interface(name: &str) -> bool {
    name.len() < 16 && Path::new("/sys/class/net").join(name).exists()
}

/// Returns the addresses of a host name, IPv4 first, because `localhost` usually means IPv4.
fn resolve(name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let (sender, found) = channel();
    let asked = name.to_owned();
    // An unreachable name server may take minutes. The thread ends by itself after that.
    std::thread::Builder::new()
        .name("resolve".into())
        .spawn(move || {
            let addresses = (&*asked, port).to_socket_addrs().map(Iterator::collect::<Vec<_>>);
            let _ = sender.send(addresses);
        })?;
    let unknown = |why: &str| {
        let text = format!("no network interface or host is called {name} here ({why})");
        io::Error::new(io::ErrorKind::NotFound, text)
    };
    match found.recv_timeout(RESOLVE) {
        Ok(Ok(mut addresses)) if !addresses.is_empty() => {
            addresses.sort_by_key(SocketAddr::is_ipv6);
            Ok(addresses)
        }
        Ok(Ok(_)) => Err(unknown("the name has no address")),
        Ok(Err(error)) => Err(unknown(&error.to_string())),
        Err(_) => Err(unknown("the name server does not answer")),
    }
}

/// Returns the error with an actionable message.
fn explained(error: io::Error, name: &str) -> io::Error {
    let text = match error.kind() {
        io::ErrorKind::AddrNotAvailable => format!("{name} is not an address of this machine"),
        io::ErrorKind::PermissionDenied => {
            format!("{error}: ports below 1024 need root; choose a higher one")
        }
        _ => return error,
    };
    io::Error::new(error.kind(), text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_name_is_bound_and_one_that_is_none_is_named() {
        let place = |text: &str| text.parse::<Place>().unwrap();
        let listener = place("localhost:0").bind().unwrap();
        assert!(listener.local_addr().unwrap().ip().is_loopback());
        assert!(!place("localhost:0").is_shared());
        let unknown = place("no-such-host.invalid:0").bind().unwrap_err().to_string();
        assert!(
            unknown.starts_with("no network interface or host is called no-such-host.invalid here"),
            "{unknown}"
        );
        // TEST-NET-1 (RFC 5737) is never assigned.
        let other = place("192.0.2.1:0").bind().unwrap_err().to_string();
        assert_eq!(other, "192.0.2.1 is not an address of this machine");
        let taken = format!("localhost:{}", listener.local_addr().unwrap().port());
        assert_eq!(place(&taken).bind().unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn places() {
        let place = |text: &str| text.parse::<Place>();
        let long = format!("{}.example:9810", "node".repeat(20));
        for text in [
            "127.0.0.1:0",
            "[::1]:9810",
            "eth0:9810",
            "ib0.8001:1",
            "localhost:9811",
            &long,
        ] {
            assert_eq!(place(text).unwrap().to_string(), text);
        }
        assert_eq!(place("fd00::7:9810").unwrap().to_string(), "[fd00::7]:9810");
        for text in [
            "",
            "eth0",
            "eth0:",
            ":1",
            "1.2.3:4",
            "eth0:70000",
            "a/b:1",
            &format!("{}:1", "n".repeat(300)),
        ] {
            assert_eq!(place(text), Err(NoPlace), "{text}");
        }
        let check = |text: &str| {
            let place = place(text).unwrap();
            (place.is_shared(), place.is_everywhere())
        };
        assert_eq!(check("127.0.0.1:0"), (false, false));
        assert_eq!(check("10.0.0.1:0"), (true, false));
        assert_eq!(check("0.0.0.0:0"), (true, true));
        assert_eq!(check("lo:0"), (true, false));
    }
}
