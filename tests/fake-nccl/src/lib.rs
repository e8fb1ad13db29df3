//! NCCL, the CUDA driver and cuBLAS as far as Paceline calls them, in one library, on the memory of the host: streams
//! are threads, collectives go through sockets of the loopback, products are really computed. The code that talks to
//! real GPUs so runs everywhere, and what goes wrong is played from a scenario file; see [`scenario`].
//!
//! A function that is missing is a case that its callers must stand; a test makes one by renaming it in a copy of the
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
