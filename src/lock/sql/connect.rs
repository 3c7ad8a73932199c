use std::time::Duration;

use sqlx::pool::PoolOptions;
use sqlx::{ConnectOptions, Connection, Pool};

use super::{LockDatabase, SqlLocksError};

/// How long connecting may take, and a step waits for a connection.
const TIMEOUT: Duration = Duration::from_secs(10);
/// A step takes a few milliseconds; those that wait for the row of one lock stand in a line.
const CONNECTIONS: u32 = 10;

/// A pool for the locks of a server.
///
/// Connects once before, so that a database that cannot be reached is told at once and why: a pool
/// tries again until its time is over, and then tells only that.
pub(super) async fn connect<DB, O>(options: O) -> Result<Pool<DB>, SqlLocksError>
where
    DB: LockDatabase,
    DB::Connection: Connection<Options = O>,
    O: ConnectOptions<Connection = DB::Connection>,
{
    let options = options.disable_statement_logging();
    let first = async {
        let mut conn = options.connect().await?;
        DB::check(&mut conn).await?;
        Ok::<_, SqlLocksError>(conn.close().await?)
    };
    match tokio::time::timeout(TIMEOUT, first).await {
        Ok(connected) => connected?,
        Err(_) => return Err(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into()).into()),
    }
    let pool = PoolOptions::new().max_connections(CONNECTIONS).acquire_timeout(TIMEOUT);
    Ok(pool.connect_lazy_with(options))
}
