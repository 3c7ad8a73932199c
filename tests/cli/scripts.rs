//! `fencing acquire | renew | release | show`, as scripts use them.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::process::{Command, Output};
use std::thread;

use serde_json::{Value, json};

use crate::process::{Guard, Server, fencing, secret, until_some};

fn text(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
}

#[track_caller]
fn assert_code(output: &Output, code: i32) {
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    let stderr = std::str::from_utf8(&output.stderr).unwrap();
    assert!(!stderr.contains("panicked"), "{stderr}");
    if code > 1 {
        assert!(stderr.starts_with("fencing: ") || stderr.starts_with("error: "), "{stderr}");
    }
}

struct Stage {
    server: Server,
    folder: tempfile::TempDir,
}

impl Stage {
    fn set() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { server: Server::start(folder.path()), folder }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = fencing();
        command.args(arguments).env("FENCING_SERVER", self.server.url());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        Guard::spawn(&mut self.command(arguments)).end()
    }

    fn run_with(&self, arguments: &[&str], owner_token: &str) -> Output {
        let mut command = self.command(arguments);
        Guard::spawn(command.env("FENCING_OWNER_TOKEN", owner_token)).end()
    }
}

/// A name with all that a shell might take for its own.
const NAME: &str = "it's $(touch harm) `touch harm`; \"x\" \\ *";

#[test]
fn a_shell_evaluates_acquire_and_needs_nothing_else() {
    let stage = Stage::set();
    let script = r#"
        lock=$("$FENCING" acquire --resource "$NAME" --ttl 10m --owner script) || exit 11
        eval "$lock"
        [ "$FENCING_RESOURCE" = "$NAME" ] || exit 12
        [ "$FENCING_TOKEN" = 1 ] || exit 13
        "$FENCING" renew --ttl 20m || exit 14
        "$FENCING" show --resource "$NAME" || exit 15
        "$FENCING" release || exit 16
        "$FENCING" release || exit 17
        "$FENCING" show --resource "$NAME"
    "#;
    let mut command = Command::new("sh");
    command
        .args(["-c", script])
        .env("FENCING", env!("CARGO_BIN_EXE_fencing"))
        .env("FENCING_SERVER", stage.server.url())
        .env("NAME", NAME)
        .current_dir(stage.folder.path());
    let output = Guard::spawn(&mut command).end();
    assert_code(&output, 1);
    let said: Vec<_> = text(&output).lines().collect();
    assert_eq!(
        (said[0], said[1], said.last()),
        ("held by script", "token 1", Some(&"nobody holds it"))
    );
    assert_eq!(said.len(), 5, "renew and release say nothing: {said:?}");
    assert!(!stage.folder.path().join("harm").exists());
    assert!(output.stderr.is_empty(), "{output:?}");
}

#[test]
fn json_says_the_same() {
    let stage = Stage::set();
    let acquire = ["acquire", "--resource", "job", "--json", "--ttl", "1h", "--owner", "me"];
    let acquired = stage.run(&acquire);
    assert_code(&acquired, 0);
    let acquired = json(&acquired);
    let owner_token = acquired["owner_token"].as_str().unwrap();
    let remaining = acquired["remaining_ms"].as_u64().unwrap();
    assert!((3_500_000..=3_600_000).contains(&remaining), "{acquired}");
    let expected = json!({
        "acquired": true, "resource": "job", "token": 1, "owner": "me",
        "owner_token": owner_token, "remaining_ms": remaining,
    });
    assert_eq!(acquired, expected);

    let held = stage.run(&acquire);
    assert_code(&held, 75);
    assert_eq!(json(&held), json!({ "acquired": false, "resource": "job" }));

    let shown = stage.run(&["show", "--resource", "job", "--json"]);
    assert_code(&shown, 0);
    let lock = json(&shown);
    assert_eq!((&lock["owner"], &lock["token"]), (&json!("me"), &json!(1)));
    assert!(!text(&shown).contains(owner_token), "I7: {lock}");

    let renewed =
        stage.run_with(&["renew", "--resource", "job", "--ttl", "2h", "--json"], owner_token);
    assert_code(&renewed, 0);
    assert_eq!(json(&renewed)["renewed"], true);
    assert!(json(&renewed)["lock"]["remaining_ms"].as_u64().unwrap() > 3_600_000);

    let release = ["release", "--resource", "job", "--json"];
    let released = stage.run_with(&release, owner_token);
    assert_code(&released, 0);
    assert_eq!(json(&released), json!({ "released": true, "resource": "job" }));
    assert_eq!(json(&stage.run(&["show", "--resource", "job", "--json"])), Value::Null);
}

