use sqlx::{Pool, Transaction};
use sqlx_core::transaction::TransactionManager;

use super::backend::{FencedDatabase, NotCommitted, Route};
use super::checkout::Checkout;
use super::error::Step;
use super::retry::Retry;
use super::{FenceError, FenceOptions, Isolation};
use crate::{Claim, ClaimState, Token, Verdict};

/// Raises the mark to the claim before a read.
///
/// What is read after it has every committed write of earlier holders in it, and none of them can
/// write any more. A holder that reads first and claims with its write may write from what an
/// earlier holder was about to change.
///
/// ```
/// use fencing::{Claim, ClaimState, Resource, Token};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// # let pool = sqlx::sqlite::SqlitePoolOptions::new()
/// #     .max_connections(1)
/// #     .connect("sqlite::memory:")
/// #     .await?;
/// # fencing::sql::migrate(&pool).await?;
/// let claim = Claim::new(Resource::new("inventory:item:1")?, Token::new(34)?);
/// fencing::sql::claim(&pool, &claim).await?;
/// assert_eq!(claim.state(), ClaimState::Claimed);
/// // SELECT quantity FROM inventory ...
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
///
/// # Errors
///
/// [`FenceError`] of any kind but `Statement` and `OutcomeUnknown`: where the answer to a commit
/// was lost, it is `Unavailable`, as to raise a mark twice harms nobody.
///
/// # Cancellation
///
/// The mark may or may not have been raised.
pub async fn claim<DB: FencedDatabase>(pool: &Pool<DB>, claim: &Claim) -> Result<(), FenceError> {
    FenceOptions::new().claim(pool, claim).await
}

/// Raises the mark to the claim in a transaction of the caller's own.
///
/// It has to be the first statement of the transaction: what was read before it may be from before
/// the writes of an earlier holder. At REPEATABLE READ and above, MySQL's default, even what is
/// read after it would be. [`FencedTx`](super::FencedTx) sees to that and to more: it bounds
/// waiting, and notices when the database ends the transaction. Prefer it.
///
/// `Accepted` means that this transaction has written the mark row and keeps it locked to its end.
/// On `Stale` roll back at once. The state of the claim becomes `Open`; noting what comes after it
/// is up to the caller.
///
/// # Errors
///
/// `Misconfigured` inside of a savepoint, as rolling back to it would give the lock away while the
/// transaction goes on. Otherwise as for [`FencedTx::begin`](super::FencedTx::begin).
pub async fn advance<DB: FencedDatabase>(
    tx: &mut Transaction<'_, DB>,
    claim: &Claim,
) -> Result<Verdict, FenceError> {
    FenceOptions::new().advance(tx, claim).await
}

impl FenceOptions {
    /// [`claim`] with these options.
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn claim<DB: FencedDatabase>(
        &self,
        pool: &Pool<DB>,
        claim: &Claim,
    ) -> Result<(), FenceError> {
        match self.raise(pool, claim).await? {
            Verdict::Accepted => {
                claim.note(ClaimState::Claimed);
                Ok(())
            }
            Verdict::Stale { last_token } => {
                let partly = claim.has_committed();
                claim.note_stale(last_token);
                Err(FenceError::stale(claim, last_token, partly))
            }
        }
    }

    /// [`advance`] with these tables. The other options have no effect: they are those of the
    /// transaction.
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn advance<DB: FencedDatabase>(
        &self,
        tx: &mut Transaction<'_, DB>,
        claim: &Claim,
    ) -> Result<Verdict, FenceError> {
        let conn: &mut DB::Connection = tx;
        if DB::TransactionManager::get_transaction_depth(conn) != 1 {
            return Err(FenceError::misconfigured(
                "a claim inside of a savepoint would not outlive it: claim at the beginning of \
                 the transaction",
            ));
        }
        let mut session = DB::Session::default();
        let text = self.text::<DB>();
        let verdict = DB::advance(conn, &mut session, text, claim, Route::Foreign).await;
        let verdict = verdict.map_err(|error| FenceError::at(Step::Claim, error, Some(claim)))?;
        claim.note(match verdict {
            Verdict::Accepted => ClaimState::Open,
            // Without the mark: it may be one that this transaction has raised, and may never be
            // committed.
            Verdict::Stale { .. } => ClaimState::Stale,
        });
        Ok(verdict)
    }

    /// Raises the mark, in a transaction only where it has to be raised.
    ///
    /// When the committed mark is the token already, the holder raised it before, and that waited
    /// for every earlier holder: there is nothing left to wait for.
    pub(crate) async fn raise<DB: FencedDatabase>(
        &self,
        pool: &Pool<DB>,
        claim: &Claim,
    ) -> Result<Verdict, FenceError> {
        let mut retry = Retry::new(self.attempts);
        loop {
            match self.raise_once(pool, claim).await {
                Err(error) if error.is_collision() && retry.again().await => {}
                result => return result,
            }
        }
    }

    async fn raise_once<DB: FencedDatabase>(
        &self,
        pool: &Pool<DB>,
        claim: &Claim,
    ) -> Result<Verdict, FenceError> {
        let at = |step| move |error| FenceError::at(step, error, Some(claim));
        let text = self.text::<DB>();
        let mut checkout = Checkout::acquire(pool).await.map_err(at(Step::Connect))?;
        let mark = DB::last_token(checkout.reading(), text, claim.resource()).await;
        let mark = mark.map_err(at(Step::Claim))?;
        checkout.has_read();
        if let Some(mark) = mark {
            if mark == claim.token().get() {
                return Ok(Verdict::Accepted);
            }
            if let Ok(last_token) = Token::new(mark)
                && last_token > claim.token()
            {
                return Ok(Verdict::Stale { last_token });
            }
        }
        let options = self.clone().isolation(Isolation::ReadCommitted);
        checkout.begin(&options).await.map_err(at(Step::Claim))?;
        let verdict = checkout.advance(text, claim, Route::Own).await;
        let committed = match verdict {
            Ok(Verdict::Accepted) => checkout.commit().await,
            _ => Ok(()),
        };
        checkout.finish().await;
        match committed {
            Ok(()) => verdict.map_err(at(Step::Claim)),
            Err(NotCommitted::Unknown(error)) => Err(at(Step::Connect)(error)),
            Err(why) => Err(FenceError::not_committed(why, Some(claim))),
        }
    }
}
