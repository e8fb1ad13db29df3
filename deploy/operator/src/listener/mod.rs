//! TLS connections: accepted, counted and limited (`tls`), each closed when idle for long (`connection`).

mod connection;
mod tls;

pub(crate) use tls::{Counted, TlsListener, listen};
