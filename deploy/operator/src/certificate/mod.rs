//! Certificates of both programs. What is shown to whoever connects is read from files (`serving`), whose authority is added
//! to what callers trust (`provided`), or made here and kept in a Secret (`manager`), signed by an [`authority`] of our own;
//! [`trust`] is where callers find which authorities to trust.

pub mod authority;
mod manager;
mod provided;
mod serving;
pub mod trust;

pub use manager::{CertificateManager, Renewals};
pub use provided::ProvidedCertificate;
pub use serving::{Certificate, Files, Look, authorities, config};
