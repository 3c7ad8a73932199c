use std::error::Error as StdError;
use std::fmt;

use sqlx::Pool;

use super::backend::{Backend, FencedDatabase, NotCommitted};
use super::checkout::Checkout;
use super::tables::{Text, sql};
use super::{FenceOptions, Tables};

/// Makes the tables of the fence, or brings them up to this version of the crate.
///
/// Any number of processes may do it at the same time. Each migration is recorded in
/// `fencing_schema`, by its own SQL text, so it may be run by another migrator as well: see
/// [`migrations`]. The record of the application's own migrations is not touched.
///
/// The role needs the right to create tables. Where the service must not have it, run the
/// migrations elsewhere and [`verify`] at start.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let pool = sqlx::sqlite::SqlitePoolOptions::new()
///     .max_connections(1)
///     .connect("sqlite::memory:")
///     .await?;
/// fencing::sql::migrate(&pool).await?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
///
/// # Errors
///
/// [`MigrateError`], whose kind says whether the tables are newer than this version, were made by
/// something else, or could not be reached. Then nothing was changed; on MySQL, which commits each
/// `CREATE TABLE` by itself, it may be run again.
///
/// # Cancellation
///
/// As for errors: done wholly or not at all, on MySQL in part.
pub async fn migrate<DB: FencedDatabase>(pool: &Pool<DB>) -> Result<(), MigrateError> {
    FenceOptions::new().migrate(pool).await
}

/// Checks that the tables of the fence are there, in this version, with the columns it uses.
///
/// # Errors
///
/// [`MigrateError`]
pub async fn verify<DB: FencedDatabase>(pool: &Pool<DB>) -> Result<(), MigrateError> {
    FenceOptions::new().verify(pool).await
}

/// One step of the tables, as SQL text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Migration {
    /// Its number, from 1.
    pub version: i64,
    /// Statements, each ended by `;`. The last one records the version in `fencing_schema`.
    pub sql: String,
}

/// The migrations of a database as plain SQL, for another migrator to run in order.
///
/// ```
/// use fencing::sql::{Tables, migrations};
///
/// let all = migrations::<sqlx::Sqlite>(&Tables::default());
/// assert_eq!(all[0].version, 1);
/// assert!(all[0].sql.contains("CREATE TABLE fencing_marks"));
/// ```
#[must_use]
pub fn migrations<DB: FencedDatabase>(tables: &Tables) -> Vec<Migration> {
    let texts = DB::MIGRATIONS.iter().map(|template| tables.expand(template, DB::QUOTE));
    (1..).zip(texts).map(|(version, sql)| Migration { version, sql }).collect()
}

impl FenceOptions {
    /// [`migrate`] with these tables.
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn migrate<DB: FencedDatabase>(&self, pool: &Pool<DB>) -> Result<(), MigrateError> {
        let mut checkout = Checkout::acquire(pool).await?;
        if !DB::TRANSACTIONAL_DDL {
            // Closing the connection is what gives the lock of the migrations back.
            return run::<DB>(checkout.for_closing(), &self.tables, true).await.map(drop);
        }
        checkout.begin(self).await?;
        let done = match run::<DB>(checkout.conn(), &self.tables, true).await {
            Ok(0) => Ok(()),
            Ok(_) => checkout.commit().await.map_err(MigrateError::from),
            Err(error) => Err(error),
        };
        checkout.finish().await;
        done
    }

    /// [`verify`] with these tables.
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn verify<DB: FencedDatabase>(&self, pool: &Pool<DB>) -> Result<(), MigrateError> {
        let mut checkout = Checkout::acquire(pool).await?;
        run::<DB>(checkout.reading(), &self.tables, false).await?;
        checkout.has_read();
        Ok(())
    }

    pub(crate) fn text<DB: Backend>(&self) -> &Text {
        self.tables.text(DB::SLOT, DB::QUOTE, DB::TEMPLATES)
    }
}

