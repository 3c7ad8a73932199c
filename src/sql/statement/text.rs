use crate::sql::scan::{Dialect, InvalidSql, Kind, Piece, Reason, parameters, scan};

/// A checked text of the form `UPDATE ... WHERE {fence} AND ( ... )`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    text: &'static str,
    /// Where `{fence}` begins and ends.
    marker: (usize, usize),
    /// How many values are bound to it.
    pub(crate) parameters: usize,
}

const MARKER: &str = "{fence}";

impl Shape {
    pub(crate) fn new(text: &'static str, dialect: Dialect) -> Result<Self, InvalidSql> {
        Ok(check(text, dialect)?)
    }

    /// The text with the fence put in.
    pub(crate) fn with(&self, fence: &str) -> String {
        let (start, end) = self.marker;
        format!("{}{fence}{}", &self.text[..start], &self.text[end..])
    }
}

fn check(text: &'static str, dialect: Dialect) -> Result<Shape, Reason> {
    let pieces = scan(text, dialect)?;
    if !pieces.first().is_some_and(|first| first.is("update") || first.is("delete")) {
        return Err(Reason::Kind);
    }
    let mut markers = pieces.iter().enumerate().filter(|(_, piece)| piece.kind == Kind::Marker);
    let (at, marker) = markers.next().ok_or(Reason::NoMarker)?;
    if markers.next().is_some() {
        return Err(Reason::Markers);
    }
    if marker.text != MARKER {
        return Err(Reason::Brace);
    }
    // At depth 0 only the statement's own clauses are found, so this WHERE is its own.
    let own_where = |piece: &&Piece<'_>| piece.depth == 0 && piece.is("where");
    let before = at.checked_sub(1).and_then(|before| pieces.get(before));
    if !before.as_ref().is_some_and(own_where) || pieces.iter().filter(own_where).count() != 1 {
        return Err(Reason::Place);
    }
    let [and, open, rest @ ..] = &pieces[at + 1..] else { return Err(Reason::Place) };
    if !and.is("and") || open.kind != Kind::Open {
        return Err(Reason::Place);
    }
    let close = rest.iter().position(|piece| piece.kind == Kind::Close && piece.depth == 1);
    if close.is_none_or(|close| close + 1 != rest.len()) {
        return Err(Reason::End);
    }
    let parameters = parameters(&pieces)?;
    Ok(Shape { text, marker: (marker.start, marker.end()), parameters })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Dialect; 3] = [Dialect::Postgres, Dialect::MySql, Dialect::Sqlite];

    #[test]
    fn the_fence_is_put_in_and_nothing_else_is_changed() {
        for dialect in ALL {
            let text = "UPDATE t SET a = '{fence}', b = (SELECT 1 WHERE 1 = 1) \
                        WHERE {fence} AND (id = 7 OR (id = 8))\n";
            let shape = check(text, dialect).unwrap();
            let whole = shape.with("F");
            assert_eq!(
                whole,
                "UPDATE t SET a = '{fence}', b = (SELECT 1 WHERE 1 = 1) \
                 WHERE F AND (id = 7 OR (id = 8))\n"
            );
            assert!(check("delete from t where{fence}and(id=7)", dialect).is_ok());
        }
        assert_eq!(
            check("UPDATE t SET a = $1 WHERE {fence} AND (id = $2)", Dialect::Postgres)
                .map(|shape| shape.parameters),
            Ok(2)
        );
    }

    #[test]
    fn interleaving_c3_no_precedence_leaks_past_the_fence() {
        for dialect in ALL {
            for (text, reason) in [
                ("", Reason::Kind),
                ("INSERT INTO t SELECT 1 WHERE {fence} AND (1=1)", Reason::Kind),
                ("SELECT 1 FROM t WHERE {fence} AND (1=1)", Reason::Kind),
                ("REPLACE INTO t SELECT 1 WHERE {fence} AND (1=1)", Reason::Kind),
                ("MERGE INTO t WHERE {fence} AND (1=1)", Reason::Kind),
                ("EXPLAIN UPDATE t SET a = 1 WHERE {fence} AND (1=1)", Reason::Kind),
                ("(UPDATE t SET a = 1 WHERE {fence} AND (1=1))", Reason::Kind),
                ("UPDATE t SET a = 1 WHERE id = 7", Reason::NoMarker),
                ("UPDATE t SET a = '{fence}' WHERE (id = 7)", Reason::NoMarker),
                ("UPDATE t SET a = 1 WHERE {fence} AND ({fence})", Reason::Markers),
                ("UPDATE t SET a = 1 WHERE {fenc} AND (id = 7)", Reason::Brace),
                ("UPDATE t SET a = 1 WHERE { fence } AND (id = 7)", Reason::Brace),
                ("UPDATE t SET a = 1 WHERE id = 7 AND {fence}", Reason::Place),
                ("UPDATE t SET a = 1 WHERE {fence}", Reason::Place),
                ("UPDATE t SET a = 1 WHERE {fence} AND id = 7", Reason::Place),
                ("UPDATE t SET a = 1 WHERE {fence} OR (id = 7)", Reason::Place),
                ("UPDATE t SET a = 1 WHERE NOT {fence} AND (id = 7)", Reason::Place),
                ("UPDATE t SET a = 1 WHERE ({fence} AND (id = 7))", Reason::Place),
                ("UPDATE t SET a = (SELECT 1 WHERE {fence} AND (id = 7))", Reason::Place),
                ("UPDATE t SET {fence} AND (id = 7)", Reason::Place),
                ("UPDATE t SET a = 1 WHERE b WHERE {fence} AND (id = 7)", Reason::Place),
                ("UPDATE t SET a = 1 WHERE {fence} AND (id = 7) OR (id = 8)", Reason::End),
                ("UPDATE t SET a = 1 WHERE {fence} AND (id = 7) RETURNING id", Reason::End),
                ("DELETE FROM t WHERE {fence} AND (id = 7) = (id = 8)", Reason::End),
                ("DELETE FROM t WHERE {fence} AND (id = 7) LIMIT 1", Reason::End),
                ("DELETE FROM t WHERE {fence} AND (id = 7);", Reason::Semicolon),
                ("DELETE FROM t WHERE {fence} AND (id = 7) -- x", Reason::Comment),
                ("DELETE FROM t WHERE {fence} AND (id = 7", Reason::Parentheses),
                (
                    "WITH d AS (DELETE FROM l) UPDATE t SET a=1 WHERE {fence} AND (1=1)",
                    Reason::With,
                ),
            ] {
                assert_eq!(check(text, dialect), Err(reason), "{text} {dialect:?}");
            }
        }
    }
}
