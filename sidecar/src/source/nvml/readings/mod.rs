//! Readings of one GPU: from single calls, from fields, from GPM, and of its MIG instances.

pub(super) mod calls;
pub(super) mod fabric;
pub(super) mod fields;
pub(super) mod gpm;
pub(super) mod holders;
pub(super) mod mig;
pub(super) mod reader;
pub(super) mod throttle;
