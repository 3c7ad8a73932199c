//! `fencing serve`, from its ready line to its end.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;

use crate::process::{BOUND, Server, now, read_answer, secret};

#[test]
fn it_says_once_that_it_is_ready_and_stops_when_told() {
    for signal in [Signal::TERM, Signal::INT] {
        let directory = tempfile::tempdir().unwrap();
        let server = Server::start(directory.path());
        let (host, port) = server.address.rsplit_once(':').unwrap();
        assert_eq!(host, "127.0.0.1");
        assert_ne!(port, "0");
        assert_eq!(server.take("job", "a", 60_000).granted_token(), 1);
        assert_eq!(server.get("/locks/job").status, 200);
        assert_eq!(server.get("/").status, 404);
        server.signal(signal);
        let (code, rest, stderr) = server.end();
        assert_eq!(code, Some(0), "{stderr}");
        assert_eq!(rest, "", "one line on stdout");
        assert!(stderr.contains("stopping"), "{stderr}");
    }
}

/// The tables are made at the first start and found at the next; grants and tokens stay.
#[test]
fn i2_a_restart_forgets_nothing() {
    let directory = tempfile::tempdir().unwrap();
    for round in 0..3 {
        let server = Server::start(directory.path());
        if round > 0 {
            let kept = server.get("/locks/kept");
            assert_eq!((kept.status, &kept.json["token"]), (200, &json!(1)));
            assert_eq!(server.take("kept", "other", 1000).json["acquired"], false);
        } else {
            server.take("kept", "a", 3_600_000).granted_token();
        }
        let owner = format!("round-{round}");
        assert_eq!(server.take("released", &owner, 60_000).granted_token(), round + 1);
        let release = format!(
            "DELETE /locks/released HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
             x-lock-owner-token: {}\r\n\r\n",
            secret(&owner)
        );
        assert_eq!(server.request(&release).status, 204);
        server.signal(Signal::TERM);
        assert_eq!(server.end().0, Some(0));
    }
}

/// A waiting request is answered when the server stops, and idle connections do not keep it.
#[test]
fn a_stop_ends_waits_and_idle_connections() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path());
    server.take("job", "a", 3_600_000).granted_token();
    let idle = TcpStream::connect(&server.address).unwrap();
    let mut kept = TcpStream::connect(&server.address).unwrap();
    kept.write_all(b"GET /locks/job HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut first = [0; 12];
    kept.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");

    let mut waiting = TcpStream::connect(&server.address).unwrap();
    waiting.set_read_timeout(Some(BOUND)).unwrap();
    let body = json!({ "owner": "b", "ttl_ms": 1000, "wait_ms": 60_000 }).to_string();
    let head = "POST /locks/job HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";
    write!(waiting, "{head}content-length: {}\r\n\r\n{body}", body.len()).unwrap();
    // It has been read when a later request on another connection has been answered, or soon
    // after; the answer to it is the same either way.
    assert_eq!(server.get("/locks/job").status, 200);
    let began = now();
    server.signal(Signal::TERM);
    let answer = read_answer(&mut waiting).unwrap();
    assert_eq!(answer.json["acquired"], false, "{answer:?}");
    assert_eq!(server.end().0, Some(0));
    assert!(began.elapsed() < Duration::from_secs(30), "far less than the wait");
    drop((idle, kept));
}

/// A request that never ends is cut off.
#[test]
fn a_stop_does_not_wait_for_a_request_that_never_ends() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path());
    let mut stuck = TcpStream::connect(&server.address).unwrap();
    let head = "POST /locks/job HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";
    write!(stuck, "{head}content-length: 1000\r\n\r\n{{").unwrap();
    assert_eq!(server.get("/locks/job").status, 404);
    server.signal(Signal::TERM);
    let (code, _, stderr) = server.end();
    assert_eq!(code, Some(0), "{stderr}");
}

/// I7: with everything logged, by every thread and library, the secret is not among it.
#[test]
fn i7_the_most_talkative_log_does_not_tell_the_secret() {
    let directory = tempfile::tempdir().unwrap();
    let database = format!("sqlite:{}", directory.path().join("locks.db").display());
    let server =
        Server::with(["--listen", "127.0.0.1:0", "--database", &database, "--log", "trace"]);
    server.take("job", "the-owner", 60_000).granted_token();
    server.take("job", "another", 60_000);
    let body = json!({ "owner_token": secret("the-owner"), "ttl_ms": 1 });
    assert_eq!(server.post("/locks/job/renew", &body).status, 200);
    assert_eq!(server.post("/locks/other/renew", &body).status, 404);
    server.signal(Signal::TERM);
    let (_, _, stderr) = server.end();
    assert!(stderr.contains("the-owner"), "it does log: {stderr}");
    for owner in ["the-owner", "another"] {
        assert!(!stderr.contains(&secret(owner)), "{stderr}");
    }
}
