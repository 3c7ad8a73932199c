//! The routes, and how they are fenced.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::put;
use fencing::guard::{FenceLayer, Gate, GatePermit};
use fencing::marks::Marks;
use fencing::{Claim, Problem, ProblemKind, Resource};

use super::folder::{Folder, NotPublished};

const NO_SUCH_REPORT: ProblemKind =
    ProblemKind::new("no-such-report", StatusCode::NOT_FOUND, "There is no such report");
const READ_FAILED: ProblemKind = ProblemKind::new(
    "read-failed",
    StatusCode::INTERNAL_SERVER_ERROR,
    "The report could not be read",
);

pub(crate) fn router(folder: Arc<Folder>, marks: impl Marks) -> Router {
    let fence = FenceLayer::new(marks).resource_with(resource).exclusive(Gate::new());
    Router::new()
        .route("/reports/{name}", put(write).get(read))
        .route_layer(fence)
        .with_state(folder)
}

/// A report has one name and one spelling of it, so that one file has one mark.
fn resource(parts: &Parts) -> Result<Resource, Problem> {
    let name = parts.uri.path().strip_prefix("/reports/").unwrap_or_default();
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if name.is_empty() || name.len() > 64 || !name.bytes().all(plain) {
        return Err(Problem::new(ProblemKind::INVALID_RESOURCE)
            .with_detail("the name of a report is 1 to 64 of a-z, 0-9 and -"));
    }
    Ok(Resource::new(format!("report:{name}"))?)
}

async fn write(
    claim: Claim,
    permit: GatePermit,
    Path(name): Path<String>,
    State(folder): State<Arc<Folder>>,
    headers: HeaderMap,
    content: Bytes,
) -> Result<StatusCode, Problem> {
    let pause = demo_pause(&headers)?;
    let named = claim.clone();
    let writing = tokio::task::spawn_blocking(move || {
        // The permit lives as long as this closure does, which nobody can cancel. When a newer
        // token waits for it, it gives up while that does no harm.
        folder.publish(&name, &claim, &content, || {
            sleep_until_overtaken(&permit, pause);
            !permit.is_overtaken()
        })
    });
    let problem = match writing.await {
        Ok(Ok(())) => return Ok(StatusCode::NO_CONTENT),
        Ok(Err(NotPublished::CalledOff)) => Problem::new(ProblemKind::STALE_TOKEN)
            .with_detail("a newer token came before the report was published"),
        Ok(Err(NotPublished::Failed(error))) => {
            tracing::error!(%error, "a report could not be written");
            Problem::new(ProblemKind::WRITE_FAILED)
        }
        Ok(Err(NotPublished::Unknown(error))) => {
            tracing::error!(%error, "a report was renamed, and the folder could not be synced");
            Problem::new(ProblemKind::OUTCOME_UNKNOWN)
        }
        Err(error) => {
            tracing::error!(%error, "the writer of a report panicked");
            Problem::new(ProblemKind::OUTCOME_UNKNOWN)
        }
    };
    Err(problem.with_claim(&named))
}

/// Anybody may read. A holder that reads to write sends its token, so that no older one writes in
/// between.
async fn read(
    Path(name): Path<String>,
    State(folder): State<Arc<Folder>>,
) -> Result<([(&'static str, String); 1], Vec<u8>), Problem> {
    // Without a permit: a read that is cut short harms nobody, and sees one report or the next.
    let report = tokio::task::spawn_blocking(move || folder.read(&name)).await;
    match report {
        Ok(Ok(Some(report))) => {
            let token = report.claim.token().to_string();
            Ok(([("x-report-token", token)], report.content))
        }
        Ok(Ok(None)) => Err(Problem::new(NO_SUCH_REPORT)),
        Ok(Err(error)) => {
            tracing::error!(error, "a report could not be read");
            Err(Problem::new(READ_FAILED))
        }
        Err(_) => Err(Problem::new(READ_FAILED)),
    }
}

fn demo_pause(headers: &HeaderMap) -> Result<Duration, Problem> {
    let Some(ms) = headers.get("x-demo-pause-ms") else { return Ok(Duration::ZERO) };
    let ms = ms.to_str().ok().and_then(|ms| ms.parse().ok()).filter(|ms| *ms <= 8000);
    ms.map(Duration::from_millis)
        .ok_or_else(|| Problem::invalid_field("X-Demo-Pause-Ms", "must be 0 to 8000"))
}

fn sleep_until_overtaken(permit: &GatePermit, pause: Duration) {
    const STEP: Duration = Duration::from_millis(10);
    let mut slept = Duration::ZERO;
    while slept < pause && !permit.is_overtaken() {
        thread::sleep(STEP);
        slept += STEP;
    }
}
