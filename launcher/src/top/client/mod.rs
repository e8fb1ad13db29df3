//! The client of an aggregator: which job is meant and where its aggregator answers, who asks it again and again, and what
//! it responds.

pub(super) mod choose;
pub(super) mod link;
pub(super) mod place;
pub(super) mod response;
