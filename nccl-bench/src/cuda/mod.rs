//! The CUDA driver and cuBLAS, loaded at run time. Only the functions that measurements need are loaded. If a library,
//! function or GPU is missing, the error lists the paths that were tried.

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
