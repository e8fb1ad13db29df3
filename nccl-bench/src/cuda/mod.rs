//! The CUDA driver and cuBLAS, opened at run time: what a measurement needs, and nothing else. A library, a symbol or a
//! GPU that is missing is an error that says where it was looked for.

mod cublas;
mod driver;
mod dynamic;
mod gpu;
mod places;

pub use cublas::{Blas, Gemm};
pub use driver::{CudaError, Driver};
pub use dynamic::{LoadError, Loaded};
pub use gpu::{Event, Gpu, Memory, Pinned, Stream};
pub use places::{CUBLAS, CUDA, Wanted};
pub(crate) use dynamic::functions;
pub(crate) use places::NCCL;
