//! TLS connections. `tls` accepts, counts and limits them. `connection` closes each one after a long idle time.

mod connection;
mod tls;

pub(crate) use tls::{Counted, TlsListener, listen};
