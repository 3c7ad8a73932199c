//! The report_file example as a process of its own, and a client for it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader, Lines};
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

/// A bound for everything that a test waits for.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Service {
    pub(crate) base: String,
    child: Child,
}

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Answer {
    /// The token that the report was produced under.
    pub(crate) fn token(&self) -> &str {
        self.headers["x-report-token"].to_str().unwrap()
    }
}

/// A process that has not said yet that it is ready.
pub(crate) struct Starting {
    child: Child,
    out: Lines<BufReader<tokio::process::ChildStdout>>,
    errors: Lines<BufReader<tokio::process::ChildStderr>>,
}

impl Starting {
    pub(crate) fn new(folder: &Path) -> Self {
        let mut child = Command::new(program())
            .args(["--listen", "127.0.0.1:0", "--folder"])
            .arg(folder)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the example is there: build it with cargo build --features full --examples");
        let out = BufReader::new(child.stdout.take().unwrap()).lines();
        let errors = BufReader::new(child.stderr.take().unwrap()).lines();
        Self { child, out, errors }
    }

    pub(crate) async fn error_line(&mut self) -> String {
        line(&mut self.errors).await
    }

    pub(crate) async fn ready(mut self) -> Service {
        let ready = line(&mut self.out).await;
        let base = ready.strip_prefix("listening on ").expect("the ready line").to_owned();
        Service { base, child: self.child }
    }
}

async fn line(lines: &mut Lines<BufReader<impl AsyncRead + Unpin>>) -> String {
    timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap().unwrap_or_default()
}

/// The example beside the test binaries. `cargo test` builds it.
fn program() -> PathBuf {
    let mut path = PathBuf::from(env!("CARGO_BIN_EXE_fencing"));
    path.pop();
    path.join("examples/report_file")
}

impl Service {
    pub(crate) async fn start(folder: &Path) -> Self {
        Starting::new(folder).ready().await
    }

    /// Kills it, without a chance to finish anything.
    pub(crate) async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }

    pub(crate) async fn put(&self, token: i64, content: &str) -> Answer {
        put(&self.base, token, content, 0).await
    }

    pub(crate) async fn get(&self, token: Option<i64>) -> Answer {
        call(&self.base, Method::GET, token, "", 0).await
    }
}

pub(crate) async fn put(base: &str, token: i64, content: &str, pause_ms: u32) -> Answer {
    call(base, Method::PUT, Some(token), content, pause_ms).await
}

async fn call(
    base: &str,
    method: Method,
    token: Option<i64>,
    content: &str,
    pause_ms: u32,
) -> Answer {
    let http = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let mut request = http::Request::builder().method(method).uri(format!("{base}/reports/daily"));
    if let Some(token) = token {
        request = request.header("x-fencing-token", token);
    }
    let request = request.header("x-demo-pause-ms", pause_ms);
    let request = request.body(Full::from(content.to_owned())).unwrap();
    let (head, body) =
        timeout(PATIENCE, http.request(request)).await.unwrap().unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let body = String::from_utf8(body.to_vec()).unwrap();
    Answer { status: head.status.as_u16(), headers: head.headers, body }
}

/// Waits until somebody has a temporary file in the folder: it is inside, about to publish.
pub(crate) async fn somebody_writes(folder: &Path) {
    let waiting = async {
        while temporary_files(folder) == 0 {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, waiting).await.expect("nobody writes");
}

pub(crate) fn temporary_files(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).unwrap();
    entries
        .filter(|entry| entry.as_ref().unwrap().path().extension() == Some("tmp".as_ref()))
        .count()
}
