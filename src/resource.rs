use std::borrow::{Borrow, Cow};
use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use serde::{Deserialize, Serialize};

/// The name of what is protected, and of its lock: `inventory:item:1234`.
///
/// One name, one lock, one mark. A name is UTF-8, 1 to 255 bytes, without control characters, and
/// is compared byte by byte on every backend: case, trailing space and accents matter, and nothing
/// is normalised (`é` as one code point and as two are two resources).
///
/// Cloning is cheap: clones share the text.
///
/// ```
/// use fencing::Resource;
///
/// let resource = Resource::new("inventory:item:1234")?;
/// assert_eq!(resource.as_str(), "inventory:item:1234");
/// assert!(Resource::new("").is_err());
/// assert!(Resource::new("line\nbreak").is_err());
/// # Ok::<(), fencing::InvalidResource>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Resource(Arc<str>);

/// What RFC 3986 leaves unreserved stays readable in a path segment; `:` may too.
const SEGMENT: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'/')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'[')
    .add(b'\\')
    .add(b']')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}')
    .add(b'+')
    .add(b'&')
    .add(b';')
    .add(b'=');

impl Resource {
    /// The longest name, in bytes.
    pub const MAX_LEN: usize = 255;

    /// A resource by its name.
    ///
    /// # Errors
    ///
    /// [`InvalidResource`] when the name is empty, longer than [`MAX_LEN`](Self::MAX_LEN) bytes or
    /// has a control character (Unicode category Cc) in it.
    pub fn new(name: impl AsRef<str> + Into<Arc<str>>) -> Result<Self, InvalidResource> {
        check(name.as_ref())?;
        Ok(Self(name.into()))
    }

    /// A resource from one percent-encoded segment of a URL path. All spellings of the same bytes
    /// are the same resource.
    ///
    /// # Errors
    ///
    /// [`InvalidResource`] for `%` without two hex digits, bytes that are not UTF-8, and whatever
    /// [`Resource::new`] refuses.
    pub fn from_path_segment(segment: &str) -> Result<Self, InvalidResource> {
        if !percent_encoding_is_valid(segment) {
            return Err(InvalidResource(Reason::PercentEncoding));
        }
        match percent_decode_str(segment).decode_utf8() {
            Ok(Cow::Borrowed(name)) => Self::new(name),
            Ok(Cow::Owned(name)) => Self::new(name),
            Err(_) => Err(InvalidResource(Reason::NotUtf8)),
        }
    }

    /// The name as one percent-encoded segment of a URL path.
    #[must_use]
    pub fn to_path_segment(&self) -> String {
        // `.` and `..` alone would be folded away by URL libraries (RFC 3986, section 5.2.4).
        match &*self.0 {
            "." => "%2E".to_owned(),
            ".." => "%2E%2E".to_owned(),
            name => utf8_percent_encode(name, SEGMENT).to_string(),
        }
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn check(name: &str) -> Result<(), InvalidResource> {
    let reason = if name.is_empty() {
        Reason::Empty
    } else if name.len() > Resource::MAX_LEN {
        Reason::TooLong
    } else if name.chars().any(char::is_control) {
        Reason::ControlCharacter
    } else {
        return Ok(());
    };
    Err(InvalidResource(reason))
}

/// Whether every `%` is followed by two hex digits. Decoders in common use, axum's among them,
/// leave a malformed sequence as it is, which would make two names of one.
pub(crate) fn percent_encoding_is_valid(path: &str) -> bool {
    let bytes = path.as_bytes();
    let mut i = 0;
    while i < bytes.len() {
        if bytes[i] == b'%' {
            match bytes.get(i + 1..i + 3) {
                Some(hex) if hex.iter().all(u8::is_ascii_hexdigit) => i += 3,
                _ => return false,
            }
        } else {
            i += 1;
        }
    }
    true
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Resource({:?})", &*self.0)
    }
}

impl AsRef<str> for Resource {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for Resource {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl FromStr for Resource {
    type Err = InvalidResource;

