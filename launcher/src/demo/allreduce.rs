//! A ring all-reduce over TCP on loopback: what the demo's trainers wait in. Reduce-scatter, then all-gather; each rank
//! sends to the next and receives from the one before.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// How long a rank waits for its neighbours to appear.
const RENDEZVOUS: Duration = Duration::from_secs(20);

/// One rank's place in the ring.
pub(super) struct Ring {
    rank: usize,
    size: usize,
    next: TcpStream,
    previous: TcpStream,
}

impl Ring {
    /// Meets the neighbours: every rank writes its port into `directory` and connects to the next one's.
    pub(super) fn join(directory: &Path, rank: usize, size: usize) -> Result<Ring> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("listening for the rank before")?;
        let port = listener.local_addr()?.port().to_string();
        let own = directory.join(format!("{rank}.port"));
        let unfinished = directory.join(format!("{rank}.port.tmp"));
        fs::write(&unfinished, port).and_then(|()| fs::rename(&unfinished, &own)).context("publishing a port")?;
        let next = connect(&directory.join(format!("{}.port", (rank + 1) % size)))?;
        let (previous, _) = listener.accept().context("waiting for the rank before")?;
        next.set_nodelay(true)?;
        previous.set_nodelay(true)?;
        Ok(Ring { rank, size, next, previous })
    }

    /// Adds `values` over all ranks, in place. Blocks until every rank has come.
    pub(super) fn all_reduce(&mut self, values: &mut [f32]) -> Result<()> {
        let (size, rank) = (self.size, self.rank);
        let chunk = |index: usize| {
            let index = index % size;
            index * values.len() / size..(index + 1) * values.len() / size
        };
        let chunks: Vec<_> = (0..size).map(chunk).collect();
        for round in 0..size - 1 {
            let (out, into) = (&chunks[(rank + size - round) % size], &chunks[(rank + 2 * size - round - 1) % size]);
            let received = self.exchange(&values[out.clone()], into.len())?;
            for (value, other) in values[into.clone()].iter_mut().zip(received) {
                *value += other;
            }
        }
        for round in 0..size - 1 {
            let (out, into) = (&chunks[(rank + size + 1 - round) % size], &chunks[(rank + size - round) % size]);
            let received = self.exchange(&values[out.clone()], into.len())?;
            values[into.clone()].copy_from_slice(&received);
        }
        Ok(())
    }

    /// Sends to the next rank and receives from the one before. The pieces are smaller than a socket's buffer, so that
    /// sending first cannot lock the ring.
    fn exchange(&mut self, out: &[f32], into: usize) -> Result<Vec<f32>> {
        let bytes: Vec<u8> = out.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.next.write_all(&bytes).context("a neighbour is gone")?;
        let mut received = vec![0; into * 4];
        self.previous.read_exact(&mut received).context("a neighbour is gone")?;
        let float = |bytes: &[u8]| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        Ok(received.chunks_exact(4).map(float).collect())
    }
}

fn connect(port_file: &Path) -> Result<TcpStream> {
    let begin = Instant::now();
    loop {
        match fs::read_to_string(port_file) {
            Ok(port) => {
                let port: u16 = port.trim().parse().context("a neighbour's port")?;
                return TcpStream::connect((Ipv4Addr::LOCALHOST, port)).context("connecting to the next rank");
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound && begin.elapsed() < RENDEZVOUS => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) => bail!("the next rank did not come: {}: {error}", port_file.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_gets_the_sum_whatever_the_length() {
        for (size, length) in [(2, 7), (3, 1), (4, 1024), (8, 1000)] {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path();
            let sums: Vec<Vec<f32>> = std::thread::scope(|scope| {
                let ranks: Vec<_> = (0..size)
                    .map(|rank| {
                        scope.spawn(move || {
                            let mut ring = Ring::join(path, rank, size).unwrap();
                            let mut values: Vec<f32> = (0..length).map(|i| (rank * length + i) as f32).collect();
                            ring.all_reduce(&mut values).unwrap();
                            values
                        })
                    })
                    .collect();
                ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
            });
            let expected: Vec<f32> =
                (0..length).map(|i| (0..size).map(|rank| (rank * length + i) as f32).sum()).collect();
            assert!(sums.iter().all(|sum| *sum == expected), "{size} ranks, {length} values");
        }
    }
}
