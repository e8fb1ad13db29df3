//! Element types for reductions.

use std::fmt;

use serde::{Deserialize, Serialize};

/// An element type, by the name that nccl-tests gives it.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum,
)]
pub enum Dtype {
    /// IEEE 754 binary32.
    #[serde(rename = "float")]
    #[value(name = "float", alias = "f32", alias = "float32")]
    F32,
    /// IEEE 754 binary16.
    #[serde(rename = "half")]
    #[value(name = "half", alias = "f16", alias = "float16")]
    F16,
    /// The upper half of a binary32.
    #[serde(rename = "bfloat16")]
    #[value(name = "bfloat16", alias = "bf16")]
    Bf16,
    /// 32-bit integer, two's complement; sums wrap.
    #[serde(rename = "int32")]
    #[value(name = "int32", alias = "i32")]
    I32,
}

impl Dtype {
    /// All types.
    pub const ALL: [Dtype; 4] = [Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::I32];

    /// Returns the bytes of one element.
    pub fn size(self) -> usize {
        match self {
            Dtype::F32 | Dtype::I32 => 4,
            Dtype::F16 | Dtype::Bf16 => 2,
        }
    }

    /// Returns the type's name in nccl-tests' tables.
    pub fn name(self) -> &'static str {
        match self {
            Dtype::F32 => "float",
            Dtype::F16 => "half",
            Dtype::Bf16 => "bfloat16",
            Dtype::I32 => "int32",
        }
    }

    /// Returns the largest integer up to which all integers are exact. Sums up to it do not depend on the order.
    pub fn exact(self) -> u32 {
        match self {
            Dtype::F32 | Dtype::I32 => 1 << 24,
            Dtype::F16 => 1 << 11,
            Dtype::Bf16 => 1 << 8,
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
