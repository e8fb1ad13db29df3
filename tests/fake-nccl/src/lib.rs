//! Simulates NCCL, the CUDA driver and cuBLAS on host memory, with the functions that Paceline calls. Streams are
//! threads, collectives use loopback sockets, and products are really computed. So the code for real GPUs runs
//! everywhere, and a scenario file simulates faults; see [`scenario`].
//!
//! Callers must handle missing functions. To test that, a test renames the function in a copy of the library.
//! Signatures are those of nccl.h, cuda.h and cublas_api.h.

#![allow(non_snake_case, reason = "the names are NVIDIA's")]
#![allow(
    clippy::missing_safety_doc,
    reason = "what callers must hold is in NVIDIA's documentation"
)]

mod comm;
mod counts;
mod cublas;
mod cuda;
mod cuda_stream;
mod hub;
mod math;
#[allow(missing_docs, reason = "private to the library")]
mod memory;
mod nccl;
mod points;
pub mod scenario;
#[allow(missing_docs, reason = "private to the library")]
mod stream;
