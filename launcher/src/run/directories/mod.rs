//! The directories of a run: the user's, the one in shared memory, the hook's; and how several tasks of a node share
//! one.

pub(crate) mod hook_dir;
pub(crate) mod place;
pub(crate) mod share;
