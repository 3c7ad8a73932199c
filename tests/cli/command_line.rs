//! What the command line says: help, versions, errors.

use std::net::TcpListener;
use std::process::Output;

use crate::process::{Server, fencing, run};

pub(crate) fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// It failed with one clear line, and nothing else.
#[track_caller]
pub(crate) fn one_line(output: &Output, parts: &[&str]) {
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.starts_with("fencing: "), "{stderr}");
    assert!(!stderr.contains("panicked") && !stderr.contains("RUST_BACKTRACE"), "{stderr}");
    for part in parts {
        assert!(stderr.contains(part), "{part} in {stderr}");
    }
}

#[test]
fn help_tells_what_there_is_to_know() {
    let password = "postgres://app:hunter2@db/locks";
    let output = fencing().args(["serve", "--help"]).env("FENCING_DATABASE", password).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stderr.is_empty());
    let help = text(&output.stdout);
    for part in [
        "--listen <ADDRESS:PORT>",
        "[env: FENCING_LISTEN=]",
        "[default: 127.0.0.1:7070]",
        "--database <URL>",
        "[env: FENCING_DATABASE]",
        "postgres://USER@HOST/NAME",
        "mysql://USER@HOST/NAME",
        "[default: sqlite:fencing.db]",
        "--max-ttl",
        "[default: 24h]",
        "--max-hold",
        "--log",
        "RUST_LOG",
        "--insecure-no-auth",
        "--keys <FILE>",
        "FENCING_KEYS",
        "--tls-cert",
        "--tls-key",
        "--max-connections",
        "SIGHUP",
        "Examples:",
        "curl -X POST",
        "listening on http://",
        "SIGTERM",
        "Exit codes:",
    ] {
        assert!(help.contains(part), "{part} in {help}");
    }
    assert!(help.lines().all(|line| line.chars().count() <= 100), "{help}");
    assert!(!help.contains("hunter2"), "{help}");
    let help = run(&["--help"]);
    assert!(text(&help.stdout).contains("serve"));
}

#[test]
fn version_is_that_of_the_crate() {
    for arguments in [&["--version"][..], &["-V"], &["serve", "--version"]] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(0));
        assert!(text(&output.stdout).ends_with(concat!(env!("CARGO_PKG_VERSION"), "\n")));
    }
}

#[test]
fn what_is_no_command_line_is_exit_code_2() {
    for arguments in [
        &[][..],
        &["sevre"],
        &["serve", "--listen"],
        &["serve", "--listen", "nowhere"],
        &["serve", "--listen", "127.0.0.1:99999"],
        &["serve", "--max-ttl", "0s"],
        &["serve", "--max-ttl", "-1h"],
        &["serve", "--max-ttl", "30"],
        &["serve", "--log", "=a=b="],
        &["serve", "extra"],
        &["serve", "--max-connections", "0"],
        &["serve", "--keys", "k", "--insecure-no-auth"],
        &["serve", "--tls-cert", "c"],
        &["serve", "--tls-key", "k"],
        &["key"],
        &["key", "new"],
        &["key", "new", "name", "--roles", "lock"],
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?} {output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
        assert!(!text(&output.stderr).contains("panicked"), "{output:?}");
        // Where a command is missing the help tells which there are.
        if !matches!(arguments, [] | ["key"]) {
            assert_eq!(text(&output.stderr).lines().count(), 1, "{output:?}");
        }
    }
}

#[test]
fn a_busy_port_is_one_clear_line() {
    let directory = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let database = directory.path().join("locks.db");
    let url = format!("sqlite:{}", database.display());
    let output = run(&["serve", "--listen", &address, "--database", &url]);
    one_line(&output, &["cannot listen", "in use", &address]);
    assert!(!database.exists(), "nothing was left behind");
}

#[test]
fn an_unusable_database_is_one_clear_line() {
    let directory = tempfile::tempdir().unwrap();
    let serve = |url: &str| run(&["serve", "--listen", "127.0.0.1:0", "--database", url]);
    let there = |name: &str| format!("sqlite:{}", directory.path().join(name).display());

    one_line(&serve(&there("no/such/directory/locks.db")), &["unable to open", "no/such"]);
    one_line(&serve(&there("")), &["unable to open"]);
    std::fs::write(directory.path().join("text"), "this is no database ".repeat(100)).unwrap();
    one_line(&serve(&there("text")), &["not a database"]);
    for nowhere in ["sqlite::memory:", "sqlite:", "sqlite:a.db?mode=memory"] {
        one_line(&serve(nowhere), &["may forget a token", "not in a file"]);
    }
    one_line(&serve(&format!("{}?mode=rw", there("missing.db"))), &["unable to open"]);
    one_line(&serve(&format!("{}?nonsense=1", there("a.db"))), &["nonsense"]);
    // Tables that are not ours.
    std::fs::copy(newer(directory.path()), directory.path().join("newer.db")).unwrap();
    one_line(&serve(&there("newer.db")), &["tables", "newer"]);
}

