//! `fencing serve`: the lock endpoint as a server.

mod access;
mod connections;
mod listen;
mod tls;

use std::future::Future;
use std::io::{self, IsTerminal as _, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use axum::Router;
use clap::Args;
use fencing::lock::Endpoint;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tracing_subscriber::EnvFilter;

use self::access::Access;
use super::database::{Database, Opened};
use super::failure::Failure;
use super::values::{duration, filter};

/// How long requests in progress may take to end once the server was told to stop.
const GRACE: Duration = Duration::from_secs(5);

const EXAMPLES: &str = "\
Examples:
  Try it out, on http://127.0.0.1:7070, with the locks in ./fencing.db:
      fencing serve

  Keep the locks elsewhere, on a port the system picks, and print it:
      fencing serve --listen 127.0.0.1:0 --database sqlite:/var/lib/fencing/locks.db

  Several servers over one database, each with a command line like this:
      fencing serve --listen 127.0.0.1:7070 --database postgres://fencing@db.internal/locks

  Take a lock, renew it, give it back:
      curl -X POST localhost:7070/locks/nightly-batch -H 'content-type: application/json' \\
          -d '{\"owner\":\"worker-1\",\"ttl_seconds\":30,\"owner_token\":\"pick-a-random-one\"}'
      curl -X POST localhost:7070/locks/nightly-batch/renew -H 'content-type: application/json' \\
          -d '{\"owner_token\":\"pick-a-random-one\",\"ttl_seconds\":30}'
      curl -X DELETE localhost:7070/locks/nightly-batch -H 'x-lock-owner-token: pick-a-random-one'

  Let in only who has a key, over TLS:
      fencing key new worker-1 --roles lock --resources nightly- --file keys.txt
      fencing serve --listen 0.0.0.0:7070 --keys keys.txt \\
          --tls-cert server.pem --tls-key server.key
      curl --cacert ca.pem -H \"authorization: Bearer $KEY\" https://...

Signals:
  SIGTERM and Ctrl-C end it: it stops accepting, ends the waits of those who wait for a lock, and
  gives requests in progress 5 seconds. SIGHUP makes it read keys, certificate and private key
  again; if one of these files is broken the log says so, and what was valid before stays valid.

Output:
  When it is ready it prints one line to stdout, `listening on http://ADDRESS:PORT`, with
  https where it serves TLS. Logs go to stderr.

Exit codes:
  0  it was told to stop
  1  it could not start, or failed: one line on stderr says why
  2  the command line is wrong";

/// Serves the lock endpoint: leases with strictly increasing fencing tokens, as JSON over HTTP.
///
/// The locks are kept in an SQLite file, in PostgreSQL or in MySQL (MariaDB). A grant is answered
/// once it is on the disk, so tokens go on rising over restarts and crashes; a database that is set
/// up to lose commits is refused. Any number of servers may use one database, whose clock decides.
/// On SQLite time is this machine's clock: run all servers of one file on one machine.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Serve {
    /// Where to listen: an address and a port; port 0 lets the system pick one.
    ///
    /// Without --keys, whoever reaches this address can take any lock. So an address that other
    /// machines reach is refused unless --keys or --insecure-no-auth is given too.
    #[arg(long, env = "FENCING_LISTEN", value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7070", value_parser = listen)]
    listen: String,

    /// Where the locks are kept: sqlite:FILE, postgres://USER@HOST/NAME or mysql://USER@HOST/NAME.
    ///
    /// The tables are made when they are missing, and an SQLite file too, unless the URL ends in
    /// ?mode=rw. A password is better given in the environment than on the command line, where
    /// others can see it: in FENCING_DATABASE, for PostgreSQL also in PGPASSWORD or ~/.pgpass.
    #[arg(
        long,
        env = "FENCING_DATABASE",
        hide_env_values = true,
        value_name = "URL",
        default_value = "sqlite:fencing.db"
    )]
    database: String,

    /// The longest TTL a client may ask for, such as 90s, 15m or 24h.
    #[arg(long, env = "FENCING_MAX_TTL", value_name = "DURATION", default_value = "24h", value_parser = duration)]
    max_ttl: Duration,

    /// The longest a lock may be held in all, however often it is renewed. No limit unless given.
    #[arg(long, env = "FENCING_MAX_HOLD", value_name = "DURATION", value_parser = duration)]
    max_hold: Option<Duration>,

    /// Lets in only who has a key of this file, with what it may be used for.
    ///
    /// A line of it is NAME DIGEST ROLES RESOURCES, such as `worker-1 sha256:2c26... lock,read
    /// inventory: =nightly-batch`; `fencing key new` makes keys and their lines. The roles are lock
    /// (acquire, renew, release), read (look at locks), metrics, and admin (all of these).
    /// Resources are prefixes of names, =NAME for one, or * for all.
    #[arg(long, env = "FENCING_KEYS", value_name = "FILE", conflicts_with = "insecure_no_auth")]
    keys: Option<PathBuf>,

    /// Serves TLS with this certificate and those it was signed by, as PEM.
    #[cfg(feature = "tls")]
    #[arg(long, env = "FENCING_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,

    /// The private key of the certificate, as PEM.
    #[cfg(feature = "tls")]
    #[arg(long, env = "FENCING_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// How many connections there may be at once: 10000, or what the limit of open files leaves.
    ///
    /// When all are in use, a newcomer takes the place of the one that is idle for the longest. A
    /// connection that is idle for 30 s is closed in any case.
    #[arg(long, env = "FENCING_MAX_CONNECTIONS", value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    max_connections: Option<u32>,

    /// What is logged: a level (error, warn, info, debug, trace) or filters such as
    /// fencing=debug,sqlx=warn.
    #[arg(long, env = "RUST_LOG", value_name = "FILTER", default_value = "info", value_parser = filter)]
    log: String,

    /// Listen on an address that other machines can reach, although anybody there can then take
    /// and watch every lock.
    #[arg(long)]
    insecure_no_auth: bool,
}

