//! Instruments the command with the Python hook, NCCL's profiler plugin and the path for the dumps of PyTorch's flight
//! recorder. Also sets the variables for these.

pub(crate) mod environment;
pub(crate) mod flight_recorder;
pub(crate) mod hook;
pub(crate) mod plugin;