/// A database whose tables a later version made.
fn newer(directory: &std::path::Path) -> std::path::PathBuf {
    let path = directory.join("made.db");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let options =
            sqlx::sqlite::SqliteConnectOptions::new().filename(&path).create_if_missing(true);
        let locks = fencing::lock::SqlLocks::open(options).await.unwrap();
        let later = "INSERT INTO fencing_schema (version, applied_at) SELECT max(version) + 1, 0 \
                     FROM fencing_schema";
        sqlx::query(later).execute(locks.pool()).await.unwrap();
        locks.pool().close().await;
    });
    path
}

#[test]
fn an_unknown_kind_of_database_is_one_clear_line() {
    for url in ["redis://:hunter2@db/1", "hunter2", "", "oracle:hunter2"] {
        let output = run(&["serve", "--listen", "127.0.0.1:0", "--database", url]);
        one_line(&output, &["unknown kind of database", "sqlite:FILE", "postgres://"]);
        assert!(!text(&output.stderr).contains("hunter2"), "it may be a password: {output:?}");
    }
}

/// MySQL lets one connect without a database, and then has nowhere to put the tables.
#[test]
fn a_server_without_a_database_is_one_clear_line() {
    for url in ["mysql://root:hunter2@127.0.0.1:1", "mysql://root:hunter2@127.0.0.1:1/"] {
        let output = run(&["serve", "--listen", "127.0.0.1:0", "--database", url]);
        one_line(&output, &["no database is named", "mysql://root@127.0.0.1:1"]);
        assert!(!text(&output.stderr).contains("hunter2"), "{output:?}");
    }
}

/// Without keys, whoever reaches the port can take any lock.
#[test]
fn an_address_others_can_reach_has_to_be_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", directory.path().join("locks.db").display());
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0", "[::ffff:192.0.2.1]:0"] {
        let output = run(&["serve", "--listen", address, "--database", &url]);
        one_line(&output, &["--keys", "--insecure-no-auth", "no keys"]);
    }
    for address in ["127.0.0.1:0", "localhost:0"] {
        drop(Server::with(["--listen", address, "--database", &url]));
    }
    let server = Server::with(["--listen", "0.0.0.0:0", "--database", &url, "--insecure-no-auth"]);
    server.signal(rustix::process::Signal::TERM);
    let (code, _, stderr) = server.end();
    assert_eq!(code, Some(0));
    assert!(stderr.contains("anybody"), "it says so: {stderr}");
}

#[test]
fn the_environment_sets_what_flags_do_not() {
    let directory = tempfile::tempdir().unwrap();
    let in_environment = directory.path().join("environment.db");
    let in_flag = directory.path().join("flag.db");
    let with_environment = || {
        let mut command = fencing();
        command
            .arg("serve")
            .env("FENCING_LISTEN", "127.0.0.1:0")
            .env("FENCING_DATABASE", format!("sqlite:{}", in_environment.display()))
            .env("FENCING_MAX_TTL", "10s")
            .env("FENCING_MAX_HOLD", "5s")
            .env("RUST_LOG", "debug");
        command
    };
    let server = Server::of(&mut with_environment());
    assert_eq!(server.take("job", "a", 10_001).status, 422);
    let granted = server.take("job", "a", 10_000);
    assert_eq!(granted.json["lock"]["remaining_ms"], 5000, "{granted:?}");
    assert!(in_environment.exists());
    server.signal(rustix::process::Signal::TERM);
    assert!(server.end().2.contains("granted"));

    let url = format!("sqlite:{}", in_flag.display());
    let server = Server::of(with_environment().args(["--database", &url, "--max-ttl", "1h"]));
    assert_eq!(server.take("job", "a", 3_600_000).status, 200);
    assert!(in_flag.exists());

    let wrong = fencing().arg("serve").env("FENCING_LISTEN", "nowhere").output().unwrap();
    assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
}
