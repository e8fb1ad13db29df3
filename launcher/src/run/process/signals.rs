//! Catches the signals for the child, and passes them in order as numbers on a pipe.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use signal_hook::low_level;

/// Signals that are forwarded to the child. Ctrl-Z is not among them, because the child gets it from the terminal, and
/// we notice its stop.
const PASSED: [Signal; 8] = [
    Signal::INT,
    Signal::TERM,
    Signal::USR1,
    Signal::USR2,
    Signal::HUP,
    Signal::QUIT,
    Signal::CONT,
    Signal::WINCH,
];

/// Within this time, the same signal is not forwarded again. A scheduler delivers some signals twice, to the process
/// and to its group or step, and the second one is not meant by the user. Many trainers take a second SIGTERM as "now,
/// without saving".
const REPEAT: Duration = Duration::from_secs(1);

/// The signals that were received.
#[derive(Debug)]
pub(crate) struct Signals {
    pipe: UnixStream,
    repeats: Repeats,
}

impl Signals {
    /// Starts to catch signals. A signal that was ignored at our start (`nohup`) stays ignored, also for the child.
    pub(crate) fn take() -> io::Result<Signals> {
        let (reader, writer) = UnixStream::pair()?;
        reader.set_nonblocking(true)?;
        writer.set_nonblocking(true)?;
        // Keep the writer open for the life of this process, like the handlers. All signals share one, to save
        // descriptors.
        let writer = writer.into_raw_fd();
        let wanted = PASSED
            .into_iter()
            .map(Signal::as_raw)
            .filter(|signal| !is_ignored(*signal));
        for signal in wanted.chain([libc::SIGCHLD]) {
            let number = [signal as u8];
            // SAFETY: the action is one write on a non-blocking socket that is never closed. It is async-signal-safe
            // and uses neither locks nor memory. If the pipe is full, the byte is lost, but then thousands are unread.
            unsafe {
                low_level::register(signal, move || {
                    libc::write(writer, number.as_ptr().cast(), 1);
                })?;
            }
        }
        Ok(Signals {
            pipe: reader,
            repeats: Repeats::default(),
        })
    }

    /// Returns a descriptor that is readable when a signal has arrived.
    pub(crate) fn wake(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }

    /// Returns the signals to forward, in order. SIGCHLD is not among them, because it only wakes us.
    pub(crate) fn drain(&mut self, now: Instant) -> Vec<Signal> {
        let mut passed = Vec::new();
        let mut buffer = [0; 64];
        while let Ok(count) = self.pipe.read(&mut buffer) {
            for number in &buffer[..count] {
                let signal = Signal::from_named_raw(i32::from(*number));
                passed.extend(
                    signal.filter(|signal| *signal != Signal::CHILD && self.repeats.is_new(*signal, now)),
                );
            }
            if count < buffer.len() {
                break;
            }
        }
        passed
    }
}

/// Makes a write beyond `ulimit -f` fail instead of ending us. It installs a handler and not SIG_IGN, so that our child
/// processes get the default again.
pub(crate) fn outlive_file_limit() {
    if is_ignored(libc::SIGXFSZ) {
        return;
    }
    // SAFETY: the action does nothing. If the handler cannot be set, nothing changes.
    let _ = unsafe { low_level::register(libc::SIGXFSZ, || ()) };
}

/// The time when each signal was last forwarded.
#[derive(Debug, Default)]
struct Repeats(Vec<(Signal, Instant)>);

impl Repeats {
    fn is_new(&mut self, signal: Signal, now: Instant) -> bool {
        // Forward all of these, because every window change counts, and a second SIGCONT has no effect.
        if matches!(signal, Signal::CONT | Signal::WINCH) {
            return true;
        }
        match self.0.iter_mut().find(|(known, _)| *known == signal) {
            Some((_, last)) if now.duration_since(*last) < REPEAT => false,
            Some((_, last)) => {
                *last = now;
                true
            }
            None => {
                self.0.push((signal, now));
                true
            }
        }
    }
}

fn is_ignored(signal: i32) -> bool {
    // SAFETY: a null action only queries the current one, which is written to memory of its type.
    unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut now) == 0 && now.sa_sigaction == libc::SIG_IGN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_delivery_is_not_doubled_and_a_later_one_is_meant() {
        let mut repeats = Repeats::default();
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        assert!(repeats.is_new(Signal::TERM, at(0)));
        assert!(!repeats.is_new(Signal::TERM, at(300)));
        assert!(repeats.is_new(Signal::INT, at(300)));
        // The time counts from the last forwarded signal, so that a steady stream is thinned and not suppressed.
        assert!(repeats.is_new(Signal::TERM, at(1100)));
        assert!(repeats.is_new(Signal::WINCH, at(0)) && repeats.is_new(Signal::WINCH, at(1)));
    }
}