/// Tells how many migrations were applied.
async fn run<DB: FencedDatabase>(
    conn: &mut DB::Connection,
    tables: &Tables,
    apply: bool,
) -> Result<usize, MigrateError> {
    if apply {
        DB::lock_migrations(conn, tables).await?;
    }
    let text = tables.text(DB::SLOT, DB::QUOTE, DB::TEMPLATES);
    let columns = DB::columns(conn, tables).await?;
    let name = |table: &str| format!("{}{table}", tables.prefix());
    let is_there = |table: &str| columns.iter().any(|(found, _, _)| *found == name(table));
    let record = (name("schema"), "version");
    let versions = if columns.iter().any(|(t, c, _)| (t, &**c) == (&record.0, record.1)) {
        DB::versions(conn, text).await?
    } else {
        let foreign = DB::COLUMNS.iter().find(|(table, _, _)| is_there(table));
        match foreign {
            Some((table, _, _)) => return Err(MigrateError::foreign(tables, table)),
            None => Vec::new(),
        }
    };
    let known = i64::try_from(DB::MIGRATIONS.len()).unwrap_or(i64::MAX);
    let found = versions.last().copied().unwrap_or(0);
    if found > known {
        return Err(MigrateError::kind_of(MigrateErrorKind::Newer { found, known }));
    }
    if !versions.iter().copied().eq(1..=found) {
        return Err(MigrateError::foreign(tables, "schema"));
    }
    if found < known && !apply {
        return Err(MigrateError::kind_of(MigrateErrorKind::Older { found, known }));
    }
    let missing = usize::try_from(found).unwrap_or(usize::MAX);
    let mut applied = 0;
    for template in DB::MIGRATIONS.iter().skip(missing) {
        applied += 1;
        DB::execute(conn, sql(tables.expand(template, DB::QUOTE))).await?;
    }
    check_shape::<DB>(&DB::columns(conn, tables).await?, tables)?;
    match DB::floor(conn, text).await? {
        Some(_) => Ok(applied),
        None => Err(MigrateError::shape(format!("{}floor has no row", tables.prefix()))),
    }
}

fn check_shape<DB: Backend>(
    columns: &[(String, String, String)],
    tables: &Tables,
) -> Result<(), MigrateError> {
    for (table, column, expected) in DB::COLUMNS {
        let table = format!("{}{table}", tables.prefix());
        let found = columns.iter().find(|(t, c, _)| *t == table && c == column);
        match found.map(|(_, _, kind)| kind) {
            Some(kind) if kind.eq_ignore_ascii_case(expected) => {}
            Some(kind) => {
                let what = format!("{table}.{column} is `{kind}`, expected is `{expected}`");
                return Err(MigrateError::shape(what));
            }
            None => return Err(MigrateError::shape(format!("{table}.{column} is missing"))),
        }
    }
    Ok(())
}

/// The tables of the fence are not what this version of the crate needs.
#[derive(Debug)]
pub struct MigrateError {
    kind: MigrateErrorKind,
    detail: Option<String>,
    source: Option<sqlx::Error>,
}

/// What is wrong with the tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum MigrateErrorKind {
    /// A newer version of the crate made them. Update this service.
    Newer {
        /// The version of the tables.
        found: i64,
        /// The newest one this version of the crate knows.
        known: i64,
    },
    /// They are missing (version 0) or of an older version. Run the migrations.
    Older {
        /// The version of the tables.
        found: i64,
        /// The one this version of the crate needs.
        known: i64,
    },
    /// Tables of these names are there, and these migrations did not make them. Choose another
    /// prefix.
    Foreign,
    /// A column is missing or of another type.
    Shape,
    /// The database did not do it, for the reason in the source.
    Database,
}

impl MigrateError {
    fn kind_of(kind: MigrateErrorKind) -> Self {
        Self { kind, detail: None, source: None }
    }

    fn foreign(tables: &Tables, table: &str) -> Self {
        let detail = Some(format!("{}{table}", tables.prefix()));
        Self { detail, ..Self::kind_of(MigrateErrorKind::Foreign) }
    }

    fn shape(detail: String) -> Self {
        Self { detail: Some(detail), ..Self::kind_of(MigrateErrorKind::Shape) }
    }

    /// What is wrong.
    #[must_use]
    pub fn kind(&self) -> MigrateErrorKind {
        self.kind
    }
}

impl fmt::Display for MigrateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let detail = self.detail.as_deref().unwrap_or_default();
        match self.kind {
            MigrateErrorKind::Newer { found, known } => write!(
                f,
                "a newer version of fencing made its tables: update this service \
                 found=`{found}` known=`{known}`"
            ),
            MigrateErrorKind::Older { found, known } => write!(
                f,
                "the tables of fencing are missing or old: run the migrations \
                 found=`{found}` needed=`{known}`"
            ),
            MigrateErrorKind::Foreign => write!(
                f,
                "a table has a name fencing uses and was not made by its migrations: choose \
                 another prefix table=`{detail}`"
            ),
            MigrateErrorKind::Shape => {
                write!(f, "a table of fencing was changed: change it back, {detail}")
            }
            MigrateErrorKind::Database => {
                f.write_str("the tables of fencing could not be made or read")
            }
        }
    }
}

impl StdError for MigrateError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}

impl From<sqlx::Error> for MigrateError {
    fn from(source: sqlx::Error) -> Self {
        Self { source: Some(source), ..Self::kind_of(MigrateErrorKind::Database) }
    }
}

impl From<NotCommitted> for MigrateError {
    fn from(why: NotCommitted) -> Self {
        match why {
            NotCommitted::Lost => Self::kind_of(MigrateErrorKind::Database),
            NotCommitted::Refused(error) | NotCommitted::Unknown(error) => Self::from(error),
        }
    }
}
