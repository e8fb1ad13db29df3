//! A table of the collectives, with their byte counts, their traffic on the wire, and the expected results.
//!
//! Counts are defined as in nccl-tests (<https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md>). `size`
//! is the size of the larger of a rank's two buffers, and `count` is the number of elements passed to the call. The
//! bandwidths are algbw = size / time and busbw = algbw × factor. The factor makes busbw comparable to a link's rate
//! for any number of ranks.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::dtype::Dtype;

/// A collective operation. Where there is something to reduce, it is the sum.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum Collective {
    /// Every rank has the sum of all ranks' buffers.
    #[value(aliases = ["all_reduce", "allreduce", "all_reduce_perf"])]
    AllReduce,
    /// Rank r has the r-th block of that sum.
    #[value(aliases = ["reduce_scatter", "reduce_scatter_perf"])]
    ReduceScatter,
    /// Every rank has the blocks of all ranks, in their order.
    #[value(aliases = ["all_gather", "allgather", "all_gather_perf"])]
    AllGather,
    /// Every rank has the root's buffer.
    Broadcast,
    /// Rank r has the r-th block of every rank, in their order.
    #[value(aliases = ["all_to_all", "alltoall", "alltoall_perf"])]
    AllToAll,
}

/// Why a size cannot be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// The size is zero.
    #[error("0 bytes cannot be measured")]
    Zero,
    /// The size is not a multiple of the element size.
    #[error("{bytes} bytes are not a whole number of {dtype} elements of {} bytes", dtype.size())]
    Elements {
        /// The requested size.
        bytes: u64,
        /// The element type.
        dtype: Dtype,
    },
    /// The size is less than one element per rank.
    #[error(
        "{bytes} bytes are less than one {dtype} element for each of {ranks} ranks: {collective} needs {least}"
    )]
    Blocks {
        /// The requested size.
        bytes: u64,
        /// The element type.
        dtype: Dtype,
        /// Number of ranks.
        ranks: usize,
        /// The operation.
        collective: Collective,
        /// The smallest valid size.
        least: u64,
    },
    /// The size exceeds the address space.
    #[error("{bytes} bytes are more than this machine can address")]
    Absurd {
        /// The requested size.
        bytes: u64,
    },
}

/// One collective at one size, which is the input of a transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The operation.
    pub collective: Collective,
    /// The element type.
    pub dtype: Dtype,
    /// Number of elements passed to the call. They are those of the whole buffer, or of one block if each rank has a
    /// block.
    pub count: usize,
    /// True if input and output are one buffer.
    pub in_place: bool,
    /// Number of ranks.
    pub ranks: usize,
    /// The rank whose buffer a broadcast sends.
    pub root: usize,
}

impl Collective {
    /// All collectives.
    pub const ALL: [Collective; 5] = [
        Collective::AllReduce,
        Collective::ReduceScatter,
        Collective::AllGather,
        Collective::Broadcast,
        Collective::AllToAll,
    ];

