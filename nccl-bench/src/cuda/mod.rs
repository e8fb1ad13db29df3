//! The CUDA driver and cuBLAS, opened at run time: what a measurement needs, and nothing else. A library, a symbol or a
//! GPU that is missing is an error that says where it was looked for.

mod cublas;
mod driver;
mod dynamic;
mod gpu;
mod places;
mod stream;

pub use cublas::{Blas, Gemm};
pub use driver::{CudaError, Driver, version};
pub(crate) use dynamic::functions;
pub use dynamic::{LoadError, Loaded};
pub use gpu::{Gpu, Memory, Pinned};
pub(crate) use places::NCCL;
pub use places::{CUBLAS, CUDA, Wanted};
pub(crate) use stream::pause;
pub use stream::{Event, Stream};
