//! Which folders a client may name: those below one that the operator chose.

use std::path::{Path, PathBuf};

/// The folder at this path, which is below the root also where links lead; so are the files in it. A relative path
/// begins at the root. `None` if it is not so, or if there is no such folder: callers do not learn which.
pub fn folder_below(root: &Path, path: &str) -> Option<PathBuf> {
    let root = root.canonicalize().ok()?;
    let folder = root.join(path).canonicalize().ok()?;
    let is_inside = |path: &Path| path.canonicalize().is_ok_and(|path| path.starts_with(&root));
    let mut files = std::fs::read_dir(&folder).ok()?;
    let is_whole = folder.starts_with(&root)
        && folder != root
        && files.all(|file| file.is_ok_and(|file| is_inside(&file.path())));
    is_whole.then_some(folder)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_folders_below_the_root_are_found_whatever_links_say() {
        let base = tempfile::tempdir().unwrap();
        let base = base.path().canonicalize().unwrap();
        let (root, outside) = (base.join("root"), base.join("outside"));
        for folder in ["root/good", "root/leaky", "outside/secret"] {
            std::fs::create_dir_all(base.join(folder)).unwrap();
        }
        std::fs::write(root.join("good/adapter_config.json"), "{}").unwrap();
        std::fs::write(outside.join("weights"), "x").unwrap();
        symlink(outside.join("secret"), root.join("link")).unwrap();
        symlink(outside.join("weights"), root.join("leaky/adapter_model.safetensors")).unwrap();
        symlink(root.join("good"), root.join("alias")).unwrap();
        let good = root.join("good");
        for path in ["good", "alias", good.to_str().unwrap()] {
            assert_eq!(folder_below(&root, path).as_deref(), Some(&*good), "{path}");
        }
        let secret = outside.join("secret");
        for path in ["", ".", "..", "../outside/secret", "link", "leaky", "none", secret.to_str().unwrap()] {
            assert_eq!(folder_below(&root, path), None, "{path}");
        }
        assert_eq!(folder_below(&base.join("none"), "good"), None);
    }
}
