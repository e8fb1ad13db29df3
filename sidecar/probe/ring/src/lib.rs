//! The ring between a trainer process and the sidecar.
