//! What goes over the wire between the lock endpoint and its clients, and the limits of it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::OwnerToken;
use crate::{Resource, Token};

/// The header that may carry the owner token of a `DELETE`, whose body proxies may strip.
pub const OWNER_TOKEN_HEADER: &str = "x-lock-owner-token";
/// The longest `owner`, in bytes.
pub const MAX_OWNER_LEN: usize = 255;
/// The longest time an acquire may wait.
pub const MAX_WAIT: Duration = Duration::from_mins(1);
/// The longest TTL, unless the server is told otherwise.
pub const DEFAULT_MAX_TTL: Duration = Duration::from_hours(24);
/// The longest body the endpoint reads, in bytes.
pub const MAX_BODY_LEN: usize = 64 * 1024;

/// The body of `POST /locks/{resource}`.
#[derive(Clone, Debug, Serialize)]
pub struct AcquireBody<'a> {
    /// A label for people: who takes the lock. Public.
    pub owner: &'a str,
    /// How long the grant lives unless it is renewed, in milliseconds.
    pub ttl_ms: u64,
    /// How long to wait for the lock while another holds it, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
    /// No renewal reaches beyond this long after the grant, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_hold_ms: Option<u64>,
    /// The secret of the grant; the server makes one when there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner_token: Option<&'a OwnerToken>,
}

/// The body of `POST /locks/{resource}/renew`.
#[derive(Clone, Debug, Serialize)]
pub struct RenewBody<'a> {
    /// The secret of the grant.
    pub owner_token: &'a OwnerToken,
    /// How long the grant lives from now on, in milliseconds.
    pub ttl_ms: u64,
}

/// A grant as the endpoint shows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LockView {
    /// What is held.
    pub resource: Resource,
    /// Who holds it.
    pub owner: String,
    /// The fencing token of the grant.
    pub token: Token,
    /// When it was granted, RFC 3339 in UTC with milliseconds, by the store's clock.
    pub acquired_at: String,
    /// When it ends unless it is renewed, like `acquired_at`.
    pub expires_at: String,
    /// How long it still lives, in milliseconds, at least 1.
    pub remaining_ms: u64,
    /// The secret of the grant: only in the answer to the one who acquired it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_token: Option<OwnerToken>,
}

/// The answer to an acquire. Both are 200: that another holds the lock is no error.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum AcquireAnswer {
    /// `{"acquired":true,"lock":{...},"waited_ms":n}`
    Acquired {
        /// Always `true`.
        acquired: True,
        /// The grant, with its secret.
        lock: LockView,
        /// How long the request waited at the server before it was granted, in milliseconds.
        waited_ms: u64,
    },
    /// `{"acquired":false,"resource":"...","retry_after_ms":n}`
    Held {
        /// Always `false`.
        acquired: False,
        /// What another holds.
        resource: Resource,
        /// When to ask again, in milliseconds.
        retry_after_ms: u64,
    },
}

/// The answer to `GET /locks/{resource}/token`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TokenView {
    /// The resource asked for.
    pub resource: Resource,
    /// The highest token granted for it, or the floor where that is higher.
    pub token: Token,
}

macro_rules! literal_bool {
    ($name:ident, $value:literal, $doc:literal) => {
        #[doc = $doc]
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
        #[serde(try_from = "bool", into = "bool")]
        pub struct $name;

        impl From<$name> for bool {
            fn from(_: $name) -> Self {
                $value
            }
        }

        impl TryFrom<bool> for $name {
            type Error = &'static str;

            fn try_from(value: bool) -> Result<Self, Self::Error> {
                if value == $value { Ok(Self) } else { Err("the other boolean was expected") }
            }
        }
    };
}

literal_bool!(True, true, "The JSON literal `true`.");
literal_bool!(False, false, "The JSON literal `false`.");
