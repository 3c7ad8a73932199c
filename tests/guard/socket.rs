//! Over a socket, byte for byte: what a client sees that no HTTP library would send.

use std::time::Duration;

use axum::Router;
use axum::routing;
use fencing::guard::FenceLayer;
use fencing::marks::MemoryMarks;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

const LIMIT: Duration = Duration::from_secs(20);

/// A server that is stopped when the test ends.
struct Server {
    address: std::net::SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    async fn start() -> Self {
        let app = Router::new()
            .route("/doc/{id}", routing::put(|_: String| async { "written" }).get(|| async {}))
            .route_layer(FenceLayer::new(MemoryMarks::ephemeral()).resource("doc:{id}"));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { address, task }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Sends one request as it is, and gives the whole answer up to the end of the connection.
    async fn raw(&self, request: &[u8]) -> Answer {
        let mut socket = self.connect().await;
        // The server may close before it has read all.
        let _ = socket.write_all(request).await;
        Answer::read_to_end(&mut socket).await
    }

    /// A PUT with the lines given as the only thing between its fixed ones.
    async fn put(&self, lines: &[u8]) -> Answer {
        let mut request = b"PUT /doc/1 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n".to_vec();
        request.extend_from_slice(lines);
        request.extend_from_slice(b"content-length: 0\r\n\r\n");
        self.raw(&request).await
    }
}

#[derive(Debug)]
struct Answer(String);

impl Answer {
    async fn read_to_end(socket: &mut TcpStream) -> Self {
        let mut bytes = Vec::new();
        // A reset after the answer is the end of it.
        let _ = tokio::time::timeout(LIMIT, socket.read_to_end(&mut bytes)).await.unwrap();
        Self(String::from_utf8(bytes).unwrap())
    }

    fn status(&self) -> &str {
        self.0.get(9..12).unwrap_or("")
    }

