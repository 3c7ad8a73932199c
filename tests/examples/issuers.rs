//! The two issuers of the example, tried more closely.

#[path = "../../examples/foreign_tokens/etcd.rs"]
pub(crate) mod etcd;
#[path = "../../examples/foreign_tokens/redis.rs"]
pub(crate) mod redis;
