mod models;
#[path = "../../../src/guard/gate/state.rs"]
mod state;
#[path = "../../../src/guard/gate/visit.rs"]
#[allow(dead_code, reason = "what only the layer asks for")]
mod visit;

mod sync {
    pub(super) use loom::sync::atomic::{AtomicBool, Ordering};
    pub(super) use loom::sync::{Arc, Mutex, MutexGuard};
}
