//! The process of the service: the inventory example, unchanged.

use tokio::net::TcpListener;

use crate::{Error, app};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[arg(long, env = "FENCING_DATABASE", hide_env_values = true)]
    database: String,
    #[arg(long)]
    prefix: String,
    #[arg(long, value_enum)]
    fence: app::Fence,
}

#[allow(clippy::print_stdout, reason = "the demo reads the address from here")]
pub(crate) async fn run(args: &Args) -> Result<(), Error> {
    let app::App { router, waits } =
        app::open(&args.database, &args.prefix, app::Level::Transaction, args.fence).await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("listening on http://{}", listener.local_addr()?);
    // The end of the input is the end of the demo.
    let stop = async move {
        let _ = tokio::io::copy(&mut tokio::io::stdin(), &mut tokio::io::sink()).await;
        waits.end();
    };
    axum::serve(listener, router).with_graceful_shutdown(stop).await?;
    Ok(())
}
