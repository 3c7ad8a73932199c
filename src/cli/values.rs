//! What stands in flags, parsed.

use std::time::Duration;

use fencing::Resource;
use tracing_subscriber::EnvFilter;

pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let expected = "expected a duration above zero, such as 500ms, 90s, 15m or 24h";
    match parsed(text) {
        Some(duration) if duration >= Duration::from_millis(1) => Ok(duration),
        _ => Err(expected.to_owned()),
    }
}

pub(super) fn duration_or_zero(text: &str) -> Result<Duration, String> {
    parsed(text).ok_or_else(|| "expected a duration, such as 0s, 500ms, 90s or 15m".to_owned())
}

fn parsed(text: &str) -> Option<Duration> {
    let parsed: jiff::SignedDuration = text.parse().ok()?;
    Duration::try_from(parsed).ok()
}

pub(super) fn resource(text: &str) -> Result<Resource, String> {
    Resource::new(text).map_err(|error| error.to_string())
}

pub(super) fn filter(text: &str) -> Result<String, String> {
    EnvFilter::try_new(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}
