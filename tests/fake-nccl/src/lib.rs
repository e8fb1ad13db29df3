//! NCCL, the CUDA driver and cuBLAS in one library, with the functions that Paceline calls, on host memory: streams are
//! threads, collectives use loopback sockets, products are really computed. So the code for real GPUs runs everywhere,
//! and a scenario file simulates faults; see [`scenario`].
//!
//! A missing function is a case that callers must handle; a test creates it by renaming the function in a copy of the
//! library. Signatures are those of nccl.h, cuda.h and cublas_api.h.

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
