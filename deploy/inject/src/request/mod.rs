//! The injection settings of one pod, from its validated `annotations`, with the site's settings as defaults; unknown
//! names are reported with the nearest `spelling`.

mod annotations;
mod spelling;

pub use annotations::{Mode, Request, Settings, is_wanted};
pub(crate) use annotations::{is_name, misspelt};
