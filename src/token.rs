use std::fmt;
use std::num::NonZeroI64;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A fencing token: a positive integer that grows with every grant of a resource.
///
/// Valid tokens are 1 to 9223372036854775807 (2^63 - 1), the positive half of an SQL `BIGINT`.
/// Nothing is clamped or wrapped on the way in: what does not fit is [`InvalidToken`].
///
/// The text form, in the `X-Fencing-Token` header and everywhere else, is one to nineteen ASCII
/// digits with no sign, no leading zero and no white space.
///
/// ```
/// use fencing::Token;
///
/// let token: Token = "34".parse()?;
/// assert_eq!(token.get(), 34);
/// assert!("+34".parse::<Token>().is_err());
/// assert!("034".parse::<Token>().is_err());
/// assert!("0".parse::<Token>().is_err());
/// # Ok::<(), fencing::InvalidToken>(())
/// ```
///
/// With serde a token is a JSON number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "i64", into = "i64")]
pub struct Token(NonZeroI64);

impl Token {
    /// The lowest token, 1.
    pub const MIN: Self = Self(match NonZeroI64::new(1) {
        Some(n) => n,
        None => NonZeroI64::MAX,
    });
    /// The highest token a guard takes, 2^63 - 1.
    pub const MAX: Self = Self(NonZeroI64::MAX);
    /// The highest token the lock endpoint grants, 2^53 - 1: up to there a JSON number is exact
    /// for every client (RFC 8259, section 6).
    pub const MAX_GRANTED: Self = Self(match NonZeroI64::new((1 << 53) - 1) {
        Some(n) => n,
        None => NonZeroI64::MAX,
    });

    /// A token from an integer.
    ///
    /// # Errors
    ///
    /// [`InvalidToken`] for 0 and negative numbers.
    pub const fn new(value: i64) -> Result<Self, InvalidToken> {
        match NonZeroI64::new(value) {
            Some(n) if value > 0 => Ok(Self(n)),
            _ => Err(InvalidToken(())),
        }
    }

    /// The token as an integer, at least 1: what goes into a `BIGINT` column.
    #[must_use]
    pub const fn get(self) -> i64 {
        self.0.get()
    }

    /// A token from its text form as bytes, as a header value carries it.
    ///
    /// # Errors
    ///
    /// [`InvalidToken`] for everything but the text form described at [`Token`].
    pub const fn from_ascii(text: &[u8]) -> Result<Self, InvalidToken> {
        if text.is_empty() || text.len() > 19 || text[0] == b'0' {
            return Err(InvalidToken(()));
        }
        // Nineteen digits fit into a u64, so the sum cannot overflow before the range check.
        let mut value: u64 = 0;
        let mut i = 0;
        while i < text.len() {
            if !text[i].is_ascii_digit() {
                return Err(InvalidToken(()));
            }
            value = value * 10 + (text[i] - b'0') as u64;
            i += 1;
        }
        if value > i64::MAX as u64 {
            return Err(InvalidToken(()));
        }
        Self::new(value.cast_signed())
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({})", self.0)
    }
}

impl FromStr for Token {
    type Err = InvalidToken;

    fn from_str(text: &str) -> Result<Self, InvalidToken> {
        Self::from_ascii(text.as_bytes())
    }
}

impl TryFrom<i64> for Token {
    type Error = InvalidToken;

    fn try_from(value: i64) -> Result<Self, InvalidToken> {
        Self::new(value)
    }
}

impl TryFrom<u64> for Token {
    type Error = InvalidToken;

    fn try_from(value: u64) -> Result<Self, InvalidToken> {
        i64::try_from(value).map_err(|_| InvalidToken(())).and_then(Self::new)
    }
}

impl From<Token> for i64 {
    fn from(token: Token) -> Self {
        token.get()
    }
}

impl From<Token> for http::HeaderValue {
    fn from(token: Token) -> Self {
        Self::from(token.get())
    }
}

/// What was offered as a token is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InvalidToken(());

impl fmt::Display for InvalidToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a fencing token is an integer from 1 to 9223372036854775807, written in digits only",
        )
    }
}

impl std::error::Error for InvalidToken {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_text_form_is_strict() {
        for bad in [
            "",
            "0",
            "-0",
            "-1",
            "+5",
            "007",
            "0x5",
            "5.0",
            "1e3",
            "5_0",
            "5 6",
            " 5",
            "5 ",
            "т",
            "٣",
            "9223372036854775808",
            "18446744073709551615",
            "18446744073709551616",
            "99999999999999999999",
            "NaN",
        ] {
            assert_eq!(bad.parse::<Token>(), Err(InvalidToken(())), "{bad:?}");
        }
        assert_eq!("1".parse(), Ok(Token::MIN));
        assert_eq!("9223372036854775807".parse(), Ok(Token::MAX));
        assert!(Token::from_ascii(b"5\xff").is_err());
    }

    #[test]
    fn integers_out_of_range_are_refused_not_wrapped() {
        assert!(Token::new(0).is_err());
        assert!(Token::new(-1).is_err());
        assert!(Token::try_from(u64::MAX).is_err());
        assert!(Token::try_from(i64::MAX as u64 + 1).is_err());
        assert_eq!(Token::MAX_GRANTED.get(), 9_007_199_254_740_991);
    }

    #[test]
    fn serde_takes_positive_integers_only() {
        assert_eq!(serde_json::to_string(&Token::MAX).unwrap(), "9223372036854775807");
        assert_eq!(serde_json::from_str::<Token>("34").unwrap().get(), 34);
        for bad in ["0", "-1", "34.0", "\"34\"", "9223372036854775808", "null"] {
            assert!(serde_json::from_str::<Token>(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn every_token_survives_its_text_form(value in 1..=i64::MAX) {
            let token = Token::new(value).unwrap();
            prop_assert_eq!(token.to_string().parse::<Token>(), Ok(token));
            let header = http::HeaderValue::from(token);
            prop_assert_eq!(header.to_str().unwrap(), token.to_string());
        }

        #[test]
        fn text_is_a_token_only_if_it_is_the_tokens_own_text(text in "[ 0-9+_.eE-]{0,21}") {
            if let Ok(token) = text.parse::<Token>() {
                prop_assert_eq!(token.to_string(), text);
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = Token::from_ascii(&bytes);
        }
    }
}
