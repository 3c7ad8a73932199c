//! The gate of `fencing`, as it is in `src/guard/gate`, between loom's locks and threads.
#![cfg(test)]

mod gate;

// What the gate needs of the crate: a name that can be a key, and tokens in order.

#[derive(Clone, PartialEq, Eq, Hash)]
struct Resource(&'static str);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Token(i64);
