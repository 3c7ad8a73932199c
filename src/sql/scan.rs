//! Just enough of a lexer for SQL to know where parentheses, quotes and markers are.
//!
//! It need not know more than that, but what it does know must be what the database knows. So
//! whatever the three databases or their settings read differently is refused: comments, a
//! backslash in quotes, dollar-quoting.

use std::fmt;

/// Whose SQL it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dialect {
    /// PostgreSQL
    Postgres,
    /// MySQL and MariaDB
    MySql,
    /// SQLite
    Sqlite,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// A key word, a name, a number.
    Word,
    /// A string or a quoted name.
    Quoted,
    /// `?` or `$`, with its number where it has one.
    Placeholder(Option<usize>),
    /// What stands in braces.
    Marker,
    Open,
    Close,
    Comma,
    Other,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece<'t> {
    pub(crate) kind: Kind,
    pub(crate) text: &'t str,
    /// Where in the text it begins, in bytes.
    pub(crate) start: usize,
    /// How many parentheses are open before it.
    pub(crate) depth: usize,
}

impl Piece<'_> {
    pub(crate) fn is(&self, word: &str) -> bool {
        self.kind == Kind::Word && self.text.eq_ignore_ascii_case(word)
    }

    pub(crate) fn end(&self) -> usize {
        self.start + self.text.len()
    }
}

/// The text of a statement, an expression or a name cannot be used as one. It says what to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InvalidSql(Reason);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reason {
    Semicolon,
    Comment,
    Backslash,
    Dollar,
    Quote,
    NameQuote(char),
    Control,
    Parentheses,
    Brace,
    With,
    Mixed,
    Kind,
    NoMarker,
    Markers,
    Place,
    End,
    Bound { expected: usize, bound: usize },
    SubSelect,
    Comma,
    Empty,
    Value,
    Name,
    Column,
    Template,
}

impl From<Reason> for InvalidSql {
    fn from(reason: Reason) -> Self {
        Self(reason)
    }
}

impl fmt::Display for InvalidSql {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Reason::Semicolon => "a text is one statement: leave `;` out",
            Reason::Comment => "leave comments out of the text: what follows it would be in them",
            Reason::Backslash => "the databases disagree on `\\` in quotes: bind the value instead",
            Reason::Dollar => {
                "a `$` is the beginning of a parameter such as `$1`: bind the value instead of \
                 quoting it by dollars"
            }
            Reason::Quote => "a quote is not closed",
            Reason::NameQuote(quote) => {
                return write!(
                    f,
                    "this database quotes names in another way, or is the only one to quote them \
                     so: use `\"` (mysql: a backtick) found=`{quote}`"
                );
            }
            Reason::Control => "leave control characters out of the text: bind the value instead",
            Reason::Parentheses => "a parenthesis is not closed or was not opened",
            Reason::Brace => "a brace outside of quotes is the beginning of a marker: `{fence}`",
            Reason::With => "WITH could write before the fence is asked: use FencedTx",
            Reason::Mixed => "number all parameters (`?1`) or none of them (`?`)",
            Reason::Kind => "a fenced statement is an UPDATE or a DELETE: use FencedTx for others",
            Reason::NoMarker => {
                "the fence is missing: write `WHERE {fence} AND ( ... )`, with the whole condition \
                 in the parentheses"
            }
            Reason::Markers => "the fence is asked once: write `{fence}` once",
            Reason::Place => {
                "the fence must be the first part of the condition of the statement itself: write \
                 `WHERE {fence} AND ( ... )`, with the whole condition in the parentheses"
            }
            Reason::End => {
                "the parenthesis after `{fence} AND` must close at the end of the text: put the \
                 whole condition into it, and nothing behind it"
            }
            Reason::Bound { expected, bound } => {
                return write!(
                    f,
                    "bind one value to each parameter of the text parameters=`{expected}` \
                     bound=`{bound}`"
                );
            }
            Reason::SubSelect => {
                "a sub-select reads other rows, as they were before the claim: use FencedTx"
            }
            Reason::Comma => "an expression has no comma outside of its parentheses",
            Reason::Empty => "nothing is to be set: set a column",
            Reason::Value => "an expression has one value: write `{}` once, where it goes",
            Reason::Name => {
                "a name of a table or a column is 1 to 63 bytes without control characters and \
                 quotes"
            }
            Reason::Template => {
                "a resource of rows names a column of theirs in braces: `inventory:item:{id}`"
            }
            Reason::Column => "the column of the token is set by the claim: leave it out",
        })
    }
}

