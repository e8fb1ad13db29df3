//! Determines the rank of this process and how it reaches the others. The values come from options, or if missing
//! there, from the launcher's environment variables.

use std::net::{SocketAddr, TcpListener, ToSocketAddrs};

use super::Usage;
use super::options::BenchOptions;
use crate::net::{Handshake, Meeting, Place, Seat, meet};
use crate::transport::{Deadline, TransportError};
use paceline_health::codec::hash::fnv;

/// Each launcher's variables with the rank, the number of ranks, and the local rank.
const LAUNCHERS: [(&str, &str, &str); 3] = [
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
    ),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
];
/// torchrun's default port plus one.
const PORT: u16 = 29501;

/// The role of this process.
pub(super) enum Who {
    /// The process starts this many ranks and waits for them.
    All(usize),
    /// The process is a single rank.
    One(Identity),
}

/// What one rank knows about itself and the others.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) rank: usize,
    pub(super) ranks: usize,
    pub(super) local_rank: u32,
    pub(super) found: Found,
}

/// How the rank reaches the others.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Rank 0 at this address has the addresses of all ranks.
    Master(SocketAddr),
    /// The addresses of all ranks are known.
    Peers(Vec<SocketAddr>),
}

/// Determines the role from the options, and from `environment` where options are missing.
pub(super) fn who(
    options: &BenchOptions,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<Who, Usage> {
    let number = |name: &str| -> Result<Option<u32>, Usage> {
        let Some(text) = environment(name) else {
            return Ok(None);
        };
        let parsed = text.trim().parse();
        parsed
            .map(Some)
            .map_err(|_| Usage(format!("{name}: `{text}` is not a number")))
    };
    if let (None, Some(gpus), Some(ranks)) = (options.rank, options.gpus, options.ranks)
        && gpus != ranks
    {
        return Err(Usage(format!(
            "-g {gpus} and --ranks {ranks} mean the same: use one"
        )));
    }
    if let (None, Some(ranks), None) = (options.rank, options.ranks, &options.master) {
        return Ok(Who::All(ranks as usize));
    }
    let master = match &options.master {
        Some(master) => Some(master.clone()),
        None => match environment("MASTER_ADDR") {
            Some(host) => {
                let port = number("MASTER_PORT")?.map_or(u32::from(PORT), |port| port + 1);
                Some(format!("{host}:{port}"))
            }
            None => None,
        },
    };
    if master.is_none() && options.peers.is_empty() {
        return match options.rank {
            Some(_) => Err(Usage("--rank needs --master or --peers".to_owned())),
            None => Ok(Who::All(options.gpus.unwrap_or(1) as usize)),
        };
    }
    if let (None, Some(gpus @ 2..)) = (options.rank, options.gpus) {
        return Err(Usage(format!(
            "-g {gpus}: where a launcher starts the ranks (MASTER_ADDR or --master is given) each process is one, with one GPU"
        )));
    }
    let mut known = (options.rank, options.ranks, None);
    for (rank, ranks, local) in LAUNCHERS {
        if known.0.is_none() {
            known = (number(rank)?, known.1.or(number(ranks)?), number(local)?);
        }
    }
    // If only --rank is given, the local rank comes from the environment. It determines the GPU.
    for (_, _, local) in LAUNCHERS {
        if known.2.is_none() {
            known.2 = number(local)?;
        }
    }
    let missing = |what: &str| {
        Usage(format!(
            "{what} is missing, and no launcher's variable (RANK, ...) sets it"
        ))
    };
    let rank = known.0.ok_or_else(|| missing("--rank"))? as usize;
    let listed = (!options.peers.is_empty()).then_some(options.peers.len());
    let ranks = known
        .1
        .map(|ranks| ranks as usize)
        .or(listed)
        .ok_or_else(|| missing("--ranks"))?;
    if rank >= ranks {
        return Err(Usage(format!(
            "rank {rank} is not one of {ranks}: they count from 0"
        )));
    }
    if listed.is_some_and(|listed| listed != ranks) {
        return Err(Usage(format!(
            "--peers names {} ranks of {ranks}",
            options.peers.len()
        )));
    }
    let found = match master {
        Some(master) if listed.is_none() => Found::Master(resolve(&master)?),
        _ => Found::Peers(options.peers.clone()),
    };
    let local_rank = known.2.unwrap_or(0);
    Ok(Who::One(Identity {
        rank,
        ranks,
        local_rank,
        found,
    }))
}

fn resolve(address: &str) -> Result<SocketAddr, Usage> {
    let found = address.to_socket_addrs();
    let mut found = found.map_err(|error| Usage(format!("--master {address}: {error}")))?;
    found
        .next()
        .ok_or_else(|| Usage(format!("--master {address}: no such host")))
}

impl Identity {
    /// Returns true if this rank is unreachable from other hosts.
    pub(super) fn is_local(&self) -> bool {
        match &self.found {
            Found::Master(master) => master.ip().is_loopback(),
            Found::Peers(peers) => peers.iter().all(|peer| peer.ip().is_loopback()),
        }
    }

    /// Joins the other ranks.
    pub(super) fn sit(
        self,
        options: &BenchOptions,
        handshake: Option<Handshake>,
        deadline: &Deadline,
    ) -> Result<Seat, TransportError> {
        let Identity {
            rank, ranks, found, ..
        } = self;
        let group = fnv(options.job.as_bytes());
        match found {
            Found::Master(master) => {
                let listener = options.listener_on_stdin.then(inherited).transpose();
                let listener = listener.map_err(|error| deadline.local("standard input", error))?;
                meet(
                    Meeting {
                        rank,
                        ranks,
                        master,
                        listener,
                        group,
                        handshake,
                    },
                    deadline,
                )
            }
            Found::Peers(peers) => {
                let own = peers[rank];
                let bind = |error| deadline.local(&format!("listening on {own}"), error);
                let listener = TcpListener::bind(own).map_err(bind)?;
                let place = Place {
                    rank,
                    peers,
                    listener,
                    group,
                    handshake,
                };
                Seat::take(place).map_err(|error| deadline.local("the listener", error))
            }
        }
    }
}

fn inherited() -> std::io::Result<TcpListener> {
    let fd = rustix::io::dup(rustix::stdio::stdin())?;
    Ok(TcpListener::from(fd))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Args as _, FromArgMatches};

    fn of(words: &str, environment: &[(&str, &str)]) -> Result<Who, Usage> {
        let command = BenchOptions::augment_args(clap::Command::new("bench"));
        let words = std::iter::once("bench").chain(words.split_whitespace());
        let options = BenchOptions::from_arg_matches(&command.get_matches_from(words)).unwrap();
        let set = |name: &str| {
            environment
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| (*value).to_owned())
        };
        who(&options, set)
    }

    fn one(words: &str, environment: &[(&str, &str)]) -> Identity {
        match of(words, environment) {
            Ok(Who::One(identity)) => identity,
            Ok(Who::All(ranks)) => panic!("{words}: all {ranks}"),
            Err(error) => panic!("{words}: {}", error.0),
        }
    }

    #[test]
    fn a_rank_is_told_by_options_or_by_its_launcher() {
        let master = |text: &str| Found::Master(text.parse().unwrap());
        let right = |rank, ranks, local_rank, found| Identity {
            rank,
            ranks,
            local_rank,
            found,
        };
        let torch = [
            ("RANK", "5"),
            ("WORLD_SIZE", "8"),
            ("LOCAL_RANK", "1"),
            ("MASTER_ADDR", "127.0.0.1"),
            ("MASTER_PORT", "29400"),
        ];
        assert_eq!(one("", &torch), right(5, 8, 1, master("127.0.0.1:29401")));
        let slurm = [
            ("SLURM_PROCID", "2"),
            ("SLURM_NTASKS", "4"),
            ("SLURM_LOCALID", "0"),
        ];
        assert_eq!(
            one("--master 127.0.0.1:7", &slurm),
            right(2, 4, 0, master("127.0.0.1:7"))
        );
        let given = one("--rank 1 --ranks 3 --master [::1]:7", &torch);
        assert_eq!(
            given,
            right(1, 3, 1, master("[::1]:7")),
            "its GPU is still the launcher's"
        );
        let peers: Vec<SocketAddr> = ["10.0.0.1:7", "10.0.0.2:7"]
            .map(|text| text.parse().unwrap())
            .into();
        let given = one("--rank 1 --peers 10.0.0.1:7,10.0.0.2:7", &[]);
        assert_eq!(given, right(1, 2, 0, Found::Peers(peers)));
    }

    #[test]
    fn without_a_rank_all_are_started() {
        assert!(matches!(of("--ranks 3", &[("RANK", "1")]), Ok(Who::All(3))));
        assert!(matches!(of("", &[]), Ok(Who::All(1))));
        assert!(matches!(of("-g 8", &[("SLURM_PROCID", "0")]), Ok(Who::All(8))));
    }

    #[test]
    fn what_is_missing_or_makes_no_sense_is_named() {
        let check = |words, environment: &[(&str, &str)], text: &str| {
            let error = of(words, environment).err().map(|usage| usage.0);
            assert_eq!(error.as_deref(), Some(text), "{words}");
        };
        check("--rank 1", &[], "--rank needs --master or --peers");
        check(
            "--rank 3 --ranks 3 --master 127.0.0.1:7",
            &[],
            "rank 3 is not one of 3: they count from 0",
        );
        check(
            "--rank 0 --ranks 3 --peers 1.1.1.1:1",
            &[],
            "--peers names 1 ranks of 3",
        );
        check(
            "--master 127.0.0.1:7",
            &[("RANK", "x")],
            "RANK: `x` is not a number",
        );
        let torch = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")];
        let text = "-g 2: where a launcher starts the ranks (MASTER_ADDR or --master is given) each process is one, with one GPU";
        check("-g 2", &torch, text);
        check("-g 2 --ranks 3", &[], "-g 2 and --ranks 3 mean the same: use one");
        let text = "--ranks is missing, and no launcher's variable (RANK, ...) sets it";
        check("--rank 0 --master 127.0.0.1:7", &[], text);
    }
}
