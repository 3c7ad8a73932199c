use std::fmt;

use sqlx::error::BoxDynError;
use sqlx::{Arguments, Encode, Pool, Type};

use super::{ColumnKey, FencedColumn, name};
use crate::sql::backend::Backend;
use crate::sql::error::Step;
use crate::sql::scan::{InvalidSql, Kind, Reason, parameters, scan};
use crate::sql::statement::Noted;
use crate::sql::tables::sql;
use crate::sql::{FenceError, FenceErrorKind, FencedDatabase};
use crate::{Claim, ClaimState, Token};

/// An update of one row that carries its own mark. Made by
/// [`FencedColumn::update`].
///
/// The texts of expressions and conditions name columns of the row and have one `{}` where their
/// value goes. They are put into parentheses, and refused when something could get out of those,
/// or when they read other rows: the statement sees those as they were before it waited for the
/// row.
#[must_use = "an update that is not executed writes nothing"]
pub struct ColumnUpdate<'c, DB: FencedDatabase, K> {
    column: FencedColumn<DB>,
    claim: &'c Claim,
    key: K,
    sets: Vec<Piece<'c, DB>>,
    conditions: Vec<Piece<'c, DB>>,
    invalid: Option<InvalidSql>,
}

/// A text before and after a value, and what adds the value.
struct Piece<'c, DB: Backend> {
    before: String,
    after: String,
    add: Add<'c, DB>,
}

type Add<'c, DB> =
    Box<dyn FnMut(&mut <DB as sqlx::Database>::Arguments) -> Result<(), BoxDynError> + Send + 'c>;

/// What became of an update by the column form.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "only `Applied` has written something"]
pub enum ColumnOutcome {
    /// The row was written, and its mark is the token.
    Applied,
    /// The row has accepted a higher token: this attempt was certainly not applied. Terminal.
    Stale {
        /// The mark of the row.
        last_token: Token,
    },
    /// There is no row with this key.
    NoSuchRow,
    /// The token is good, and a condition of the caller's does not hold. Nothing was written, the
    /// mark neither.
    ConditionFailed,
}

impl ColumnOutcome {
    /// Whether it was applied; stale is an error, to be passed on with `?`.
    ///
    /// # Errors
    ///
    /// `Stale`, or `PartlyApplied` when something was committed under the claim before.
    pub fn applied(self, claim: &Claim) -> Result<bool, FenceError> {
        match self {
            Self::Applied => Ok(true),
            Self::NoSuchRow | Self::ConditionFailed => Ok(false),
            Self::Stale { last_token } => {
                Err(FenceError::stale(claim, last_token, claim.has_committed()))
            }
        }
    }
}

impl<'c, DB: FencedDatabase, K: ColumnKey<DB>> ColumnUpdate<'c, DB, K> {
    pub(super) fn new(column: FencedColumn<DB>, claim: &'c Claim, key: K) -> Self {
        let (sets, conditions, invalid) = (Vec::new(), Vec::new(), None);
        Self { column, claim, key, sets, conditions, invalid }
    }

    /// Sets a column to a value.
    pub fn set<T>(self, column: &str, value: T) -> Self
    where
        T: Encode<'c, DB> + Type<DB> + Clone + Send + 'c,
    {
        self.set_to(column, "{}", value)
    }

