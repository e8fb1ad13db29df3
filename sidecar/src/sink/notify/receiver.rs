//! Receivers of notices, in the form `KIND=WHERE[,KEY=VALUE...]`, such as `alertmanager=http://127.0.0.1:9093` or
//! `slack=env:SLACK_URL,severity=critical`.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

use paceline_health::policy::Urgency;
use paceline_health::verdict::Severity;

use super::notice::Notice;
use super::secret::Secret;

/// Why a receiver is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReceiverError {
    /// The form is wrong.
    #[error(
        "must be KIND=WHERE[,KEY=VALUE], of kind alertmanager, webhook, slack, pagerduty or exec, such as \
         alertmanager=http://127.0.0.1:9093"
    )]
    Shape,
    /// A secret was given in plain text.
    #[error(
        "{0}: this address is a secret: give env:NAME or file:PATH, so that it does not appear on a command line"
    )]
    InTheOpen(&'static str),
    /// The text is not an address.
    #[error(
        "{0} must begin with http:// or https://, or be env:NAME or file:PATH that holds such an address"
    )]
    Address(&'static str),
    /// The address contains a password.
    #[error("{0}: the address contains a password: give env:NAME or file:PATH")]
    Password(&'static str),
    /// The text is not a reference to a secret.
    #[error("{0}: the value of {1} must be env:NAME or file:PATH")]
    Secret(&'static str, &'static str),
    /// The key is unknown. The value is not repeated, because it may be a misplaced secret.
    #[error(
        "{0}: option {1} after the address is not one of severity=, hmac=, bearer=, ca= (webhook) and url= \
         (pagerduty)"
    )]
    Key(&'static str, usize),
    /// A token would be sent without encryption.
    #[error("{0}: a bearer token goes to https:// only, or to this machine")]
    Plain(&'static str),
    /// The text is not a severity.
    #[error("{0}: severity must be info, warning or critical")]
    Severity(&'static str),
    /// A secret cannot be read.
    #[error("{0}")]
    Unreadable(String),
}

/// An address, in plain text or secret.
#[derive(Clone, PartialEq, Eq)]
pub enum Address {
    /// Plain text.
    Open(String),
    /// A reference to an address that is secret.
    Secret(Secret),
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Open(url) => f.write_str(url),
            Address::Secret(secret) => secret.fmt(f),
        }
    }
}

impl Address {
    /// Returns only scheme and host of a plain address, because a path or a query may be a secret.
    fn shown(&self) -> String {
        match self {
            Address::Open(url) => {
                let plain = url.split(['?', '#']).next().unwrap_or_default();
                plain.split('/').take(3).collect::<Vec<_>>().join("/")
            }
            Address::Secret(secret) => format!("{secret:?}"),
        }
    }

    /// Returns the address itself.
    pub(super) fn read(&self) -> Result<String, String> {
        match self {
            Address::Open(url) => Ok(url.clone()),
            Address::Secret(secret) => secret.read(),
        }
    }
}

/// The credentials between us and a webhook.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proof {
    /// The key that signs requests, by HMAC-SHA256.
    pub hmac: Option<Secret>,
    /// Bearer token, for example of a pod's ServiceAccount.
    pub bearer: Option<Secret>,
    /// CAs (PEM) to trust for its certificate, in place of the system's.
    pub ca: Option<Secret>,
}

/// Kind and address of a receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Prometheus' Alertmanager, API version 2.
    Alertmanager(Address),
    /// Any receiver of our JSON.
    Webhook(Address, Proof),
    /// The incoming webhook of Slack, or of a service that accepts its messages.
    Slack(Address),
    /// The address of PagerDuty's Events API version 2, and the routing key.
    PagerDuty(Address, Secret),
    /// A program that gets our JSON on its standard input.
    Exec(String),
}

impl Kind {
    /// Returns the kind's name on the command line.
    pub fn name(&self) -> &'static str {
        match self {
            Kind::Alertmanager(_) => "alertmanager",
            Kind::Webhook(..) => "webhook",
            Kind::Slack(_) => "slack",
            Kind::PagerDuty(..) => "pagerduty",
            Kind::Exec(_) => "exec",
        }
    }

    /// Returns true if the receiver treats an alert as resolved unless it is repeated.
    pub(super) fn forgets(&self) -> bool {
        // A webhook with a bearer token is one of our own receivers, which does not act on notices from before its
        // start. Its notices must therefore be repeated too.
        matches!(self, Kind::Alertmanager(_))
            || matches!(self, Kind::Webhook(_, Proof { bearer: Some(_), .. }))
    }
}

/// One receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receiver {
    /// The kind and the address.
    pub kind: Kind,
    /// The minimum severity of notices that it gets.
    pub severity: Severity,
    /// The receiver as configured. It contains references to secrets, but no secrets.
    words: String,
}

/// PagerDuty's endpoint.
pub const PAGERDUTY: &str = "https://events.pagerduty.com/v2/enqueue";

impl Receiver {
    /// Parses a receiver. Secrets are read as well, so that a mistake is reported before the job begins.
    ///
    /// # Errors
    /// [`ReceiverError`]
    pub fn parse(words: &str) -> Result<Receiver, ReceiverError> {
        let receiver = Receiver::of(words)?;
        let secrets = match &receiver.kind {
            Kind::Alertmanager(address) | Kind::Slack(address) => vec![address.read()],
            Kind::Webhook(address, proof) => {
                let secrets = [&proof.hmac, &proof.bearer, &proof.ca].into_iter().flatten();
                [address.read()]
                    .into_iter()
                    .chain(secrets.map(Secret::read))
                    .collect()
            }
            Kind::PagerDuty(address, key) => vec![address.read(), key.read()],
            Kind::Exec(_) => Vec::new(),
        };
        for secret in secrets {
            secret.map_err(ReceiverError::Unreadable)?;
        }
        Ok(receiver)
    }

