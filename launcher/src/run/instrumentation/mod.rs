//! What the command gets so that it can be watched: the Python hook, NCCL's profiler plugin, the place for the dumps of
//! PyTorch's flight recorder, and the variables that name them to it.

pub(crate) mod environment;
pub(crate) mod flight_recorder;
pub(crate) mod hook;
pub(crate) mod plugin;
