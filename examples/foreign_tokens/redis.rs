//! A lock of Redis (SET NX PX) with a counter beside it, in one script.

use std::time::Duration;

use fencing::Token;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufStream};
use tokio::net::TcpStream;

use crate::Error;

/// Takes the lock and counts in one step. In two, a client that is paused between them counts after
/// its successor, and has the higher token of the two. The counter has no TTL and is never deleted.
const LOCK: &str = "\
if redis.call('EXISTS', KEYS[1]) == 1 then return false end
local token = redis.call('INCR', KEYS[2])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return token";

/// Deletes the lock of this owner and nobody else's.
const UNLOCK: &str = "\
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])";

/// A connection, with as much of the protocol (RESP2) as this needs.
pub(crate) struct Redis(BufStream<TcpStream>);

/// An answer of the server.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Nil,
    Integer(i64),
    Text(String),
}

impl Redis {
    pub(crate) async fn connect(address: &str) -> Result<Self, Error> {
        let address = address.trim_start_matches("redis://");
        let stream = TcpStream::connect(address)
            .await
            .map_err(|error| format!("no Redis to be reached: {error}, address=`{address}`"))?;
        Ok(Self(BufStream::new(stream)))
    }

    /// The token if the lock was free. `owner` must be random in real life: it is what proves that a
    /// lock is one's own.
    pub(crate) async fn lock(
        &mut self,
        name: &str,
        owner: &str,
        ttl: Duration,
    ) -> Result<Option<Token>, Error> {
        let (lock, counter) = keys(name);
        let ttl = ttl.as_millis().to_string();
        match self.call(&["EVAL", LOCK, "2", &lock, &counter, owner, &ttl]).await? {
            Reply::Nil => Ok(None),
            Reply::Integer(token) => Ok(Some(Token::new(token)?)),
            Reply::Text(text) => Err(format!("an unexpected answer of Redis: {text}").into()),
        }
    }

    /// Whether there was a lock of this owner.
    pub(crate) async fn unlock(&mut self, name: &str, owner: &str) -> Result<bool, Error> {
        let (lock, _) = keys(name);
        Ok(self.call(&["EVAL", UNLOCK, "1", &lock, owner]).await? == Reply::Integer(1))
    }

    pub(crate) async fn call(&mut self, words: &[&str]) -> Result<Reply, Error> {
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        self.0.write_all(request.as_bytes()).await?;
        self.0.flush().await?;

        let mut line = String::new();
        self.0.read_line(&mut line).await?;
        let line = line.strip_suffix("\r\n").ok_or("the connection to Redis has ended")?;
        match line.split_at_checked(1).unwrap_or_default() {
            ("+", text) => Ok(Reply::Text(text.to_owned())),
            (":", number) => Ok(Reply::Integer(number.parse()?)),
            ("$", "-1") => Ok(Reply::Nil),
            ("$", length) => {
                let mut bytes = vec![0; length.parse::<usize>()? + 2];
                self.0.read_exact(&mut bytes).await?;
                bytes.truncate(bytes.len() - 2);
                Ok(Reply::Text(String::from_utf8(bytes)?))
            }
            _ => Err(format!("an error of Redis: {line}").into()),
        }
    }
}

/// The braces keep the two keys on one node of a cluster, which scripts need.
pub(crate) fn keys(name: &str) -> (String, String) {
    (format!("{{{name}}}:lock"), format!("{{{name}}}:token"))
}
