use std::fmt;
use std::fmt::Write as _;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The secret of one grant, needed to renew and release it: 16 to 128 visible ASCII characters.
///
/// One owner token is one grant. It is shown by no `Debug` and compared by nobody but the store of
/// locks, which keeps only its hash.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct OwnerToken(Box<str>);

impl OwnerToken {
    /// A new one with 128 bits from the operating system, as 32 hex digits.
    ///
    /// # Errors
    ///
    /// When the operating system gives no randomness.
    pub fn random() -> Result<Self, getrandom::Error> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes)?;
        let mut text = String::with_capacity(32);
        for byte in bytes {
            // Writing to a String does not fail.
            let _ = write!(text, "{byte:02x}");
        }
        Ok(Self(text.into()))
    }

    /// The secret itself.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// What a store keeps of it: the SHA-256 hash of its text.
    #[cfg(feature = "server")]
    #[must_use]
    pub fn hash(&self) -> OwnerTokenHash {
        use sha2::Digest;
        OwnerTokenHash(sha2::Sha256::digest(self.0.as_bytes()).into())
    }
}

impl FromStr for OwnerToken {
    type Err = InvalidOwnerToken;

    fn from_str(text: &str) -> Result<Self, InvalidOwnerToken> {
        let visible = text.bytes().all(|byte| byte.is_ascii_graphic());
        if visible && (16..=128).contains(&text.len()) {
            Ok(Self(text.into()))
        } else {
            Err(InvalidOwnerToken(()))
        }
    }
}

impl TryFrom<String> for OwnerToken {
    type Error = InvalidOwnerToken;

    fn try_from(text: String) -> Result<Self, InvalidOwnerToken> {
        text.parse()
    }
}

impl From<OwnerToken> for String {
    fn from(token: OwnerToken) -> Self {
        token.0.into()
    }
}

impl fmt::Debug for OwnerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OwnerToken(<secret>)")
    }
}

/// What was offered as an owner token is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InvalidOwnerToken(());

impl fmt::Display for InvalidOwnerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an owner token is 16 to 128 visible ASCII characters")
    }
}

impl std::error::Error for InvalidOwnerToken {}

/// The hash of an [`OwnerToken`]. Comparing two takes the same time wherever they differ.
#[cfg(feature = "server")]
#[derive(Clone, Copy)]
pub struct OwnerTokenHash([u8; 32]);

#[cfg(feature = "server")]
impl OwnerTokenHash {
    /// A hash out of a store; `None` when it is not 32 bytes long.
    #[must_use]
    pub fn from_slice(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// The 32 bytes for a store.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

#[cfg(feature = "server")]
impl PartialEq for OwnerTokenHash {
    fn eq(&self, other: &Self) -> bool {
        use subtle::ConstantTimeEq;
        self.0.ct_eq(&other.0).into()
    }
}

#[cfg(feature = "server")]
impl Eq for OwnerTokenHash {}

#[cfg(feature = "server")]
impl fmt::Debug for OwnerTokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OwnerTokenHash(<hash>)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_visible_ascii_of_the_right_length() {
        assert!("0123456789abcdef".parse::<OwnerToken>().is_ok());
        for bad in
            ["", "0123456789abcde", "0123456789abcde ", "0123456789abcdé", "0123456789abcd\n"]
        {
            assert!(bad.parse::<OwnerToken>().is_err(), "{bad:?}");
        }
        assert!("x".repeat(128).parse::<OwnerToken>().is_ok());
        assert!("x".repeat(129).parse::<OwnerToken>().is_err());
    }

    #[test]
    fn it_is_random_and_never_printed() {
        let (a, b) = (OwnerToken::random().unwrap(), OwnerToken::random().unwrap());
        assert_ne!(a, b);
        assert!(!format!("{a:?}").contains(a.reveal()));
    }
}
