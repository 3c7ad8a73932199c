//! The inventory example as a process of its own, and a client for it.

use std::any::Any;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use bytes::Bytes;
use futures_core::future::BoxFuture;
use http::{HeaderMap, Method, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use sqlx::ConnectOptions;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::support::{Db, Harness};

/// A bound for everything that a test waits for.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Service {
    base: String,
    http: Client<HttpConnector, Full<Bytes>>,
    pub(crate) child: Child,
    /// Whether the mark of item 1 is locked.
    locked: Box<dyn Fn() -> BoxFuture<'static, bool> + Send + Sync>,
    _place: Box<dyn Any + Send + Sync>,
}

/// A database whose locks can be tried.
pub(crate) trait Tried: Harness<Place: 'static> {
    /// Fails at once when the mark of item 1 is locked.
    const TRY: &str = "START TRANSACTION; SELECT 1 FROM fencing_marks \
         WHERE resource = 'inventory:item:1' FOR UPDATE NOWAIT; ROLLBACK";
}

impl Tried for sqlx::Sqlite {
    const TRY: &str = "PRAGMA busy_timeout = 0; BEGIN IMMEDIATE; ROLLBACK";
}

impl Tried for sqlx::Postgres {}

impl Tried for sqlx::MySql {}

pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

impl Answer {
    /// The name of the problem, where it is one.
    pub(crate) fn problem(&self) -> &str {
        let kind = self.body["type"].as_str().unwrap_or_default();
        kind.strip_prefix("urn:fencing:problem:").unwrap_or_default()
    }
}

/// The example beside the test binaries. `cargo test` builds it.
pub(crate) fn program() -> PathBuf {
    let mut path = PathBuf::from(env!("CARGO_BIN_EXE_fencing"));
    path.pop();
    path.join("examples/inventory")
}

impl Service {
    pub(crate) async fn start<H: Tried>(args: &[&str]) -> Self {
        let db = Db::<H>::empty().await;
        let database = db.url();
        let mut child = Command::new(program())
            .args(["--listen", "127.0.0.1:0", "--database", &database])
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("the example is there: build it with cargo build --features full --examples");
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap().unwrap();
        let base = ready.strip_prefix("listening on ").expect("the ready line").to_owned();
        let http = Client::builder(TokioExecutor::new()).build_http();
        let options = db.options.clone();
        let locked = move || {
            let options = options.clone();
            async move {
                let mut conn = options.connect().await.unwrap();
                H::script(&mut conn, H::TRY).await.is_err()
            }
        };
        let locked = Box::new(move || Box::pin(locked()) as BoxFuture<'static, bool>);
        Self { base, http, child, locked, _place: Box::new(db) }
    }

    pub(crate) async fn call(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Answer {
        let mut request =
            http::Request::builder().method(method).uri(format!("{}{path}", self.base));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::from(body.to_owned()))).unwrap();
        let response = timeout(PATIENCE, self.http.request(request)).await.unwrap().unwrap();
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
        Answer { status: parts.status, headers: parts.headers, body }
    }

    pub(crate) async fn put(&self, item: i64, token: i64, quantity: i64, pause_ms: u64) -> Answer {
        let (token, pause) = (token.to_string(), pause_ms.to_string());
        let headers = [("x-fencing-token", &*token), ("x-demo-pause-ms", &*pause)];
        let body = format!(r#"{{"quantity":{quantity}}}"#);
        self.call(Method::PUT, &format!("/inventory/{item}"), &headers, &body).await
    }

    pub(crate) async fn take(&self, item: i64, token: i64, quantity: i64, pause_ms: u64) -> Answer {
        let (token, pause) = (token.to_string(), pause_ms.to_string());
        let headers = [("x-fencing-token", &*token), ("x-demo-pause-ms", &*pause)];
        let body = format!(r#"{{"quantity":{quantity}}}"#);
        self.call(Method::POST, &format!("/inventory/{item}/take"), &headers, &body).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.call(Method::GET, path, &[], "").await
    }

    /// The tokens of the applied writes, in their order.
    pub(crate) async fn applied(&self, item: i64) -> Vec<i64> {
        let log = self.get(&format!("/inventory/{item}/log")).await.body;
        log.as_array().unwrap().iter().map(|entry| entry["token"].as_i64().unwrap()).collect()
    }

    /// Waits until a paused writer of item 1 is inside its transaction.
    pub(crate) async fn until_a_write_is_open(&self) {
        let shut_out = async {
            while !(self.locked)().await {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(PATIENCE, shut_out).await.expect("the writer comes in");
    }

    /// Waits, within the bound, until `condition` holds of the item.
    pub(crate) async fn wait_for(&self, item: i64, condition: fn(&Value) -> bool) {
        let path = format!("/inventory/{item}");
        let seen = async {
            while !condition(&self.get(&path).await.body) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(PATIENCE, seen).await.expect("the condition holds in time");
    }
}
