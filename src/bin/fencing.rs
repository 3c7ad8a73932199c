//! The `fencing` program.
fn main() {}
