//! Who may load adapters at run time, and from where.

use std::path::PathBuf;

use super::hub::AdapterHub;
use crate::base::folder_below::folder_below;

/// The rules of a server.
#[derive(Debug, Clone, Default)]
pub struct RunTimeRules {
    /// Folder below which adapters are; none may be loaded without it.
    pub root: Option<PathBuf>,
    /// Where ids are looked up; without it none may be downloaded.
    pub hub: Option<AdapterHub>,
    /// Whether callers without a key of the server may load adapters.
    pub is_open: bool,
}

impl RunTimeRules {
    /// The folder at this path, if it is one that may be loaded.
    pub fn folder(&self, path: &str) -> Option<PathBuf> {
        folder_below(self.root.as_ref()?, path)
    }
}
