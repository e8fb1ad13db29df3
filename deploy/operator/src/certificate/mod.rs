//! Certificates of both programs. Serving certificates are read from files (`serving`), whose authority is added to the
//! trust of callers (`provided`), or created and stored in a Secret (`manager`), signed by a private [`authority`];
//! [`trust`] maintains the authorities that callers trust.

pub mod authority;
mod manager;
mod provided;
mod serving;
pub mod trust;

pub use manager::{CertificateManager, Renewals};
pub use provided::ProvidedCertificate;
pub use serving::{Certificate, Files, Look, authorities, config};
