//! TLS, by the files of a certificate and its key.

#[cfg(feature = "tls")]
pub(super) use self::with::Tls;
#[cfg(not(feature = "tls"))]
pub(super) use self::without::Tls;

#[cfg(feature = "tls")]
mod with {
    use std::io;
    use std::path::{Path, PathBuf};
    use std::sync::{Arc, PoisonError, RwLock};

    use tokio::net::TcpStream;
    use tokio_rustls::TlsAcceptor;
    use tokio_rustls::rustls::ServerConfig;
    use tokio_rustls::rustls::crypto::ring;
    use tokio_rustls::rustls::pki_types::pem::PemObject as _;
    use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use tokio_rustls::server::TlsStream;

    use crate::cli::failure::Failure;

    /// Accepts TLS 1.2 and 1.3. Clones share the certificate, which can be read again.
    #[derive(Clone, Debug)]
    pub(in super::super) struct Tls {
        cert: PathBuf,
        key: PathBuf,
        config: Arc<RwLock<Arc<ServerConfig>>>,
    }

    impl Tls {
        pub(in super::super) fn open(cert: &Path, key: &Path) -> Result<Self, Failure> {
            let config = Arc::new(RwLock::new(load(cert, key)?));
            Ok(Self { cert: cert.to_owned(), key: key.to_owned(), config })
        }

        /// Reads the files again. What is wrong with them leaves everything as it was.
        pub(in super::super) fn reload(&self) -> Result<(), Failure> {
            let config = load(&self.cert, &self.key)?;
            *self.config.write().unwrap_or_else(PoisonError::into_inner) = config;
            Ok(())
        }

        pub(in super::super) async fn accept(
            &self,
            tcp: TcpStream,
        ) -> io::Result<TlsStream<TcpStream>> {
            let config = Arc::clone(&self.config.read().unwrap_or_else(PoisonError::into_inner));
            TlsAcceptor::from(config).accept(tcp).await
        }
    }

    fn load(cert: &Path, key: &Path) -> Result<Arc<ServerConfig>, Failure> {
        let failed = |what: &str, error: &dyn std::error::Error, setting: &str, path: &Path| {
            Failure::of(what, error, setting, &path.display().to_string())
        };
        let chain: Vec<_> = CertificateDer::pem_file_iter(cert)
            .and_then(Iterator::collect)
            .map_err(|error| failed("cannot read the certificate", &error, "tls-cert", cert))?;
        if chain.is_empty() {
            let nothing = std::io::Error::other("there is no certificate in it");
            return Err(failed("cannot read the certificate", &nothing, "tls-cert", cert));
        }
        let private = PrivateKeyDer::from_pem_file(key)
            .map_err(|error| failed("cannot read the private key", &error, "tls-key", key))?;
        let unfit = |error| failed("cannot serve TLS", &error, "tls-cert", cert);
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(unfit)?
            .with_no_client_auth()
            .with_single_cert(chain, private)
            .map_err(unfit)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

#[cfg(not(feature = "tls"))]
mod without {
    use std::io;

    use tokio::net::TcpStream;

    use crate::cli::failure::Failure;

    /// There is none: the feature `tls` is off.
    #[derive(Clone, Debug)]
    pub(in super::super) enum Tls {}

    impl Tls {
        pub(in super::super) fn reload(&self) -> Result<(), Failure> {
            match *self {}
        }

        pub(in super::super) async fn accept(&self, _: TcpStream) -> io::Result<TcpStream> {
            match *self {}
        }
    }
}
