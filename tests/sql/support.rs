//! What the bodies need of a database, and the harness of each.

use std::time::Duration;

use fencing::sql::{FencedDatabase, migrate};
use fencing::{Claim, Resource, Token};
use sqlx::Pool;
use sqlx::pool::PoolOptions;

/// Makes a module for each database, with a test for each body named in it.
macro_rules! on_every_database {
    ($($(#[$meta:meta])* $body:ident),+ $(,)?) => {
        mod sqlite {
            $($(#[$meta])* #[tokio::test] async fn $body() {
                super::$body::<sqlx::Sqlite>().await;
            })+
        }
    };
}
pub(crate) use on_every_database;

/// A database a body can run on: fresh, with nothing in it.
pub(crate) trait Harness: FencedDatabase {
    type Place: Send + Sync;
    async fn place() -> Self::Place;
    fn options(place: &Self::Place) -> <Self::Connection as sqlx::Connection>::Options;
}

impl Harness for sqlx::Sqlite {
    type Place = tempfile::TempDir;

    async fn place() -> Self::Place {
        tempfile::tempdir().unwrap()
    }

    fn options(place: &Self::Place) -> sqlx::sqlite::SqliteConnectOptions {
        sqlx::sqlite::SqliteConnectOptions::new()
            .filename(place.path().join("test.db"))
            .create_if_missing(true)
            .journal_mode(sqlx::sqlite::SqliteJournalMode::Wal)
            .busy_timeout(Duration::from_secs(5))
    }
}

/// A place with the tables of the fence in it.
pub(crate) struct Db<H: Harness> {
    pub(crate) place: H::Place,
}

impl<H: Harness> Db<H> {
    pub(crate) async fn empty() -> Self {
        Self { place: H::place().await }
    }

    pub(crate) async fn migrated() -> Self {
        let db = Self::empty().await;
        migrate(&db.pool(1).await).await.unwrap();
        db
    }

    pub(crate) async fn pool(&self, max: u32) -> Pool<H> {
        PoolOptions::new()
            .max_connections(max)
            .acquire_timeout(Duration::from_secs(10))
            .connect_with(H::options(&self.place))
            .await
            .unwrap()
    }
}

/// A claim on a resource of the test's own.
pub(crate) fn claim(token: i64) -> Claim {
    claim_on("inventory:item:1", token)
}

pub(crate) fn claim_on(resource: &str, token: i64) -> Claim {
    Claim::new(Resource::new(resource).unwrap(), Token::new(token).unwrap())
}