    fn from_str(name: &str) -> Result<Self, InvalidResource> {
        Self::new(name)
    }
}

impl TryFrom<&str> for Resource {
    type Error = InvalidResource;

    fn try_from(name: &str) -> Result<Self, InvalidResource> {
        Self::new(name)
    }
}

impl TryFrom<String> for Resource {
    type Error = InvalidResource;

    fn try_from(name: String) -> Result<Self, InvalidResource> {
        Self::new(name)
    }
}

impl From<&Self> for Resource {
    fn from(resource: &Self) -> Self {
        resource.clone()
    }
}

impl From<Resource> for String {
    fn from(resource: Resource) -> Self {
        resource.as_str().to_owned()
    }
}

/// What was offered as the name of a resource is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InvalidResource(Reason);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reason {
    Empty,
    TooLong,
    ControlCharacter,
    PercentEncoding,
    NotUtf8,
}

impl InvalidResource {
    #[cfg(feature = "axum")]
    pub(crate) const TOO_LONG: Self = Self(Reason::TooLong);
    #[cfg(feature = "axum")]
    pub(crate) const NOT_UTF8: Self = Self(Reason::NotUtf8);
    #[cfg(feature = "axum")]
    pub(crate) const PERCENT_ENCODING: Self = Self(Reason::PercentEncoding);
}

impl fmt::Display for InvalidResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Reason::Empty => "the name of a resource must not be empty",
            Reason::TooLong => "the name of a resource must be at most 255 bytes long",
            Reason::ControlCharacter => "the name of a resource must not have control characters",
            Reason::PercentEncoding => "`%` in a path must be followed by two hex digits",
            Reason::NotUtf8 => "the name of a resource must be UTF-8",
        })
    }
}

impl std::error::Error for InvalidResource {}

impl From<Infallible> for InvalidResource {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_checked_and_never_cut() {
        assert!(Resource::new("a").is_ok());
        assert!(Resource::new("x".repeat(255)).is_ok());
        assert_eq!(Resource::new("x".repeat(256)), Err(InvalidResource(Reason::TooLong)));
        assert_eq!(Resource::new("é".repeat(128)), Err(InvalidResource(Reason::TooLong)));
        assert_eq!(Resource::new(""), Err(InvalidResource(Reason::Empty)));
        for bad in ["a\0b", "a\nb", "\u{7f}", "\u{85}"] {
            assert_eq!(Resource::new(bad), Err(InvalidResource(Reason::ControlCharacter)));
        }
        assert!(Resource::new("Robert'); DROP TABLE locks;--").is_ok());
    }

    #[test]
    fn spellings_of_the_same_bytes_are_one_resource() {
        let name = Resource::new("a/b").unwrap();
        for segment in ["a%2Fb", "a%2fb", "%61%2Fb"] {
            assert_eq!(Resource::from_path_segment(segment).as_ref(), Ok(&name));
        }
        let nfc = Resource::from_path_segment("%C3%A9").unwrap();
        let nfd = Resource::from_path_segment("e%CC%81").unwrap();
        assert_ne!(nfc, nfd);
        // A plus sign is a plus sign in a path; it is a space only in a query.
        assert_eq!(Resource::from_path_segment("a+b").unwrap().as_str(), "a+b");
    }

    #[test]
    fn malformed_percent_encoding_is_refused() {
        for bad in ["a%zz", "%", "%2", "a%2", "%%41", "%FF", "%00", "%C3"] {
            assert!(Resource::from_path_segment(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn every_name_survives_its_path_segment(name in "\\PC{1,80}") {
            if let Ok(resource) = Resource::new(name) {
                let segment = resource.to_path_segment();
                prop_assert!(segment.is_ascii() && !segment.contains('/'));
                prop_assert_eq!(Resource::from_path_segment(&segment), Ok(resource));
            }
        }

        #[test]
        fn arbitrary_segments_never_panic(segment in "[%a-fA-F0-9é/]{0,40}") {
            let _ = Resource::from_path_segment(&segment);
        }
    }
}
