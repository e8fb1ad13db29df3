//! The injection settings of one pod. The module `annotations` validates them and fills in the site's settings as
//! defaults. The module `spelling` reports unknown names with the nearest known one.

mod annotations;
mod spelling;

pub use annotations::{Mode, Request, Settings, is_wanted};
pub(crate) use annotations::{is_name, misspelt};
