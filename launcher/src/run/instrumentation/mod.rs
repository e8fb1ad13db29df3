//! Instrumentation of the command: the Python hook, NCCL's profiler plugin, the path for the dumps of PyTorch's flight
//! recorder, and the variables for them.

pub(crate) mod environment;
pub(crate) mod flight_recorder;
pub(crate) mod hook;
pub(crate) mod plugin;