    /// Returns the name, such as `all-reduce`.
    pub fn name(self) -> &'static str {
        match self {
            Collective::AllReduce => "all-reduce",
            Collective::ReduceScatter => "reduce-scatter",
            Collective::AllGather => "all-gather",
            Collective::Broadcast => "broadcast",
            Collective::AllToAll => "all-to-all",
        }
    }

    /// Returns busbw / algbw, which is the share of `size` that crosses each rank's link. With one rank it is zero,
    /// except that a broadcast counts as a copy.
    pub fn bus_factor(self, ranks: usize) -> f64 {
        let n = ranks as f64;
        match self {
            Collective::AllReduce => 2.0 * (n - 1.0) / n,
            Collective::ReduceScatter | Collective::AllGather | Collective::AllToAll => (n - 1.0) / n,
            Collective::Broadcast => 1.0,
        }
    }

    /// Returns the reduction's name in nccl-tests' tables.
    pub fn redop(self) -> &'static str {
        if self.reduces() { "sum" } else { "none" }
    }

    /// Returns true if the collective is a reduction.
    pub fn reduces(self) -> bool {
        matches!(self, Collective::AllReduce | Collective::ReduceScatter)
    }

    /// Returns true if the collective can run in place. An all-to-all cannot, because a block would be overwritten
    /// before it is sent.
    pub fn in_place(self) -> bool {
        self != Collective::AllToAll
    }

    /// Returns true if the larger buffer has a block for each rank.
    fn blocks(self) -> bool {
        !matches!(self, Collective::AllReduce | Collective::Broadcast)
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Plan {
    /// Returns the largest plan of at most `bytes`, out of place and with root 0. Block sizes are rounded down, as in
    /// nccl-tests.
    pub fn new(collective: Collective, dtype: Dtype, bytes: u64, ranks: usize) -> Result<Plan, SizeError> {
        if bytes == 0 {
            return Err(SizeError::Zero);
        }
        let absurd = SizeError::Absurd { bytes };
        let size = usize::try_from(bytes).map_err(|_| absurd)?;
        if size > isize::MAX as usize / 4 {
            return Err(absurd);
        }
        if !size.is_multiple_of(dtype.size()) {
            return Err(SizeError::Elements { bytes, dtype });
        }
        let elements = size / dtype.size();
        let count = if collective.blocks() {
            elements / ranks
        } else {
            elements
        };
        if count == 0 {
            let least = (ranks * dtype.size()) as u64;
            return Err(SizeError::Blocks {
                bytes,
                dtype,
                ranks,
                collective,
                least,
            });
        }
        Ok(Plan {
            collective,
            dtype,
            count,
            in_place: false,
            ranks,
            root: 0,
        })
    }

    /// Returns the same plan, but in place.
    pub fn in_place(self) -> Plan {
        Plan {
            in_place: true,
            ..self
        }
    }

    /// Returns the number of elements in a rank's input.
    pub fn send_elements(&self) -> usize {
        match self.collective {
            Collective::ReduceScatter | Collective::AllToAll => self.count * self.ranks,
            _ => self.count,
        }
    }

    /// Returns the number of elements in a rank's output.
    pub fn receive_elements(&self) -> usize {
        match self.collective {
            Collective::AllGather | Collective::AllToAll => self.count * self.ranks,
            _ => self.count,
        }
    }

    /// Returns the start of `rank`'s input in the buffer of an in-place operation, in elements.
    pub fn send_offset(&self, rank: usize) -> usize {
        match self.collective {
            Collective::AllGather => rank * self.count,
            _ => 0,
        }
    }

    /// Returns the start of `rank`'s output in the buffer of an in-place operation, in elements.
    pub fn receive_offset(&self, rank: usize) -> usize {
        match self.collective {
            Collective::ReduceScatter => rank * self.count,
            _ => 0,
        }
    }

    /// Returns the bytes of the larger buffer, which is the value of the `size` column.
    pub fn bytes(&self) -> u64 {
        (self.send_elements().max(self.receive_elements()) * self.dtype.size()) as u64
    }

    /// Returns the value of the `root` column, or -1 if there is no root.
    pub fn root_column(&self) -> i64 {
        if self.collective == Collective::Broadcast {
            self.root as i64
        } else {
            -1
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_counted_as_nccl_tests_counts_them() {
        let check = |collective, bytes, ranks, (count, send, receive, size)| {
            let plan = Plan::new(collective, Dtype::F32, bytes, ranks).unwrap();
            let seen = (
                plan.count,
                plan.send_elements(),
                plan.receive_elements(),
                plan.bytes(),
            );
            assert_eq!(seen, (count, send, receive, size), "{collective} {bytes} {ranks}");
        };
        check(Collective::AllReduce, 64, 3, (16, 16, 16, 64));
        check(Collective::Broadcast, 64, 3, (16, 16, 16, 64));
        check(Collective::AllGather, 64, 3, (5, 5, 15, 60));
        check(Collective::ReduceScatter, 64, 3, (5, 15, 5, 60));
        check(Collective::AllToAll, 64, 3, (5, 15, 15, 60));
    }

    #[test]
    fn factors_are_nccl_tests_own() {
        assert_eq!(Collective::AllReduce.bus_factor(8), 1.75);
        assert_eq!(Collective::AllGather.bus_factor(8), 0.875);
        assert_eq!(Collective::AllToAll.bus_factor(4), 0.75);
        assert_eq!(Collective::Broadcast.bus_factor(8), 1.0);
        assert_eq!(Collective::AllReduce.bus_factor(1), 0.0);
    }

    #[test]
    fn sizes_that_make_no_sense_are_named() {
        let check = |collective, dtype, bytes, ranks, text: &str| {
            let error = Plan::new(collective, dtype, bytes, ranks).unwrap_err();
            assert_eq!(error.to_string(), text);
        };
        let (reduce, gather) = (Collective::AllReduce, Collective::AllGather);
        check(reduce, Dtype::F32, 0, 2, "0 bytes cannot be measured");
        check(
            reduce,
            Dtype::F32,
            6,
            2,
            "6 bytes are not a whole number of float elements of 4 bytes",
        );
        check(
            gather,
            Dtype::Bf16,
            4,
            3,
            "4 bytes are less than one bfloat16 element for each of 3 ranks: all-gather needs 6",
        );
        let all = u64::MAX.to_string();
        check(
            reduce,
            Dtype::F32,
            u64::MAX,
            2,
            &format!("{all} bytes are more than this machine can address"),
        );
    }
}
