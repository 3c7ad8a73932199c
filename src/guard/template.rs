//! Resource templates over the path parameters of axum.

use std::fmt;
use std::pin::pin;
use std::str;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{FromRequestParts, OriginalUri, RawPathParams};
use http::request::Parts;

use crate::resource::percent_encoding_is_valid;
use crate::{InvalidResource, Problem, ProblemKind, Resource};

/// A parsed template, or why it is none.
#[derive(Clone)]
pub(super) struct Template(Result<Arc<Parsed>, Broken>);

/// `prefix{name}after{name}after...`
#[derive(Debug)]
struct Parsed {
    prefix: Box<str>,
    params: Box<[Param]>,
}

#[derive(Debug)]
struct Param {
    name: Box<str>,
    /// The text up to the next parameter, or to the end.
    after: Box<str>,
}

/// Why a text is no template.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Broken {
    Brace,
    Name,
    Touching,
    Text(InvalidResource),
}

impl Template {
    pub(super) fn new(text: &str) -> Self {
        let parsed = parse(text);
        if let Err(broken) = parsed {
            tracing::error!(
                target: "fencing::guard",
                template = text,
                "the template of a resource is broken, its routes answer 500: {broken}"
            );
        }
        Self(parsed.map(Arc::new))
    }

    pub(super) fn resolve(&self, parts: &mut Parts) -> Result<Resource, Problem> {
        let Ok(template) = &self.0 else {
            return Err(misconfigured("the template of the resource is broken"));
        };
        // A nested router shortens `uri`; the parameters of the prefix count all the same.
        let original = parts.extensions.get::<OriginalUri>();
        let uri = original.map_or(&parts.uri, |original| &original.0);
        if !percent_encoding_is_valid(uri.path()) {
            return Err(InvalidResource::PERCENT_ENCODING.into());
        }
        template.fill(&path_params(parts)?)
    }
}

fn parse(text: &str) -> Result<Parsed, Broken> {
    let mut pieces = text.split('{');
    let prefix = pieces.next().unwrap_or_default();
    if prefix.contains('}') {
        return Err(Broken::Brace);
    }
    let mut params = Vec::new();
    let mut shortest = prefix.to_owned();
    for piece in pieces {
        let (name, after) = piece.split_once('}').ok_or(Broken::Brace)?;
        if after.contains('}') {
            return Err(Broken::Brace);
        }
        if name.is_empty() || name.contains('*') {
            return Err(Broken::Name);
        }
        if params.last().is_some_and(|before: &Param| before.after.is_empty()) {
            return Err(Broken::Touching);
        }
        shortest.push('x');
        shortest.push_str(after);
        params.push(Param { name: name.into(), after: after.into() });
    }
    Resource::new(shortest).map_err(Broken::Text)?;
    Ok(Parsed { prefix: prefix.into(), params: params.into() })
}

/// The extractor never waits, so polling it once is enough.
fn path_params(parts: &mut Parts) -> Result<RawPathParams, Problem> {
    let params = pin!(RawPathParams::from_request_parts(parts, &()));
    match params.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(params)) => Ok(params),
        Poll::Ready(Err(RawPathParamsRejection::InvalidUtf8InPathParam(_))) => {
            Err(InvalidResource::NOT_UTF8.into())
        }
        Poll::Ready(Err(_)) | Poll::Pending => Err(misconfigured(
            "there are no path parameters here: wrap the routes of an axum router by `route_layer`",
        )),
    }
}

impl Parsed {
    fn fill<'a, P>(&self, params: P) -> Result<Resource, Problem>
    where
        P: IntoIterator<Item = (&'a str, &'a str)> + Copy,
    {
        let mut name = Name { bytes: [0; Resource::MAX_LEN], len: 0 };
        name.push(&self.prefix)?;
        let last = self.params.len().wrapping_sub(1);
        for (at, param) in self.params.iter().enumerate() {
            let mut values = params.into_iter().filter(|(name, _)| *name == &*param.name);
            let value = match (values.next(), values.next()) {
                (Some((_, value)), None) => value,
                (None, _) => {
                    return Err(misconfigured(
                        "the template of the resource names a parameter the route does not have",
                    ));
                }
                (Some(_), Some(_)) => {
                    return Err(misconfigured(
                        "the template of the resource names a parameter the route has twice",
                    ));
                }
            };
            name.push(value)?;
            if at != last && hides_its_end(value, &param.after) {
                return Err(Problem::new(ProblemKind::INVALID_RESOURCE).with_detail(
                    "a path parameter has in it what separates it from the next in the name of \
                     the resource",
                ));
            }
            name.push(&param.after)?;
        }
        Ok(name.finish()?)
    }
}

/// Whether a reader of `value` + `separator` would find the separator before the end of the value,
/// and so take a shorter value for it: then other values could make the same name.
fn hides_its_end(value: &str, separator: &str) -> bool {
    (0..value.len()).any(|at| {
        let from_here = value.bytes().chain(separator.bytes()).skip(at);
        from_here.take(separator.len()).eq(separator.bytes())
    })
}

/// A name under construction, on the stack: the one allocation is that of the resource.
struct Name {
    bytes: [u8; Resource::MAX_LEN],
    len: usize,
}

impl Name {
    fn push(&mut self, text: &str) -> Result<(), InvalidResource> {
        let end = self.len.saturating_add(text.len());
        let room = self.bytes.get_mut(self.len..end).ok_or(InvalidResource::TOO_LONG)?;
        room.copy_from_slice(text.as_bytes());
        self.len = end;
        Ok(())
    }

