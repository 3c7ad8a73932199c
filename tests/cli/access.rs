//! `fencing key new` and `fencing serve --keys`.

use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::json;

use crate::command_line::{one_line, text};
use crate::process::{Answer, Server, run, secret, try_request, until};

struct Site {
    directory: tempfile::TempDir,
    keys: PathBuf,
}

impl Site {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let keys = directory.path().join("keys.txt");
        Self { directory, keys }
    }

    /// A key whose line is in the file.
    fn key(&self, name: &str, roles: &str, prefix: &str) -> String {
        let file = self.keys.to_str().unwrap();
        let made =
            run(&["key", "new", name, "--roles", roles, "--resources", prefix, "--file", file]);
        assert!(made.status.success(), "{made:?}");
        text(&made.stdout).trim().to_owned()
    }

    fn serve(&self, listen: &str) -> Server {
        let database = database(self.directory.path());
        let keys = self.keys.to_str().unwrap();
        Server::with(["--listen", listen, "--database", &database, "--keys", keys])
    }
}

fn database(directory: &Path) -> String {
    format!("sqlite:{}", directory.join("locks.db").display())
}

fn take(server: &Server, resource: &str, key: Option<&str>) -> Answer {
    let body = json!({ "owner": "a", "ttl_ms": 60_000, "owner_token": secret("a") }).to_string();
    let key = key.map(|key| format!("authorization: Bearer {key}\r\n")).unwrap_or_default();
    let request = format!(
        "POST /locks/{resource} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{key}\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    try_request(&server.address, &request).unwrap()
}

#[test]
fn a_key_that_was_just_made_opens_what_it_is_for() {
    let site = Site::new();
    let worker = site.key("worker", "lock,read", "inventory:");
    let server = site.serve("127.0.0.1:0");
    assert_eq!(take(&server, "inventory:item:1", Some(&worker)).granted_token(), 1);
    let elsewhere = take(&server, "orders", Some(&worker));
    assert_eq!(
        (elsewhere.status, &elsewhere.json["type"]),
        (403, &json!("urn:fencing:problem:forbidden"))
    );
    let nobody = take(&server, "inventory:item:1", None);
    assert_eq!(
        (nobody.status, &nobody.json["type"]),
        (401, &json!("urn:fencing:problem:unauthenticated"))
    );
    server.signal(Signal::TERM);
    let (_, _, stderr) = server.end();
    assert!(stderr.contains("not let in") && stderr.contains("worker"), "{stderr}");
    assert!(!stderr.contains(&worker[..20]), "I7: {stderr}");
}

/// With keys, other machines may reach it.
#[test]
fn with_keys_it_listens_on_any_address() {
    let site = Site::new();
    site.key("worker", "lock", "*");
    let server = site.serve("0.0.0.0:0");
    server.signal(Signal::TERM);
    let (code, _, stderr) = server.end();
    assert_eq!(code, Some(0));
    assert!(stderr.contains("clear text"), "{stderr}");
}

#[test]
fn a_hangup_reads_the_keys_again_and_a_broken_file_keeps_the_old_ones() {
    let site = Site::new();
    let old = site.key("worker", "lock", "*");
    let server = site.serve("127.0.0.1:0");
    let works = |key: &str| take(&server, "job", Some(key)).status == 200;
    assert!(works(&old));

    let new = site.key("worker", "lock", "*");
    assert!(!works(&new), "nothing was said yet");
    server.signal(Signal::HUP);
    until(|| works(&new));
    assert!(works(&old), "both stand in the file");

    let lines = std::fs::read_to_string(&site.keys).unwrap();
    let only_new = lines.lines().nth(1).unwrap();
    std::fs::write(&site.keys, format!("worker hunter2 lock *\n{only_new}\n")).unwrap();
    server.signal(Signal::HUP);
    until(|| server.log().contains("the keys stay what they were"));
    assert!(works(&old) && works(&new));

    std::fs::write(&site.keys, format!("{only_new}\n")).unwrap();
    let third = site.key("third", "lock", "*");
    server.signal(Signal::HUP);
    until(|| works(&third));
    assert!(works(&new));
    assert!(!works(&old), "taken out of the file");
    server.signal(Signal::TERM);
    let (code, _, stderr) = server.end();
    assert_eq!(code, Some(0), "{stderr}");
    assert!(!stderr.contains("hunter2"), "{stderr}");
}

#[test]
fn an_unusable_file_of_keys_is_one_clear_line() {
    let site = Site::new();
    let serve = || {
        let database = database(site.directory.path());
        let keys = site.keys.to_str().unwrap();
        run(&["serve", "--listen", "127.0.0.1:0", "--database", &database, "--keys", keys])
    };
    one_line(&serve(), &["cannot read the keys", "No such file", "keys.txt"]);
    std::fs::write(&site.keys, "\nworker hunter2 lock *\n").unwrap();
    let output = serve();
    one_line(&output, &["cannot read the keys", "must not be here", "line=`2`"]);
    assert!(!text(&output.stderr).contains("hunter2"));
    assert!(!site.directory.path().join("locks.db").exists(), "nothing was left behind");
}

#[test]
fn a_new_key_says_what_it_needs_and_appends_whole_lines() {
    let new = |arguments: &[&str]| run(&[&["key", "new"], arguments].concat());
    let output = new(&["scraper", "--roles", "metrics", "--resources", "*"]);
    let lines: Vec<_> = text(&output.stdout).lines().collect();
    let [key, line] = *lines else { panic!("{lines:?}") };
    assert!(key.starts_with("fencing_key_"), "{key}");
    assert!(line.starts_with("scraper sha256:") && line.ends_with(" metrics *"), "{line}");
    assert!(!line.contains(&key[12..]), "{line}");

    for (arguments, expected) in [
        (["a", "--roles", "boss", "--resources", "*"], "the roles are"),
        (["a", "--roles", "lock", "--resources", "a:*"], "no star"),
        (["a b", "--roles", "lock", "--resources", "*"], "no line"),
        (["#a", "--roles", "lock", "--resources", "*"], "no line"),
        (["a", "--roles", "lock", "--resources", "x\ny"], "no line"),
    ] {
        one_line(&new(&arguments), &[expected]);
    }
    let site = Site::new();
    std::fs::write(&site.keys, "# no line break at the end").unwrap();
    site.key("worker", "lock", "*");
    let file = std::fs::read_to_string(&site.keys).unwrap();
    assert!(file.starts_with("# no line break at the end\nworker sha256:"), "{file}");
}
