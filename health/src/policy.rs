//! Policy as data: the tables in `policy/`, read once. Code finds, tables decide.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::verdict::{Cause, Finding};

const DETECTOR: &str = include_str!("../policy/detector.toml");
const FINDINGS: &str = include_str!("../policy/findings.toml");
