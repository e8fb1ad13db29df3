//! Paceline in pods: what their containers call, and `paceline inject-manifest`.

pub(crate) mod beside;
pub(crate) mod install;
pub(crate) mod manifest;
mod tell;
mod yaml;