impl Serve {
    pub(super) fn run(self) -> Result<(), Failure> {
        tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::try_new(&self.log).map_err(Failure::new)?)
            .with_writer(io::stderr)
            .with_ansi(io::stderr().is_terminal())
            .init();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .map_err(|error| Failure::new(format!("cannot start the runtime: {error}")))?;
        runtime.block_on(self.serve())
    }

    async fn serve(self) -> Result<(), Failure> {
        let access = self.access()?;
        let max_connections = self.max_connections.and_then(|max| usize::try_from(max).ok());
        let max_connections = listen::max_connections(max_connections).map_err(Failure::new)?;
        let database = Database::parse(&self.database)?;
        let listener = self.bind().await?;
        let Opened { locks, close } = database.open().await?;

        let mut endpoint = Endpoint::new(locks).with_max_ttl(self.max_ttl);
        if let Some(max_hold) = self.max_hold {
            endpoint = endpoint.with_max_hold(max_hold);
        }
        if let Some(keys) = access.keys() {
            endpoint = endpoint.with_keys(keys);
        }
        let waits = endpoint.waits();
        let app = Router::new().nest("/locks", endpoint.router());

        // Before the line that says it is ready: from then on a signal must find the handlers.
        let told = told_to_stop()
            .map_err(|error| Failure::new(format!("cannot handle signals: {error}")))?;
        let address = listener
            .local_addr()
            .map_err(|error| Failure::new(format!("cannot tell the address: {error}")))?;
        let tls = access.tls();
        tokio::spawn(
            access
                .reload_when_told()
                .map_err(|error| Failure::new(format!("cannot handle signals: {error}")))?,
        );
        say_ready(address, if tls.is_some() { "https" } else { "http" });

        let (stopping, stopped) = oneshot::channel();
        let server = listen::serve(listener, app, tls, max_connections, async move {
            told.await;
            tracing::info!("stopping");
            waits.end();
            let _ = stopping.send(());
        });
        let too_long = async move {
            let _ = stopped.await;
            tokio::time::sleep(GRACE).await;
        };
        tokio::select! {
            () = server => {}
            () = too_long => tracing::warn!("requests in progress were cut off"),
        }
        // Folds the write-ahead log into the file. Whatever is committed is safe without it.
        if tokio::time::timeout(GRACE, close).await.is_err() {
            tracing::warn!("the database was not closed in time");
        }
        Ok(())
    }

    fn access(&self) -> Result<Access, Failure> {
        #[cfg(feature = "tls")]
        let tls = match (&self.tls_cert, &self.tls_key) {
            (Some(cert), Some(key)) => Some(tls::Tls::open(cert, key)?),
            _ => None,
        };
        #[cfg(not(feature = "tls"))]
        let tls = None;
        Access::open(self.keys.as_deref(), tls)
    }

    #[cfg(feature = "tls")]
    fn has_tls(&self) -> bool {
        self.tls_cert.is_some()
    }

    #[cfg(not(feature = "tls"))]
    fn has_tls(&self) -> bool {
        false
    }

    async fn bind(&self) -> Result<TcpListener, Failure> {
        let cannot =
            |error: io::Error| Failure::of("cannot listen", &error, "listen", &self.listen);
        let addresses: Vec<_> =
            tokio::net::lookup_host(&self.listen).await.map_err(cannot)?.collect();
        let open = addresses.iter().find(|address| !address.ip().to_canonical().is_loopback());
        match (open, &self.keys) {
            (Some(open), None) if !self.insecure_no_auth => {
                return Err(Failure::new(format!(
                    "refusing an address that other machines can reach, since there are no keys: \
                     listen on 127.0.0.1, or give --keys or --insecure-no-auth, listen=`{open}`"
                )));
            }
            (Some(_), None) => {
                let listen = &self.listen;
                tracing::warn!(listen, "anybody who can reach this can take any lock");
            }
            (Some(_), Some(_)) if !self.has_tls() => tracing::warn!(
                "keys and owner tokens go over the network in clear text: give --tls-cert and \
                 --tls-key, or see to it that something in front of this serves TLS"
            ),
            _ => {}
        }
        TcpListener::bind(&*addresses).await.map_err(cannot)
    }
}

#[allow(clippy::print_stdout, reason = "this line is the interface to whoever started it")]
fn say_ready(address: SocketAddr, scheme: &str) {
    let mut stdout = io::stdout().lock();
    let said = writeln!(stdout, "listening on {scheme}://{address}").and_then(|()| stdout.flush());
    if let Err(error) = said {
        tracing::warn!(%error, %address, "ready, but stdout is closed");
    }
}

/// A future that is done at the first SIGTERM or Ctrl-C after this call.
#[cfg(unix)]
fn told_to_stop() -> io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut terminate, mut interrupt) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// A future that is done at the first Ctrl-C.
#[cfg(not(unix))]
fn told_to_stop() -> io::Result<impl Future<Output = ()>> {
    Ok(async {
        let _ = tokio::signal::ctrl_c().await;
    })
}

fn listen(text: &str) -> Result<String, String> {
    match text.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
            Ok(text.to_owned())
        }
        _ => Err("expected an address and a port, such as 127.0.0.1:7070".to_owned()),
    }
}
