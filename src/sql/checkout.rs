use std::fmt;
use std::time::Duration;

use sqlx::Pool;
use sqlx::pool::PoolConnection;
use tokio::runtime::Handle;

use super::FenceOptions;
use super::backend::{Backend, NotCommitted, Route, Stage};
use super::tables::Text;
use crate::{Claim, Verdict};

/// How long a dropped transaction may take to be rolled back before its connection is closed.
const RESET_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection out of a pool, with a transaction on it that no drop leaves open.
///
/// sqlx's own transaction, dropped while BEGIN or COMMIT is in flight, can hand the pool a
/// connection with a transaction open or its count of savepoints off by one (sqlx #4393). This one
/// knows what is in flight. Dropped with a tokio runtime at hand it rolls back in a task of its
/// own, bounded, and gives the connection back; otherwise it closes the connection, upon which the
/// server rolls back.
pub(crate) struct Checkout<DB: Backend> {
    held: Held<DB>,
    session: DB::Session,
    stage: Stage,
}

impl<DB: Backend> Checkout<DB> {
    pub(crate) async fn acquire(pool: &Pool<DB>) -> Result<Self, sqlx::Error> {
        let held = Held(Some(pool.acquire().await?));
        Ok(Self { held, session: DB::Session::default(), stage: Stage::Idle })
    }

    pub(crate) async fn begin(&mut self, options: &FenceOptions) -> Result<(), sqlx::Error> {
        self.stage = Stage::Beginning;
        DB::begin(self.held.conn(), &mut self.session, options).await?;
        self.stage = Stage::Open;
        Ok(())
    }

    pub(crate) async fn advance(
        &mut self,
        text: &Text,
        claim: &Claim,
        route: Route,
    ) -> Result<Verdict, sqlx::Error> {
        DB::advance(self.held.conn(), &mut self.session, text, claim, route).await
    }

    pub(crate) async fn commit(&mut self) -> Result<(), NotCommitted> {
        self.stage = Stage::Ending;
        let committed = DB::commit(self.held.conn(), &mut self.session).await;
        self.stage = match &committed {
            Err(NotCommitted::Unknown(_)) => Stage::Broken,
            _ => Stage::Open,
        };
        committed
    }

    /// Rolls back if need be and gives the connection back, or closes it when that fails.
    pub(crate) async fn finish(mut self) {
        if matches!(self.stage, Stage::Beginning | Stage::Broken) {
            return;
        }
        self.stage = Stage::Ending;
        let reset = DB::reset(self.held.conn(), &mut self.session);
        self.stage = match tokio::time::timeout(RESET_TIMEOUT, reset).await {
            Ok(Ok(())) => Stage::Idle,
            Ok(Err(_)) | Err(_) => Stage::Broken,
        };
    }

    /// The connection, for statements that only read.
    pub(crate) fn reading(&mut self) -> &mut DB::Connection {
        self.stage = Stage::Reading;
        self.held.conn()
    }

    /// The connection, for what only closing it ends: that is done however this ends.
    pub(crate) fn for_closing(&mut self) -> &mut DB::Connection {
        self.stage = Stage::Broken;
        self.held.conn()
    }

    /// What was read has been read to its end.
    pub(crate) fn has_read(&mut self) {
        self.stage = Stage::Idle;
    }

    pub(crate) fn conn_ref(&self) -> &DB::Connection {
        self.held.conn_ref()
    }

    pub(crate) fn conn(&mut self) -> &mut DB::Connection {
        self.held.conn()
    }
}

impl<DB: Backend> Drop for Checkout<DB> {
    fn drop(&mut self) {
        let mut held = Held(self.held.0.take());
        if held.0.is_none() {
            return;
        }
        match self.stage {
            Stage::Idle => return held.give_back(),
            Stage::Broken => return,
            stage => {
                if !DB::can_reset(held.conn(), stage) {
                    return;
                }
            }
        }
        let Ok(runtime) = Handle::try_current() else { return };
        let mut session = std::mem::take(&mut self.session);
        runtime.spawn(async move {
            let reset = DB::reset(held.conn(), &mut session);
            if let Ok(Ok(())) = tokio::time::timeout(RESET_TIMEOUT, reset).await {
                held.give_back();
            }
        });
    }
}

impl<DB: Backend> fmt::Debug for Checkout<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checkout").field("stage", &self.stage).finish_non_exhaustive()
    }
}

/// A connection that is closed when it is dropped, and goes back to its pool only when told to.
struct Held<DB: Backend>(Option<PoolConnection<DB>>);

/// The connection is taken out by the one that drops, and by nobody before.
const TAKEN: &str = "the connection is there until it is dropped";

impl<DB: Backend> Held<DB> {
    #[allow(clippy::expect_used, reason = "the connection is taken by `drop` and `give_back` only")]
    fn conn(&mut self) -> &mut DB::Connection {
        self.0.as_mut().expect(TAKEN)
    }

    #[allow(clippy::expect_used, reason = "the connection is taken by `drop` and `give_back` only")]
    fn conn_ref(&self) -> &DB::Connection {
        self.0.as_ref().expect(TAKEN)
    }

    /// Back to the pool, which pings it in a task first. Without a runtime for that task, sqlx
    /// would panic: then it is closed.
    fn give_back(mut self) {
        if Handle::try_current().is_ok() {
            self.0.take();
        }
    }
}

impl<DB: Backend> Drop for Held<DB> {
    fn drop(&mut self) {
        let Some(conn) = self.0.take() else { return };
        if Handle::try_current().is_ok() {
            drop(conn.detach());
            return;
        }
        // A pool with a minimum of connections spawns a task to replace this one, and panics when
        // it cannot. The runtime it gets here is dropped at once, and the task with it.
        match tokio::runtime::Builder::new_current_thread().build() {
            Ok(runtime) => {
                let _entered = runtime.enter();
                drop(conn.detach());
            }
            Err(_) => std::mem::forget(conn),
        }
    }
}
