//! The process of a worker: takes the lock, reads, checks its lease, writes. It does one thing for
//! each line on its standard input and answers with one line of JSON.

use std::time::Duration;

use bytes::Bytes;
use fencing::Resource;
use fencing::client::{Lease, LockClient, attach};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader, Stdin};

use crate::{Error, app};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[arg(long)]
    name: String,
    #[arg(long)]
    url: String,
    #[arg(long)]
    item: i64,
    #[arg(long)]
    ttl_ms: u64,
    #[arg(long)]
    wait_ms: u64,
}

pub(crate) async fn run(args: &Args) -> Result<(), Error> {
    let mut worker = Worker {
        locks: LockClient::new(&args.url)?,
        http: Client::builder(TokioExecutor::new()).build_http(),
        lease: None,
        args,
    };
    let mut input = BufReader::new(tokio::io::stdin());
    // The end of the input is the end of the demo.
    while let Some(line) = next_line(&mut input).await? {
        let answer = match line.split_once(' ').unwrap_or((&line, "")) {
            ("acquire", _) => worker.acquire().await?,
            ("read", _) => worker.read().await?,
            ("check", _) => json!({ "held": worker.lease()?.is_held() }),
            ("write", quantity) => worker.write(quantity.parse()?).await?,
            ("lost", _) => worker.lost().await?,
            ("release", _) => worker.release().await?,
            _ => return Err(format!("no such command: {line}").into()),
        };
        say(&answer);
    }
    Ok(())
}

async fn next_line(input: &mut BufReader<Stdin>) -> Result<Option<String>, Error> {
    let mut line = String::new();
    let read = input.read_line(&mut line).await?;
    Ok((read > 0).then(|| line.trim_end().to_owned()))
}

#[allow(clippy::print_stdout, reason = "the demo reads the answer from here")]
fn say(answer: &Value) {
    println!("{answer}");
}

struct Worker<'a> {
    locks: LockClient,
    http: Client<HttpConnector, Full<Bytes>>,
    lease: Option<Lease>,
    args: &'a Args,
}

impl Worker<'_> {
    fn lease(&self) -> Result<&Lease, Error> {
        self.lease.as_ref().ok_or_else(|| "the worker has no lease".into())
    }

    async fn acquire(&mut self) -> Result<Value, Error> {
        let resource = Resource::new(app::resource_name(self.args.item))?;
        self.lease = self
            .locks
            .acquire(&resource)
            .owner(&self.args.name)
            .ttl(Duration::from_millis(self.args.ttl_ms))
            .wait(Duration::from_millis(self.args.wait_ms))
            .await?;
        Ok(match &self.lease {
            Some(lease) => json!({ "acquired": true, "token": lease.token() }),
            None => json!({ "acquired": false }),
        })
    }

    async fn read(&self) -> Result<Value, Error> {
        self.send(http::Method::GET, Bytes::new()).await
    }

    async fn write(&self, quantity: i64) -> Result<Value, Error> {
        self.send(http::Method::PUT, json!({ "quantity": quantity }).to_string().into()).await
    }

    async fn send(&self, method: http::Method, body: Bytes) -> Result<Value, Error> {
        let lease = self.lease()?;
        let mut request = http::Request::builder()
            .method(&method)
            .uri(format!("{}/inventory/{}", self.args.url, self.args.item))
            .header("x-request-id", &self.args.name)
            .body(Full::new(body))?;
        attach(&mut request, lease.claim());
        let response = self.http.request(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        Ok(json!({
            "method": method.as_str(),
            "token": lease.token(),
            "status": status.as_u16(),
            "reason": status.canonical_reason(),
            "body": serde_json::from_slice::<Value>(&body).unwrap_or(Value::Null),
        }))
    }

    /// Whether the lease reports its loss, within a bound.
    async fn lost(&self) -> Result<Value, Error> {
        let lost = tokio::time::timeout(Duration::from_secs(5), self.lease()?.lost()).await.is_ok();
        Ok(json!({ "lost": lost, "held": self.lease()?.is_held() }))
    }

    async fn release(&mut self) -> Result<Value, Error> {
        let lease = self.lease.take().ok_or("the worker has no lease")?;
        Ok(json!({ "released": format!("{:?}", lease.release().await?) }))
    }
}
