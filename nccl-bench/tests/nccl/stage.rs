//! A scenario, the fake library that plays it, and ranks that use it.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use paceline_nccl_bench::measure::RankTimes;
use paceline_nccl_bench::transport::nccl::{NcclTransport, Options};
use paceline_nccl_bench::transport::{About, Deadline, Transport, TransportError};
use tempfile::TempDir;

/// A time limit that is long enough for everything that should end.
pub const LONG: Duration = Duration::from_secs(30);

/// A separate copy of the fake library. Each copy has its own state.
pub struct Stage {
    dir: TempDir,
}

/// Numbers of blocking and non-blocking communicators, threads that queue for the latter, and queries for asynchronous
/// errors.
#[derive(Debug, PartialEq, Eq)]
pub struct Counts {
    pub blocking: u64,
    pub non_blocking: u64,
    pub group_threads: u64,
    pub async_errors: u64,
}

impl Stage {
    pub fn new(scenario: &str) -> Stage {
        let stage = Stage {
            dir: TempDir::new().unwrap(),
        };
        // Cargo builds it next to the tests because they depend on it.
        let program = std::env::current_exe().unwrap();
        let built = program.parent().unwrap().join("libpaceline_fake_nccl.so");
        fs::copy(&built, stage.library()).unwrap_or_else(|error| panic!("{}: {error}", built.display()));
        fs::write(stage.dir.path().join("libfake.so.toml"), scenario).unwrap();
        stage
    }

    pub fn library(&self) -> PathBuf {
        self.dir.path().join("libfake.so")
    }

    /// Returns the counts of this copy of the library.
    pub fn counts(&self) -> Counts {
        let mut counts = [0; 4];
        // SAFETY: the library that the ranks have opened; its function takes a pointer to four numbers.
        unsafe {
            let library = libloading::Library::new(self.library()).unwrap();
            let function = library.get::<unsafe extern "C" fn(*mut [u64; 4])>(b"fakeNcclCounts");
            function.unwrap()(&mut counts);
        }
        let [blocking, non_blocking, group_threads, async_errors] = counts;
        Counts {
            blocking,
            non_blocking,
            group_threads,
            async_errors,
        }
    }

    /// Removes a function by renaming its symbol, so that no lookup finds it.
    pub fn without(self, symbol: &str) -> Stage {
        let mut bytes = fs::read(self.library()).unwrap();
        let name = format!("\0{symbol}\0").into_bytes();
        let mut found = 0;
        for at in 0..bytes.len() - name.len() {
            if bytes[at..].starts_with(&name) {
                bytes[at + name.len() - 2] ^= 1;
                found += 1;
            }
        }
        assert!(found > 0, "there is no {symbol}");
        fs::write(self.library(), bytes).unwrap();
        self
    }

    pub fn options(&self, local_rank: usize) -> Options {
        Options {
            nccl_lib: Some(self.library()),
            cuda_lib: Some(self.library()),
            local_rank: local_rank as u32,
            ..Options::default()
        }
    }

    /// Runs this many ranks, one thread each. Returns the results in order.
    pub fn ranks<T: Send + 'static>(
        &self,
        ranks: usize,
        run: impl Fn(NcclTransport) -> Result<T, TransportError> + Send + Sync + 'static,
    ) -> Vec<Result<T, TransportError>> {
        let options = (0..ranks).map(|rank| self.options(rank)).collect();
        play(options, LONG, run)
    }
}

/// Runs a rank for each of `options`. All ranks must join within `joining`.
pub fn play<T: Send + 'static>(
    options: Vec<Options>,
    joining: Duration,
    run: impl Fn(NcclTransport) -> Result<T, TransportError> + Send + Sync + 'static,
) -> Vec<Result<T, TransportError>> {
    let (hall, run) = (Arc::new(Hall::new(options.len())), Arc::new(run));
    let ranks = options.into_iter().enumerate().map(|(rank, options)| {
        let (side, run) = (
            Box::new(Side {
                hall: Arc::clone(&hall),
                rank,
            }),
            Arc::clone(&run),
        );
        std::thread::spawn(move || {
            NcclTransport::open(side, &options, &Deadline::new("join", joining)).and_then(|nccl| run(nccl))
        })
    });
    let ranks: Vec<_> = ranks.collect();
    ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
}

/// Synchronizes threads.
struct Hall {
    ranks: usize,
    state: Mutex<Meeting>,
    changed: Condvar,
}

#[derive(Default)]
struct Meeting {
    round: u64,
    values: Vec<u64>,
    result: u64,
    times: Vec<RankTimes>,
    gone: Option<usize>,
}

impl Hall {
    fn new(ranks: usize) -> Hall {
        Hall {
            ranks,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }
}

/// A transport between threads that supports only agreement.
struct Side {
    hall: Arc<Hall>,
    rank: usize,
}

impl Transport for Side {
    fn about(&self) -> About {
        About::default()
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.hall.ranks
    }

    fn agree(&mut self, value: u64, deadline: &Deadline) -> Result<u64, TransportError> {
        let mut state = self.hall.state.lock().unwrap();
        let round = state.round;
        state.values.push(value);
        if state.values.len() == self.hall.ranks {
            state.result = state.values.drain(..).max().unwrap();
            state.round += 1;
            self.hall.changed.notify_all();
        }
        while state.round == round {
            if let Some(peer) = state.gone {
                let (phase, reason) = (deadline.phase().to_owned(), "it said so".to_owned());
                return Err(TransportError::Aborted { phase, peer, reason });
            }
            let left = deadline.remaining().ok_or_else(|| deadline.passed(None))?;
            state = self.hall.changed.wait_timeout(state, left).unwrap().0;
        }
        Ok(state.result)
    }

    fn gather(
        &mut self,
        mine: RankTimes,
        deadline: &Deadline,
    ) -> Result<Option<Vec<RankTimes>>, TransportError> {
        self.hall.state.lock().unwrap().times.push(mine);
        self.barrier(deadline)?;
        if self.rank > 0 {
            return Ok(None);
        }
        let mut times = std::mem::take(&mut self.hall.state.lock().unwrap().times);
        times.sort_by_key(|times| times.rank);
        Ok(Some(times))
    }

    fn abort(&mut self) {
        self.hall.state.lock().unwrap().gone = Some(self.rank);
        self.hall.changed.notify_all();
    }

    fn prepare(
        &mut self,
        _: &paceline_nccl_bench::collective::Plan,
        _: &Deadline,
    ) -> Result<(), TransportError> {
        unreachable!("NCCL carries the collectives")
    }

    fn run(&mut self, _: u32, _: &Deadline) -> Result<Vec<Duration>, TransportError> {
        unreachable!("NCCL carries the collectives")
    }

    fn verify(&mut self, _: &Deadline) -> Result<u64, TransportError> {
        unreachable!("NCCL carries the collectives")
    }
}
