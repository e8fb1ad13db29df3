//! Runs Paceline in pods: the commands of their containers, and `paceline inject-manifest`.

pub(crate) mod beside;
pub(crate) mod install;
pub(crate) mod manifest;
mod tell;
mod yaml;