    fn finish(&self) -> Result<Resource, InvalidResource> {
        let name = str::from_utf8(&self.bytes[..self.len]);
        Resource::new(name.map_err(|_| InvalidResource::NOT_UTF8)?)
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Brace => f.write_str("a brace has no partner"),
            Self::Name => f.write_str("a parameter has no name, or a `*`: write `{rest}`"),
            Self::Touching => f.write_str("two parameters touch: put a separator between them"),
            Self::Text(invalid) => invalid.fmt(f),
        }
    }
}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

fn misconfigured(detail: &'static str) -> Problem {
    Problem::new(ProblemKind::MISCONFIGURED).with_detail(detail)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fill(template: &str, params: &[(&str, &str)]) -> Result<String, (&'static str, String)> {
        #[derive(Clone, Copy)]
        struct Params<'a>(&'a [(&'a str, &'a str)]);
        impl<'a> IntoIterator for Params<'a> {
            type Item = (&'a str, &'a str);
            type IntoIter = std::iter::Copied<std::slice::Iter<'a, Self::Item>>;
            fn into_iter(self) -> Self::IntoIter {
                self.0.iter().copied()
            }
        }
        let template = parse(template).unwrap();
        template.fill(Params(params)).map(String::from).map_err(|problem| {
            (problem.kind().name(), problem.detail().unwrap_or_default().to_owned())
        })
    }

    #[test]
    fn a_template_is_filled_in() {
        assert_eq!(fill("report", &[]).unwrap(), "report");
        assert_eq!(fill("{id}", &[("id", "7")]).unwrap(), "7");
        let params = [("tenant", "acme"), ("id", "a:b/é")];
        assert_eq!(fill("{tenant}:item:{id}!", &params).unwrap(), "acme:item:a:b/é!");
        assert_eq!(fill("{id}/{tenant}/{id}", &params).unwrap_err().0, "invalid-resource");
    }

    #[test]
    fn what_is_no_template_is_found_when_it_is_parsed() {
        for (text, broken) in [
            ("a{id", Broken::Brace),
            ("a}b", Broken::Brace),
            ("{a}}", Broken::Brace),
            ("{a{b}}", Broken::Brace),
            ("{}", Broken::Name),
            ("{*rest}", Broken::Name),
            ("{a}{b}", Broken::Touching),
            ("", Broken::Text(Resource::new("").unwrap_err())),
            ("a\n{id}", Broken::Text(Resource::new("\n").unwrap_err())),
        ] {
            assert_eq!(parse(text).err(), Some(broken), "{text}");
        }
        assert!(parse(&format!("{{id}}{}", "x".repeat(254))).is_ok());
        let long = parse(&format!("{{id}}{}", "x".repeat(255)));
        assert_eq!(long.err(), Some(Broken::Text(InvalidResource::TOO_LONG)));
    }

    #[test]
    fn a_parameter_is_there_once() {
        let (kind, detail) = fill("{id}", &[("other", "1")]).unwrap_err();
        assert_eq!(kind, "misconfigured");
        assert!(detail.contains("does not have"), "{detail}");
        let (kind, detail) = fill("{id}", &[("id", "1"), ("id", "1")]).unwrap_err();
        assert_eq!(kind, "misconfigured");
        assert!(detail.contains("twice"), "{detail}");
    }

    #[test]
    fn a_name_is_checked_as_a_whole() {
        let filled = |value: &str| fill("x:{id}", &[("id", value)]);
        assert_eq!(filled(&"v".repeat(253)).unwrap().len(), 255);
        assert_eq!(filled(&"v".repeat(254)).unwrap_err().0, "invalid-resource");
        assert_eq!(filled(&"v".repeat(70_000)).unwrap_err().0, "invalid-resource");
        assert_eq!(filled("a\0b").unwrap_err().0, "invalid-resource");
        assert_eq!(fill("{id}", &[("id", "")]).unwrap_err().0, "invalid-resource");
    }

    #[test]
    fn a_value_that_hides_its_end_is_refused() {
        let refused = |a: &str| fill("{a}::{b}", &[("a", a), ("b", "z")]).is_err();
        // `x` and `y::z` would be `x::y::z` too.
        assert!(refused("x::y"));
        // `x:` + `::` has the separator one byte early: it reads as `x` and `:z`.
        assert!(refused("x:"));
        assert!(!refused("x:y"));
        // The last parameter may have anything in it.
        assert!(fill("{a}::{b}", &[("a", "x"), ("b", "y::z")]).is_ok());
    }

    proptest! {
        /// Two different sets of values never make one name.
        #[test]
        fn names_are_one_to_one(
            (a, b, c, d) in ("[ab:]{0,4}", "[ab:]{0,4}", "[ab:]{0,4}", "[ab:]{0,4}"),
            between in "[ab:]{1,3}",
        ) {
            let template = format!("{{x}}{between}{{y}}b");
            let one = fill(&template, &[("x", &a), ("y", &b)]);
            let two = fill(&template, &[("x", &c), ("y", &d)]);
            if let (Ok(one), Ok(two)) = (one, two) {
                prop_assert_eq!(one == two, (a, b) == (c, d));
            }
        }

        #[test]
        fn arbitrary_templates_never_panic(text in "[{}*a:\\PC]{0,20}") {
            let _ = Template::new(&text);
        }
    }
}
