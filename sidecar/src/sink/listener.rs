//! Finds the owner of the process that listens at an address of this host, from the kernel's socket tables
//! (proc_net_tcp).

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The state TCP_LISTEN in the tables.
const LISTENS: &str = "0A";

/// Returns the user whose socket accepts connections to this address, or `None` if there is none in this network
/// namespace.
pub(super) fn owner(address: SocketAddr) -> Option<u32> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let tables = [read("/proc/net/tcp"), read("/proc/net/tcp6")].concat();
    owner_in(&tables, address)
}

/// Like [`owner`], from these tables. A socket bound to the address takes precedence over one bound to all addresses.
fn owner_in(tables: &str, address: SocketAddr) -> Option<u32> {
    let listeners: Vec<(SocketAddr, u32)> = tables.lines().filter_map(listener).collect();
    let of = |is_it: &dyn Fn(IpAddr) -> bool| {
        let mut found = listeners.iter().filter(|(at, _)| at.port() == address.port());
        found
            .find(|(at, _)| is_it(at.ip().to_canonical()))
            .map(|(_, user)| *user)
    };
    of(&|ip| ip == address.ip()).or_else(|| of(&|ip| ip.is_unspecified()))
}

/// Parses a line such as `0: 0100007F:2653 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 ...`.
fn listener(line: &str) -> Option<(SocketAddr, u32)> {
    let parts: Vec<&str> = line.split_whitespace().collect();
    if parts.get(3) != Some(&LISTENS) {
        return None;
    }
    let (ip, port) = parts[1].split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    Some((SocketAddr::new(ip_of(ip)?, port), parts.get(7)?.parse().ok()?))
}

/// Parses an address of 32-bit words in this machine's byte order.
fn ip_of(text: &str) -> Option<IpAddr> {
    let words = text.as_bytes().chunks(8).map(|word| {
        let word = std::str::from_utf8(word).ok()?;
        u32::from_str_radix(word, 16).ok().map(u32::to_ne_bytes)
    });
    let bytes = words.collect::<Option<Vec<_>>>()?.concat();
    if let Ok(four) = <[u8; 4]>::try_from(bytes.as_slice()) {
        return Some(Ipv4Addr::from(four).into());
    }
    let sixteen = <[u8; 16]>::try_from(bytes.as_slice()).ok()?;
    Some(Ipv6Addr::from(sixteen).into())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_listener_of_ours_is_found() {
        for at in ["127.0.0.1:0", "0.0.0.0:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(at) else {
                continue;
            };
            let mut address = listener.local_addr().unwrap();
            if address.ip().is_unspecified() {
                address.set_ip(Ipv4Addr::LOCALHOST.into());
            }
            assert_eq!(owner(address), Some(rustix::process::geteuid().as_raw()), "{at}");
            drop(listener);
            // A process that another test is starting holds a copy of the socket until it calls exec.
            let is_gone = (0..500).any(|_| {
                std::thread::sleep(std::time::Duration::from_millis(10));
                owner(address).is_none()
            });
            assert!(is_gone, "{at}");
        }
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn the_nearest_socket_counts() {
        let tables = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
             0: 00000000:2653 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0\n\
             1: 0100007F:2653 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1001        0 1 1 0 100 0 0 10 0\n\
             2: 0100007F:2654 0100007F:1234 01 00000000:00000000 00:00000000 00000000  1002        0 1 1 0 100 0 0 10 0\n\
             3: 00000000000000000000000001000000:2655 00000000000000000000000000000000:0000 0A 0:0 00:0 0  1003        0 1\n";
        let check = |at: &str| owner_in(tables, at.parse().unwrap());
        assert_eq!(check("127.0.0.1:9811"), Some(1001));
        assert_eq!(check("10.0.0.1:9811"), Some(0));
        assert_eq!(check("127.0.0.1:9812"), None, "a connection");
        assert_eq!(check("[::1]:9813"), Some(1003));
    }
}
