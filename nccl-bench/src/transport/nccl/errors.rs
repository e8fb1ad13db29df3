//! Converts errors of libraries and GPUs to a transport's errors.

use super::NAME;
use crate::cuda::{CudaError, LoadError};
use crate::transport::{Deadline, TransportError};

/// CUDA_ERROR_NO_DEVICE.
const NO_DEVICE: i32 = 100;

/// Returns the error for a missing library or function.
pub fn missing(error: LoadError) -> TransportError {
    let what = match &error {
        LoadError::NotFound { name, .. } => (*name).to_owned(),
        LoadError::NoSymbol { symbol, .. } => (*symbol).to_owned(),
        LoadError::TooOld { least, .. } => format!("NCCL {least} or later"),
    };
    TransportError::Missing {
        transport: NAME,
        what,
        tried: error.to_string(),
    }
}

/// Converts a GPU error.
pub fn of_gpu(error: CudaError, deadline: &Deadline) -> TransportError {
    match error {
        CudaError::Load(error) => missing(error),
        CudaError::NoGpu | CudaError::NoSuchGpu { .. } => TransportError::Missing {
            transport: NAME,
            what: "a GPU".into(),
            tried: error.to_string(),
        },
        CudaError::Call { call, code, text } => {
            // cuInit returns this if there is no GPU.
            if code == NO_DEVICE {
                return TransportError::Missing {
                    transport: NAME,
                    what: "a GPU".into(),
                    tried: format!("{call}: {text}"),
                };
            }
            TransportError::Library {
                phase: deadline.phase().to_owned(),
                call,
                code: code.into(),
                message: text,
            }
        }
        CudaError::Deadline { .. } => deadline.passed(None),
    }
}
