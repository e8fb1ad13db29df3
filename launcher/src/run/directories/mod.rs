//! The directories of a run: the user's, the one in shared memory, and the hook's. Also how several tasks of a node
//! share one of them.

pub(crate) mod hook_dir;
pub(crate) mod place;
pub(crate) mod share;
