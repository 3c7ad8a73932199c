//! The exit codes of the commands that hold locks for others: those of sysexits.h where one fits,
//! and of shells where a command cannot be run.

/// `show`: nobody holds the lock.
pub(super) const NOT_HELD: u8 = 1;
/// The command line, the key file or the URL is wrong, or the server refused what was asked for.
pub(super) const USAGE: u8 = 64;
/// The lock service gave no usable answer.
pub(super) const UNAVAILABLE: u8 = 69;
/// The operating system refused something.
pub(super) const SYSTEM: u8 = 71;
/// The lock was not had in time.
pub(super) const NOT_HAD: u8 = 75;
/// The lock was lost.
pub(super) const LOST: u8 = 76;
/// The server does not let this key do that.
pub(super) const FORBIDDEN: u8 = 77;
/// The command is there and cannot be run.
pub(super) const CANNOT_RUN: u8 = 126;
/// The command is not there.
pub(super) const NOT_FOUND: u8 = 127;
/// A process that a signal has ended: this and its number.
pub(super) const SIGNALLED: i32 = 128;
