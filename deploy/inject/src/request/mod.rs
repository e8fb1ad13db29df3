//! What is asked for of one pod: by its `annotations`, checked, with the site's settings where they say nothing; names that
//! nobody reads are told by their `spelling`.

mod annotations;
mod spelling;

pub use annotations::{Mode, Request, Settings, is_wanted};
pub(crate) use annotations::{is_name, misspelt};
