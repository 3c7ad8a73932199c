//! `fencing run`, with real commands, signals and failures.

mod ends;
mod job;
mod loss;
mod signals;