impl std::error::Error for InvalidSql {}

/// The pieces of a text, or why they cannot be told for sure.
pub(crate) fn scan(text: &str, dialect: Dialect) -> Result<Vec<Piece<'_>>, Reason> {
    let bytes = text.as_bytes();
    let mut pieces = Vec::new();
    let (mut at, mut depth) = (0, 0_usize);
    while let Some(&byte) = bytes.get(at) {
        let start = at;
        let next = bytes.get(at + 1).copied();
        let kind = match byte {
            b' ' | b'\t' | b'\n' | b'\r' => {
                at += 1;
                continue;
            }
            b'\'' | b'"' => {
                at = quoted(bytes, at)?;
                Kind::Quoted
            }
            b'`' if dialect == Dialect::MySql => {
                at = quoted(bytes, at)?;
                Kind::Quoted
            }
            b'`' => return Err(Reason::NameQuote('`')),
            b'[' if dialect != Dialect::Postgres => return Err(Reason::NameQuote('[')),
            b';' => return Err(Reason::Semicolon),
            b'-' if next == Some(b'-') => return Err(Reason::Comment),
            b'/' if next == Some(b'*') => return Err(Reason::Comment),
            b'#' if dialect == Dialect::MySql => return Err(Reason::Comment),
            0..=31 | 127 => return Err(Reason::Control),
            b'$' | b'?' | b':' | b'@' => {
                at = run(bytes, at + 1, |b| b.is_ascii_digit());
                placeholder(&text[start..at], next, dialect)?
            }
            b'{' => {
                let length = text[at..].find('}').ok_or(Reason::Brace)?;
                at += length + 1;
                Kind::Marker
            }
            b'}' => return Err(Reason::Brace),
            byte if is_word(byte) => {
                at = run(bytes, at, is_word);
                // Part of a name on some databases, the beginning of a quote on others.
                if bytes.get(at) == Some(&b'$') {
                    return Err(Reason::Dollar);
                }
                Kind::Word
            }
            byte => {
                at += 1;
                match byte {
                    b'(' => Kind::Open,
                    b')' => Kind::Close,
                    b',' => Kind::Comma,
                    _ => Kind::Other,
                }
            }
        };
        pieces.push(Piece { kind, text: &text[start..at], start, depth });
        match kind {
            Kind::Open => depth += 1,
            Kind::Close => depth = depth.checked_sub(1).ok_or(Reason::Parentheses)?,
            _ => {}
        }
    }
    if depth > 0 {
        return Err(Reason::Parentheses);
    }
    // `timestamp with time zone` is a type.
    let follows = |at: usize, word| pieces.get(at).is_some_and(|piece: &Piece<'_>| piece.is(word));
    let is_type = |at: usize| follows(at + 1, "time") && follows(at + 2, "zone");
    let mut words = pieces.iter().enumerate();
    if words.any(|(at, piece)| piece.is("with") && !is_type(at)) {
        return Err(Reason::With);
    }
    Ok(pieces)
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

fn run(bytes: &[u8], from: usize, of: impl Fn(u8) -> bool) -> usize {
    bytes[from..].iter().position(|b| !of(*b)).map_or(bytes.len(), |length| from + length)
}

/// The end of what is in quotes from `start` on. A doubled quote is part of it, whether it is read
/// as one or as two texts beside each other.
fn quoted(bytes: &[u8], start: usize) -> Result<usize, Reason> {
    let quote = bytes[start];
    for (at, byte) in bytes.iter().enumerate().skip(start + 1) {
        match *byte {
            b'\\' => return Err(Reason::Backslash),
            0 => return Err(Reason::Control),
            byte if byte == quote => return Ok(at + 1),
            _ => {}
        }
    }
    Err(Reason::Quote)
}

fn placeholder(text: &str, next: Option<u8>, dialect: Dialect) -> Result<Kind, Reason> {
    let number = text[1..].parse::<usize>().ok();
    match (text.as_bytes()[0], dialect) {
        (b'?', Dialect::MySql) if text.len() == 1 => Ok(Kind::Placeholder(None)),
        (b'?', Dialect::Sqlite) if text.len() == 1 => Ok(Kind::Placeholder(None)),
        (b'?', Dialect::Sqlite) | (b'$', Dialect::Postgres | Dialect::Sqlite) => match number {
            Some(number @ 1..=65_535) => Ok(Kind::Placeholder(Some(number))),
            _ => Err(Reason::Dollar),
        },
        (b'$', Dialect::MySql) => Err(Reason::Dollar),
        // Named parameters of SQLite, which sqlx does not bind.
        (b':' | b'@', Dialect::Sqlite) => Err(Reason::Dollar),
        // Operators of PostgreSQL: `::`, `@>`, `?`; user variables of MySQL.
        (b':' | b'@' | b'?', _) if next.is_none_or(|b| !b.is_ascii_digit()) => Ok(Kind::Other),
        _ => Err(Reason::Dollar),
    }
}

/// How many values the parameters of a text need.
pub(crate) fn parameters(pieces: &[Piece<'_>]) -> Result<usize, Reason> {
    let (mut unnumbered, mut highest) = (0, None);
    for piece in pieces {
        match piece.kind {
            Kind::Placeholder(None) => unnumbered += 1,
            Kind::Placeholder(number) => highest = highest.max(number),
            _ => {}
        }
    }
    match (unnumbered, highest) {
        (count, None) => Ok(count),
        (0, Some(highest)) => Ok(highest),
        _ => Err(Reason::Mixed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Dialect; 3] = [Dialect::Postgres, Dialect::MySql, Dialect::Sqlite];

    #[test]
    fn whatever_could_be_read_differently_is_refused() {
        for dialect in ALL {
            for (text, reason) in [
                ("a; b", Reason::Semicolon),
                ("a -- b", Reason::Comment),
                ("a /* b */", Reason::Comment),
                ("a /*! b */", Reason::Comment),
                (r"a = 'x\' OR (1=1)'", Reason::Backslash),
                (r#"a = "x\" OR (1=1)""#, Reason::Backslash),
                ("a = 'x", Reason::Quote),
                ("a = 'x''", Reason::Quote),
                ("a = $$)$$", Reason::Dollar),
                ("a = $t$)$t$", Reason::Dollar),
                ("a$b$", Reason::Dollar),
                ("a = (1", Reason::Parentheses),
                ("a = 1)", Reason::Parentheses),
                (")(", Reason::Parentheses),
                ("{a", Reason::Brace),
                ("a}", Reason::Brace),
                ("a\0b", Reason::Control),
                ("WITH x AS (SELECT 1) SELECT 2", Reason::With),
                ("a IN (with x AS (SELECT 1) SELECT 2)", Reason::With),
            ] {
                assert_eq!(scan(text, dialect), Err(reason), "{text} {dialect:?}");
            }
        }
        assert_eq!(scan("a # b", Dialect::MySql), Err(Reason::Comment));
        assert_eq!(scan("[a)]", Dialect::Sqlite), Err(Reason::NameQuote('[')));
        assert_eq!(scan("`a)`", Dialect::Sqlite), Err(Reason::NameQuote('`')));
        assert_eq!(scan("`a)`", Dialect::Postgres), Err(Reason::NameQuote('`')));
        assert_eq!(scan("a = :x", Dialect::Sqlite), Err(Reason::Dollar));
        assert_eq!(scan("a = $1", Dialect::MySql), Err(Reason::Dollar));
    }

    #[test]
    fn quotes_hide_what_is_in_them() {
        for dialect in ALL {
            for text in
                ["a = ';)('", "a = 'it''s )'", r#"";" = 1"#, "a = '--' || '/*'", "'{fence}'"]
            {
                let pieces = scan(text, dialect).unwrap();
                assert!(pieces.iter().all(|p| p.depth == 0 && p.kind != Kind::Open), "{text}");
                assert!(pieces.iter().all(|p| p.kind != Kind::Marker), "{text}");
            }
        }
        assert!(scan("`a;)` = 1", Dialect::MySql).is_ok());
        assert!(scan("a[1] = x::text AND j @> k", Dialect::Postgres).is_ok());
        assert!(scan("CAST(a AS timestamp with time zone)", Dialect::Postgres).is_ok());
    }

    #[test]
    fn parameters_are_counted() {
        let count = |text, dialect| parameters(&scan(text, dialect).unwrap());
        assert_eq!(count("$2 + $1 + $2", Dialect::Postgres), Ok(2));
        assert_eq!(count("a = ? AND b = ?", Dialect::MySql), Ok(2));
        assert_eq!(count("a = ?2 AND b = ?2", Dialect::Sqlite), Ok(2));
        assert_eq!(count("a = ? AND b = ?2", Dialect::Sqlite), Err(Reason::Mixed));
        assert_eq!(count("a = '$3'", Dialect::Postgres), Ok(0));
    }
}
