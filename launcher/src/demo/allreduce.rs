//! A ring all-reduce over TCP: each rank sends to the next and receives from the previous one, in 2 (n - 1) rounds
//! (Patarasuk and Yuan, 2009, <https://doi.org/10.1016/j.jpdc.2008.09.002>).

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Range;

/// A rank's connections to its two neighbors.
#[derive(Debug)]
pub(crate) struct Ring {
    rank: usize,
    size: usize,
    next: TcpStream,
    previous: TcpStream,
    bytes: Vec<u8>,
}

impl Ring {
    /// Joins the ring: connects to the next rank's listener and accepts the previous rank's connection.
    pub(crate) fn join(
        rank: usize,
        size: usize,
        listener: &TcpListener,
        next: SocketAddr,
    ) -> io::Result<Ring> {
        // The connection is not refused and needs no accept yet, because every rank listens before any connects.
        let next = TcpStream::connect(next)?;
        let (previous, _) = listener.accept()?;
        next.set_nodelay(true)?;
        previous.set_nodelay(true)?;
        Ok(Ring {
            rank,
            size,
            next,
            previous,
            bytes: Vec::new(),
        })
    }

    /// Replaces `values` by their sum over all ranks, bit-identical on every rank.
    pub(crate) fn sum(&mut self, values: &mut [f32]) -> io::Result<()> {
        let (rank, size) = (self.rank, self.size);
        for round in 0..size - 1 {
            let (give, take) = ((rank + size - round) % size, (rank + 2 * size - round - 1) % size);
            self.exchange(values, give, take, |own, heard| own + heard)?;
        }
        for round in 0..size - 1 {
            let (give, take) = ((rank + 1 + size - round) % size, (rank + size - round) % size);
            self.exchange(values, give, take, |_, heard| heard)?;
        }
        Ok(())
    }

    /// Sends one part and merges another. Parts are far smaller than a socket's buffer, so all ranks can send at once.
    fn exchange(
        &mut self,
        values: &mut [f32],
        give: usize,
        take: usize,
        merge: impl Fn(f32, f32) -> f32,
    ) -> io::Result<()> {
        let (give, take) = (
            part(values.len(), give, self.size),
            part(values.len(), take, self.size),
        );
        self.bytes.clear();
        self.bytes
            .extend(values[give].iter().flat_map(|value| value.to_le_bytes()));
        self.next.write_all(&self.bytes)?;
        let mine = &mut values[take];
        self.bytes.resize(mine.len() * 4, 0);
        self.previous.read_exact(&mut self.bytes)?;
        for (own, heard) in mine.iter_mut().zip(self.bytes.chunks_exact(4)) {
            *own = merge(*own, f32::from_le_bytes([heard[0], heard[1], heard[2], heard[3]]));
        }
        Ok(())
    }
}

/// Returns the range of the `index`-th of `parts` nearly equal parts.
fn part(length: usize, index: usize, parts: usize) -> Range<usize> {
    length * index / parts..length * (index + 1) / parts
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers a length that is not a multiple of the number of ranks, and one that is smaller.
    #[test]
    fn every_rank_ends_with_the_same_sum() {
        for (size, length) in [(2, 5), (3, 100), (5, 3)] {
            let listeners: Vec<TcpListener> = (0..size)
                .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
                .collect();
            let addresses: Vec<SocketAddr> = listeners
                .iter()
                .map(|listener| listener.local_addr().unwrap())
                .collect();
            let ranks: Vec<_> = listeners
                .into_iter()
                .enumerate()
                .map(|(rank, listener)| {
                    let next = addresses[(rank + 1) % size];
                    std::thread::spawn(move || {
                        let mut ring = Ring::join(rank, size, &listener, next).unwrap();
                        let mut values: Vec<f32> = (0..length).map(|i| (rank * length + i) as f32).collect();
                        ring.sum(&mut values).unwrap();
                        values
                    })
                })
                .collect();
            let expected: Vec<f32> = (0..length)
                .map(|i| (0..size).map(|rank| (rank * length + i) as f32).sum())
                .collect();
            for rank in ranks {
                assert_eq!(rank.join().unwrap(), expected, "{size} ranks, {length} values");
            }
        }
    }
}
