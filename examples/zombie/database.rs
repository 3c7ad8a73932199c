//! What the demo itself does to the database: set the stage, look at the end, clear up.

use std::path::Path;

use fencing::Token;
use fencing::sql::{FenceOptions, Tables};
use sqlx::{AssertSqlSafe, MySqlPool, PgPool, SqlitePool};

use crate::{Error, app};

/// Where a scene is played: tables of its own, so that it can be played again and again on one
/// database, each time with the same tokens.
pub(crate) struct Stage {
    pub(crate) url: String,
    pub(crate) prefix: String,
}

/// The tables that `prepare` makes, after the prefix.
const TABLES: [&str; 7] = [
    "inventory",
    "inventory_log",
    "fencing_marks",
    "fencing_locks",
    "fencing_floor",
    "fencing_audit",
    "fencing_schema",
];

/// Runs the body over a pool of the kind of database that the URL names.
macro_rules! with_pool {
    ($stage:expr, $pool:ident => $body:expr) => {
        match app::Kind::of(&$stage.url)? {
            app::Kind::Sqlite => {
                let $pool = SqlitePool::connect(&$stage.url).await?;
                let done = $body;
                $pool.close().await;
                done
            }
            app::Kind::Postgres => {
                let $pool = PgPool::connect(&$stage.url).await?;
                let done = $body;
                $pool.close().await;
                done
            }
            app::Kind::MySql => {
                let $pool = MySqlPool::connect(&$stage.url).await?;
                let done = $body;
                $pool.close().await;
                done
            }
        }
    };
}

impl Stage {
    /// A new SQLite file in a folder.
    pub(crate) fn file(folder: &Path, name: &str) -> Result<Self, Error> {
        let file = folder.join(format!("{name}.db"));
        if file.exists() {
            let file = file.display();
            return Err(format!("the scene was played here before: remove {file}").into());
        }
        Ok(Self { url: format!("sqlite:{}?mode=rwc", file.display()), prefix: String::new() })
    }

    /// Tables of its own in a database that others use too.
    pub(crate) fn shared(url: &str) -> Result<Self, Error> {
        match app::Kind::of(url)? {
            app::Kind::Sqlite => Err("an SQLite file is chosen by --keep FOLDER".into()),
            app::Kind::Postgres | app::Kind::MySql => {
                Ok(Self { url: url.to_owned(), prefix: format!("demo_{:08x}_", fastrand::u32(..)) })
            }
        }
    }

    /// Makes the tables, puts the floor under the tokens of the story, and stocks the item.
    pub(crate) async fn prepare(&self, floor: i64, item: i64, quantity: i64) -> Result<(), Error> {
        // Makes every table; nothing is served yet.
        let (level, fence) = (app::Level::Transaction, app::Fence::On);
        drop(app::open(&self.url, &self.prefix, level, fence).await?);
        let tables = Tables::with_prefix(&format!("{}fencing_", self.prefix))?;
        let fence = FenceOptions::new().tables(tables);
        let stock = self
            .sql(&format!("INSERT INTO {{p}}inventory (id, quantity) VALUES ({item}, {quantity})"));
        with_pool!(self, pool => {
            fence.raise_floor(&pool, Token::new(floor)?).await?;
            sqlx::query(stock).execute(&pool).await?;
        });
        Ok(())
    }

    /// The stock, and the tokens of the writes that made it, in their order.
    pub(crate) async fn look(&self, item: i64) -> Result<(i64, Vec<i64>), Error> {
        let stock = self.sql(&format!("SELECT quantity FROM {{p}}inventory WHERE id = {item}"));
        let tokens = self
            .sql(&format!("SELECT token FROM {{p}}inventory_log WHERE item = {item} ORDER BY seq"));
        Ok(with_pool!(self, pool => (
            sqlx::query_scalar(stock).fetch_one(&pool).await?,
            sqlx::query_scalar(tokens).fetch_all(&pool).await?,
        )))
    }

    /// Drops the tables of the scene.
    pub(crate) async fn clear(&self) -> Result<(), Error> {
        with_pool!(self, pool => for table in TABLES {
            sqlx::query(self.sql(&format!("DROP TABLE {{p}}{table}"))).execute(&pool).await?;
        });
        Ok(())
    }

    fn sql(&self, text: &str) -> AssertSqlSafe<String> {
        AssertSqlSafe(text.replace("{p}", &self.prefix))
    }
}
