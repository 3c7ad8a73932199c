use sqlx::Pool;

use crate::sql::FencedDatabase;

/// Where a fenced statement runs: a pool, or on PostgreSQL also a connection. Sealed.
///
/// On MySQL and SQLite a fenced statement is a transaction, and one that is cancelled must take
/// its connection out of use; it cannot do that with a connection that is not its own.
#[diagnostic::on_unimplemented(
    message = "a fenced statement runs on a pool, and on PostgreSQL also on a connection",
    note = "in a `FencedTx` the claim is made already: run the statement without the fence"
)]
pub trait FencedTarget<'e, DB: FencedDatabase>: sealed::Sealed<'e, DB> + Send {}

#[allow(missing_debug_implementations, reason = "it is in no public place")]
pub enum Target<'e, DB: FencedDatabase> {
    Pool(&'e Pool<DB>),
    Connection(&'e mut DB::Connection),
}

mod sealed {
    use super::Target;
    use crate::sql::FencedDatabase;

    pub trait Sealed<'e, DB: FencedDatabase> {
        fn into_target(self) -> Target<'e, DB>;
    }
}

impl<'e, DB: FencedDatabase> FencedTarget<'e, DB> for &'e Pool<DB> {}

impl<'e, DB: FencedDatabase> sealed::Sealed<'e, DB> for &'e Pool<DB> {
    fn into_target(self) -> Target<'e, DB> {
        Target::Pool(self)
    }
}

#[cfg(feature = "postgres")]
mod postgres {
    use sqlx::{PgConnection, Postgres};

    use super::{FencedTarget, Target, sealed};

    impl<'e> FencedTarget<'e, Postgres> for &'e mut PgConnection {}

    impl<'e> sealed::Sealed<'e, Postgres> for &'e mut PgConnection {
        fn into_target(self) -> Target<'e, Postgres> {
            Target::Connection(self)
        }
    }
}
