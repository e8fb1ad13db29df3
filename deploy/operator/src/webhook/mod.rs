//! The webhook. [`server`] has the routes and the graceful shutdown. [`review`] turns a request's bytes into a
//! response, without sockets. [`metrics`] has the program's metrics.

pub mod metrics;
pub mod review;
pub mod server;
