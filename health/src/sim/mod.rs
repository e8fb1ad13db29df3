//! The simulator: the same frames on virtual time.
