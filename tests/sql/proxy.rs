//! A proxy between client and server that can be told to stop at a statement.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};

use crate::support::{Db, Options, Server};

/// What to do when a statement goes by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Then {
    /// Cut the connection before the server gets it.
    CutBefore,
    /// Let the server answer, and cut the connection in place of passing the answer on.
    CutAfter,
    /// Hold it back until [`Proxy::release`].
    Hold,
}

/// Stops when it is dropped, with all its connections.
pub(crate) struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    task: tokio::task::JoinHandle<()>,
}

struct Shared {
    at: Mutex<Option<(&'static str, Then)>>,
    seen: Notify,
    release: Notify,
    cut: watch::Sender<u32>,
}

impl Proxy {
    pub(crate) async fn before<H: Server>(db: &Db<H>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = H::port(&db.options);
        let shared = Arc::new(Shared {
            at: Mutex::new(None),
            seen: Notify::new(),
            release: Notify::new(),
            cut: watch::Sender::new(0),
        });
        let task = tokio::spawn({
            let shared = Arc::clone(&shared);
            async move {
                loop {
                    let (client, _) = listener.accept().await.unwrap();
                    let server = TcpStream::connect(("127.0.0.1", server)).await.unwrap();
                    tokio::spawn(pass(client, server, Arc::clone(&shared)));
                }
            }
        });
        Self { port, shared, task }
    }

    pub(crate) fn options<H: Server>(&self, db: &Db<H>) -> Options<H> {
        H::through(db.options.clone(), self.port)
    }

    /// The next time `text` goes to the server, do that.
    pub(crate) fn at(&self, text: &'static str, then: Then) {
        *self.shared.at.lock().unwrap() = Some((text, then));
    }

    /// Waits until it has come.
    pub(crate) async fn seen(&self) {
        self.shared.seen.notified().await;
    }

    pub(crate) fn release(&self) {
        self.shared.release.notify_one();
    }

    /// Cuts all connections now.
    pub(crate) fn cut(&self) {
        self.shared.cut.send_modify(|n| *n += 1);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
        self.cut();
    }
}

async fn pass(mut client: TcpStream, mut server: TcpStream, shared: Arc<Shared>) {
    let mut cut = shared.cut.subscribe();
    let (mut up, mut down) = (vec![0; 65536], vec![0; 65536]);
    let mut cut_after = false;
    loop {
        tokio::select! {
            _ = cut.changed() => return,
            n = client.read(&mut up) => {
                let n = n.unwrap_or(0);
                if n == 0 {
                    return;
                }
                let sent = String::from_utf8_lossy(&up[..n]).into_owned();
                let hit = {
                    let mut at = shared.at.lock().unwrap();
                    match *at {
                        Some((text, then)) if sent.contains(text) => {
                            *at = None;
                            Some(then)
                        }
                        _ => None,
                    }
                };
                if hit.is_some() {
                    shared.seen.notify_one();
                }
                match hit {
                    Some(Then::CutBefore) => return,
                    Some(Then::CutAfter) => cut_after = true,
                    Some(Then::Hold) => tokio::select! {
                        () = shared.release.notified() => {}
                        _ = cut.changed() => return,
                    },
                    None => {}
                }
                if server.write_all(&up[..n]).await.is_err() {
                    return;
                }
            }
            n = server.read(&mut down) => {
                let n = n.unwrap_or(0);
                if n == 0 || cut_after || client.write_all(&down[..n]).await.is_err() {
                    return;
                }
            }
        }
    }
}