    fn kind(&self) -> &str {
        let (_, rest) = self.0.split_once("urn:fencing:problem:").unwrap_or_default();
        rest.split('"').next().unwrap_or_default()
    }
}

/// Case 1: bytes that are no text are malformed, and the connection gets an answer. Outer white
/// space is no part of a header's value (RFC 9110, section 5.5); inner white space is.
#[tokio::test]
async fn malformed_bytes_get_an_answer() {
    let server = Server::start().await;
    assert_eq!(server.put(b"x-fencing-token: 5\r\n").await.status(), "200");
    assert_eq!(server.put(b"X-FENCING-Token:\t 5 \t\r\n").await.status(), "200");
    for value in [
        b"\xd1\x82".as_slice(),
        b"\xff",
        b"5 6",
        b"5\t6",
        b"+5",
        b"",
        b"   ",
        b"5,5",
        b"007",
        b"5\x80",
    ] {
        let lines = [b"x-fencing-token: ", value, b"\r\n"].concat();
        let answer = server.put(&lines).await;
        assert_eq!((answer.status(), answer.kind()), ("400", "malformed-token"), "{value:?}");
    }
    assert_eq!(server.put(b"x-fencing-token: 4\r\n").await.kind(), "stale-token");
}

/// Case 2, on the wire, where the case of the name does not matter.
#[tokio::test]
async fn two_lines_are_malformed() {
    let server = Server::start().await;
    for lines in [
        "x-fencing-token: 10\r\nx-fencing-token: 3\r\n",
        "x-fencing-token: 3\r\nX-Fencing-Token: 10\r\n",
        "x-fencing-token: 10\r\na: b\r\nX-FENCING-TOKEN: 10\r\n",
    ] {
        let answer = server.put(lines.as_bytes()).await;
        assert_eq!((answer.status(), answer.kind()), ("400", "malformed-token"), "{lines}");
    }
    assert_eq!(server.put(b"x-fencing-token: 1\r\n").await.status(), "200");
}

/// A name with an underscore is another name. Some proxies make one of the two of it, which is
/// why the answer must not be that there was no token problem.
#[tokio::test]
async fn an_underscore_is_no_hyphen() {
    let server = Server::start().await;
    assert_eq!(server.put(b"x_fencing_token: 5\r\n").await.kind(), "missing-token");
}

#[tokio::test]
async fn long_values_and_floods_of_headers_get_an_answer_and_hurt_nobody() {
    let server = Server::start().await;
    let long = [b"x-fencing-token: ".as_slice(), &[b'9'; 64 * 1024], b"\r\n"].concat();
    assert_eq!(server.put(&long).await.kind(), "malformed-token");
    // Hyper takes a hundred header lines.
    let some = b"x-fencing-token: 5\r\n".repeat(90);
    assert_eq!(server.put(&some).await.kind(), "malformed-token");
    let flood = b"x-fencing-token: 5\r\n".repeat(100_000);
    let answer = server.put(&flood).await;
    assert!(["431", "400", ""].contains(&answer.status()), "{answer:?}");
    assert_eq!(server.put(b"x-fencing-token: 5\r\n").await.status(), "200");
}

/// A client that is still sending a large body when it is refused must get to see why: else it
/// takes the end of the connection for a fault and tries again.
#[tokio::test]
async fn a_refusal_can_be_read_though_a_large_body_was_not() {
    const SIZE: usize = 32 * 1024 * 1024;
    let server = Server::start().await;
    assert_eq!(server.put(b"x-fencing-token: 34\r\n").await.status(), "200");
    for round in 0..10 {
        let (mut read, mut write) = server.connect().await.into_split();
        let sending = tokio::spawn(async move {
            let head = format!(
                "PUT /doc/1 HTTP/1.1\r\nhost: x\r\nx-fencing-token: 33\r\ncontent-length: {SIZE}\r\n\r\n"
            );
            write.write_all(head.as_bytes()).await?;
            let piece = vec![b'x'; 64 * 1024];
            for _ in 0..SIZE / piece.len() {
                write.write_all(&piece).await?;
            }
            // Kept open: it is the server that ends the connection.
            Ok::<_, std::io::Error>(write)
        });
        let mut bytes = Vec::new();
        let _ = tokio::time::timeout(LIMIT, read.read_to_end(&mut bytes)).await.unwrap();
        let answer = Answer(String::from_utf8(bytes).unwrap());
        assert_eq!((answer.status(), answer.kind()), ("412", "stale-token"), "round {round}");
        assert!(answer.0.ends_with("\"last_token\":34}"), "the whole document: {answer:?}");
        let _ = tokio::time::timeout(LIMIT, sending).await.unwrap().unwrap();
    }
}

/// A client that asks first does not send the body at all.
#[tokio::test]
async fn a_client_that_asks_first_is_refused_before_it_sends() {
    let server = Server::start().await;
    assert_eq!(server.put(b"x-fencing-token: 34\r\n").await.status(), "200");
    let answer = server
        .raw(
            b"PUT /doc/1 HTTP/1.1\r\nhost: x\r\nx-fencing-token: 33\r\nconnection: close\r\n\
              expect: 100-continue\r\ncontent-length: 1000000\r\n\r\n",
        )
        .await;
    assert_eq!((answer.status(), answer.kind()), ("412", "stale-token"));
    assert!(!answer.0.contains("100 Continue"), "{answer:?}");
}

/// What was in the body of a refused request is never read as the next request.
#[tokio::test]
async fn the_body_of_a_refused_request_is_no_request() {
    let server = Server::start().await;
    assert_eq!(server.put(b"x-fencing-token: 34\r\n").await.status(), "200");
    let smuggled =
        "PUT /doc/1 HTTP/1.1\r\nhost: x\r\nx-fencing-token: 99\r\ncontent-length: 0\r\n\r\n";
    let refused = format!(
        "PUT /doc/1 HTTP/1.1\r\nhost: x\r\nx-fencing-token: 33\r\ncontent-length: {}\r\n\r\n{smuggled}",
        smuggled.len()
    );
    let after = "PUT /doc/1 HTTP/1.1\r\nhost: x\r\nx-fencing-token: 34\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok";
    let answer = server.raw(format!("{refused}{after}").as_bytes()).await;
    assert_eq!((answer.status(), answer.kind()), ("412", "stale-token"));
    assert!(!answer.0.contains("x-fencing-token: 99"), "{answer:?}");
    // 34 still holds.
    assert_eq!(server.put(b"x-fencing-token: 34\r\n").await.status(), "200");
}

/// A refusal is an answer, not the end of the connection.
#[tokio::test]
async fn a_connection_lives_on_after_a_refusal() {
    let server = Server::start().await;
    let mut socket = server.connect().await;
    let mut requests = Vec::new();
    for (token, close) in [("34", ""), ("33", ""), ("", ""), ("34", "connection: close\r\n")] {
        requests.extend_from_slice(
            format!(
                "PUT /doc/1 HTTP/1.1\r\nhost: x\r\n{close}{}content-length: 0\r\n\r\n",
                if token.is_empty() {
                    String::new()
                } else {
                    format!("x-fencing-token: {token}\r\n")
                },
            )
            .as_bytes(),
        );
    }
    socket.write_all(&requests).await.unwrap();
    let answer = Answer::read_to_end(&mut socket).await;
    let codes: Vec<_> = answer
        .0
        .match_indices("HTTP/1.1 ")
        .map(|(at, it)| &answer.0[at + it.len()..][..3])
        .collect();
    assert_eq!(codes, ["200", "412", "428", "200"]);
}

/// The answer to HEAD has no body, a refusal neither.
#[tokio::test]
async fn a_refused_head_has_no_body() {
    let server = Server::start().await;
    assert_eq!(server.put(b"x-fencing-token: 34\r\n").await.status(), "200");
    let answer = server
        .raw(b"HEAD /doc/1 HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-fencing-token: 33\r\n\r\n")
        .await;
    assert_eq!(answer.status(), "412");
    assert!(answer.0.ends_with("\r\n\r\n"), "{answer:?}");
}
