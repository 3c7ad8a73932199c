use std::fmt;
use std::sync::{Arc, OnceLock};

use sqlx::SqlStr;

/// The names of the tables: a prefix, and on PostgreSQL and MySQL a schema where they lie.
///
/// The default is `fencing_marks`, `fencing_locks`, `fencing_floor`, `fencing_audit` and
/// `fencing_schema`, in the schema (MySQL: database) of the connection.
///
/// Whoever writes the protected data must use the same tables: two sets of marks do not fence
/// each other. Cloning is cheap; the SQL text of a set of tables is made once.
///
/// ```
/// use fencing::sql::Tables;
///
/// let tables = Tables::with_prefix("stock_fence_")?.in_schema("warehouse")?;
/// assert_eq!(tables.to_string(), "warehouse.stock_fence_*");
/// assert!(Tables::with_prefix("stock; DROP TABLE users").is_err());
/// # Ok::<(), fencing::sql::InvalidTables>(())
/// ```
#[derive(Clone)]
pub struct Tables(Arc<Inner>);

struct Inner {
    prefix: Box<str>,
    schema: Option<Box<str>>,
    text: [OnceLock<Text>; 3],
}

/// The statements of one set of tables on one database.
#[derive(Debug)]
pub struct Text(Box<[SqlStr]>);

impl Tables {
    /// The longest prefix, so that every name fits into the 63 bytes of PostgreSQL with room for
    /// the names of triggers and functions.
    pub const MAX_PREFIX_LEN: usize = 32;

    /// Tables with another prefix than `fencing_`.
    ///
    /// # Errors
    ///
    /// [`InvalidTables`] unless it is 1 to 32 lower-case ASCII letters, digits and underscores,
    /// and does not begin with a digit. Upper case is left out because the databases disagree on
    /// whether it matters.
    pub fn with_prefix(prefix: &str) -> Result<Self, InvalidTables> {
        check(prefix, Self::MAX_PREFIX_LEN)?;
        Ok(Self::make(prefix, None))
    }

    /// The same tables in a schema of PostgreSQL or a database of MySQL, other than the one the
    /// connection has as its default. SQLite has none: there the marks must lie in the file of
    /// the protected data, as a transaction over several files is not atomic in WAL mode.
    ///
    /// # Errors
    ///
    /// [`InvalidTables`] unless it is 1 to 63 characters of the kind a prefix is made of.
    pub fn in_schema(&self, schema: &str) -> Result<Self, InvalidTables> {
        check(schema, 63)?;
        Ok(Self::make(&self.0.prefix, Some(schema)))
    }

    fn make(prefix: &str, schema: Option<&str>) -> Self {
        let text = Default::default();
        Self(Arc::new(Inner { prefix: prefix.into(), schema: schema.map(Into::into), text }))
    }

    /// The prefix.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.0.prefix
    }

    /// The schema, where one was chosen.
    #[must_use]
    pub fn schema(&self) -> Option<&str> {
        self.0.schema.as_deref()
    }

    /// A template with the names put in: `{prefix}` becomes the qualified prefix, `{bare}` the
    /// prefix alone, for names that cannot be qualified.
    ///
    /// What comes out is as safe as the template: both parts were checked letter by letter.
    pub(crate) fn expand(&self, template: &str, quote: char) -> String {
        let bare = self.prefix();
        let qualified = match self.schema() {
            Some(schema) => format!("{quote}{schema}{quote}.{bare}"),
            None => bare.to_owned(),
        };
        template.replace("{prefix}", &qualified).replace("{bare}", bare)
    }

    /// The statements for a database, expanded at the first call. `slot` tells the databases
    /// apart.
    pub(crate) fn text(&self, slot: usize, quote: char, templates: &[&str]) -> &Text {
        self.0.text[slot].get_or_init(|| self.statements(quote, templates))
    }

    /// Statements out of templates.
    pub(crate) fn statements(&self, quote: char, templates: &[&str]) -> Text {
        let expand = |template: &&str| sql(self.expand(template, quote));
        Text(templates.iter().map(expand).collect())
    }
}

/// SQL text made from templates of this crate and checked names.
pub(crate) fn sql(text: String) -> SqlStr {
    use sqlx::SqlSafeStr as _;
    sqlx::AssertSqlSafe(Arc::<str>::from(text)).into_sql_str()
}

impl Text {
    /// The statement at a place of the list of templates.
    pub(crate) fn get(&self, index: usize) -> SqlStr {
        self.0.get(index).cloned().unwrap_or(SqlStr::from_static(""))
    }
}

impl Default for Tables {
    fn default() -> Self {
        static DEFAULT: OnceLock<Tables> = OnceLock::new();
        DEFAULT.get_or_init(|| Self::make("fencing_", None)).clone()
    }
}

impl PartialEq for Tables {
    fn eq(&self, other: &Self) -> bool {
        self.prefix() == other.prefix() && self.schema() == other.schema()
    }
}

impl Eq for Tables {}

impl fmt::Display for Tables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(schema) = self.schema() {
            write!(f, "{schema}.")?;
        }
        write!(f, "{}*", self.prefix())
    }
}

impl fmt::Debug for Tables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tables({self})")
    }
}

fn check(name: &str, longest: usize) -> Result<(), InvalidTables> {
    let first = name.bytes().next().is_some_and(|b| b.is_ascii_lowercase() || b == b'_');
    let rest = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    if first && rest && name.len() <= longest { Ok(()) } else { Err(InvalidTables { longest }) }
}

/// What was offered as a prefix or schema cannot be one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InvalidTables {
    longest: usize,
}

impl fmt::Display for InvalidTables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { longest } = self;
        write!(
            f,
            "a table prefix or schema is 1 to {longest} lower-case ascii letters, digits and \
             underscores, and does not begin with a digit"
        )
    }
}

impl std::error::Error for InvalidTables {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_identifiers_get_into_sql_text() {
        for bad in ["", "1a", "A", "a-b", "a b", "a\"", "a`", "a;", "é", &"a".repeat(33), "a."] {
            assert!(Tables::with_prefix(bad).is_err(), "{bad:?}");
            assert!(Tables::default().in_schema(bad).is_err() || bad.len() == 33, "{bad:?}");
        }
        assert!(Tables::with_prefix(&"a".repeat(32)).is_ok());
    }

    #[test]
    fn names_are_put_into_templates() {
        let plain = Tables::default();
        assert_eq!(plain.expand("{prefix}marks {bare}x", '"'), "fencing_marks fencing_x");
        let there = plain.in_schema("app").unwrap();
        assert_eq!(there.expand("{prefix}marks {bare}x", '"'), "\"app\".fencing_marks fencing_x");
        assert_ne!(plain, there);
        assert_eq!(plain, Tables::default());
    }
}
