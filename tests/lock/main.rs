//! The lock endpoint: one body of tests for every store behind it.

mod attacks;
mod contract;
mod fuzz;
mod grants;
mod hang_up;
mod secrets;
mod site;
mod waiting;
