//! The sidecar of one node, and the aggregator of one job.
