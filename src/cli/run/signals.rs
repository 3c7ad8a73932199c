use std::future::poll_fn;
use std::io;
use std::task::Poll;

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

/// What is passed on to the command. TSTP is what Ctrl-Z sends; it stops both.
const FORWARDED: [Signal; 7] = [
    Signal::TERM,
    Signal::INT,
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
    Signal::TSTP,
];

/// The signals that others send to this process.
pub(super) struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    /// Begins to listen. What this process was started to ignore, as by `nohup`, it goes on
    /// ignoring, and so does the command.
    pub(super) fn listen() -> io::Result<Self> {
        // Who ignores SIGCHLD never learns how a child has ended. From here on it is not ignored.
        drop(unix::signal(SignalKind::child())?);
        let ignored = ignored();
        let listened = FORWARDED.into_iter().filter(|signal| !ignored(*signal));
        let streams = listened
            .map(|signal| Ok((signal, unix::signal(SignalKind::from_raw(signal.as_raw()))?)));
        Ok(Self(streams.collect::<io::Result<_>>()?))
    }

    /// The next signal. Nothing is lost when the future is dropped.
    pub(super) async fn next(&mut self) -> Signal {
        poll_fn(|cx| {
            for (signal, stream) in &mut self.0 {
                if let Poll::Ready(Some(())) = stream.poll_recv(cx) {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// Whether a signal is ignored by this process, where the platform tells.
fn ignored() -> impl Fn(Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0);
    move |signal| mask >> (signal.as_raw() - 1) & 1 == 1
}
