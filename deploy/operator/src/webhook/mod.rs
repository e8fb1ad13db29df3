//! The webhook: [`server`] has what is asked where, and the end in order; [`review`] has a question's bytes in, an answer
//! out, and knows no socket; [`metrics`] are what the program tells of itself.

pub mod metrics;
pub mod review;
pub mod server;
