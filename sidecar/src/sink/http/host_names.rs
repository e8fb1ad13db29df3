//! The host names that the page accepts. A malicious web page can point its own host name at this machine ("DNS
//! rebinding"), so that a browser sends requests here and lets that page read the answers. A request must therefore
//! name an address, which no name server can change, this machine's name, or a configured host.

use std::net::IpAddr;

use axum::http::{HeaderMap, Uri, header};

/// Names accepted besides loopback names and addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostNames {
    own: Vec<String>,
    configured: Vec<String>,
}

impl HostNames {
    /// Creates it. `machine` is this machine's host name. `configured` contains names, `*.DOMAIN` for all names below a
    /// domain, or `*` for any name.
    pub fn new(machine: &str, configured: &[String]) -> HostNames {
        let machine = machine.to_ascii_lowercase();
        let short = machine.split('.').next().unwrap_or_default().to_owned();
        let configured = configured.iter().map(|name| name.trim().to_ascii_lowercase());
        HostNames {
            own: vec![machine, short],
            configured: configured.collect(),
        }
    }

    /// Returns true if a request is for this machine. A request of HTTP/1.0 without a host is accepted, because
    /// browsers do not send such requests.
    pub(super) fn take(&self, uri: &Uri, headers: &HeaderMap) -> bool {
        let mut said = headers.get_all(header::HOST).iter();
        let first = said.next();
        if said.next().is_some() {
            return false;
        }
        let named = first.is_none_or(|host| host.to_str().is_ok_and(|host| self.is_ours(host)));
        named
            && uri
                .authority()
                .is_none_or(|authority| self.is_ours(authority.as_str()))
    }

    /// Returns true if `HOST`, `HOST:PORT` or `[ADDRESS]:PORT` is this machine.
    pub fn is_ours(&self, host: &str) -> bool {
        let name = without_port(host).trim_end_matches('.').to_ascii_lowercase();
        let is_address = name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
        let is_loopback = name == "localhost" || name.ends_with(".localhost");
        is_address || is_loopback || self.own.contains(&name) || self.is_configured(&name)
    }

    fn is_configured(&self, name: &str) -> bool {
        self.configured.iter().any(|known| match known.strip_prefix('*') {
            Some("") => true,
            Some(domain) => domain.starts_with('.') && name.ends_with(domain) && name.len() > domain.len(),
            None => name == known,
        })
    }
}

fn without_port(host: &str) -> &str {
    if let Some((address, _)) = host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return address;
    }
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

/// Checks an entry of `http_hosts`.
///
/// # Errors
/// The expected form.
pub fn check_name(name: &str) -> Result<(), String> {
    let rest = name.strip_prefix("*.").unwrap_or(name);
    let is_label = |label: &str| {
        !label.is_empty()
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    if name == "*" || rest.split('.').all(is_label) {
        Ok(())
    } else {
        Err(format!(
            "{name:?} must be a name without a port, such as node-0.example.org, or *.example.org"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn takes(names: &HostNames, uri: &str, hosts: &[&str]) -> bool {
        let mut headers = HeaderMap::new();
        for host in hosts {
            headers.append(header::HOST, host.parse().unwrap());
        }
        names.take(&uri.parse().unwrap(), &headers)
    }

    #[test]
    fn names_of_this_machine_and_no_others() {
        let configured = ["page.example.org".to_owned(), "*.cluster.local".to_owned()];
        let names = HostNames::new("Node-7.site.org", &configured);
        for host in [
            "localhost",
            "LOCALHOST:9810",
            "a.localhost:1",
            "127.0.0.1:9810",
            "10.1.2.3",
            "[::1]:9810",
            "[fd00::7]",
            "node-7:9810",
            "node-7.site.org.",
            "page.example.org:443",
            "svc.ns.cluster.local:9810",
        ] {
            assert!(takes(&names, "/metrics", &[host]), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:9810",
            "localhost.evil.example",
            "node-7.evil.example",
            "127.0.0.1.evil.example",
            "evilcluster.local",
            ".cluster.local",
            "xpage.example.org",
            "",
        ] {
            assert!(!takes(&names, "/metrics", &[host]), "{host}");
        }
        assert!(takes(&names, "/metrics", &[]), "HTTP/1.0");
        assert!(!takes(&names, "/metrics", &["localhost", "evil.example"]));
        assert!(!takes(&names, "http://evil.example/metrics", &["localhost"]));
        assert!(takes(
            &HostNames::new("n", &["*".to_owned()]),
            "/",
            &["evil.example"]
        ));
    }

    #[test]
    fn what_may_be_configured() {
        for good in ["node-0", "node-0.example.org", "*.example.org", "*", "a_b.c"] {
            assert_eq!(check_name(good), Ok(()), "{good}");
        }
        for wrong in ["", "a:80", "*x.org", "http://a", "a..b", "a.*"] {
            assert!(check_name(wrong).is_err(), "{wrong}");
        }
    }
}
