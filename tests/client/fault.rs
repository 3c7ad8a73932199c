//! A server whose every answer, and failure to answer, is written by the test.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use crate::soon;

/// Listens on a free port of the loopback interface. Requests are handed to the test one by one.
pub(crate) struct FaultServer {
    address: SocketAddr,
    calls: mpsc::UnboundedReceiver<Call>,
    _accepting: JoinSet<()>,
}

/// A request, and what becomes of it. Dropped without an answer, the connection is closed; kept
/// without an answer, the client waits: a black hole.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Value,
    reply: oneshot::Sender<Reply>,
}

#[derive(Debug)]
struct Reply {
    bytes: Vec<u8>,
    /// Whether the connection goes on after the bytes, rather than stall.
    complete: bool,
}

impl FaultServer {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, calls) = mpsc::unbounded_channel();
        let mut accepting = JoinSet::new();
        accepting.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(stream, sender.clone()));
            }
        });
        Self { address, calls, _accepting: accepting }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The next request.
    pub(crate) async fn next(&mut self) -> Call {
        soon(self.calls.recv()).await.expect("the server runs")
    }

    /// The next request, however long it takes.
    pub(crate) async fn wait_next(&mut self) -> Option<Call> {
        self.calls.recv().await
    }

    /// The next request, which must be a renewal.
    pub(crate) async fn next_renewal(&mut self) -> Call {
        let call = self.next().await;
        assert_eq!((&*call.method, &*call.path), ("POST", "/locks/r/renew"));
        call
    }

    /// The next request, which must be a release.
    pub(crate) async fn next_release(&mut self) -> Call {
        let call = self.next().await;
        assert_eq!((&*call.method, &*call.path), ("DELETE", "/locks/r"));
        call
    }

    /// The next request, if it is there already.
    pub(crate) fn try_next(&mut self) -> Option<Call> {
        self.calls.try_recv().ok()
    }

    /// Asserts that no request is waiting to be looked at.
    pub(crate) fn assert_quiet(&mut self) {
        if let Some(call) = self.try_next() {
            panic!("unexpected: {call:?}");
        }
    }
}

async fn serve(mut stream: TcpStream, calls: mpsc::UnboundedSender<Call>) {
    let mut buffer = Vec::new();
    while let Some((call, mut answer)) = read_call(&mut stream, &mut buffer).await {
        if calls.send(call).is_err() {
            return;
        }
        let reply = loop {
            tokio::select! {
                reply = &mut answer => break reply,
                more = read_some(&mut stream, &mut buffer) => if more.is_none() { return },
            }
        };
        let Ok(reply) = reply else { return };
        if stream.write_all(&reply.bytes).await.is_err() {
            return;
        }
        if !reply.complete {
            // Until the client goes.
            let _ = stream.read(&mut [0; 1]).await;
            return;
        }
    }
}

async fn read_call(
    stream: &mut TcpStream,
    buffer: &mut Vec<u8>,
) -> Option<(Call, oneshot::Receiver<Reply>)> {
    let end = loop {
        if let Some(end) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
            break end;
        }
        read_some(stream, buffer).await?;
    };
    let head = String::from_utf8(buffer.drain(..end + 4).collect()).unwrap();
    let mut lines = head.lines();
    let mut start = lines.next().unwrap().split(' ').map(str::to_owned);
    let (method, path) = (start.next().unwrap(), start.next().unwrap());
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let length = headers
        .iter()
        .find(|(name, _)| name == "content-length")
        .map_or(0, |(_, value)| value.parse().unwrap());
    while buffer.len() < length {
        read_some(stream, buffer).await?;
    }
    let body: Vec<u8> = buffer.drain(..length).collect();
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let (reply, answer) = oneshot::channel();
    Some((Call { method, path, headers, body, reply }, answer))
}

async fn read_some(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<()> {
    (stream.read_buf(buffer).await.ok()? > 0).then_some(())
}

impl Call {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| &**value)
    }

    /// The secret, from the body or the header.
    pub(crate) fn secret(&self) -> String {
        let in_body = self.body["owner_token"].as_str();
        in_body.or(self.header("x-lock-owner-token")).expect("an owner token").to_owned()
    }

    /// Answers with these very bytes.
    pub(crate) fn raw(self, bytes: impl Into<Vec<u8>>) {
        // That the client has gone is no fault of the test.
        let _ = self.reply.send(Reply { bytes: bytes.into(), complete: true });
    }

    /// Sends these bytes and no more, and keeps the connection open.
    pub(crate) fn stall_after(self, bytes: impl Into<Vec<u8>>) {
        let _ = self.reply.send(Reply { bytes: bytes.into(), complete: false });
    }

    pub(crate) fn answer(self, status: u16, media_type: &str, extra: &str, body: &str) {
        let length = body.len();
        self.raw(format!(
            "HTTP/1.1 {status} X\r\nContent-Type: {media_type}\r\nContent-Length: {length}\r\n{extra}\r\n{body}"
        ));
    }

    pub(crate) fn json(self, status: u16, body: &Value) {
        self.answer(status, "application/json", "", &body.to_string());
    }

    pub(crate) fn html(self, status: u16) {
        self.answer(status, "text/html", "", "<html><h1>Something went wrong</h1></html>");
    }

    pub(crate) fn problem(self, status: u16, name: &str) {
        let body = json!({
            "type": format!("urn:fencing:problem:{name}"), "title": "T", "status": status,
            "detail": "details", "resource": "r",
        });
        self.answer(status, "application/problem+json", "", &body.to_string());
    }

    /// Grants, for the TTL that was asked for.
    pub(crate) fn grant(self, token: i64, waited_ms: u64) {
        let remaining_ms = self.body["ttl_ms"].as_u64().unwrap();
        let mut lock = lock(token, remaining_ms);
        lock["owner_token"] = self.body["owner_token"].clone();
        self.json(200, &json!({ "acquired": true, "lock": lock, "waited_ms": waited_ms }));
    }

    /// Answers that another holds it.
    pub(crate) fn held(self) {
        self.json(200, &json!({ "acquired": false, "resource": "r", "retry_after_ms": 1000 }));
    }

    /// Answers a renewal, for the TTL that was asked for.
    pub(crate) fn renew(self, token: i64) {
        let remaining = Duration::from_millis(self.body["ttl_ms"].as_u64().unwrap());
        self.renew_for(token, remaining);
    }

    pub(crate) fn renew_for(self, token: i64, remaining: Duration) {
        self.json(200, &lock(token, u64::try_from(remaining.as_millis()).unwrap()));
    }

    /// Answers a release.
    pub(crate) fn released(self) {
        self.raw("HTTP/1.1 204 No Content\r\n\r\n");
    }

    /// Waits until the client has hung up.
    pub(crate) async fn hung_up(mut self) {
        soon(self.reply.closed()).await;
    }
}

fn lock(token: i64, remaining_ms: u64) -> Value {
    json!({
        "resource": "r", "owner": "me", "token": token, "acquired_at": "2023-11-14T22:13:20.000Z",
        "expires_at": "2023-11-14T22:13:30.000Z", "remaining_ms": remaining_ms,
    })
}
