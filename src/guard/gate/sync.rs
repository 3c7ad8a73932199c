//! What the gate is locked and shared with. The model checker puts its own in this place.

pub(super) use std::sync::atomic::{AtomicBool, Ordering};
pub(super) use std::sync::{Arc, Mutex, MutexGuard};
