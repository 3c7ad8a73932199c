//! The owner token and the key are for the server alone.

use std::cell::RefCell;
use std::fmt::Write;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::{eventually, secs, setup, skip_pause_after, soon};

/// Everything that is logged on this thread, by this crate and those below it, at every level.
///
/// It is the subscriber of the whole process, because one for a single thread can miss events that
/// other threads were the first to meet.
struct Everything;

thread_local! {
    static LOG: RefCell<String> = const { RefCell::new(String::new()) };
}

struct Fields<'a>(&'a mut String);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        write!(self.0, " {}={value:?}", field.name()).unwrap();
    }
}

impl Subscriber for Everything {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, span: &Attributes<'_>) -> Id {
        LOG.with_borrow_mut(|log| span.record(&mut Fields(log)));
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, values: &Record<'_>) {
        LOG.with_borrow_mut(|log| values.record(&mut Fields(log)));
    }
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        LOG.with_borrow_mut(|log| {
            write!(log, "\n{} {}:", metadata.level(), metadata.target()).unwrap();
            event.record(&mut Fields(log));
        });
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// A whole life: failures of an acquire, a renewal and a release, and a loss.
#[tokio::test(flavor = "current_thread")]
async fn i7_no_log_shows_an_owner_token_or_key() {
    tracing::subscriber::set_global_default(Everything).unwrap();
    let setup = setup().await;
    let (mut server, clock) = (setup.server, setup.clock);
    let client = setup.client.with_key("opensesame").unwrap();

    let acquire = tokio::spawn(client.acquire("r").ttl(secs(9)).wait(secs(9)).into_future());
    let call = server.next().await;
    let secret = call.secret();
    skip_pause_after(&clock, || call.html(502)).await;
    server.next().await.grant(33, 0);
    let lease = soon(acquire).await.unwrap().unwrap().unwrap();
    let mut shown = format!("{lease:?}");
    soon(clock.until_sleeping(1)).await;
    for _ in 0..3 {
        clock.advance(secs(1));
        soon(clock.until_sleeping(1)).await;
    }
    let call = server.next_renewal().await;
    skip_pause_after(&clock, || call.problem(503, "lock-unavailable")).await;
    server.next_renewal().await.problem(403, "not-yours");
    write!(shown, "{:?}", soon(lease.lost()).await).unwrap();
    let release = tokio::spawn(lease.release());
    let call = server.next_release().await;
    skip_pause_after(&clock, || drop(call)).await;
    server.next_release().await.problem(401, "unauthenticated");
    write!(shown, "{:?}", soon(release).await.unwrap().unwrap_err()).unwrap();
    eventually("nobody sleeps", || clock.sleeping() == 0).await;

    let log = LOG.take();
    assert!(log.contains("a renewal failed") && log.contains("the lease is lost"), "{log}");
    for text in [&log, &shown] {
        assert!(!text.contains(&secret) && !text.contains("opensesame"), "{text}");
    }
}