/// R16: what is lost is told apart from what is released.
#[test]
fn a_lost_lock_is_76() {
    let stage = Stage::set();
    for command in ["renew", "release"] {
        let arguments = [command, "--resource", command, "--json"];
        let nobody = stage.run_with(&arguments, &secret("me"));
        assert_code(&nobody, 76);
        assert_eq!(json(&nobody)["reason"], "nobody holds it");
        stage.server.take(command, "another", 60_000).granted_token();
        let another = stage.run_with(&arguments, &secret("me"));
        assert_code(&another, 76);
        assert_eq!(json(&another)["reason"], "another holds it");
        assert!(stage.server.is_held(command));
    }
}

/// I7: the secret is read from the environment or a file. On the command line it would be seen by
/// every user of the machine.
#[test]
fn i7_the_owner_token_is_never_on_the_command_line() {
    let stage = Stage::set();
    stage.server.take("job", "me", 60_000).granted_token();
    let file = stage.folder.path().join("secret");
    let path = file.to_str().unwrap();
    let release = ["release", "--resource", "job", "--owner-token-file", path];
    for content in ["", "\n", "too short\n"] {
        std::fs::write(&file, content).unwrap();
        let output = stage.run(&release);
        assert_code(&output, 64);
        assert!(!String::from_utf8(output.stderr).unwrap().contains("too short"));
    }
    for command in ["renew", "release"] {
        let secret = secret("me");
        assert_code(&stage.run(&[command, "--resource", "job", "--owner-token", &secret]), 64);
        assert_code(&stage.run(&[command, "--resource", "job", &secret]), 64);
        assert_code(&stage.run(&[command, "--resource", "job"]), 64);
    }
    assert!(stage.server.is_held("job"));
    std::fs::write(&file, secret("me") + "\n").unwrap();
    assert_code(&stage.run(&["renew", "--resource", "job", "--owner-token-file", path]), 0);
    assert_code(&stage.run(&release), 0);
    assert!(!stage.server.is_held("job"));
}

/// Nobody else could release it.
#[cfg(target_os = "linux")]
#[test]
fn a_grant_that_cannot_be_printed_is_given_back() {
    let stage = Stage::set();
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut child = stage.command(&["acquire", "--resource", "job", "--ttl", "1h"]);
    let mut child = child.stdout(full).stderr(std::process::Stdio::null()).spawn().unwrap();
    let status = until_some("it ends", || child.try_wait().unwrap());
    assert_eq!(status.code(), Some(71));
    assert!(!stage.server.is_held("job"));
    assert_eq!(stage.server.get("/locks/job/token").json["token"], 1, "it had been granted");
}

#[test]
fn a_server_that_is_not_there_is_69() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", nobody.local_addr().unwrap());
    drop(nobody);
    for arguments in [&["acquire"][..], &["renew"], &["release"], &["show"]] {
        let mut command = fencing();
        command.args(arguments).args(["--resource", "job", "--server", &url]);
        let output = Guard::spawn(command.env("FENCING_OWNER_TOKEN", secret("me"))).end();
        assert_code(&output, 69);
        assert!(String::from_utf8(output.stderr).unwrap().contains(&url));
    }
}

/// The key goes to the server, a refused one is 77, and no message repeats it.
#[test]
fn the_key_is_read_from_a_file_and_a_refused_one_is_77() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key");
    std::fs::write(&file, "the-key-itself\n").unwrap();
    for status in ["401 Unauthorized", "403 Forbidden"] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let mut authorization = String::new();
            for line in BufReader::new(socket.try_clone().unwrap()).lines() {
                let line = line.unwrap();
                if line.to_lowercase().starts_with("authorization:") {
                    authorization = line.clone();
                }
                if line.is_empty() {
                    break;
                }
            }
            write!(socket, "HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n").unwrap();
            authorization
        });
        let mut command = fencing();
        command.args(["acquire", "--resource", "job", "--server", &url, "--key-file"]).arg(&file);
        let output = Guard::spawn(command.args(["--log", "trace"])).end();
        assert_eq!(output.status.code(), Some(77), "{output:?}");
        assert!(!String::from_utf8(output.stderr).unwrap().contains("the-key-itself"));
        let authorization = server.join().unwrap();
        assert!(authorization.ends_with("Bearer the-key-itself"), "{authorization}");
    }
}

#[test]
fn help_tells_what_there_is_to_know() {
    for (command, parts) in [
        ("acquire", &["eval", "umask 077", "FENCING_OWNER_TOKEN", "75 "][..]),
        ("renew", &["FENCING_OWNER_TOKEN", "--owner-token-file", "76 "]),
        ("release", &["FENCING_OWNER_TOKEN", "--owner-token-file", "Commit first"]),
        ("show", &["--json", "1  "]),
    ] {
        let output = Guard::spawn(fencing().args([command, "--help"])).end();
        let help = text(&output);
        for part in parts {
            assert!(help.contains(part), "{part} in {help}");
        }
        assert!(help.lines().all(|line| line.chars().count() <= 100), "{help}");
    }
}
