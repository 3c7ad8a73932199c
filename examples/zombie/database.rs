//! What the demo itself does to the database: set the stage, and look at the end.

use fencing::Token;
use fencing::sql;
use sqlx::SqlitePool;

use crate::{Error, app};

/// Makes the tables, puts the floor under the tokens of the story, and stocks the item.
pub(crate) async fn prepare(url: &str, floor: i64, item: i64, quantity: i64) -> Result<(), Error> {
    // Makes every table; nothing is served yet.
    drop(app::open(url, app::Level::Transaction, app::Fence::On).await?);
    let pool = SqlitePool::connect(url).await?;
    sql::raise_floor(&pool, Token::new(floor)?).await?;
    sqlx::query("INSERT INTO inventory (id, quantity) VALUES ($1, $2)")
        .bind(item)
        .bind(quantity)
        .execute(&pool)
        .await?;
    pool.close().await;
    Ok(())
}

/// The stock, and the tokens of the writes that made it, in their order.
pub(crate) async fn look(url: &str, item: i64) -> Result<(i64, Vec<i64>), Error> {
    let pool = SqlitePool::connect(url).await?;
    let quantity = sqlx::query_scalar("SELECT quantity FROM inventory WHERE id = $1")
        .bind(item)
        .fetch_one(&pool)
        .await?;
    let tokens = sqlx::query_scalar("SELECT token FROM inventory_log WHERE item = $1 ORDER BY seq")
        .bind(item)
        .fetch_all(&pool)
        .await?;
    pool.close().await;
    Ok((quantity, tokens))
}
