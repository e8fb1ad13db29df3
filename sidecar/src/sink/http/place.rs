//! Where the page is wanted: an address, or a network interface by its name.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::str::FromStr;

use tokio::net::TcpSocket;

/// Connections that may wait to be taken.
const BACKLOG: u32 = 64;

/// An address, or an interface and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// `127.0.0.1:9810`, `[::1]:9810`.
    Address(SocketAddr),
    /// `eth0:9810`: any address of this interface, and no other.
    Interface(String, u16),
}

/// What is neither.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be ADDRESS:PORT, such as 127.0.0.1:9810, or INTERFACE:PORT, such as eth0:9810")]
pub struct NoPlace;

impl FromStr for Place {
    type Err = NoPlace;

    fn from_str(text: &str) -> Result<Place, NoPlace> {
        if let Ok(address) = text.parse() {
            return Ok(Place::Address(address));
        }
        let (name, port) = text.rsplit_once(':').ok_or(NoPlace)?;
        // IFNAMSIZ with its zero byte (netdevice(7)); what looks like an address is one that was written wrongly.
        let is_name = (1..16).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/')
            && !name.contains([':', '[', ']'])
            && name.bytes().any(|byte| byte.is_ascii_alphabetic());
        let port = port.parse().map_err(|_| NoPlace)?;
        // A pod is told its address without brackets.
        if let Ok(address) = name.parse::<Ipv6Addr>() {
            return Ok(Place::Address(SocketAddr::new(address.into(), port)));
        }
        is_name
            .then(|| Place::Interface(name.to_owned(), port))
            .ok_or(NoPlace)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Address(address) => write!(f, "{address}"),
            Place::Interface(name, port) => write!(f, "{name}:{port}"),
        }
    }
}

impl Place {
    /// Any free port of 127.0.0.1.
    pub fn loopback() -> Place {
        Place::Address(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0))
    }

    /// Zero: any.
    pub fn port(&self) -> u16 {
        match self {
            Place::Address(address) => address.port(),
            Place::Interface(_, port) => *port,
        }
    }

    /// Whether it is every address that this machine has, which nobody has named.
    pub fn is_everywhere(&self) -> bool {
        matches!(self, Place::Address(address) if address.ip().is_unspecified())
    }

    /// Whether other machines can reach it.
    pub fn is_shared(&self) -> bool {
        !matches!(self, Place::Address(address) if address.ip().is_loopback())
    }

    /// Listens there. To be called within a runtime.
    ///
    /// # Errors
    /// What the system says.
    pub fn bind(&self) -> std::io::Result<TcpListener> {
        match self {
            Place::Address(address) => TcpListener::bind(address),
            Place::Interface(name, port) => {
                let socket = TcpSocket::new_v4()?;
                socket.set_reuseaddr(true)?;
                socket.bind_device(Some(name.as_bytes()))?;
                socket.bind(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), *port))?;
                socket.listen(BACKLOG)?.into_std()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        let place = |text: &str| text.parse::<Place>();
        for text in ["127.0.0.1:0", "[::1]:9810", "eth0:9810", "ib0.8001:1"] {
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
            "averyveryverylongname:1",
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