    /// Parses a receiver without reading secrets.
    ///
    /// # Errors
    /// [`ReceiverError`], except for secrets that cannot be read.
    pub fn of(words: &str) -> Result<Receiver, ReceiverError> {
        let (kind, rest) = words.split_once('=').ok_or(ReceiverError::Shape)?;
        let mut parts = rest.split(',');
        let place = parts.next().filter(|place| !place.is_empty());
        let place = place.ok_or(ReceiverError::Shape)?;
        let mut severity = Severity::Warning;
        let (mut proof, mut url) = (Proof::default(), None);
        let name = match kind {
            "alertmanager" => "alertmanager",
            "webhook" => "webhook",
            "slack" => "slack",
            "pagerduty" => "pagerduty",
            "exec" => "exec",
            _ => return Err(ReceiverError::Shape),
        };
        for (index, part) in parts.enumerate() {
            match part.split_once('=') {
                Some(("severity", word)) => {
                    severity = [Severity::Info, Severity::Warning, Severity::Critical]
                        .into_iter()
                        .find(|severity| severity.name() == word)
                        .ok_or(ReceiverError::Severity(name))?;
                }
                Some((which @ ("hmac" | "bearer" | "ca"), word)) if name == "webhook" => {
                    let (place, which) = match which {
                        "hmac" => (&mut proof.hmac, "hmac"),
                        "bearer" => (&mut proof.bearer, "bearer"),
                        _ => (&mut proof.ca, "ca"),
                    };
                    *place = Some(Secret::of(word).ok_or(ReceiverError::Secret(name, which))?);
                }
                Some(("url", word)) if name == "pagerduty" => url = Some(open(name, word)?),
                _ => return Err(ReceiverError::Key(name, index + 1)),
            }
        }
        let kind = match name {
            "alertmanager" => Kind::Alertmanager(open(name, place)?),
            "webhook" => {
                let address = open(name, place)?;
                if proof.bearer.is_some() && matches!(&address, Address::Open(url) if is_for_all_to_read(url))
                {
                    return Err(ReceiverError::Plain(name));
                }
                Kind::Webhook(address, proof)
            }
            "slack" => Kind::Slack(Address::Secret(
                Secret::of(place).ok_or(ReceiverError::InTheOpen(name))?,
            )),
            "pagerduty" => {
                let key = Secret::of(place).ok_or(ReceiverError::InTheOpen(name))?;
                Kind::PagerDuty(url.unwrap_or_else(|| Address::Open(PAGERDUTY.to_owned())), key)
            }
            _ => Kind::Exec(place.to_owned()),
        };
        Ok(Receiver {
            kind,
            severity,
            words: words.to_owned(),
        })
    }

    /// Returns the receiver as configured.
    pub fn words(&self) -> &str {
        &self.words
    }

    /// Returns the receiver as text. It contains an address without its path, which may be a secret, or the reference
    /// to a secret.
    pub fn address(&self) -> String {
        let kind = self.kind.name();
        match &self.kind {
            Kind::Alertmanager(address) | Kind::Webhook(address, _) | Kind::Slack(address) => {
                format!("{kind} {}", address.shown())
            }
            Kind::PagerDuty(_, key) => format!("{kind} {key:?}"),
            Kind::Exec(program) => format!("{kind} {program}"),
        }
    }

    /// Returns a name for its spool. It is the same for the same configuration.
    pub(super) fn name(&self) -> String {
        let mut hasher = DefaultHasher::new();
        self.words.hash(&mut hasher);
        format!("{}-{:08x}", self.kind.name(), hasher.finish() as u32)
    }

    /// Returns true if the receiver gets this notice. A pager gets no tickets, because it wakes a person up for every
    /// event.
    pub(super) fn wants(&self, notice: &Notice) -> bool {
        let wakes = matches!(self.kind, Kind::PagerDuty(..));
        notice.worst >= self.severity && !(wakes && notice.urgency == Urgency::Ticket)
    }
}

/// Returns true if requests to this address can be read in transit.
fn is_for_all_to_read(url: &str) -> bool {
    let Some(rest) = url.strip_prefix("http://") else {
        return false;
    };
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = host.strip_prefix('[').map_or_else(
        || host.split(':').next().unwrap_or_default(),
        |host| host.split(']').next().unwrap_or_default(),
    );
    let is_here = host
        .parse::<std::net::IpAddr>()
        .is_ok_and(|address| address.is_loopback());
    !is_here && host != "localhost"
}

fn open(name: &'static str, text: &str) -> Result<Address, ReceiverError> {
    if let Some(secret) = Secret::of(text) {
        return Ok(Address::Secret(secret));
    }
    let rest = text.strip_prefix("http://").or(text.strip_prefix("https://"));
    let host = rest.ok_or(ReceiverError::Address(name))?.split('/').next();
    match host {
        Some("") | None => Err(ReceiverError::Address(name)),
        Some(host) if host.contains('@') => Err(ReceiverError::Password(name)),
        Some(_) => Ok(Address::Open(text.to_owned())),
    }
}
