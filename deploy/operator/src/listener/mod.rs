//! Connections with TLS: taken in, counted and limited (`tls`), each ended when it is silent for long (`connection`).

mod connection;
mod tls;

pub(crate) use tls::{Counted, TlsListener, listen};
