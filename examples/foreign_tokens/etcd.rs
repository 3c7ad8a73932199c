//! A lock of etcd, by its JSON gateway. The token is the revision that created the key of the lock.

use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD as BASE64;
use bytes::Bytes;
use fencing::Token;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};

use crate::Error;

pub(crate) struct Etcd {
    url: String,
    http: Client<HttpConnector, Full<Bytes>>,
}

/// A lock that is held until its lease expires.
pub(crate) struct Lock {
    pub(crate) token: Token,
    lease: String,
}

impl Etcd {
    pub(crate) fn new(url: &str) -> Self {
        let url = url.trim_end_matches('/').to_owned();
        Self { url, http: Client::builder(TokioExecutor::new()).build_http() }
    }

    /// Waits for the lock, with a lease that nobody keeps alive. etcd counts in whole seconds, and
    /// has a shortest lease, which follows from its election timeout.
    pub(crate) async fn lock(&self, name: &str, ttl: Duration) -> Result<Lock, Error> {
        let granted = self.call("/v3/lease/grant", &json!({"TTL": ttl.as_secs().max(1)})).await?;
        // Numbers of 64 bits are text in JSON.
        let lease = text(&granted, "/ID")?.to_owned();
        let name = BASE64.encode(name);
        let locked = self.call("/v3/lock/lock", &json!({"name": name, "lease": lease})).await?;
        // The revision in the header of this answer is not the one: it is that of the whole store,
        // at the time of the answer.
        let key = self.call("/v3/kv/range", &json!({"key": text(&locked, "/key")?})).await?;
        let Ok(revision) = text(&key, "/kvs/0/create_revision") else {
            return Err("the lease expired before the lock was granted".into());
        };
        Ok(Lock { token: revision.parse()?, lease })
    }

    /// Gives a lock back. What it is bound to is its lease.
    pub(crate) async fn unlock(&self, lock: Lock) -> Result<(), Error> {
        self.call("/v3/lease/revoke", &json!({"ID": lock.lease})).await.map(drop)
    }

    async fn call(&self, path: &str, body: &Value) -> Result<Value, Error> {
        let request = Request::post(format!("{}{path}", self.url))
            .body(Full::from(serde_json::to_vec(body)?))?;
        let answer = self.http.request(request).await?;
        let status = answer.status();
        let body = answer.into_body().collect().await?.to_bytes();
        if status.is_success() {
            Ok(serde_json::from_slice(&body)?)
        } else {
            Err(format!("etcd refused {path}: {status} {}", String::from_utf8_lossy(&body)).into())
        }
    }
}

fn text<'a>(answer: &'a Value, pointer: &str) -> Result<&'a str, Error> {
    let value = answer.pointer(pointer).and_then(Value::as_str);
    value.ok_or_else(|| format!("no {pointer} in the answer of etcd").into())
}
