//! Accepts connections and serves them, so that no client can keep the others out.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use futures_util::future::Either;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tower_service::Service as _;

use super::connections::{Crowd, Place};
use super::tls::Tls;

/// How long the head of a request may take, and a connection be idle.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest head of a request. Names are at most 255 bytes, three times that when encoded.
const MAX_HEAD: usize = 16 * 1024;
const MAX_HEADERS: usize = 64;
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an idle connection may take to close once another needs its place.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// What the process needs beside its connections: database, runtime, logs.
const RESERVED_FILES: u64 = 64;
/// As many connections as there are unless the system allows fewer open files.
const DEFAULT_MAX_CONNECTIONS: usize = 10_000;

/// How many connections fit: as many as the limit of open files leaves.
pub(super) fn max_connections(wanted: Option<usize>) -> Result<usize, String> {
    let fit = open_files().map_or(usize::MAX, |files| {
        usize::try_from(files.saturating_sub(RESERVED_FILES)).unwrap_or(usize::MAX).max(1)
    });
    match wanted {
        Some(wanted) if wanted > fit => Err(format!(
            "more connections than the limit of open files leaves: raise it (ulimit -n) or allow \
             fewer, max-connections=`{wanted}` most=`{fit}`"
        )),
        Some(wanted) => Ok(wanted),
        None => Ok(fit.min(DEFAULT_MAX_CONNECTIONS)),
    }
}

#[cfg(unix)]
fn open_files() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current
}

#[cfg(not(unix))]
fn open_files() -> Option<u64> {
    None
}

/// Serves until `stop` is done, and then until all connections have ended.
pub(super) async fn serve(
    listener: TcpListener,
    app: Router,
    tls: Option<Tls>,
    max_connections: usize,
    stop: impl Future<Output = ()>,
) {
    let crowd = Crowd::new(max_connections);
    // Each connection holds a receiver: when all are gone, all have ended.
    let (stopping, stopped) = watch::channel(());
    let mut stop = pin!(stop);
    let mut full = false;
    loop {
        let accepted = match futures_util::future::select(pin!(listener.accept()), &mut stop).await
        {
            Either::Left((accepted, _)) => accepted,
            Either::Right(((), _)) => break,
        };
        let tcp = match accepted {
            Ok((tcp, _)) => tcp,
            Err(error) => {
                pause_after(&error).await;
                continue;
            }
        };
        let place = crowd.enter();
        if place.is_none() != full {
            full = !full;
            if full {
                tracing::warn!(max_connections, "all connections are busy: newcomers are closed");
            } else {
                tracing::info!("there is place for connections again");
            }
        }
        let Some(place) = place else { continue };
        tokio::spawn(connection(tcp, app.clone(), tls.clone(), place, stopped.clone()));
    }
    drop((listener, stopped));
    let _ = stopping.send(());
    stopping.closed().await;
}

/// A client that is gone already is no reason to wait; having no more files is.
async fn pause_after(error: &io::Error) {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    if !matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset) {
        tracing::error!(%error, "cannot accept connections");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn connection(
    tcp: TcpStream,
    app: Router,
    tls: Option<Tls>,
    place: Arc<Place>,
    mut stopped: watch::Receiver<()>,
) {
    // Answers are small, and each is waited for.
    let _ = tcp.set_nodelay(true);
    let Some(tls) = tls else { return http(tcp, app, place, stopped).await };
    let handshake = tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.accept(tcp));
    let stream = tokio::select! {
        stream = handshake => stream,
        () = place.taken() => return,
        _ = stopped.changed() => return,
    };
    match stream {
        Ok(Ok(stream)) => http(stream, app, place, stopped).await,
        Ok(Err(error)) => tracing::debug!(%error, "no TLS connection came about"),
        Err(_) => tracing::debug!("the TLS handshake took too long"),
    }
}

async fn http<S: AsyncRead + AsyncWrite + Unpin + 'static>(
    stream: S,
    app: Router,
    place: Arc<Place>,
    mut stopped: watch::Receiver<()>,
) {
    let service = service_fn(|request: hyper::Request<Incoming>| {
        let work = place.work();
        let mut app = app.clone();
        async move {
            // Never served: the connection ends with this.
            let Some(_work) = work else {
                return Err(io::Error::other("another took the place"));
            };
            let served: Result<Response, Infallible> = app.call(request.map(Body::new)).await;
            Ok(served.unwrap_or_else(|never| match never {}))
        }
    });
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .max_headers(MAX_HEADERS)
            .max_buf_size(MAX_HEAD)
            .serve_connection(TokioIo::new(stream), service)
    );
    let taken = tokio::select! {
        ended = connection.as_mut() => return note(ended),
        () = place.taken() => true,
        _ = stopped.changed() => false,
    };
    connection.as_mut().graceful_shutdown();
    if taken {
        if let Ok(ended) = tokio::time::timeout(CLOSE_TIMEOUT, connection).await {
            note(ended);
        }
    } else {
        note(connection.await);
    }
}

/// What went wrong on a connection is the business of its client.
fn note(ended: hyper::Result<()>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended");
    }
}
