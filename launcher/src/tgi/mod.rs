//! The command line of text-generation-inference (TGI): one table of its flags, how the launcher accepts them, and
//! `launcher check-tgi-args`, which explains them.

mod accept;
mod check;
mod flags;
mod storage;
mod variables;

pub use accept::{NotSupported, TgiArgs, renamed_variables};
pub use check::check;
pub use storage::storage_folder;
