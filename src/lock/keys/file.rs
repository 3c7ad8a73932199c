use std::fmt;
use std::str::FromStr;

use percent_encoding::percent_decode_str;

use super::{Key, Keys, Reach, Role};
use crate::Resource;
use crate::resource::percent_encoding_is_valid;

const MAX_NAME_LEN: usize = 64;

impl FromStr for Keys {
    type Err = InvalidKeys;

    fn from_str(text: &str) -> Result<Self, InvalidKeys> {
        let mut keys: Vec<Key> = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let at = |reason| InvalidKeys { line: Some(number), reason };
            let key = Key::parse(line).map_err(at)?;
            if keys.iter().any(|other| other.digest == key.digest) {
                return Err(at("the same key stands on an earlier line"));
            }
            keys.push(key);
        }
        if keys.is_empty() {
            // A file that was cut off is more likely than one that shuts everybody out.
            return Err(InvalidKeys { line: None, reason: "there is no key in it" });
        }
        Ok(Self(keys))
    }
}

impl Key {
    fn parse(line: &str) -> Result<Self, &'static str> {
        let mut words = line.split_ascii_whitespace();
        let (Some(name), Some(digest), Some(roles)) = (words.next(), words.next(), words.next())
        else {
            return Err("expected: NAME sha256:DIGEST ROLES RESOURCES");
        };
        let fits = |b: u8| b.is_ascii_alphanumeric() || b"-_.:@/".contains(&b);
        if name.len() > MAX_NAME_LEN || !name.bytes().all(fits) {
            return Err("a name is at most 64 ascii letters, digits and -_.:@/");
        }
        let digest = digest
            .strip_prefix("sha256:")
            .and_then(unhex)
            .ok_or("the digest is sha256: and 64 hex digits; the key itself must not be here")?;
        let roles = roles.split(',').map(role).collect::<Result<_, _>>()?;
        let reach = words.map(reach).collect::<Result<Vec<_>, _>>()?;
        if reach.is_empty() {
            return Err("it names no resources: give prefixes, =NAME, or * for all");
        }
        Ok(Self { name: name.into(), digest, roles, reach })
    }
}

fn role(name: &str) -> Result<Role, &'static str> {
    let found = Role::ALL.iter().find(|(known, _)| *known == name);
    found.map(|(_, role)| *role).ok_or("the roles are lock, read, metrics and admin, with commas")
}

fn reach(word: &str) -> Result<Reach, &'static str> {
    if word == "*" {
        return Ok(Reach::All);
    }
    if word.contains('*') {
        return Err("a prefix has no star: write inventory: for all that begins so");
    }
    if let Some(name) = word.strip_prefix('=') {
        let name = Resource::from_path_segment(name).map_err(|_| "after = stands no valid name")?;
        return Ok(Reach::Exactly(name));
    }
    let decoded = percent_decode_str(word).decode_utf8().ok().filter(|prefix| {
        percent_encoding_is_valid(word)
            && prefix.len() <= Resource::MAX_LEN
            && !prefix.chars().any(char::is_control)
    });
    decoded.map(|prefix| Reach::Prefix(prefix.into())).ok_or("no resource can begin like that")
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * i..2 * i + 2)?, 16).ok()?;
    }
    Some(bytes)
}

/// A file of keys cannot be used. Nothing of what is in it is quoted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InvalidKeys {
    line: Option<usize>,
    reason: &'static str,
}

impl fmt::Display for InvalidKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason)?;
        self.line.map_or(Ok(()), |line| write!(f, " line=`{line}`"))
    }
}

impl std::error::Error for InvalidKeys {}
