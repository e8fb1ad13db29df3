//! Statistics that the detector stands on.
