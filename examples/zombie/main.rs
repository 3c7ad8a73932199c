//! The GC-pause zombie, for real: a service and two workers as processes of their own, one of the
//! workers stopped by SIGSTOP between its check and its write.
//!
//! ```sh
//! cargo demo
//! ```

#[path = "../inventory/app/mod.rs"]
mod app;
mod children;
mod database;
mod scenes;
mod service;
mod show;
mod worker;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use self::database::Stage;
use self::scenes::Scene;
use self::show::Show;

/// Shows a lock holder that is paused past its lease and writes when it wakes up.
///
/// Worker A gets the lock with fencing token 33, reads the stock, checks its lease, and is stopped
/// (SIGSTOP) before it writes. Its lease ends, worker B gets token 34, reads and writes. Then A is
/// continued (SIGCONT) and writes what it had in mind. Everything is real: separate processes,
/// signals, HTTP, and values read from the database.
///
/// Exit code 0 means that every scene ended as it must, 1 that one did not.
#[derive(Parser)]
#[command(name = "zombie", bin_name = "cargo demo --", max_term_width = 100)]
struct Args {
    #[command(subcommand)]
    role: Option<Role>,
    /// Play one scene instead of all three.
    #[arg(long, value_enum)]
    scene: Option<Scene>,
    /// How long a lease lives unless it is renewed, in milliseconds.
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u64).range(200..=10_000))]
    lease_ms: u64,
    /// Print the timeline and the results as lines of JSON.
    #[arg(long)]
    json: bool,
    /// Keep the databases in this folder, to look at them afterwards [default: a temporary folder]
    #[arg(long, value_name = "FOLDER", conflicts_with = "database")]
    keep: Option<std::path::PathBuf>,
    /// Play on this database instead, in tables of its own that are dropped afterwards:
    /// postgres://USER@HOST/NAME or mysql://USER@HOST/NAME
    #[arg(long, value_name = "URL")]
    database: Option<String>,
}

/// What a process of the demo does. For the demo itself.
#[derive(Subcommand)]
#[command(hide = true)]
enum Role {
    #[command(hide = true)]
    Service(service::Args),
    #[command(hide = true)]
    Worker(worker::Args),
}

pub(crate) type Error = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let result = match &args.role {
        Some(Role::Service(args)) => service::run(args).await.map(|()| true),
        Some(Role::Worker(args)) => worker::run(args).await.map(|()| true),
        None => {
            tokio::select! {
                result = play(&args) => result,
                _ = tokio::signal::ctrl_c() => Err("interrupted".into()),
            }
        }
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("demo: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Plays the scenes; whether each ended as it must.
async fn play(args: &Args) -> Result<bool, Error> {
    let temporary;
    let folder = match &args.keep {
        Some(folder) => {
            std::fs::create_dir_all(folder)?;
            folder.as_path()
        }
        None => {
            temporary = tempfile::tempdir()?;
            temporary.path()
        }
    };
    let mut show = Show::new(args.json);
    let mut ends = Vec::new();
    for scene in Scene::ALL {
        if args.scene.is_none_or(|only| only == scene) {
            show.scene(scene, scene.title());
            let end = match &args.database {
                Some(url) => {
                    let stage = Stage::shared(url)?;
                    let end = scenes::play(scene, &stage, args.lease_ms, &show).await;
                    stage.clear().await?;
                    end?
                }
                None => {
                    let stage = Stage::file(folder, scene.name())?;
                    scenes::play(scene, &stage, args.lease_ms, &show).await?
                }
            };
            ends.push(end);
        }
    }
    show.table(&ends);
    Ok(ends.iter().all(scenes::End::is_as_it_must_be))
}
