//! Keys: who may do what at the endpoint.

mod file;

use std::fmt;
use std::fmt::Write as _;
use std::sync::{Arc, PoisonError, RwLock};

use http::HeaderMap;
use http::header::AUTHORIZATION;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

pub use self::file::InvalidKeys;
use crate::{Problem, ProblemKind, Resource};

/// What a key may be used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Role {
    /// To acquire, renew and release.
    Lock,
    /// To look at locks and tokens.
    Read,
    /// To scrape the metrics, which name no resource.
    Metrics,
    /// All of the above.
    Admin,
}

impl Role {
    const ALL: [(&'static str, Self); 4] = [
        ("lock", Self::Lock),
        ("read", Self::Read),
        ("metrics", Self::Metrics),
        ("admin", Self::Admin),
    ];
}

/// A key that was just made: 256 random bits, so that a fast hash of it is as good as a slow one.
///
/// The file of keys has its [digest](Self::digest) only. No `Debug` shows it.
#[derive(Clone)]
pub struct AccessKey(Box<str>);

impl AccessKey {
    /// What every key begins with, so that scanners for leaked secrets can find it.
    pub const PREFIX: &'static str = "fencing_key_";

    /// A new one.
    ///
    /// # Errors
    ///
    /// When the operating system gives no randomness.
    pub fn random() -> Result<Self, getrandom::Error> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes)?;
        Ok(Self(format!("{}{}", Self::PREFIX, hex(&bytes)).into()))
    }

    /// The key itself.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// What the file of keys has of it: `sha256:` and 64 hex digits.
    #[must_use]
    pub fn digest(&self) -> String {
        format!("sha256:{}", hex(&digest(self.0.as_bytes())))
    }
}

impl fmt::Debug for AccessKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AccessKey(<secret>)")
    }
}

fn digest(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a String does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The keys of a file.
///
/// One key a line: a name for people and logs, the SHA-256 digest of the key, its roles, and what
/// its resources begin with. What follows a `#` at the beginning of a line is a comment.
///
/// ```text
/// # name     digest                        roles      resources
/// worker-1   sha256:2c26b46b68ffc68f...    lock,read  inventory: report%20
/// batch      sha256:fcde2b2edba56bf4...    lock       =nightly-batch
/// scraper    sha256:baa5a0964d3320fb...    metrics    *
/// ```
///
/// `inventory:` reaches every resource whose name begins so, `=nightly-batch` the one of that name,
/// `*` all. `inventory:item:1` reaches `inventory:item:10` too: end a prefix with what separates
/// the parts of your names. Names are written as in a URL: `%20` is a space. While a key is
/// exchanged for another, both may stand there under the same name.
///
/// ```
/// use fencing::lock::{AccessKey, KeyRing, Keys, Role};
/// use fencing::Resource;
/// use http::header::{AUTHORIZATION, HeaderMap};
///
/// let key = AccessKey::random()?;
/// let keys: Keys = format!("worker-1 {} lock inventory:", key.digest()).parse()?;
/// let ring = KeyRing::new(keys);
///
/// let mut headers = HeaderMap::new();
/// headers.insert(AUTHORIZATION, format!("Bearer {}", key.reveal()).parse()?);
/// let may = |name| ring.authorize(&headers, Role::Lock, Some(&Resource::new(name).unwrap()));
/// assert_eq!(&*may("inventory:item:1")?, "worker-1");
/// assert_eq!(may("orders").unwrap_err().status(), 403);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Keys(Vec<Key>);

#[derive(Clone)]
struct Key {
    name: Arc<str>,
    digest: [u8; 32],
    roles: Vec<Role>,
    reach: Vec<Reach>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Reach {
    All,
    Prefix(Box<str>),
    Exactly(Resource),
}

impl Keys {
    /// How many there are.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "there is always one")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Looks at every key, so that the time it takes does not tell which one came close.
    fn find(&self, presented: &[u8]) -> Option<&Key> {
        let presented = digest(presented);
        let mut found = None;
        for key in &self.0 {
            if bool::from(key.digest.ct_eq(&presented)) {
                found = Some(key);
            }
        }
        found
    }
}

impl Key {
    fn may(&self, role: Role, resource: Option<&Resource>) -> bool {
        let has_role = self.roles.iter().any(|has| *has == role || *has == Role::Admin);
        has_role && resource.is_none_or(|resource| self.reach.iter().any(|r| r.covers(resource)))
    }
}

impl Reach {
    fn covers(&self, resource: &Resource) -> bool {
        match self {
            Self::All => true,
            Self::Prefix(prefix) => resource.as_str().starts_with(&**prefix),
            Self::Exactly(name) => name == resource,
        }
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|key| &key.name)).finish()
    }
}

/// The keys that are valid now. Clones share them, so they can be exchanged while a server runs.
#[derive(Clone, Debug)]
pub struct KeyRing(Arc<RwLock<Arc<Keys>>>);

impl KeyRing {
    /// A ring of keys.
    #[must_use]
    pub fn new(keys: Keys) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(keys))))
    }

    /// From now on these are valid, and no others. Requests that were let in go on.
    pub fn replace(&self, keys: Keys) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(keys);
    }

    /// Lets a request in whose `Authorization: Bearer` key has the role and reaches the resource,
    /// where it is about one. Gives the name of the key.
    ///
    /// # Errors
    ///
    /// [`UNAUTHENTICATED`](ProblemKind::UNAUTHENTICATED) without exactly one valid key,
    /// [`FORBIDDEN`](ProblemKind::FORBIDDEN) when it does not reach that far.
    pub fn authorize(
        &self,
        headers: &HeaderMap,
        role: Role,
        resource: Option<&Resource>,
    ) -> Result<Arc<str>, Problem> {
        self.admit(headers)?.check(role, resource)
    }

    /// Finds the key of a request.
    pub(crate) fn admit(&self, headers: &HeaderMap) -> Result<Caller, Problem> {
        let unknown = || {
            Problem::new(ProblemKind::UNAUTHENTICATED)
                .with_detail("send a valid key in one header Authorization: Bearer KEY")
        };
        let presented = bearer(headers).ok_or_else(unknown)?;
        let keys = Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner));
        keys.find(presented).cloned().map(Caller).ok_or_else(unknown)
    }
}

/// Who presented a valid key.
pub(crate) struct Caller(Key);

impl Caller {
    pub(crate) fn check(&self, role: Role, on: Option<&Resource>) -> Result<Arc<str>, Problem> {
        if self.0.may(role, on) {
            return Ok(Arc::clone(&self.0.name));
        }
        let problem = Problem::new(ProblemKind::FORBIDDEN);
        Err(on.into_iter().fold(problem, Problem::with_resource))
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.0.name
    }
}

/// The credentials of exactly one header of the scheme Bearer (RFC 6750, section 2.1). The name of
/// a scheme is compared without case (RFC 9110, section 11.1).
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return None };
    let (scheme, rest) = value.as_bytes().split_at_checked(7)?;
    let key = rest.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"bearer ") && !key.is_empty()).then_some(key)
}

#[cfg(test)]
mod tests;
