//! Clients that connect and say little do not keep the others out.

use std::io::{Read, Write};
use std::net::TcpStream;

use rustix::process::{Resource, Signal, getrlimit};

use crate::command_line::one_line;
use crate::process::{BOUND, Server, run};

/// How many connections the server takes in these tests. What holds for few holds for 10000.
const MAX: usize = 50;

struct Site {
    _directory: tempfile::TempDir,
    server: Server,
}

fn site() -> Site {
    let directory = tempfile::tempdir().unwrap();
    let database = format!("sqlite:{}", directory.path().join("locks.db").display());
    let max = MAX.to_string();
    let server = Server::with([
        "--listen",
        "127.0.0.1:0",
        "--database",
        &database,
        "--max-connections",
        &max,
    ]);
    Site { _directory: directory, server }
}

/// Four times as many as there may be: silent ones, and ones that dribble a head (slow loris).
#[test]
fn idle_connections_do_not_stop_others() {
    let site = site();
    let mut kept = TcpStream::connect(&site.server.address).unwrap();
    kept.set_read_timeout(Some(BOUND)).unwrap();
    let get = b"GET /locks/job HTTP/1.1\r\nhost: x\r\n\r\n";
    let mut head = [0; 12];
    let mut crowd = Vec::new();
    for n in 0..4 * MAX {
        let mut idle = TcpStream::connect(&site.server.address).unwrap();
        if n % 2 == 0 {
            let _ = idle.write_all(b"POST /locks/job HTTP/1.1\r\nhost: x\r\nx-slow: ");
        }
        crowd.push(idle);
        if n % (MAX / 2) == 0 {
            // Others come and go, and one that goes on asking now and then keeps its connection.
            assert_eq!(site.server.take(&format!("job-{n}"), "a", 1000).granted_token(), 1);
            kept.write_all(get).unwrap();
            kept.read_exact(&mut head).unwrap();
            assert_eq!(&head, b"HTTP/1.1 404");
            drain(&mut kept);
        }
    }
    assert_eq!(site.server.take("job", "a", 1000).granted_token(), 1);
    // The first of them had to go.
    crowd[1].set_read_timeout(Some(BOUND)).unwrap();
    assert!(matches!(crowd[1].read(&mut head), Ok(0) | Err(_)));
    site.server.signal(Signal::TERM);
    assert_eq!(site.server.end().0, Some(0));
}

/// Reads the rest of an answer whose status line was read.
fn drain(socket: &mut TcpStream) {
    let mut text = Vec::new();
    let mut byte = [0];
    while !text.ends_with(b"\r\n\r\n") {
        socket.read_exact(&mut byte).unwrap();
        text.push(byte[0]);
    }
    let head = String::from_utf8(text).unwrap();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    let mut body = vec![0; length.parse().unwrap()];
    socket.read_exact(&mut body).unwrap();
}

/// A head beyond the limits is refused, whatever it holds.
#[test]
fn a_head_that_is_too_long_is_refused() {
    let site = site();
    let ask = |head: &str| {
        let request =
            format!("GET /locks/job HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{head}\r\n");
        crate::process::try_request(&site.server.address, &request)
    };
    assert_eq!(ask("").unwrap().status, 404);
    assert_eq!(ask(&format!("x-long: {}\r\n", "a".repeat(8 * 1024))).unwrap().status, 404);
    let many: String = (0..100).map(|n| format!("x-{n}: y\r\n")).collect();
    for head in [format!("x-long: {}\r\n", "a".repeat(64 * 1024)), many] {
        // Hyper may close before all of it is sent; then there is no answer to read.
        if let Ok(answer) = ask(&head) {
            assert_eq!(answer.status, 431, "{answer:?}");
        }
    }
    assert_eq!(ask("").unwrap().status, 404);
}

#[test]
fn more_connections_than_files_is_one_clear_line() {
    let Some(files) = getrlimit(Resource::Nofile).current else { return };
    let Ok(files) = u32::try_from(files) else { return };
    let directory = tempfile::tempdir().unwrap();
    let database = format!("sqlite:{}", directory.path().join("locks.db").display());
    let max = files.to_string();
    let output = run(&[
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--database",
        &database,
        "--max-connections",
        &max,
    ]);
    one_line(&output, &["limit of open files", "ulimit -n", &max]);
}
