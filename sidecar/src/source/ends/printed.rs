//! Extracts the reason for the end of processes from their output. C++ libraries end a process with a message on its
//! standard error that Python code cannot see. The functions are pure: they take text and return a reason.

use paceline_health::event::TroubleKind;

/// Maximum length of a reported line.
const LONGEST: usize = 600;

/// A printed reason for an end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Printed {
    /// The rank, if the line contains one.
    pub rank: Option<u32>,
    /// The kind of end.
    pub kind: TroubleKind,
    /// The printed line.
    pub says: String,
}

/// Messages about mismatched collectives from gloo (`EnforceNotMet` if sizes differ), NCCL, and torch's
/// ProcessGroupWrapper.
const MISMATCH: [&str; 3] = [
    "op.preamble.length <= op.nbytes",
    "mismatched collective detected",
    "detected mismatch between collectives",
];
/// The timeout message of torch's ProcessGroupNCCL.
const TIMEOUT: &str = "watchdog caught collective operation timeout";
/// The prefix that libstdc++'s terminate handler prints before the exception's own text.
const WHAT: &str = "what():";

/// Returns the reason that libraries printed: the first mismatch, else the first timeout, else the first C++ exception.
pub fn of_libraries(text: &str) -> Option<Printed> {
    let line_with = |part: &str| text.lines().find(|line| line.to_lowercase().contains(part));
    let of = |line: &str, kind| Printed {
        rank: rank(line),
        kind,
        says: clipped(line),
    };
    let mismatch = MISMATCH.iter().find_map(|part| line_with(part));
    let mismatch = mismatch.map(|line| of(line, TroubleKind::CollectiveMismatch));
    let timeout = || line_with(TIMEOUT).map(|line| of(line, TroubleKind::CollectiveTimeout));
    let what = || line_with(WHAT).map(|line| of(line, TroubleKind::Error));
    mismatch.or_else(timeout).or_else(what)
}

/// Lower-case words in messages of a failure that have no error prefix, from a shell, the kernel or a library.
const FAILURES: [&str; 16] = [
    "error",
    "exception",
    "fail",
    "fatal",
    "abort",
    "killed",
    "panic",
    "fault",
    "denied",
    "refused",
    "not found",
    "no such",
    "cannot",
    "can't",
    "timed out",
    "out of memory",
];

/// Returns the last error line. Without one, returns the last line if it mentions a failure, because many logs simply
/// end with the line of a training step.
pub fn last_words(text: &str) -> Option<Printed> {
    let lines = || {
        text.lines()
            .map(str::trim_end)
            .filter(|line| !line.trim().is_empty())
    };
    let line = lines()
        .rfind(|line| is_error(line))
        .or_else(|| lines().next_back().filter(|line| speaks_of_failure(line)))?;
    Some(Printed {
        rank: rank(line),
        kind: TroubleKind::Error,
        says: clipped(line),
    })
}

fn speaks_of_failure(line: &str) -> bool {
    let line = line.to_lowercase();
    FAILURES.iter().any(|word| line.contains(word))
}

/// Returns true for a line such as `ValueError: ...`, `error: ...` or `fatal: ...`, with or without torch's prefix
/// `[rank1]:`.
fn is_error(line: &str) -> bool {
    let line = match line.strip_prefix("[rank") {
        Some(rest) => rest.split_once("]:").map_or(line, |(_, rest)| rest.trim_start()),
        None => line,
    };
    let Some((name, _)) = line.split_once(':') else {
        return false;
    };
    let last = name.rsplit('.').next().unwrap_or(name);
    let is_exception = !name.contains(' ') && (last.ends_with("Error") || last.ends_with("Exception"));
    // Exclude ChildFailedError, which is the launcher's summary of its workers' errors.
    is_exception && last != "ChildFailedError"
        || ["error", "fatal", "fatal error"].contains(&&*name.to_lowercase())
}

/// Returns the rank in a line: `[rank1]:` in torch's tracebacks, `[Rank 1]` in the messages of its watchdog.
fn rank(line: &str) -> Option<u32> {
    let line = line.to_lowercase();
    let (_, rest) = line.split_once("[rank")?;
    let digits: String = rest
        .trim_start()
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    digits.parse().ok()
}

fn clipped(line: &str) -> String {
    let line = line.trim();
    let line = line.split_once(WHAT).map_or(line, |(_, what)| what.trim());
    line.chars().take(LONGEST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_libraries() {
        let found = |text: &str| of_libraries(text).map(|found| (found.rank, found.kind, found.says));
        let gloo = "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  [enforce fail at \
                    ../third_party/gloo/gloo/transport/tcp/pair.cc:454] op.preamble.length <= op.nbytes. 8 vs 4\n";
        let says = "[enforce fail at ../third_party/gloo/gloo/transport/tcp/pair.cc:454] op.preamble.length <= op.nbytes. 8 vs 4";
        assert_eq!(
            found(gloo),
            Some((None, TroubleKind::CollectiveMismatch, says.to_owned()))
        );
        let timeout = "[E1124 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation timeout: \
                       WorkNCCL(SeqNum=7, OpType=ALLREDUCE)";
        assert_eq!(
            found(timeout),
            Some((Some(1), TroubleKind::CollectiveTimeout, timeout.to_owned()))
        );
        let other =
            "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n";
        assert_eq!(
            found(other),
            Some((None, TroubleKind::Error, "std::bad_alloc".to_owned()))
        );
        assert_eq!(found("step 1\nValueError: x\n"), None);
    }

    #[test]
    fn what_was_printed_last() {
        let last = |text: &str| last_words(text).map(|found| (found.rank, found.says));
        let says = |rank, text: &str| Some((rank, text.to_owned()));
        assert_eq!(last(" \n"), None);
        assert_eq!(
            last("a\nbash: train: command not found\n\n"),
            says(None, "bash: train: command not found")
        );
        assert_eq!(
            last("[rank1]: ValueError: no data\nleft behind\n"),
            says(Some(1), "[rank1]: ValueError: no data")
        );
        assert_eq!(
            last(
                "error: no such file\ntorch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n===\n"
            ),
            says(None, "error: no such file")
        );
    }
}
