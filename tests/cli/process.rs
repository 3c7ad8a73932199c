//! Runs the program and speaks HTTP to it.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// How long anything may take that is not meant to wait.
pub(crate) const BOUND: Duration = Duration::from_secs(60);

/// The program, with nothing of this process's environment that it would look at.
pub(crate) fn fencing() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fencing"));
    for (variable, _) in std::env::vars_os() {
        if variable.to_str().is_some_and(|name| name.starts_with("FENCING_")) {
            command.env_remove(variable);
        }
    }
    command.env_remove("RUST_LOG");
    command.stdin(Stdio::null());
    command
}

/// Runs a command line that is expected to end by itself.
pub(crate) fn run(arguments: &[&str]) -> Output {
    Guard::spawn(fencing().args(arguments)).end()
}

/// A child that does not outlive its test.
pub(crate) struct Guard(Option<Child>);

impl Guard {
    pub(crate) fn spawn(command: &mut Command) -> Self {
        Self(Some(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()))
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(self.0.as_ref().unwrap())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Waits for it to end, within bounds.
    pub(crate) fn end(mut self) -> Output {
        let mut child = self.0.take().unwrap();
        let began = now();
        while child.try_wait().unwrap().is_none() {
            if began.elapsed() > BOUND {
                child.kill().unwrap();
                panic!("it did not end: {:?}", child.wait_with_output());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        child.wait_with_output().unwrap()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// `fencing serve`, ready.
pub(crate) struct Server {
    child: Guard,
    stdout: BufReader<ChildStdout>,
    /// What it has logged so far. Read all the time: a full pipe would stop it.
    log: Arc<Mutex<String>>,
    reader: JoinHandle<()>,
    pub(crate) address: String,
}

impl Server {
    pub(crate) fn start(directory: &Path) -> Self {
        let database = format!("sqlite:{}", directory.join("locks.db").display());
        Self::with(["--listen", "127.0.0.1:0", "--database", &database])
    }

    pub(crate) fn with<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Self {
        Self::of(fencing().arg("serve").args(arguments))
    }

    pub(crate) fn of(command: &mut Command) -> Self {
        Self::try_of(command).unwrap_or_else(|why| panic!("not ready: {why}"))
    }

    /// `None` when it does not start, as on a port that is not free.
    pub(crate) fn try_with<S: AsRef<OsStr>>(
        arguments: impl IntoIterator<Item = S>,
    ) -> Option<Self> {
        Self::try_of(fencing().arg("serve").args(arguments)).ok()
    }

    fn try_of(command: &mut Command) -> Result<Self, String> {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let log: Arc<Mutex<String>> = Arc::default();
        let (stderr, lines) = (BufReader::new(child.stderr.take().unwrap()), Arc::clone(&log));
        let reader = std::thread::spawn(move || {
            for line in stderr.lines() {
                lines.lock().unwrap().extend([line.unwrap().as_str(), "\n"]);
            }
        });
        let child = Guard(Some(child));
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let said = line.strip_prefix("listening on http");
        let said = said.map(|rest| rest.strip_prefix('s').unwrap_or(rest));
        let Some(address) = said.and_then(|rest| rest.strip_prefix("://")) else {
            let output = child.end();
            reader.join().unwrap();
            return Err(format!("{line:?} {output:?} {log:?}"));
        };
        let address = address.trim_end().to_owned();
        Ok(Self { child, stdout, log, reader, address })
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.child.signal(signal);
    }

    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Waits for its end: the exit code, the rest of its stdout, its stderr.
    pub(crate) fn end(mut self) -> (Option<i32>, String, String) {
        let output = Guard(self.child.0.take()).end();
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).unwrap();
        self.reader.join().unwrap();
        let log = std::mem::take(&mut *self.log.lock().unwrap());
        (output.status.code(), rest, log)
    }

    pub(crate) fn request(&self, request: &str) -> Answer {
        try_request(&self.address, request).unwrap()
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        try_post(&self.address, path, body).unwrap()
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.request(&format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"))
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn is_held(&self, resource: &str) -> bool {
        self.get(&format!("/locks/{resource}")).status == 200
    }

    /// Releases what [`take`](Self::take) has taken.
    pub(crate) fn give_back(&self, resource: &str, owner: &str) -> u16 {
        let request = format!(
            "DELETE /locks/{resource} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
             x-lock-owner-token: {}\r\n\r\n",
            secret(owner)
        );
        self.request(&request).status
    }

    /// Acquires `resource` for `owner`, whose owner token is made of the label.
    pub(crate) fn take(&self, resource: &str, owner: &str, ttl_ms: u64) -> Answer {
        try_take(&self.address, resource, owner, ttl_ms).unwrap()
    }
}

pub(crate) fn secret(owner: &str) -> String {
    format!("secret-of-{owner:_>10}")
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) json: Value,
}

impl Answer {
    #[track_caller]
    pub(crate) fn granted_token(&self) -> i64 {
        assert_eq!(self.json["acquired"], true, "{self:?}");
        self.json["lock"]["token"].as_i64().unwrap()
    }
}

pub(crate) fn try_take(
    address: &str,
    resource: &str,
    owner: &str,
    ttl_ms: u64,
) -> std::io::Result<Answer> {
    let body = json!({ "owner": owner, "ttl_ms": ttl_ms, "owner_token": secret(owner) });
    try_post(address, &format!("/locks/{resource}"), &body)
}

pub(crate) fn try_post(address: &str, path: &str, body: &Value) -> std::io::Result<Answer> {
    let body = body.to_string();
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    try_request(address, &request)
}

/// One request on one connection. An answer that is cut off is an error.
pub(crate) fn try_request(address: &str, request: &str) -> std::io::Result<Answer> {
    let mut socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(BOUND))?;
    socket.write_all(request.as_bytes())?;
    read_answer(&mut socket)
}

pub(crate) fn read_answer(socket: &mut TcpStream) -> std::io::Result<Answer> {
    let mut text = String::new();
    socket.read_to_string(&mut text)?;
    let cut = || std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(cut)?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(cut)?;
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    if length.is_some_and(|length| length.parse() != Ok(body.len())) {
        return Err(cut());
    }
    Ok(Answer { status, json: serde_json::from_str(body).unwrap_or(Value::Null) })
}

#[allow(clippy::disallowed_methods, reason = "a bound on real processes")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Waits for a condition, within bounds.
#[track_caller]
pub(crate) fn until(condition: impl Fn() -> bool) {
    let began = now();
    while !condition() {
        assert!(began.elapsed() < BOUND, "it did not come true");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until something is there.
#[track_caller]
pub(crate) fn until_some<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < BOUND, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
