use std::fmt;
use std::sync::Arc;

use http::request::Parts;

#[cfg(feature = "axum")]
use super::template::Template;
use crate::{Problem, Resource};

/// How a [`FenceLayer`](super::FenceLayer) makes a resource of a request: a template or a
/// function. Cloning is cheap.
#[derive(Clone)]
pub struct Resolver(Kind);

#[derive(Clone)]
enum Kind {
    #[cfg(feature = "axum")]
    Template(Template),
    Function(Arc<Function>),
}

type Function = dyn Fn(&Parts) -> Result<Resource, Problem> + Send + Sync;

impl Resolver {
    #[cfg(feature = "axum")]
    pub(super) fn template(text: &str) -> Self {
        Self(Kind::Template(Template::new(text)))
    }

    pub(super) fn function<F>(resolve: F) -> Self
    where
        F: Fn(&Parts) -> Result<Resource, Problem> + Send + Sync + 'static,
    {
        Self(Kind::Function(Arc::new(resolve)))
    }

    /// The parts are lent for change because axum's extractors want them so; nothing is changed.
    pub(super) fn resolve(&self, parts: &mut Parts) -> Result<Resource, Problem> {
        match &self.0 {
            #[cfg(feature = "axum")]
            Kind::Template(template) => template.resolve(parts),
            Kind::Function(resolve) => resolve(parts),
        }
    }
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            #[cfg(feature = "axum")]
            Kind::Template(template) => template.fmt(f),
            Kind::Function(_) => f.write_str("<fn>"),
        }
    }
}
