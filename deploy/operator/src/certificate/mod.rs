//! Certificates of both programs. A serving certificate is either read from files or self-signed.
//!
//! - `serving`: reads a certificate from files.
//! - `provided`: adds the authority of a certificate from files to the trust of callers.
//! - `manager`: creates self-signed certificates, stores them in a Secret and renews them.
//! - [`authority`]: the private authority that signs self-signed certificates.
//! - [`trust`]: maintains the authorities that callers trust.

pub mod authority;
mod manager;
mod provided;
mod serving;
pub mod trust;

pub use manager::{CertificateManager, Renewals};
pub use provided::ProvidedCertificate;
pub use serving::{Certificate, Files, Look, authorities, config};
