//! Keys and certificate, from files that are read again at SIGHUP.

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};

use fencing::lock::{KeyRing, Keys};

use super::tls::Tls;
use crate::cli::failure::Failure;

pub(super) struct Access {
    keys: Option<(PathBuf, KeyRing)>,
    tls: Option<Tls>,
}

impl Access {
    pub(super) fn open(keys: Option<&Path>, tls: Option<Tls>) -> Result<Self, Failure> {
        let open = |path: &Path| {
            let keys = read(path)?;
            tracing::info!(keys = keys.len(), "keys read");
            Ok::<_, Failure>((path.to_owned(), KeyRing::new(keys)))
        };
        Ok(Self { keys: keys.map(open).transpose()?, tls })
    }

    pub(super) fn keys(&self) -> Option<KeyRing> {
        self.keys.as_ref().map(|(_, ring)| ring.clone())
    }

    pub(super) fn tls(&self) -> Option<Tls> {
        self.tls.clone()
    }

    /// A future without end, that reads the files again at each SIGHUP after this call.
    #[cfg(unix)]
    pub(super) fn reload_when_told(self) -> io::Result<impl Future<Output = ()>> {
        use tokio::signal::unix::{SignalKind, signal};
        let mut hangup = signal(SignalKind::hangup())?;
        Ok(async move {
            while hangup.recv().await.is_some() {
                self.reload();
            }
        })
    }

    #[cfg(not(unix))]
    pub(super) fn reload_when_told(self) -> io::Result<impl Future<Output = ()>> {
        Ok(std::future::ready(()))
    }

    /// What cannot be read leaves in force what was.
    #[cfg(unix)]
    fn reload(&self) {
        if let Some((path, ring)) = &self.keys {
            match read(path) {
                Ok(keys) => {
                    tracing::info!(keys = keys.len(), "keys read again");
                    ring.replace(keys);
                }
                Err(error) => tracing::error!(%error, "the keys stay what they were"),
            }
        }
        if let Some(tls) = &self.tls {
            match tls.reload() {
                Ok(()) => tracing::info!("certificate read again"),
                Err(error) => tracing::error!(%error, "the certificate stays what it was"),
            }
        }
        if self.keys.is_none() && self.tls.is_none() {
            tracing::info!("SIGHUP: there are no files to read again");
        }
    }
}

fn read(path: &Path) -> Result<Keys, Failure> {
    let failed = |error: &dyn std::error::Error| {
        Failure::of("cannot read the keys", error, "keys", &path.display().to_string())
    };
    let text = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
    text.parse().map_err(|error| failed(&error))
}
