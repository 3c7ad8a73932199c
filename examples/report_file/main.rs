//! Reports in files, fenced: level *exclusive* for what one process owns.
//!
//! ```sh
//! cargo run --features full --example report_file -- --folder reports
//! curl -i -X PUT http://127.0.0.1:8080/reports/daily -H 'X-Fencing-Token: 34' -d 'all is well'
//! curl -i -X PUT http://127.0.0.1:8080/reports/daily -H 'X-Fencing-Token: 33' -d 'zombie'
//! curl -i http://127.0.0.1:8080/reports/daily
//! ```
//!
//! A database has transactions; a folder has none. What takes their place:
//!
//! - The gate: a newer token waits until older requests have left, so that between the check of the
//!   mark and the rename nobody can come in. The blocking write holds the permit, because it goes on
//!   when its client hangs up.
//! - One process: it takes a lock of the operating system on the folder before it serves. During a
//!   rolling deploy the new process waits for the old one.
//! - A report is never half there: temporary file, fsync, read back, rename, fsync of the folder.
//!   The token it was produced under is in the same file, so the two are never torn apart.
//! - The marks outlive a restart: they are in a database in the same folder, and a claim is there
//!   before its report is written. If it is lost, the tokens in the reports seed it again.

mod folder;
mod service;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use fencing::marks::Marks;
use fencing::sql::{self, SqlMarks};
use fencing::{Claim, Verdict};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use tokio::net::TcpListener;

use self::folder::Folder;

/// A service that keeps reports in files, each written by the holder of its lock only.
///
/// Send `X-Demo-Pause-Ms: 3000` with a PUT to make it wait between the temporary file and the
/// rename, and try the races by hand.
#[derive(Parser)]
struct Args {
    /// Where to listen; port 0 takes a free one. The address is printed when ready.
    #[arg(long, default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// The folder of the reports and their marks, made when missing.
    #[arg(long, default_value = "reports")]
    folder: PathBuf,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    match serve(args).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("report_file: {error}");
            ExitCode::FAILURE
        }
    }
}

type Error = Box<dyn std::error::Error + Send + Sync>;

#[allow(clippy::print_stdout, reason = "the ready line is for whoever started the service")]
async fn serve(args: Args) -> Result<(), Error> {
    let path = args.folder.clone();
    let folder = tokio::task::spawn_blocking(move || Folder::own(&path)).await??;
    let marks = open_marks(&folder).await?;
    let listener = TcpListener::bind(args.listen)
        .await
        .map_err(|error| format!("cannot listen on {}: {error}", args.listen))?;
    println!("listening on http://{}", listener.local_addr()?);
    let router = service::router(Arc::new(folder), marks);
    axum::serve(listener, router).with_graceful_shutdown(stopped()).await?;
    Ok(())
}

/// The marks beside the reports, none of them below the token of its report.
async fn open_marks(folder: &Folder) -> Result<impl Marks + use<>, Error> {
    let options = SqliteConnectOptions::new()
        .filename(folder.path().join("marks.db"))
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full);
    let pool = SqlitePoolOptions::new().connect_with(options).await?;
    sql::migrate(&pool).await?;
    let marks = SqlMarks::new(pool);
    for name in folder.names()? {
        let report = folder.read(&name)?.ok_or("a report went away: is this folder mine alone?")?;
        let claim = Claim::new(report.claim.resource().clone(), report.claim.token());
        match marks.advance(&claim).await? {
            // Where the mark was there already, this has changed nothing.
            Verdict::Accepted | Verdict::Stale { .. } => {}
        }
    }
    Ok(marks)
}

/// SIGTERM or Ctrl-C.
async fn stopped() {
    let interrupt = tokio::signal::ctrl_c();
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            tokio::select! { _ = interrupt => {}, _ = terminate.recv() => {} }
            return;
        }
    }
    let _ = interrupt.await;
}
