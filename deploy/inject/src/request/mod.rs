//! What is asked for of one pod: by its `annotations`, checked, with the site's settings where they say nothing; unknown
//! names are reported with the nearest `spelling`.

mod annotations;
mod spelling;

pub use annotations::{Mode, Request, Settings, is_wanted};
pub(crate) use annotations::{is_name, misspelt};