    /// Sets a column to an expression with one value in it: `set_to("quantity", "quantity - {}", 3)`.
    pub fn set_to<T>(mut self, column: &str, expression: &'static str, value: T) -> Self
    where
        T: Encode<'c, DB> + Type<DB> + Clone + Send + 'c,
    {
        let made = name(column).and_then(|column| {
            if column.eq_ignore_ascii_case(&self.column.0.names.token) {
                return Err(Reason::Column.into());
            }
            let quote = DB::QUOTE;
            piece(&format!("{quote}{column}{quote} = ("), expression, "), ", value)
        });
        match made {
            Ok(piece) => self.sets.push(piece),
            Err(invalid) => self.invalid = Some(invalid),
        }
        self
    }

    /// Writes only if a condition with one value in it holds as well: `only_if("quantity >= {}", 3)`.
    pub fn only_if<T>(mut self, condition: &'static str, value: T) -> Self
    where
        T: Encode<'c, DB> + Type<DB> + Clone + Send + 'c,
    {
        match piece(" AND (", condition, ")", value) {
            Ok(piece) => self.conditions.push(piece),
            Err(invalid) => self.invalid = Some(invalid),
        }
        self
    }

    /// Runs it: one round trip when it is applied, one more to tell why when it is not.
    ///
    /// # Errors
    ///
    /// - `Misconfigured`: a text, a name, the column or the key is not as it must be. Nothing was
    ///   applied.
    /// - `Statement`: the database refused the statement. Nothing was applied.
    /// - `Contended` and `Unavailable`: nothing was applied.
    /// - `OutcomeUnknown`: it was sent and no verdict came back.
    ///
    /// # Cancellation
    ///
    /// It was applied or not; which, is not known, and the state of the claim is
    /// [`Unknown`](ClaimState::Unknown).
    pub async fn execute(self, pool: &Pool<DB>) -> Result<ColumnOutcome, FenceError> {
        let Self { column, claim, key, mut sets, mut conditions, invalid } = self;
        let invalid = invalid.or_else(|| sets.is_empty().then(|| Reason::Empty.into()));
        if let Some(invalid) = invalid {
            return Err(FenceError::invalid(invalid));
        }
        let conditional = !conditions.is_empty();
        let (text, arguments) = column
            .statement(claim, &key, &mut write_all(&mut sets), &mut write_all(&mut conditions))
            .map_err(FenceError::other)?;
        drop((sets, conditions));
        let text = sql(text);
        let at_connect = |error| FenceError::at(Step::Connect, error, Some(claim));
        let mut conn = pool.acquire().await.map_err(at_connect)?;
        column.verify_on(&mut conn).await?;
        let mut retry = crate::sql::retry::Retry::new(column.0.options.attempts);
        loop {
            let mut noted = Noted::new(claim, ClaimState::Unknown);
            match DB::perform(&mut conn, text.clone(), arguments.clone()).await {
                Ok(written) if DB::found(written) => {
                    noted.state = ClaimState::Committed;
                    return Ok(ColumnOutcome::Applied);
                }
                Ok(_) => noted.state = ClaimState::Unspent,
                Err(error) => {
                    let error = FenceError::at(Step::Alone, error, Some(claim));
                    if error.kind() != FenceErrorKind::OutcomeUnknown {
                        noted.state = ClaimState::Unspent;
                    }
                    if error.is_collision() && retry.again().await {
                        continue;
                    }
                    return Err(error);
                }
            }
            let at_claim = |error| FenceError::at(Step::Claim, error, Some(claim));
            let mark = column.read(&mut conn, &key).await.map_err(at_claim)?;
            match mark.map(Token::new) {
                None => return Ok(ColumnOutcome::NoSuchRow),
                Some(Ok(last_token)) if last_token > claim.token() => {
                    noted.state = ClaimState::Stale;
                    return Ok(ColumnOutcome::Stale { last_token });
                }
                Some(_) if conditional => return Ok(ColumnOutcome::ConditionFailed),
                // The row was made in between.
                Some(_) if retry.again().await => {}
                Some(_) => {
                    return Err(FenceError::contended(
                        "the row comes and goes, nothing was applied: try again",
                    ));
                }
            }
        }
    }
}

fn write_all<'p, DB: Backend>(
    pieces: &'p mut [Piece<'_, DB>],
) -> impl FnMut(&mut String, &mut DB::Arguments) -> Result<(), BoxDynError> + Send + 'p {
    move |text, arguments| {
        for Piece { before, after, add } in pieces.iter_mut() {
            text.push_str(before);
            add(arguments)?;
            arguments.format_placeholder(text)?;
            text.push_str(after);
        }
        Ok(())
    }
}

/// An expression with its value, between two texts of ours.
fn piece<'c, DB: Backend, T>(
    before: &str,
    expression: &'static str,
    after: &str,
    value: T,
) -> Result<Piece<'c, DB>, InvalidSql>
where
    T: Encode<'c, DB> + Type<DB> + Clone + Send + 'c,
{
    let pieces = scan(expression, DB::DIALECT)?;
    let mut markers = pieces.iter().filter(|piece| piece.kind == Kind::Marker);
    let marker = match (markers.next(), markers.next()) {
        (Some(marker), None) if marker.text == "{}" => marker,
        _ => return Err(Reason::Value.into()),
    };
    if parameters(&pieces)? > 0 {
        return Err(Reason::Value.into());
    }
    for piece in &pieces {
        if ["select", "table", "values"].iter().any(|word| piece.is(word)) {
            return Err(Reason::SubSelect.into());
        }
        if piece.kind == Kind::Comma && piece.depth == 0 {
            return Err(Reason::Comma.into());
        }
    }
    let (head, tail) = (&expression[..marker.start], &expression[marker.end()..]);
    Ok(Piece {
        before: format!("{before}{head}"),
        after: format!("{tail}{after}"),
        add: Box::new(move |arguments| arguments.add(value.clone())),
    })
}

impl<DB: FencedDatabase, K> fmt::Debug for ColumnUpdate<'_, DB, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { column, claim, .. } = self;
        f.debug_struct("ColumnUpdate")
            .field("column", column)
            .field("claim", claim)
            .finish_non_exhaustive()
    }
}
