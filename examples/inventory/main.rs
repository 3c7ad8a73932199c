//! A small stock service, fenced: the reference for how the parts go together.
//!
//! ```sh
//! cargo run --features full --example inventory -- --listen 127.0.0.1:8080 --database sqlite:stock.db
//! curl -X POST http://127.0.0.1:8080/locks/inventory:item:1 \
//!      -H 'content-type: application/json' -d '{"owner":"me","ttl_seconds":30}'
//! curl -i -X PUT http://127.0.0.1:8080/inventory/1 -H 'X-Fencing-Token: 1' -d '{"quantity":5}'
//! curl http://127.0.0.1:8080/inventory/1
//! ```

mod app;

use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::process::ExitCode;

use clap::Parser;
use tokio::net::TcpListener;

/// A stock service whose writes are fenced, with the lock endpoint mounted at /locks.
///
/// Send `X-Demo-Pause-Ms: 3000` with a write to make it wait between its first read and its write,
/// and try the races by hand.
#[derive(Parser)]
struct Args {
    /// Where to listen; port 0 takes a free one. The address is printed when ready.
    #[arg(long, default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// The database of stock, marks and locks: sqlite:FILE, postgres://USER@HOST/NAME or
    /// mysql://USER@HOST/NAME. The tables, and a file, are made when missing.
    #[arg(long, default_value = "sqlite:inventory.db")]
    database: String,
    /// What the names of all tables begin with, where the database is shared.
    #[arg(long, default_value = "")]
    prefix: String,
    /// Where the fence is.
    #[arg(long, value_enum, default_value = "transaction")]
    level: app::Level,
    /// Whether there is a fence; `off` shows what goes wrong without.
    #[arg(long, value_enum, default_value = "on")]
    fence: app::Fence,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    match serve(&args).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("inventory: {error}");
            ExitCode::FAILURE
        }
    }
}

#[allow(clippy::print_stdout, reason = "the ready line is for whoever started the service")]
async fn serve(args: &Args) -> Result<(), app::OpenError> {
    let app::App { router, waits } =
        app::open(&args.database, &args.prefix, args.level, args.fence).await?;
    let listener = TcpListener::bind(args.listen)
        .await
        .map_err(|error| format!("cannot listen on {}: {error}", args.listen))?;
    // Before the line that says it is ready: from then on a signal must find its handler.
    let told = told_to_stop()?;
    println!("listening on http://{}", listener.local_addr()?);
    let stop = async move {
        told.await;
        waits.end();
    };
    axum::serve(listener, router).with_graceful_shutdown(stop).await?;
    Ok(())
}

/// SIGTERM or Ctrl-C.
#[cfg(unix)]
fn told_to_stop() -> std::io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut terminate, mut interrupt) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
    })
}

#[cfg(not(unix))]
fn told_to_stop() -> std::io::Result<impl Future<Output = ()>> {
    Ok(async {
        let _ = tokio::signal::ctrl_c().await;
    })
}
