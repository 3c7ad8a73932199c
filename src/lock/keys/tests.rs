use http::HeaderValue;

use super::*;

fn digest_of(key: &str) -> String {
    format!("sha256:{}", hex(&digest(key.as_bytes())))
}

fn ring(lines: &[(&str, &str, &str)]) -> KeyRing {
    let line = |(key, roles, reach): &(&str, &str, &str)| {
        format!("name-of-{key} {} {roles} {reach}\n", digest_of(key))
    };
    KeyRing::new(lines.iter().map(line).collect::<String>().parse().unwrap())
}

fn headers(values: &[&[u8]]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for value in values {
        headers.append(AUTHORIZATION, HeaderValue::from_bytes(value).unwrap());
    }
    headers
}

fn ask(ring: &KeyRing, key: &str, role: Role, name: &str) -> Result<(), u16> {
    let headers = headers(&[format!("Bearer {key}").as_bytes()]);
    let resource = Resource::new(name).unwrap();
    ring.authorize(&headers, role, Some(&resource)).map(drop).map_err(|p| p.status().as_u16())
}

#[test]
fn a_key_reaches_its_roles_on_its_resources_and_no_further() {
    let ring = ring(&[
        ("worker", "lock", "inventory: a%20b"),
        ("viewer", "read", "=inventory:item:1"),
        ("scraper", "metrics", "*"),
        ("root", "admin", "*"),
        ("half", "admin", "tenant-1:"),
    ]);
    assert_eq!(ask(&ring, "worker", Role::Lock, "inventory:item:1"), Ok(()));
    assert_eq!(ask(&ring, "worker", Role::Lock, "a b c"), Ok(()));
    for elsewhere in ["inventory", "orders", "xinventory:", "Inventory:item", "a%20b"] {
        assert_eq!(ask(&ring, "worker", Role::Lock, elsewhere), Err(403), "{elsewhere}");
    }
    assert_eq!(ask(&ring, "worker", Role::Read, "inventory:item:1"), Err(403));
    assert_eq!(ask(&ring, "viewer", Role::Read, "inventory:item:1"), Ok(()));
    assert_eq!(ask(&ring, "viewer", Role::Read, "inventory:item:10"), Err(403));
    assert_eq!(ask(&ring, "viewer", Role::Lock, "inventory:item:1"), Err(403));
    assert_eq!(ask(&ring, "scraper", Role::Read, "x"), Err(403));
    for role in [Role::Lock, Role::Read, Role::Metrics, Role::Admin] {
        assert_eq!(ask(&ring, "root", role, "anything"), Ok(()));
        assert_eq!(ask(&ring, "half", role, "anything"), Err(403));
        assert_eq!(ask(&ring, "half", role, "tenant-1:x"), Ok(()));
        assert_eq!(ask(&ring, "stranger", role, "anything"), Err(401));
    }
    assert_eq!(ask(&ring, "scraper", Role::Admin, "x"), Err(403));
}

#[test]
fn exactly_one_bearer_key_is_a_key() {
    let ring = ring(&[("k", "lock", "*")]);
    let check = |values: &[&[u8]]| {
        ring.authorize(&headers(values), Role::Lock, None).map(|name| name.to_string())
    };
    for good in [&b"Bearer k"[..], b"bearer k", b"BEARER   k"] {
        assert_eq!(check(&[good]).unwrap(), "name-of-k");
    }
    let bad: [&[&[u8]]; 11] = [
        &[],
        &[b""],
        &[b"Bearer"],
        &[b"Bearer "],
        &[b"Bearer k2"],
        &[b"Bearer k k"],
        &[b"Bearerk"],
        &[b"Basic k"],
        &[b"k"],
        &[b"Bearer \xff\xfe"],
        &[b"Bearer k", b"Bearer k"],
    ];
    for values in bad {
        let problem = check(values).unwrap_err();
        assert_eq!(problem.kind(), ProblemKind::UNAUTHENTICATED, "{values:?}");
    }
}

#[test]
fn an_unusable_file_says_which_line_and_quotes_nothing() {
    let digest = digest_of("k");
    let other = digest_of("l");
    let cases = [
        (String::new(), "no key"),
        ("# only a comment\n\n".to_owned(), "no key"),
        ("\nname".to_owned(), "expected: NAME"),
        (format!("\nname {digest} lock"), "no resources"),
        ("\nname hunter2hunter2 lock *".to_owned(), "must not be here"),
        (format!("\nname {} lock *", &digest[..70]), "64 hex digits"),
        (format!("\nname {} lock *", digest.replace("sha256:", "sha256:+").replace("0", "")), "64"),
        (format!("\nname {digest} lcok *"), "the roles are"),
        (format!("\nname {digest} lock, *"), "the roles are"),
        (format!("\nname {digest} lock inventory:*"), "no star"),
        (format!("\nname {digest} lock a%zz"), "begin like that"),
        (format!("\nname {digest} lock a%0a"), "begin like that"),
        (format!("\nname {digest} lock ="), "no valid name"),
        (format!("\nn\u{e4}me {digest} lock *"), "ascii letters"),
        (format!("a {digest} lock *\nb {digest} read *"), "an earlier line"),
    ];
    for (text, expected) in cases {
        let error = text.parse::<Keys>().unwrap_err().to_string();
        assert!(error.contains(expected), "{text:?}: {error}");
        assert_eq!(error.contains("line=`2`"), expected != "no key", "{text:?}: {error}");
        assert!(!error.contains("hunter2"), "{error}");
    }
    // For an exchange of keys: two of one name.
    let keys: Keys = format!("a {digest} lock *\r\na {other} lock *\r\n").parse().unwrap();
    assert_eq!(keys.len(), 2);
}

#[test]
fn a_new_key_is_random_and_only_its_digest_is_written_down() {
    let (a, b) = (AccessKey::random().unwrap(), AccessKey::random().unwrap());
    assert_ne!(a.reveal(), b.reveal());
    assert_eq!(a.reveal().len(), AccessKey::PREFIX.len() + 64);
    assert!(!format!("{a:?} {}", a.digest()).contains(&a.reveal()[12..]));
    let ring = KeyRing::new(format!("a {} lock *", a.digest()).parse().unwrap());
    assert_eq!(ask(&ring, a.reveal(), Role::Lock, "x"), Ok(()));
    assert_eq!(ask(&ring, b.reveal(), Role::Lock, "x"), Err(401));
    // The digest is no key.
    assert_eq!(ask(&ring, &a.digest(), Role::Lock, "x"), Err(401));
    ring.replace(format!("b {} lock *", b.digest()).parse().unwrap());
    assert_eq!(ask(&ring, a.reveal(), Role::Lock, "x"), Err(401));
    assert_eq!(ask(&ring, b.reveal(), Role::Lock, "x"), Ok(()));
    assert!(!format!("{ring:?}").contains("sha256"));
}
