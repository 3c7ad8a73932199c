//! `fencing serve` over TLS. The certificates beside this file are for these tests only.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::process::Signal;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::command_line::one_line;
use crate::process::{BOUND, Server, run, until};

fn there(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/tls").join(name)
}

/// Asks for a lock that is free, trusting one certificate: the status line.
fn ask(address: &str, trusted: &str) -> std::io::Result<String> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(there(trusted)).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = "localhost".try_into().unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let tcp = TcpStream::connect(address)?;
    tcp.set_read_timeout(Some(BOUND))?;
    let mut stream = StreamOwned::new(connection, tcp);
    stream.write_all(b"GET /locks/job HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer.lines().next().unwrap_or_default().to_owned())
}

struct Files {
    directory: tempfile::TempDir,
    database: String,
}

impl Files {
    fn new(pair: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let database = format!("sqlite:{}", directory.path().join("locks.db").display());
        let files = Self { directory, database };
        files.put(&format!("{pair}.pem"), "server.pem");
        files.put(&format!("{pair}.key"), "server.key");
        files
    }

    fn put(&self, from: &str, to: &str) {
        std::fs::copy(there(from), self.directory.path().join(to)).unwrap();
    }

    fn arguments(&self) -> Vec<String> {
        let at = |name| self.directory.path().join(name).display().to_string();
        let (cert, key) = (at("server.pem"), at("server.key"));
        ["--listen", "127.0.0.1:0", "--database", &self.database, "--tls-cert", &cert, "--tls-key"]
            .iter()
            .map(ToString::to_string)
            .chain([key])
            .collect()
    }
}

#[test]
fn it_serves_tls_and_a_hangup_reads_the_certificate_again() {
    let files = Files::new("one");
    let server = Server::with(files.arguments());
    assert_eq!(ask(&server.address, "one.pem").unwrap(), "HTTP/1.1 404 Not Found");
    ask(&server.address, "two.pem").expect_err("another's certificate");
    let plain = crate::process::try_request(&server.address, "GET / HTTP/1.1\r\nhost: x\r\n\r\n");
    plain.expect_err("not without TLS");

    // The key does not belong to the certificate: what was valid stays.
    files.put("two.pem", "server.pem");
    server.signal(Signal::HUP);
    until(|| server.log().contains("the certificate stays what it was"));
    assert!(ask(&server.address, "one.pem").is_ok());
    files.put("two.key", "server.key");
    server.signal(Signal::HUP);
    until(|| ask(&server.address, "two.pem").is_ok());
    ask(&server.address, "one.pem").expect_err("exchanged");

    // A handshake that never ends does not keep it from stopping.
    let silent = TcpStream::connect(&server.address).unwrap();
    server.signal(Signal::TERM);
    let (code, _, stderr) = server.end();
    assert_eq!(code, Some(0), "{stderr}");
    drop(silent);
}

#[test]
fn an_unusable_certificate_is_one_clear_line() {
    let files = Files::new("one");
    let serve = || {
        let arguments = files.arguments();
        let arguments = arguments.iter().map(String::as_str);
        run(&["serve"].into_iter().chain(arguments).collect::<Vec<_>>())
    };
    files.put("two.key", "server.key");
    one_line(&serve(), &["cannot serve TLS", "server.pem"]);
    files.put("one.pem", "server.key");
    one_line(&serve(), &["cannot read the private key", "server.key"]);
    std::fs::write(files.directory.path().join("server.pem"), "nothing").unwrap();
    one_line(&serve(), &["cannot", "server.pem"]);
    std::fs::remove_file(files.directory.path().join("server.pem")).unwrap();
    one_line(&serve(), &["cannot read the certificate", "server.pem"]);
}
